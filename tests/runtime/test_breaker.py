"""Circuit breakers at work: what is put off, what is probed, what the workers tell each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import ActionFailed, Breaker, CircuitOpen, External, Permanent, Retry, action, workflow
from perdure.core.breaker import Circuit
from perdure.core.records import Hint
from perdure.testing import World, simulate
from perdure.testing.swarm import NoFaults

BREAKER = Breaker(failures=3, window="10s", pause="30s")


class Service:
    """Somebody else's: ill or well, and it counts how often it is asked."""

    def __init__(self) -> None:
        self.ill = True
        self.asked = 0

    def ask(self) -> str:
        self.asked += 1
        if self.ill:
            raise External("out of order")
        return "fine"


service = Service()


@pytest.fixture(autouse=True)
def fresh() -> None:
    service.__init__()  # type: ignore[misc]


@action(name="breaker.ask", breaker=BREAKER)
async def ask() -> str:
    return service.ask()


@workflow(name="breaker.flow")
async def flow() -> str:
    return await ask()


@action(name="breaker.hasty", breaker=Breaker(failures=3, fail_fast=True), retries=5)
async def hasty() -> str:
    return service.ask()


@workflow(name="breaker.hasty_flow")
async def hasty_flow() -> str:
    try:
        return await hasty()
    except ActionFailed as failure:
        return f"{failure.type}, {failure.kind}, {failure.attempts} attempts"


def circuits(world: World, name: str = "breaker.ask") -> list[Circuit | None]:
    return [machine.app.worker.attempts.circuits.known.get(name) for machine in world.workers if machine.app.worker]


def states(world: World) -> list[str]:
    return [circuit.state if circuit is not None else "" for circuit in circuits(world)]


async def fall_ill(world: World, workflow: Any = flow) -> None:
    """Three executions find out that the service is ill."""
    for _ in range(3):
        await (await world.start(workflow)).until("failed")


async def test_an_open_circuit_puts_attempts_off_and_uses_none_up(world: World) -> None:
    await fall_ill(world)
    run = await world.start(flow)
    await world.advance("29s")
    assert service.asked == 3
    service.ill = False
    assert await run.result() == "fine"  # its only attempt
    put_off, settled = [entry for entry in await run.log() if entry.type.startswith("Action")]
    assert put_off.text.startswith("breaker.ask put off: the circuit of breaker.ask is open")
    assert (put_off.data["attempt"], put_off.data["error"]["type"]) == (0, "CircuitOpen")
    assert "attempts" not in settled.data, "the one attempt is the default"


async def test_what_is_put_off_tells_why(world: World) -> None:
    await fall_ill(world)
    run = await world.start(flow)
    await world.advance("5s")
    assert "the circuit of breaker.ask is open" in str(await run.why())
    service.ill = False


async def test_with_fail_fast_the_workflow_hears_of_it_at_once(world: World) -> None:
    @workflow
    async def no_retries() -> str:
        return await hasty.options(retries=0)()

    await fall_ill(world, no_retries)
    before = world.now()
    assert await world.run(hasty_flow) == "CircuitOpen, external, 0 attempts"
    assert (service.asked, world.now()) == (3, before)


async def test_while_the_service_is_ill_it_is_asked_once_per_pause(world: World) -> None:
    await fall_ill(world)
    for _ in range(20):
        await world.start(flow)
    await world.advance("10m")
    assert 3 + 5 <= service.asked <= 3 + 20
    service.ill = False


async def test_when_the_service_is_well_again_everything_goes_on(world: World) -> None:
    await fall_ill(world)
    runs = [await world.start(flow) for _ in range(20)]
    await world.advance("10s")
    service.ill = False
    assert {await run.result() for run in runs} == {"fine"}
    (circuit,) = circuits(world)
    assert circuit is not None
    assert (circuit.state, circuit.opened) == ("closed", 1)
    assert circuit.refused >= 20


async def test_failures_that_do_not_count_leave_it_closed(world: World) -> None:
    @action(breaker=BREAKER)
    async def decline() -> None:
        service.asked += 1
        raise Permanent("declined")

    @workflow
    async def buy() -> None:
        await decline()

    for _ in range(10):
        await (await world.start(buy)).until("failed")
    assert service.asked == 10


async def test_waiting_for_a_service_ends_at_the_deadline(world: World) -> None:
    @action(name="breaker.ask", breaker=BREAKER, deadline="20s")
    async def patient() -> str:
        return service.ask()

    @workflow
    async def bounded() -> str:
        try:
            return await patient()
        except CircuitOpen:
            return "too long"

    await fall_ill(world)
    assert await world.run(bounded) == "too long"
    assert service.asked == 3


