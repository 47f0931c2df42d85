"""Where entries become hints: what was read, claimed or found pending comes in here.

Rules kept here: an entry that cannot be read is acked and dropped, or it would come back for ever; one that is being
taken care of already does not come in twice; one that was forgotten here and is claimed again is acked once. Where
many hints go out at once some share an entry, which spares both sides and Redis most of the work; few stay apart, so
that those who are free each get some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from perdure.core.records import Hint
from perdure.streams.inbox import Inbox
from perdure.streams.redis.hand import Entry, Hand
from perdure.streams.redis.keys import Keys
from perdure.streams.redis.sender import Sender
from perdure.streams.redis.wires import Command

#: An id and its fields; none if the entry was deleted while it was pending.
Raw: TypeAlias = tuple[bytes, Mapping[bytes, bytes] | None]

_KEY, _QUEUE, _NOT_FOR = b"e", b"q", b"a"
#: Hints that share an entry, at most; and entries into which hints are divided before any of them share one.
SHARED, APART = 8, 16


def to_queue(keys: Keys, hint: Hint, not_for: str = "") -> Command:
    """For whoever is free, but rather not for one."""
    more = (_NOT_FOR, not_for.encode()) if not_for else ()
    return ("XADD", keys.queue_for(hint.queue, hint.key), "*", _KEY, hint.key.encode(), *more)


def to_queues(keys: Keys, hints: Iterable[Hint]) -> Iterator[Command]:
    """For whoever is free."""
    streams: dict[str, list[str]] = {}
    for hint in hints:
        streams.setdefault(keys.queue_for(hint.queue, hint.key), []).append(hint.key)
    for stream, those in streams.items():
        size = max(1, min(SHARED, len(those) // APART))
        for first in range(0, len(those), size):
            yield ("XADD", stream, "*", _KEY, "\n".join(those[first : first + size]).encode())


def to_worker(keys: Keys, hint: Hint, worker: str) -> Command:
    """Not made anew if the worker has gone: then the hint is lost, and the execution due when its lease ends.

    A dead worker's stream expires, so it needs no other bound.
    """
    fields = (_KEY, hint.key.encode(), _QUEUE, hint.queue.encode())
    return ("XADD", keys.worker(worker), "NOMKSTREAM", "*", *fields)


def poke(keys: Keys, me: str) -> Command:
    """Says nothing, but ends a blocked read."""
    return ("XADD", keys.worker(me), "NOMKSTREAM", "*", b"p", b"")


class Arrivals:
    """The way from Redis into the inbox of `me`."""

    def __init__(self, inbox: Inbox, hand: Hand, sender: Sender, keys: Keys) -> None:
        self._inbox = inbox
        self._hand = hand
        self._sender = sender
        self._keys = keys
        self._own = keys.worker(inbox.me)
        self._queues = {stream: queue for queue in sorted(inbox.queues) for stream in keys.queues(queue)}

    @property
    def own(self) -> str:
        return self._own

    @property
    def queues(self) -> list[str]:
        """The streams of the queues that are served."""
        return list(self._queues)

    def come(self, stream: str, entries: Iterable[Raw], again: bool = False) -> None:
        """`again` if some of these may be here already."""
        useless: list[Entry] = []
        for id, fields in entries:
            entry = Entry(stream, id)
            known = self._hand.knows(entry)
            if again and known:
                continue
            hints = self._read(stream, fields or {})
            if known:
                self._hand.lose(hints, entry)
            if not hints:
                useless.append(entry)
            elif (fields or {}).get(_NOT_FOR) == self._inbox.me.encode():
                # Back once, for whoever has waited longer for something to read; if that is nobody, it is for us.
                useless.append(entry)
                for command in to_queues(self._keys, hints):
                    self._sender.send(command)
            else:
                for hint in hints:
                    self._hand.take(hint, entry, counts=stream != self._own)
                    self._inbox.put(hint)
        self._sender.ack(useless)

    def look(self) -> None:
        """Hints may have got lost: the worker should look at what is due in its queues."""
        for queue in sorted(self._inbox.queues):
            self._inbox.put(Hint("", queue))

    def _read(self, stream: str, fields: Mapping[bytes, bytes]) -> list[Hint]:
        try:
            keys = fields[_KEY].decode().split("\n")
            if stream != self._own:
                queue = self._queues[stream]
                return [Hint(key, queue) for key in keys]
            queue = fields.get(_QUEUE, b"").decode()
            return [Hint(key, queue, self._inbox.me) for key in keys]
        except (KeyError, UnicodeError):
            return []


def streams_of(reply: Any) -> Sequence[tuple[str, Sequence[Raw]]]:
    """What a read answered, by stream; nothing if it waited in vain."""
    return [(stream.decode(), entries) for stream, entries in reply or ()]
