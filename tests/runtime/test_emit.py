"""Events that leave: emitted by workflows, delivered to sinks at least once, with one id and one time."""

from __future__ import annotations

from datetime import UTC, datetime

from perdure import CloudEvent, Do, Machine as StateMachine, State, workflow
from perdure.testing import World
from perdure.testing.machine import Machine


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
    got: list[CloudEvent] = []
    when: list[datetime] = []

    def listens(worker: Machine) -> None:
        @worker.app.sink
        async def keep(event: CloudEvent) -> None:
            got.append(event)
            when.append(world.now())
            if len(got) == 1:
                worker.process.kill()  # delivered, and nobody has written so

    [first] = world.workers
    listens(first)
    run = await world.start(emits, 5)
    await world.settle()
    assert len(got) == 1 and [entry.type for entry in await run.log()] == ["Started"]
    listens(world.add_worker())
    assert await run.result() == got[0].id
    assert len(got) == 2 and got[0] == got[1] and when[0] < when[1], "the same event, later"
    [settled] = [entry for entry in await run.log() if entry.type == "ActionSettled"]
    assert (
        CloudEvent(**{**settled.data["result"], "time": datetime.fromisoformat(settled.data["result"]["time"])})
        == got[0]
    )


async def test_wherever_its_worker_dies_an_emitted_event_is_recorded_with_one_id_and_time(world: World) -> None:
    @workflow(name="emits.crash")
    async def crashing() -> list[str]:
        event = await workflow.emit("it.happened")
        return [event.id, str(event.time)]

    report = await world.crash_everywhere(crashing)
    assert report.status == "completed"
    assert max(report.attempts.values()) == 2, "some crash fell between the delivery and its record"


async def test_a_machine_emits_by_the_action_of_the_engine(world: World) -> None:
    machine = StateMachine(
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
