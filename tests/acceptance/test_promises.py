"""What was promised about running workflows asynchronously on many workers, and the test that shows each of it.

Of the client of the stream:

| promise | shown by |
|---|---|
| events are published to the stream | src/perdure/testing/contract/streams.py::test_a_hint_is_received |
| messages are read from the stream | src/perdure/testing/contract/streams.py::test_a_hint_wakes_who_waits |
| pending messages are claimed | tests/streams/test_redis.py::test_what_a_dead_worker_was_given_goes_to_another_one |
| a message is acknowledged | tests/streams/test_redis.py::test_an_acked_hint_leaves_nothing_behind |
| and comes again if it is not | tests/streams/test_redis.py::test_a_hint_that_is_not_acked_comes_again |

Of the runtime:

| promise | shown by |
|---|---|
| an event is enqueued | src/perdure/testing/contract/sending.py::test_mail_is_accepted_into_the_mailbox |
| an event is enqueued and published | tests/streams/test_redis_workers.py::test_hints_alone_bring_the_work_of_a_client_to_all_workers |
| an event is validated | tests/runtime/test_flows.py::test_declared_events_are_checked_when_they_are_sent |
| an event is handled once | src/perdure/testing/contract/sending.py::test_mail_that_was_folded_is_a_duplicate |
| an event is processed | tests/runtime/test_flows.py::test_an_event_wakes_a_waiting_workflow |
| a queued event is replayed and processed | tests/acceptance/test_cluster.py::test_steps_on_alternating_workers_give_the_same_log_as_on_one |
| from submission to processing nobody waits | tests/acceptance/test_cluster_load.py::test_what_is_accepted_while_no_worker_runs_is_done_once_when_they_come |

Of locks:

| promise | shown by |
|---|---|
| a lock is acquired | src/perdure/testing/contract/locks.py::test_a_lock_has_one_holder |
| a lock is acquired by one process | tests/acceptance/test_cluster_load.py::test_a_lock_on_postgres_is_held_by_one_process_at_a_time |
| a lock is released | src/perdure/testing/contract/locks.py::test_a_lock_that_was_dropped_is_free |
| a lock is released by its holder alone | tests/acceptance/test_cluster_load.py::test_nobody_releases_a_lock_of_somebody_else |
| a lock is extended | tests/runtime/test_locks.py::test_extending_lengthens_the_lease |
| many acquire it at the same time | src/perdure/testing/contract/locks.py::test_of_many_who_want_it_at_once_one_gets_it |
| a dead holder's lock is taken over | tests/acceptance/test_cluster_load.py::test_a_lock_of_a_killed_process_is_taken_over_with_a_higher_fence |

From end to end:

| promise | shown by |
|---|---|
| whole workflows are processed by way of Redis | tests/acceptance/test_cluster.py::test_two_clients_and_four_workers_finish_four_hundred_executions_with_events_and_timers |
| a workflow resumes after an interruption | tests/acceptance/test_cluster_kill.py::test_killed_at_every_step_the_errand_is_still_run_right |
| workflows are processed in parallel | tests/acceptance/test_cluster.py::test_two_slow_actions_of_one_execution_run_on_two_workers_and_join |
| an event is processed once | tests/acceptance/test_promises.py::test_what_is_submitted_many_times_happens_once |
| whole workflows run asynchronously | tests/acceptance/test_cluster_load.py::test_ten_thousand_timers_of_one_moment_fire_once_each_and_none_early |
| the system survives restarts of workers | tests/acceptance/test_cluster_load.py::test_a_rolling_restart_under_load_loses_nothing_and_drains |
| a workflow resumes after a restart of everything | tests/acceptance/test_promises.py::test_executions_go_on_after_everything_was_shut_down |

Of workers:

| promise | shown by |
|---|---|
| a worker starts and shuts down | tests/runtime/test_supervisor.py::test_all_drain_at_the_first_signal_and_the_code_is_0 |
| a worker that shuts down hands over | tests/cli/test_work.py::test_a_worker_that_is_told_to_stop_finishes_and_another_goes_on_at_once |
| a worker processes messages of the stream | tests/acceptance/test_cluster.py::test_mail_for_an_execution_that_a_worker_holds_reaches_that_worker |
| a worker handles errors of actions | tests/runtime/test_actions.py::test_failed_tries_are_repeated_with_back_off |
| a worker handles what takes workers down | tests/runtime/test_supervisor.py::test_what_takes_its_workers_down_gets_stuck_and_the_others_go_on |
| a worker handles the failure of its servers | tests/acceptance/test_cluster_trouble.py::test_a_crash_of_postgres_under_load_is_survived_once_for_each |
| a worker claims pending messages | tests/streams/test_redis.py::test_what_a_dead_worker_was_given_goes_to_another_one |
| workers are coordinated by locks | tests/acceptance/test_promises.py::test_workers_share_what_only_one_may_use_by_a_lock |
| workers recover from failure, and reclaim | tests/acceptance/test_cluster.py::test_what_a_killed_worker_held_is_taken_over_when_its_lease_is_over |

Of all of it at once, restarts, parallel work, repeated calls, rivals for a lock, deaths and take-overs:

| promise | shown by |
|---|---|
| in the simulation, many faults at once | tests/testing/test_simulate.py::test_the_engine_keeps_its_promises_under_faults |
| in the simulation, each kind of fault alone | tests/testing/test_simulate.py::test_the_engine_survives_each_kind_of_fault_alone |
| in the simulation, rivals for one lock | tests/testing/test_simulate.py::test_rivals_for_one_lock_are_let_in_one_after_the_other_whatever_fails |
| at real servers and processes | tests/acceptance/test_chaos.py::test_every_promise_is_kept_under |
"""  # noqa: E501 - a table has long lines

