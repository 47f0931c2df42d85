"""What can happen to brokers and to the way to them: hints may get lost; the stream goes on and says what is wrong."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Consumer, KafkaError

from perdure.core.records import Hint
from perdure.errors import SettingsError
from perdure.streams.kafka import KafkaStream, reader, sender, stream as adapter
from perdure.testing.proxy import Proxy
from perdure.testing.servers.kafka import KafkaServer
from perdure.testing.servers.ports import free_port
from tests.streams.kafka_world import World, got, owns, play, told_to_look, until

ONE, TWO = Hint("acme/one", "default"), Hint("acme/two", "default")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same behaviour with shorter patience."""
    monkeypatch.setattr(reader, "SHORTEST", 1.0)
    monkeypatch.setattr(reader, "PAUSE", 0.1)
    monkeypatch.setattr(sender, "PAUSE", 0.1)
    monkeypatch.setattr(adapter, "TIMEOUT", 1.0)
    monkeypatch.setattr(adapter, "FAREWELL", 0.3)


@pytest.fixture
def own() -> Iterator[KafkaServer]:
    """A broker that a test may do anything to."""
    with KafkaServer() as server:
        yield server


@asynccontextmanager
async def wire() -> AsyncIterator[tuple[Proxy, World]]:
    """A broker whose clients all come through a wire that can be cut."""
    port = free_port()
    async with Proxy("127.0.0.1", port) as proxy:
        with KafkaServer(port=port, advertised=proxy.port) as server:
            world = World(server.url)
            try:
                yield proxy, world
            finally:
                await world.close()


