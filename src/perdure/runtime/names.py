"""Names that nobody else has: that of this process, and the ids that it gives.

A fork would give two processes one name, and one lease to both; so whoever has names gets new ones in the child.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
import weakref


class Names:
    def __init__(self) -> None:
        self.be_born()
        _everybody.add(self)

    def be_born(self) -> None:
        """Take names that nobody else has, not even a process of the same number on a host of the same name."""
        self.me = f"{socket.gethostname()[:32]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._nonce, self._ids = uuid.uuid4().hex[:8], 0

    def new_id(self) -> str:
        """Unique in space and time, and rising, so that new rows of an index lie together."""
        self._ids += 1
        return f"{time.time_ns() // 1_000_000:011x}{self._nonce}{self._ids:04x}"


#: The names of all applications of this process.
_everybody: weakref.WeakSet[Names] = weakref.WeakSet()


def _after_fork() -> None:
    for names in list(_everybody):
        names.be_born()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
