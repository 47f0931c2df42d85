"""Definitions on their way, over HTTP: drafts, and bundles from one store to another."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from typing import Any

from perdure import Perdure
from tests.http.test_api import Door, problem, served

GATE = {
    "machine": "draft-gate",
    "initial": "shut",
    "states": {"shut": {"on": {"push": "open"}}, "open": {"final": True}},
}
UNFINISHED = {**GATE, "initial": "nowhere"}
GREETER = {
    "machine": "draft-greeter",
    "initial": "shut",
    "states": {"shut": {"entry": [{"action": "http.greet", "with": {"name": "ann"}}], "final": True}},
}


def bundle(*definitions: dict[str, Any]) -> dict[str, Any]:
    """What another store exports."""

    async def main() -> str:
        async with Perdure("memory://") as elsewhere:
            for one in definitions:
                await elsewhere.definitions.publish(one)
            return await elsewhere.definitions.export()

    made: dict[str, Any] = json.loads(asyncio.run(main()))
    return made


def test_a_draft_is_kept_read_listed_replaced_and_published() -> None:
    async def main(door: Door) -> None:
        kept = await door("POST", "/v1/definitions/drafts", {"definition": UNFINISHED})
        assert (kept.status_code, kept.json()["version"], kept.json()["by"]) == (201, 0, "ann")
        place = kept.headers["location"]
        assert (await door("GET", place)).json()["body"]["initial"] == "nowhere"
        [listed] = (await door("GET", "/v1/definitions")).json()["definitions"]
        assert (listed["name"], listed["draft"], listed["versions"]) == ("draft-gate", True, [])
        problem(await door("POST", "/v1/executions", {"workflow": "draft-gate"}), 404, "not-registered")
        wrong = problem(await door("POST", "/v1/definitions/draft-gate/draft/publish", {}), 422, "definition-invalid")
        assert wrong["problems"]
        await door("POST", "/v1/definitions/drafts", {"definition": json.dumps(GATE)})
        made = await door("POST", "/v1/definitions/draft-gate/draft/publish", {"note": "at last"})
        assert (made.status_code, made.json()["version"]) == (201, 1)
        assert (await door("GET", made.headers["location"])).json()["body"] == GATE
        problem(await door("GET", place), 404, "definition-not-found")
        problem(await door("POST", "/v1/definitions/draft-gate/draft/publish", {}), 404, "definition-not-found")
        changes = (await door("GET", "/v1/definitions/draft-gate/history")).json()["changes"]
        assert [(one["what"], one["note"]) for one in changes][-1] == ("published", "at last")

    served(main, working=False)


def test_a_draft_is_given_up() -> None:
    async def main(door: Door) -> None:
        problem(await door("DELETE", "/v1/definitions/draft-gate/draft"), 404, "definition-not-found")
        await door("POST", "/v1/definitions/drafts", {"definition": UNFINISHED})
        for _ in range(2):
            assert (await door("DELETE", "/v1/definitions/draft-gate/draft")).status_code == 204
        assert (await door("GET", "/v1/definitions")).json() == {"definitions": []}
        changes = (await door("GET", "/v1/definitions/draft-gate/history")).json()["changes"]
        assert [one["what"] for one in changes] == ["drafted", "discarded"]

    served(main, working=False)


def test_a_draft_needs_a_name_and_the_shape_of_a_definition() -> None:
    async def main(door: Door) -> None:
        path = "/v1/definitions/drafts"
        problem(await door("POST", path, {"definition": {"machine": "a/b"}}), 422, "definition-invalid")
        problem(await door("POST", path, {"definition": 7}), 422, "invalid-request")
        problem(await door("POST", path, {"definition": GATE, "note": "x"}), 422, "invalid-request")

    served(main, working=False)


def test_a_bundle_goes_from_one_store_to_another() -> None:
    brought = bundle(GATE, {**GATE, "description": "newer"}, GREETER)

    async def main(door: Door) -> None:
        for dry_run in (True, False):
            told = await door("POST", "/v1/bundle", {"bundle": brought, "dry_run": dry_run})
            assert told.status_code == 200
            found = [(one["name"], one["version"], one["was"]) for one in told.json()["definitions"]]
            assert found == [("draft-gate", 1, "new"), ("draft-gate", 2, "new"), ("draft-greeter", 1, "new")]
            listed = (await door("GET", "/v1/definitions")).json()["definitions"]
            assert [one["name"] for one in listed] == ([] if dry_run else ["draft-gate", "draft-greeter"])
        assert (await door("GET", "/v1/bundle")).json() == brought
        [only] = (await door("GET", "/v1/bundle?names=draft-greeter")).json()["definitions"]
        assert only["name"] == "draft-greeter"
        again = (await door("POST", "/v1/bundle", {"bundle": brought})).json()["definitions"]
        assert {one["was"] for one in again} == {"there"}
        problem(await door("GET", "/v1/bundle?names=nothing"), 404, "definition-not-found")

    served(main, working=False)


def test_a_bundle_that_is_refused_changes_nothing() -> None:
    brought, other = bundle(GATE, GREETER), bundle({**GATE, "description": "another"}, GREETER)

    async def main(door: Door) -> None:
        async def refused(wrong: dict[str, Any], status: int, name: str) -> dict[str, Any]:
            before = (await door("GET", "/v1/bundle")).text
            told = problem(await door("POST", "/v1/bundle", {"bundle": wrong}), status, name)
            assert problem(await door("POST", "/v1/bundle", {"bundle": wrong, "dry_run": True}), status, name) == told
            assert (await door("GET", "/v1/bundle")).text == before
            return told

        forged = deepcopy(brought)
        forged["definitions"][1]["hash"] = "0" * 64
        [wrong] = (await refused(forged, 422, "definition-invalid"))["problems"]
        assert wrong["where"] == "draft-greeter@1"
        await refused({**brought, "format": "another/1"}, 422, "invalid-value")
        await refused({**brought, "colour": "red"}, 422, "invalid-request")
        await door("POST", "/v1/bundle", {"bundle": {**brought, "definitions": brought["definitions"][:1]}})
        assert "draft-gate@1" in (await refused(other, 409, "definition-conflict"))["detail"]

    served(main, working=False)


def test_a_bundle_binds_no_action_to_another_or_to_a_queue_of_the_engine() -> None:
    brought = bundle(GREETER)

    async def main(door: Door) -> None:
        for bound in (
            {"name": "other"},
            {"queue": "external:globex/node"},
            {"undo": {"name": "undo", "queue": "external:globex/node"}},
        ):
            forged = deepcopy(brought)
            forged["definitions"][0]["bounds"]["http.greet"] |= bound
            wrong = problem(await door("POST", "/v1/bundle", {"bundle": forged}), 422, "definition-invalid")
            assert "http.greet" in wrong["problems"][0]["message"]

    served(main, working=False)


def test_of_very_many_mistakes_in_a_bundle_only_the_first_are_told() -> None:
    brought = bundle(GATE)
    brought["definitions"] *= 1000

    async def main(door: Door) -> None:
        told = problem(await door("POST", "/v1/bundle", {"bundle": brought}), 422, "definition-invalid")
        assert len(told["problems"]) == 100

    served(main, working=False)


def test_a_bundle_has_the_limit_of_all_bodies() -> None:
    brought = bundle({**GATE, "description": "x" * 100})
    brought["definitions"] *= 10_000

    async def main(door: Door) -> None:
        problem(await door("POST", "/v1/bundle", {"bundle": brought}), 413, "too-large")

    served(main, working=False)
