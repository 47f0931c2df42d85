"""API keys as they lie in the store, and as people hold them.

A key is `pdk_ID_SECRET`. What is kept of it is an execution without code: its log has one event for each act
(`created`, `rotated`, `revoked`, and `used` at most once a day), its head shows the record. Rules kept here: the record
is a function of the log; the secret is in neither, only its hash; secrets are compared in a time that does not depend
on what they have in common.

The hash is SHA-256, once. A slow hash such as Argon2 makes guessing expensive where secrets are words that people
chose. These are 256 random bits: no guessing gets anywhere, however fast, and a slow hash would only be work that a
stranger can have us do for each request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Iterable

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core import events as ev
from perdure.core.records import Head, Row, Start, key_of
from perdure.errors import Undecodable
from perdure.runtime.managing.publishing import Ledger

#: The workflow of such an execution.
KEY = "key:"
#: Keys are looked up by their id alone, before it is known whose they are. So they have a tenant of their own, which
#: nobody else can have, and the record says whose they are.
HOME = "keys:"
_BASE32 = string.ascii_lowercase + "234567"
_BASE62 = string.ascii_letters + string.digits
#: 62^43 is a little more than 2^256.
_ID, _SECRET = 12, 43
_FORM = re.compile(rf"pdk_([a-z2-7]{{{_ID}}})_([A-Za-z0-9]{{{_SECRET}}})")
_RECEIVED = ev.NUMBERS[ev.EventReceived]


class KeyAct(Struct, frozen=True, omit_defaults=True):
    """What the log of a key says of one act. Times are microseconds since the epoch; 0 is never."""

    tenant: str = ""
    name: str = ""
    roles: tuple[str, ...] = ()
    hash: str = ""
    expires: int = 0
    overlap: int = 0  # until when the secret before is good, too


class Record(Struct, frozen=True, omit_defaults=True):
    """A key as its head shows it."""

    tenant: str = ""
    name: str = ""
    roles: tuple[str, ...] = ()
    hash: str = ""
    by: str = ""
    created: int = 0
    expires: int = 0
    former: str = ""  # the hash of the secret before
    overlap: int = 0
    rotated: int = 0
    revoked: int = 0
    used: int = 0

    def proven(self, hash: str, now: int) -> bool:
        """Whether this is the hash of the secret, or of the one before while that is good."""
        present = hmac.compare_digest(self.hash, hash)
        former = hmac.compare_digest(self.former, hash)
        return present or (former and now < self.overlap)

    def over(self, now: int) -> str:
        """Why it is no longer good; empty while it is."""
        if self.revoked:
            return "revoked"
        return "expired" if self.expires and now >= self.expires else ""


def new_id() -> str:
    return "".join(secrets.choice(_BASE32) for _ in range(_ID))


def new_secret() -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(_SECRET))


def write_key(id: str, secret: str) -> str:
    return f"pdk_{id}_{secret}"


def read_key(text: str) -> tuple[str, str] | None:
    """The id of a key and the hash of its secret; None if it is no key at all."""
    found = _FORM.fullmatch(text)
    return None if found is None else (found[1], hash_of(found[2]))


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def key_of_key(id: str) -> str:
    return key_of(HOME, id)


def record_of(head: Head | None) -> Record:
    return Record() if head is None or head.state is None else msgspec.json.decode(head.state, type=Record)


def fold(record: Record, rows: Iterable[Row]) -> Record:
    """The record after these rows of the log."""
    for row in rows:
        if row.type % 1000 == _RECEIVED and isinstance(event := ev.read(row), ev.EventReceived):
            record = _after(record, event, row.at)
    return record


def _after(record: Record, event: ev.EventReceived, at: int) -> Record:
    act = read_act(event)
    match event.name:
        case "created":
            return Record(act.tenant, act.name, act.roles, act.hash, event.by, at, act.expires)
        case "rotated":
            return structs.replace(
                record, hash=act.hash, former=record.hash, overlap=act.overlap, expires=act.expires, rotated=at
            )
        case "revoked":
            return structs.replace(record, revoked=at)
        case "used":
            return structs.replace(record, used=at)
        case _:
            return record


def read_act(event: ev.EventReceived) -> KeyAct:
    try:
        return msgspec.json.decode(event.payload, type=KeyAct)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"an act of an API key cannot be read: {error}") from error


def _blank(key: str) -> Start:
    """A key that is not yet one: on no queue, so no worker ever claims it."""
    first = ev.Started(KEY, 1, Raw(b"[]"))
    return Start(key, KEY, f"{KEY}@1", "", "key", (ev.row(first, 1, 0),))


LEDGER = Ledger(_blank, Record(), fold, record_of)
