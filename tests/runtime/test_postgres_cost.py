"""What executions cost PostgreSQL: a group is one round trip, a step writes into the log alone, and rest is quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from perdure import Perdure, action, event, workflow
from perdure.core.records import End, Park
from perdure.testing.contract import GRACE, LEASE, begin, kinds, letter, log, settled, take
from tests.stores.test_postgres_faults import opened

looks: list[Callable[[], Any]] = []
seen: list[Any] = []


class Asked:
    """Every statement that connections of this process send, in order; also those of other threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        connect = asyncpg.connect

        async def listening(*args: Any, **options: Any) -> Any:
            connection = await connect(*args, **options)
            connection.add_query_logger(lambda record: self._heard(record.query))
            return connection

        monkeypatch.setattr(asyncpg, "connect", listening)

    def _heard(self, query: str) -> None:
        if "typeinfo_tree" not in query and "'jit'" not in query:  # the driver's own, about types that are new to it
            self.said.append(query)

    async def _told(self) -> None:
        """The driver tells of a statement in the next turns of the loop."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def during(self, call: Any) -> int:
        """How many statements a call sends."""
        await self._told()
        self.said.clear()
        await call
        await self._told()
        return len(self.said)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def test_a_group_of_many_executions_is_one_round_trip(postgres: str, asked: Asked) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store:
            keys = [f"acme/{number}" for number in range(100)]
            assert await asked.during(store.start([begin(key) for key in keys], GRACE)) == 1
            assert await asked.during(store.send([letter(key=key) for key in keys], GRACE)) == 1
            hands = [await take(store, key) for key in keys]
            await store.release([(hand.key, hand.token) for hand in hands])
            assert await asked.during(store.hold(keys, "w1", LEASE)) == 1
            hands = [await take(store, key) for key in keys]  # the same worker: each has a barrier in its log
            steps = [await hand.prepare(settled()) for hand in hands]
            assert await asked.during(store.commit(steps, GRACE)) == 1
            assert await asked.during(store.renew([(hand.key, hand.token) for hand in hands], LEASE)) == 1
            for hand in hands:
                hand.version += 1
            rests = [await hand.prepare(settled(), letter(key=hand.key), settle=Park("open", None)) for hand in hands]
            assert await asked.during(store.commit(rests, GRACE)) == 1
            assert {len(await log(store, key)) for key in keys} == {5}

    asyncio.run(scenario())


def test_one_culprit_in_a_group_costs_two_round_trips_and_nobody_else_its_commit(postgres: str, asked: Asked) -> None:
    async def scenario() -> None:
        async with opened(postgres) as store:
            keys = [f"acme/{number}" for number in range(20)]
            await store.start([begin(key) for key in keys], GRACE)
            hands = [await take(store, key) for key in keys]
            group = [await hand.prepare(settled(), settle=End("completed", b"7")) for hand in hands]
            await hands[7].commit(settled())
            answers: list[str] = []

            async def commit() -> None:
                answers.extend(await store.commit(group, GRACE))

            assert await asked.during(commit()) == 3  # it fails, it is looked at with care, and the rest is written
            assert answers == ["stale" if key == keys[7] else "ok" for key in keys]
            assert [len(kinds(await log(store, key))) for key in keys] == [2] * 20

    asyncio.run(scenario())


@action
async def costly_step(number: int) -> int:
    seen.append(await looks[0]())
    return number


@workflow
async def costs_little(steps: int) -> int:
    for number in range(steps):
        workflow.publish(done=await costly_step(number))
    await event("end")
    return steps


def test_a_step_of_a_resident_execution_writes_into_its_log_and_nowhere_else(postgres: str) -> None:
    """Head and wake row are the same version of the same row from the first step to the last."""
    schema = postgres.partition("schema=")[2].partition("&")[0]
    rows = (
        f'select h.xmin::text, h.ctid::text, w.xmin::text, w.ctid::text, (select count(*) from "{schema}".messages)'
        f' from "{schema}".heads h join "{schema}".wakes w using (key) where key = $1'
    )

    async def scenario() -> None:
        connection = await asyncpg.connect(postgres.partition("?")[0])

        async def look() -> Any:
            return tuple(await connection.fetchrow(rows, "default/little"))

        looks[:], seen[:] = [look], []
        async with Perdure(postgres, lease="1m") as app, app.working():
            run = await app.start(costs_little, 20, id="little")
            await run.until("waiting", timeout=20)
            assert len(seen) == 20 and len(set(seen)) == 1
            assert await look() != seen[0], "what is not resident any more has been written down"
            await run.send("end")
            assert await run.result(timeout=20) == 20
        await connection.close()

    asyncio.run(scenario())


def test_indexes_hold_nothing_that_a_step_or_a_rest_changes(postgres: str) -> None:
    """So that resting changes the row of a head in place, and a step has two indexes at most to write to."""
    schema = postgres.partition("schema=")[2].partition("&")[0]
    question = (
        "select t.relname, i.relname, pg_get_expr(x.indpred, x.indrelid), array_agg(a.attname::text)"
        " from pg_index x join pg_class t on t.oid = x.indrelid join pg_class i on i.oid = x.indexrelid"
        " join pg_attribute a on a.attrelid = i.oid where t.relnamespace = $1::regnamespace group by 1, 2, 3"
    )

    async def scenario() -> list[Any]:
        async with Perdure(postgres):
            connection = await asyncpg.connect(postgres.partition("?")[0])
            found = await connection.fetch(question, schema)
            await connection.close()
        return [tuple(row) for row in found]

    found = asyncio.run(scenario())
    changing = {"state", "waits", "changed_at", "base", "result"}
    assert [index for table, index, _, columns in found if table == "heads" and changing & set(columns)] == []
    of_logs = {index: where for table, index, where, _ in found if table == "events"}
    assert of_logs == {"events_pkey": None, "events_message": "(message_id IS NOT NULL)"}


def test_a_worker_at_rest_asks_twice_in_a_while(postgres: str, asked: Asked) -> None:
    """When something will be due and what time it is, in one; and which tenants rest. Nothing else, and no polling."""

    async def scenario() -> list[str]:
        async with Perdure(postgres, probe="1s", lease="2s") as app, app.working():
            run = await app.start(costs_little, 0)
            await run.until("waiting", timeout=20)
            await asyncio.sleep(0.5)
            asked.said.clear()
            await asyncio.sleep(2.5)  # what is measured is rest itself
            return [query for query in asked.said if "set_config" not in query]

    ours = asyncio.run(scenario())
    assert 2 <= sum("next_due" in query for query in ours) <= 3, ours
    assert len(ours) <= 2 * 3, ours
