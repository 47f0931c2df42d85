"""The client keeps up with the application: what one can do the other can, unless a reason is given here."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from perdure import Bulk, Client, Definitions, Perdure, Run, Schedules, Tasks
from perdure.client.audit import RemoteAudit
from perdure.client.bulk import RemoteBulk
from perdure.client.definitions import RemoteDefinitions
from perdure.client.external import RemoteExternalTasks
from perdure.client.hooks import RemoteHooks
from perdure.client.keys import RemoteKeys
from perdure.client.run import RemoteRun
from perdure.client.schedules import RemoteSchedules
from perdure.client.tasks import RemoteTasks
from perdure.http.keys import Keys
from perdure.runtime.external.external import ExternalTasks
from perdure.runtime.managing.audit import Audit
from perdure.runtime.web.hooks import Hooks

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (Perdure, Client),
    (Run, RemoteRun),
    (Definitions, RemoteDefinitions),
    (ExternalTasks, RemoteExternalTasks),
    (Hooks, RemoteHooks),
    (Audit, RemoteAudit),
    (Schedules, RemoteSchedules),
    (Bulk, RemoteBulk),
    (Tasks, RemoteTasks),
    (Keys, RemoteKeys),
]
_WORKS = "it is for those who work on the store, in the process that has it"
_INSIDE = "the engine needs it, and nobody else"
#: What the application has and the client has not.
ABSENT: dict[type[Any], dict[str, str]] = {
    Perdure: {
        **dict.fromkeys(("open", "run", "working", "sink", "me", "new_id"), _WORKS),
        **dict.fromkeys(
            (
                "start_raw",
                "send_raw",
                "cancel_raw",
                "find_definition",
                "find_secret",
                "post",
                "deliver",
                "call_back",
                "call_http",
                "call_openapi",
                "described",
                "running",
                "fork",
                "news",
                "no_news",
                "hear",
                "refuse_crowd",
                "writes",
            ),
            _INSIDE,
        ),
        "start_by_name": "`start` takes a name as well",
        "adopt": "the API takes no logs: whoever could write one could write anything into it",
    },
    Run: {
        "rows": "how a log is stored is the store's own; `log` is what is shown of it",
        **dict.fromkeys(("since_restart", "head_at"), _INSIDE),
    },
    Definitions: {
        "examine": "`validate` of the client says it: the server has the store",
    },
    ExternalTasks: dict.fromkeys(("settings", "metrics", "me", "use", "close"), _INSIDE),
    Hooks: {"receive": "others call a webhook, with a signature and without this client"},
    Audit: {"note": "the server notes what is done through it, and takes nobody's word"},
    Schedules: {"fire": _INSIDE},
    Bulk: dict.fromkeys(("page", "handle"), _INSIDE),
    Keys: {"caller": _INSIDE, "close": _INSIDE},
}
#: What the client has and the application has not.
ADDED: dict[type[Any], dict[str, str]] = {
    Client: {
        "health": "an application in the same process is as well as its process",
        "stats": "the application has `perdure.runtime.managing.overview.stats`",
        "workers": "the application has `perdure.runtime.managing.overview.workers`",
        "metrics": "the application has those of its worker",
        "quota": "the application has `app.tenants.quota`",
        "workflows": "the application has its own code",
    },
    RemoteDefinitions: {"actions": "the application has its own code"},
}
#: Parameters that say who calls, for whom, and within what: a credential says the first two, and nobody the third.
WHO = {"tenant", "by", "roles", "connection"}
#: Further parameters that the client has not.
LESS: dict[str, set[str]] = {
    "Client.send": {"attributes"},  # they are those of a CloudEvent, which tells them itself
    "RemoteRun.send": {"attributes"},
    "Client.redrive": {"progress"},  # one request has one answer
    "Client.purge": {"progress"},
    "Client.lock": {"lease", "wait", "most"},  # it tells who has a lock, and takes none
    "RemoteDefinitions.validate": {"file"},  # the server sees no file
    "RemoteDefinitions.publish": {"file"},
    "RemoteDefinitions.draft": {"file"},
    "RemoteDefinitions.draw": {"file"},
    "RemoteExternalTasks.poll": {"listens"},  # the server asks by itself whether the caller is still there
}
#: Parameters that only the client has.
MORE: dict[str, set[str]] = {
    "RemoteRun.diagram": {"form"},  # the application gives a diagram, to be drawn in any form
    "RemoteDefinitions.diagram": {"form"},
    "RemoteDefinitions.draw": {"form"},
}
#: A caller of the API makes keys and hooks; only there `roles` is what they get.
OWN_ROLES = {"RemoteKeys.create"}


def verbs(kind: type[Any]) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("here", "there"), PAIRS, ids=[there.__name__ for _, there in PAIRS])
def test_the_verbs_are_those_of_the_application(here: type[Any], there: type[Any]) -> None:
    absent, added = set(ABSENT.get(here, ())), set(ADDED.get(there, ()))
    assert verbs(there) - {"id"} == ((verbs(here) - {"id"}) - absent) | added
    assert absent <= verbs(here), "a reason is given for something that is not there"


@pytest.mark.parametrize(("here", "there"), PAIRS, ids=[there.__name__ for _, there in PAIRS])
def test_the_parameters_are_those_of_the_application(here: type[Any], there: type[Any]) -> None:
    for name in sorted(verbs(here) & verbs(there)):
        if not inspect.isfunction(vars(here)[name]):
            continue
        place = f"{there.__name__}.{name}"
        left_out = (WHO - {"roles"} if place in OWN_ROLES else WHO) | LESS.get(place, set())
        wanted = {key: one for key, one in _parameters(here, name).items() if key not in left_out}
        found = {key: one for key, one in _parameters(there, name).items() if key not in MORE.get(place, set())}
        assert found == wanted, place


def _parameters(kind: type[Any], name: str) -> dict[str, tuple[Any, Any]]:
    found = inspect.signature(vars(kind)[name]).parameters
    return {key: (one.kind, one.default) for key, one in found.items()}


def test_every_facade_of_the_application_is_on_the_client() -> None:
    app, client = Perdure("memory://"), Client("http://127.0.0.1:9")
    facades = {type(value): name for name, value in vars(app).items() if type(value) in dict(PAIRS)}
    assert {name: type(getattr(client, name)) for name in facades.values()} == {
        name: dict(PAIRS)[kind] for kind, name in facades.items()
    }
    # Tenants are suspended by whoever runs the deployment; a credential is that of one tenant.
    others = {
        "settings",
        "store",
        "stream",
        "clock",
        "tenant",
        "worker",
        "heads",
        "states",
        "published",
        "outbound",
        "secrets",
        "cursors",
    }
    assert {name for name in vars(app) if not name.startswith("_")} - others - set(facades.values()) == {"tenants"}
