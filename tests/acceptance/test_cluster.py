"""Workers in processes of their own share PostgreSQL and Redis: any of them goes on where another one was."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import Perdure, Run
from perdure.core import events as ev
from perdure.errors import SettingsError
from tests.acceptance.cluster import CALM, Cluster, check, metrics, port_of, results, rows_of, types, until
from tests.acceptance.cluster_flows import (
    account,
    asks_here,
    asks_there,
    both,
    chain,
    film,
    put_off,
    rocket,
    told,
    watchful,
)
from tests.acceptance.conftest import Make

#: How a worker notices that it has lost an execution: its write is refused, or its lease is not renewed.
KINDS = ("stale", "lost")
ERRORS = "workflow_event_processing_errors_total"
#: Fields of events that differ from run to run: times, and who did it.
VARYING = ("began", "due", "at", "worker")


def test_two_clients_and_four_workers_finish_four_hundred_executions_with_events_and_timers(
    make: Make, redis_url: str
) -> None:
    cluster = make(redis_url, **CALM)
    workers = cluster.grow(4)

    async def main() -> None:
        async with cluster.app() as one, cluster.app() as other:
            half = [
                asyncio.gather(*(app.start(told, 2, 0.01, id=f"{name}-{n}") for n in range(200)))
                for name, app in (("one", one), ("other", other))
            ]
            runs = [run for runs in await asyncio.gather(*half) for run in runs]
            # Each client sends to what the other one has started.
            for number in (1, 2):
                sends = [other.send(run.id, "go", number, event_id=f"go-{number}") for run in runs[:200]]
                sends += [one.send(run.id, "go", number, event_id=f"go-{number}") for run in runs[200:]]
                await asyncio.gather(*sends)
            assert await results(runs) == [[1, 2]] * 400
            assert await check(cluster, runs) == 0, "nobody died, so no call was made again"

    asyncio.run(main())
    assert {call["pid"] for call in cluster.ledger.calls()} == {worker.pid for worker in workers}


def test_two_slow_actions_of_one_execution_run_on_two_workers_and_join(make: Make, redis_url: str) -> None:
    cluster = make(redis_url, concurrency=1, spill=0.3)
    cluster.grow(2)

    async def main() -> float:
        async with cluster.app() as app:
            began = time.monotonic()
            run = await app.start(both, 5.0)
            assert await run.result(timeout=20) == ["left", "right"]
            took = time.monotonic() - began
            await check(cluster, [run])
            return took

    took = asyncio.run(main())
    assert len({call["pid"] for call in cluster.ledger.calls()}) == 2
    assert took < 7, f"two actions of 5 s took {took:.1f} s"


@pytest.mark.parametrize("on", ["postgres and redis", "postgres", "sqlite"])
def test_a_worker_of_few_places_shares_what_waits_with_those_that_come_later(
    make: Make, redis_url: str, tmp_path: Path, on: str
) -> None:
    store = f"sqlite:///{tmp_path / 'shared.db'}" if on == "sqlite" else ""
    cluster = make(redis_url if on == "postgres and redis" else "", store=store, **CALM)
    cluster.grow(1)

    async def main() -> tuple[int, float]:
        async with cluster.app() as app:
            run = await app.start(film, 36, 1.0)
            await until(lambda: has(run, "ActionScheduled", 36), "all of them wait")
            few = ("--queues", "studio", "--concurrency", "2")
            await asyncio.to_thread(cluster.grow, 1, *few)
            await until(lambda: len(cluster.ledger.of(run)) >= 2, "the first has its hands full")
            await asyncio.to_thread(cluster.grow, 2, *few)
            left, began = 36 - len(cluster.ledger.of(run)), time.monotonic()
            assert await run.result(timeout=40) == 36
            took = time.monotonic() - began
            assert await check(cluster, [run]) == 0, "nobody died, so no call was made again"
            return left, took

    async def has(run: Run[Any], kind: str, count: int) -> bool:
        return (await types(run)).count(kind) == count

    left, took = asyncio.run(main())
    assert left >= 9, "the machine is too slow for this: nearly all was done when the others were ready"
    shares = Counter(call["pid"] for call in cluster.ledger.calls())
    assert shares.total() == 36
    assert len(shares) == 3 and min(shares.values()) >= left / 6, f"one has hoarded: {shares} of {left}"
    assert took < left / 2, f"{left} actions of 1 s in six places took {took:.1f} s, as long as in two"


@pytest.mark.parametrize("victim", ["the holder", "the other"])
def test_of_two_actions_on_two_workers_only_that_of_the_killed_one_runs_again(
    make: Make, redis_url: str, victim: str
) -> None:
    cluster = make(redis_url, concurrency=1, spill=0.1)
    workers = {worker.pid: worker for worker in cluster.grow(2)}

    async def main() -> None:
        async with cluster.app() as app:
            run = await app.start(both, 1.5)
            await until(lambda: len(cluster.ledger.of(run)) == 2, "both have begun")
            here, there = cluster.ledger.of(run)  # the first is with the holder, who had no place for the second
            assert here["pid"] != there["pid"]
            killed, other = (here, there) if victim == "the holder" else (there, here)
            workers[killed["pid"]].signal(signal.SIGKILL)
            assert await run.result(timeout=20) == ["left", "right"]
            assert await check(cluster, [run]) == 1
            [again] = cluster.ledger.of(run)[2:]
            assert (again["step"], again["key"], again["pid"]) == (killed["step"], killed["key"], other["pid"])

    asyncio.run(main())


def test_mail_for_an_execution_that_a_worker_holds_reaches_that_worker(make: Make, redis_url: str) -> None:
    cluster = make(redis_url, grace=10, probe=10)
    cluster.grow(3)

    async def main() -> None:
        async with cluster.app() as app:
            run = await app.start(watchful, 1.5)
            await until(lambda: bool(cluster.ledger.of(run)), "the action begins")
            await run.send("word", "hello")

            async def heard() -> bool:
                return "EventReceived" in await types(run)

            assert await until(heard, "the event is in the log") < 1, "it waited for its due time"
            assert await run.result(timeout=20) == ["hello"]

    asyncio.run(main())


def plain(rows: list[Any]) -> list[tuple[str, Any]]:
    """A log without what differs from run to run."""
    whole = [(ev.TYPES[row.type % 1000].__name__, json.loads(row.data)) for row in rows]
    return [(name, {field: value for field, value in data.items() if field not in VARYING}) for name, data in whole]


def test_steps_on_alternating_workers_give_the_same_log_as_on_one(make: Make) -> None:
    cluster = make(linger=0)
    ann, bob = cluster.grow(2)

    async def tell(run: Run[Any], number: int, last: bool) -> None:
        await run.send("go", number, id=f"go-{number}")
        if not last:
            await until(lambda: len(cluster.ledger.of(run)) == number + 1, f"step {number}")
            await run.until("waiting", timeout=20)

    async def main() -> None:
        async with cluster.app() as app:
            bob.signal(signal.SIGSTOP)
            alone = await app.start(told, 4, 0.0, id="alone")
            for number in range(4):
                await tell(alone, number, number == 3)
            assert await alone.result(timeout=20) == [0, 1, 2, 3]
            run = await app.start(told, 4, 0.0, id="by-turns")
            await run.until("waiting", timeout=20)
            for number in range(4):
                rests, works = (ann, bob) if number % 2 else (bob, ann)
                rests.signal(signal.SIGSTOP)
                works.signal(signal.SIGCONT)
                await tell(run, number, number == 3)
            assert await run.result(timeout=20) == [0, 1, 2, 3]
            assert plain(await rows_of(run)) == plain(await rows_of(alone))
            assert [call["pid"] for call in cluster.ledger.of(run)] == [ann.pid, bob.pid, ann.pid, bob.pid]
            assert await check(cluster, [run, alone]) == 0

    try:
        asyncio.run(main())
    finally:
        for worker in (ann, bob):
            worker.signal(signal.SIGCONT)


def test_a_circuit_that_one_worker_opens_is_open_at_the_other(cluster: Cluster) -> None:
    [here], [there] = cluster.grow(1), cluster.grow(1, "--queues", "there")

    async def main() -> None:
        async with cluster.app() as app, asyncio.timeout(30):
            for _ in range(3):  # so often it has to fail until it is left alone
                assert await (await app.start(asks_here)).result() == "External"
            assert await (await app.start(asks_here)).result() == "CircuitOpen"
            # At most two tries of its own are too few for the other to find out by itself.
            found = [await (await app.start(asks_there)).result() for _ in range(3)]
            assert found[-1] == "CircuitOpen", f"the other had not heard of it: {found}"
            assert {call["pid"] for call in cluster.ledger.calls()[3:]} <= {there.pid}
            Path(f"{cluster.ledger.path}.well").touch()

            async def well() -> bool:
                return await (await app.start(asks_here)).result() == "fine"

            asked = len(cluster.ledger.calls())
            await until(well, "the pause is over, and a probe finds it well")
            assert {call["pid"] for call in cluster.ledger.calls()[asked:]} == {here.pid}
            assert await (await app.start(asks_there)).result() == "fine", "the other has not heard that it is well"

    asyncio.run(main())


def test_what_is_paused_on_one_worker_goes_on_at_another_in_the_same_state(cluster: Cluster) -> None:
    [ann] = cluster.grow()

    async def main() -> None:
        async with cluster.app() as app:
            run = await app.start(chain, 12, 0.05)
            await until(lambda: len(cluster.ledger.of(run)) > 2, "some steps")
            await run.pause(reason="moving house")
            await run.until("paused", timeout=20)

            async def rests() -> bool:
                return (await run.head()).holder is None

            await until(rests, "what ran when it was paused has ended")
            before, waits = await run.state(), (await run.head()).waits
            ann.signal(signal.SIGKILL)
            await asyncio.to_thread(ann.end)
            [bob] = await asyncio.to_thread(cluster.grow)
            assert before.status == "paused"
            assert (await run.state(), (await run.head()).waits) == (before, waits)
            steps = len(cluster.ledger.of(run))
            await run.resume()
            assert await run.result(timeout=20) == 12
            assert [call["pid"] for call in cluster.ledger.of(run)] == [ann.pid] * steps + [bob.pid] * (12 - steps)
            assert await check(cluster, [run]) == 0

    asyncio.run(main())


def test_what_is_paused_until_a_time_resumes_then_once_and_not_earlier(cluster: Cluster) -> None:
    cluster.grow(2)

    async def late(app: Perdure, number: int) -> float:
        """Seconds between the time and the row that says so, both by the clock of the store."""
        run = await app.start(told, 1, 0.0, id=f"told-{number}")
        if number % 2:
            await run.pause()
            await run.until("paused", timeout=20)
        moment = datetime.fromtimestamp(await app.store.now() / 1e6, UTC) + timedelta(seconds=1.5)
        await (run.resume(at=moment) if number % 2 else run.pause(until=moment))
        await run.send("go", 7)
        assert await run.result(timeout=20) == [7]
        [resumed] = [entry for entry in await run.log() if entry.type == "Resumed"]
        await check(cluster, [run])
        return (resumed.at - moment).total_seconds()

    async def main() -> None:
        async with cluster.app() as app:
            first, *_, middle, _, _, _, _ = sorted(await asyncio.gather(*(late(app, number) for number in range(9))))
            assert first >= 0, f"it resumed {-first:.6f} s early"
            assert middle < 0.1, f"it resumed {middle:.3f} s late"

    asyncio.run(main())


def test_a_worker_that_was_stopped_past_its_lease_is_refused_when_it_comes_back(cluster: Cluster) -> None:
    [zombie] = cluster.grow(1, health="127.0.0.1:0", log_level="info")
    port = port_of(zombie)

    async def main() -> None:
        async with cluster.app() as app:
            runs = [await app.start(chain, 20, 0.05, id=f"chain-{n}") for n in range(5)]
            await until(lambda: all(cluster.ledger.of(run) for run in runs), "all have begun")
            zombie.signal(signal.SIGSTOP)
            await asyncio.to_thread(cluster.grow)
            assert await results(runs) == [20] * 5
            ends = [len(await rows_of(run)) for run in runs]
            zombie.signal(signal.SIGCONT)

            async def refused() -> bool:
                found = await metrics(port)
                errors = [found.get(f'{ERRORS}{{kind="{kind}"}}', 0) for kind in KINDS]
                return sum(errors) >= 1 and found["perdure_holds"] == 0

            await until(refused, "the zombie notices")
            assert [len(await rows_of(run)) for run in runs] == ends, "a zombie wrote into a log that had ended"
            await check(cluster, runs)
            for run in runs:
                assert "TakenOver" in await types(run)

    asyncio.run(main())


def test_what_a_killed_worker_held_is_taken_over_when_its_lease_is_over(cluster: Cluster) -> None:
    workers = {worker.pid: worker for worker in cluster.grow(2)}

    async def main() -> float:
        async with cluster.app() as app:
            run = await app.start(chain, 2, 0.5)
            await until(lambda: bool(cluster.ledger.of(run)), "it has begun")
            workers[cluster.ledger.of(run)[0]["pid"]].signal(signal.SIGKILL)
            killed = time.monotonic()
            await until(lambda: len({call["pid"] for call in cluster.ledger.of(run)}) == 2, "another takes over")
            took = time.monotonic() - killed
            assert await run.result(timeout=20) == 2
            assert await check(cluster, [run]) == 1, "the call that was under way is made again, and no other"
            return took

    took = asyncio.run(main())
    # A lease of 1 s, then a look at what is due: at the end of the lease, or half a second later.
    assert took < 4, f"the lease is 1 s, the take-over came after {took:.2f} s"


def test_a_slow_worker_is_not_robbed_while_it_renews(make: Make, redis_url: str) -> None:
    # Hints that are not confirmed within a tenth of what the action takes would go to somebody else.
    cluster = make(redis_url, lease=0.8, stream_idle=0.2)
    cluster.grow(2)

    async def main() -> None:
        async with cluster.app() as app:
            run = await app.start(chain, 1, 2.0)
            assert await run.result(timeout=20) == 1
            assert "TakenOver" not in await types(run)
            assert await check(cluster, [run]) == 0

    asyncio.run(main())


def test_of_two_actions_that_a_kill_cut_off_one_is_made_again_and_the_other_is_unknown(cluster: Cluster) -> None:
    workers = {worker.pid: worker for worker in cluster.grow(2)}

    async def main() -> None:
        async with cluster.app() as app:
            run = await app.start(rocket, 0.5)
            await until(lambda: len(cluster.ledger.of(run)) == 2, "both have had their effect")
            fuel, launched = sorted(cluster.ledger.of(run), key=lambda call: str(call["step"]))
            workers[fuel["pid"]].signal(signal.SIGKILL)
            assert await run.result(timeout=20) == "fuel, Unknown"
            [again] = cluster.ledger.of(run)[2:]
            assert (again["step"], again["key"]) == ("fuel", fuel["key"])
            assert again["pid"] != fuel["pid"] == launched["pid"]
            await check(cluster, [run])

    asyncio.run(main())


def test_a_try_that_was_put_off_is_counted_and_made_by_whoever_is_there_and_not_earlier(cluster: Cluster) -> None:
    [ann] = cluster.grow()

    async def main() -> None:
        async with cluster.app() as app:
            run = await app.start(put_off)

            async def failed() -> bool:
                return "ActionAttempted" in await types(run)

            await until(failed, "the first try has failed")
            ann.signal(signal.SIGKILL)
            [bob] = await asyncio.to_thread(cluster.grow)
            assert await run.result(timeout=20) == 2, "another process knows that it is the second try"
            first, second = cluster.ledger.of(run)
            assert [(first["pid"], first["attempt"]), (second["pid"], second["attempt"])] == [
                (ann.pid, 1),
                (bob.pid, 2),
            ]
            [tried] = [entry for entry in await run.log() if entry.type == "ActionAttempted"]
            delay = tried.data["due"] / 1e6 - tried.at.timestamp()
            assert delay == pytest.approx(1, abs=0.05)
            # Workers and PostgreSQL are on one host here, so their clocks are one.
            assert second["at"] >= tried.data["due"] / 1e6, "it was made before its time"
            assert await check(cluster, [run]) == 1

    asyncio.run(main())


def test_a_worker_of_another_group_ends_at_once_and_says_why(cluster: Cluster) -> None:
    cluster.grow()
    odd = cluster.process("worker", str(cluster.flows), stream_group="others")
    assert odd.end() not in (0, None)
    assert any("are read by group 'workers'" in line and "give all processes the same" in line for line in odd.seen)

    async def client() -> None:
        with pytest.raises(SettingsError, match="group 'others'"):
            await cluster.app(stream_group="others").open()

    asyncio.run(client())


def test_a_worker_stopped_inside_its_transaction_holds_others_up_for_the_idle_timeout_and_cannot_commit(
    make: Make, redis_url: str, postgres: str
) -> None:
    cluster = make(redis_url, store=f"{postgres}&idle_timeout=1")
    [zombie] = cluster.grow(1, health="127.0.0.1:0", log_level="info")
    port = port_of(zombie)

    async def main() -> None:
        connection = await asyncpg.connect(postgres.partition("?")[0])
        entries = f'"{postgres.partition("schema=")[2].partition("&")[0]}".entries'
        await connection.execute(f"create table {entries} (key text primary key, pid integer)")
        async with cluster.app() as app:
            run = await app.start(account, 0.5)
            await until(lambda: bool(cluster.ledger.of(run)), "it is inside its transaction")
            zombie.signal(signal.SIGSTOP)
            [other] = await asyncio.to_thread(cluster.grow)
            took = await until(lambda: len(cluster.ledger.of(run)) == 2, "another is let in")
            assert took < 5, f"lease and idle timeout are 1 s each, another was let in after {took:.1f} s"
            zombie.signal(signal.SIGCONT)
            assert await run.result(timeout=20) == other.pid

            async def given_up() -> bool:
                found = await metrics(port)
                errors = [value for name, value in found.items() if name.startswith(f"{ERRORS}{{")]
                return sum(errors) >= 1 and found["perdure_holds"] == found["perdure_attempts_running"] == 0

            await until(given_up, "the zombie has noticed")
            assert (await metrics(port)).get('perdure_actions_total{outcome="ok"}', 0) == 0
            assert [tuple(row) for row in await connection.fetch(f"select pid from {entries}")] == [(other.pid,)]
            assert (await types(run)).count("ActionSettled") == 1
            await check(cluster, [run])
            # It goes on with other work.
            other.signal(signal.SIGTERM)
            assert await asyncio.to_thread(other.end) == 0
            later = await app.start(account, 0.0)
            assert await later.result(timeout=20) == zombie.pid
        await connection.close()

    asyncio.run(main())
