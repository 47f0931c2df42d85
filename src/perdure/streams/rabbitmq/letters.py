"""What a message says: hints as one short line of JSON, and back.

Rules kept here: a message is far below what brokers take at once, and a hint that is too long by itself is dropped;
what cannot be read is nothing. Where many hints go out at once some share a message, which spares both sides and the
broker most of the work; few stay apart, so that those who are free each get some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from perdure.core.records import Hint
from perdure.streams.rabbitmq import names
from perdure.streams.rabbitmq.wire import Letter

#: Hints that share a message, at most; and messages into which hints are divided before any of them share one.
SHARED, APART = 8, 16
#: Ends that share a message, and the bytes that a message may have.
ENDS, BYTES = 50, 100_000

_Item = TypeVar("_Item")
_End: TypeAlias = tuple[str, str, str, str]  # key, queue, status and result


class Note(Struct, frozen=True, array_like=True):
    """The content of a message: work of a queue, or ends of executions, or other news."""

    sender: str
    queue: str = ""
    keys: list[str] = []
    away: bool = False  # rather not for the sender
    ends: list[_End] = []
    words: list[str] = []

    def ended(self) -> list[Hint]:
        return [Hint(key, queue, ended=True, status=status, result=result) for key, queue, status, result in self.ends]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Note).decode


def read(body: bytes) -> Note | None:
    """What a message says, if it can be read.

    >>> read(b'["w1", "default", ["acme/1"]]').keys
    ['acme/1']
    """
    try:
        return _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def to_queues(me: str, hints: Iterable[Hint]) -> Iterator[Letter]:
    """For whoever is free."""
    queues: dict[tuple[str, bool], list[str]] = {}
    for hint in hints:
        queues.setdefault((hint.queue, hint.away), []).append(hint.key)
    for (queue, away), keys in queues.items():
        size = max(1, min(SHARED, len(keys) // APART))
        for some in _parts(keys, size):
            yield from _letter(names.work(queue), Note(me, queue, list(some), away), queue)


def to_worker(me: str, hint: Hint, worker: str) -> Iterator[Letter]:
    """Lost if the worker has gone: then the execution is due when its lease ends."""
    return _letter(names.worker(worker), Note(me, hint.queue, [hint.key]))


def to_listeners(me: str, ended: Iterable[Hint]) -> Iterator[Letter]:
    kinds: dict[str, list[_End]] = {}
    for hint in ended:
        kinds.setdefault(names.ends(hint.key), []).append((hint.key, hint.queue, hint.status, hint.result))
    for word, those in kinds.items():
        for some in _parts(those, ENDS):
            yield from _letter(word, Note(me, ends=list(some)))


def to_workers(me: str, words: Sequence[str]) -> Iterator[Letter]:
    """News for every worker."""
    for word in words:
        yield from _letter(names.WORDS, Note(me, words=[word]))


def _letter(word: str, note: Note, queue: str | None = None) -> Iterator[Letter]:
    body = _encode(note)
    if len(body) <= BYTES:
        yield Letter(word, body, queue)


def _parts(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
