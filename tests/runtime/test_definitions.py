"""Definitions that are published at run time: what is kept, who may start it, and what running executions see of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure import Perdure, action, workflow
from perdure.core import events as ev
from perdure.core.records import Query, definition_of
from perdure.errors import (
    DefinitionConflict,
    DefinitionInvalid,
    DefinitionNotFound,
    ExecutionStuck,
    InvalidValue,
    NotRegistered,
    OutcomeUnknown,
    StoreUnavailable,
    UsageError,
)
from perdure.flows import kinds
from perdure.flows.reading import content_hash
from perdure.flows.registry import registry
from perdure.runtime.definitions.published import Published, Ref, blank, fold, index_of, key_of_definition
from perdure.runtime.managing import publishing
from perdure.stores.memory import MemoryStore
from perdure.testing import World
from perdure.testing.faults import CrashPoints, Process
from perdure.testing.machine import _App
from tests.flows.script import known, script

done: list[Any] = []


@pytest.fixture(autouse=True)
def _kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    done.clear()
    monkeypatch.setattr(registry, "_workflows", {})  # other tests have workflows of these names
    with known():
        yield


@action(name="definitions.charge")
async def charge(amount: int) -> str:
    done.append(amount)
    return f"charged {amount}"


@charge.undo
async def definitions_refund(amount: int, receipt: str) -> None:
    done.append(-amount)


CHARGE = {"act": "definitions.charge", "with": [7]}
ORDER = script("order", CHARGE, {"wait": "packed"})


async def hold_up(world: World, key: str) -> int:
    """Somebody holds a definition and says nothing more; gives the token."""
    await world.store.start([blank(key)], 0)
    [held] = await world.store.hold([key], "somebody", int(publishing.LEASE * 1e6))
    return held.token  # type: ignore[union-attr]


# --- publishing ------------------------------------------------------------------------------------------------------


async def test_what_was_published_is_there_for_everybody(world: World) -> None:
    made = await world.app.definitions.publish(ORDER, by="ada", note="the first")
    assert (made.name, made.version, made.kind, made.by, made.deprecated) == ("order", 1, "script", "ada", None)
    other = world.client("other")
    assert await other.definitions.get("order") == made
    assert made.body == ORDER
    assert made.bounds["definitions.charge"].undo is not None
    [change] = await other.definitions.history("order")
    assert (change.what, change.version, change.by, change.note) == ("published", 1, "ada", "the first")


async def test_a_definition_is_published_as_text(world: World) -> None:
    text = "script: order\nsteps:\n- {act: definitions.charge, with: [7]}\n- wait: packed\n"
    made = await world.app.definitions.publish(text, file="order.yaml")
    again = await world.app.definitions.publish(json.dumps(ORDER), file="order.json")
    assert made.version == again.version == 1
    assert made.hash == again.hash


async def test_each_content_is_a_version_and_the_same_content_the_same(world: World) -> None:
    definitions = world.app.definitions
    other = script("order", CHARGE)
    versions = [(await definitions.publish(body)).version for body in (ORDER, ORDER, other, ORDER, other)]
    assert versions == [1, 1, 2, 1, 2]
    assert [one.version for one in await definitions.versions("order")] == [1, 2]
    assert len(await definitions.history("order")) == 2


async def test_an_older_content_can_be_made_the_newest(world: World) -> None:
    definitions = world.app.definitions
    for body in (ORDER, script("order", CHARGE)):
        await definitions.publish(body)
    assert (await definitions.publish(ORDER, new=True)).version == 3
    assert (await definitions.publish(ORDER, new=True)).version == 3
    assert (await definitions.get("order")).version == 3


async def test_layout_is_content(world: World) -> None:
    await world.app.definitions.publish(ORDER)
    moved = await world.app.definitions.publish({**ORDER, "position": {"x": 1}})
    assert moved.version == 2


async def test_the_same_content_bound_to_another_action_is_another_version(world: World) -> None:
    await world.app.definitions.publish(ORDER)
    before = registry._actions["definitions.charge"]
    try:
        registry._actions["definitions.charge"] = []

        @action(name="definitions.charge", version=2)
        async def charge(amount: int, currency: str = "EUR") -> str:
            return f"charged {amount} {currency}"

        made = await world.app.definitions.publish(ORDER)
    finally:
        registry._actions["definitions.charge"] = before
    assert made.version == 2
    assert (made.bounds["definitions.charge"].version, made.bounds["definitions.charge"].undo) == (2, None)


async def test_all_problems_are_told_at_once(world: World) -> None:
    bad = script("order", {"sleep": "long"}, {}, CHARGE)
    problems = world.app.definitions.validate(bad)
    assert [one.where for one in problems] == ["steps[0].sleep", "steps[1]"]
    with pytest.raises(DefinitionInvalid) as caught:
        await world.app.definitions.publish(bad)
    assert caught.value.problems == problems
    assert all(one.where in str(caught.value) for one in problems)
    assert await world.app.definitions.list() == []


@pytest.mark.parametrize(
    ("body", "where", "what"),
    [
        ({}, "definition", "does not say what it is"),
        ([], "definition", "is a list"),
        ({"script": "a", "machine": "b"}, "definition", "machine and script"),
        ({"script": "a b", "steps": []}, "script", "cannot be the name"),
        ({"script": 7, "steps": []}, "script", "cannot be the name"),
        ({"script": "a@2", "steps": []}, "script", "cannot be the name"),
        ({"script": "a/b", "steps": []}, "script", "cannot be the name"),
        (script("a", {"act": "nobody.has.this"}), "actions.nobody.has.this", "no action of this name"),
        ("{", "definition", "ends too early|double quotes"),
    ],
)
async def test_what_cannot_be_used_is_a_problem(world: World, body: Any, where: str, what: str) -> None:
    [problem] = world.app.definitions.validate(body)
    assert problem.where == where
    assert any(part in problem.message for part in what.split("|"))
    with pytest.raises(InvalidValue):
        await world.app.definitions.publish(body)


async def test_the_name_of_a_workflow_in_the_code_is_taken(world: World) -> None:
    @workflow(name="taken")
    async def taken() -> None: ...

    [problem] = world.app.definitions.validate(script("taken"))
    assert "has a workflow taken" in problem.message


async def test_an_unknown_definition_is_not_found(world: World) -> None:
    definitions = world.app.definitions
    await definitions.publish(ORDER)
    for asking in (
        definitions.get("nothing"),
        definitions.get("order", 2),
        definitions.get("order", draft=True),
        definitions.versions("nothing"),
        definitions.history("nothing"),
        definitions.deprecate("order", 2, ""),
        definitions.restore("nothing", 1),
        definitions.publish_draft("order"),
    ):
        with pytest.raises(DefinitionNotFound):
            await asking


# --- drafts and deprecation ------------------------------------------------------------------------------------------


async def test_a_draft_may_be_wrong_and_starts_nothing(world: World) -> None:
    definitions = world.app.definitions
    draft = await definitions.draft({"script": "order", "steps": "later"}, by="ada")
    assert (draft.version, draft.by, draft.body["steps"]) == (0, "ada", "later")
    [listed] = await definitions.list()
    assert (listed.name, listed.newest, listed.draft, listed.versions) == ("order", None, True, [])
    with pytest.raises(NotRegistered):
        await world.app.start("order")
    with pytest.raises(DefinitionInvalid):
        await definitions.publish_draft("order")


async def test_a_draft_that_is_published_is_no_draft_any_more(world: World) -> None:
    definitions = world.app.definitions
    await definitions.draft(script("order"))
    await definitions.draft(ORDER)
    await definitions.draft(ORDER)
    assert (await definitions.publish_draft("order", by="bob")).version == 1
    [listed] = await definitions.list()
    assert not listed.draft
    assert [one.what for one in await definitions.history("order")] == ["drafted", "drafted", "published"]


async def test_a_deprecated_version_is_started_only_by_its_number(world: World) -> None:
    definitions = world.app.definitions
    for body in (ORDER, script("order", CHARGE)):
        await definitions.publish(body)
    await definitions.deprecate("order", 2, "it charges too early", by="ada")
    await definitions.deprecate("order", 2, "again")
    assert (await definitions.get("order")).version == 1
    assert (await definitions.get("order", 2)).deprecated == "it charges too early"
    assert (await (await world.app.start("order")).head()).definition == "published:order@1"
    assert await (await world.app.start("order", version=2)).result() == ["charged 7"]
    await definitions.restore("order", 2)
    await definitions.restore("order", 2)
    assert (await definitions.get("order")).version == 2
    assert [one.what for one in await definitions.history("order")][2:] == ["deprecated", "restored"]


async def test_when_all_versions_are_deprecated_nothing_is_started(world: World) -> None:
    await world.app.definitions.publish(ORDER)
    await world.app.definitions.deprecate("order", 1, "")
    with pytest.raises(DefinitionNotFound, match="every version"):
        await world.app.start("order")
    assert (await world.app.definitions.publish(ORDER)).version == 2


# --- many at once ----------------------------------------------------------------------------------------------------


async def test_many_publishers_at_once_get_versions_of_their_own(world: World) -> None:
    clients = [world.client(f"c{number}") for number in range(20)]
    made = await asyncio.gather(
        *(one.definitions.publish(script("order", {"sleep": number % 10})) for number, one in enumerate(clients))
    )
    assert sorted({one.version for one in made}) == list(range(1, 11))
    assert all(one.version == two.version for one, two in zip(made, made[10:], strict=False))
    assert len(await world.app.definitions.versions("order")) == 10


async def test_a_publisher_that_died_is_waited_for_and_no_longer(world: World) -> None:
    key = key_of_definition("default", "order")
    await hold_up(world, key)
    before = world.micros()
    assert (await world.app.definitions.publish(ORDER)).version == 1
    assert 9e6 < world.micros() - before < 11e6
    rows = [type(ev.read(row)).__name__ for row in await world.rows(key)]
    assert rows == ["Started", "TakenOver", "EventReceived"]


async def test_who_keeps_a_definition_for_too_long_is_named(world: World) -> None:
    key = key_of_definition("default", "order")
    token = await hold_up(world, key)

    async def renewing() -> None:
        while True:
            await asyncio.sleep(3)
            await world.store.renew([(key, token)], 10_000_000)

    task = asyncio.create_task(renewing())
    with pytest.raises(StoreUnavailable, match="written by somebody"):
        await world.app.definitions.publish(ORDER)
    task.cancel()


class Doubtful(MemoryStore):
    """Says once that it does not know, before or after it did what it was asked for."""

    def __init__(self, wrote: bool) -> None:
        super().__init__()
        self.doubts = 1
        self.wrote = wrote

    async def commit(self, group: Any, grace: int) -> Any:
        if not self.doubts:
            return await super().commit(group, grace)
        self.doubts -= 1
        if self.wrote:
            await super().commit(group, grace)
        raise OutcomeUnknown("the line was cut")


@pytest.mark.parametrize("wrote", [True, False])
@pytest.mark.parametrize("new", [True, False])
def test_a_commit_with_an_unknown_outcome_is_looked_for(wrote: bool, new: bool) -> None:
    from perdure.streams.memory import Hub, MemoryStream

    async def main() -> None:
        async with Perdure(Doubtful(wrote), stream=MemoryStream(Hub())) as app:
            assert (await app.definitions.publish(ORDER, new=new)).version == 1
            assert len(await app.definitions.history("order")) == 1

    asyncio.run(main())


def test_after_a_doubt_the_index_is_made_from_the_log() -> None:
    from perdure.streams.memory import Hub, MemoryStream

    store = Doubtful(wrote=False)
    store.doubts = 0

    async def main() -> None:
        async with Perdure(store, stream=MemoryStream(Hub())) as app:
            await app.definitions.publish(ORDER)
            store.doubts = 1
            await app.definitions.publish(script("order"))
            assert [one.version for one in await app.definitions.versions("order")] == [1, 2]

    asyncio.run(main())


def test_an_unknown_act_is_found_even_if_another_came_after_it() -> None:
    from perdure.streams.memory import Hub, MemoryStream

    class Slow(Doubtful):
        async def commit(self, group: Any, grace: int) -> Any:
            if not self.doubts:
                return await super().commit(group, grace)
            self.doubts -= 1
            await MemoryStore.commit(self, group, grace)
            await other.definitions.publish(script("order", {"sleep": 1}))
            raise OutcomeUnknown("the line was cut")

    store = Slow(True)
    other = Perdure(store, stream=MemoryStream(Hub()))

    async def main() -> None:
        async with Perdure(store, stream=MemoryStream(Hub())) as app, other:
            assert (await app.definitions.publish(ORDER, new=True)).version == 1
            assert len(await app.definitions.history("order")) == 2

    asyncio.run(main())


async def test_the_index_is_what_the_log_says(world: World) -> None:
    definitions = world.app.definitions
    for number in range(3):
        await definitions.publish(script("order", {"sleep": number}))
        await definitions.draft(script("order", {"sleep": number + 10}))
    await definitions.deprecate("order", 2, "why not")
    key = key_of_definition("default", "order")
    assert index_of(await world.store.head(key)) == fold(index_of(None), await world.rows(key))


# --- running ---------------------------------------------------------------------------------------------------------


async def test_a_published_workflow_runs(world: World) -> None:
    made = await world.app.definitions.publish(ORDER)
    run = await world.app.start("order", {"item": "tea"}, id="o1")
    await run.send("packed", {"tracking": "X1"})
    assert await run.result() == ["charged 7", {"tracking": "X1"}]
    started = (await run.log())[0].data
    assert (started["workflow"], started["version"], started["hash"]) == ("order", 1, made.hash)
    assert (await run.head()).definition == definition_of("order", 1, made.hash) == "published:order@1"


async def test_it_is_started_once_per_id_whatever_was_published_since(world: World) -> None:
    await world.app.definitions.publish(ORDER)
    one = await world.app.start("order", 1, id="o1")
    await world.app.definitions.publish(script("order"))
    two = await world.app.start("order", 1, id="o1")
    assert one.key == two.key
    assert (await two.head()).definition == "published:order@1"


async def test_running_executions_stay_on_their_version(world: World) -> None:
    await world.app.definitions.publish(ORDER)
    old = await world.app.start("order")
    await old.until("waiting")
    await world.app.definitions.publish(script("order", {"sleep": 1}))
    new = await world.app.start("order")
    assert await new.result() == ["slept"]
    await world.crash()
    await old.send("packed", 1)
    assert await old.result() == ["charged 7", 1]


async def test_tenants_have_definitions_of_their_own(world: World) -> None:
    definitions = world.app.definitions
    one = await definitions.publish(script("order", {"sleep": 1}), tenant="acme")
    two = await definitions.publish(script("order", CHARGE), tenant="beta")
    assert (one.version, two.version) == (1, 1)
    assert await (await world.app.start("order", tenant="acme")).result() == ["slept"]
    assert await (await world.app.start("order", tenant="beta")).result() == ["charged 7"]
    with pytest.raises(NotRegistered):
        await world.app.start("order")
    assert await definitions.list() == []
    assert [one.name for one in await definitions.list(tenant="acme")] == ["order"]


async def test_a_definition_is_found_by_tenant_namespace_name_and_version(world: World) -> None:
    told: dict[tuple[str, str, str, int], int] = {}
    for tenant in ("acme", "beta"):
        for place, namespace in enumerate(("shop", "bank")):
            for name in ("order", "bill"):
                for version in (1, 2):
                    number = len(told) + 1
                    about = {"dsl": "1.0.3", "namespace": namespace, "name": name, "version": f"{version}.0.{place}"}
                    body = {"document": about, "do": [{"say": {"set": {"number": number}}}]}
                    made = await world.app.definitions.publish(body, tenant=tenant)
                    assert (made.name, made.version) == (f"{namespace}.{name}", version)
                    told[tenant, namespace, name, version] = number
    for (tenant, namespace, name, version), number in told.items():
        run = await world.app.start(f"{namespace}.{name}", {}, tenant=tenant, version=version)
        assert await run.result() == {"number": number}
    for apart in ({"namespace": "shop.order", "name": "x"}, {"namespace": "shop", "name": "order.x"}):
        body = {"document": {"dsl": "1.0.3", "version": "1.0.0", **apart}, "do": [{"say": {"set": {"n": 1}}}]}
        with pytest.raises(DefinitionInvalid):  # or two pairs would have one name
            await world.app.definitions.publish(body)


async def test_what_was_started_is_in_the_log_by_its_number_or_as_the_newest(world: World) -> None:
    definitions = world.app.definitions
    old, new = [await definitions.publish(body) for body in (ORDER, script("order", CHARGE))]
    for version, expected in ((None, new), (1, old), (2, new)):
        run = await world.app.start("order", version=version)
        data = (await run.log())[0].data
        assert (data["version"], data["hash"]) == (expected.version, expected.hash)
        assert (await run.state()).definition == f"published:order@{expected.version}"


async def test_code_of_a_name_comes_before_what_was_published(world: World) -> None:
    await world.app.definitions.publish(script("either", {"sleep": 1}))

    @workflow(name="either")
    async def either(n: int) -> int:
        return n + 1

    try:
        assert await (await world.app.start("either", 1)).result() == 2
        assert await (await world.app.start_by_name("either", [1])).result() == 2
    finally:
        del registry._workflows["either", 1]
    assert await (await world.app.start("either")).result() == ["slept"]


async def test_a_name_that_nobody_knows_is_answered_with_the_few_that_come_near(world: World) -> None:
    for number in range(20):
        await world.app.definitions.publish(script(f"near-order-{number}", CHARGE))
    await world.app.definitions.publish(script("near-secret", CHARGE), tenant="other")
    with pytest.raises(NotRegistered, match="did you mean") as caught:
        await world.app.start("near-ordr-7")
    assert "near-order-7" in str(caught.value) and str(caught.value).count("near-order-") == 5
    with pytest.raises(NotRegistered) as caught:
        await world.app.start("near-secre")
    assert "near-secret" not in str(caught.value)
    with pytest.raises(NotRegistered) as caught:
        await world.app.start("x" * 100_000)
    assert len(str(caught.value)) < 300


async def test_a_name_that_nobody_knows_is_refused(world: World) -> None:
    with pytest.raises(NotRegistered, match=r"no workflow nothing.*published"):
        await world.app.start("nothing")
    await world.app.definitions.publish(ORDER)
    with pytest.raises(NotRegistered, match="no workflow order@9.*; there is version 1$"):
        await world.app.start("order", version=9)
    with pytest.raises(UsageError):
        await world.app.start(7)  # type: ignore[call-overload]


async def test_the_input_is_checked_by_the_definition(world: World) -> None:
    await world.app.definitions.publish(script("order", input="int"))
    with pytest.raises(InvalidValue, match="wants a int"):
        await world.app.start("order", "tea")
    with pytest.raises(InvalidValue):
        await world.app.start_by_name("order", [None])
    with pytest.raises(TypeError, match=r"order\(\): too many"):
        await world.app.start("order", 1, 2)
    assert await (await world.app.start_by_name("order", [1])).result() == []


async def test_declared_events_are_checked_when_they_are_sent(world: World) -> None:
    await world.app.definitions.publish(script("order", {"wait": "packed"}, declares=True))
    run = await world.app.start("order")
    with pytest.raises(InvalidValue, match="takes no event 'nothing'"):
        await run.send("nothing")
    with pytest.raises(InvalidValue):
        await world.client("other").get(run.id).send("packed", 7)
    await run.send("packed", {"a": "b"})
    assert await run.result() == [{"a": "b"}]


async def test_what_it_did_is_undone_when_it_is_cancelled(world: World) -> None:
    await world.app.definitions.publish(script("order", {**CHARGE, "checkpoint": True}, {"wait": "packed"}))
    run = await world.app.start("order")
    await run.until("waiting")
    await world.crash()
    await run.cancel("no")
    await run.until("cancelled")
    assert done == [7, -7]


async def test_children_are_found_by_name_and_keep_what_was_found(world: World) -> None:
    await world.app.definitions.publish(script("parcel", {"wait": "go"}, queue="parcels"))
    await world.app.definitions.publish(script("order", {"child": "parcel", "input": 7}))
    world.add_worker(queues=["parcels"])
    run = await world.app.start("order", id="o1")
    await run.until("waiting")
    await world.app.definitions.publish(script("parcel", {"sleep": 1}, queue="parcels"))
    await world.crash(world.workers[0])
    child = world.app.get("o1.2")
    head = await child.head()
    assert (head.definition, head.queue) == ("published:parcel@1", "parcels")
    await child.send("go", 1)
    assert await run.result() == [[1]]


async def test_a_workflow_in_code_starts_a_published_one(world: World) -> None:
    from perdure.flows.workflow import _start

    @workflow
    async def starts_by_name() -> str:
        return await _start("order", 1, Raw(b"[1]"), "detached")

    await world.app.definitions.publish(ORDER)
    await world.run(starts_by_name)
    assert (await world.app.get("detached").head()).definition == "published:order@1"


async def test_a_definition_is_read_once_for_many_executions(world: World) -> None:
    await world.app.definitions.publish(script("order", {"wait": "packed"}))
    runs = [await world.app.start("order") for _ in range(30)]
    for run in runs:
        await run.until("waiting")
    key = key_of_definition("default", "order")
    reads = [0]
    read = world.store.read

    async def counting(which: str, *args: Any, **more: Any) -> Any:
        reads[0] += which == key
        return await read(which, *args, **more)

    world.store.read = counting  # type: ignore[method-assign]
    for run in runs:
        await run.send("packed")
        await run.result()
    assert reads == [0]
    await world.crash()
    more = [await world.app.start("order") for _ in range(30)]
    for run in more:
        await run.send("packed")
        await run.result()
    assert reads == [1]


async def test_what_is_kept_is_bounded(world: World) -> None:
    for number in range(5):
        await world.app.definitions.publish(script("order", {"sleep": number}))
    kept = Published(world.store, 3)
    refs = [Ref("default", "order", number) for number in range(1, 6)]
    found = await kept.load(refs)
    assert [found[ref].version for ref in refs] == [1, 2, 3, 4, 5]
    assert len(kept._built) == 3
    assert (await kept.load(refs)).keys() == set(refs)
    few = Published(world.store, 3)
    await few.load(refs[:3])
    await few.load(refs[:1])
    await few.load(refs[3:4])
    assert [few.kept(ref) is not None for ref in refs] == [True, False, True, True, False]


async def test_an_action_whose_code_is_elsewhere_runs_apart(world: World) -> None:
    await world.app.definitions.publish(script("order", CHARGE, {"wait": "packed"}))
    before = registry._actions.pop("definitions.charge")
    try:
        run = await world.app.start("order")
        await run.until("waiting")
        assert [entry.type for entry in await run.log()] == ["Started", "ActionScheduled"]
        assert done == []
    finally:
        registry._actions["definitions.charge"] = before
    await run.send("packed")
    assert await run.result() == ["charged 7", None]
    assert done == [7]


# --- what is not what it should be -----------------------------------------------------------------------------------


def edit(world: World, row: int, **changes: Any) -> None:
    """Change the log of a definition behind everybody's back."""
    store = world.store
    assert isinstance(store, MemoryStore)
    rows = store._executions[key_of_definition("default", "order")].rows
    event = ev.read(rows[row - 1])
    assert isinstance(event, ev.EventReceived)
    payload = msgspec.json.decode(event.payload) | changes
    changed = msgspec.structs.replace(event, payload=Raw(msgspec.json.encode(payload)))
    rows[row - 1] = ev.row(changed, row, rows[row - 1].at, rows[row - 1].fence)