from __future__ import annotations

import ast
import asyncio
import re

import pytest

from perdure import EventConflict, Run
from perdure.testing.servers.postgres import PostgresServer
from perdure.testing.servers.valkey import ValkeyServer
from tests.acceptance.cluster import CALM, ROOT, Cluster, check, results, until
from tests.acceptance.cluster_flows import chain, page, told
from tests.acceptance.conftest import Make

NAMED = re.findall(r"\| (\S+\.py)::(test_\w+) \|", __doc__ or "")


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_the_test_that_shows_a_promise_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in [node.name for node in ast.walk(tree) if isinstance(node, functions)]


def test_every_promise_names_a_test() -> None:
    lines = [line for line in (__doc__ or "").splitlines() if line.startswith("| ") and "shown by" not in line]
    assert len(lines) == len(NAMED) > 30


def test_what_is_submitted_many_times_happens_once(make: Make, redis_url: str) -> None:
    cluster = make(redis_url, **CALM)
    cluster.grow(2)

    async def main() -> None:
        async with cluster.app() as one, cluster.app() as other:
            # Two clients, each of which repeats everything: as after a lost answer.
            starts = [app.start(told, 2, 0.0, id=f"told-{n}") for n in range(20) for app in (one, other, one)]
            runs: list[Run[list[int]]] = (await asyncio.gather(*starts))[::3]
            for number in (1, 2):
                sends = [
                    app.send(run.id, "go", number, event_id=f"go-{number}") for run in runs for app in (one, other)
                ]
                await asyncio.gather(*sends, *(run.send("go", number, id=f"go-{number}") for run in runs))
            assert await results(runs) == [[1, 2]] * 20
            assert await check(cluster, runs) == 0
            with pytest.raises(EventConflict):
                await runs[0].send("go", 3, id="go-2")
            for run in runs:
                await other.send(run.id, "go", 2, event_id="go-2")  # also when it has long ended

    asyncio.run(main())
    assert len(cluster.ledger.calls()) == 40


def test_workers_share_what_only_one_may_use_by_a_lock(cluster: Cluster) -> None:
    cluster.grow(3)

    async def main() -> None:
        async with cluster.app() as app:
            runs = [await app.start(page, 0.05, id=f"page-{n}") for n in range(9)]
            await results(runs)
            await check(cluster, runs)

    asyncio.run(main())
    calls = cluster.ledger.calls()
    pairs = list(zip(calls[::2], calls[1::2], strict=True))
    assert all((a["execution"], a["step"], b["step"]) == (b["execution"], "in", "out") for a, b in pairs), "two at once"
    fences = [call["lock"] for call in calls[::2]]
    assert fences == sorted(set(fences))
    assert len({call["pid"] for call in calls}) > 1, "one worker did it all"


def test_executions_go_on_after_everything_was_shut_down(make: Make) -> None:
    with PostgresServer(private=True) as postgres, ValkeyServer() as redis:
        cluster = make(redis.url, store=postgres.address(schema="whole"), **CALM)
        crew = cluster.grow(2)

        async def begin() -> None:
            async with cluster.app() as app:
                for n in range(10):
                    await app.start(told, 1, 0.0, id=f"told-{n}")
                    await app.start(chain, 40, 0.02, id=f"chain-{n}")
                await until(lambda: len(cluster.ledger.calls()) > 30, "they are under way")

        async def finish() -> None:
            async with cluster.app() as app:
                events = [app.get(f"told-{n}") for n in range(10)]
                chains = [app.get(f"chain-{n}") for n in range(10)]
                await asyncio.gather(*(run.send("go", 1) for run in events))
                assert await results(chains) == [40] * 10
                assert await results(events) == [[1]] * 10
                assert await check(cluster, [*events, *chains]) == 0, "all had drained, so no call was made again"

        asyncio.run(begin())
        assert [worker.stop() for worker in crew] == [0, 0]
        before = len(cluster.ledger.calls())
        redis.kill()
        postgres.restart("fast")
        redis.start()
        cluster.grow(2)
        asyncio.run(finish())
        assert before < len(cluster.ledger.calls()) == 410
