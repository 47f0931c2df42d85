from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from perdure import Perdure, action, workflow
from perdure.core.records import Hint
from perdure.errors import SettingsError, UsageError
from perdure.ports import Stream
from perdure.runtime import backends
from perdure.runtime.settings import Settings
from perdure.streams import inbox
from perdure.streams.kafka import KafkaStream, hand, reader, stream as adapter
from perdure.streams.kafka.hand import Hand, Part, Place
from perdure.streams.kafka.names import Names, read_address
from perdure.streams.kafka.reader import Pace
from perdure.testing.contract import StreamContract
from perdure.testing.servers.kafka import new_prefix
from tests.streams.kafka_world import Witness, World, got, owns, play, until

ONE, TWO, THREE = (Hint(f"acme/{name}", "default") for name in ("one", "two", "three"))


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same behaviour with shorter patience: the broker of the tests lets a group gather for half a session."""
    monkeypatch.setattr(reader, "SHORTEST", 1.0)
    monkeypatch.setattr(adapter, "FAREWELL", 0.3)


class TestKafkaStream(StreamContract):
    @pytest.fixture(autouse=True)
    def server(self, kafka_url: str) -> None:
        self.url = kafka_url

    async def make_streams(self, count: int) -> Sequence[Stream]:
        prefix = new_prefix()
        return [KafkaStream(self.url, prefix=prefix, block=0.1, idle=1.0) for _ in range(count)]


# Who gets what.


def test_what_is_published_before_the_first_worker_starts_is_delivered(kafka_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish([ONE, TWO])
        await client.close()
        assert set(await got(await world.open("w1", "default"), 2)) == {ONE, TWO}

    play(kafka_url, body)


def test_two_prefixes_never_meet(kafka_url: str) -> None:
    async def body(world: World) -> None:
        here, outside = await world.open("w1", "default"), await world.open("client", prefix=new_prefix())
        await here.listen("acme/one")
        await outside.publish([ONE, Hint("acme/one", to="w1"), Hint("acme/one", ended=True), Hint("", news="x")])
        await (await world.open("client")).publish([TWO])
        assert await got(here) == [TWO]

    play(kafka_url, body)


def test_each_hint_goes_to_one_of_the_workers_and_all_of_them_have_some(kafka_url: str) -> None:
    published = [Hint(f"acme/{number}", "default") for number in range(60)]

    async def body(world: World) -> None:
        client, here = await world.open("client"), await world.open("w1", "default", shards=4)
        there = await world.open("w2", "default", shards=4)
        await until(lambda: owns(here) == owns(there) == 2)
        await client.publish(published)
        parts: list[list[Hint]] = [[], []]
        async with asyncio.timeout(10):
            while len(parts[0]) + len(parts[1]) < 60:
                for part, worker in zip(parts, (here, there)):
                    while len(worker._desk.inbox._hints):  # type: ignore[union-attr]
                        part += await got(worker)
                await asyncio.sleep(0.02)
        assert min(map(len, parts)) > 5
        assert sorted(itertools.chain(*parts), key=str) == sorted(published, key=str)
        # Nobody answers for a worker that says it has no room, but somebody else
        for number in range(10):
            await here.publish([Hint(f"acme/away-{number}", "default", away=True)])
        assert {hint.key for hint in await got(there, 10)} == {f"acme/away-{number}" for number in range(10)}
        await there.close()
        await until(lambda: owns(here) == 4)
        await here.publish([Hint("acme/last", "default", away=True)])
        assert await got(here) == [Hint("acme/last", "default")]

    play(kafka_url, body)


def test_any_name_of_a_worker_and_of_a_queue_will_do(kafka_url: str) -> None:
    async def body(world: World) -> None:
        client, names = await world.open("client"), ("host/42:../..", "x" * 500, "ü}{\N{GRINNING FACE}\n")
        odd = {name: await world.open(name, name, group=f"group-{name}") for name in names}
        for name, worker in odd.items():
            await client.publish([Hint("acme/one", to=name), Hint("acme/two", name), Hint("acme/\ud800", name)])
            assert sorted(hint.key for hint in await got(worker, 2)) == ["acme/one", "acme/two"]

    play(kafka_url, body)


def test_an_end_that_nobody_here_waits_for_is_dropped(kafka_url: str) -> None:
    async def body(world: World) -> None:
        here, there = await world.open("w1"), await world.open("w2")
        await here.listen("acme/one")
        ends = [Hint(key, ended=True, status="completed", result="1") for key in ("acme/two", "acme/one")]
        await there.publish([*ends, Hint("acme/nowhere")])
        await here.publish(ends)
        assert await got(here, 2) == [ends[1], ends[1]]

    play(kafka_url, body)


def test_much_news_is_told_in_few_records(kafka_url: str) -> None:
    async def body(world: World) -> None:
        here, there = await world.open("w1"), await world.open("w2")
        ends = [Hint(f"acme/{number}", ended=True) for number in range(500)]
        for hint in ends:
            await here.listen(hint.key)
        await there.publish(ends)
        assert await got(here, 500) == ends
        consumer = Consumer({"bootstrap.servers": world.url.removeprefix("kafka://"), "group.id": "x"})
        consumer.assign([TopicPartition(world.names.news, 0, 0)])
        assert len(consumer.consume(4, 0.7)) == 3
        consumer.close()

    play(kafka_url, body)


@action
async def carried_double(who: str) -> str:
    return who + who


@workflow
async def carried_errand(who: str) -> str:
    return await carried_double(who)


def test_hints_alone_bring_the_work_of_a_client_to_all_workers(kafka_url: str) -> None:
    async def body(world: World) -> None:
        store = Witness()

        def app() -> Perdure:
            stream = KafkaStream(kafka_url, prefix=world.prefix, shards=4, block=0.1, idle=3.0)
            return Perdure(store, stream=stream, resident=10, probe="60s", grace="60s")

        async with app() as client, app() as here, app() as there, here.working(), there.working():
            await until(lambda: owns(here.stream) == owns(there.stream) == 2)
            runs = [await client.start(carried_errand, f"who-{number}") for number in range(60)]
            for number, run in enumerate(runs):
                assert await run.result(timeout=20) == f"who-{number}" * 2
            assert store.holders == {here.me, there.me}

    play(kafka_url, body)


# What is confirmed.

PROGRAM = """
import asyncio, sys
from perdure.streams.kafka import KafkaStream, reader

