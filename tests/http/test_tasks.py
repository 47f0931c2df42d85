"""Tasks for people over HTTP: the caller of the credential is who does it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from msgspec import Struct

from perdure import Escalate, person, role, workflow
from tests.http.test_api import Door, problem, served


class Approval(Struct):
    yes: bool
    why: str = ""


@workflow(name="http-approve")
async def approve(amount: int) -> str:
    people = ["ann", role("heads")]
    said = await person(
        "approve",
        form=Approval,
        title="Spend?",
        assign=people,
        data={"amount": amount},
        due="2d",
        priority=3,
        escalate=[Escalate("1d", to="boss")],
    )
    return f"{said.yes} {said.why}"


CONDITIONAL = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "why": {"type": "string"}},
    "required": ["yes"],
    "if": {"properties": {"yes": {"const": False}}},
    "then": {"required": ["why"]},
}


@workflow(name="http-look")
async def look() -> Any:
    return await person("look", form=CONDITIONAL)


class Desk:
    """A door, and who comes in."""

    def __init__(self, door: Door) -> None:
        self.door = door

    async def begin(self, id: str = "a", workflow: str = "http-approve", who: str = "acme:ann:admin") -> str:
        self.door.who = who
        args = [7] if workflow == "http-approve" else []
        await self.door("POST", "/v1/executions?wait=10s", {"workflow": workflow, "id": id, "args": args})
        return f"/v1/tasks/{id}.1"

    async def __call__(
        self, who: str, method: str, path: str, body: Any = None, role: str = "sender", **headers: str
    ) -> httpx.Response:
        """`ann`, or `bob,heads`: a user and the roles that the business knows."""
        user, *roles = who.split(",")
        self.door.who = f"acme:{user}:{','.join([role, *roles])}"
        return await self.door(method, path, body, **headers)

    async def until(self, path: str, status: str) -> dict[str, Any]:
        while (shown := (await self("ann", "GET", path)).json()).get("status") != status:
            await asyncio.sleep(0.01)
        return shown


def test_a_task_is_found_claimed_and_completed() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin()
        [found] = (await desk("bob,heads", "GET", "/v1/tasks?mine=true")).json()["tasks"]
        assert (found["id"], found["name"], found["title"], found["priority"]) == ("a.1", "approve", "Spend?", 3)
        assert (found["users"], found["roles"], found["execution"]) == (["ann"], ["heads"], "a")
        task = (await desk("bob,heads", "GET", path)).json()
        assert task["data"] == {"amount": 7} and "Approval" in task["form"]["$defs"]
        assert task["form_version"] == found["form_version"] != "" and task["due"] > task["created_at"]
        claimed = await desk("bob,heads", "POST", f"{path}/claim")
        assert (claimed.status_code, claimed.json()["claimed_by"]) == (200, "bob")
        assert claimed.headers["location"] == path
        done = await desk("bob,heads", "POST", f"{path}/complete", {"value": {"yes": True, "why": "ok"}})
        assert (done.status_code, done.json()["status"], done.json()["completed_by"]) == (200, "completed", "bob")
        assert (await desk("ann", "GET", "/v1/executions/a/result?wait=10s")).json()["result"] == "True ok"

    served(main)


def test_of_many_who_claim_at_once_one_is_told_that_it_is_theirs() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin()
        answers = await asyncio.gather(*(desk(f"u{number},heads", "POST", f"{path}/claim") for number in range(8)))
        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7
        [winner] = [answer.json()["claimed_by"] for answer in answers if answer.status_code == 200]
        for answer in answers:
            if answer.status_code == 409:
                assert f"{winner} has claimed it" in problem(answer, 409, "event-refused")["detail"]

    served(main)


def test_what_does_not_fit_the_form_is_told_with_its_places_and_nothing_is_lost() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin()
        wrong = await desk("ann", "POST", f"{path}/complete", {"value": {"yes": "perhaps", "why": 3}})
        told = problem(wrong, 422, "form-invalid")
        assert {one["where"] for one in told["problems"]} == {"yes", "why"}
        assert (await desk("ann", "GET", path)).json()["status"] == "open"
        problem(await desk("ann", "POST", f"{path}/complete", {"valu": 1}), 422, "invalid-request")
        assert (await desk("ann", "POST", f"{path}/complete", {"value": {"yes": True}})).status_code == 200

    served(main)


def test_a_form_may_ask_for_more_depending_on_what_is_said() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin(workflow="http-look")
        told = problem(await desk("ann", "POST", f"{path}/complete", {"value": {"yes": False}}), 422, "form-invalid")
        assert "why" in told["problems"][0]["message"]
        done = await desk("ann", "POST", f"{path}/complete", {"value": {"yes": False, "why": "dear"}})
        assert done.json()["value"] == {"yes": False, "why": "dear"}

    served(main)


def test_who_may_not_do_it_is_refused() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin()
        value = {"value": {"yes": True}}
        for who in ("eve", "eve,guests"):
            problem(await desk(who, "POST", f"{path}/claim"), 409, "event-refused")
            problem(await desk(who, "POST", f"{path}/complete", value), 409, "event-refused")
        await desk("bob,heads", "POST", f"{path}/claim")
        problem(await desk("ann", "POST", f"{path}/complete", value), 409, "event-refused")
        problem(await desk("ann", "POST", f"{path}/release"), 409, "event-refused")
        assert (await desk("bob", "POST", f"{path}/release")).json()["status"] == "open"
        assert (await desk("ann", "POST", f"{path}/complete", value)).status_code == 200

    served(main)


def test_what_is_completed_once_more_is_answered_the_same_or_refused() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin()
        first, again = [await desk("ann", "POST", f"{path}/complete", {"value": {"yes": True}}) for _ in range(2)]
        assert (first.status_code, again.status_code) == (200, 200) and first.json() == again.json()
        other = await desk("ann", "POST", f"{path}/complete", {"value": {"yes": False}})
        assert "was completed by ann" in problem(other, 409, "execution-ended")["detail"]
        problem(await desk("bob,heads", "POST", f"{path}/claim"), 409, "execution-ended")

    served(main)


def test_an_idempotency_key_makes_one_claim_of_many() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin()
        for _ in range(2):
            answer = await desk("ann", "POST", f"{path}/claim", idempotency_key="k")
            assert answer.status_code == 200
        log = (await desk("ann", "GET", "/v1/executions/a.1/log")).json()["events"]
        assert [entry["type"] for entry in log].count("EventReceived") == 1
        problem(await desk("ann", "POST", f"{path}/claim", idempotency_key=""), 400, "bad-idempotency-key")
        wrong = {"value": {"yes": True}}
        assert (await desk("bob,heads", "POST", f"{path}/complete", wrong, idempotency_key="v")).status_code == 409
        other = {"value": {"yes": False}}
        reused = await desk("bob,heads", "POST", f"{path}/complete", other, idempotency_key="v")
        problem(reused, 422, "idempotency-key-reused")

    served(main)


def test_a_task_is_passed_on_by_who_may_control() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin()
        to = {"users": ["cid"], "roles": ["clerks"]}
        problem(await desk("ann", "POST", f"{path}/assign", to), 403, "not-allowed")
        event = {"name": "assign", "payload": to}
        problem(await desk("ann", "POST", "/v1/executions/a.1/events", event), 422, "invalid-value")
        passed = (await desk("olga", "POST", f"{path}/assign", to, role="operator")).json()
        assert (passed["users"], passed["roles"], passed["status"]) == (["cid"], ["clerks"], "open")
        problem(await desk("ann", "POST", f"{path}/claim"), 409, "event-refused")
        problem(await desk("olga", "POST", f"{path}/assign", {"users": [""]}, role="operator"), 422, "invalid-request")
        assert (await desk("cid", "POST", f"{path}/claim")).status_code == 200

    served(main)


def test_who_may_only_read_claims_nothing() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin()
        assert (await desk("ann", "GET", path, role="viewer")).status_code == 200
        for verb, body in (("claim", None), ("release", None), ("complete", {"value": {"yes": True}})):
            problem(await desk("ann", "POST", f"{path}/{verb}", body, role="viewer"), 403, "not-allowed")

    served(main)


def test_without_a_worker_what_is_asked_is_accepted_and_judged_later() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        async with door.app.working():
            path = await desk.begin()
        later = await desk("ann", "POST", f"{path}/complete?wait=100ms", {"value": {"yes": True}})
        assert (later.status_code, later.json()) == (202, {"task": "a.1"})
        assert later.headers["location"] == path
        async with door.app.working():
            assert (await desk.until(path, "completed"))["completed_by"] == "ann"

    served(main, working=False)


def test_tasks_are_found_by_their_fields_and_page_by_page() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        for number in range(3):
            await desk.begin(f"a{number}")
        await desk.begin("b", "http-look")
        await desk("ann", "POST", "/v1/tasks/a0.1/claim")

        async def ids(query: str, who: str = "ann") -> list[str]:
            answer = await desk(who, "GET", f"/v1/tasks?{query}")
            return sorted(one["id"] for one in answer.json()["tasks"])

        assert await ids("") == ["a0.1", "a1.1", "a2.1", "b.1"]
        assert await ids("name=look") == ["b.1"] and await ids("execution=a2") == ["a2.1"]
        assert await ids("status=claimed") == await ids("claimed_by=ann") == ["a0.1"]
        assert await ids("assignee=ann&status=open") == await ids("role=heads&status=open") == ["a1.1", "a2.1"]
        assert await ids("mine=true", "bob,heads") == ["a1.1", "a2.1", "b.1"]
        assert await ids("mine=true&status=claimed") == ["a0.1"]
        assert await ids("mine=true&name=approve", "eve") == []
        first = (await desk("ann", "GET", "/v1/tasks?mine=true&limit=3")).json()
        rest = (await desk("ann", "GET", f"/v1/tasks?mine=true&limit=3&cursor={first['next']}")).json()
        assert [len(first["tasks"]), len(rest["tasks"]), rest["next"]] == [3, 1, None]

    served(main)


def test_a_search_that_makes_no_sense_is_refused() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        for query in ("mine=true&assignee=ann", "mine=true&status=expired"):
            problem(await desk("ann", "GET", f"/v1/tasks?{query}"), 400, "bad-combination")
        problem(await desk("ann", "GET", "/v1/tasks?status=done"), 422, "invalid-request")
        problem(await desk("ann", "GET", "/v1/tasks?limit=0"), 422, "invalid-request")
        problem(await desk("ann", "GET", "/v1/tasks?cursor=x"), 422, "invalid-value")
        problem(await desk("ann", "POST", "/v1/tasks/a.1/claim?wait=2h"), 400, "too-long")

    served(main)


def test_tasks_of_another_tenant_are_not_there() -> None:
    async def main(door: Door) -> None:
        desk = Desk(door)
        path = await desk.begin(who="other:ann:admin")
        for verb, body in (("claim", None), ("release", None), ("complete", {"value": {"yes": True}}), ("assign", {})):
            answer = await desk("ann", "POST", f"{path}/{verb}", body, role="operator")
            problem(answer, 404, "execution-not-found")
        problem(await desk("ann", "GET", path), 404, "execution-not-found")
        problem(await desk("ann", "GET", "/v1/tasks/a"), 404, "execution-not-found")
        assert (await desk("ann", "GET", "/v1/tasks")).json() == {"tasks": [], "next": None}

    served(main)