async def test_a_content_that_was_changed_is_not_run(world: World) -> None:
    await world.app.definitions.publish(ORDER)
    run = await world.app.start("order")
    await run.until("waiting")
    edit(world, 2, body=script("order", {"wait": "packed"}))
    await world.crash()
    await run.send("packed")
    with pytest.raises(ExecutionStuck, match=r"definition\): the content of order@1 is not what was published"):
        await run.result()
    with pytest.raises(DefinitionConflict):
        await world.client("other").start("order")
    [dead] = (await world.app.dead(cause="definition")).dead
    assert dead.definition == "published:order@1"


async def test_what_cannot_be_built_is_neither_published_nor_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.app.definitions.publish(ORDER)
    run = await world.app.start("order")
    await run.until("waiting")

    def build(*args: Any, **more: Any) -> Any:
        raise KeyError("steps")

    monkeypatch.setattr(kinds.KINDS["script"], "build", build)
    with pytest.raises(KeyError):
        await world.app.definitions.publish(script("other"))
    assert [one.name for one in await world.app.definitions.list()] == ["order"]
    await world.crash()
    await run.send("packed")
    with pytest.raises(ExecutionStuck, match=r"definition\): order@1 cannot be built by this release: KeyError"):
        await run.result()


async def test_a_stuck_execution_goes_on_when_its_definition_is_back(world: World) -> None:
    await world.app.definitions.publish(ORDER)
    bundle = await world.app.definitions.export()
    run = await world.app.start("order")
    await run.until("waiting")
    document = await export_of(world, run.id)
    async with World() as other:
        moved = await other.app.adopt(document, "moved")
        with pytest.raises(ExecutionStuck, match="was not published"):
            await moved.result()
        with pytest.raises(DefinitionNotFound, match="was not published"):
            await moved.diagram()
        await other.app.definitions.import_(bundle)
        await moved.retry()
        await moved.send("packed", 1)
        assert await moved.result() == ["charged 7", 1]


