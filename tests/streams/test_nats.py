from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from perdure.core.records import Hint
from perdure.errors import SettingsError, UsageError
from perdure.ports import Stream
from perdure.runtime import backends
from perdure.runtime.settings import Settings
from perdure.runtime.urls import redacted
from perdure.streams.nats import NatsStream, hand as hands, keeping, stream as adapter
from perdure.streams.nats.address import Address, read_address
from perdure.streams.nats.hand import STALLED, Hand, Message
from perdure.streams.nats.line import Line
from perdure.streams.nats.names import CHANNELS, word
from perdure.streams.nats.notes import APART, BUNDLE, SHARED
from perdure.streams.nats.reader import Pace
from perdure.testing.contract import StreamContract
from perdure.testing.servers.nats import new_prefix
from tests.streams.nats_world import World, got, play, until


class TestNatsStream(StreamContract):
    @pytest.fixture(autouse=True)
    def server(self, nats_url: str) -> None:
        self.url = nats_url

    async def make_streams(self, count: int) -> Sequence[Stream]:
        prefix = new_prefix()
        return [NatsStream(self.url, prefix=prefix) for _ in range(count)]


class TestNatsStreamInSmallSteps(TestNatsStream):
    async def make_streams(self, count: int) -> Sequence[Stream]:
        prefix = new_prefix()
        return [NatsStream(self.url, prefix=prefix, batch=7, block=0.05) for _ in range(count)]


def hints(count: int, queue: str = "default") -> list[Hint]:
    return [Hint(f"acme/{number}", queue) for number in range(count)]


# Who gets what.


def test_an_acked_hint_leaves_nothing_behind(nats_url: str) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.publish(hints(3))
        assert await worker.receive(100)
        assert await world.kept() == 3, "it is kept until it is acked"
        await worker.ack(hints(3))
        await until(lambda: empty(world))
        assert await world.pending() == 0

    async def empty(world: World) -> bool:
        return await world.kept() == 0

    play(nats_url, body)


