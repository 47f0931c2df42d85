"""Several processes that serve the API over one PostgreSQL, with Redis and without; one dies after its answer."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from random import Random
from typing import Any

import httpx
import pytest
from msgspec import structs

from perdure import Client, ExecutionFailed, Run
from perdure.core import events as ev
from tests.acceptance.cluster import Cluster, check, results, rows_of, until
from tests.acceptance.cluster_flows import chain, gives_up, told
from tests.acceptance.conftest import Make
from tests.acceptance.linear import Deed, Standing, linear


@pytest.fixture(params=["redis", "postgres"])
def fleet(request: pytest.FixtureRequest, make: Make, redis_url: str) -> Cluster:
    return make(redis_url if request.param == "redis" else "")


async def _received(run: Any) -> list[ev.EventReceived]:
    return [event for row in await rows_of(run) if isinstance(event := ev.read(row), ev.EventReceived)]


def test_what_was_accepted_is_applied_once_though_the_process_that_accepted_it_is_killed(fleet: Cluster) -> None:
    (victim, first), (_, second) = fleet.serve(2)

    async def main() -> None:
        async with httpx.AsyncClient(base_url=first) as doomed, Client(second) as client, fleet.app() as app:
            runs = [await client.start(told, 2, id=f"told-{n}") for n in range(20)]
            for run in runs:
                body = {"name": "go", "payload": 1, "id": "go-1"}
                answer = await doomed.post(f"/v1/executions/{run.id}/events", json=body)
                assert (answer.status_code, answer.json()["id"]) == (202, "go-1")
                assert answer.headers["location"] == f"/v1/executions/{run.id}/events/go-1"
            victim.signal(signal.SIGKILL)
            fleet.grow(2)
            for run in runs[::2]:
                # A caller that has not seen the answer sends it again, to whoever answers; the others need not.
                assert await run.send("go", 1, id="go-1") == "go-1"
            for run in runs:
                await run.send("go", 2, id="go-2")
            async with asyncio.timeout(60):
                assert [await run.result() for run in runs] == [[1, 2]] * len(runs)
            inside = [app.get(run.id) for run in runs]
            for one in inside:
                assert [event.id for event in await _received(one)] == ["go-1", "go-2"]
            await check(fleet, inside)

    asyncio.run(main())


def test_a_thousand_events_are_accepted_while_no_worker_lives_and_none_is_lost_or_doubled(fleet: Cluster) -> None:
    addresses = [address for _, address in fleet.serve(2)]

    async def main() -> None:
        async with fleet.app() as app, httpx.AsyncClient(timeout=30) as client:
            runs = [await app.start(told, 50, 0.0, id=f"told-{n}") for n in range(20)]
            slots = asyncio.Semaphore(40)

            async def submit(number: int) -> int:
                place = f"{addresses[number % 2]}/v1/executions/told-{number % 20}/events"
                async with slots:
                    body = {"name": "go", "payload": number, "id": f"go-{number}"}
                    return (await client.post(place, json=body)).status_code

            answers = await asyncio.gather(*(submit(number) for number in range(1000)))
            assert Counter(answers) == {202: 1000}
            fleet.grow(2)
            heard = await results(runs, 90)
            assert sorted(number for one in heard for number in one) == list(range(1000))
            for run in runs:
                assert len(await _received(run)) == 50

    asyncio.run(main())


def test_one_idempotency_key_is_one_event_whoever_is_asked(fleet: Cluster) -> None:
    addresses = [address for _, address in fleet.serve(2)]
    fleet.grow(1)

    async def main() -> None:
        async with fleet.app() as app, httpx.AsyncClient(timeout=30) as client:
            run = await app.start(told, 1, id="told-1")

            async def submit(number: int) -> httpx.Response:
                headers = {"idempotency-key": "just once"}
                place = f"{addresses[number % 2]}/v1/executions/told-1/events"
                return await client.post(place, json={"name": "go", "payload": 7}, headers=headers)

            answers = await asyncio.gather(*(submit(number) for number in range(50)))
            assert {answer.status_code for answer in answers} == {202}
            assert len({answer.json()["id"] for answer in answers}) == 1
            assert await run.result("20s") == [7]
            assert len(await _received(run)) == 1
            assert (await submit(50)).json() == answers[0].json()  # also after its end
            headers = {"idempotency-key": "just once"}
            place = f"{addresses[0]}/v1/executions/told-1/events"
            other = await client.post(place, json={"name": "go", "payload": 8}, headers=headers)
            assert other.status_code == 422

    asyncio.run(main())


VERBS = ("pause", "pause", "pause", "resume", "resume", "resume", "retry", "cancel")


def test_what_many_ask_of_one_execution_at_once_of_two_processes_happens_in_one_order(cluster: Cluster) -> None:
    addresses = [address for _, address in cluster.serve(2)]
    cluster.grow(2, linger=0)

    async def ask(client: httpx.AsyncClient, execution: str, caller: int, deeds: dict[str, Deed]) -> None:
        dice = Random(f"{execution} {caller}")
        for number in range(4):
            await asyncio.sleep(dice.uniform(0, 0.05))
            verb, name, began = dice.choice(VERBS), f"{caller}-{number}", time.monotonic()
            place = f"{addresses[(caller + number) % 2]}/v1/executions/{execution}/{verb}"
            answer = await client.post(place, json={"reason": name})
            assert answer.status_code in (202, 409), answer.text
            deeds[name] = Deed(verb, began, time.monotonic(), answer.status_code)

    async def taken(run: Run[Any]) -> bool:
        return not (await run.head()).mail

    async def judged(run: Run[Any], deeds: dict[str, Deed]) -> Standing:
        """How it stands, and which rows came of what was asked."""
        await until(lambda: taken(run), "all of it was looked at")
        if any(deed.verb == "cancel" and deed.code == 202 for deed in deeds.values()):
            await run.until("cancelled", timeout=20)
        for row in await rows_of(run):
            asked = ev.read(row)
            if isinstance(asked, ev.Paused | ev.Resumed | ev.CancelRequested) and asked.reason in deeds:
                assert not deeds[asked.reason].version, f"{asked.reason} is there twice"
                deeds[asked.reason] = structs.replace(deeds[asked.reason], version=row.version)
        status = (await run.head()).status
        return "ended" if status == "cancelled" else "paused" if status == "paused" else "open"

    async def main() -> None:
        async with cluster.app() as app, httpx.AsyncClient(timeout=30) as client:
            runs = [await app.start(chain, 10_000, 0.01, id=f"chain-{n}") for n in range(12)]
            told: list[dict[str, Deed]] = [{} for _ in runs]
            asked = [(run.id, caller, told[n]) for n, run in enumerate(runs) for caller in range(4)]
            await asyncio.gather(*(ask(client, *one) for one in asked))
            ends = set()
            for run, deeds in zip(runs, told, strict=True):
                last = await judged(run, deeds)
                assert linear(list(deeds.values()), last), f"{run.id} is {last} after {deeds}"
                ends.add(last)
            await check(cluster, runs)
            assert len(ends) > 1, "all of them ended alike"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("deeds", "last"),
    [
        ([Deed("pause", 0, 1, 202, 5), Deed("resume", 2, 3, 202, 4)], "paused"),  # in the log the other way round
        ([Deed("pause", 0, 1, 202)], "open"),  # accepted, and nothing came of it
        ([Deed("cancel", 0, 1, 202, 4), Deed("pause", 2, 3, 202, 5)], "ended"),
        ([Deed("pause", 0, 1, 409), Deed("cancel", 2, 3, 202, 4)], "ended"),  # refused before its time
        ([Deed("pause", 0, 1, 202, 4)], "open"),  # forgotten
        ([Deed("cancel", 0, 1, 202, 4), Deed("pause", 2, 3, 409), Deed("resume", 4, 5, 202)], "ended"),
    ],
)
def test_what_cannot_have_happened_in_one_order_is_told(deeds: list[Deed], last: Standing) -> None:
    assert not linear(deeds, last)


class Broken(httpx.AsyncHTTPTransport):
    """Counts the requests that were made, and those that got no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.made = self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.made += 1
        try:
            return await super().handle_async_request(request)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            self.lost += 1
            raise


