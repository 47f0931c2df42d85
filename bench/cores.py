"""Slow cores: processes that may use only a part of one, to see on a small machine how a fleet grows with its cores.

Each process gets a control group of its own, of version 1 or 2. Where those cannot be made there is nothing to measure.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
#: Microseconds after which a process that has used its part may go on. Where these are few, processes that take turns
#: on a core find its caches cold each time, and that is measured instead of their work.
_PERIOD = 50_000


@contextmanager
def slowed(pids: Iterable[int], part: float) -> Iterator[bool]:
    """For as long as the block lasts each process has this part of a core; False if that cannot be done here."""
    with ExitStack() as stack:
        try:
            for pid in pids:
                stack.enter_context(_group(pid, int(_PERIOD * part)))
        except OSError:
            stack.close()
            yield False
        else:
            yield True


@contextmanager
def _group(pid: int, quota: int) -> Iterator[None]:
    first = (_GROUPS / "cgroup.controllers").exists()  # version 2
    folder = (_GROUPS if first else _GROUPS / "cpu") / f"perdure-bench-{os.getpid()}-{pid}"
    folder.mkdir()
    try:
        if first:
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        (folder / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        # A group goes when nobody is in it any more.
        for one in (folder / "cgroup.procs").read_text().split():
            (folder.parent / "cgroup.procs").write_text(one)
        folder.rmdir()
