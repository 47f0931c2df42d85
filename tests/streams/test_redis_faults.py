"""What can happen to a Redis and to the way to it: hints may get lost; the stream goes on and says what is wrong."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.core.records import Hint
from perdure.streams.redis import news, reader, sender, server, stream as adapter
from perdure.streams.redis.keys import Keys
from perdure.streams.redis.server import Server
from perdure.streams.redis.wires import Wires
from perdure.testing.servers.valkey import ValkeyServer
from tests.streams.redis_world import World, got, play, told_to_look, until

ONE = Hint("acme/one", "default")
TWO = Hint("acme/two", "default")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same behaviour with shorter patience."""
    monkeypatch.setattr(adapter, "TIMEOUT", 0.4)
    monkeypatch.setattr(reader, "MENDED", 0.1)
    for module in (reader, sender, news):
        monkeypatch.setattr(module, "PAUSE", 0.1)


@pytest.fixture
def own() -> Iterator[ValkeyServer]:
    """A server that a test may do anything to."""
    with ValkeyServer() as server:
        yield server


# The server forgets.


def test_after_a_flush_the_streams_are_made_anew(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", block=5), await world.open("client")
        await client.publish([ONE])
        assert await got(worker) == [ONE]
        await world.client.flushall()
        await told_to_look(worker)
        await client.publish([TWO, Hint("acme/mine", to="w1")])
        assert set(await got(worker, 2)) == {TWO, Hint("acme/mine", to="w1")}
        assert worker.carries and client.carries

    play(own.url, body)


def test_a_flush_again_and_again_is_survived(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", block=5), await world.open("client")
        for _ in range(20):
            await world.client.flushall()
            await asyncio.sleep(0.01)
        await until(lambda: worker.carries)
        await told_to_look(worker)
        await client.publish([ONE])
        assert await got(worker) == [ONE]

    play(own.url, body)


def test_a_stream_that_somebody_deleted_is_made_anew(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", "slow", block=5), await world.open("client")
        await world.client.delete(world.queue("slow"), world.own("w1"))
        await told_to_look(worker, "slow")
        await client.publish([Hint("acme/one", "slow"), Hint("acme/two", to="w1")])
        assert set(await got(worker, 2)) == {Hint("acme/one", "slow"), Hint("acme/two", to="w1")}

    play(own.url, body)


def test_a_restart_without_memory_is_survived(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", block=5), await world.open("client")
        await client.listen("acme/one")
        own.restart()
        await told_to_look(worker)
        await client.publish([ONE])
        assert await got(worker) == [ONE]
        await until(lambda: hears(world))
        await worker.publish([Hint("acme/one", ended=True)])
        assert await got(client) == [Hint("acme/one", ended=True)]
        await until(lambda: worker.carries and client.carries)

    async def hears(world: World) -> bool:
        channel = Keys(world.prefix).news("acme/one")
        return bool((await world.client.pubsub_numsub(channel))[0][1])

    play(own.url, body)


def test_closed_connections_lose_nothing(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", block=5), await world.open("client")
        received: set[str] = set()

        async def receive() -> None:
            while len(received) < 500:
                received.update(hint.key for hint in await got(worker))

        receiving = asyncio.create_task(receive())
        for number in range(500):
            await client.publish([Hint(f"acme/{number}", "default")])
            if number % 100 == 50:
                await world.client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0)
        await asyncio.wait_for(receiving, 10)

    play(own.url, body)


def test_what_is_in_hand_does_not_come_again_with_a_new_connection(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", block=5), await world.open("client")
        await client.publish([ONE])
        assert await worker.receive(10) == [ONE]
        await world.client.client_kill_filter(_type="normal", skipme=True)
        assert ONE not in await told_to_look(worker)
        await client.publish([TWO])
        assert await got(worker) == [TWO]

    play(own.url, body)


# The server is away.


def test_a_server_that_is_down_at_the_beginning_is_waited_for() -> None:
    with ValkeyServer() as own:
        own.kill()

        async def body(world: World) -> None:
            worker, client = await world.open("w1", "default"), await world.open("client")
            assert not worker.carries
            assert f"Redis at 127.0.0.1:{own.port} cannot be reached" in worker.trouble
            await client.listen("acme/one")
            await client.publish([ONE, Hint("acme/mine", to="w1"), Hint("acme/one", ended=True)])
            await worker.publish([TWO])
            assert await got(worker) == [TWO]  # what stays in the process needs no server
            await told_to_look(worker)
            own.start()
            await until(lambda: worker.carries and client.carries)
            assert worker.trouble == client.trouble == ""
            await client.publish([ONE])
            assert ONE in await got(worker, 2)

        play(own.url, body)


def test_a_worker_is_told_to_look_while_the_server_is_away(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        own.kill()
        for _ in range(3):
            await told_to_look(worker)
            assert not worker.carries
        own.start()
        await until(lambda: worker.carries)
        await told_to_look(worker)

    play(own.url, body)


def test_a_server_that_does_not_answer_keeps_nobody_waiting(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", block=0.2), await world.open("client", block=0.2)
        own.pause()
        started = time.monotonic()
        await client.publish([ONE])
        await worker.ack([TWO])
        await until(lambda: not worker.carries and not client.carries)
        assert "does not answer" in worker.trouble or "cannot be reached" in worker.trouble
        await client.listen("acme/one")
        assert time.monotonic() - started < 15
        own.go_on()
        await until(lambda: worker.carries and client.carries)
        await client.publish([TWO])
        while await got(worker) != [TWO]:
            pass  # the first one may have been sent several times

    play(own.url, body)


def test_a_server_that_does_not_answer_does_not_keep_us_from_closing(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default", block=0.2)
        await worker.listen("acme/one")
        own.pause()
        await until(lambda: not worker.carries)
        started = time.monotonic()
        await worker.close()
        assert time.monotonic() - started < 15
        own.go_on()

    play(own.url, body)


def test_silence_on_the_line_of_news_is_noticed(own: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "SILENCE", 0.3)

    async def body(world: World) -> None:
        client, worker = await world.open("client", block=30), await world.open("w1", block=30)
        await client.listen("acme/one")
        await asyncio.sleep(0.5)
        assert client.carries  # somebody answered
        own.pause()
        await until(lambda: "does not answer" in client.trouble)
        own.go_on()
        await until(lambda: client.carries)
        await worker.publish([Hint("acme/one", ended=True)])
        assert await got(client) == [Hint("acme/one", ended=True)]

    play(own.url, body)


def test_who_is_cancelled_before_it_listens_does_not_keep_others_from_hearing(redis_url: str) -> None:
    async def body(world: World) -> None:
        client, worker = await world.open("client"), await world.open("w1")
        await client.listen("acme/one")
        assert client._desk is not None
        async with client._desk.news._subscribing:  # somebody else is at it
            gone = asyncio.create_task(client.listen("acme/two"))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        await client.listen("acme/two")
        await worker.publish([Hint("acme/two", ended=True)])
        assert await got(client) == [Hint("acme/two", ended=True)]

    play(redis_url, body)


def test_what_could_not_be_sent_is_sent_later_but_not_all_of_it(
    own: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "KEPT", 10)

    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        own.kill()
        for number in range(50):
            await client.publish([Hint(f"acme/{number}", "default")])
        await until(lambda: client.lost == 40)
        own.start()
        assert {hint.key for hint in await got(worker, 10)} == {f"acme/{number}" for number in range(40, 50)}
        assert client.lost == 40

    play(own.url, body)


def test_a_trouble_that_lasts_is_logged_once(own: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        own.kill()
        for _ in range(5):
            await told_to_look(worker)

    with caplog.at_level(logging.WARNING, "perdure"):
        play(own.url, body)
    assert caplog.text.count("hints do not get through") == 1


# The server refuses.


def test_without_memory_hints_wait_and_the_trouble_is_named(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await world.client.config_set("maxmemory", 1)
        await client.publish([ONE])
        await until(lambda: "has no memory left: raise maxmemory" in client.trouble)
        assert not client.carries
        await world.client.config_set("maxmemory", 0)
        assert await got(worker) == [ONE]
        await until(lambda: client.carries)

    play(own.url, body)


def test_a_server_that_became_a_replica_is_waited_for(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", block=0.2), await world.open("client")
        await world.client.replicaof("127.0.0.1", own.port)  # of itself: it will never be in step
        await client.publish([ONE])
        await until(lambda: not worker.carries and not client.carries)
        assert "Redis at" in client.trouble
        await world.client.replicaof("NO", "ONE")
        await until(lambda: worker.carries and client.carries)
        assert await got(worker) == [ONE]

    play(own.url, body)


def test_a_misused_key_stops_only_its_own_queue(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", "slow", block=5), await world.open("client")
        await world.client.delete(world.queue("slow"))
        await world.client.set(world.queue("slow"), "mine")
        await until(lambda: "is not a stream: delete it" in worker.trouble)
        await client.publish([ONE])
        assert await got(worker) == [ONE]
        await client.publish([Hint("acme/two", "slow")])
        await until(lambda: "holds something else: delete it" in client.trouble)
        await world.client.delete(world.queue("slow"))
        assert await got(worker) == [Hint("acme/two", "slow")]
        await until(lambda: worker.carries and client.carries)

    play(own.url, body)


def test_a_key_that_was_misused_before_we_came_is_named(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        await world.client.set(world.queue("slow"), "theirs")
        worker, client = await world.open("w1", "default", "slow"), await world.open("client")
        assert world.queue("slow") in worker.trouble
        await client.publish([ONE])
        assert await got(worker) == [ONE]

    play(own.url, body)


def test_a_misused_key_does_not_keep_what_is_forgotten_from_being_claimed(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        await world.client.set(world.queue("a"), "theirs")
        await world.client.xgroup_create(world.queue("b"), "workers", "0", mkstream=True)
        await world.fill(1, "b")
        await world.client.xreadgroup("workers", "dead", {world.queue("b"): ">"})
        worker = await world.open("w1", "a", "b", lease=0.1)
        assert await got(worker) == [Hint("acme/1", "b")]

    play(own.url, body)


def test_another_group_after_a_flush_is_a_trouble(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        await world.client.flushall()
        await world.client.set(f"{world.prefix}:group", "others 1")
        await world.client.delete(world.queue())
        await until(lambda: "read by group 'others'" in worker.trouble)
        await world.client.delete(f"{world.prefix}:group")
        await until(lambda: worker.carries)

    play(own.url, body)


# Entries that nobody wants.


def test_what_cannot_be_read_is_acked_and_dropped(redis_url: str) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        for fields in ({"x": "y"}, {"e": b"\xff"}, {"E": "acme/one"}):
            await world.client.xadd(world.queue(), fields)
            await world.client.xadd(world.own("w1"), fields)
        await client.publish([ONE])
        assert await got(worker) == [ONE]
        await until(lambda: nothing(world))

    async def nothing(world: World) -> bool:
        left = await world.client.xlen(world.queue()) + await world.client.xlen(world.own("w1"))
        return left == 0 and await world.pending() == 0

    play(redis_url, body)


def test_what_cannot_be_read_does_not_spoil_the_batch_that_it_is_in(redis_url: str) -> None:
    async def body(world: World) -> None:
        bad: list[dict[Any, Any]] = [{"x": "y"}, {"e": b"\xff"}, {"": ""}, {"E": "acme/1"}]
        good = [f"acme/{number}" for number in range(8)]
        for number, key in enumerate(good):  # all of it is there before anybody reads
            await world.client.xadd(world.queue(), bad[number % 4])
            await world.client.xadd(world.queue(), {"e": key})
        worker = await world.open("w1", "default", batch=200)
        received = [hint.key for hint in await worker.receive(100)]
        assert received == good, "in one read, and in order"
        await worker.ack([Hint(key, "default") for key in good])
        await until(lambda: nothing(world))

    async def nothing(world: World) -> bool:
        return bool(await world.client.xlen(world.queue()) == 0 and await world.pending() == 0)

    play(redis_url, body)


def test_what_was_delivered_into_the_void_is_received_after_all(redis_url: str) -> None:
    async def body(world: World) -> None:
        await world.client.xgroup_create(world.queue(), "workers", "0", mkstream=True)
        await world.fill(30)
        await world.client.xreadgroup("workers", "w1", {world.queue(): ">"})  # its answer never arrived
        worker = await world.open("w1", "default", batch=7)
        assert len(await got(worker, 30)) == 30

    play(redis_url, body)


def test_what_was_deleted_while_it_was_pending_is_dropped(redis_url: str) -> None:
    async def body(world: World) -> None:
        await world.client.xgroup_create(world.queue(), "workers", "0", mkstream=True)
        await world.fill(3)
        [(_, entries)] = await world.client.xreadgroup("workers", "w1", {world.queue(): ">"})
        await world.client.xtrim(world.queue(), maxlen=1, approximate=False)
        worker = await world.open("w1", "default")
        assert await got(worker) == [Hint("acme/3", "default")]
        await until(lambda: none_pending(world))
        assert len(entries) == 3

    async def none_pending(world: World) -> bool:
        return await world.pending() == 0

    play(redis_url, body)


def test_a_group_made_late_misses_nothing(redis_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish([ONE])
        await client.close()
        assert await got(await world.open("w1", "default")) == [ONE]

    play(redis_url, body)


# The driver.


def test_a_cancel_is_heeded_wherever_it_comes(redis_url: str) -> None:
    async def scenario() -> None:
        line = Server(redis_url, 5)
        await line.call("PING")
        for steps in range(8):
            asking = asyncio.create_task(line.call("BLPOP", f"nothing-{steps}", "0.2"))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            assert await line.call("ECHO", "again") == b"again"
        await line.hang_up()

    asyncio.run(scenario())


def test_calls_at_the_same_time_each_get_their_own_answer(redis_url: str) -> None:
    async def scenario() -> None:
        line = Server(redis_url, 5)
        for _ in range(3):
            asked = [line.many([("ECHO", f"{n}"), ("ECHO", f"{n} again")]) for n in range(20)]
            assert await asyncio.gather(*asked) == [[b"%d" % n, b"%d again" % n] for n in range(20)]
        await line.hang_up()

    asyncio.run(scenario())


def test_answers_that_were_not_read_are_not_given_to_the_next_call(redis_url: str) -> None:
    async def scenario() -> None:
        wires = Wires(redis_url, 5, {})
        with pytest.raises(TypeError):  # the driver does not know the option, and reads no further
            await wires.ask([("INFO",), ("ECHO", "old")], unknown=True)
        assert await wires.ask([("ECHO", "new")]) == [b"new"]
        await wires.close()

    asyncio.run(scenario())


def test_to_hang_up_does_not_fail_where_there_is_no_time_for_it(redis_url: str) -> None:
    async def scenario() -> None:
        line = Server(redis_url, 5)
        await asyncio.gather(*(line.call("ECHO", "old") for _ in range(3)))
        wires = list(line._wires._free)
        for wire in wires:
            wire.socket_connect_timeout = 0  # the driver's limit for closing as well; a busy machine reaches it
        await line.hang_up()
        assert len(wires) == 3 and not any(wire.is_connected for wire in wires)
        assert await line.call("ECHO", "new") == b"new"
        await line.hang_up()

    asyncio.run(scenario())


def test_connections_that_the_server_closed_meanwhile_are_not_used_again(own: ValkeyServer) -> None:
    async def scenario() -> None:
        line, other = Server(own.url, 5), Server(own.url, 5)
        await asyncio.gather(*(line.call("BLPOP", "nothing", "0.1") for _ in range(3)))
        await other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        while len(await clients(other)) > 1:
            await asyncio.sleep(0.01)
        assert await line.call("ECHO", "again") == b"again"
        assert len(await clients(other)) == 2
        for one in (line, other):
            await one.hang_up()

    async def clients(line: Server) -> list[bytes]:
        told: bytes = await line.call("CLIENT", "LIST")
        return told.splitlines()

    asyncio.run(scenario())


def test_a_command_that_fails_does_not_take_others_with_it(redis_url: str) -> None:
    async def scenario() -> None:
        line = Server(redis_url, 5)
        wrong, right = await line.many([("XLEN",), ("ECHO", "right")])
        assert isinstance(wrong, server.exceptions.ResponseError) and right == b"right"
        with pytest.raises(server.exceptions.ResponseError):
            await line.call("XLEN")
        await line.hang_up()

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", range(8))
def test_a_stream_can_be_closed_at_any_moment(redis_url: str, steps: int) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default", block=30)
        for _ in range(steps):
            await asyncio.sleep(0)
        await asyncio.wait_for(worker.close(), 5)

    play(redis_url, body)


def test_an_address_of_a_cluster_node_is_explained() -> None:
    error = server.exceptions.MovedError("5798 127.0.0.1:6379")
    assert "write redis+cluster://" in server.explain(error, "host:6379")
