"""The rules of definitions on a fleet: what is published, deprecated, brought or changed while two workers run it.

Each rule is tried on a machine and a graph that wait to be told, then call an action that says which version it is of.
They have a timer that is never reached, so that the workers hold them while they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Perdure, Run
from perdure.core import events as ev
from perdure.errors import DefinitionNotFound, ExecutionStuck, MigrationRefused, NotRegistered
from perdure.flows.registry import registry
from tests.acceptance.cluster import Cluster, results, rows_of, types, until
from tests.acceptance.cluster_flows import work
from tests.acceptance.conftest import Make

COUNT = 20


def machine(said: str, **states: Any) -> dict[str, Any]:
    do = [{"action": "work", "with": {"step": said}, "set": {"said": "${ .result }"}}]
    calm = {"on": {"go": {"to": "end", "do": do}}, "after": {"PT50S": {"to": "end"}}}
    body = {"machine": "fleet-talk", "initial": "calm", "output": "${ .data.said }"}
    return {**body, "states": {"calm": calm, "end": {"final": True}, **states}}


def graph(said: str, wait: str = "wait") -> dict[str, Any]:
    return {
        "graph": "fleet-walk",
        "nodes": [
            {"id": "start", "type": "trigger"},
            {"id": wait, "type": "wait", "data": {"events": [{"name": "go"}], "timeout": "50s"}},
            {"id": "say", "type": "action", "data": {"action": "work", "with": {"step": said}}},
            {"id": "end", "type": "end", "data": {"result": "${ .outputs.say }"}},
        ],
        "edges": [{"source": a, "target": b} for a, b in (("start", wait), (wait, "say"), ("say", "end"))],
    }


KINDS = {"machine": ("fleet-talk", machine), "graph": ("fleet-walk", graph)}
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _that_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing looks for the action by its name, which local ones of other tests may have, too."""
    monkeypatch.setitem(registry._actions, "work", [work])


@pytest.fixture
def fleet(make: Make, redis_url: str) -> Cluster:
    """Two workers, which keep what rests with them."""
    cluster = make(redis_url, linger=60)
    cluster.grow(2)
    return cluster


async def begun(app: Perdure, name: str, *ids: str, **more: Any) -> list[Run[Any]]:
    """Executions that wait to be told."""
    runs = [await app.start(name, {}, id=id, **more) for id in ids]

    async def waits(run: Run[Any]) -> bool:
        state = await run.state()
        return state.current == "calm" or "wait" in state.nodes

    for run in runs:
        await until(lambda run=run: waits(run), f"{run.id} waits")
    return runs


async def told(runs: Sequence[Run[Any]]) -> list[Any]:
    await asyncio.gather(*(run.send("go", by="ann") for run in runs))
    return await results(runs)


async def holders(runs: Sequence[Run[Any]]) -> set[str]:
    """All of them are held, by these."""
    found = {(await run.head()).holder or "" for run in runs}
    assert "" not in found
    return found


@both
def test_what_runs_stays_on_its_version_and_what_starts_takes_the_newest(kind: str, fleet: Cluster) -> None:
    name, make = KINDS[kind]

    async def main() -> None:
        async with fleet.app() as app:
            # Given executions that both workers hold
            await app.definitions.publish(make("one"))
            old = await begun(app, name, *(f"old-{number}" for number in range(COUNT)))
            assert len(await holders(old)) == 2
            # When a second version is published
            await app.definitions.publish(make("two"))
            new = await begun(app, name, *(f"new-{number}" for number in range(COUNT)))
            # Then each goes on with what it began with
            assert await told([*new, *old]) == ["two"] * COUNT + ["one"] * COUNT

    asyncio.run(main())


@both
def test_a_deprecated_version_is_started_by_its_number_only_and_what_runs_goes_on(kind: str, fleet: Cluster) -> None:
    name, make = KINDS[kind]

    async def main() -> None:
        async with fleet.app() as app:
            for said in ("one", "two"):
                await app.definitions.publish(make(said))
            running = await begun(app, name, "running")
            await app.definitions.deprecate(name, 2, "it is too loud", by="ann")
            by_name, by_number = await begun(app, name, "by-name"), await begun(app, name, "by-number", version=2)
            assert await told([*running, *by_name, *by_number]) == ["two", "one", "two"]
            await app.definitions.deprecate(name, 1, by="ann")
            with pytest.raises(DefinitionNotFound, match="every version"):
                await app.start(name, {}, id="none")

    asyncio.run(main())


