"""Limits that are settings: each has its effect both ways, and an error names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from perdure import Perdure, event, person, workflow
from perdure.client import Client
from perdure.errors import External, LimitReached, SettingsError, UsageError
from perdure.flows.machine import Machine, State, To
from perdure.http.api import api
from perdure.runtime.cursors import LONGEST_PAGE
from perdure.runtime.managing import overview
from perdure.runtime.managing.audit import Act
from perdure.testing import World
from tests.http.test_api import People
from tests.runtime.remote import application, at, calling, document, said


@workflow(name="limits-set-waits")
async def waits() -> None:
    await event("go")


@workflow(name="limits-set-asks")
async def asks() -> None:
    await person("approve", assign="ann")


@workflow(name="limits-set-breaks")
async def breaks() -> None:
    await asyncio.Event().wait()


# Pages


@pytest.mark.world(page=2)
async def test_pages_are_as_long_as_the_deployment_says_and_nothing_is_lost(world: World) -> None:
    app = world.app
    for number in range(5):
        await world.start(waits, id=f"w{number}")
        await world.start(asks, id=f"a{number}")
        await world.start(breaks, id=f"b{number}")
    await world.settle()
    for number in range(5):
        await app.send("w0", "other", number)
    await world.settle()
    run = app.get("w0")
    length = len(await run.log())
    assert length > 2
    lists: list[tuple[Callable[..., Any], str, int]] = [
        (lambda **more: app.find(workflow="limits-set-waits", **more), "heads", 5),
        (run.log_page, "events", length),
        (app.dead, "dead", 5),
        (app.tasks.list, "tasks", 5),
    ]
    for verb, part, total in lists:
        sizes, cursor, seen = [], None, list[Any]()
        while True:
            page = await verb(limit=1000, cursor=cursor)
            sizes.append(len(getattr(page, part)))
            seen += getattr(page, part)
            if (cursor := page.next) is None:
                break
        assert sizes == [2] * (total // 2) + [1] * (total % 2), part
        assert len({str(one) for one in seen}) == total, part
        assert len(getattr(await verb(limit=1), part)) == 1, "whoever asks for less gets less"


@pytest.mark.parametrize("page", [3, LONGEST_PAGE])
def test_a_client_reads_on_over_short_pages_and_so_does_the_audit(page: int) -> None:
    async def main() -> None:
        app = Perdure("memory://", page=page, tenant="acme")
        wire = httpx.ASGITransport(app=api(app, People()))
        async with app, Client("http://test", "acme:ann:admin", transport=wire) as client:
            run = client.get((await app.start(waits, id="w")).id)
            async with app.working():
                for number in range(7):
                    await app.send("w", "other", number, by="ann")
                    await app.audit.note(Act("ann", f"act{number}"))
                await app.send("w", "go")
                await app.get("w").result()
            log = await app.get("w").log()
            assert [one.version for one in await run.log()] == [one.version for one in log]
            assert len(log) > 7 and len((await run.log_page(limit=1000)).events) == min(page, len(log))
            for audit in (app.audit, client.audit):
                assert len([one async for one in audit.all() if one.act.startswith("act")]) == 7
                assert len((await audit.find(limit=1000)).acts) == min(page, 7)

    asyncio.run(main())


@pytest.mark.parametrize("limit", [0, 1001])
async def test_nobody_asks_for_a_page_of_more_than_a_thousand(limit: int, world: World) -> None:
    run = await world.start(waits)
    for asked in (world.app.find, world.app.dead, world.app.tasks.list, run.log_page):
        with pytest.raises(UsageError, match="between 1 and 1000"):
            await asked(limit=limit)


def test_a_page_that_nobody_could_ask_for_is_no_setting() -> None:
    with pytest.raises(SettingsError, match="page"):
        Perdure("memory://", page=1001)


# Counts


@pytest.mark.world(counted=3)
async def test_so_many_executions_are_counted(world: World) -> None:
    for number in range(3):
        await world.start(waits, id=f"w{number}")
    await world.settle()
    told = await overview.stats(world.app, "default")
    assert (told.total, told.complete) == (3, True)
    await world.start(waits, id="w3")
    await world.settle()
    told = await overview.stats(world.app, "default")
    assert (told.total, told.complete) == (3, False)
    assert (await world.app.tenants.quota("default")).running == 3
    await world.app.tenants.limit("default", running=10)
    assert (await world.app.tenants.quota("default")).running == 4, "a quota is counted for as far as it goes"


# Schedules and bulk operations


async def standing(world: World, size: int) -> None:
    """Both have to be taken, or neither."""
    try:
        await world.app.schedules.create(f"s{size}", waits, cron="@daily", note="x" * size)
    except LimitReached as error:
        with pytest.raises(LimitReached, match=str(error).rpartition("raise ")[2]):
            await world.app.bulk.start("cancel", all=True, dry_run=True, reason="x" * size)
        raise
    await (await world.app.bulk.start("cancel", all=True, dry_run=True, reason="x" * size)).result()
    await world.settle()
    assert (await world.app.schedules.get(f"s{size}")).note == "x" * size


@pytest.mark.world(standing_bytes=2000)
async def test_a_standing_order_may_be_made_shorter(world: World) -> None:
    await standing(world, 1000)
    with pytest.raises(LimitReached, match=r"more than 2,000, .*raise standing_bytes"):
        await standing(world, 2000)
    with pytest.raises(LimitReached, match="standing_bytes"):
        await world.app.schedules.update("s1000", note="x" * 2000)


async def test_a_standing_order_is_a_hundred_kilobytes_at_most(world: World) -> None:
    await standing(world, 99_000)
    with pytest.raises(LimitReached, match=r"more than 100,000, .*raise standing_bytes"):
        await standing(world, 100_000)


@pytest.mark.world(standing_bytes=1_000_000)
async def test_a_standing_order_may_be_longer_but_leaves_room_for_what_is_published_beside_it(world: World) -> None:
    await standing(world, 490_000)
    with pytest.raises(LimitReached, match=r"more than 500,000, .*raise payload_bytes, of which it may have half"):
        await standing(world, 500_000)


# Machines


def counting(name: str, times: int) -> Machine:
    """Goes from state to state by itself, so often."""
    return Machine(
        name,
        initial="a",
        data=int,
        states={
            "a": State(
                always=[
                    To("end", when=lambda data, event: data >= times),
                    To("b", when=lambda data, event: data < times),
                ]
            ),
            "b": State(always=To("a", when=lambda data, event: True, set=lambda data, event: data + 2)),
            "end": State(final=True),
        },
    )


short_way, long_way = counting("limits-set-short-way", 8), counting("limits-set-long-way", 150)


@pytest.mark.world(transitions_per_event=5)
async def test_a_machine_may_be_given_fewer_transitions(world: World) -> None:
    run = await world.start(short_way, 0)
    await run.until("stuck")
    why = str(await run.why())
    assert "5 transitions in a row" in why and "raise transitions_per_event" in why


async def test_a_machine_has_a_hundred_transitions_by_itself(world: World) -> None:
    await (await world.start(short_way, 0)).result()
    run = await world.start(long_way, 0)
    await run.until("stuck")
    assert "100 transitions in a row" in str(await run.why())


@pytest.mark.world(transitions_per_event=1000)
async def test_a_machine_may_be_given_more_transitions(world: World) -> None:
    await (await world.start(long_way, 0)).result()


# Calls to others


def test_a_connection_is_waited_for_as_long_as_the_deployment_says() -> None:
    """Whoever listens but never says hello in TLS has not connected."""

    async def failing(app: Perdure, url: str) -> str:
        with pytest.raises(External) as caught:
            await app.outbound.request("GET", url)
        return str(caught.value)

    async def main() -> None:
        enough = asyncio.Event()

        async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await enough.wait()
            writer.close()

        async with await asyncio.start_server(hangs_up, "127.0.0.1", 0) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            quick = Perdure("memory://", outbound_private=True, outbound_connect=0.1)
            assert "within 0.1 s (outbound_connect)" in await failing(quick, url)
            asyncio.get_running_loop().call_later(0.5, enough.set)
            patient = Perdure("memory://", outbound_private=True, outbound_connect=20)
            assert "outbound_connect" not in await failing(patient, url), "it waited, and was hung up on"

    asyncio.run(main())


def described(size: int) -> bytes:
    text = '{"openapi":"3.1.0","paths":{"/on":{"get":{"operationId":"turn","description":"%s"}}}}'
    return (text % ("x" * (size - len(text) + 2))).encode()


@pytest.mark.parametrize(
    ("settings", "size", "taken"),
    [
        ({"description_bytes": 1000}, 1000, True),
        ({"description_bytes": 1000}, 1001, False),
        ({}, 262_144, True),
        ({}, 262_145, False),
        ({"description_bytes": 500_000}, 400_000, True),
    ],
)
def test_a_description_may_be_as_long_as_the_deployment_says(settings: Any, size: int, taken: bool) -> None:
    given = {"operationId": "turn", "parameters": {}}
    ran, _ = calling(
        lambda it: document({"call": "openapi", "with": {"document": {"endpoint": at(it, "/api.json")}, **given}}),
        said(described(size)),
        said("on"),
        app=application(**settings),
    )
    if taken:
        assert ran.output == "on"
    else:
        assert ran.kind == "validation" and "raise description_bytes" in ran.problem["detail"]


def test_a_longer_description_may_have_more_values() -> None:
    values = ",".join(["1"] * 15_000)
    text = f'{{"openapi":"3.1.0","x":[{values}],"paths":{{"/on":{{"get":{{"operationId":"turn"}}}}}}}}'.encode()

    def ran(**settings: Any) -> Any:
        given = {"operationId": "turn", "parameters": {}}
        return calling(
            lambda it: document({"call": "openapi", "with": {"document": {"endpoint": at(it, "/api.json")}, **given}}),
            said(text),
            said("on"),
            app=application(**settings),
        )[0]

    assert "more than 10,000 values: raise description_bytes" in ran().problem["detail"]
    assert ran(description_bytes=600_000).output == "on"