def test_who_waits_for_the_end_hears_of_it_though_the_api_is_killed_meanwhile(make: Make) -> None:
    cluster = make()
    [(victim, address)] = cluster.serve()
    cluster.grow(1)

    async def main() -> None:
        wire = Broken()
        async with Client(address) as client, Client(address, transport=wire) as waiter, asyncio.timeout(60):
            runs = [await client.start(told, 1, id="told-1"), await client.start(gives_up, id="gives-up")]
            waiting = [asyncio.create_task(waiter.get(run.id).result()) for run in runs]
            await until(lambda: wire.made == 2, "both ask for the end")
            await asyncio.sleep(0.2)
            victim.signal(signal.SIGKILL)
            await until(lambda: wire.lost == 2, "both are cut off")
            cluster.serve(port=int(address.rpartition(":")[2]))
            for run in runs:
                await run.send("go", 7)
            assert await waiting[0] == [7]
            with pytest.raises(ExecutionFailed, match="ValueError: told 7 times") as caught:
                await waiting[1]
            assert (caught.value.key, caught.value.type) == ("/gives-up", "ValueError")
        async with cluster.app() as app:  # whoever asks the store itself is told the same
            assert await app.get("told-1").result() == [7]
            with pytest.raises(ExecutionFailed, match="ValueError: told 7 times"):
                await app.get("gives-up").result()

    asyncio.run(main())