async def export_of(world: World, id: str) -> list[Any]:
    from perdure.core import copies

    return copies.prefix(await world.rows(f"default/{id}"), {}, "x@1", "app")


async def test_an_execution_of_another_content_of_the_version_is_not_run(world: World) -> None:
    await world.app.definitions.publish(ORDER)
    run = await world.app.start("order")
    await run.until("waiting")
    document = await export_of(world, run.id)
    async with World() as other:
        await other.app.definitions.publish(script("order", {"wait": "packed"}))
        moved = await other.app.adopt(document, "moved")
        with pytest.raises(ExecutionStuck, match="another content of order@1"):
            await moved.result()


async def test_a_store_that_is_away_while_a_definition_is_loaded_only_delays(world: World) -> None:
    await world.app.definitions.publish(script("order", CHARGE))
    await world.crash()
    head, failures = world.store.head, [2]

    async def failing(key: str) -> Any:
        if "definition/" in key and failures[0]:
            failures[0] -= 1
            raise StoreUnavailable("away")
        return await head(key)

    run = await world.app.start("order")
    world.store.head = failing  # type: ignore[method-assign]
    before = world.micros()
    assert await run.result() == ["charged 7"]
    assert failures == [0]
    assert world.micros() - before < world.settings.lease * 1e6


