"""Events that leave: emitted by workflows, delivered to sinks at least once, with one id and one time."""

from __future__ import annotations

from datetime import UTC, datetime

from perdure import CloudEvent, Do, Machine, State, workflow
from perdure.testing import World


@workflow
async def emits(total: int) -> str:
    event = await workflow.emit("order.paid", {"total": total}, subject="order-1")
    return event.id


async def test_an_emitted_event_is_a_cloudevent(world: World) -> None:
    got: list[CloudEvent] = []

    @world.workers[0].app.sink
    async def keep(event: CloudEvent) -> None:
        got.append(event)

    run = await world.start(emits, 5)
    assert await run.result() == got[0].id
    [event] = got
    assert (event.type, event.data, event.subject) == ("order.paid", {"total": 5}, "order-1")
    assert event.source == f"/tenants/default/executions/{run.id}"
    assert (event.specversion, event.datacontenttype) == ("1.0", "application/json")
    assert event.time == datetime(2030, 1, 1, tzinfo=UTC)
    [settled] = [entry for entry in await run.log() if entry.type == "ActionSettled"]
    assert settled.data["result"]["id"] == event.id and settled.data["result"]["time"] == "2030-01-01T00:00:00Z"


async def test_a_sink_that_fails_gets_the_same_event_again(world: World) -> None:
    got: list[CloudEvent] = []

    @world.workers[0].app.sink
    async def flaky(event: CloudEvent) -> None:
        got.append(event)
        if len(got) < 3:
            raise OSError("not now")

    run = await world.start(emits, 5)
    await run.result()
    assert len(got) == 3
    assert {(event.id, event.time) for event in got} == {(got[0].id, got[0].time)}


async def test_a_sink_takes_only_the_types_that_it_names(world: World) -> None:
    got: list[str] = []
    app = world.workers[0].app

    @app.sink(types=["order.paid"])
    async def paid(event: CloudEvent) -> None:
        got.append(f"paid {event.data['total']}")

    @app.sink(types=["order.sent"])
    async def sent(event: CloudEvent) -> None:
        got.append("sent")

    await (await world.start(emits, 6)).result()
    assert got == ["paid 6"]


async def test_a_crash_between_delivery_and_record_delivers_the_same_event_again(world: World) -> None:
    @workflow(name="emits.crash")
    async def crashing() -> str:
        return (await workflow.emit("it.happened")).id

    report = await world.crash_everywhere(crashing)
    assert report.status == "completed"
    assert max(report.attempts.values()) == 2, "some crash fell between the delivery and its record"


async def test_a_machine_emits_by_the_action_of_the_engine(world: World) -> None:
    machine = Machine(
        "emitting-machine",
        initial="a",
        states={
            "a": State(entry=[Do("perdure.emit", {"type": "a.entered", "data": {"n": 1}})], always="b"),
            "b": State(final=True),
        },
    )
    got: list[CloudEvent] = []

    @world.workers[0].app.sink
    async def keep(event: CloudEvent) -> None:
        got.append(event)

    await (await world.start(machine)).result()
    assert [event.type for event in got] == ["a.entered"]