def test_a_draft_cannot_be_started(fleet: Cluster) -> None:
    async def main() -> None:
        async with fleet.app() as app:
            await app.definitions.draft(machine("draft"), by="ann")
            for version in (None, 1):
                with pytest.raises(NotRegistered, match="no such definition was published"):
                    await app.start("fleet-talk", {}, version=version)
            await app.definitions.publish(machine("one"))
            await app.definitions.draft(machine("draft"))
            assert await told(await begun(app, "fleet-talk", "run")) == ["one"]

    asyncio.run(main())


def test_tenants_do_not_see_the_definitions_of_others(fleet: Cluster) -> None:
    async def main() -> None:
        async with fleet.app() as app:
            for tenant in ("acme", "beta"):
                await app.definitions.publish(machine(tenant), tenant=tenant)
            await app.definitions.publish(graph("secret"), tenant="acme")
            runs = [
                *await begun(app, "fleet-talk", "a", tenant="acme"),
                *await begun(app, "fleet-talk", "b", tenant="beta"),
            ]
            assert await told(runs) == ["acme", "beta"]
            with pytest.raises(NotRegistered, match="for tenant 'beta'"):
                await app.start("fleet-walk", {}, tenant="beta")
            with pytest.raises(DefinitionNotFound):
                await app.definitions.get("fleet-walk", tenant="beta")
            assert [one.name for one in await app.definitions.list(tenant="beta")] == ["fleet-talk"]
            assert await app.definitions.list() == []

    asyncio.run(main())


def test_executions_start_with_a_bundle_from_elsewhere(fleet: Cluster, tmp_path: Path) -> None:
    async def bundle() -> str:
        async with Perdure(f"sqlite:///{tmp_path}/elsewhere.db") as elsewhere:
            for body in (machine("one"), machine("two"), graph("three")):
                await elsewhere.definitions.publish(body)
            await elsewhere.definitions.deprecate("fleet-talk", 2, "not yet")
            return await elsewhere.definitions.export()

    async def main() -> None:
        text = await bundle()
        async with fleet.app() as app:
            assert len(await app.definitions.import_(text, by="ann")) == 3
            runs = [*await begun(app, "fleet-talk", "a"), *await begun(app, "fleet-walk", "b")]
            runs += await begun(app, "fleet-talk", "c", version=2)
            assert await told(runs) == ["one", "three", "two"]
            assert await app.definitions.export() == text
            assert await app.definitions.import_(text) == []

    asyncio.run(main())


# --- several processes publish ---------------------------------------------------------------------------------------


def publish(fleet: Cluster, *folders: Sequence[dict[str, Any]]) -> list[list[int]]:
    """As many processes at once, each of which publishes these, one after the other; gives their versions."""
    processes = []
    for number, bodies in enumerate(folders):
        files = [fleet.folder / f"{number}-{place}.json" for place in range(len(bodies))]
        for file, body in zip(files, bodies, strict=True):
            file.write_bytes(msgspec.json.encode(body))
        processes.append(fleet.process("publish", *map(str, files), "--code", str(fleet.flows), "--json"))
    versions = []
    for process in processes:
        assert process.end(60) == 0, process.seen
        said = "\n".join(process.seen)
        versions.append([one["version"] for one in msgspec.json.decode(said[said.index("[") :])])
    return versions


def test_of_several_processes_that_publish_at_once_each_gets_versions_of_its_own(fleet: Cluster) -> None:
    said = [[f"{process}-{number}" for number in range(4)] for process in range(2)]
    versions = publish(fleet, *([machine(one) for one in some] for some in said))
    assert sorted(one for some in versions for one in some) == list(range(1, 9))

    async def main() -> None:
        async with fleet.app() as app:
            for some, words in zip(versions, said, strict=True):
                for version, word in zip(some, words, strict=True):
                    assert await told(await begun(app, "fleet-talk", word, version=version)) == [word]

    asyncio.run(main())


def test_the_same_content_is_the_same_version_whoever_publishes_it(fleet: Cluster) -> None:
    assert publish(fleet, [machine("one")], [machine("one")]) == [[1], [1]]

    async def main() -> None:
        async with fleet.app() as app:
            assert (await app.definitions.publish(machine("one"))).version == 1
            assert [one.what for one in await app.definitions.history("fleet-talk")] == ["published"]

    asyncio.run(main())


# --- another version for what runs -----------------------------------------------------------------------------------


@both
def test_what_a_worker_holds_changes_its_version_on_request(kind: str, fleet: Cluster) -> None:
    name, make = KINDS[kind]

    async def main() -> None:
        async with fleet.app() as app:
            await app.definitions.publish(make("one"))
            runs = await begun(app, name, *(f"run-{number}" for number in range(COUNT)))
            await app.definitions.publish(make("two"))
            assert len(await holders(runs)) == 2
            await asyncio.gather(*(run.migrate(2, by="ann", timeout="20s") for run in runs[1:]))
            assert await told(runs) == ["one"] + ["two"] * (COUNT - 1)
            for run in runs[1:]:
                changed = [e for row in await rows_of(run) if isinstance(e := ev.read(row), ev.Restarted) and e.by]
                assert [(one.version, one.by) for one in changed] == [(2, "ann")]

    asyncio.run(main())


@both
def test_a_change_that_does_not_fit_leaves_everything_as_it_was(kind: str, fleet: Cluster) -> None:
    other = {"machine": {**machine("two"), "initial": "quiet"}, "graph": graph("two", wait="another")}[kind]
    if kind == "machine":
        other["states"] = {"quiet": other["states"]["calm"], "end": {"final": True}}
    name, make = KINDS[kind]

    async def main() -> None:
        async with fleet.app() as app:
            await app.definitions.publish(make("one"))
            [run] = await begun(app, name, "run")
            await app.definitions.publish(other)
            before = await types(run)
            with pytest.raises(MigrationRefused, match="keeps its version"):
                await run.migrate(2, by="ann", timeout="20s")
            assert await types(run) == before
            assert await told([run]) == ["one"]
            assert (await run.state()).definition == f"published:{name}@1"

    asyncio.run(main())


# --- circles ---------------------------------------------------------------------------------------------------------


def test_a_machine_that_goes_round_in_circles_is_stuck_and_a_fork_goes_on_with_what_was_mended(fleet: Cluster) -> None:
    def circle(ends: str) -> dict[str, Any]:
        there = {"always": {"to": "back", "set": {"said": "round"}}}
        back = {"always": [{"to": "end", "when": ends}, {"to": "there", "when": "${ true }"}]}
        return machine("one", calm={"on": {"go": "there"}, "after": {"PT50S": {"to": "end"}}}, there=there, back=back)

    async def main() -> None:
        async with fleet.app() as app:
            await app.definitions.publish(circle('${ .data.said == "never" }'))
            [run] = await begun(app, "fleet-talk", "run")
            rests = len(await types(run))
            # When it goes round in circles, then it is stuck and says who and where
            await run.send("go", by="ann")
            said = r"limit.*machine fleet-talk has made 100 transitions in a row without an event, the last to state"
            with pytest.raises(ExecutionStuck, match=said):
                await run.result(timeout=20)
            # When it is tried again, then nothing is different
            await run.retry(by="ann")
            with pytest.raises(ExecutionStuck, match=said):
                await run.result(timeout=20)
            assert (await types(run)).count("Stuck") == 2
            # When the definition is mended, then it says what to do, and that works
            await app.definitions.publish(circle('${ .data.said == "round" }'))
            with pytest.raises(MigrationRefused, match="it is stuck.*fork it where it was at rest"):
                await run.migrate(2, by="ann", timeout="20s")
            fork = await run.fork(at=rests, id="fork", by="ann")
            await fork.migrate(2, by="ann", timeout="20s")
            assert await told([fork]) == ["round"]

    asyncio.run(main())
