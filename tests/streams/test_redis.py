from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from perdure.core.records import Hint
from perdure.errors import SettingsError, UsageError
from perdure.ports import Stream
from perdure.runtime import backends
from perdure.runtime.settings import Settings
from perdure.streams.redis import RedisStream, house, stream as adapter
from perdure.streams.redis.arrivals import APART, SHARED
from perdure.streams.redis.hand import STALLED, Entry, Hand
from perdure.streams.redis.keys import CHANNELS, Keys
from perdure.streams.redis.reader import Pace
from perdure.streams.redis.server import Server
from perdure.testing.contract import StreamContract
from perdure.testing.servers.valkey import ValkeyServer, new_prefix, private_cluster
from tests.streams.redis_world import World, got, play, until


class TestRedisStream(StreamContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_url: str) -> None:
        self.url = redis_url

    async def make_streams(self, count: int) -> Sequence[Stream]:
        prefix = new_prefix()
        return [RedisStream(self.url, prefix=prefix) for _ in range(count)]


class TestRedisStreamInSmallSteps(TestRedisStream):
    async def make_streams(self, count: int) -> Sequence[Stream]:
        prefix = new_prefix()
        return [RedisStream(self.url, prefix=prefix, batch=7, block=0.05) for _ in range(count)]


@pytest.fixture
def own() -> Iterator[ValkeyServer]:
    """A server that a test may do anything to."""
    with ValkeyServer() as server:
        yield server


def hints(count: int, queue: str = "default") -> list[Hint]:
    return [Hint(f"acme/{number}", queue) for number in range(count)]


# Who gets what.


def test_an_acked_hint_leaves_nothing_behind(redis_url: str) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.publish(hints(3))
        await got(worker, 3)
        await until(lambda: empty(world))
        assert await world.pending() == 0

    async def empty(world: World) -> bool:
        return await world.client.xlen(world.queue()) == 0

    play(redis_url, body)


def test_a_worker_with_much_in_hand_shares_with_others(redis_url: str) -> None:
    async def body(world: World) -> None:
        busy, idle = await world.open("w1", "default"), await world.open("w2", "default")
        published = hints(adapter.NEAR + 50)
        await busy.publish(published)
        assert list(await busy.receive(1000))[: adapter.NEAR] == published[: adapter.NEAR]
        shared = {hint.key for hint in published[adapter.NEAR :]}
        received: set[str] = set()
        async with asyncio.timeout(20):
            while not received & shared:
                await busy.publish(published)
                received.update(hint.key for hint in await idle.receive(1000))

    play(redis_url, body)


def test_a_full_worker_leaves_the_queue_to_others(redis_url: str) -> None:
    async def body(world: World) -> None:
        await world.fill(100)
        full = await world.open("w1", "default", batch=10)
        await until(lambda: holds(world, 20))
        await asyncio.sleep(0.2)
        assert len(await full.receive(1000)) == 20
        other = await world.open("w2", "default", batch=100)
        assert len(await got(other, 80)) == 80

    async def holds(world: World, count: int) -> bool:
        return await world.pending() == count

    play(redis_url, body)


def test_a_full_worker_still_hears_what_is_addressed_to_it(redis_url: str) -> None:
    async def body(world: World) -> None:
        await world.fill(100)
        full, client = await world.open("w1", "default", batch=10), await world.open("client")
        taken = 0
        while taken < 20:
            taken += len(await full.receive(1000))
        await client.publish([Hint("acme/mine", "default", to="w1")])
        assert await full.receive(1000) == [Hint("acme/mine", "default", to="w1")]

    play(redis_url, body)


def test_a_worker_that_is_free_again_goes_on_at_once(redis_url: str) -> None:
    async def body(world: World) -> None:
        await world.fill(100)
        worker = await world.open("w1", "default", batch=10, block=15)
        taken: list[Hint] = []
        while len(taken) < 20:
            taken += await worker.receive(1000)
        await asyncio.sleep(0.1)  # it reads only its own stream now, and would do so for 15 seconds
        await worker.ack(taken)
        assert len(await got(worker, 80, limit=3)) == 80

    play(redis_url, body)


