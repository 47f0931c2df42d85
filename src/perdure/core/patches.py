"""What depends on memory addresses in asyncio, made deterministic inside workflows.

`as_completed` makes tasks from a set of coroutines, in address order; `wait` returns sets; what `gather` returns hashes
by its address, so that sets of it iterate in any order. Outside workflow loops all three behave exactly as before.
Everything else in asyncio works unpatched.
"""

from __future__ import annotations

import asyncio
from asyncio import tasks
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from perdure.core.loop import Loop, get_running

T = TypeVar("T")

_as_completed: Any = tasks.as_completed
_wait: Any = tasks.wait
#: For the static check: a module that imported these before the patch keeps the unordered ones.
ORIGINALS: frozenset[Any] = frozenset({_as_completed, _wait})


class OrderedSet(set[T], Generic[T]):
    """What `wait` returns in a workflow: a set that iterates in the order of the argument."""

    def __init__(self, items: Iterable[T]) -> None:
        items = list(items)
        super().__init__(items)
        self._order = items

    def __iter__(self) -> Iterator[T]:
        known = [item for item in self._order if item in self]
        if len(known) == len(self):
            return iter(known)
        members = set(self._order)
        return iter(known + [item for item in set.__iter__(self) if item not in members])

    def pop(self) -> T:
        for item in self:
            self.remove(item)
            return item
        raise KeyError("pop from an empty set")


def as_completed(fs: Any, *, timeout: float | None = None) -> Any:
    loop = get_running()
    if type(loop) is Loop and not (asyncio.isfuture(fs) or asyncio.iscoroutine(fs)):
        fs = [asyncio.ensure_future(f, loop=loop) for f in dict.fromkeys(fs)]
    return _as_completed(fs, timeout=timeout)


async def wait(fs: Any, *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED) -> Any:
    if type(get_running()) is not Loop or asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
        return await _wait(fs, timeout=timeout, return_when=return_when)
    fs = list(dict.fromkeys(fs))
    done, pending = await _wait(fs, timeout=timeout, return_when=return_when)
    return OrderedSet(f for f in fs if f in done), OrderedSet(f for f in fs if f in pending)


def _gather_hash(self: Any) -> int:
    """Inside a workflow a number, given when it is first asked for: that is the same on every replay."""
    loop = self._loop
    if type(loop) is not Loop:
        return object.__hash__(self)
    if not hasattr(self, "perdure_number"):
        self.perdure_number = loop.gathers = loop.gathers + 1
    return int(self.perdure_number)


def install() -> None:
    tasks._GatheringFuture.__hash__ = _gather_hash  # type: ignore[attr-defined]
    for module in (asyncio, tasks):
        module.as_completed = as_completed  # type: ignore[attr-defined]
        module.wait = wait  # type: ignore[attr-defined]
