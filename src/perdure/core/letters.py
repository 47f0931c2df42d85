"""What a mailbox holds: the wishes of the outside, before the holder folds them into the log.

Rules kept here: ids of the engine's own letters begin with a slash, which an event's id cannot contain, so nobody can
occupy them; a letter that somebody sends says who, or it is neither sealed nor read.
"""

from __future__ import annotations

from typing import TypeAlias, cast, get_args

import msgspec
from msgspec import Raw, Struct

from perdure.core.events import NULL, Error
from perdure.core.records import Mail
from perdure.errors import Undecodable, UsageError


class EventLetter(Struct, frozen=True, omit_defaults=True, tag="event", tag_field="is"):
    name: str
    payload: Raw = NULL
    by: str = ""
    source: str = ""
    roles: tuple[str, ...] = ()
    attributes: dict[str, str | int | bool] = {}
    trace: str = ""
    acting_as: tuple[str, ...] = ()


class PauseLetter(Struct, frozen=True, omit_defaults=True, tag="pause", tag_field="is"):
    until: int = 0
    reason: str = ""
    by: str = ""
    acting_as: tuple[str, ...] = ()


class ResumeLetter(Struct, frozen=True, omit_defaults=True, tag="resume", tag_field="is"):
    at: int = 0
    reason: str = ""
    by: str = ""
    acting_as: tuple[str, ...] = ()


class CancelLetter(Struct, frozen=True, omit_defaults=True, tag="cancel", tag_field="is"):
    reason: str = ""
    by: str = ""
    timeout: int = 0  # for the clean-up, in microseconds
    now: bool = False
    stuck: int = 0  # only if it is still stuck since this version
    acting_as: tuple[str, ...] = ()


class RedriveLetter(Struct, frozen=True, omit_defaults=True, tag="redrive", tag_field="is"):
    reason: str = ""
    by: str = ""
    asked: str = ""  # the id of the request, if it has one
    acting_as: tuple[str, ...] = ()


class MigrateLetter(Struct, frozen=True, omit_defaults=True, tag="migrate", tag_field="is"):
    """Go on with another version of the published definition."""

    version: int
    hash: str
    by: str = ""
    acting_as: tuple[str, ...] = ()


class ChildLetter(Struct, frozen=True, omit_defaults=True, tag="child", tag_field="is"):
    ref: int
    id: str
    status: str
    result: Raw = NULL
    error: Error | None = None
    by: str = ""


class ActionLetter(Struct, frozen=True, omit_defaults=True, tag="action", tag_field="is"):
    """The outcome of an action that ran apart."""

    ref: int
    name: str
    args: Raw
    result: Raw = NULL
    error: Error | None = None
    attempts: int = 1
    began: int = 0
    worker: str = ""


#: What somebody sends. The others are outcomes: what they tell of has a log of its own.
Sent: TypeAlias = EventLetter | PauseLetter | ResumeLetter | CancelLetter | RedriveLetter | MigrateLetter
Letter: TypeAlias = Sent | ChildLetter | ActionLetter
_SENT = frozenset(get_args(Sent))

_decode = msgspec.json.Decoder(Letter).decode
_encode = msgspec.json.Encoder().encode


def seal(letter: Letter) -> bytes:
    if nameless(letter):
        raise UsageError(f"a letter ({type(letter).__name__}) does not say who sends it: give it a name (by=…)")
    return _encode(letter)


def unseal(mail: Mail) -> Letter:
    try:
        letter: Letter = _decode(mail.data)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"{mail.key}: message {mail.id} cannot be decoded: {error}") from error
    if nameless(letter):
        raise Undecodable(f"{mail.key}: message {mail.id} does not say who sent it: send it again, with a name (by=…)")
    return letter


def nameless(letter: Letter) -> bool:
    """Whether nobody answers for it who should."""
    return type(letter) in _SENT and not cast("Sent", letter).by
