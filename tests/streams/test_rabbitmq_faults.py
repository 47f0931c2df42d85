"""What can happen to a RabbitMQ and to the way to it: hints may get lost; the stream goes on and says what is wrong."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from pamqp import commands

from perdure.core.records import Hint
from perdure.streams.rabbitmq import RabbitStream, receiver, sender, stream as adapter, wire
from perdure.streams.rabbitmq.names import CHANNELS, ends
from perdure.streams.rabbitmq.receiver import Receiver
from perdure.testing.proxy import Proxy
from perdure.testing.servers.ports import free_port
from perdure.testing.servers.rabbitmq import RabbitServer
from tests.streams.rabbit_world import ONE, TWO, World, got, play, told_to_look, until

MINE = Hint("acme/mine", to="w1")
END = Hint("acme/one", ended=True)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same behaviour with shorter patience."""
    monkeypatch.setattr(wire, "TIMEOUT", 1.0)
    monkeypatch.setattr(adapter, "FAREWELL", 0.5)
    for module in (receiver, sender):
        monkeypatch.setattr(module, "PAUSE", 0.1)


@pytest.fixture
def own(rabbit: RabbitServer) -> Iterator[RabbitServer]:
    """The broker of this run, which a test may do anything to; the others find it as it was."""
    yield rabbit
    rabbit.go_on()
    if not rabbit._answers():
        rabbit.kill()
        rabbit.start()


@asynccontextmanager
async def wired(rabbit: RabbitServer) -> AsyncIterator[tuple[Proxy, str]]:
    """A wire that can be cut, and the address at its end."""
    async with Proxy("127.0.0.1", rabbit.port) as proxy:
        yield proxy, f"amqp://127.0.0.1:{proxy.port}/"


async def all_gets_through(client: RabbitStream, worker: RabbitStream) -> None:
    """Work, what is for one worker, and news."""
    await client.publish([ONE, MINE])
    assert set(await got(worker, 2)) >= {ONE, MINE}
    await worker.publish([END])
    assert await got(client) == [END]


# The broker is away.


