"""What a worker counts: each number changes by exactly what happened."""

from __future__ import annotations

import asyncio
import re
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from perdure import ActionFailed, ExecutionCancelled, ExecutionFailed, ExecutionStuck, Perdure, Retry, action, workflow
from perdure.core.records import Backlog, Hint, Outcome
from perdure.errors import OutcomeUnknown, StoreUnavailable
from perdure.runtime.telemetry.metrics import CAUSES, OUTCOMES, TROUBLES, Counter, Histogram, Metrics, QueueGauge
from perdure.runtime.work.worker import Worker
from perdure.stores.memory import MemoryStore
from perdure.streams.local import LocalStream
from perdure.streams.memory import MemoryStream
from perdure.testing import World
from tests.docs.conftest import ROOT
from tests.runtime.test_trouble import TroubledStore, five_effects


@action(retries=Retry(attempts=3, first="1s", jitter=0))
async def third_time() -> int:
    if action.attempt < 3:
        raise OSError("not yet")
    return action.attempt


@action
async def hopeless() -> None:
    raise ValueError("never")


@action
async def endless() -> None:
    await asyncio.Event().wait()


@workflow
async def metrics_script() -> int:
    try:
        await hopeless()
    except ActionFailed:
        pass
    await asyncio.sleep(5)
    return await third_time()


@workflow
async def metrics_fails() -> None:
    raise ValueError("no")


@workflow
async def metrics_endless() -> None:
    await endless()


@workflow
async def metrics_never_wakes() -> None:
    await asyncio.get_running_loop().create_future()


@workflow(queue="elsewhere")
async def metrics_elsewhere() -> None: ...


def worker_of(world: World) -> Worker:
    worker = world.workers[0].app.worker
    assert worker is not None
    return worker


def counted(counter: Counter) -> dict[str, float]:
    """What is not zero, by the text of its label."""
    return {next(iter(labels.values()), ""): value for _, labels, value in counter.samples() if value}


async def test_a_scripted_run_is_counted_exactly(world: World) -> None:
    metrics = worker_of(world).metrics
    run = await world.start(metrics_script)
    assert await run.result() == 3
    await world.settle()
    # Two failed tries in log and count; the timer fired once, on time; the replay after each turn is counted, too.
    assert counted(metrics.actions) == {"failed": 1, "retried": 2, "ok": 1}
    assert counted(metrics.events) == dict(
        Tally(entry.type for entry in await run.log() if entry.type not in ("Started", "TakenOver"))
    )
    assert counted(metrics.ended) == {"completed": 1}
    assert metrics.lateness.count == 1
    assert metrics.lateness.total < 0.01
    assert metrics.batch.count == metrics.commit.count == metrics.duration.count == metrics.batch.total
    assert counted(metrics.hints) == {"": 2}  # that it began, and the news that it ended
    assert counted(metrics.errors) == counted(metrics.stuck) == counted(metrics.takeovers) == {}
    assert metrics.replay.count >= 1


async def test_every_end_has_its_status(world: World) -> None:
    metrics = worker_of(world).metrics
    failing = await world.start(metrics_fails)
    with pytest.raises(ExecutionFailed):
        await failing.result()
    endless_one = await world.start(metrics_endless)
    await world.settle()
    assert (metrics.attempts.read(), metrics.holds.read()) == (1, 1)
    await endless_one.cancel("enough")
    with pytest.raises(ExecutionCancelled):
        await endless_one.result()
    await world.settle()
    assert counted(metrics.ended) == {"failed": 1, "cancelled": 1}
    assert counted(metrics.actions) == {"cancelled": 1}
    assert (metrics.attempts.read(), metrics.holds.read()) == (0, 0)


@pytest.mark.world(replay_always=False)
async def test_residents_are_those_held_and_those_kept(world: World) -> None:
    metrics = worker_of(world).metrics

    @workflow
    async def sleeps() -> None:
        await asyncio.sleep(3600)

    await world.start(sleeps)
    await world.start(metrics_endless)
    await world.settle()
    assert (metrics.residents.read(), metrics.holds.read()) == (2, 1)


