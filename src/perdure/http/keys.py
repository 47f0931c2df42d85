"""`Keys`: API keys, made, listed, rotated, revoked and checked.

    made = await Keys(app).create("ci", ["sender"], expires="90d", by="ada")
    print(made.secret)                      # pdk_…: this is the only time that anybody can see it

Rules kept here: a key is its tenant's own, and says whose request it is; a key that was good a moment ago is good for
`FRESH` seconds without asking the store, so revoking it takes that long to reach every process; what is said about a
key to somebody who has not proven to know its secret is the same in all cases.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal, TypeAlias

from msgspec import Struct

from perdure.core.durations import Duration, micros
from perdure.core.moments import moment
from perdure.core.records import id_of
from perdure.errors import InvalidValue, KeyNotFound, PerdureError, Unauthenticated, UsageError
from perdure.http.caller import ROLES, Caller, caller_of, is_name
from perdure.http.key_log import (
    HOME,
    KEY,
    LEDGER,
    KeyAct,
    Record,
    hash_of,
    key_of_key,
    new_id,
    new_secret,
    read_key,
    write_key,
)
from perdure.runtime.app import Perdure
from perdure.runtime.managing.noting import noted
from perdure.runtime.managing.publishing import Decide, Deed
from perdure.runtime.managing.registers import FRESH, Change, Recent, Register

log = logging.getLogger("perdure.http")
#: A use is noted if none was for so many microseconds: a log that grew with every request would be of no use.
_DAY = 86_400_000_000
_UNKNOWN = "the API key is not valid"
KeyStatus: TypeAlias = Literal["active", "expired", "revoked"]


class ApiKey(Struct, frozen=True):
    """What is known of a key; its secret is not. `used_at` is right to the day."""

    id: str
    tenant: str
    name: str
    roles: tuple[str, ...]
    status: KeyStatus
    created_at: datetime
    by: str = ""
    expires_at: datetime | None = None
    rotated_at: datetime | None = None
    overlap_until: datetime | None = None  # the secret before the last is good until then
    revoked_at: datetime | None = None
    used_at: datetime | None = None


class NewKey(Struct, frozen=True):
    """A key with its secret, which nobody can see again."""

    key: ApiKey
    secret: str

    def __repr__(self) -> str:
        return f"NewKey({self.key!r}, secret=…)"


class Keys:
    """The API keys of a store. Methods take the `tenant` whose keys are meant; else the application's."""

    def __init__(self, app: Perdure, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._register = Register(app, LEDGER)
        self._clock = clock
        self._recent = Recent[Record](clock)
        self._noting: dict[str, asyncio.Task[None]] = {}
        self._quiet_until = float("-inf")  # a store that cannot be written is left alone for a while

    async def close(self) -> None:
        """Wait for what is still being written."""
        await asyncio.gather(*self._noting.values())

    # Changing.

    @noted("keys.create")
    async def create(
        self,
        name: str,
        roles: Sequence[str],
        *,
        expires: Duration | None = None,
        reason: str = "",
        by: str = "",
        tenant: str | None = None,
    ) -> NewKey:
        """Make a key, with at least one role of the API; `expires` is how long it is good."""
        home = self._app._tenant(tenant)
        _check(name, roles)
        await self._app.open()
        id, secret = new_id(), new_secret()
        act = KeyAct(home, name, tuple(dict.fromkeys(roles)), hash_of(secret), self._end(expires))

        def decide(record: Record) -> Deed | None:
            if record.hash:
                raise UsageError(f"the id {id} is taken by another key: try again")
            return Deed("created", act)

        record = await self._write(id, decide, by)
        return NewKey(self._told(id, record), write_key(id, secret))

    @noted("keys.rotate")
    async def rotate(
        self,
        id: str,
        *,
        overlap: Duration = "24h",
        expires: Duration | None = None,
        reason: str = "",
        by: str = "",
        tenant: str | None = None,
    ) -> NewKey:
        """Give a key a new secret. The one before is good for the time of the overlap; one before that no longer.

        The key ends when it would have ended, unless `expires` says how long it is good from now on.
        """
        await self.get(id, tenant=tenant)
        secret, now = new_secret(), self._app.clock.now()
        until, end = now + micros(overlap), self._end(expires)

        def decide(record: Record) -> Deed | None:
            if why := record.over(now):
                raise UsageError(f"the API key {id} has {why if why == 'expired' else 'been revoked'}: create another")
            return Deed("rotated", KeyAct(hash=hash_of(secret), overlap=until, expires=end or record.expires))

        record = await self._write(id, decide, by)
        return NewKey(self._told(id, record), write_key(id, secret))

    @noted("keys.revoke")
    async def revoke(self, id: str, *, reason: str = "", by: str = "", tenant: str | None = None) -> ApiKey:
        """Let a key be good no longer, in every process within `FRESH` seconds."""
        await self.get(id, tenant=tenant)
        record = await self._write(id, lambda record: None if record.revoked else Deed("revoked", KeyAct()), by)
        return self._told(id, record)

    # Asking.

    async def get(self, id: str, *, tenant: str | None = None) -> ApiKey:
        home = self._app._tenant(tenant)
        record = await self._read(id)
        if record.tenant != home:
            raise KeyNotFound(
                f"tenant {home!r} has no API key {id[:80]!r}; `perdure keys list` shows those that it has"
            )
        return self._told(id, record)

    async def history(self, id: str, *, tenant: str | None = None) -> list[Change]:
        """Who did what to a key, the oldest first: it was created, rotated, revoked or used."""
        await self.get(id, tenant=tenant)
        return await self._register.history(key_of_key(id))

    async def caller(self, credential: str) -> Caller:
        """Whom a key stands for, or Unauthenticated."""
        parts = read_key(credential)
        if parts is None:
            raise Unauthenticated(_UNKNOWN)
        id, digest = parts
        record = self._recent.get(id)
        # A secret that does not fit may be newer than what this process has in mind.
        if record is None or not record.proven(digest, self._app.clock.now()):
            read_at = self._clock()
            record = await self._read(id)
            if not record.proven(digest, self._app.clock.now()):
                raise Unauthenticated(_UNKNOWN)
            self._recent.keep(id, read_at, record)
        if why := record.over(self._app.clock.now()):
            raise Unauthenticated(f"the API key {id} has {why if why == 'expired' else 'been revoked'}")
        self._note(id, record)
        return caller_of(record.tenant, record.name, record.roles, f"key:{id}")

    # Inside.

    def _note(self, id: str, record: Record) -> None:
        """Write down that it is used, but not more than once a day, and without anybody waiting for it."""
        if self._app.clock.now() - record.used < _DAY or id in self._noting or self._clock() < self._quiet_until:
            return
        task = self._noting[id] = asyncio.create_task(self._note_use(id), name=f"perdure-key-{id}")
        task.add_done_callback(lambda _: self._noting.pop(id))

    async def _note_use(self, id: str) -> None:
        now = self._app.clock.now()

        def decide(record: Record) -> Deed | None:
            return None if now - record.used < _DAY else Deed("used", KeyAct())

        read_at = self._clock()
        try:
            record = await self._write(id, decide, "")
        except PerdureError as error:
            self._quiet_until = self._clock() + FRESH
            log.warning("the use of the API key %s could not be noted: %s", id, error)
        else:
            self._recent.keep(id, read_at, record)

    async def _read(self, id: str) -> Record:
        return await self._register.read(key_of_key(id))

    async def _write(self, id: str, decide: Decide[Record], by: str) -> Record:
        self._recent.drop(id)
        record = await self._register.write(key_of_key(id), decide, by)
        self._recent.drop(id)  # somebody may have read it meanwhile
        return record

    def _end(self, expires: Duration | None) -> int:
        if expires is None:
            return 0
        length = micros(expires)
        if length == 0:
            raise InvalidValue("a key that expires at once is good for nothing: name a longer time, as 90d")
        return self._app.clock.now() + length

    def _told(self, id: str, record: Record) -> ApiKey:
        now = self._app.clock.now()
        status: KeyStatus = "revoked" if record.revoked else "expired" if record.over(now) else "active"
        return ApiKey(
            id,
            record.tenant,
            record.name,
            record.roles,
            status,
            moment(record.created),
            record.by,
            _moment(record.expires),
            _moment(record.rotated),
            _moment(record.overlap if record.overlap > now else 0),
            _moment(record.revoked),
            _moment(record.used),
        )

    # All of them; last, for below this line `list` is no longer the type.

    async def list(self, *, tenant: str | None = None) -> list[ApiKey]:
        """All keys of a tenant, the oldest first."""
        home = self._app._tenant(tenant)
        kept = self._register.all(HOME, KEY, {"tenant": home})
        found = [self._told(id_of(key), record) async for key, record in kept]
        return sorted(found, key=lambda one: (one.created_at, one.id))


def _check(name: str, roles: Sequence[str]) -> None:
    if not is_name(name):
        raise InvalidValue(f"{name[:80]!r} cannot be the name of a key: write at most 200 printable characters")
    if wrong := [role for role in roles if not is_name(role)]:
        raise InvalidValue(f"{wrong[0][:80]!r} cannot be a role: write at most 200 printable characters")
    if not any(role in ROLES for role in roles):
        raise InvalidValue(f"the key {name!r} could do nothing: give it at least one of the roles {', '.join(ROLES)}")


def _moment(micros: int) -> datetime | None:
    return moment(micros) if micros else None