# --- bundles ---------------------------------------------------------------------------------------------------------


async def full(world: World) -> str:
    definitions = world.app.definitions
    for body in (ORDER, script("order", CHARGE), script("parcel", {"sleep": 1}, title="Päckchen")):
        await definitions.publish(body)
    await definitions.deprecate("order", 1, "old")
    return await definitions.export()


async def test_a_bundle_goes_from_store_to_store_unchanged(world: World) -> None:
    bundle = await full(world)
    async with World() as other:
        new = await other.app.definitions.import_(bundle, by="ada")
        assert [(one.name, one.version) for one in new] == [("order", 1), ("order", 2), ("parcel", 1)]
        assert await other.app.definitions.export() == bundle
        assert await other.app.definitions.import_(bundle) == []
        assert await other.app.definitions.export() == bundle
        assert (await other.app.definitions.get("order", 1)).deprecated == "old"
        assert await (await other.app.start("order")).result() == ["charged 7"]


async def test_a_bundle_is_sorted_and_one_item_a_line(world: World) -> None:
    bundle = await full(world)
    data = json.loads(bundle)
    assert data["format"] == "perdure-definitions/1"
    assert bundle == json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert '"title": "Päckchen"' in bundle
    assert json.loads(await world.app.definitions.export(["parcel"]))["definitions"] == data["definitions"][2:]


