"""Where code is: the author's own line, never one of the engine or of a library.

`where` tells at which line a suspended task waits, `here` which line made the call that is under way. Both are for
messages only: nothing is decided by them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

#: Where a task is that runs no code of the user's: in one that is data.
NOWHERE = "an unknown place"

_OURS = __file__.rpartition("core")[0]
_PYTHON = asyncio.__file__.rpartition("asyncio")[0]
_INSTALLED = ("site-packages", "dist-packages")


def where(task: asyncio.Task[Any]) -> str:
    """The innermost line of user code at which a suspended task waits."""
    node: Any = task.get_coro()
    at: FrameType | None = None
    while node is not None:
        frame = getattr(node, "cr_frame", None) or getattr(node, "ag_frame", None) or getattr(node, "gi_frame", None)
        if frame is not None and not _internal(frame):
            at = frame
        node = getattr(node, "cr_await", None) or getattr(node, "ag_await", None) or getattr(node, "gi_yieldfrom", None)
    return f"{at.f_code.co_qualname}, line {at.f_lineno}" if at is not None else NOWHERE


def _internal(frame: FrameType) -> bool:
    module: str = frame.f_globals.get("__name__", "")
    return module.startswith(("asyncio.", "perdure.core.", "perdure.flows.")) or module == "contextlib"


def here(outermost: CodeType | None = None) -> tuple[str, str, int]:
    """Function, file and line of the call that is under way: the innermost that is the author's.

    Frames further out than `outermost` are not looked at: those belong to whoever drives the workflow. If all are of
    libraries, the innermost that is not Python's own counts: a workflow may be installed like a library.
    """
    frames = list(_inside(outermost))
    own = (frame for frame in frames if not any(part in frame.f_code.co_filename for part in _INSTALLED))
    frame = next(own, frames[0] if frames else None)
    return (frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno) if frame else (NOWHERE, "", 0)


def _inside(outermost: CodeType | None) -> Iterator[FrameType]:
    """The frames that are neither ours nor Python's, from the inside out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        file = frame.f_code.co_filename
        library = any(part in file for part in _INSTALLED)
        if not file.startswith((_OURS, "<frozen")) and (library or not file.startswith(_PYTHON)):
            yield frame
        frame = frame.f_back


def short(file: str) -> str:
    """The name of a file without its folders.

    >>> short("/home/ada/shop.py")
    'shop.py'
    """
    return file.replace("\\", "/").rpartition("/")[2]
