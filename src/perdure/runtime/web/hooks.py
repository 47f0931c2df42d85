"""`Hooks`: webhooks, made, listed, rotated, revoked; and what happens when one is called.

    await app.hooks.create("github", HookStart("build", id=".delivery"), kind="github", secret="secret://gh")
    await app.hooks.receive("default", "github", headers, body)

Rules kept here: the signature is the credential, so nothing is read from a body before it is proven; whoever has not
proven to know the secret is told the same, after the same work, whether the webhook exists, the signature is wrong or
the call is too old; the id of a call decides what it starts or sends, so a call that comes twice is one call. What was
signed is taken once, and refused when it comes again; what the sender signed anew under the same id, because it did not
hear us, is answered as it was then. A call is kept as taken when what it leads to is durable, so none is lost between.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, assert_never

import msgspec
from msgspec import Struct

from perdure.core import cloudevents, jq, signing
from perdure.core.codec import digest
from perdure.core.durations import Duration, micros
from perdure.core.moments import moment
from perdure.core.signing import Kind
from perdure.errors import (
    AccessUnavailable,
    CallTaken,
    ExpressionError,
    HookNotFound,
    InvalidValue,
    KeyShredded,
    Unauthenticated,
    UsageError,
)
from perdure.flows.secret import Secret
from perdure.runtime.callers.routing import Routed
from perdure.runtime.checks import checked_tenant
from perdure.runtime.managing.noting import noted
from perdure.runtime.managing.publishing import Decide, Deed
from perdure.runtime.managing.registers import Change, Recent, Register
from perdure.runtime.web.hook_log import (
    HOOK,
    LEDGER,
    Does,
    HookAct,
    HookRoute,
    HookSend,
    HookStart,
    Record,
    key_of_call,
    key_of_hook,
    taken,
)

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

log = logging.getLogger("perdure.hooks")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_UNKNOWN = "there is no such webhook, or the signature of the call is not valid"
#: What the signature of a call to nothing is compared with.
_NOBODY = "nobody knows this secret, and nothing is signed with it"
#: Looked for when the webhook is none, so that others do not learn from the time it takes which there are.
_NOWHERE = "secret://perdure-no-such-webhook"


class Hook(Struct, frozen=True):
    """What is known of a webhook; its secret is a reference."""

    name: str
    tenant: str
    kind: Kind
    secret: str
    does: Does
    active: bool
    created_at: datetime
    by: str = ""
    former: str = ""  # the reference to the secret before, while that is good
    overlap_until: datetime | None = None
    rotated_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def path(self) -> str:
        """Where it is called."""
        return f"/v1/hooks/{self.tenant}/{self.name}"


class Receipt(Struct, frozen=True, omit_defaults=True):
    """A call that was taken, now or before: the id of the call, and the execution that it started or was sent to.

    Of a call that was routed: what has become of its event.
    """

    id: str
    execution: str = ""
    routed: Routed | None = None


class Hooks:
    """The webhooks of a store. Methods take the `tenant` whose webhooks are meant; else the application's."""

    def __init__(self, app: Perdure) -> None:
        self._app = app
        self._register = Register(app, LEDGER)
        self._recent = Recent[Record]()

    # Changing.

    @noted("hooks.create")
    async def create(
        self,
        name: str,
        does: Does,
        *,
        secret: str,
        kind: Kind = "standard",
        reason: str = "",
        by: str = "",
        tenant: str | None = None,
    ) -> Hook:
        """Make a webhook; `secret` is a reference to what its calls are signed with."""
        home = self._app._tenant(tenant)
        if not _NAME.fullmatch(name):
            raise InvalidValue(f"{name[:80]!r} cannot be the name of a webhook: it takes letters, digits, _ and -")
        if kind not in signing.KINDS:
            raise InvalidValue(f"{kind!r} is no kind of signature: {', '.join(signing.KINDS)} are")
        reference = Secret(secret).reference
        _check(does)

        def decide(record: Record) -> Deed | None:
            if record.active:
                raise UsageError(f"there is a webhook {name!r} already: revoke it first, or choose another name")
            return Deed("created", HookAct(name, kind, reference, does))

        return self._told(home, await self._write(home, name, decide, by))

    @noted("hooks.rotate")
    async def rotate(
        self,
        name: str,
        secret: str,
        *,
        overlap: Duration = "24h",
        reason: str = "",
        by: str = "",
        tenant: str | None = None,
    ) -> Hook:
        """Let calls be signed with another secret; the one before is good for the time of the overlap."""
        home = self._app._tenant(tenant)
        await self.get(name, tenant=home)
        reference = Secret(secret).reference
        until = self._app.clock.now() + micros(overlap)

        def decide(record: Record) -> Deed | None:
            if not record.active:
                raise UsageError(f"the webhook {name!r} was revoked: create it anew")
            return None if record.secret == reference else Deed("rotated", HookAct(secret=reference, overlap=until))

        return self._told(home, await self._write(home, name, decide, by))

    @noted("hooks.revoke")
    async def revoke(self, name: str, *, reason: str = "", by: str = "", tenant: str | None = None) -> Hook:
        """Take no more calls, in every process within a few seconds."""
        home = self._app._tenant(tenant)
        await self.get(name, tenant=home)
        decide: Decide[Record] = lambda record: None if record.revoked else Deed("revoked", HookAct())  # noqa: E731
        return self._told(home, await self._write(home, name, decide, by))

    # Asking.

    async def get(self, name: str, *, tenant: str | None = None) -> Hook:
        home = self._app._tenant(tenant)
        record = await self._register.read(key_of_hook(home, name))
        if not record.created:
            raise HookNotFound(f"tenant {home!r} has no webhook {name[:80]!r}; `perdure hooks list` shows those it has")
        return self._told(home, record)

    async def history(self, name: str, *, tenant: str | None = None) -> list[Change]:
        """Who did what to a webhook, the oldest first."""
        home = self._app._tenant(tenant)
        await self.get(name, tenant=home)
        return await self._register.history(key_of_hook(home, name))

    # Being called.

    async def receive(self, tenant: str, name: str, headers: Mapping[str, str], body: bytes) -> Receipt:
        """Do what the webhook is for; Unauthenticated unless the call is signed and in time.

        Names of headers are looked up in lower case. CallTaken if the same call was taken before; one that was signed
        anew, under the same id, is answered as it was then, and does nothing again.
        """
        does, id, at = await self._proven(tenant, name, headers, body)
        key = key_of_call(tenant, name, id, at, body)
        if await self._app.store.head(key) is not None:
            raise _taken(id)
        receipt = await self._do(tenant, name, does, id, _read(body))
        # Where no time is signed, the next try of the sender is the same call: nothing was taken if nobody heard it.
        if at or receipt.routed is None or receipt.routed.heard:
            [answer] = await self._app.store.start([taken(key, name, id, at, self._app.clock.now())], 0)
            if answer != "created":
                raise _taken(id)
        return receipt

    async def _proven(self, tenant: str, name: str, headers: Mapping[str, str], body: bytes) -> tuple[Does, str, str]:
        """What is to be done, the id of the call and the time that was signed; looked up anew if it does not fit what
        is in mind."""
        key = _key(tenant, name)
        known = self._recent.get(key)
        if known is not None and (found := await self._verify(tenant, known, headers, body)) is not None:
            return found
        read_at = self._recent.clock()
        try:
            record = await self._register.read(key)
        except KeyShredded:
            record = Record()  # nobody can prove anything any more
        self._recent.keep(key, read_at, record)
        if (found := await self._verify(tenant, record, headers, body)) is None:
            raise Unauthenticated(_UNKNOWN)
        return found

    async def _verify(
        self, tenant: str, record: Record, headers: Mapping[str, str], body: bytes
    ) -> tuple[Does, str, str] | None:
        """A webhook that does not exist has a secret as well, which nothing is signed with: that takes as long."""
        app = self._app
        secrets = await self._secrets(tenant, record) if record.active else await self._no_secrets()
        now, window = app.clock.now() / 1e6, app.settings.webhook_window
        id = signing.verify(record.kind, secrets or [_NOBODY], headers, body, now, window)
        if id is None or record.does is None or not secrets:
            return None
        return record.does, id, signing.signed_at(record.kind, headers)

    async def _do(self, tenant: str, name: str, does: Does, id: str, body: Any) -> Receipt:
        """The one place that knows what calls lead to."""
        app, by = self._app, f"{HOOK}{name}"
        chosen = f"hook-{digest(tenant, name, id)[:40]}"
        match does:
            case HookStart():
                wanted = _text(does.id, body) if does.id else chosen
                input = jq.compile(does.input).one(body)
                run = await app.start_by_name(
                    does.workflow, [input], version=does.version, id=wanted, tenant=tenant, by=by
                )
                return Receipt(id, run.id)
            case HookSend():
                execution = _text(does.execution, body)
                payload = jq.compile(does.payload).one(body)
                await app.send(execution, does.event, payload, event_id=chosen, by=by, tenant=tenant)
                return Receipt(id, execution)
            case HookRoute():
                made = _cloud(tenant, name, does, id, body)
                return Receipt(id, routed=await app.route(made, by=by, tenant=tenant))
            case _:
                assert_never(does)

    async def _secrets(self, tenant: str, record: Record) -> list[str]:
        found: list[str] = []
        for reference in record.secrets(self._app.clock.now()):
            try:
                found.append(await self._resolve(tenant, reference))
            except UsageError as error:
                log.error("calls of the webhook %s of %s cannot be checked: %s", record.name, tenant, error)
        return found

    async def _no_secrets(self) -> list[str]:
        """Look for one that nobody has. A stranger does not choose what is looked for, nor for which tenant."""
        with suppress(UsageError):
            await self._resolve(self._app.tenant, _NOWHERE)
        return []

    async def _resolve(self, tenant: str, reference: str) -> str:
        """The secret; AccessUnavailable where it cannot be told now whether there is one."""
        try:
            return await self._app.secrets.resolve(tenant, reference)
        except UsageError:
            raise
        except Exception as error:
            log.warning("secrets cannot be looked for now, so calls of webhooks are not checked: %s", error)
            raise AccessUnavailable("the signature of the call cannot be checked at the moment: try again") from error

    async def _write(self, tenant: str, name: str, decide: Decide[Record], by: str) -> Record:
        key = key_of_hook(tenant, name)
        self._recent.drop(key)
        record = await self._register.write(key, decide, by)
        self._recent.drop(key)  # somebody may have read it meanwhile
        return record

    def _told(self, tenant: str, record: Record) -> Hook:
        both = bool(record.former) and record.overlap > self._app.clock.now()
        assert record.does is not None
        return Hook(
            record.name,
            tenant,
            record.kind,
            record.secret,
            record.does,
            record.active,
            moment(record.created),
            record.by,
            record.former if both else "",
            moment(record.overlap) if both else None,
            moment(record.rotated) if record.rotated else None,
            moment(record.revoked) if record.revoked else None,
        )

    # All of them; last, for below this line `list` is no longer the type.

    async def list(self, *, tenant: str | None = None) -> list[Hook]:
        """All webhooks of a tenant, by name."""
        home = self._app._tenant(tenant)
        kept = self._register.all(home, HOOK, {})
        found = [self._told(home, record) async for _, record in kept if record.created]
        return sorted(found, key=lambda one: one.name)


