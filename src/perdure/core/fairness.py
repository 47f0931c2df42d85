"""Turns by tenant: whoever asks for much waits behind himself, not in front of the others.

Rules kept here: each tenant is served in the order of arrival, the tenants one after the other; every operation takes
the same time however many tenants wait; a queue has a bound, and what does not fit is taken from whoever has most.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice, zip_longest
from typing import Generic, TypeVar

from perdure.core.records import tenant_of

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """A queue that takes one of each tenant in turn.

    >>> queue = RoundRobin[str]()
    >>> for name in ("a1", "a2", "a3", "b1"):
    ...     queue.put(name[0], name)
    >>> [queue.take() for _ in range(len(queue))]
    ['a1', 'b1', 'a2', 'a3']
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = capacity
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()  # by tenant, whose turn is next in front
        self._by_length: dict[int, OrderedDict[str, None]] = {}  # which tenants have so many
        self._longest = 0
        self._size = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self._size

    def put(self, tenant: str, item: T) -> None:
        if self._capacity is not None and self._size >= self._capacity:
            # The oldest of the longest line.
            self._pop(next(iter(self._by_length[self._longest])))
            self.dropped += 1
        line = self._lines.setdefault(tenant, deque())
        line.append(item)
        self._size += 1
        self._moved(tenant, len(line) - 1, len(line))

    def take(self) -> T:
        """The next one; IndexError if there is none."""
        if not self._lines:
            raise IndexError("nobody waits")
        tenant = next(iter(self._lines))
        item = self._pop(tenant)
        if tenant in self._lines:
            self._lines.move_to_end(tenant)
        return item

    def _pop(self, tenant: str) -> T:
        line = self._lines[tenant]
        item = line.popleft()
        self._size -= 1
        self._moved(tenant, len(line) + 1, len(line))
        if not line:
            del self._lines[tenant]
        return item

    def _moved(self, tenant: str, before: int, after: int) -> None:
        """Keep the lengths in order, to know the longest line at once."""
        if before:
            same = self._by_length[before]
            del same[tenant]
            if not same:
                del self._by_length[before]
        if after:
            self._by_length.setdefault(after, OrderedDict())[tenant] = None
        if after > self._longest or (before == self._longest and before not in self._by_length):
            self._longest = after


#: A claim looks at this many times as many of the earliest rows as it takes, before it looks at each tenant for itself.
WINDOW = 4
#: So many tenants it then visits at most; the next claim goes on behind them.
VISITS = 500


def share_out(keys: Iterable[str], limit: int, after: str = "") -> list[str]:
    """So many of these keys, one of each tenant in turn, beginning with the tenant after that one.

    >>> share_out(["a/1", "a/2", "a/3", "b/1"], 2)
    ['a/1', 'b/1']
    >>> share_out(["a/1", "a/2", "a/3", "b/1"], 3, after="a")
    ['b/1', 'a/1', 'a/2']
    """
    lines: dict[str, list[str]] = {}
    for key in keys:
        lines.setdefault(tenant_of(key), []).append(key)
    tenants = sorted(lines)
    first = bisect_right(tenants, after)
    turns = zip_longest(*(lines[tenant] for tenant in (*tenants[first:], *tenants[:first])))
    return list(islice((key for turn in turns for key in turn if key is not None), limit))
