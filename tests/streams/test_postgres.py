from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from perdure.core.records import Hint
from perdure.ports import Stream
from perdure.stores.postgres.address import read_address
from perdure.streams import board, postgres as module
from perdure.streams.board import Note, decode
from perdure.streams.postgres import PAYLOAD, PostgresStream, payloads
from perdure.testing.contract import StreamContract
from perdure.testing.proxy import Proxy


class TestPostgresStream(StreamContract):
    carries = False

    @pytest.fixture(autouse=True)
    def _address(self, postgres: str) -> None:
        self.address = read_address(postgres)

    async def make_streams(self, count: int) -> Sequence[Stream]:
        return [PostgresStream(self.address.dsn, self.address.channel) for _ in range(count)]


@asynccontextmanager
async def opened(url: str, me: str, *queues: str, port: int | None = None) -> AsyncIterator[PostgresStream]:
    address = read_address(url)
    dsn = address.dsn
    if port is not None:
        host = dsn.partition("@")[2].partition("/")[0]
        dsn = dsn.replace(f"@{host}/", f"@127.0.0.1:{port}/")
    stream = PostgresStream(dsn, address.channel)
    await stream.open(me, queues)
    try:
        yield stream
    finally:
        await stream.close()


@asynccontextmanager
async def listener(url: str) -> AsyncIterator[list[str]]:
    """Every payload that goes over the channel."""
    address, heard = read_address(url), list[str]()
    connection = await asyncpg.connect(address.dsn)
    await connection.add_listener(address.channel, lambda *notice: heard.append(notice[3]))
    try:
        yield heard
    finally:
        await connection.close()


async def got(stream: PostgresStream) -> Sequence[Hint]:
    return await asyncio.wait_for(stream.receive(100), 20)


@asynccontextmanager
async def wire(url: str) -> AsyncIterator[Proxy]:
    host, _, port = read_address(url).dsn.partition("@")[2].partition("/")[0].partition(":")
    async with Proxy(host, int(port or 5432)) as proxy:
        yield proxy


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_what_this_process_serves_never_leaves_it(postgres: str) -> None:
    async def scenario() -> None:
        async with listener(postgres) as heard, opened(postgres, "w1", "default") as stream:
            await stream.publish([Hint("acme/one", "default"), Hint("acme/two", to="w1")])
            await stream.publish([Hint("acme/three", ended=True)])
            await until(lambda: heard)
            assert len(heard) == 1
            assert "acme/three" in heard[0]

    asyncio.run(scenario())


def test_much_work_for_a_queue_is_one_nudge(postgres: str) -> None:
    async def scenario() -> None:
        async with listener(postgres) as heard, opened(postgres, "client") as client:
            async with opened(postgres, "w1", "default") as worker:
                for number in range(1000):
                    await client.publish([Hint(f"acme/{number}", "default")])
                assert await got(worker) == [Hint("", "default")]
            assert len(heard) <= 2

    asyncio.run(scenario())


def test_nudges_do_not_pile_up_in_front_of_a_busy_worker(postgres: str) -> None:
    async def scenario() -> None:
        async with listener(postgres) as heard, opened(postgres, "client") as client:
            async with opened(postgres, "w1", "default") as worker:
                for number in range(5):
                    await client.publish([Hint("acme/one", "default")])
                    await until(lambda seen=number: len(heard) > seen)
                await client.publish([Hint("acme/two", to="w1")])
                hints = list(await got(worker))
                while len(hints) < 2:
                    hints += await got(worker)
                assert hints == [Hint("", "default"), Hint("acme/two", to="w1")]

    asyncio.run(scenario())


def test_an_empty_notification_tells_everybody_to_look(postgres: str) -> None:
    async def scenario() -> None:
        address = read_address(postgres)
        connection = await asyncpg.connect(address.dsn)
        async with opened(postgres, "w1", "a", "b") as worker:
            await connection.execute("select pg_notify($1, '')", address.channel)
            assert sorted(hint.queue for hint in await got(worker)) == ["a", "b"]
        await connection.close()

    asyncio.run(scenario())