@pytest.mark.world(check_at_end=False)
async def test_what_becomes_stuck_is_counted_by_its_cause_and_once(world: World) -> None:
    metrics = worker_of(world).metrics
    run = await world.start(metrics_never_wakes)
    with pytest.raises(ExecutionStuck):
        await run.result()
    await run.send("anything", 1)  # it is looked at, and is still stuck
    await world.settle()
    assert counted(metrics.stuck) == {"never-wakes": 1}


async def test_a_take_over_is_counted_by_who_takes(world: World) -> None:
    run = await world.start(metrics_endless)
    await world.settle()
    await world.crash()
    metrics = worker_of(world).metrics
    await world.advance("1m")
    assert counted(metrics.takeovers) == {"": 1}
    assert (await run.head()).status == "open"


@pytest.mark.parametrize(("error", "kind"), [(StoreUnavailable, "store"), (OutcomeUnknown, "unknown")])
def test_trouble_with_the_store_is_counted_by_its_kind(tmp_path: Path, error: type[Exception], kind: str) -> None:
    async def trouble(n: int, write: Callable[[], Awaitable[list[Outcome]]]) -> list[Outcome]:
        if n == 1:
            raise error("for once")
        return await write()

    async def main() -> None:
        path = str(tmp_path / "m.db")
        app = Perdure(TroubledStore(path, trouble), stream=LocalStream(path))
        async with asyncio.timeout(20), app, app.working() as worker:
            with pytest.raises(ExecutionFailed):
                await (await app.start(metrics_fails)).result()
            assert counted(worker.metrics.errors) == {kind: 1}

    asyncio.run(main())


def test_a_stream_that_breaks_is_counted() -> None:
    class Breaking(MemoryStream):
        broken = 2

        async def receive(self, limit: int) -> Sequence[Hint]:
            if self.broken:
                self.broken -= 1
                raise ConnectionError("gone")
            return await super().receive(limit)

    async def main() -> None:
        app = Perdure(MemoryStore(), stream=Breaking())
        async with asyncio.timeout(20), app, app.working() as worker:
            with pytest.raises(ExecutionFailed):
                await (await app.start(metrics_fails)).result()
            while counted(worker.metrics.subscription_errors) != {"": 2}:
                await asyncio.sleep(0.01)
            assert counted(worker.metrics.errors) == {}

    asyncio.run(main())


FAMILIES = (
    "workflow_events_processed_total",
    "workflow_event_processing_duration_seconds_count",
    "workflow_event_processing_errors_total",
    "workflow_subscription_errors_total",
    "workflow_event_dlq_total",
)


async def scraped(port: int) -> dict[str, float]:
    """The families above, as Prometheus would read them."""
    from tests.runtime.test_health import ask

    code, text = await ask(port, "/metrics")
    assert code == 200
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(FAMILIES)]
    return {name: float(value) for name, _, value in lines}


def test_a_script_of_all_troubles_changes_what_is_scraped_by_exactly_what_happened(tmp_path: Path) -> None:
    written = 0

    async def trouble(n: int, write: Callable[[], Awaitable[list[Outcome]]]) -> list[Outcome]:
        nonlocal written
        if n == 2:
            raise StoreUnavailable("for once")
        answer = await write()
        written += 1
        return answer

    class Breaking(LocalStream):
        broken = False

        async def receive(self, limit: int) -> Sequence[Hint]:
            hints = await super().receive(limit)
            if self.broken:
                self.broken = False
                raise ConnectionError("gone")
            return hints

    async def main() -> None:
        path = str(tmp_path / "m.db")
        stream = Breaking(path)
        app = Perdure(TroubledStore(path, trouble), stream=stream, health="127.0.0.1:0", grace=0.2, probe=0.2)
        async with asyncio.timeout(20), app, app.working() as worker:
            assert worker._leases is not None and worker._leases.port is not None
            before = await scraped(worker._leases.port)
            assert set(before.values()) == {0}
            good = await app.start(five_effects)
            assert await good.result() == 5
            bad = await app.start(metrics_never_wakes)
            with pytest.raises(ExecutionStuck):
                await bad.result()
            stream.broken = True
            await bad.send("anything")
            await good.until("completed")
            while (await bad.head()).mail or not worker.metrics.subscription_errors.counts[""]:
                await asyncio.sleep(0.01)
            await bad.until("stuck")
            events = Tally(entry.type for entry in [*await good.log(1), *await bad.log(1)])
            assert (events["ActionSettled"], events["Completed"], events["Stuck"]) == (5, 1, 1)
            after = await scraped(worker._leases.port)
            assert {name: value - before[name] for name, value in after.items() if value != before[name]} == {
                **{f'workflow_events_processed_total{{type="{type}"}}': count for type, count in events.items()},
                "workflow_event_processing_duration_seconds_count": written,
                'workflow_event_processing_errors_total{kind="store"}': 1,
                "workflow_subscription_errors_total": 1,
                'workflow_event_dlq_total{cause="never-wakes"}': 1,
            }

    asyncio.run(main())


