from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.asynchronous.collection import AsyncCollection

from perdure.core.records import Hint
from perdure.ports import Stream
from perdure.runtime.backends import connect
from perdure.stores.mongodb import MongoStore
from perdure.stores.mongodb.address import read_address
from perdure.streams import mongodb as module
from perdure.streams.board import Note, decode
from perdure.streams.mongodb import LONGEST, MongoStream, notes_of
from perdure.testing.contract import StreamContract
from perdure.testing.proxy import Proxy


class TestMongoStream(StreamContract):
    carries = False

    @pytest.fixture(autouse=True)
    def _address(self, emptied_mongodb: str) -> None:
        self.address = read_address(emptied_mongodb)

    async def make_streams(self, count: int) -> Sequence[Stream]:
        return [MongoStream(self.address.dsn, self.address.database) for _ in range(count)]


@asynccontextmanager
async def opened(url: str, me: str, *queues: str) -> AsyncIterator[MongoStream]:
    address = read_address(url)
    stream = MongoStream(address.dsn, address.database)
    await stream.open(me, queues)
    try:
        yield stream
    finally:
        await stream.close()


async def got(stream: MongoStream) -> Sequence[Hint]:
    return await asyncio.wait_for(stream.receive(100), 20)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_an_address_names_the_store_and_its_stream(emptied_mongodb: str) -> None:
    store, stream = connect(emptied_mongodb)
    assert isinstance(store, MongoStore)
    assert isinstance(stream, MongoStream)


def test_what_this_process_serves_never_leaves_it(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        with MongoClient[dict[str, Any]](emptied_mongodb) as client:
            notes = client.get_default_database()["hints"]
            async with opened(emptied_mongodb, "w1", "default") as stream:
                mine = {"by": stream._me, "note": {"$exists": True}}
                await stream.publish([Hint("acme/one", "default"), Hint("acme/two", to="w1")])
                await stream.publish([Hint("acme/three", ended=True)])
                await until(lambda: notes.count_documents(mine))
                [note] = notes.find(mine)
                assert b"acme/three" in note["note"] and b"acme/one" not in note["note"]

    asyncio.run(scenario())


def test_what_was_published_before_is_of_no_concern(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        async with opened(emptied_mongodb, "w1", "default") as old, opened(emptied_mongodb, "client") as client:
            await client.publish([Hint("acme/one", "default")])
            assert await got(old) == [Hint("", "default")]
            async with opened(emptied_mongodb, "w2", "default") as fresh:
                await client.publish([Hint("acme/two", to="w2")])
                assert await got(fresh) == [Hint("acme/two", to="w2")]

    asyncio.run(scenario())


@pytest.mark.usefixtures("unreachable_mongodb")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_after_a_lost_connection_everybody_looks(emptied_mongodb: str) -> None:
    async def scenario() -> None:
        host, _, rest = emptied_mongodb.removeprefix("mongodb://").partition("/")
        name, _, port = host.rpartition(":")
        async with Proxy(name, int(port)) as proxy:
            async with opened(f"mongodb://127.0.0.1:{proxy.port}/{rest}", "w1", "default") as stream:
                proxy.sever()
                assert await got(stream) == [Hint("", "default")]
                await until(lambda: not stream.trouble)
                async with opened(emptied_mongodb, "client") as client:
                    await client.publish([Hint("acme/one", to="w1")])
                    assert await got(stream) == [Hint("acme/one", to="w1")]

    asyncio.run(scenario())


@pytest.mark.usefixtures("unreachable_mongodb")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_a_server_it_opens_and_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", 1.0)

    async def scenario() -> None:
        async with opened("mongodb://127.0.0.1:1/shop", "w1", "default") as stream:
            assert "127.0.0.1:1" in stream.trouble
            await stream.publish([Hint("acme/one", "default"), Hint("acme/two", to="w2")])
            assert await got(stream) == [Hint("acme/one", "default")]

    asyncio.run(scenario())


@pytest.mark.parametrize("verb", ["find", "insert_many"])
def test_a_mistake_of_the_driver_ends_nothing(
    emptied_mongodb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    def fail(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        raise AttributeError("'NoneType' object has no attribute 'close'")

    monkeypatch.setattr(AsyncCollection, verb, fail)

    async def scenario() -> None:
        async with (
            asyncio.timeout(20),
            opened(emptied_mongodb, "w1", "default") as stream,
            opened(emptied_mongodb, "w2") as other,
        ):
            await stream.publish([Hint("acme/first", to="w2")])  # it may be lost
            await until(lambda: "broke; going on" in caplog.text)
            await stream.publish([Hint("acme/one", to="w2")])
            while Hint("acme/one", to="w2") not in await got(other):
                pass
            await until(lambda: not stream.trouble)

    asyncio.run(scenario())


def test_whoever_is_overtaken_looks(emptied_mongodb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection that is full loses its oldest hints, whoever has read them or not."""

    async def scenario() -> None:
        async with opened(emptied_mongodb, "w1", "default") as stream:
            with MongoClient[dict[str, Any]](emptied_mongodb) as client:
                client.get_default_database().drop_collection("hints")
            assert await got(stream) == [Hint("", "default")]

    asyncio.run(scenario())


def test_much_is_sent_in_several_notes_and_what_is_too_long_is_dropped() -> None:
    queues = [f"q{n}" for n in range(450)]
    hints = [Hint(f"acme/{n}", to="w1") for n in range(250)] + [Hint("x" * LONGEST, to="w1")]
    notes = [decode(note) for note in notes_of(Note(queues, hints))]
    assert [queue for note in notes for queue in note.queues] == queues
    assert [hint for note in notes for hint in note.hints] == hints[:-1]
    assert len(notes) == 3
    assert list(notes_of(Note([], []))) == []