def test_a_worker_that_gets_on_with_nothing_leaves_the_work_to_others(redis_url: str) -> None:
    async def body(world: World) -> None:
        stalled, other = await world.open("w1", "default", block=0.05), await world.open("w2", "default")
        await stalled.publish(hints(2))
        assert await stalled.receive(10) == hints(2)
        await asyncio.sleep(STALLED + 0.1)
        more = [Hint(f"acme/more-{number}", "default") for number in range(20)]
        for hint in more:
            await stalled.publish([hint])
        assert await got(other, 20) == more
        await stalled.ack(hints(2))
        await stalled.publish([Hint("acme/mine", "default")])
        assert await got(stalled) == [Hint("acme/mine", "default")]

    play(redis_url, body)


def test_a_hint_without_a_queue_goes_nowhere(redis_url: str) -> None:
    async def body(world: World) -> None:
        client, worker = await world.open("client"), await world.open("w1", "default")
        await client.publish([Hint("acme/nowhere"), Hint("acme/\ud800", "default"), Hint("acme/one", "default")])
        assert await got(worker) == [Hint("acme/one", "default")]
        assert await world.client.keys(f"*{world.prefix}:q::*") == []

    play(redis_url, body)


def test_any_name_of_a_worker_and_of_a_queue_will_do(redis_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        for name in ("host/42:../..", "x" * 500, "ü}{\N{GRINNING FACE}\n"):
            odd = await world.open(name, name)
            await client.publish([Hint("acme/one", to=name)])
            assert await got(odd) == [Hint("acme/one", to=name)]
            await client.publish([Hint("acme/two", name)])
            assert await got(odd) == [Hint("acme/two", name)]

    play(redis_url, body)


def test_two_prefixes_never_meet(redis_url: str) -> None:
    async def body(world: World) -> None:
        here, there = await world.open("w1", "default"), await world.open("w1", "default", prefix=new_prefix())
        outside = await world.open("client", prefix=new_prefix())
        await here.listen("acme/one")
        await outside.publish([Hint("acme/one", "default"), Hint("acme/one", to="w1"), Hint("acme/one", ended=True)])
        await there.publish([Hint("acme/one", ended=True)])
        await (await world.open("client")).publish([Hint("acme/two", "default")])
        assert await got(here) == [Hint("acme/two", "default")]

    play(redis_url, body)


@pytest.mark.parametrize("prefix", ["", "a:b", "a{b}", "a b", "ü"])
def test_a_prefix_that_could_meet_another_is_refused(prefix: str) -> None:
    with pytest.raises(SettingsError, match="prefix"):
        RedisStream("redis://localhost", prefix=prefix)


@pytest.mark.parametrize("wrong", [{"shards": 0}, {"batch": 0}, {"block": 0}, {"lease": 0}, {"group": ""}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        RedisStream("redis://localhost", **wrong)


# Shards.


def test_all_shards_are_served(redis_url: str) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", shards=4), await world.open("client", shards=4)
        published = [Hint(f"tenant-{number}/{number}", "default") for number in range(40)]
        await client.publish(published)
        assert set(await got(worker, 40)) == set(published)
        await until(lambda: served(worker))

    async def served(worker: RedisStream) -> bool:
        return await worker.lengths() == {"default": 0}

    play(redis_url, body)


def test_a_tenant_has_two_shards() -> None:
    keys = Keys(shards=8)
    for tenant in range(100):
        assert len({keys.shard(f"tenant-{tenant}/{number}") for number in range(100)}) == 2
    everywhere = {keys.shard(f"tenant-{tenant}/1") for tenant in range(100)}
    assert everywhere == set(range(8))


def test_the_only_shard_is_the_first() -> None:
    assert {Keys().shard(f"tenant-{number}/1") for number in range(50)} == {0}


# What all processes have in common.


@pytest.mark.parametrize("other", [{"group": "others"}, {"shards": 2}])
def test_a_process_with_another_group_or_shards_is_told_so(redis_url: str, other: dict[str, Any]) -> None:
    async def body(world: World) -> None:
        await world.open("w1", "default")
        with pytest.raises(SettingsError, match="give all processes the same") as raised:
            await world.open("w2", "default", **other)
        assert f"{world.prefix}:group" in str(raised.value)

    play(redis_url, body)


def test_a_server_that_may_throw_streams_away_is_warned_of(own: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        await world.open("w1", "default")

    own.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with caplog.at_level(logging.WARNING, "perdure"):
        play(own.url, body)
    assert "maxmemory-policy allkeys-lru" in caplog.text


def test_a_server_that_is_too_old_is_refused() -> None:
    async def scenario() -> None:
        async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                if not line.startswith(b"*"):
                    continue
                words = [(await reader.readline(), await reader.readline())[1] for _ in range(int(line[1:]))]
                facts = b"redis_version:6.2.14\r\n"
                answer = {b"INFO\r\n": b"$%d\r\n%s\r\n" % (len(facts), facts), b"GET\r\n": b"$-1\r\n"}
                writer.write(answer.get(words[0], b"+OK\r\n"))
            writer.close()

        async with await asyncio.start_server(old, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(SettingsError, match=r"version 6\.2\.14; Perdure needs 7\.0"):
                await RedisStream(f"redis://127.0.0.1:{port}").open("w1", [])

    asyncio.run(scenario())


def test_a_wrong_password_is_refused_at_once() -> None:
    async def scenario(server: ValkeyServer) -> None:
        with pytest.raises(SettingsError, match="mend the name, the password"):
            await RedisStream(server.url).open("w1", ["default"])
        stream = RedisStream(f"redis://:secret@127.0.0.1:{server.port}")
        await stream.open("w1", ["default"])
        assert stream.carries
        await stream.close()

    with ValkeyServer("--requirepass", "secret") as server:
        asyncio.run(scenario(server))


# What it costs.


async def calls(world: World) -> dict[str, int]:
    """How often each command was called so far."""
    return {name: int(stats["calls"]) for name, stats in (await world.client.info("commandstats")).items()}


def test_an_idle_process_costs_one_blocked_command(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        await world.open("w1", "default", "slow", block=5, shards=3)
        await asyncio.sleep(0.1)
        before = await calls(world)
        await asyncio.sleep(1)
        after = await calls(world)
        assert {name for name in after if after[name] != before.get(name)} == {"cmdstat_info"}
        assert after["cmdstat_info"] == before["cmdstat_info"] + 1
        assert len(await world.client.client_list()) == 4  # to send, to read and to hear, and ours

    play(own.url, body)


def test_a_batch_is_what_is_read_at_once(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        await world.fill(60)
        worker = await world.open("w1", "default", batch=25)
        sizes = [len(await worker.receive(1000))]
        while sum(sizes) < 50:
            sizes.append(len(await worker.receive(1000)))
        assert (await world.pending(), sum(sizes)) == (50, 50), "two batches may be in hand"
        assert max(sizes) <= 50

    play(own.url, body)


def test_settings_reach_the_stream(redis_url: str) -> None:
    given = {"stream_batch": 7, "stream_block": 0.25, "stream_idle": 33.0, "lease": 4.0}
    stream = backends.stream(Settings(stream=redis_url, **given))  # type: ignore[arg-type]
    assert isinstance(stream, RedisStream)
    assert stream._pace == Pace(batch=7, block=0.25, lease=4.0, idle=33.0)


def test_a_short_block_reads_more_often(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        await world.open("w1", "default", block=0.05)
        await until(lambda: reads(world, 10), limit=4)

    async def reads(world: World, times: int) -> bool:
        return (await calls(world)).get("cmdstat_xreadgroup", 0) >= times

    play(own.url, body)


def test_a_hundred_thousand_hints_do_not_fill_the_memory(redis_url: str) -> None:
    async def body(world: World) -> None:
        await world.fill(100_000)
        worker = await world.open("w1", "default", batch=1000)
        assert await worker.lengths() == {"default": 100_000}
        taken: list[Hint] = []
        while len(taken) < 2000:
            taken += await worker.receive(10_000)
        await asyncio.sleep(0.2)
        assert await world.pending() == len(taken) == 2000
        await worker.ack(taken)
        keys = {hint.key for hint in taken} | {hint.key for hint in await got(worker, 98_000, limit=15)}
        assert len(keys) == 100_000

    play(redis_url, body)


def test_many_hints_travel_in_few_flights(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        client, worker = await world.open("client"), await world.open("w1", "default")
        for hint in hints(3000):
            await client.publish([hint])
        assert len(await got(worker, 3000)) == 3000
        await until(lambda: gone(world))
        assert (await calls(world))["cmdstat_xack"] < 100

    async def gone(world: World) -> bool:
        return await world.client.xlen(world.queue()) == 0

    play(own.url, body)


def test_acks_fly_with_what_comes_soon_after_them_and_else_by_themselves(redis_url: str) -> None:
    flights: list[list[str]] = []

    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        desk = worker._desk
        assert desk is not None
        line = desk.sender._server
        many = line.many

        async def noted(commands: Sequence[Any]) -> list[Any]:
            flights.append([str(command[0]) for command in commands])
            return await many(commands)

        line.many = noted  # type: ignore[method-assign]
        await world.fill(2)
        first, second = await worker.receive(1), await worker.receive(1)
        await worker.ack(first)
        await worker.publish([Hint("acme/1", ended=True, status="completed")])
        await until(lambda: left(world, 1))
        await worker.ack(second)
        await until(lambda: left(world, 0))
        assert flights == [["PUBLISH", "XACK", "XDEL"], ["XACK", "XDEL"]]

    async def left(world: World, count: int) -> bool:
        return await world.pending() == count

    play(redis_url, body)


def test_no_stream_is_cut_by_its_length_and_that_of_a_worker_who_hangs_expires(redis_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await world.die(await world.open("hung", "default", lease=1))
        await client.publish([Hint(f"acme/{number}", to="hung") for number in range(12_000)])
        await until(lambda: long_as(world, 12_000))
        await until(lambda: long_as(world, 0))

    async def long_as(world: World, length: int) -> bool:
        return bool(await world.client.xlen(world.own("hung")) == length)

    play(redis_url, body)


# What a dead worker leaves behind.


def test_what_a_dead_worker_was_given_goes_to_another_one(redis_url: str) -> None:
    async def body(world: World) -> None:
        dead = await world.open("w1", "default", lease=0.2, batch=10)
        await world.fill(20)
        taken = 0
        while taken < 20:
            taken += len(await dead.receive(100))
        await world.die(dead)
        heir = await world.open("w2", "default", lease=0.2, batch=5)
        assert {hint.key for hint in await got(heir, 20)} == {f"acme/{number}" for number in range(1, 21)}

    play(redis_url, body)


def test_what_is_claimed_is_what_lay_idle_for_two_leases_unless_settings_say_otherwise(redis_url: str) -> None:
    async def body(world: World) -> None:
        await world.client.xgroup_create(world.queue(), "workers", "0", mkstream=True)
        await world.fill(2)
        [(_, entries)] = await world.client.xreadgroup("workers", "dead", {world.queue(): ">"})
        for (id, _), idle in zip(entries, (19_000, 20_000), strict=True):
            await world.client.xclaim(world.queue(), "workers", "dead", 0, [id], idle=idle)
        settings = Settings(stream=redis_url, stream_prefix=world.prefix)
        assert settings.lease == 10
        never, first, soon = (
            backends.stream(one)
            for one in (
                msgspec.structs.replace(settings, stream_reclaim=False),
                settings,
                msgspec.structs.replace(settings, stream_idle=0.0),
            )
        )
        owners = [await claims(world, one, f"w{number}") for number, one in enumerate((never, first, soon))]
        assert owners == [[b"dead", b"dead"], [b"dead", b"w1"], [b"w2", b"w2"]]

    async def claims(world: World, stream: Any, me: str) -> list[bytes]:
        """Whose the entries are when this worker has gone once through what is pending."""
        await stream.open(me, ["default"])
        await stream._desk._house.claim()
        pending = await world.client.xpending_range(world.queue(), "workers", "-", "+", 10)
        await world.die(stream)
        return [entry["consumer"] for entry in pending]

    play(redis_url, body)


def test_what_a_dead_worker_was_given_is_claimed_within_its_time_and_a_round(redis_url: str) -> None:
    async def body(world: World) -> None:
        dead = await world.open("w1", "default", lease=0.5)
        heir = await world.open("w2", "default", lease=0.5)
        await heir.publish([Hint("acme/one", "default", away=True)])
        await until(lambda: given(world))
        assert await dead.receive(10) == [Hint("acme/one", "default")]
        began = time.monotonic()
        await world.die(dead)
        assert await got(heir) == [Hint("acme/one", "default")]
        took = time.monotonic() - began
        assert took < 6, f"idle for 1 s, looked for every 0.5 s, and it took {took:.2f} s"

    async def given(world: World) -> bool:
        return await world.pending() == 1

    play(redis_url, body)


def test_a_slow_worker_is_not_robbed_within_two_leases(redis_url: str) -> None:
    async def body(world: World) -> None:
        slow = await world.open("w1", "default", lease=30)
        await world.fill(1)
        await slow.receive(1)
        other = await world.open("w2", "default", lease=30)
        assert other._desk is not None
        await other._desk._house.claim()
        [consumer] = [c for c in await world.client.xinfo_consumers(world.queue(), "workers") if c["pending"]]
        assert consumer["name"] == b"w1"

    play(redis_url, body)


def test_a_hint_that_is_not_acked_comes_again(redis_url: str) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default", lease=0.2)
        await world.fill(1)
        first = await worker.receive(10)
        for _ in range(3):
            assert await worker.receive(10) == first == [Hint("acme/1", "default")]
        await worker.ack(first)  # once is enough
        await until(lambda: acked(world))

    async def acked(world: World) -> bool:
        return await world.pending() == 0

    play(redis_url, body)


def test_the_stream_of_a_worker_that_has_gone_is_not_made_anew(redis_url: str) -> None:
    async def body(world: World) -> None:
        client, worker = await world.open("client"), await world.open("w1", "default")
        await client.publish([Hint("acme/one", to="gone"), Hint("acme/two", "default")])
        assert await got(worker) == [Hint("acme/two", "default")]
        assert not await world.client.exists(world.own("gone"))

    play(redis_url, body)


def test_a_long_list_of_pending_entries_is_gone_through_in_rounds(redis_url: str) -> None:
    async def body(world: World) -> None:
        await world.client.xgroup_create(world.queue(), "workers", "0", mkstream=True)
        await world.fill(25)
        [(_, entries)] = await world.client.xreadgroup("workers", "busy", {world.queue(): ">"})
        last = entries[-1][0]
        await world.client.xclaim(world.queue(), "workers", "dead", 0, [last], idle=3_600_000)
        worker = await world.open("w1", "default", batch=1, lease=30)
        assert worker._desk is not None
        for _ in range(3):  # the server looks at ten entries at a time, and all but the last are too young
            await worker._desk._house.claim()
        assert await got(worker) == [Hint("acme/25", "default")]

    play(redis_url, body)


def test_the_stream_of_a_worker_lives_as_long_as_the_worker(redis_url: str) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", lease=0.2)
        await asyncio.sleep(1)
        assert 0 < await world.client.pttl(world.own("w1")) <= 600
        await world.die(worker)
        await until(lambda: gone(world))

    async def gone(world: World) -> bool:
        return not await world.client.exists(world.own("w1"))

    play(redis_url, body)


def test_a_worker_that_leaves_is_forgotten(redis_url: str) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        await worker.close()
        assert not await world.client.exists(world.own("w1"))
        assert await world.client.xinfo_consumers(world.queue(), "workers") == []

    play(redis_url, body)


def test_a_worker_that_leaves_with_full_hands_is_remembered(redis_url: str) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        await world.fill(2)
        await worker.receive(1)
        await worker.close()
        assert await world.pending() == 2
        heir = await world.open("w2", "default", lease=0.1)
        assert len(await got(heir, 2)) == 2

    play(redis_url, body)


def test_what_is_published_last_is_still_sent(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "TIMEOUT", 30.0)  # what cannot be sent in that time is left behind, as it should be

    async def body(world: World) -> None:
        leaving = await world.open("client")
        await leaving.publish(hints(20_000))
        await leaving.close()
        entries = await world.client.xrange(world.queue())
        assert len(entries) < 20_000 / 7, "many hints share an entry"
        assert len({key for _, fields in entries for key in fields[b"e"].split(b"\n")}) == 20_000

    play(redis_url, body)


def test_an_entry_that_hints_share_is_acked_with_the_last_of_them(redis_url: str) -> None:
    async def body(world: World) -> None:
        client, worker = await world.open("client"), await world.open("w1", "default")
        await client.publish(hints(SHARED * APART))
        taken: list[Hint] = []
        while len(taken) < SHARED * APART:
            taken += await worker.receive(1000)
        assert await world.pending() == APART
        await worker.ack([hint for hint in taken if hint != taken[0]])
        await until_pending(world, 1)
        await worker.ack(taken[:1])
        await until_pending(world, 0)

    async def until_pending(world: World, count: int) -> None:
        async def is_so() -> bool:
            return await world.pending() == count

        await until(is_so)

    play(redis_url, body)


def test_few_hints_stay_apart_so_that_others_get_some(redis_url: str) -> None:
    async def body(world: World) -> None:
        await (await world.open("client")).publish(hints(2 * APART - 1))
        await until(lambda: there(world))

    async def there(world: World) -> bool:
        return bool(await world.client.xlen(world.queue()) == 2 * APART - 1)

    play(redis_url, body)


def test_a_dead_consumer_is_removed_unless_something_is_pending(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default", lease=30)
        await world.client.xgroup_createconsumer(world.queue(), "workers", "dead")
        await world.client.xgroup_createconsumer(world.queue(), "workers", "laden")
        await worker.close()
        await world.client.xadd(world.queue(), {"e": "acme/1"})
        await world.client.xreadgroup("workers", "laden", {world.queue(): ">"})
        worker = await world.open("w1", "default", lease=30)
        await until(lambda: present(world, b"w1"))
        assert worker._desk is not None
        await worker._desk._house.bury()
        assert b"dead" in await names(world)  # it may come back within the hour
        monkeypatch.setattr(house, "DEAD", 0.0)
        await asyncio.sleep(0.01)
        await worker._desk._house.bury()
        assert await names(world) == {b"laden", b"w1"}

    async def names(world: World) -> set[bytes]:
        return {consumer["name"] for consumer in await world.client.xinfo_consumers(world.queue(), "workers")}

    async def present(world: World, name: bytes) -> bool:
        return name in await names(world)

    play(redis_url, body)


# News.


def test_a_channel_is_subscribed_once(own: ValkeyServer) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        for _ in range(10):
            await client.listen("acme/one")
        assert (await calls(world))["cmdstat_subscribe"] == 1
        await asyncio.gather(*(client.listen(f"acme/{number}") for number in range(300)))
        assert len(await world.client.pubsub_channels()) == CHANNELS
        await client.publish([Hint(f"acme/{number}", ended=True) for number in range(300)])
        assert len(await got(client, 300)) == 300

    play(own.url, body)


def test_news_of_our_own_is_heard_once(redis_url: str) -> None:
    async def body(world: World) -> None:
        here, there = await world.open("w1"), await world.open("w2")
        mine, theirs = Hint("acme/one", ended=True), Hint("acme/two", ended=True)
        await here.listen(mine.key)
        await here.listen(theirs.key)
        await here.publish([mine])
        assert here._desk is not None
        await here._desk.sender.calm()
        await there.publish([theirs])
        assert await got(here, 2) == [mine, theirs]

    play(redis_url, body)


def test_news_that_cannot_be_read_is_ignored(redis_url: str) -> None:
    async def body(world: World) -> None:
        client, other = await world.open("client"), await world.open("w1")
        await client.listen("acme/one")
        for data in (b"", b"[]", b'["w1",[["acme/one"]]]', b"\xff"):
            await world.client.publish(Keys(world.prefix).news("acme/one"), data)
        await other.publish([Hint("acme/one", ended=True)])
        assert await got(client) == [Hint("acme/one", ended=True)]

    play(redis_url, body)


# A cluster.


def test_a_cluster_carries_hints_news_and_work_of_all_shards() -> None:
    async def body(url: str) -> None:
        options: dict[str, Any] = {"prefix": new_prefix(), "shards": 3}
        worker, client = RedisStream(url, **options), RedisStream(url, **options)
        await worker.open("w1", ["default", "slow"])
        await client.open("client", [])
        assert worker.trouble == client.trouble == ""
        await client.listen("acme/one")
        work = [Hint(f"tenant-{number}/1", "default" if number % 2 else "slow") for number in range(30)]
        await client.publish([*work, Hint("acme/mine", to="w1")])
        assert set(await got(worker, 31)) == {*work, Hint("acme/mine", to="w1")}
        await worker.publish([Hint("acme/one", ended=True)])
        assert await got(client) == [Hint("acme/one", ended=True)]
        assert worker.trouble == client.trouble == ""
        await client.close()
        await worker.close()

    with private_cluster() as url:
        asyncio.run(asyncio.wait_for(body(url), 20))


def test_as_many_wait_for_one_node_of_a_cluster_as_there_are_streams() -> None:
    async def body(url: str) -> None:
        server = Server(url, timeout=10)
        waiting = [server.call("BLPOP", f"{{empty}}:{number}", 1) for number in range(200)]
        assert set(await asyncio.gather(*waiting)) == {None}
        await server.hang_up()

    with private_cluster() as url:
        asyncio.run(asyncio.wait_for(body(url), 20))


# The hand.


def test_what_is_in_hand_for_long_no_longer_counts_but_can_be_acked() -> None:
    now = 0.0
    hand = Hand(10, 1.0, lambda: now)
    for number in range(10):
        hand.take(Hint(f"acme/{number}", "default"), Entry("s", b"%d-0" % number))
    assert hand.room == 0
    now = 1.0
    assert hand.room == 0
    now = 2.0
    assert hand.room == 10
    hand.take(Hint("acme/new", "default"), None)
    assert hand.room == 9
    assert hand.give([Hint("acme/3", "default")]) == [Entry("s", b"3-0")]
    assert hand.room == 9
    assert hand.give([Hint("acme/new", "default")]) == []
    assert hand.room == 10


def test_a_hand_from_which_nothing_is_given_gets_no_more() -> None:
    now = 0.0
    hand = Hand(10, 10.0, lambda: now)
    hand.take(Hint("acme/1", "default"), None)
    hand.take(Hint("acme/2", "default"), None)
    assert hand.room == 8
    now += STALLED
    assert hand.room == 0
    hand.give([Hint("acme/1", "default")])
    assert hand.room == 9
    now += STALLED
    hand.give([Hint("acme/else", "default")])
    assert hand.room == 0
    hand.give([Hint("acme/2", "default")])
    now += STALLED
    assert hand.room == 10


def test_equal_hints_are_acked_one_by_one() -> None:
    hand = Hand(10, 1.0)
    hint = Hint("acme/1", "default")
    hand.take(hint, Entry("s", b"1-0"))
    hand.take(hint, Entry("s", b"2-0"))
    assert hand.give([hint]) == [Entry("s", b"1-0")]
    assert not hand.knows(Entry("s", b"1-0"))
    assert hand.knows(Entry("s", b"2-0"))
    assert hand.give([hint, hint]) == [Entry("s", b"2-0")]


def test_an_entry_that_comes_once_more_is_acked_once() -> None:
    hand = Hand(10, 1.0)
    one, two, entry, other = (
        Hint("acme/1", "default"),
        Hint("acme/2", "default"),
        Entry("s", b"1-0"),
        Entry("s", b"2-0"),
    )
    for hint, of in ((one, entry), (two, entry), (two, other)):
        hand.take(hint, of)
    hand.lose([one, two], entry)
    assert not hand.knows(entry) and hand.knows(other)
    for hint in (one, two):
        hand.take(hint, entry)
    assert hand.room == 7
    assert hand.give([one, two, two]) == [other, entry]
    assert hand.room == 10


# Addresses.


def test_settings_make_a_stream(redis_url: str) -> None:
    async def scenario() -> None:
        settings = Settings(stream=redis_url, stream_prefix=new_prefix(), stream_shards=2, stream_block=0.1)
        one, two = backends.stream(settings), backends.stream(settings)
        await one.open("w1", ["default"])
        await two.open("w2", [])
        await two.publish([Hint("acme/one", "default")])
        assert await asyncio.wait_for(one.receive(1), 5) == [Hint("acme/one", "default")]
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_an_address_that_cannot_be_is_explained() -> None:
    with pytest.raises(SettingsError, match="no stream for 'stomp://") as raised:
        backends.stream(Settings(stream="stomp://user:secret@host"))
    assert "secret" not in str(raised.value)
    with pytest.raises(SettingsError, match="the port of the address of Redis is no number"):
        backends.stream(Settings(stream="redis+cluster://host:six"))


def test_a_stream_that_is_not_open_says_so() -> None:
    stream = RedisStream("redis://localhost")
    assert (stream.carries, stream.trouble) == (False, "")
    with pytest.raises(UsageError, match="not open"):
        asyncio.run(stream.receive(1))


def test_what_is_sent_away_goes_to_another_worker_if_there_is_one(redis_url: str) -> None:
    async def scenario(world: World) -> None:
        full, free = await world.open("full", "default"), await world.open("free", "default")
        for number in range(10):  # whoever of the two happens to read first
            hint = Hint(f"acme/{number}", "default", away=True)
            await full.publish([hint])
            assert await got(free) == [Hint(hint.key, "default")]
        await free.close()
        await full.publish([Hint("acme/last", "default", away=True)])
        assert await got(full) == [Hint("acme/last", "default")]

    play(redis_url, scenario)