async def test_the_backlog_is_what_the_store_says(world: World) -> None:
    metrics = Metrics()
    metrics.waiting([Backlog("mail", 7, 1_000_000)], 3_500_000)
    assert 'perdure_backlog{queue="mail"} 7\n' in metrics.text()
    assert 'perdure_backlog_oldest_seconds{queue="mail"} 2.5\n' in metrics.text()
    metrics.waiting([], 0)
    assert "perdure_backlog{" not in metrics.text()


def test_the_backlog_of_external_tasks_names_no_tenant() -> None:
    metrics = Metrics()
    metrics.waiting([Backlog("external:acme/gpu", 7, 3_000_000), Backlog("external:mill/gpu", 2, 1_000_000)], 3_500_000)
    assert 'perdure_backlog{queue="external:gpu"} 9\n' in metrics.text()
    assert 'perdure_backlog_oldest_seconds{queue="external:gpu"} 2.5\n' in metrics.text()
    assert "acme" not in metrics.text() and "mill" not in metrics.text()


def test_a_scrape_shows_a_queue_that_nobody_serves(tmp_path: Path) -> None:
    from tests.runtime.test_health import ask

    async def main() -> None:
        app = Perdure(f"sqlite:///{tmp_path / 'm.db'}", health="127.0.0.1:0", grace=0.01)
        async with asyncio.timeout(20), app:
            await app.start(metrics_elsewhere)
            await asyncio.sleep(0.02)
            async with app.working(["default"]) as worker:
                assert worker._leases is not None and worker._leases.port is not None
                code, text = await ask(worker._leases.port, "/metrics")
                assert code == 200
                assert 'perdure_backlog{queue="elsewhere"} 1\n' in text

    asyncio.run(main())


# --- the text --------------------------------------------------------------------------------------------------------

LINE = re.compile(
    r"# (HELP|TYPE) [a-z_]+ .+"
    r'|[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"\})? (\d+(\.\d+)?(e-\d+)?|\+Inf)'
)


def test_every_line_is_in_the_format() -> None:
    metrics = Metrics()
    metrics.duration.observe(0.000012)
    metrics.waiting([Backlog('a "queue"\nwith \\', 1, 0)], 1)
    text = metrics.text()
    assert text.endswith("\n")
    for line in text.splitlines():
        assert LINE.fullmatch(line), line


def test_buckets_add_up() -> None:
    histogram = Histogram("x_seconds", "x", (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(value)
    assert [value for _, _, value in histogram.samples()] == [2, 3, 4, 6.0, 4]


def test_labels_are_bounded() -> None:
    counter = Counter("x_total", "x", "kind", ("a",))
    for value in ("a", "b", "c", "d"):
        counter.add(value)
    assert counted(counter) == {"a": 1, "other": 3}
    gauge = QueueGauge("x", "x")
    gauge.values = {f"q{n}": 1.0 for n in range(1000)}
    assert len(gauge.samples()) == 100


def test_the_page_lists_every_metric() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    worker = page.partition("## The API")[0]
    rows = [
        f"| `{one.name}` | {one.kind} | {f'`{one.label}`' if one.label else ''} | {one.meaning} |"
        for one in Metrics().all()
    ]
    assert re.findall(r"^\| `\w+` \| (?:counter|gauge|histogram) .*$", worker, re.MULTILINE) == rows
    for label, values in (("kind", TROUBLES), ("cause", CAUSES), ("outcome", OUTCOMES)):
        [row] = re.findall(rf"^\| `{label}` \| (.*) \|$", page, re.MULTILINE)
        assert tuple(re.findall(r"`([a-z-]+)`", row)) == values