async def main():
    reader.SHORTEST = reader.LONGEST = 1.5  # the group misses it soon, but it waits long for its own acks
    stream = KafkaStream(sys.argv[1], prefix=sys.argv[2], block=0.1, idle=60.0)
    await stream.open("dying", ["default"])
    first = await stream.receive(1)
    await stream.ack(first)
    await asyncio.sleep(1.0)
    print(first[0].key, *(hint.key for hint in await stream.receive(10)), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_what_a_dead_worker_did_not_ack_comes_to_another_one(kafka_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish([ONE, TWO, THREE])
        dying = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, kafka_url, world.prefix, stdout=asyncio.subprocess.PIPE
        )
        assert dying.stdout is not None
        assert (await dying.stdout.readline()).split() == [b"acme/one", b"acme/two", b"acme/three"]
        heir = await world.open("heir", "default")
        await until(lambda: owns(heir) == 0)
        dying.kill()
        await dying.wait()
        assert await got(heir, 2) == [TWO, THREE], "and what it acked does not come again"

    play(kafka_url, body)


def test_what_was_acked_in_the_last_moment_does_not_come_again(kafka_url: str) -> None:
    async def body(world: World) -> None:
        client, first = await world.open("client"), await world.open("w1", "default")
        await client.publish([ONE])
        assert await got(first) == [ONE]
        await first.close()
        await client.publish([TWO])
        assert await got(await world.open("w2", "default")) == [TWO]

    play(kafka_url, body)


def test_a_full_worker_takes_no_more_until_it_has_room(kafka_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish([Hint(f"acme/{number}", "default") for number in range(60)])
        worker = await world.serving("w1", "default", batch=10, idle=2)
        taken: list[Hint] = []
        while len(taken) < 20:
            taken += await worker.receive(1000)
        await asyncio.sleep(0.5)
        desk = worker._desk
        assert desk is not None and desk._hand.count <= 30
        await worker.ack(taken)
        rest = [hint for hint in await got(worker, 60 - len(taken)) if hint not in taken]
        assert len({hint.key for hint in [*taken, *rest]}) == 60

    play(kafka_url, body)


def part(number: int = 0) -> Part:
    return Part("topic", number)


def test_a_partition_is_confirmed_without_a_gap() -> None:
    mine = Hand(60)
    for offset, hint in enumerate((ONE, TWO, THREE), 5):
        mine.take(hint, Place(part(), offset))
    assert mine.done() == {part(): 5}
    mine.give([TWO])
    assert mine.done() == {}, "the first one is not acked"
    mine.give([ONE])
    assert mine.done() == {part(): 7}
    mine.give([THREE, THREE])
    assert (mine.done(), mine.done(), mine.count) == ({part(): 8}, {}, 0)


def test_a_hint_that_nobody_acks_holds_its_partition_for_a_while_only() -> None:
    now = [0.0]
    mine = Hand(20, clock=lambda: now[0])
    mine.take(ONE, Place(part(), 0))
    now[0] = 15
    mine.take(TWO, Place(part(), 1))
    mine.age()
    assert mine.done() == {part(): 0}
    now[0] = 20
    mine.age()
    assert (mine.done(), mine.count) == ({part(): 1}, 1)
    mine.give([ONE, TWO])
    assert mine.done() == {part(): 2}


def test_a_partition_that_is_not_ours_any_more_is_not_confirmed() -> None:
    mine = Hand(60)
    mine.take(ONE, Place(part(0), 3))
    mine.take(TWO, Place(part(1), 8))
    mine.lose([part(0)])
    mine.give([ONE, TWO])
    assert mine.done() == {part(1): 9}


def test_the_same_hint_twice_is_acked_twice() -> None:
    mine = Hand(60)
    for offset in (0, 1):
        mine.take(ONE, Place(part(), offset))
    mine.give([ONE])
    assert mine.done() == {part(): 1}
    mine.give([ONE])
    assert mine.done() == {part(): 2}


def test_without_reclaim_hints_are_confirmed_as_they_come() -> None:
    mine = Hand(60, confirms=False)
    mine.take(ONE, Place(part(), 4))
    assert (mine.done(), mine.count) == ({part(): 5}, 1)


def test_what_is_in_hand_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand, "CAPACITY", 3)
    mine = Hand(60)
    for offset in range(10):
        mine.take(Hint(f"acme/{offset}"), Place(part(), offset))
    assert (mine.count, mine.done()) == (3, {part(): 7})
    assert inbox.CAPACITY > 3


def test_a_hint_that_nobody_acks_is_passed_by_while_nothing_else_happens(kafka_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish([ONE, TWO])
        worker = await world.open("w1", "default", idle=1.0)
        assert len([*await worker.receive(1), *await worker.receive(1)]) == 2
        await worker.ack([TWO])
        await until(lambda: committed(world) == 2)

    def committed(world: World) -> int:
        consumer = Consumer(
            {"bootstrap.servers": world.url.removeprefix("kafka://"), "group.id": world.names.consumers}
        )
        [found] = consumer.committed([TopicPartition(world.names.queue("default"), 0)], timeout=5)
        consumer.close()
        return found.offset

    play(kafka_url, body)


# What is at the broker.


def test_topics_have_the_partitions_and_the_retention_that_are_meant(kafka_url: str) -> None:
    async def body(world: World) -> None:
        await world.serving("w1", "default", shards=3, parts=3)
        topics = world.admin.list_topics(timeout=5).topics
        ours = {name: len(topic.partitions) for name, topic in topics.items() if name.startswith(world.prefix)}
        assert ours == {f"{world.prefix}.q.default": 3, f"{world.prefix}.news": 1}
        admin = world.admin
        for asked in admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in ours]).values():
            kept = {name: entry.value for name, entry in asked.result(5).items()}
            assert (kept["cleanup.policy"], kept["retention.ms"], kept["segment.ms"]) == ("delete", *2 * ("3600000",))

    play(kafka_url, body)