def test_a_restart_without_its_data_is_survived(own: RabbitServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.listen("acme/one")
        await all_gets_through(client, worker)
        own.kill()
        own.forget()
        for _ in range(3):  # as long as it is away
            await told_to_look(worker)
            assert not worker.carries
        assert f"RabbitMQ at 127.0.0.1:{own.port} cannot be reached" in worker.trouble
        await worker.publish([TWO])
        assert await got(worker) == [TWO]  # what stays in the process needs no broker
        await asyncio.to_thread(own.start)
        await until(lambda: worker.carries and client.carries)
        await told_to_look(worker)
        await all_gets_through(client, worker)
        assert worker.trouble == client.trouble == ""

    play(own.url, body)


def test_a_broker_that_is_not_there_at_the_beginning_is_waited_for(rabbit: RabbitServer) -> None:
    port = free_port()

    async def body(world: World) -> None:
        url = f"amqp://127.0.0.1:{port}/"
        worker, client = await world.open("w1", "default", url=url), await world.open("client", url=url)
        assert not worker.carries and f"127.0.0.1:{port} cannot be reached" in worker.trouble
        await client.listen("acme/one")
        await client.publish([TWO])
        await told_to_look(worker)
        async with Proxy("127.0.0.1", rabbit.port, at=port):
            await until(lambda: worker.carries and client.carries)
            assert await got(worker) == [TWO], "what was published before is sent now"
            await all_gets_through(client, worker)
            await world.close()

    play(rabbit.url, body)


def test_what_could_not_be_sent_is_sent_later_but_not_all_of_it(
    rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "KEPT", 10)
    port = free_port()

    async def body(world: World) -> None:
        client = await world.open("client", url=f"amqp://127.0.0.1:{port}/")
        for number in range(50):
            await client.publish([Hint(f"acme/{number}", "default")])
        assert client.lost == 40
        async with Proxy("127.0.0.1", rabbit.port, at=port):
            received = await got(await world.open("w1", "default"), 10)
            assert [hint.key for hint in received] == [f"acme/{number}" for number in range(40, 50)]
            assert client.lost == 40
            await world.close()

    play(rabbit.url, body)


def test_a_trouble_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    url = f"amqp://guest:s3cret@127.0.0.1:{free_port()}/"

    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        for _ in range(5):
            await told_to_look(worker)

    with caplog.at_level(logging.DEBUG):
        play(url, body)
    assert caplog.text.count("hints do not get through") == 1
    assert "s3cret" not in caplog.text


# The way to it.


def test_a_cut_connection_is_made_anew_and_loses_nothing(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        async with wired(rabbit) as (proxy, url):
            worker, client = await world.open("w1", "default", url=url), await world.open("client", url=url)
            await client.listen("acme/one")
            received: set[str] = set()

            async def receive() -> None:
                while len(received) < 300:
                    received.update(hint.key for hint in await got(worker))

            receiving = asyncio.create_task(receive())
            for number in range(300):
                await client.publish([Hint(f"acme/{number}", "default")])
                if number % 100 == 50:
                    proxy.sever()
                await asyncio.sleep(0.001)
            await asyncio.wait_for(receiving, 10)
            await until(lambda: worker.carries and client.carries)
            await all_gets_through(client, worker)
            await world.close()

    play(rabbit.url, body)


def test_after_a_cut_the_worker_is_told_to_look(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        async with wired(rabbit) as (proxy, url):
            worker = await world.open("w1", "default", "slow", url=url)
            proxy.sever()
            assert await told_to_look(worker) == [Hint("", "default"), Hint("", "slow")], "once each"
            await until(lambda: worker.carries)
            await told_to_look(worker)
            await world.close()

    play(rabbit.url, body)


def test_what_was_in_hand_at_a_cut_is_acked_by_nobody(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        async with wired(rabbit) as (proxy, url):
            worker, client = await world.open("w1", "default", url=url), await world.open("client")
            for number in range(5):
                await client.publish([Hint(f"acme/{number}", "default")])
                await got(worker)
            await client.publish([ONE])
            assert await worker.receive(10) == [ONE]  # the sixth of its connection
            proxy.sever()
            await until(lambda: not worker.carries)
            await until(lambda: worker.carries)
            line = of(worker)
            await worker.ack([ONE])  # in the new one nothing is the sixth, and RabbitMQ would end it
            await client.publish([TWO])
            assert await got(worker, 2) == [ONE, TWO]
            await world.waiting()
            await client.publish([TWO])
            assert await got(worker) == [TWO]
            assert of(worker) is line
            await world.close()

    def of(stream: RabbitStream) -> object:
        assert stream._desk is not None
        return stream._desk.receiver._wire

    play(rabbit.url, body)


def test_what_is_asked_for_while_the_connection_is_made_is_heard(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        async with wired(rabbit) as (proxy, url):
            client, worker = await world.open("client", url=url), await world.open("w1", "default")
            proxy.delay = 0.05  # so that there is a while
            proxy.sever()
            await until(lambda: not client.carries)
            keys = list({ends(key): key for key in (f"acme/{number}" for number in range(200))}.values())
            for key in keys:  # from before the first step to after the last, each of another kind
                await client.listen(key)
                await asyncio.sleep(0.05)
            await until(lambda: client.carries)
            await worker.publish([Hint(key, ended=True) for key in keys])
            assert {hint.key for hint in await got(client, CHANNELS)} == set(keys)
            await world.close()

    play(rabbit.url, body)


def test_a_connection_that_never_holds_is_not_made_at_once_each_time(
    rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "PAUSE", 1.0)
    made: list[float] = []
    connect = Receiver.connect

    async def soon_cut(self: Receiver) -> None:
        await connect(self)
        made.append(time.monotonic())
        assert self._wire is not None
        asyncio.get_running_loop().call_soon(self._wire.end, ConnectionError("again"))

    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        with pytest.MonkeyPatch.context() as unlucky:
            unlucky.setattr(Receiver, "connect", soon_cut)
            assert worker._desk is not None and worker._desk.receiver._wire is not None
            worker._desk.receiver._wire.end(ConnectionError("the first one"))
            await asyncio.sleep(2)
        assert 2 < len(made) < 12
        await until(lambda: worker.carries)

    play(rabbit.url, body)


def test_silence_is_noticed_and_keeps_nobody_waiting(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        async with wired(rabbit) as (proxy, url):
            worker = await world.open("w1", "default", url=url, idle=1.0)
            client = await world.open("client", url=url, idle=1.0)
            await client.publish([ONE])
            mine = await worker.receive(10)
            proxy.swallow()
            began = time.monotonic()
            await client.publish([TWO])
            await worker.ack(mine)
            await client.listen("acme/other")
            assert time.monotonic() - began < 3
            await until(lambda: not worker.carries and not client.carries)
            assert "does not answer" in worker.trouble
            proxy.heal()
            await until(lambda: worker.carries and client.carries)
            while await got(worker) != [TWO]:
                pass  # the first one may come once more: its ack did not get through
            await world.close()

    play(rabbit.url, body)


def test_who_sends_notices_silence_long_before_a_heartbeat(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        async with wired(rabbit) as (proxy, url):
            client = await world.open("client", url=url, idle=60.0)
            await client.publish([ONE])
            await until(lambda: sent(client))
            proxy.swallow()
            await client.publish([TWO])
            await until(lambda: "does not answer" in client.trouble, limit=8)
            proxy.heal()
            await world.close()

    def sent(stream: RabbitStream) -> bool:
        assert stream._desk is not None
        return stream._desk.sender._calm.is_set()

    play(rabbit.url, body)


def test_what_a_worker_that_stands_still_has_in_hand_comes_to_another_one(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        async with wired(rabbit) as (proxy, url):
            frozen, client = await world.open("w1", "default", url=url, idle=1.0), await world.open("client")
            await client.publish([ONE])
            assert await frozen.receive(10) == [ONE]
            proxy.swallow()  # as if it were stopped: it says nothing, and its connection is open
            assert await got(await world.open("w2", "default"), limit=6) == [ONE]
            proxy.heal()
            await world.close()

    play(rabbit.url, body)


def test_silence_does_not_keep_us_from_closing(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        async with wired(rabbit) as (proxy, url):
            worker = await world.open("w1", "default", url=url)
            await worker.publish([Hint("acme/one", "slow")])
            proxy.swallow()
            began = time.monotonic()
            await worker.close()
            assert time.monotonic() - began < 4

    play(rabbit.url, body)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\0\1\0\0", b"\1\0\0\0\0\0\4abcd\xce"])
def test_who_does_not_speak_our_language_is_a_trouble(answer: bytes) -> None:
    async def body(world: World) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(8)
            writer.write(answer)
            await reader.read()
            writer.close()

        async with await asyncio.start_server(talk, "127.0.0.1", port):
            worker = await world.open("w1", "default")
            assert "does not speak AMQP" in worker.trouble or "cannot be read" in worker.trouble
            await world.close()

    port = free_port()
    play(f"amqp://127.0.0.1:{port}/", body)


# Somebody takes things away.


def test_a_queue_that_somebody_deleted_is_made_anew_by_its_worker(
    rabbit: RabbitServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", "slow"), await world.open("client")
        await client.listen("acme/one")
        await client.publish([Hint("acme/slow", "slow")])
        assert await got(worker) == [Hint("acme/slow", "slow")]
        with caplog.at_level(logging.WARNING, "perdure"):
            await world.ask(commands.Queue.Delete(queue=world.names.queue("slow")))
            await told_to_look(worker, "slow")
        assert "have vanished; they are made anew" in caplog.text
        await until(lambda: worker.carries)
        await client.publish([Hint("acme/slow", "slow")])
        assert await got(worker) == [Hint("acme/slow", "slow")]
        await all_gets_through(client, worker)

    play(rabbit.url, body)


def test_a_queue_that_somebody_deleted_is_made_anew_by_whoever_sends(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish([ONE])
        await until(lambda: waits(world, 1))
        await world.ask(commands.Queue.Delete(queue=world.names.queue("default")))
        await client.publish([TWO])
        assert await got(await world.open("w1", "default")) == [TWO]
        assert client.carries and client.lost == 0

    async def waits(world: World, count: int) -> bool:
        return await world.there(world.names.queue("default")) and await world.waiting() == count

    play(rabbit.url, body)


def test_the_own_queue_of_a_worker_is_made_anew(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.listen("acme/one")
        assert worker._desk is not None and worker._desk.receiver._wire is not None
        # An exclusive queue can only be deleted by its owner.
        await worker._desk.receiver._wire.ask(commands.Queue.Delete(queue=worker._desk.receiver._own))
        await told_to_look(worker)
        await until(lambda: worker.carries)
        await all_gets_through(client, worker)

    play(rabbit.url, body)


def test_an_exchange_that_somebody_deleted_is_made_anew(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.publish([ONE])
        assert await got(worker) == [ONE]
        await world.ask(commands.Exchange.Delete(exchange=world.names.exchange))
        await client.publish([TWO])
        assert await got(worker) == [TWO]

    play(rabbit.url, body)


# The broker refuses.


def test_a_broker_short_of_memory_stops_nobody_and_is_named(own: RabbitServer) -> None:
    alarm = "{resource_limit, memory, node()}"

    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.listen("acme/one")
        await all_gets_through(client, worker)
        await asyncio.to_thread(own.do, "eval", f"rabbit_alarm:set_alarm({{{alarm}, []}}).")
        try:
            began = time.monotonic()
            await client.publish([TWO])
            await until(lambda: "takes nothing at present" in client.trouble)
            for number in range(50):
                await client.publish([Hint(f"acme/{number}", "default")])
            assert time.monotonic() - began < 3 and not client.carries
            await asyncio.sleep(1.2 * wire.TIMEOUT)
            assert "give it memory and disk" in client.trouble, "it is waited for, and not given up"
        finally:
            await asyncio.to_thread(own.do, "eval", f"rabbit_alarm:clear_alarm({alarm}).")
        received = {hint.key for hint in await got(worker, 51)}
        assert received == {TWO.key, *(f"acme/{number}" for number in range(50))}
        await until(lambda: client.carries)

    play(own.url, body, limit=120)
