"""The audit over HTTP, and how calls get into it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from perdure.http import forms
from perdure.http.caller import Scope
from perdure.http.route import Answer, Call, Nothing, Route, Routes
from perdure.runtime.managing.audit import Act, AuditPage

routes = Routes("audit")
#: What changes the course of executions, their definitions or who may do so is noted before it is done.
NOTED: frozenset[Scope | None] = frozenset({"control", "define", "admin"})
_MOST = 20


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    actor: str | None = None
    act: str | None = None
    target: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    limit: forms.Limit = 50
    cursor: str | None = None


@routes("GET", "/v1/audit", "admin", query=AuditQuery, answers={200: AuditPage})
async def audit(call: Call[AuditQuery, Nothing]) -> Answer:
    """List who did what, the newest first, page by page."""
    query = call.query
    found = await call.app.audit.find(
        actor=query.actor,
        act=query.act,
        target=query.target,
        after=query.after,
        before=query.before,
        limit=query.limit,
        cursor=query.cursor,
        tenant=call.tenant,
    )
    return Answer(found)


async def note(route: Route, call: Call[Any, Any]) -> bool:
    """Note a call, if it is one that is noted, and tell; what cannot be noted is refused by the error that this
    raises."""
    if route.method == "GET" or route.scope not in NOTED or route.harmless or getattr(call.body, "dry_run", False):
        return False
    caller = call.caller
    act = Act(
        caller.user,
        act_of(route),
        target_of(route, call),
        _reason(call),
        caller.credential,
        request=_request_id(call),
        roles=caller.named,
    )
    await call.app.audit.note(act, tenant=call.tenant)
    return True


def act_of(route: Route) -> str:
    """The same word as on the command line: `revoke_key` of the keys is keys.revoke."""
    return f"{route.tag}.{route.name.removesuffix('_' + route.tag.removesuffix('s'))}"


def target_of(route: Route, call: Call[Any, Any]) -> str:
    """What the act is done to: as the route says, as the path names it, or as the body does."""
    if route.target is not None:
        return route.target(call)
    if call.path:
        return "/".join(str(one) for one in call.path.values())
    ids: Sequence[str] = getattr(call.body, "ids", ())
    if ids:
        return ", ".join(ids[:_MOST]) + (f" and {len(ids) - _MOST} more" if len(ids) > _MOST else "")
    wanted = {name: getattr(call.body, name, None) for name in ("id", "name", "cause", "workflow", "all")}
    return ", ".join(f"{name}={value}" for name, value in wanted.items() if value)


def _reason(call: Call[Any, Any]) -> str:
    """Why it is done: as the body says it, or else the header; what a body notes for other readers comes last."""
    said = getattr(call.body, "reason", "") or _decoded(call.headers.get("x-reason", ""))
    return str(said or getattr(call.body, "note", "") or "")


def _decoded(text: str) -> str:
    """A header may have its UTF-8 as it is, or escaped by percent signs, as the client sends it."""
    try:
        return unquote(text.encode("latin-1").decode())
    except UnicodeError:
        return unquote(text)


def _request_id(call: Call[Any, Any]) -> str:
    given = call.headers.get("x-request-id", "")
    return given if 0 < len(given) <= 128 and given.isprintable() else uuid.uuid4().hex