def test_a_restart_without_memory_is_survived(own: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        worker, client = await world.serving("w1", "default"), await world.open("client")
        await client.listen("acme/end")
        for number in range(5):
            await client.publish([Hint(f"acme/{number}", "default"), Hint(f"acme/mine-{number}", to="w1")])
        assert len(await got(worker, 10)) == 10
        own.kill()
        await told_to_look(worker)
        assert not worker.carries
        assert f"Kafka at 127.0.0.1:{own.port} cannot be reached" in worker.trouble
        own.start()
        await until(lambda: worker.carries and client.carries)
        await told_to_look(worker)
        await client.publish([ONE, Hint("acme/mine", to="w1")])
        assert {hint.key for hint in await got(worker, 2)} == {"acme/one", "acme/mine"}
        await worker.publish([Hint("acme/end", ended=True)])
        assert await got(client) == [Hint("acme/end", ended=True)]

    with caplog.at_level(logging.INFO, "perdure.streams"):
        play(own.url, body)
    assert "hints do not get through" in caplog.text and "hints get through again" in caplog.text


def test_a_topic_that_is_gone_is_made_again_by_who_sends_to_it(own: KafkaServer) -> None:
    async def body(world: World) -> None:
        client = await world.open("client", shards=5)
        await client.publish([Hint("acme/zero", "later")])
        await until(lambda: world.names.queue("later") in world.admin.list_topics(timeout=5).topics)
        own.restart()
        await client.publish([Hint("acme/one", "later")])
        await until(lambda: partitions(world) == 5)
        worker = await world.serving("w1", "later", parts=5)
        while (await got(worker))[0].key != "acme/one":
            pass  # the first one may have been under way when the broker went

    def partitions(world: World) -> int:
        found = world.admin.list_topics(timeout=5).topics.get(world.names.queue("later"))
        return 0 if found is None else len(found.partitions)

    play(own.url, body)


def test_a_broker_that_is_down_at_the_beginning_is_waited_for() -> None:
    with KafkaServer() as own:
        own.kill()

        async def body(world: World) -> None:
            began = time.monotonic()
            worker, client = await world.open("w1", "default"), await world.open("client")
            assert time.monotonic() - began < 3
            assert not worker.carries and "cannot be reached" in worker.trouble
            await client.publish([ONE])
            await worker.publish([TWO])
            assert await got(worker) == [TWO]  # what stays in the process needs no broker
            own.start()
            await until(lambda: worker.carries and client.carries)
            assert ONE in await got(worker), "it waited for the broker"
            await client.publish([Hint("acme/mine", to="w1")])
            assert (await got(worker))[0].key == "acme/mine"

        play(own.url, body)


def test_what_waits_for_a_broker_has_a_bound(own: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "WAITING", 10)
    monkeypatch.setattr(sender, "FLIGHT", 4)

    async def body(world: World) -> None:
        worker, client = await world.open("w1"), await world.open("client")
        own.kill()
        await until(lambda: not client.carries)
        began = time.monotonic()
        for number in range(100):
            await client.publish([Hint(f"acme/{number}", to="w1")])
        assert time.monotonic() - began < 3, "somebody waited"
        assert client._desk is not None and len(client._desk.sender._waiting) <= 10
        await until(lambda: client.lost >= 90)
        own.start()
        await until(lambda: worker.carries and client.carries)
        newest = {hint.key for hint in await got(worker, 10)}
        assert newest == {f"acme/{number}" for number in range(90, 100)}

    play(own.url, body)


def test_cut_connections_lose_nothing() -> None:
    async def scenario() -> None:
        async with wire() as (proxy, world), asyncio.timeout(30):
            worker, client = await world.serving("w1", "default"), await world.open("client")
            for number in range(100):
                await client.publish([Hint(f"acme/{number}", "default"), Hint(f"acme/mine-{number}", to="w1")])
                if number % 25 == 10:
                    proxy.sever()
                await asyncio.sleep(0.005)
            received: set[str] = set()
            while len(received) < 200:
                received.update(hint.key for hint in await got(worker))

    asyncio.run(scenario())


def test_a_network_that_swallows_everything_is_noticed_and_keeps_nobody_from_closing() -> None:
    async def scenario() -> None:
        async with wire() as (proxy, world), asyncio.timeout(30):
            worker, client = await world.open("w1", "default"), await world.open("client")
            proxy.swallow()
            await worker.publish([Hint("acme/two", to="w2")])
            await until(lambda: worker.trouble)
            assert "cannot be reached" in worker.trouble
            await until(lambda: client.trouble, limit=12)  # who only listens has noticed it, too
            proxy.heal()
            await until(lambda: worker.carries and client.carries)
            proxy.swallow()
            began = time.monotonic()
            await worker.close()
            assert time.monotonic() - began < 2

    asyncio.run(scenario())


def test_a_worker_that_is_told_that_its_topic_is_gone_joins_the_group_again(own: KafkaServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.serving("w1", "default"), await world.open("client")
        assert worker._desk is not None
        # The broker of the tests cannot be asked to delete a topic: its answer to the next fetch breaks the driver.
        worker._desk._work._failed(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "it was deleted"))
        await until(lambda: worker.trouble)
        assert "it was deleted" in worker.trouble
        await until(lambda: worker.carries and owns(worker) == 1)
        await told_to_look(worker)
        await client.publish([ONE])
        assert await got(worker) == [ONE]

    play(own.url, body)


def test_a_worker_looks_when_a_gap_begins_and_when_it_ends(own: KafkaServer) -> None:
    async def body(world: World) -> None:
        worker = await world.serving("w1", "default")
        assert worker._desk is not None
        for change in (lambda health: health.bad("any", "broken"), lambda health: health.good("any")):
            change(worker._desk.health)
            assert await told_to_look(worker, limit=2) == [Hint("", "default")]

    play(own.url, body)


def test_what_is_acked_after_its_partition_was_taken_confirms_nothing(own: KafkaServer) -> None:
    async def body(world: World) -> None:
        client, worker = await world.open("client"), await world.serving("w1", "default")
        await client.publish([ONE])
        received = await worker.receive(10)
        desk = worker._desk
        assert received == [ONE] and desk is not None
        desk._taken(list(desk._ours))
        await worker.ack(received)
        assert (desk._ours, desk._hand._parts) == (set(), {})

    play(own.url, body)


def test_what_no_mending_mends_is_tried_with_pauses(own: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PAUSE", 1.0)
    tried: list[float] = []
    resume = reader.News._resume

    def in_vain(self: reader.News, consumer: Consumer, anew: bool) -> bool:
        tried.append(time.monotonic())
        self._failed(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not for you"))
        return resume(self, consumer, anew)

    async def body(world: World) -> None:
        client = await world.open("client")
        assert client._desk is not None
        with pytest.MonkeyPatch.context() as forbidden:
            forbidden.setattr(reader.News, "_resume", in_vain)
            client._desk._news._failed(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not for you"))
            await asyncio.sleep(2)
        assert 2 < len(tried) < 9
        await until(lambda: client.carries)

    play(own.url, body)


def test_settings_that_the_driver_does_not_take_are_refused_at_once(own: KafkaServer) -> None:
    async def scenario() -> None:
        with pytest.raises(SettingsError, match="ssl.ca.location failed"):
            await KafkaStream(f"kafkas://127.0.0.1:{own.port}?ca=/nowhere.pem").open("w1", ["default"])

    asyncio.run(scenario())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused_at_once(mechanism: str) -> None:
    async def scenario(port: int) -> None:
        stream = KafkaStream(f"kafka://ada:s3cret@127.0.0.1:{port}?mechanism={mechanism}")
        with pytest.raises(SettingsError, match="does not let us in: mend the name, the password") as raised:
            await stream.open("w1", ["default"])
        assert "s3cret" not in str(raised.value)

    with KafkaServer("--authentication") as server:
        asyncio.run(scenario(server.port))
