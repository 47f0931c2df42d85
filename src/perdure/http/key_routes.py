"""API keys over HTTP: an admin makes, lists, rotates and revokes those of the own tenant."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perdure.http.keys import ApiKey, Keys, NewKey
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.runtime.managing.registers import Change

routes = Routes("keys")
#: Roles of one key.
MOST = 50
Roles = Annotated[list[str], Meta(min_length=1, max_length=MOST)]


class KeyIn(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to be made; `expires` is how long it is good, for ever unless given."""

    name: str
    roles: Roles
    expires: str | None = None


class RotateIn(Struct, frozen=True, forbid_unknown_fields=True):
    """The secret before is good for the time of `overlap` as well."""

    overlap: str = "24h"
    expires: str | None = None


class KeysOut(Struct, frozen=True):
    keys: list[ApiKey]


class KeyOut(Struct, frozen=True):
    """A key, and who did what to it."""

    key: ApiKey
    history: list[Change]


@routes("POST", "/v1/keys", "admin", body=KeyIn, answers={201: NewKey})
async def create_key(call: Call[Nothing, KeyIn]) -> Answer:
    """Make an API key; this is the only time that its secret can be seen."""
    body = call.body
    made = await Keys(call.app).create(
        body.name, body.roles, expires=body.expires, by=call.caller.user, tenant=call.tenant
    )
    return Answer(made, 201, {"Location": f"/v1/keys/{made.key.id}", "Cache-Control": "no-store"})


@routes("GET", "/v1/keys", "admin", answers={200: KeysOut})
async def list_keys(call: Call[Nothing, Nothing]) -> Answer:
    """List the API keys, the oldest first; their secrets are nowhere."""
    return Answer(KeysOut(await Keys(call.app).list(tenant=call.tenant)))


@routes("GET", "/v1/keys/{id}", "admin", answers={200: KeyOut})
async def get_key(call: Call[Nothing, Nothing]) -> Answer:
    """Get an API key, and who did what to it."""
    keys, id = Keys(call.app), call.path["id"]
    return Answer(KeyOut(await keys.get(id, tenant=call.tenant), await keys.history(id, tenant=call.tenant)))


@routes("POST", "/v1/keys/{id}/rotate", "admin", body=RotateIn, answers={200: NewKey})
async def rotate_key(call: Call[Nothing, RotateIn]) -> Answer:
    """Give an API key a new secret; the one before stays good for a while."""
    body = call.body
    made = await Keys(call.app).rotate(
        call.path["id"], overlap=body.overlap, expires=body.expires, by=call.caller.user, tenant=call.tenant
    )
    return Answer(made, 200, {"Cache-Control": "no-store"})


@routes("POST", "/v1/keys/{id}/revoke", "admin", answers={200: ApiKey})
async def revoke_key(call: Call[Nothing, Nothing]) -> Answer:
    """Let an API key be good no longer, in every server within seconds."""
    return Answer(await Keys(call.app).revoke(call.path["id"], by=call.caller.user, tenant=call.tenant))
