"""Actions through the public surface: arguments, results, retries, limits, keys, heartbeats."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import ActionFailed, ExecutionFailed, Machine, Perdure, Retry, Run, State, To, action, workflow
from perdure.errors import UsageError
from perdure.flows.registry import registry
from perdure.testing import World

seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@dataclass
class Order:
    id: int
    total: float


@dataclass
class Receipt:
    order: int
    paid: float


class CardDeclined(Exception):
    def __init__(self, message: str, details: Any = None) -> None:
        super().__init__(message)
        self.details = details


@action
async def charge(order: Order) -> Receipt:
    assert isinstance(order, Order)
    return Receipt(order.id, order.total)


async def test_arguments_and_results_are_typed(world: World) -> None:
    @workflow
    async def buy(order: Order) -> float:
        receipt = await charge(order)
        assert isinstance(receipt, Receipt)
        return receipt.paid

    run = await world.start(buy, Order(1, 9.5))
    assert await run.result() == 9.5


async def test_outside_a_workflow_an_action_is_just_the_function(world: World) -> None:
    assert await charge(Order(1, 2.0)) == Receipt(1, 2.0)
    assert await typed_thread(Order(2, 3.0), 5) == 5
    assert seen == [Order(2, 3.0)]


async def test_plain_functions_run_in_threads(world: World) -> None:
    @action
    def where() -> str:
        return threading.current_thread().name

    @workflow
    async def look() -> str:
        return await where()

    assert "perdure-action" in await (await world.start(look)).result()


async def test_failed_tries_are_repeated_with_back_off(world: World) -> None:
    @action(retries=Retry(attempts=4, first="10ms", jitter=0))
    async def flaky() -> int:
        seen.append(action.attempt)
        if action.attempt < 3:
            raise OSError("not yet")
        return action.attempt

    @workflow
    async def patient() -> int:
        return await flaky()

    run = await world.start(patient)
    assert await run.result() == 3
    assert seen == [1, 2, 3]
    log = await run.log()
    tries = [entry for entry in log if entry.type == "ActionAttempted"]
    assert [entry.data["attempt"] for entry in tries] == [1, 2]
    delays = [entry.data["due"] - round(entry.at.timestamp() * 1e6) for entry in tries]
    assert delays[0] <= 10_000 < delays[1] <= 20_000


@pytest.mark.world(concurrency=1)
async def test_who_waits_for_its_next_try_holds_no_place(world: World) -> None:
    @action(retries=Retry(attempts=2, first="1m", jitter=0), concurrency=1)
    async def flaky() -> int:
        if action.attempt == 1:
            raise OSError("not yet")
        return action.attempt

    @workflow
    async def patient() -> int:
        return await flaky()

    @workflow
    async def busy() -> Receipt:
        return await charge(Order(1, 2.0))

    runs = [await world.start(patient) for _ in range(5)]
    await world.settle()
    (machine,) = world.workers
    assert machine.app.worker is not None
    assert (machine.app.worker.attempts.running, len(machine.app.worker.residents)) == (0, 0)
    began = world.now()
    await world.run(busy)
    assert world.now() == began, "others did not have to wait"
    assert [await run.result() for run in runs] == [2] * 5
    assert (world.now() - began).total_seconds() == 60


@action(name="actions.hopeless", retries=Retry(attempts=3, first="10s"))
async def hopeless_at_last() -> None:
    seen.append(action.attempt)
    await asyncio.sleep(1)
    raise OSError("no")


@workflow(name="actions.counts")
async def counts() -> int:
    try:
        await hopeless_at_last()
    except ActionFailed as failure:
        return failure.attempts
    return 0


async def test_there_are_as_many_tries_as_said_wherever_a_crash_falls(world: World) -> None:
    crashed_in: list[list[int]] = []

    async def check(run: Run[Any]) -> None:
        assert await run.result() == 3
        log = await run.log()
        assert [entry.data["attempt"] for entry in log if entry.type == "ActionAttempted"] == [1, 2]
        crashed_in.append(list(seen))
        seen.clear()

    await world.crash_everywhere(counts, check=check)
    # A try that was cut off has no outcome, so it is made again under its number.
    assert {tuple(tries) for tries in crashed_in} == {(1, 2, 3), (1, 1, 2, 3), (1, 2, 2, 3), (1, 2, 3, 3)}


async def test_the_last_try_settles_the_action(world: World) -> None:
    @action(retries=Retry(attempts=2, first="1ms"))
    async def hopeless() -> None:
        raise OSError("no")

    @workflow
    async def give_up() -> str:
        try:
            await hopeless()
        except ActionFailed as failure:
            return f"{failure.type} after {failure.attempts}, an OSError: {isinstance(failure, OSError)}"
        return "?"

    assert await (await world.start(give_up)).result() == "OSError after 2, an OSError: True"


async def test_fatal_errors_are_not_retried_and_come_back_as_themselves(world: World) -> None:
    @action(retries=5, fatal=(CardDeclined,))
    async def pay() -> None:
        seen.append(1)
        raise CardDeclined("no funds", {"code": 51})

    @workflow
    async def shop() -> Any:
        try:
            await pay()
        except CardDeclined as declined:
            return [str(declined), declined.details]

    assert await (await world.start(shop)).result() == ["no funds", {"code": 51}]
    assert seen == [1]


async def test_no_retry_after_the_elapsed_limit(world: World) -> None:
    @action(retries=Retry(attempts=0, first="40ms", factor=1, jitter=0, elapsed="100ms"))
    async def slow_failure() -> None:
        seen.append(1)
        raise OSError("no")

    @workflow
    async def bounded() -> None:
        await slow_failure()

    with pytest.raises(ExecutionFailed, match="OSError: .*no"):
        await (await world.start(bounded)).result()
    assert 2 <= len(seen) <= 3


async def test_an_attempt_has_a_timeout(world: World) -> None:
    @action(timeout="30ms", retries=Retry(attempts=2, first="1ms"))
    async def hang() -> str:
        if action.attempt == 1:
            await asyncio.sleep(60)
        return "done"

    @workflow
    async def wait_for_it() -> str:
        return await hang()

    run = await world.start(wait_for_it)
    assert await run.result() == "done"
    tried = next(entry for entry in await run.log() if entry.type == "ActionAttempted")
    message = "hang took longer than 30ms"
    assert tried.data["error"] == {"type": "TimeoutError", "message": message, "kind": "transient"}


async def test_all_attempts_together_have_a_deadline(world: World) -> None:
    @action(deadline="80ms", retries=Retry(attempts=0, first="30ms", jitter=0, factor=1))
    async def never() -> None:
        seen.append(action.attempt)
        raise OSError("no")

    @workflow
    async def impatient() -> str:
        try:
            await never()
        except OSError:
            return "gave up"
        return "?"

    assert await (await world.start(impatient)).result() == "gave up"
    assert 2 <= len(seen) <= 3


async def test_a_timeout_is_a_timeout_error_in_the_workflow(world: World) -> None:
    @action(timeout="10ms")
    async def hang() -> None:
        await asyncio.sleep(60)

    @workflow
    async def hurry() -> str:
        try:
            await hang()
        except TimeoutError:
            return "too slow"
        return "?"

    assert await (await world.start(hurry)).result() == "too slow"


async def test_the_key_is_the_same_on_every_attempt_and_unique_per_call(world: World) -> None:
    @action(retries=Retry(attempts=3, first="1ms"))
    async def effect(name: str) -> None:
        seen.append((name, action.key, action.fence))
        if action.attempt < 2:
            raise OSError("again")

    @workflow
    async def twice() -> None:
        await effect("a")
        await effect("b")

    await (await world.start(twice, id="k1")).result()
    keys = {name: {key for n, key, _ in seen if n == name} for name in "ab"}
    assert [len(keys["a"]), len(keys["b"])] == [1, 1]
    assert keys["a"] != keys["b"]
    assert all("k1" in key for key in keys["a"] | keys["b"])
    assert all(fence > 0 for _, _, fence in seen)


async def test_silence_longer_than_the_heartbeat_fails_the_attempt(world: World) -> None:
    @action(heartbeat="50ms", retries=Retry(attempts=2, first="1ms"))
    async def work() -> Any:
        if action.attempt == 1:
            for n in range(5):
                action.heartbeat({"done": n})
                await asyncio.sleep(0.03)
            await asyncio.sleep(60)
        return action.progress

    @workflow
    async def watch() -> Any:
        return await work()

    run = await world.start(watch)
    found = await run.result()
    told = [entry.data["details"] for entry in await run.log() if entry.type == "ActionProgressed"]
    assert told and found == {"done": 4}, told
    tried = next(entry for entry in await run.log() if entry.type == "ActionAttempted")
    assert "no heartbeat for 50ms" in tried.data["error"]["message"]


@pytest.mark.parametrize("kind", ["here", "in a thread"])
async def test_the_next_attempt_goes_on_from_the_last_heartbeat(world: World, kind: str) -> None:
    def count(until: int) -> list[int]:
        begun = action.progress or 0
        for n in range(begun, until):
            seen.append(n)
            action.heartbeat(n + 1)
            assert action.progress == n + 1
            if n in (1, 2, 5):
                raise OSError("again")
        return seen

    @action(name="actions.counts", retries=Retry(attempts=4, first="1ms"))
    async def counts(until: int) -> list[int]:
        return count(until)

    @action(name="actions.counts_too", retries=Retry(attempts=4, first="1ms"))
    def counts_too(until: int) -> list[int]:
        return count(until)

    @workflow
    async def counting() -> list[int]:
        return await (counts if kind == "here" else counts_too)(8)

    assert await world.run(counting) == list(range(8))


async def test_a_cancelled_action_is_told(world: World) -> None:
    stopped = asyncio.Event()

    @action
    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    @workflow
    async def race() -> str:
        try:
            async with asyncio.timeout(0.05):
                await endless()
        except TimeoutError:
            return "cut"
        return "?"

    run = await world.start(race)
    assert await run.result() == "cut"
    async with asyncio.timeout(20):
        await stopped.wait()
    assert "ActionCancelled" in [entry.type for entry in await run.log()]


@pytest.mark.real_time
async def test_a_cancelled_thread_sees_it_at_its_next_heartbeat() -> None:
    ended = threading.Event()

    @action
    def grind() -> None:
        try:
            while True:
                action.heartbeat()
                ended.wait(0.005)
        except asyncio.CancelledError:
            ended.set()
            raise

    @workflow
    async def race() -> str:
        try:
            async with asyncio.timeout(0.05):
                await grind()
        except TimeoutError:
            return "cut"
        return "?"

    app = Perdure("memory://")
    async with app, app.working():
        assert await (await app.start(race)).result() == "cut"
        assert await asyncio.to_thread(ended.wait, 5)


@pytest.mark.parametrize(
    ("value", "why"), [(float("nan"), "NaN|nan"), ("\ud800", "surrogate"), (object(), "object"), ("\x00", "NUL|x00")]
)
async def test_a_result_that_cannot_be_stored_is_a_failure_of_the_action(world: World, value: Any, why: str) -> None:
    @action
    async def bad() -> Any:
        return value

    @workflow
    async def use() -> Any:
        return await bad()

    with pytest.raises(ExecutionFailed, match=why):
        await (await world.start(use)).result()


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_an_error_that_cannot_be_described_is_a_failure_of_the_action(world: World, kind: str) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("it says nothing")

    async def breaks() -> None:
        raise Mute

    def breaks_in_a_thread() -> None:
        raise Mute

    broken = action(breaks if kind == "coroutine" else breaks_in_a_thread, retries=0)

    @workflow
    async def use() -> None:
        await broken()

    with pytest.raises(ExecutionFailed, match="Mute"):
        await (await world.start(use)).result()


async def test_a_result_of_another_type_than_declared_is_a_failure_of_the_action(world: World) -> None:
    @action
    async def lies() -> int:
        return "seven"  # type: ignore[return-value]

    @workflow
    async def use() -> Any:
        return await lies()

    with pytest.raises(ExecutionFailed, match="lies returned something else than it declares"):
        await (await world.start(use)).result()


async def test_wrong_arguments_fail_at_the_call_like_any_function(world: World) -> None:
    @workflow
    async def wrong() -> Any:
        return await charge(1, 2, 3)  # type: ignore[call-arg]

    with pytest.raises(ExecutionFailed, match="TypeError"):
        await (await world.start(wrong)).result()


@action(name="actions.typed", retries=3)
async def typed(order: Order, times: int = 1) -> int:
    seen.append(order)
    return times


@action(name="actions.typed_thread", retries=3)
def typed_thread(order: Order, times: int = 1) -> int:
    seen.append(order)
    return times


@action(name="actions.typed_apart", retries=3, queue="actions-apart")
async def typed_apart(order: Order, times: int = 1) -> int:
    seen.append(order)
    return times


@pytest.mark.parametrize("takes", [typed, typed_thread, typed_apart], ids=["here", "in a thread", "apart"])
@pytest.mark.parametrize(
    ("args", "named"),
    [(["seven"], "order"), ([{"id": "x", "total": 1}], "order"), ([{"id": 1, "total": 1}, "two"], "times")],
)
async def test_arguments_of_a_wrong_type_are_refused_before_the_function_is_called(
    world: World, takes: Any, args: list[Any], named: str
) -> None:
    @workflow
    async def misuse(args: list[Any]) -> Any:
        return await takes(*args)

    run = await world.start(misuse, args)
    with pytest.raises(ExecutionFailed, match=f"InvalidValue: argument {named} of"):
        await run.result()
    assert seen == [] and not any(".typed" in key for key in world.attempts)
    assert await (await world.start(misuse, [{"id": 1, "total": 2}, 3])).result() == 3
    assert seen == [Order(1, 2.0)]


async def test_options_for_one_call(world: World) -> None:
    @action
    async def hang() -> None:
        await asyncio.sleep(60)

    @workflow
    async def hurry() -> str:
        try:
            await hang.options(timeout="10ms")()
        except TimeoutError:
            return "cut"
        return "?"

    assert await (await world.start(hurry)).result() == "cut"


def test_the_registry_describes_actions() -> None:
    @action(name="actions.described", version=4, description="Take the money.")
    async def described(order: Order, *, note: str = "") -> Receipt: ...  # type: ignore[empty-body]

    assert described in list(registry.actions()) and registry.action("actions.described") is described
    schema = described.schema()
    assert (schema["name"], schema["version"], schema["description"]) == ("actions.described", 4, "Take the money.")
    given, made = schema["parameters"], schema["result"]
    assert (list(given["properties"]), given["required"]) == (["order", "note"], ["order"])
    assert given["properties"]["order"] == {"$ref": "#/$defs/Order"}
    assert given["$defs"]["Order"]["properties"] == {"id": {"type": "integer"}, "total": {"type": "number"}}
    assert made["$defs"]["Receipt"]["required"] == ["order", "paid"]


@pytest.mark.real_time
async def test_a_workflow_that_names_an_action_that_is_not_there_lets_no_worker_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_workflows", {})

    @workflow(name="actions.misspelt")
    async def misspelt(order: Order) -> Receipt:
        return await chrage(order)  # type: ignore[name-defined]  # noqa: F821

    app = Perdure("memory://")
    async with app:
        with pytest.raises(UsageError, match=r"misspelt \(test_actions.py:\d+\) uses chrage, which nothing defines"):
            async with app.working():
                pass


@pytest.mark.real_time
async def test_a_machine_that_names_what_is_not_there_lets_no_worker_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_workflows", {})
    Machine(
        "actions-misspelt",
        initial="a",
        states={"a": State(on={"go": To("b", when=lambda data, event: allwed(data))}), "b": State(final=True)},  # type: ignore[name-defined]  # noqa: F821
    )
    app = Perdure("memory://")
    async with app:
        with pytest.raises(UsageError, match="uses allwed, which nothing defines"):
            async with app.working():
                pass


async def test_a_second_pass_over_a_step_takes_the_stored_result_and_a_sink_sees_one_effect_per_key(
    world: World,
) -> None:
    kept: dict[str, int] = {}

    @action(name="actions.draws")
    async def draws(step: str) -> int:
        seen.append((step, action.key))
        return kept.setdefault(action.key, len(kept) + 100 * len(seen))

    @workflow(name="actions.passes")
    async def passes() -> list[int]:
        drawn = [await draws("a"), await draws("a")]
        await asyncio.sleep(60)
        return [*drawn, await draws("b")]

    run = await world.start(passes)
    await run.until("waiting")
    first = list(kept.values())
    for _ in range(2):  # each worker passes the first two steps anew
        await world.crash()
        await world.advance("20s")
    assert await run.result() == [*first, kept[seen[-1][1]]]
    assert [step for step, _ in seen] == ["a", "a", "b"], "what has its result is not run again"
    assert len({key for _, key in seen}) == 3 == len(kept)


async def test_a_step_that_was_cut_off_is_run_again_under_its_key_and_an_idempotent_sink_sees_one_effect(
    world: World,
) -> None:
    kept: dict[tuple[str, str], int] = {}

    @action(name="actions.charges")
    async def charges(step: str) -> int:
        seen.append(action.key)
        return kept.setdefault((step, action.key), 7)

    @workflow(name="actions.cut_off")
    async def cut_off() -> int:
        return await charges("a") + await charges("b")

    def check(run: Any) -> None:
        assert sorted(step for step, _ in kept) == ["a", "b"]
        assert max(map(seen.count, seen)) <= 2, "there was one crash"
        kept.clear()
        seen.clear()

    report = await world.crash_everywhere(cut_off, check=check)
    assert report.status == "completed" and sorted(report.attempts.values()) == [2, 2]


async def test_an_action_reaches_the_application_it_runs_in(world: World) -> None:
    @action
    async def look() -> list[str]:
        return [head.workflow for head in (await action.app.find(tenant="default")).heads]

    @workflow
    async def looks() -> list[str]:
        return await look()

    assert await world.run(looks) == ["looks"]
