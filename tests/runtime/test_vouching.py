"""Definitions that name secrets: refused where one is missing, and never more than a name in what is written."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from perdure import DefinitionInvalid, Do, ExecutionFailed, Machine, Perdure, Secret, State, action, secret
from perdure.flows.graph import Graph
from perdure.http.api import api
from tests.flows.making import body
from tests.http.test_api import People

CANARY = "canary-4711-value"
seen: list[str] = []


@action(name="vouching.use")
async def use(what: str, key: Secret) -> int:
    seen.append(key.reveal())
    return len(what)


def look(tenant: str, name: str) -> str | None:
    """Acme has one secret; the vault is away for those of others."""
    if tenant == "away":
        raise ConnectionError("the vault does not answer")
    return {("acme", "canary"): CANARY, ("default", "canary"): CANARY, ("acme", "short"): "abc"}.get((tenant, name))


def machine(key: str = "secret://canary", name: str = "vouching-machine") -> dict[str, Any]:
    entry = [{"action": "vouching.use", "with": {"what": "it", "key": key}}]
    return {"machine": name, "initial": "begin", "states": {"begin": {"entry": entry, "final": True}}}


def graph(key: str = "secret://canary", name: str = "vouching-graph") -> dict[str, Any]:
    nodes = {"start": "trigger", "use": ("action", {"action": "vouching.use", "with": {"what": "it", "key": key}})}
    return body(name, nodes, "start > use")


both = pytest.mark.parametrize(
    ("make", "where"), [(machine, "states.begin.entry[0].with.key"), (graph, "nodes.use.with.key")]
)


@both
def test_a_secret_that_the_tenant_does_not_have_forbids_publishing(make: Any, where: str) -> None:
    async def main() -> None:
        async with Perdure("memory://", secrets=look) as app:
            with pytest.raises(DefinitionInvalid) as caught:
                await app.definitions.publish(make("secret://other"), tenant="acme")
            [problem] = caught.value.problems
            assert (problem.where, problem.message) == (where, "tenant 'acme' has no secret 'other'")
            assert "setting `secrets`" in problem.fix
            assert await app.definitions.list(tenant="acme") == []
            assert (await app.definitions.publish(make(), tenant="acme")).version == 1

    asyncio.run(main())


def test_the_secret_of_another_tenant_is_no_help() -> None:
    async def main() -> None:
        async with Perdure("memory://", secrets=look) as app:
            with pytest.raises(DefinitionInvalid, match="tenant 'rival' has no secret 'canary'"):
                await app.definitions.publish(machine(), tenant="rival")

    asyncio.run(main())


def test_a_secret_that_cannot_be_used_forbids_publishing_and_is_not_shown() -> None:
    async def main() -> None:
        async with Perdure("memory://", secrets=look) as app:
            with pytest.raises(DefinitionInvalid, match="fewer than 4 characters") as caught:
                await app.definitions.publish(machine("secret://short"), tenant="acme")
            assert "abc" not in str(caught.value)

    asyncio.run(main())


def test_a_source_that_fails_does_not_keep_anybody_from_publishing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Perdure("memory://", secrets=look) as app:
            assert (await app.definitions.publish(machine(), tenant="away")).version == 1

    asyncio.run(main())
    assert "the vault does not answer" in caplog.text


def test_what_an_expression_gives_cannot_be_known() -> None:
    async def main() -> None:
        async with Perdure("memory://", secrets=look) as app:
            assert (await app.definitions.publish(machine("${ .data.key }"), tenant="acme")).version == 1

    asyncio.run(main())


def test_validation_alone_warns_because_the_secret_may_be_elsewhere() -> None:
    [problem] = Perdure("memory://", secrets=look).definitions.validate(machine("secret://other"))
    assert (problem.level, problem.message) == ("warning", "tenant 'default' has no secret 'other'")


def test_over_http_validation_says_what_publishing_would() -> None:
    async def main() -> None:
        app = Perdure("memory://", secrets=look)
        transport = httpx.ASGITransport(app=api(app, People()))
        async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            head = {"authorization": "Bearer acme:ann:admin,owner"}
            wrong = {"definition": machine("secret://other")}
            told = (await client.post("/v1/definitions/validate", json=wrong, headers=head)).json()["problems"]
            assert [one["message"] for one in told] == ["tenant 'acme' has no secret 'other'"]
            refused = await client.post("/v1/definitions", json=wrong, headers=head)
            assert (refused.status_code, refused.json()["problems"]) == (422, told)
            fine = await client.post("/v1/definitions/validate", json={"definition": machine()}, headers=head)
            assert fine.json() == {"problems": []}

    asyncio.run(main())


@both
def test_the_action_gets_the_secret_and_the_log_its_name(make: Any, where: str) -> None:
    async def main() -> None:
        seen.clear()
        app = Perdure("memory://", secrets=look)
        async with app, app.working():
            made = await app.definitions.publish(make())
            run = await app.start(made.name, None)
            await run.result(20)
            text = str([row.data async for row in run.rows()])
            assert "secret://canary" in text and CANARY not in text
        assert seen == [CANARY]

    asyncio.run(main())


@pytest.mark.parametrize("key", [CANARY, 5])
def test_a_machine_in_python_that_gives_a_value_for_a_secret_is_refused_before_it_is_written(key: Any) -> None:
    async def main() -> None:
        begin = State(entry=[Do(use, lambda data, event: ("it", key))], final=True)
        made: Machine[Any] = Machine(f"vouching-code-{type(key).__name__}", initial="begin", states={"begin": begin})
        app = Perdure("memory://", secrets=look)
        async with app, app.working():
            run = await app.start(made, None)
            with pytest.raises(ExecutionFailed, match="given by reference"):
                await run.result(20)
            text = str([row.data async for row in run.rows()])
            assert CANARY not in text and "ActionScheduled" not in str(await run.log())

    asyncio.run(main())


def test_a_machine_in_python_passes_a_secret_on() -> None:
    async def main() -> None:
        begin = State(entry=[Do(use, lambda data, event: ("it", secret("canary")))], final=True)
        made: Machine[Any] = Machine("vouching-passes", initial="begin", states={"begin": begin})
        app = Perdure("memory://", secrets=look)
        async with app, app.working():
            run = await app.start(made, None)
            await run.result(20)
            assert "secret://canary" in str([row.data async for row in run.rows()])

    asyncio.run(main())


def test_an_expression_of_a_graph_that_gives_no_reference_fails_the_node_without_a_call() -> None:
    async def main() -> None:
        seen.clear()
        made = Graph(graph("${ .trigger }", "vouching-given"))
        app = Perdure("memory://", secrets=look)
        async with app, app.working():
            with pytest.raises(ExecutionFailed, match="given by reference"):
                await (await app.start(made, "not a reference")).result(20)
            assert await (await app.start(made, "secret://canary")).result(20) == 2
        assert seen == [CANARY]

    asyncio.run(main())
