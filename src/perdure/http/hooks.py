"""Webhooks: called by others with a signature, and managed by administrators."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perdure.core.signing import Kind
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.runtime.managing.registers import Change
from perdure.runtime.web.hook_log import Does
from perdure.runtime.web.hooks import Hook, Receipt

routes = Routes("hooks")
Reference = Annotated[str, Meta(description="A reference, `secret://NAME`; never the secret itself.")]


class HookIn(Struct, frozen=True, forbid_unknown_fields=True):
    """A new webhook, called at `/v1/hooks/TENANT/NAME`."""

    name: str
    does: Does
    secret: Reference
    kind: Kind = "standard"


class RotateIn(Struct, frozen=True, forbid_unknown_fields=True):
    secret: Reference
    overlap: str = "24h"


class HooksOut(Struct, frozen=True):
    hooks: list[Hook]


class HookOut(Struct, frozen=True):
    hook: Hook
    history: list[Change]


@routes("POST", "/v1/hooks/{tenant}/{name}", None, body=bytes, answers={202: Receipt})
async def receive(call: Call[Nothing, bytes]) -> Answer:
    """Call a webhook: the signature of the body is the credential.

    202 when what it leads to is durable. The same call again is refused, 409; one that was signed anew under the same
    id, because the sender did not hear the answer, is answered as before. Neither changes anything. Without a valid
    signature, too early or too late, the answer is 401, whether the webhook exists or not.
    """
    return Answer(await call.app.hooks.receive(call.path["tenant"], call.path["name"], call.headers, call.body), 202)


@routes("GET", "/v1/hooks", "admin", answers={200: HooksOut})
async def list_hooks(call: Call[Nothing, Nothing]) -> Answer:
    """List the webhooks, by name."""
    return Answer(HooksOut(await call.app.hooks.list(tenant=call.tenant)))


@routes("POST", "/v1/hooks", "admin", body=HookIn, answers={201: Hook})
async def create_hook(call: Call[Nothing, HookIn]) -> Answer:
    """Make a webhook."""
    body = call.body
    hook = await call.app.hooks.create(
        body.name, body.does, secret=body.secret, kind=body.kind, by=call.caller.user, tenant=call.tenant
    )
    return Answer(hook, 201, {"Location": f"/v1/hooks/{hook.name}"})


@routes("GET", "/v1/hooks/{name}", "admin", answers={200: HookOut})
async def get_hook(call: Call[Nothing, Nothing]) -> Answer:
    """Get a webhook, with who did what to it."""
    hooks, name = call.app.hooks, call.path["name"]
    hook = await hooks.get(name, tenant=call.tenant)
    return Answer(HookOut(hook, await hooks.history(name, tenant=call.tenant)))


@routes("PUT", "/v1/hooks/{name}/secret", "admin", body=RotateIn, answers={200: Hook})
async def rotate_hook(call: Call[Nothing, RotateIn]) -> Answer:
    """Sign with another secret from now on; the one before stays good for the overlap."""
    body, name = call.body, call.path["name"]
    return Answer(
        await call.app.hooks.rotate(name, body.secret, overlap=body.overlap, by=call.caller.user, tenant=call.tenant)
    )


@routes("DELETE", "/v1/hooks/{name}", "admin", answers={200: Hook})
async def revoke_hook(call: Call[Nothing, Nothing]) -> Answer:
    """Let a webhook take no more calls."""
    return Answer(await call.app.hooks.revoke(call.path["name"], by=call.caller.user, tenant=call.tenant))
