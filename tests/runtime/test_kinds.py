"""Each kind of failure has its strategy, whoever raises it and whichever worker goes on."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import ActionFailed, Breaker, Contention, External, Permanent, Retry, Run, Transient, action, workflow
from perdure.errors import UsageError
from perdure.testing import World, simulate

seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


class ForeignTimeout(Exception):
    """As of somebody else's client library."""


class ForeignConnectTimeout(ForeignTimeout): ...


async def tries(run: Run[Any]) -> list[dict[str, Any]]:
    """The data of the failed attempts, each with the time until the next."""
    found = []
    for entry in await run.log():
        if entry.type == "ActionAttempted":
            found.append({**entry.data, "wait": entry.data["due"] - round(entry.at.timestamp() * 1e6)})
    return found


async def test_a_transient_failure_is_tried_again_as_the_policy_says(world: World) -> None:
    @action(retries=Retry(attempts=2, first="3s", jitter=0))
    async def shaky() -> int:
        if action.attempt == 1:
            raise Transient("a hiccup")
        return action.attempt

    @workflow
    async def flow() -> int:
        return await shaky()

    run = await world.start(flow)
    assert await run.result() == 2
    (only,) = await tries(run)
    assert (only["error"]["kind"], only["wait"]) == ("transient", 3_000_000)


async def test_a_permanent_failure_is_not_tried_again(world: World) -> None:
    @action(retries=5)
    async def refuse() -> None:
        seen.append(1)
        raise Permanent("never", {"code": 404})

    @workflow
    async def flow() -> Any:
        try:
            await refuse()
        except ActionFailed as failure:
            return [isinstance(failure, Permanent), failure.kind, failure.details, failure.attempts]

    assert await world.run(flow) == [True, "permanent", {"code": 404}, 1]
    assert seen == [1]


async def test_contention_is_tried_again_without_using_up_attempts(world: World) -> None:
    @action  # without any retries
    async def grab() -> int:
        if action.attempt < 6:
            raise Contention("somebody else has it")
        return action.attempt

    @workflow
    async def flow() -> int:
        return await grab()

    run = await world.start(flow)
    assert await run.result() == 6
    failed = await tries(run)
    assert [one["free"] for one in failed] == [1, 2, 3, 4, 5]
    assert all(one["wait"] <= 100_000 * 2**number for number, one in enumerate(failed))


async def test_contention_without_end_is_given_up(world: World) -> None:
    @action
    async def grab() -> None:
        seen.append(action.attempt)
        raise Contention("somebody else has it")

    @workflow
    async def flow() -> str:
        try:
            await grab()
        except Contention as failure:
            return str(failure)
        return "?"

    assert await world.run(flow) == "somebody else has it"
    assert len(seen) == 101


async def test_what_does_not_count_is_known_after_a_crash(world: World) -> None:
    @action(retries=Retry(attempts=2, first="10s"))
    async def grab() -> int:
        if action.attempt <= 3:
            raise Contention("somebody else has it")
        if action.attempt == 4:
            raise OSError("a hiccup")
        return action.attempt

    @workflow
    async def flow() -> int:
        return await grab()

    run = await world.start(flow)
    await world.advance("5s")  # it waits for its second attempt that counts
    await world.crash()
    assert await run.result() == 5


async def test_an_at_most_once_action_is_not_run_again_for_contention(world: World) -> None:
    @action(at_most_once=True)
    async def fire() -> None:
        seen.append(1)
        raise Contention("somebody else has it")

    @workflow
    async def flow() -> str:
        try:
            await fire()
        except ActionFailed as failure:
            return failure.kind
        return "?"

    assert await world.run(flow) == "contention"
    assert seen == [1]


