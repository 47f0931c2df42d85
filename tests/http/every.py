"""Every route of the API, with the scope it needs and a request that is in order: what the matrices are made of.

Rules kept here: all tables are written out by hand and compared with the routes, so nobody adds a route, or changes
who may call it, without saying so here.
"""

from __future__ import annotations

from typing import Any

from perdure.http.caller import Scope
from perdure.http.route import Nothing, Route

Place = tuple[str, str]

#: Who may call: None for anybody.
SCOPES: dict[Place, Scope | None] = {
    ("POST", "/v1/executions"): "start",
    ("GET", "/v1/executions"): "read",
    ("GET", "/v1/executions/{id}"): "read",
    ("GET", "/v1/executions/{id}/state"): "read",
    ("GET", "/v1/executions/{id}/log"): "read",
    ("GET", "/v1/executions/{id}/log/{version}"): "read",
    ("GET", "/v1/executions/{id}/why"): "read",
    ("GET", "/v1/executions/{id}/result"): "read",
    ("GET", "/v1/executions/{id}/diagram"): "read",
    ("POST", "/v1/executions/{id}/pause"): "control",
    ("POST", "/v1/executions/{id}/resume"): "control",
    ("POST", "/v1/executions/{id}/cancel"): "control",
    ("POST", "/v1/executions/{id}/retry"): "control",
    ("POST", "/v1/executions/{id}/fork"): "control",
    ("POST", "/v1/executions/{id}/migrate"): "control",
    ("GET", "/v1/executions/{id}/stream"): "read",
    ("POST", "/v1/executions/{id}/events"): "send",
    ("POST", "/v1/executions/{id}/events/batch"): "send",
    ("GET", "/v1/executions/{id}/events/{event_id}"): "read",
    ("POST", "/v1/events"): "send",
    ("GET", "/v1/definitions"): "read",
    ("POST", "/v1/definitions"): "define",
    ("POST", "/v1/definitions/validate"): "define",
    ("GET", "/v1/definitions/{name}"): "read",
    ("GET", "/v1/definitions/{name}/history"): "read",
    ("POST", "/v1/definitions/{name}/deprecate"): "define",
    ("POST", "/v1/definitions/{name}/restore"): "define",
    ("GET", "/v1/actions"): "read",
    ("GET", "/v1/tasks"): "read",
    ("GET", "/v1/tasks/{id}"): "read",
    ("POST", "/v1/tasks/{id}/claim"): "send",
    ("POST", "/v1/tasks/{id}/release"): "send",
    ("POST", "/v1/tasks/{id}/assign"): "control",
    ("POST", "/v1/tasks/{id}/complete"): "send",
    ("GET", "/v1/dead"): "read",
    ("POST", "/v1/dead/redrive"): "control",
    ("POST", "/v1/dead/purge"): "admin",
    ("GET", "/health"): None,
    ("GET", "/health/live"): None,
    ("GET", "/health/ready"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/docs"): None,
    ("GET", "/v1/caller"): "read",
    ("POST", "/v1/external/poll"): "work",
    ("POST", "/v1/external/heartbeat"): "work",
    ("POST", "/v1/external/complete"): "work",
    ("POST", "/v1/external/fail"): "work",
    ("POST", "/v1/hooks/{tenant}/{name}"): None,  # the signature is the credential
    ("GET", "/v1/hooks"): "admin",
    ("POST", "/v1/hooks"): "admin",
    ("GET", "/v1/hooks/{name}"): "admin",
    ("PUT", "/v1/hooks/{name}/secret"): "admin",
    ("DELETE", "/v1/hooks/{name}"): "admin",
    ("GET", "/v1/audit"): "admin",
    ("GET", "/v1/schedules"): "read",
    ("POST", "/v1/schedules"): "control",
    ("GET", "/v1/schedules/{name}"): "read",
    ("PATCH", "/v1/schedules/{name}"): "control",
    ("DELETE", "/v1/schedules/{name}"): "control",
    ("GET", "/v1/schedules/{name}/next"): "read",
    ("POST", "/v1/schedules/{name}/pause"): "control",
    ("POST", "/v1/schedules/{name}/resume"): "control",
    ("POST", "/v1/schedules/{name}/trigger"): "control",
    ("POST", "/v1/bulk"): "control",
    ("GET", "/v1/bulk"): "read",
    ("GET", "/v1/bulk/{id}"): "read",
    ("GET", "/v1/quota"): "read",
    ("GET", "/v1/stats"): "read",
    ("GET", "/v1/workers"): "read",
    ("GET", "/v1/locks"): "read",
    ("GET", "/v1/metrics"): "admin",
    ("POST", "/v1/keys"): "admin",
    ("GET", "/v1/keys"): "admin",
    ("GET", "/v1/keys/{id}"): "admin",
    ("POST", "/v1/keys/{id}/rotate"): "admin",
    ("POST", "/v1/keys/{id}/revoke"): "admin",
    ("POST", "/v1/definitions/drafts"): "define",
    ("POST", "/v1/definitions/{name}/draft/publish"): "define",
    ("DELETE", "/v1/definitions/{name}/draft"): "define",
    ("GET", "/v1/bundle"): "read",
    ("POST", "/v1/bundle"): "define",
    ("GET", "/v1/definitions/{name}/diagram"): "read",
    ("POST", "/v1/definitions/diagram"): "define",
    ("GET", "/v1/workflows"): "read",
    ("GET", "/v1/workflows/{name}"): "read",
}

#: What an observer may call: where it says what is left of the answer without its data, with these parameters.
GLANCES: dict[Place, set[str]] = {
    ("GET", "/v1/executions"): {
        *("status", "workflow", "after", "before", "parent", "limit", "cursor"),
        *("field", "correlation", "tag"),  # refused: who finds by a value knows it
    },
    ("GET", "/v1/executions/{id}"): set(),
    ("GET", "/v1/executions/{id}/log"): {"after", "until", "sent", "limit", "cursor"},
    ("GET", "/v1/executions/{id}/log/{version}"): {"form"},
    ("GET", "/v1/executions/{id}/why"): set(),
    ("GET", "/v1/definitions"): set(),
    ("GET", "/v1/dead"): {"cause", "workflow", "oldest", "limit", "cursor"},
    ("GET", "/v1/schedules"): {"ended"},
    ("GET", "/v1/stats"): {"workflow", "after", "before"},
    ("GET", "/v1/workers"): set(),
    ("GET", "/v1/caller"): set(),
}

#: The smallest body of each route that has one; there need be nothing that it is about.
BODIES: dict[Place, Any] = {
    ("POST", "/v1/executions"): {"workflow": "nobody-knows"},
    ("POST", "/v1/executions/{id}/pause"): {},
    ("POST", "/v1/executions/{id}/resume"): {},
    ("POST", "/v1/executions/{id}/cancel"): {},
    ("POST", "/v1/executions/{id}/retry"): {},
    ("POST", "/v1/executions/{id}/fork"): {},
    ("POST", "/v1/executions/{id}/migrate"): {"version": 1},
    ("POST", "/v1/executions/{id}/events"): {"name": "go"},
    ("POST", "/v1/executions/{id}/events/batch"): [{"name": "go"}],
    ("POST", "/v1/events"): {"specversion": "1.0", "type": "nobody.listens", "source": "/test", "id": "1"},
    ("POST", "/v1/definitions"): {"definition": {}},
    ("POST", "/v1/definitions/validate"): {"definition": {}},
    ("POST", "/v1/definitions/{name}/deprecate"): {"version": 1},
    ("POST", "/v1/definitions/{name}/restore"): {"version": 1},
    ("POST", "/v1/tasks/{id}/assign"): {},
    ("POST", "/v1/tasks/{id}/complete"): {},
    ("POST", "/v1/dead/redrive"): {"ids": ["nothing-here"]},
    ("POST", "/v1/dead/purge"): {"ids": ["nothing-here"]},
    ("POST", "/v1/external/poll"): {"queue": "nowhere", "wait": "0s"},
    ("POST", "/v1/external/heartbeat"): {"token": "made-up"},
    ("POST", "/v1/external/complete"): {"token": "made-up"},
    ("POST", "/v1/external/fail"): {"token": "made-up", "type": "X"},
    ("POST", "/v1/hooks/{tenant}/{name}"): {},
    ("POST", "/v1/hooks"): {"name": "x", "does": {"do": "start", "workflow": "nobody-knows"}, "secret": "secret://x"},
    ("PUT", "/v1/hooks/{name}/secret"): {"secret": "secret://x"},
    ("POST", "/v1/schedules"): {"name": "x", "workflow": "nobody-knows", "cron": "0 9 * * *"},
    ("PATCH", "/v1/schedules/{name}"): {"note": "x"},
    ("POST", "/v1/schedules/{name}/trigger"): {},
    ("POST", "/v1/bulk"): {"act": "cancel", "all": True, "dry_run": True},
    ("POST", "/v1/keys"): {"name": "x", "roles": ["viewer"]},
    ("POST", "/v1/keys/{id}/rotate"): {},
    ("POST", "/v1/definitions/drafts"): {"definition": {}},
    ("POST", "/v1/definitions/{name}/draft/publish"): {},
    ("POST", "/v1/definitions/diagram"): {"definition": {}},
    ("POST", "/v1/bundle"): {"bundle": {"format": "perdure-definitions/1", "definitions": []}},
}
#: What must be in the query, where something must.
QUERIES: dict[Place, str] = {("GET", "/v1/locks"): "name=nobodys"}


def place_of(route: Route) -> Place:
    return route.method, route.path


def path_of(route: Route, **named: str) -> str:
    """The path of a request; what is not named is something that does not exist."""
    path = route.path
    for name in route.names:
        path = path.replace(f"{{{name}}}", named.get(name, "nothing-here"))
    query = QUERIES.get(place_of(route))
    return path if query is None else f"{path}?{query}"


def body_of(route: Route) -> Any:
    return BODIES[place_of(route)] if route.body is not Nothing else None
