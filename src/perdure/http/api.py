"""The API as a whole: all routes, and what describes them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from perdure.http import (
    audit,
    bulk,
    definitions,
    drafts,
    events,
    executions,
    external,
    following,
    hooks,
    key_routes,
    logs,
    overview,
    pictures,
    quota,
    routing,
    schedules,
    system,
    tasks,
    workflows,
)
from perdure.http.browse import POLICY, page
from perdure.http.caller import Scope
from perdure.http.dashboard import pages
from perdure.http.edge import Edge
from perdure.http.gate import Asks
from perdure.http.openapi import describe
from perdure.http.route import Answer, Call, Html, Nothing, Routes
from perdure.http.server import serve
from perdure.runtime.app import Perdure

routes = Routes("about")
VERSION = "1"


class CallerOut(Struct, frozen=True):
    """Whom a credential stands for. `roles` are those of the business, `scopes` what it may do here."""

    tenant: str
    user: str
    roles: list[str]
    scopes: list[Scope]


@routes("GET", "/v1/caller", "read", answers={200: CallerOut}, glance=lambda answer: answer)
async def get_caller(call: Call[Nothing, Nothing]) -> Answer:
    """Tell whom your credential stands for, and what it may do."""
    caller = call.caller
    return Answer(CallerOut(caller.tenant, caller.user, list(caller.roles), sorted(caller.scopes)))


@routes("GET", "/openapi.json", None, answers={200: dict[str, Any]})
async def openapi(call: Call[Nothing, Nothing]) -> Answer:
    """Get this description."""
    return Answer(describe(ALL, VERSION))


@routes("GET", "/docs", None, answers={200: Html})
async def browse(call: Call[Nothing, Nothing]) -> Answer:
    """Get this description as a page for a browser."""
    headers = {"Content-Security-Policy": POLICY}
    return Answer(page(describe(ALL, VERSION)), headers=headers, media="text/html; charset=utf-8")


#: What programs call, in the order of the documentation.
ALL = [
    *executions.routes.all,
    *logs.routes.all,
    *following.routes.all,
    *events.routes.all,
    *routing.routes.all,
    *definitions.routes.all,
    *tasks.routes.all,
    *system.routes.all,
    *routes.all,
    *external.routes.all,
    *hooks.routes.all,
    *audit.routes.all,
    *schedules.routes.all,
    *bulk.routes.all,
    *overview.routes.all,
    *key_routes.routes.all,
    *quota.routes.all,
    *drafts.routes.all,
    *pictures.routes.all,
    *workflows.routes.all,
]


def api(app: Perdure, asks: Asks) -> Edge:
    """The API of an application, and the dashboard that calls it, to be served by any ASGI server."""
    return serve(app, asks, [*ALL, *pages.routes.all])
