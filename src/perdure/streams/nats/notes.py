"""What is written into messages, and read from them.

Rules kept here: a message stays far below the size that NATS takes; what cannot be written goes nowhere, and what
cannot be read is Unreadable. Where many hints go out at once some share a message, which spares both sides and NATS
most of the work; few stay apart, so that those who are free each get some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from perdure.core.records import Hint
from perdure.streams.nats.names import Names

#: Hints of a queue that share a message, at most; and messages among which hints are divided before any share one.
SHARED, APART = 8, 16
#: Hints of other kinds in one message, at most.
BUNDLE = 100

_T = TypeVar("_T")


class Unreadable(Exception):
    """Not written by us."""


class Work(Struct, frozen=True, array_like=True):
    """Keys of one queue."""

    keys: list[str]
    not_for: str = ""  # rather for others than this worker


#: Key and queue, for one worker; key, queue, status and result of what has ended.
_Own = list[tuple[str, str]]
_Ended = list[tuple[str, str, str, str]]


class Parcel(NamedTuple):
    """A message on its way out."""

    subject: str
    payload: bytes
    hints: int = 0  # how many get lost with it
    kept: bool = False  # NATS keeps it until it is acked, and says so


_encode = msgspec.json.Encoder().encode


def _reader(kind: Any) -> Callable[[bytes], Any]:
    decode = msgspec.json.Decoder(kind).decode

    def read(payload: bytes) -> Any:
        try:
            return decode(payload)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise Unreadable(str(error)) from error

    return read


read_work: Callable[[bytes], Work] = _reader(Work)
_read_own: Callable[[bytes], _Own] = _reader(_Own)
_read_ended: Callable[[bytes], _Ended] = _reader(_Ended)
read_words: Callable[[bytes], list[str]] = _reader(list[str])


def read_own(payload: bytes, me: str) -> list[Hint]:
    return [Hint(key, queue, me) for key, queue in _read_own(payload)]


def read_ended(payload: bytes) -> list[Hint]:
    return [
        Hint(key, queue, ended=True, status=status, result=result)
        for key, queue, status, result in _read_ended(payload)
    ]


def to_queues(names: Names, hints: Iterable[Hint], not_for: str = "") -> Iterator[Parcel]:
    """For whoever is free, but rather not for one."""
    for queue, those in _by(lambda hint: hint.queue, hints).items():
        for keys in _parts([hint.key for hint in those], max(1, min(SHARED, len(those) // APART))):
            yield Parcel(names.queue(queue), _encode(Work(keys, not_for)), len(keys), kept=True)


def to_workers(names: Names, hints: Iterable[Hint]) -> Iterator[Parcel]:
    for worker, those in _by(lambda hint: hint.to or "", hints).items():
        for part in _parts([(hint.key, hint.queue) for hint in those], BUNDLE):
            yield Parcel(names.worker(worker), _encode(part), len(part))


def of_ends(names: Names, hints: Iterable[Hint]) -> Iterator[Parcel]:
    for channel, those in _by(lambda hint: names.ends(hint.key), hints).items():
        for part in _parts([(hint.key, hint.queue, hint.status, hint.result) for hint in those], BUNDLE):
            yield Parcel(channel, _encode(part), len(part))


def of_words(names: Names, words: Sequence[str]) -> Iterator[Parcel]:
    for part in _parts(words, BUNDLE):
        yield Parcel(names.words, _encode(part), len(part))


def can_be_written(hint: Hint) -> bool:
    """A name that cannot be encoded cannot have been stored either."""
    try:
        _encode(hint)
    except UnicodeError:
        return False
    return True


def _by(kind: Callable[[Hint], str], hints: Iterable[Hint]) -> dict[str, list[Hint]]:
    kinds: dict[str, list[Hint]] = {}
    for hint in hints:
        kinds.setdefault(kind(hint), []).append(hint)
    return kinds


def _parts(those: Sequence[_T], size: int) -> Iterator[list[_T]]:
    for first in range(0, len(those), size):
        yield list(those[first : first + size])