async def test_a_bundle_can_be_imported_where_the_code_of_its_actions_is_not(world: World) -> None:
    bundle = await full(world)
    before = registry._actions.pop("definitions.charge")
    try:
        async with World() as other:
            await other.app.definitions.import_(bundle)
            assert await other.app.definitions.export() == bundle
    finally:
        registry._actions["definitions.charge"] = before


async def test_a_bundle_that_contradicts_the_store_is_refused_as_a_whole(world: World) -> None:
    bundle = await full(world)
    async with World() as other:
        await other.app.definitions.publish(script("parcel", {"sleep": 2}))
        with pytest.raises(DefinitionConflict, match=r"nothing was imported: parcel@1 is there already"):
            await other.app.definitions.import_(bundle)
        assert [one.name for one in await other.app.definitions.list()] == ["parcel"]


async def test_older_versions_can_be_imported_later(world: World) -> None:
    data = json.loads(await full(world))
    later = {**data, "definitions": data["definitions"][1:]}
    async with World() as other:
        await other.app.definitions.import_(json.dumps(later))
        await other.app.definitions.import_(json.dumps(data))
        assert [one.version for one in await other.app.definitions.versions("order")] == [1, 2]
        assert (await other.app.definitions.get("order")).version == 2
        assert await other.app.definitions.export() == await world.app.definitions.export()