async def test_waiting_for_a_service_ends_when_the_policy_has_no_more_time(world: World) -> None:
    @action(name="breaker.ask", breaker=BREAKER, retries=Retry(attempts=5, elapsed="20s"))
    async def patient() -> str:
        return service.ask()

    @workflow
    async def bounded() -> str:
        try:
            return await patient()
        except CircuitOpen:
            return "too long"

    await fall_ill(world)
    assert await world.run(bounded) == "too long"


async def test_an_at_most_once_action_does_not_wait_but_fails(world: World) -> None:
    @action(name="breaker.ask", breaker=BREAKER, at_most_once=True)
    async def fire() -> str:
        return service.ask()

    @workflow
    async def torpedo() -> str:
        try:
            return await fire()
        except CircuitOpen:
            return "not fired"

    await fall_ill(world)
    assert await world.run(torpedo) == "not fired"
    assert service.asked == 3


async def test_a_probe_that_is_called_off_makes_room_for_the_next(world: World) -> None:
    @action(name="breaker.ask", breaker=BREAKER)
    async def hang() -> str:
        service.asked += 1
        await asyncio.sleep(1e6)
        return "?"

    @workflow
    async def hanging() -> str:
        return await hang()

    await fall_ill(world)
    await world.advance("31s")
    probe = await world.start(hanging)
    await world.settle()
    assert service.asked == 4
    await probe.cancel()
    service.ill = False
    before = world.now()
    assert await world.run(flow) == "fine"
    assert world.now() == before, "nobody had to wait for another pause"


async def test_arguments_that_do_not_fit_say_nothing_about_the_service(world: World) -> None:
    @action(name="breaker.ask", breaker=BREAKER)
    async def picky(number: int) -> str:
        return service.ask()

    @workflow
    async def careless() -> str:
        return await picky("many")  # type: ignore[arg-type]

    await fall_ill(world)
    await world.advance("31s")
    await (await world.start(careless)).until("failed")
    (circuit,) = circuits(world)
    assert circuit is not None
    assert circuit.state == "open"


@pytest.mark.world(workers=3)
async def test_a_worker_that_opens_or_closes_a_circuit_tells_the_others(world: World) -> None:
    while "open" not in states(world):
        await (await world.start(flow)).until("failed")
        await world.settle()
    assert states(world) == ["open", "open", "open"]
    service.ill = False
    await world.advance("31s")
    assert await world.run(flow) == "fine"
    await world.settle()
    assert states(world) == ["closed", "closed", "closed"]


@action(name="breaker.delicate", breaker=Breaker(failures=1))
async def delicate() -> str:
    return service.ask()


@workflow(name="breaker.delicate_flow")
async def delicate_flow() -> str:
    return await delicate()


@pytest.mark.world(workers=3)
async def test_news_reaches_workers_that_have_never_run_the_action(world: World) -> None:
    await (await world.start(delicate_flow)).until("failed")
    await world.settle()
    assert [circuit is not None and circuit.state for circuit in circuits(world, "breaker.delicate")] == ["open"] * 3
    assert service.asked == 1


class LosesNews(NoFaults):
    def hint(self, hint: Hint) -> Sequence[float]:
        return () if hint.news else (0.0,)


async def no_news() -> None:
    async with World(workers=3, faults=lambda name: LosesNews()) as world:
        for _ in range(9):
            await world.start(flow)
        await world.advance("1s")
        assert 3 <= service.asked <= 9
        runs = [await world.start(flow) for _ in range(9)]
        service.ill = False
        await world.advance("1s")
        assert {await run.result() for run in runs} == {"fine"}


def test_without_news_every_worker_finds_out_by_itself() -> None:
    from perdure.testing import run

    run(no_news())


@action(name="breaker.flaky", retries=Retry(attempts=4, first="1s"), breaker=Breaker(failures=2, pause="10s"))
async def flaky() -> int:
    if action.attempt < 4:
        raise External("ill")
    return action.attempt


@workflow(name="breaker.flaky_flow")
async def flaky_flow() -> int:
    return await flaky() + await flaky()


def test_circuits_hold_up_nothing_for_ever_whatever_goes_wrong() -> None:
    simulate(flaky_flow, seeds=range(12))


def test_with_circuits_a_seed_still_gives_the_same_run() -> None:
    first, second = (simulate(flaky_flow, seeds=range(4)).traces for _ in range(2))
    assert first == second