def test_what_is_published_before_the_first_worker_is_delivered(nats_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish(hints(50))
        await client.close()
        assert sorted(await got(await world.open("w1", "default"), 50), key=str) == sorted(hints(50), key=str)

    play(nats_url, body)


def test_a_hint_goes_to_one_of_those_who_serve_the_queue(nats_url: str) -> None:
    async def body(world: World) -> None:
        workers = [await world.open(f"w{number}", "default") for number in range(3)]
        client = await world.open("client")
        for hint in hints(60):
            await client.publish([hint])
        received: list[list[Hint]] = [[], [], []]
        async with asyncio.timeout(10):
            while sum(map(len, received)) < 60:
                for number, worker in enumerate(workers):
                    with suppress(TimeoutError):
                        received[number] += await asyncio.wait_for(got(worker), 0.1)
        assert sorted(hint.key for part in received for hint in part) == sorted(hint.key for hint in hints(60))
        assert all(received), "everybody had some"
        assert await world.kept() == 0

    play(nats_url, body)


def test_a_worker_with_much_in_hand_shares_with_others(nats_url: str) -> None:
    async def body(world: World) -> None:
        busy, idle = await world.open("w1", "default"), await world.open("w2", "default")
        await until(lambda: both_ask(world))
        published = hints(adapter.NEAR + 50)
        await busy.publish(published)
        assert list(await busy.receive(1000))[: adapter.NEAR] == published[: adapter.NEAR]
        shared = set(published[adapter.NEAR :])
        assert shared.issuperset(await got(idle))

    async def both_ask(world: World) -> bool:
        return await world.asking() == 2

    play(nats_url, body)


def test_a_full_worker_leaves_the_queue_to_others(nats_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        for hint in hints(100):
            await client.publish([hint])
        full = await world.open("w1", "default", batch=10)
        taken: list[Hint] = []
        while len(taken) < 20:
            taken += await full.receive(1000)
        await asyncio.sleep(0.2)
        assert (await world.pending(), len(taken)) == (20, 20)
        other = await world.open("w2", "default", batch=100)
        assert len(await got(other, 80)) == 80

    play(nats_url, body)


def test_a_full_worker_still_hears_what_is_addressed_to_it(nats_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish(hints(15))
        full = await world.open("w1", "default", batch=1)
        await client.publish([Hint("acme/mine", "default", to="w1")])
        taken: list[Hint] = []
        while len(taken) < 3:
            taken += await full.receive(1000)
        assert Hint("acme/mine", "default", to="w1") in taken

    play(nats_url, body)


def test_a_worker_that_is_free_again_goes_on_at_once(nats_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish(hints(15))
        worker = await world.open("w1", "default", batch=5, block=15, lease=60)
        taken: list[Hint] = []
        while len(taken) < 10:
            taken += await worker.receive(1000)
        await asyncio.sleep(STALLED + 0.1)  # it asks for nothing now, and would not for 15 seconds
        await worker.ack(taken)
        assert len(await got(worker, 5, limit=3)) == 5

    play(nats_url, body)


def test_a_worker_that_gets_on_with_nothing_leaves_the_work_to_others(nats_url: str) -> None:
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

    play(nats_url, body)


def test_old_hints_make_room_again(nats_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        for hint in hints(10):
            await client.publish([hint])
        worker = await world.open("w1", "default", batch=1, lease=0.2, idle=60, block=0.1)
        seen: set[Hint] = set()
        async with asyncio.timeout(10):
            while len(seen) < 4:  # more than may be in hand at once, and nothing is ever acked
                seen.update(await worker.receive(100))

    play(nats_url, body)


def test_what_is_rather_for_others_reaches_another(nats_url: str) -> None:
    async def body(world: World) -> None:
        here, there = await world.open("w1", "default"), await world.open("w2", "default")
        await until(lambda: both_ask(world))
        away = [Hint(f"acme/{number}", "default", away=True) for number in range(10)]
        for hint in away:
            await here.publish([hint])
        assert set(await got(there, 5)) <= set(hints(10)), "half of them at least, since they were marked"

    async def both_ask(world: World) -> bool:
        return await world.asking() == 2

    play(nats_url, body)


def test_what_is_rather_for_others_is_ours_if_there_are_none(nats_url: str) -> None:
    async def body(world: World) -> None:
        here = await world.open("w1", "default")
        await here.publish([Hint("acme/0", "default", away=True)])
        assert await got(here) == hints(1)
        await until(lambda: empty(world))

    async def empty(world: World) -> bool:
        return await world.kept() == 0

    play(nats_url, body)


def test_a_hint_without_a_queue_and_one_that_cannot_be_written_go_nowhere(nats_url: str) -> None:
    async def body(world: World) -> None:
        client, worker = await world.open("client"), await world.open("w1", "default")
        bad = [Hint("acme/nowhere"), Hint("acme/\ud800", "default"), Hint("acme/\ud800", ended=True)]
        await client.publish([*bad, Hint("", news="\ud800"), Hint("acme/one", "default")])
        assert await got(worker) == [Hint("acme/one", "default")]
        assert await world.kept() <= 1

    play(nats_url, body)


def test_any_name_of_a_worker_and_of_a_queue_will_do(nats_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        for name in ("host/42:../..", "a.b.>", "*", "x" * 500, "ü}{\N{GRINNING FACE}\n"):
            odd = await world.open(name, name)
            await client.publish([Hint("acme/one", to=name)])
            assert await got(odd) == [Hint("acme/one", to=name)]
            await client.publish([Hint("acme/two", name)])
            assert await got(odd) == [Hint("acme/two", name)]

    play(nats_url, body)


def test_two_prefixes_never_meet(nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        # One that ends in a word of ours would be heard here, by who is called like its next word, if a dot were a dot.
        prefixes = [f"{world.prefix}.queue", f"{world.prefix}.worker", f"{world.prefix}_hints", new_prefix()]
        here = await world.open("words", "default", "words")
        await here.listen("acme/one")
        for prefix in prefixes:
            outside = await world.open("client", prefix=prefix)
            same = await world.open("w1", "default", prefix=prefix)
            for queue in ("default", "queue", "1"):
                await outside.publish([Hint("acme/one", queue)])
            await outside.publish([Hint("acme/one", to="w1"), Hint("acme/one", ended=True), Hint("", news="odd")])
            assert len(await got(same, 3)) == 3
        await (await world.open("client")).publish([Hint("acme/two", "default")])
        assert await got(here) == [Hint("acme/two", "default")]

    with caplog.at_level(logging.WARNING, "perdure"):
        play(nats_url, body)
    assert caplog.text == ""


@pytest.mark.parametrize("prefix", ["", "a:b", "a>", "a*", "a b", "ü", "x" * 65])
def test_a_prefix_that_could_meet_another_is_refused(prefix: str) -> None:
    with pytest.raises(SettingsError, match="prefix"):
        NatsStream("nats://localhost", prefix=prefix)


def test_words_are_one_word_and_differ() -> None:
    names = ["a", "A", "a.b", "a b", "a=2Eb", "a=b", "ab", "a-b", "a_b", "a+b", "é", "x" * 101, "x" * 102, "." * 60]
    words = [word(name) for name in names]
    assert len(set(words)) == len(names)
    assert all(len(one) <= 100 and not set(one) & set(". *>+\t\n/") for one in words)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"block": 0}, {"lease": 0}, {"group": ""}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        NatsStream("nats://localhost", **wrong)


def test_news_comes_once_also_to_whoever_tells_it(nats_url: str) -> None:
    async def body(world: World) -> None:
        here, there = await world.open("w1", "default"), await world.open("w2", "other")
        await here.listen("acme/one")
        told = [Hint("", news="breaker:charge:open:1"), Hint("acme/one", ended=True, status="completed", result="1")]
        await here.publish(told)
        await there.publish([Hint("", news="last")])
        assert await got(here, 3) == [*told, Hint("", news="last")]

    play(nats_url, body)


def test_many_ends_and_hints_for_a_worker_are_told_in_parts(nats_url: str) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        keys = [f"acme/{number}" for number in range(BUNDLE * 3)]
        for key in keys:
            await worker.listen(key)
        assert len(worker._channels) == CHANNELS
        ends = [Hint(key, ended=True, status="completed", result='"' * 500) for key in keys]
        own = [Hint(key, "default", to="w1") for key in keys]
        await client.publish([*ends, *own])
        assert set(await got(worker, 2 * len(keys))) == {*ends, *own}

    play(nats_url, body)


def test_those_who_listen_at_once_all_wait_until_they_are_heard(nats_url: str) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")

        async def listen() -> bool:
            await client.listen("acme/one")
            return client._channels[world.names.ends("acme/one")].is_set()

        assert await asyncio.gather(*(listen() for _ in range(5))) == [True] * 5
        await worker.publish([Hint("acme/one", ended=True)])
        assert await got(client) == [Hint("acme/one", ended=True)]

    play(nats_url, body)


@pytest.mark.parametrize("steps", range(1, 5))
def test_who_gives_up_to_listen_keeps_nobody_else_waiting(nats_url: str, steps: int) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        gives_up = asyncio.create_task(client.listen("acme/one"))
        for _ in range(steps):
            await asyncio.sleep(0)
        gives_up.cancel()
        began = time.monotonic()
        await client.listen("acme/one")
        assert time.monotonic() - began < 3, "it waited for what nobody asks for"
        await worker.publish([Hint("acme/one", ended=True)])
        assert await got(client) == [Hint("acme/one", ended=True)]

    play(nats_url, body)


@pytest.mark.parametrize("steps", range(1, 5))
def test_closing_that_is_cancelled_leaves_nothing_behind(nats_url: str, steps: int) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        await until(lambda: asks(world))
        closing = asyncio.create_task(worker.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await worker.close()
        await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "perdure-nats"], limit=3)
        assert not worker.carries

    async def asks(world: World) -> bool:
        return await world.asking() == 1

    play(nats_url, body)


def test_a_stream_that_is_closed_receives_nothing(nats_url: str) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        waiting = asyncio.create_task(worker.receive(10))
        await asyncio.sleep(0)
        await worker.close()
        with pytest.raises(UsageError, match="closed"):
            await waiting
        with pytest.raises(UsageError, match="not open"):
            await worker.receive(10)
        assert not worker.carries
        await worker.ack(hints(1))

    play(nats_url, body)


# What nobody acked.


def test_what_a_dead_worker_did_not_ack_comes_to_another_in_its_time(nats_url: str) -> None:
    idle = 1.0

    async def body(world: World) -> None:
        dead, client = await world.open("w1", "default", idle=idle), await world.open("client")
        await client.publish(hints(1))
        assert await dead.receive(10) == hints(1)
        began = time.monotonic()
        await world.die(dead)
        other = await world.open("w2", "default", idle=idle)
        assert await got(other) == hints(1)
        assert time.monotonic() - began > idle * 0.8, "it came before its time"
        await until(lambda: empty(world))

    async def empty(world: World) -> bool:
        return await world.kept() == 0

    play(nats_url, body)


def test_a_message_is_acked_with_its_last_hint(nats_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish(hints(SHARED * APART))
        assert await world.kept() == 0 or await world.kept() == APART
        await until(lambda: kept(world, APART))
        dead = await world.open("w1", "default", idle=1)
        taken = await dead.receive(SHARED * APART)
        while len(taken) < SHARED * APART:
            taken = [*taken, *await dead.receive(SHARED * APART)]
        await dead.ack(taken[: SHARED + 2])
        await until(lambda: kept(world, APART - 1))
        await world.die(dead)
        other = await world.open("w2", "default", idle=1)
        again = await got(other, SHARED * (APART - 1))
        assert set(again) == set(taken[SHARED:])

    async def kept(world: World, count: int) -> bool:
        return await world.kept() == count

    play(nats_url, body)


def test_a_worker_that_leaves_gives_back_what_it_has_at_once(nats_url: str) -> None:
    async def body(world: World) -> None:
        leaving, client = await world.open("w1", "default", idle=60), await world.open("client")
        await client.publish(hints(3))
        received: list[Hint] = []
        while len(received) < 3:
            received += await leaving.receive(1)
        await leaving.ack(received[:1])
        other = await world.open("w2", "default", idle=60)
        await leaving.close()
        assert set(await got(other, 2, limit=5)) == set(received[1:])

    play(nats_url, body)


@pytest.mark.parametrize(("reclaim", "seconds"), [(True, 33.0), (False, keeping.NEVER)])
def test_settings_reach_the_stream_and_what_it_makes(nats_url: str, reclaim: bool, seconds: float) -> None:
    async def body(world: World) -> None:
        given: dict[str, Any] = {"stream_batch": 7, "stream_block": 0.25, "stream_idle": 33.0, "lease": 4.0}
        named = {"stream": nats_url, "stream_prefix": world.prefix, "stream_group": "crew", "stream_reclaim": reclaim}
        stream = backends.stream(Settings(**given, **named))  # type: ignore[arg-type]
        assert isinstance(stream, NatsStream)
        assert stream._pace == Pace(batch=7, block=0.25, lease=4.0, idle=33.0 if reclaim else float("inf"))
        await stream.open("w1", ["mail"])
        await stream.close()
        manager = await world.manager()
        consumer = (await manager.consumer_info(world.names.stream, "crew+mail")).config
        assert (consumer.ack_wait, consumer.max_ack_pending, consumer.max_waiting) == (seconds, -1, keeping.WAITING)
        kept = (await manager.stream_info(world.names.stream)).config
        assert (kept.retention, kept.max_age, kept.discard) == ("workqueue", keeping.OLD, "old")
        assert kept.max_msgs_per_subject == keeping.MOST

    play(nats_url, body)


# What all processes have in common.


def test_a_process_with_another_group_is_told_so(nats_url: str) -> None:
    async def body(world: World) -> None:
        await world.open("w1", "default")
        with pytest.raises(SettingsError, match="give all processes of a prefix the same stream_group"):
            await world.open("w2", "default", group="others")

    play(nats_url, body)


def test_the_stream_may_be_changed_by_whoever_runs_nats(nats_url: str) -> None:
    async def body(world: World) -> None:
        await world.open("client")
        manager = await world.manager()
        config = (await manager.stream_info(world.names.stream)).config
        await manager.update_stream(config.evolve(max_age=60.0, duplicate_window=60.0, description="tuned"))
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.publish(hints(1))
        assert await got(worker) == hints(1)
        assert (await manager.stream_info(world.names.stream)).config.max_age == 60.0

    play(nats_url, body)


def test_a_stream_of_that_name_that_is_not_ours_is_refused(nats_url: str) -> None:
    async def body(world: World) -> None:
        await (await world.manager()).add_stream(name=world.names.stream, subjects=[f"{world.prefix}.mine"])
        with pytest.raises(SettingsError, match="is not ours"):
            await world.open("w1", "default")

    play(nats_url, body)


# What it costs.


def sent(stream: NatsStream) -> int:
    assert stream._line is not None
    return int(stream._line.client.stats["out_msgs"])


def test_an_idle_process_says_nothing(nats_url: str) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default", "slow", block=5)
        await asyncio.sleep(0.2)
        before = sent(worker)
        await asyncio.sleep(1)
        assert sent(worker) == before

    play(nats_url, body)


def test_a_short_block_asks_more_often(nats_url: str) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default", block=0.05)
        before = sent(worker)
        await until(lambda: sent(worker) - before >= 5, limit=3)

    play(nats_url, body)


def test_many_hints_travel_in_few_messages_and_fewer_flights(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = Line.ask

    async def noted(line: Line, subject: str, payload: bytes) -> bytes:
        asked.append(subject)
        return await ask(line, subject, payload)

    monkeypatch.setattr(Line, "ask", noted)

    async def body(world: World) -> None:
        client, worker = await world.open("client"), await world.open("w1", "default")
        await client.publish(hints(3000))
        assert {hint.key for hint in await got(worker, 3000)} == {hint.key for hint in hints(3000)}
        assert len(asked) == 1
        for hint in hints(300):
            await client.publish([hint])
        assert len(await got(worker, 300)) == 300
        assert len(asked) < 20

    play(nats_url, body)


def test_publishing_waits_for_nobody(nats_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        publishing = client.publish(hints(1000))
        with pytest.raises(StopIteration):  # it came to its end without giving up the loop once
            publishing.send(None)

    play(nats_url, body)


def test_many_hints_do_not_fill_the_memory(nats_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish(hints(20_000))
        worker = await world.open("w1", "default", batch=100)
        taken: list[Hint] = []
        async with asyncio.timeout(5):
            while len(taken) < 100:
                taken += await worker.receive(10_000)
        await asyncio.sleep(0.1)
        assert await world.pending() <= 200, "messages in hand"
        await worker.ack(taken)
        assert len({*taken, *await got(worker, 20_000 - len(taken), limit=15)}) == 20_000

    play(nats_url, body)


# The hand.


class Watch:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_hand_counts_what_is_young_and_acks_what_is_old() -> None:
    watch = Watch()
    hand = Hand(4, 10, watch)
    one, two = hints(2)
    hand.take(one, Message("r1", 1))
    watch.now += 6
    hand.take(two, Message("r2", 1))
    assert (hand.count, hand.room) == (2, 0), "it does not get on with them"
    watch.now += 5
    assert hand.count == 1
    assert hand.give([one]) == ["r1"]
    assert (hand.count, hand.moves, hand.room) == (1, True, 3)
    assert hand.give([two, two, Hint("acme/other")]) == ["r2"]
    assert (hand.count, hand.room) == (0, 4)


def test_a_hand_acks_each_message_that_brought_the_same_hint() -> None:
    hand = Hand(4, 10)
    [one] = hints(1)
    for reply in ("r1", "r2"):
        hand.take(one, Message(reply, 1))
    hand.take(one, None)
    assert [hand.give([one]), hand.give([one]), hand.give([one]), hand.give([one])] == [["r1"], ["r2"], [], []]


def test_a_hand_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "CAPACITY", 3)
    hand = Hand(100, 10)
    for number, hint in enumerate(hints(5)):
        hand.take(hint, Message(f"r{number}", 1))
    assert (hand.count, hand.left()) == (3, ["r2", "r3", "r4"])
    assert hand.give(hints(5)) == ["r2", "r3", "r4"]


# Addresses.


def test_an_address_may_name_a_user_a_token_and_several_hosts() -> None:
    assert read_address("nats://h") == Address(("nats://h:4222",))
    assert read_address("tls://ada:p%40ss@h:1,i") == Address(("tls://h:1", "tls://i:4222"), "ada", "p@ss")
    assert read_address("nats://s3cret@h/") == Address(("nats://h:4222",), token="s3cret")
    assert read_address("nats://[::1]:4333").servers == ("nats://[::1]:4333",)


@pytest.mark.parametrize("url", ["nats://", "nats://:4222", "nats://a,,b", "nats://ada:s3cret@", "nats://h:x"])
def test_an_address_without_a_server_is_refused_and_says_no_secret(url: str) -> None:
    with pytest.raises(SettingsError, match="write nats://HOST:4222") as raised:
        backends.stream(Settings(stream=url))
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("url", ["nats://ada:s3cret@h", "nats://s3cret@h", "tls://s3cret@h,i", "nats://a:s3@s3cret@h"])
def test_no_text_tells_the_password_or_the_token(url: str) -> None:
    assert "s3cret" not in redacted(f"no stream at {url!r}") + repr(Settings(stream=url))


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "perdure.streams.nats", None)
    with pytest.raises(SettingsError, match=r"perdure\[nats\]"):
        backends.stream(Settings(stream="nats://h"))


def test_locks_are_not_kept_in_nats() -> None:
    with pytest.raises(SettingsError, match="keep locks in the store"):
        backends.locks(Settings(stream="nats://h", locks="stream"), "acme")