async def test_of_two_imports_at_once_that_contradict_each_other_one_is_refused(world: World) -> None:
    bundle = json.loads(await full(world))
    other = await world.app.definitions.publish(script("parcel", {"sleep": 5}), tenant="other")
    second = json.loads(await world.app.definitions.export(tenant="other"))
    assert other.version == 1
    answers = await asyncio.gather(
        *(world.app.definitions.import_(json.dumps(one), tenant="new") for one in (bundle, second)),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in answers) == ["DefinitionConflict", "list"]


async def test_a_name_of_the_code_is_not_imported(world: World) -> None:
    bundle = await full(world)

    @workflow(name="parcel")
    async def parcel() -> None: ...

    async with World() as other:
        with pytest.raises(DefinitionConflict, match="has workflows named parcel"):
            await other.app.definitions.import_(bundle)
        assert await other.app.definitions.list() == []


async def test_a_bundle_with_a_version_twice_or_a_wrong_body_is_refused(world: World) -> None:
    data = json.loads(await full(world))
    twice = {**data, "definitions": [*data["definitions"], data["definitions"][0]]}
    with pytest.raises(DefinitionInvalid, match="it is there twice"):
        await world.app.definitions.import_(json.dumps(twice))
    body = script("order", {"sleep": "long"})
    data["definitions"][0] |= {"body": body, "hash": content_hash(body)}
    with pytest.raises(DefinitionInvalid, match="no number of seconds"):
        await world.app.definitions.import_(json.dumps(data), tenant="new")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"hash": "0"}, "its hash is not that of its body"),
        ({"name": "other"}, "another kind or name"),
        ({"version": 0}, "versions begin at 1"),
        ({"bounds": {}}, "does not say what its actions"),
        ({"body": []}, "not a bundle"),
        ({"more": 1}, "not a bundle"),
    ],
)
async def test_a_bundle_that_was_changed_is_refused(world: World, change: dict[str, Any], what: str) -> None:
    data = json.loads(await full(world))
    data["definitions"][0] |= change
    async with World() as other:
        with pytest.raises(InvalidValue, match=what):
            await other.app.definitions.import_(json.dumps(data))
        assert await other.app.definitions.list() == []