def test_a_notification_that_cannot_be_read_is_left_alone(postgres: str, caplog: Any) -> None:
    async def scenario() -> None:
        address = read_address(postgres)
        connection = await asyncpg.connect(address.dsn)
        async with opened(postgres, "w1", "a") as worker:
            await connection.execute("select pg_notify($1, 'hello')", address.channel)
            await connection.execute("select pg_notify($1, '')", address.channel)
            assert await got(worker) == [Hint("", "a")]
        await connection.close()

    with caplog.at_level(logging.WARNING, "perdure.streams"):
        asyncio.run(scenario())
    assert "cannot be read" in caplog.text


def test_after_a_lost_connection_everybody_looks(postgres: str) -> None:
    async def scenario() -> None:
        async with wire(postgres) as proxy, opened(postgres, "w1", "default", port=proxy.port) as stream:
            assert stream.trouble == ""
            proxy.sever()
            await until(lambda: stream.trouble)
            assert await got(stream) == [Hint("", "default")]
            assert stream.trouble == ""

    asyncio.run(scenario())


def test_a_connection_that_says_nothing_is_noticed(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET", 0.1)

    async def scenario() -> None:
        async with wire(postgres) as proxy, opened(postgres, "w1", "default", port=proxy.port) as stream:
            monkeypatch.setattr(module, "SILENCE", 0.2)
            proxy.swallow()
            await until(lambda: stream.trouble)
            proxy.heal()
            assert await got(stream) == [Hint("", "default")]

    asyncio.run(scenario())


def test_a_server_that_is_away_is_trouble_and_not_an_error(postgres: str, caplog: Any) -> None:
    async def scenario() -> None:
        async with wire(postgres) as proxy:
            port = proxy.port
        async with opened(postgres, "w1", "default", port=port) as stream:
            assert "Connect" in stream.trouble
            await stream.publish([Hint("acme/one", "other"), Hint("acme/two", ended=True)])
            assert await got(stream) == [Hint("acme/two", ended=True)]

    with caplog.at_level(logging.WARNING, "perdure.streams"):
        asyncio.run(scenario())
    assert "hints do not get through" in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        # What the driver says if the server ends a connection just when it is about to listen.
        (asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"), "state 12"),
        (AttributeError("'NoneType' object has no attribute 'close'"), "broke; going on"),
    ],
)
def test_a_connection_that_the_driver_finds_in_disorder_is_made_again(
    postgres: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, told: str
) -> None:
    async def fail(*args: Any) -> None:
        monkeypatch.undo()
        raise error

    async def scenario() -> None:
        async with opened(postgres, "client") as client:
            monkeypatch.setattr(asyncpg.Connection, "add_listener", fail)
            async with asyncio.timeout(20), opened(postgres, "w1", "default") as worker:
                assert worker.trouble
                assert await got(worker) == [Hint("", "default")], "it looks, for something may have been missed"
                assert worker.trouble == ""
                await client.publish([Hint("acme/one", to="w1")])
                assert await got(worker) == [Hint("acme/one", to="w1")]

    asyncio.run(scenario())
    assert told in caplog.text


def test_what_waits_for_a_server_has_a_bound(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "WAITING", 10)

    async def scenario() -> None:
        async with wire(postgres) as proxy:
            port = proxy.port
        async with opened(postgres, "w1", port=port) as stream:
            for number in range(100):
                await stream.publish([Hint(f"acme/{number}", to="w2")])
            assert stream._board is not None
            assert [hint.key for hint in stream._board.take().hints] == [f"acme/{number}" for number in range(90, 100)]

    asyncio.run(scenario())


def test_payloads_are_short_enough_and_complete() -> None:
    queues = [f"queue-{number}" for number in range(600)]
    hints = [Hint(f"acme/{number:0200}", to="w2") for number in range(200)]
    parts = list(payloads(Note(queues, hints)))
    assert all(len(part.encode()) <= PAYLOAD for part in parts)
    notes = [decode(part) for part in parts]
    assert [queue for note in notes for queue in note.queues] == queues
    assert [hint for note in notes for hint in note.hints] == hints


def test_a_hint_that_fits_into_no_notification_is_dropped() -> None:
    small = Hint("acme/one", to="w2")
    [part] = payloads(Note([], [Hint("x" * 8000, to="w2"), small]))
    assert decode(part).hints == [small]