def test_records_that_cannot_be_read_are_left_out(kafka_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        for value in (b"\xff\xfe", b"", b"[1"):
            world.write(world.names.news, value)
        for value in (b"\xff\xfe", b""):
            world.write(world.names.queue("default"), value)
        await client.publish([ONE, Hint("acme/two", to="w1")])
        assert {hint.key for hint in await got(worker, 2)} == {"acme/one", "acme/two"}
        assert worker.trouble == ""

    with caplog.at_level(logging.WARNING, "perdure.streams"):
        play(kafka_url, body)
    assert caplog.text.count(".q.default cannot be read") == 2
    assert caplog.text.count(".news cannot be read") >= 3


def test_what_is_too_large_for_a_record_is_lost_alone(kafka_url: str) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1"), await world.open("client")
        await client.publish([Hint("acme/" + "x" * 2_000_000, to="w1"), Hint("acme/two", to="w1")])
        assert [hint.key for hint in await got(worker)] == ["acme/two"]
        assert (client.lost, client.trouble) == (1, "")

    play(kafka_url, body)


# Names, addresses and settings.


def test_no_two_names_are_the_same_topic() -> None:
    words = ["a", "a.q", "a_q", "a.b", "a_b", "a-b", "a.news", "news", "q", "a_2eb", "x" * 60, "x" * 61]
    topics = [topic for word in words for topic in (Names(word).news, *(Names(word).queue(queue) for queue in words))]
    # Kafka takes names for the same that differ in dots and underscores only.
    assert len({topic.replace(".", "_") for topic in topics}) == len(topics)
    assert len({Names(prefix, group).consumers for prefix in words for group in words}) == len(words) ** 2
    assert max(map(len, [*topics, Names("." * 64).queue("." * 900)])) <= 249


@pytest.mark.parametrize("prefix", ["", "a:b", "a b", "ü", "x" * 65])
def test_a_prefix_that_cannot_be_is_refused(prefix: str) -> None:
    with pytest.raises(SettingsError, match="prefix"):
        KafkaStream("kafka://localhost", prefix=prefix)


@pytest.mark.parametrize("wrong", [{"shards": 0}, {"batch": 0}, {"block": 0}, {"group": ""}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        KafkaStream("kafka://localhost", **wrong)


def test_an_address_says_who_we_are_and_how() -> None:
    found = read_address("kafkas://ada:p%40ss@one,two:9093?mechanism=scram-sha-256&ca=/etc/ca.pem")
    assert found.place == "one:9092,two:9093"
    assert found.options == {
        "bootstrap.servers": "one:9092,two:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ada",
        "sasl.password": "p@ss",
        "ssl.ca.location": "/etc/ca.pem",
    }
    assert read_address("kafka://one").options["security.protocol"] == "PLAINTEXT"


@pytest.mark.parametrize(
    "url",
    [
        "kafka://",
        "kafka://a:secret@h/topic",
        "kafka://a:secret@h?x=1",
        "kafka://h?mechanism=x",
        "kafka://a:secret@h?ca=f",
    ],
)
def test_an_address_that_cannot_be_is_explained(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        KafkaStream(url)
    assert "secret" not in str(raised.value)


def test_settings_reach_the_stream() -> None:
    given: dict[str, Any] = {"stream_batch": 7, "stream_block": 0.25, "stream_shards": 4, "stream_prefix": "shop"}
    stream = backends.stream(Settings(stream="kafka://h", stream_reclaim=False, lease=4.0, **given))
    assert isinstance(stream, KafkaStream)
    assert (stream._pace, stream._shards) == (Pace(batch=7, block=0.25, idle=8.0, timeout=adapter.TIMEOUT), 4)
    assert (stream._names, stream._reclaim) == (Names("shop", "workers"), False)


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "perdure.streams.kafka", None)
    with pytest.raises(SettingsError, match=r"pip install 'perdure\[kafka\]'"):
        backends.stream(Settings(stream="kafka://localhost"))


def test_a_stream_that_is_not_open_says_so() -> None:
    stream = KafkaStream("kafka://localhost")
    assert (stream.carries, stream.trouble, stream.lost) == (False, "", 0)
    with pytest.raises(UsageError, match="not open"):
        asyncio.run(stream.receive(1))