@pytest.mark.parametrize("text", ["", "[]", '{"format": "other/1", "definitions": []}', "[" * 100_000])
async def test_what_is_no_bundle_is_refused(world: World, text: str) -> None:
    with pytest.raises(InvalidValue, match="not a bundle"):
        await world.app.definitions.import_(text)


# --- where they live -------------------------------------------------------------------------------------------------


async def test_definitions_are_not_found_among_executions(world: World) -> None:
    await world.app.definitions.publish(ORDER)
    assert (await world.app.find()).heads == []
    assert len(await world.store.find(Query("default", workflow="definition:"))) == 1


async def test_mail_for_a_definition_does_no_harm(world: World) -> None:
    definitions = world.app.definitions
    await definitions.publish(ORDER)
    await world.app.send("definition/order", "published", {"version": 9})
    assert (await definitions.publish(script("order"))).version == 2
    assert (await definitions.publish(script("order", CHARGE))).version == 3
    assert len(await definitions.versions("order")) == 3


# --- crashes ---------------------------------------------------------------------------------------------------------


async def test_a_publisher_may_die_at_any_store_call(world: World) -> None:
    async def one(name: str, points: CrashPoints) -> int:
        process = Process(name)
        dying = _App(world, process, None, points)
        task = process.spawn(dying.definitions.publish(script(name, CHARGE), by="dying"), name)
        while not task.done() and not process.killed:
            await asyncio.sleep(0.01)
        made = await world.app.definitions.publish(script(name, CHARGE), by="next")
        assert made.version == 1
        assert [change.what for change in await world.app.definitions.history(name)] == ["published"]
        await process.bury()
        await dying.gate.close()
        return len(points.calls)

    count = await one("whole", CrashPoints())
    for at in range(count):
        for after in (False, True):
            await one(f"dies-{at}-{after}", CrashPoints(at, after=after))
    assert count >= 4
