"""Programs from Debian's packages, for tests on a machine that does not have them.

The packages are fetched into a cache of the user's and only unpacked there: nothing is installed, and no rights are
needed. Rules kept here: what is there once is not fetched again, also if several ask at the same time; what is half
there is not taken for the whole; packages are looked up in lists of today, for those of the machine may name versions
that are not to be had any more; packages that cannot be had are an error that says why.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Belongs to the loader that starts every program of this machine, which takes no other.
_LOADER = "libc6"


class NoPackages(RuntimeError):
    """Packages cannot be fetched here; the text says why."""


def cache(name: str) -> Path:
    """Where the packages of a program are unpacked."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure" / name


@contextmanager
def once(home: Path) -> Iterator[bool]:
    """Says whether that directory has to be filled; others who ask wait until it is.

    with once(home) as empty:
        if empty:
            unpack(home, ["hello"])
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not (home / "ready").exists()
        (home / "ready").touch()


def unpack(home: Path, names: Sequence[str], *, needs: bool = False) -> None:
    """These packages, in that directory; with `needs` also those which they need and this machine lacks."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NoPackages("only on Debian and its likes it is fetched by itself")
    for old in ("etc", "lib", "usr", "packages"):
        shutil.rmtree(home / old, ignore_errors=True)
    (home / "packages").mkdir()
    try:
        (home / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        options = ("-o", f"Dir::State::lists={home / 'lists'}", "-o", f"Dir::Cache={home}")
        _run(["apt-get", *options, "update"], home)
        wanted = [*names, *(_lacking(names, options, home) if needs else ())]
        _run(["apt-get", *options, "download", *dict.fromkeys(wanted)], home / "packages")
        for package in sorted((home / "packages").glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(home)], home)
    except subprocess.CalledProcessError as error:
        raise NoPackages(error.stderr[-500:].strip()) from error
    shutil.rmtree(home / "packages")


def libraries(home: Path) -> str:
    """A LD_LIBRARY_PATH with which unpacked programs find what was unpacked beside them."""
    ours = {file.parent for file in home.glob("**/*.so*")}
    given = os.environ.get("LD_LIBRARY_PATH")
    return ":".join([*sorted(map(str, ours)), *([given] if given else [])])


def _lacking(names: Sequence[str], options: Sequence[str], folder: Path) -> list[str]:
    """What would be installed with them: a rehearsal, for which nobody needs rights."""
    told = _run(["apt-get", *options, "install", "--simulate", "--no-install-recommends", *names], folder)
    return [name for name in re.findall(r"^Inst (\S+) ", told, re.MULTILINE) if name != _LOADER]


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout
