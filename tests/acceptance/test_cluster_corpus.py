"""All definitions of the corpus that are data, on a fleet: PostgreSQL, Redis, two worker processes, everything at once.

Each of them runs several times: as it is, with actions that fail, and cancelled under way. What the fleet wrote is run
once more in memory with what came in, and must come out the same; where nothing races it must also look as it does in
a world of virtual time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from perdure import Perdure, Run
from perdure.core import events as ev, summary
from perdure.core.records import ENDED, PERSON, Head, Query, Row, id_of
from perdure.errors import ExecutionEnded
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow
from perdure.testing import World, run as in_virtual_time
from perdure.testing.checks import check_head
from perdure.testing.invariants import check_log
from perdure.testing.servers.postgres import PostgresServer
from tests.acceptance.cluster import Cluster, rows_of
from tests.conftest import schema
from tests.corpus.scenes import LONG, NAMES, Scene, Sight, play, retrace, scene, sight, sleeps_for_ever, start
from tests.corpus.workflows import CORPUS

FLOWS = Path(__file__).parent / "corpus_flows.py"
#: How often each of them runs: as it is, with actions that fail, and cancelled under way.
LUCK = {"plain": 4, "unlucky": 3, "cancelled": 1}


class Seen(Struct, frozen=True):
    """One execution when it was over."""

    key: str
    head: Head
    rows: list[Row]

    @property
    def id(self) -> str:
        return id_of(self.key)

    @property
    def sight(self) -> Sight:
        return sight(self.head, self.rows)


class Past(Struct, frozen=True):
    """What is left of a fleet: all executions by the name of their member, what people were asked, all calls."""

    seen: dict[str, list[Seen]]
    tasks: list[Seen]  # for people
    calls: list[dict[str, Any]]


@pytest.fixture(scope="module")
def calm(folder: Path, postgres_server: PostgresServer, redis_url: str) -> Iterator[Past]:
    """A fleet of two workers has run the whole corpus."""
    with schema(postgres_server) as store:
        yield past(Cluster(folder / "calm", store, redis_url, flows=FLOWS, lease=10, resident=40), NAMES)


@pytest.fixture(scope="module")
def bereft(folder: Path, postgres_server: PostgresServer, redis_url: str) -> Iterator[Past]:
    """Of a fleet of three, one has died in the middle of an action."""
    with schema(postgres_server) as store:
        cluster = Cluster(folder / "bereft", store, redis_url, flows=FLOWS, resident=40)
        yield past(cluster, [name for name in NAMES if name not in LONG], DIES_AT="40")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


def past(cluster: Cluster, names: Sequence[str], **one_more: str) -> Past:
    """Two workers run all of it, and one more with this environment."""
    cluster.folder.mkdir()
    try:
        cluster.grow(2)
        if one_more:
            cluster.environ = one_more
            cluster.grow(1)
        seen, tasks = asyncio.run(everything(cluster, names))
    finally:
        cluster.end()
    return Past(seen, tasks, cluster.ledger.calls())


async def everything(cluster: Cluster, names: Sequence[str]) -> tuple[dict[str, list[Seen]], list[Seen]]:
    plans = [(name, luck, number) for name in names for luck, times in LUCK.items() for number in range(times)]
    async with cluster.app() as app, asyncio.timeout(120):
        runs = await asyncio.gather(*(one(app, *plan) for plan in plans))
        await all_end(app)
        seen: dict[str, list[Seen]] = {name: [] for name in names}
        for (name, *_), run in zip(plans, runs, strict=True):
            seen[name].append(Seen(run.key, await run.head(), await rows_of(run)))
        asked = await app.store.find(Query(tenant=None, workflow=PERSON, limit=10_000))
        return seen, [Seen(head.key, head, await rows_of(app.get(id_of(head.key)))) for head in asked]


async def one(app: Perdure, name: str, luck: str, number: int) -> Run[Any]:
    run = await start(app, name, f"{luck}-{name}-{number}")
    if luck == "cancelled":
        events = scene(name).events
        await play(run, Scene(events[: len(events) // 2]))
        with suppress(ExecutionEnded):
            await run.cancel("it is enough")
    else:
        await play(run, scene(name))
    return run


async def all_end(app: Perdure) -> None:
    """Wait for the end of all, children too; what waits for something that nobody sends is cancelled."""
    while True:
        heads = await app.store.find(Query(tenant=None, limit=10_000))
        left = [head for head in heads if head.status not in ENDED]
        if not left:
            return
        assert not (stuck := [head.key for head in left if head.status == "stuck"]), stuck
        for head in left:
            if sleeps_for_ever(head) and head.parent is None:
                await app.get(id_of(head.key)).cancel("nobody sends more")
        await asyncio.sleep(0.25)


def check_in_memory(workflow: Workflow[..., Any], found: Seen) -> None:
    check_log(found.rows, found.key)
    check_head(found.head, found.rows, 0)
    again = retrace(found.key, workflow, found.rows)
    status, result, _ = summary.ended(again.outcome)
    assert (found.head.status, found.head.result) == (status, result)
    assert found.sight.published == again.published


@pytest.mark.parametrize("name", NAMES)
def test_what_a_fleet_did_comes_out_the_same_in_memory(name: str, calm: Past) -> None:
    assert len(calm.seen[name]) == sum(LUCK.values())
    for found in calm.seen[name]:
        check_in_memory(CORPUS[name].workflow, found)


@pytest.mark.parametrize("name", [name for name in NAMES if scene(name).steady and not scene(name).hasty])
def test_where_nothing_races_a_fleet_and_a_world_in_memory_look_the_same(name: str, calm: Past) -> None:
    async def in_memory() -> Sight:
        async with World() as world:
            run = await start(world.app, name, f"plain-{name}-0")
            await play(run, scene(name))
            await run.until(*ENDED)
            return sight(await run.head(), await rows_of(run))

    expected = in_virtual_time(in_memory())
    plain = [found.sight for found in calm.seen[name] if found.id.startswith("plain")]
    assert plain == [expected] * LUCK["plain"]


def test_what_people_did_comes_out_the_same_in_memory(calm: Past, bereft: Past) -> None:
    tasks = registry.find(f"{PERSON}@1")
    assert tasks is not None
    for found in (*calm.tasks, *bereft.tasks):
        check_in_memory(tasks, found)
    ends = Counter(found.head.status for found in calm.tasks)
    assert ends["completed"] >= 25 * LUCK["plain"], ends
    assert ends["cancelled"] > 10, ends


def test_both_workers_had_their_share(calm: Past) -> None:
    calls = Counter(call["pid"] for call in calm.calls)
    assert len(calls) == 2
    assert min(calls.values()) > 0.1 * len(calm.calls), calls


def test_no_attempt_was_made_twice(calm: Past) -> None:
    """No worker died, so nothing had to be done again."""
    times = Counter((call["key"], call["step"]) for call in calm.calls)
    assert [call for call, count in times.items() if count > 1] == []


def test_there_was_bad_luck_and_there_were_cancels(calm: Past) -> None:
    """Or else the tests above have seen less than they say."""
    ends = Counter((found.id.partition("-")[0], found.head.status) for founds in calm.seen.values() for found in founds)
    assert ends["unlucky", "failed"] > 5, ends
    assert ends["unlucky", "completed"] > 5, ends
    assert ends["cancelled", "cancelled"] > 10, ends


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LONG])
def test_what_a_fleet_did_of_which_one_died_comes_out_the_same_in_memory(name: str, bereft: Past) -> None:
    for found in bereft.seen[name]:
        check_in_memory(CORPUS[name].workflow, found)


def test_what_the_dead_worker_held_was_taken_over_and_done_once_by_each(bereft: Past) -> None:
    rows = [row for founds in bereft.seen.values() for found in founds for row in found.rows]
    assert any(isinstance(ev.read(row), ev.TakenOver) for row in rows)
    assert 40 in Counter(call["pid"] for call in bereft.calls).values()
    times = Counter((call["key"], call["step"], call["fence"]) for call in bereft.calls)
    assert [call for call, count in times.items() if count > 1] == []