def _taken(id: str) -> CallTaken:
    return CallTaken(f"the call {id!r} was taken before: nothing was done again, and it need not be sent again")


def _key(tenant: str, name: str) -> str:
    try:
        if _NAME.fullmatch(name):
            return key_of_hook(checked_tenant(tenant), name)
    except UsageError:
        pass
    raise Unauthenticated(_UNKNOWN)


def _check(does: Does) -> None:
    """Refuse expressions that cannot be read, and what can never be an event."""
    match does:
        case HookStart():
            texts = [does.input, does.id or "."]
        case HookSend():
            texts = [does.execution, does.payload]
        case HookRoute():
            if not does.type:
                raise InvalidValue("an event has a type: give one, as order.paid, or an expression on the body")
            texts = [does.data, *(jq.expression(one) for one in (does.type, does.source) if jq.is_expression(one))]
        case _:
            assert_never(does)
    for text in texts:
        jq.compile(text)


def _cloud(tenant: str, name: str, does: HookRoute, id: str, body: Any) -> dict[str, Any]:
    """The event that a call becomes: always the same, so a call that comes twice is one event."""
    return {
        "specversion": cloudevents.SPEC,
        "id": id,
        "source": _said(does.source, body) if does.source else f"/tenants/{tenant}/hooks/{name}",
        "type": _said(does.type, body),
        "datacontenttype": "application/json",
        "data": jq.compile(does.data).one(body),
    }


def _said(text: str, body: Any) -> str:
    return _text(jq.expression(text), body) if jq.is_expression(text) else text


def _text(expression: str, body: Any) -> str:
    found = jq.compile(expression).one(body)
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    if not isinstance(found, str):
        raise ExpressionError(f"`{expression[:80]}` gives {type(found).__name__}, and it has to be a text")
    return found


def _read(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue(f"the body of the call is not JSON: {error}") from error