async def test_an_ill_service_is_not_asked_before_it_wants_to_be(world: World) -> None:
    @action(retries=Retry(attempts=3, first="1s", jitter=0))
    async def ask() -> int:
        if action.attempt == 1:
            raise External("come back later", retry_after=90)
        if action.attempt == 2:
            raise External("no idea when", retry_after=0.1)
        return action.attempt

    @workflow
    async def flow() -> int:
        return await ask()

    run = await world.start(flow)
    assert await run.result() == 3
    assert [(one["error"]["kind"], one["wait"]) for one in await tries(run)] == [
        ("external", 90_000_000),
        ("external", 2_000_000),
    ]


async def test_a_wish_to_be_left_alone_does_not_outlast_the_deadline(world: World) -> None:
    @action(retries=3, deadline="60s")
    async def ask() -> None:
        raise External("come back later", retry_after=90)

    @workflow
    async def flow() -> str:
        try:
            await ask()
        except External as failure:
            return f"{failure} after {world.now():%S} s"
        return "?"

    assert await world.run(flow) == "come back later after 00 s"


async def test_classes_of_others_are_given_a_kind_most_specific_first(world: World) -> None:
    @action(
        retries=Retry(attempts=9, first="1s"),
        errors={Exception: Permanent, ForeignTimeout: External, ForeignConnectTimeout: Contention},
    )
    async def ask() -> None:
        match action.attempt:
            case 1:
                raise ForeignConnectTimeout("no answer")
            case 2:
                raise ForeignTimeout("slow answer")
            case _:
                raise KeyError("no such thing")

    @workflow
    async def flow() -> Any:
        try:
            await ask()
        except ActionFailed as failure:
            return failure.kind

    run = await world.start(flow)
    assert await run.result() == "permanent"
    assert [one["error"]["kind"] for one in await tries(run)] == ["contention", "external"]


async def test_classes_that_are_listed_come_back_as_themselves(world: World) -> None:
    @action(errors={ForeignTimeout: Permanent})
    async def ask() -> None:
        raise ForeignTimeout("slow answer")

    @workflow
    async def flow() -> str:
        try:
            await ask()
        except ForeignTimeout as failure:
            return str(failure)
        return "?"

    assert await world.run(flow) == "slow answer"


async def test_the_kind_is_in_the_error_that_ends_an_execution(world: World) -> None:
    @action
    async def ask() -> None:
        raise External("ill")

    @workflow
    async def flow() -> None:
        await ask()

    run = await world.start(flow)
    assert await run.until("failed") == "failed"
    assert (await run.log())[-1].data["error"]["kind"] == "external"


@action(name="kinds.apart", queue="kinds.elsewhere", errors={LookupError: Contention}, breaker=Breaker(failures=2))
async def apart() -> None:
    seen.append(action.attempt)
    raise KeyError("taken") if action.attempt == 1 else External("ill")


@workflow(name="kinds.apart_flow")
async def apart_flow() -> str:
    try:
        await apart()
    except External as failure:
        return str(failure)
    return "?"


async def test_an_action_that_runs_apart_has_the_same_strategies(world: World) -> None:
    await world.workers[0].shut_down()
    for queue in ("default", "kinds.elsewhere"):
        world.add_worker(queues=[queue])
    run = await world.start(apart_flow)
    assert await run.result() == "ill"
    assert seen == [1, 2]
    settled = next(entry for entry in await run.log() if entry.type == "ActionSettled")
    assert (settled.data["error"]["kind"], settled.data["attempts"]) == ("external", 2)


def test_a_kind_that_is_none_is_refused_where_it_is_declared() -> None:
    with pytest.raises(UsageError, match="no kind of failure"):
        action(errors={KeyError: ValueError})  # type: ignore[dict-item]


@action(name="kinds.every", retries=Retry(attempts=3, first="1s"))
async def every_kind() -> int:
    match action.attempt:
        case 1 | 3:
            raise Contention("somebody else has it")
        case 2:
            raise External("ill", retry_after=5)
        case 4:
            raise OSError("a hiccup")
        case _:
            return action.attempt


@workflow(name="kinds.flow")
async def every_kind_flow() -> int:
    return await every_kind()


def test_the_strategies_hold_through_all_faults() -> None:
    simulate(every_kind_flow, seeds=range(12))
