"""The port's contract over a real RabbitMQ, and what the adapter promises beyond it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from perdure.core.records import Hint
from perdure.errors import SettingsError
from perdure.ports import Stream
from perdure.runtime import backends
from perdure.runtime.settings import Settings
from perdure.streams.rabbitmq import RabbitStream, wire
from perdure.streams.rabbitmq.address import read_address
from perdure.streams.rabbitmq.hand import STALLED
from perdure.streams.rabbitmq.names import Names, work, worker as name_of
from perdure.streams.rabbitmq.shape import OWN, WAITING
from perdure.streams.rabbitmq.stream import NEAR
from perdure.testing.contract.streams import StreamContract
from perdure.testing.servers.rabbitmq import RabbitServer, new_prefix
from tests.streams.rabbit_world import ONE, TWO, World, got, play, until


class TestContract(StreamContract):
    """Every sentence of the port."""

    @pytest.fixture(autouse=True)
    def _at(self, rabbit_url: str) -> None:
        self.url = rabbit_url

    async def make_streams(self, count: int) -> Sequence[Stream]:
        prefix = new_prefix()
        return [RabbitStream(self.url, prefix=prefix) for _ in range(count)]


# Who gets what.


def test_work_is_shared_and_nobody_gets_what_another_has(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        workers = [await world.open(f"w{number}", "default") for number in (1, 2)]
        client = await world.open("client")
        keys = [f"acme/{number}" for number in range(40)]
        for key in keys:
            await client.publish([Hint(key, "default")])
        here, there = [await got(worker, 20) for worker in workers]  # each in turn
        assert sorted(hint.key for hint in here + there) == sorted(keys)

    play(rabbit_url, body)


def test_what_is_published_before_the_first_worker_starts_is_delivered(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish([ONE])
        await client.close()
        assert await got(await world.open("w1", "default")) == [ONE]

    play(rabbit_url, body)


def test_two_prefixes_never_meet(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        other = World(rabbit_url)
        try:
            theirs, client = await other.open("w1", "default"), await other.open("client")
            await theirs.listen("acme/one")
            ours = await world.open("w1", "default")
            news = Hint("", news="breaker:charge:open:1")
            await ours.publish([Hint("acme/one", ended=True), news])
            await (await world.open("client")).publish([ONE, Hint("acme/mine", to="w1")])
            assert {hint.key for hint in await got(ours, 2)} == {"acme/one", "acme/mine"}
            await client.publish([TWO])
            assert await theirs.receive(100) == [TWO], "they heard something of ours"
        finally:
            await other.close()

    play(rabbit_url, body)


def test_another_group_on_the_same_prefix_is_refused(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        await world.open("w1", "default", group="workers")
        with pytest.raises(SettingsError, match="use the same stream_group everywhere.*") as refused:
            await world.open("w2", "default", group="others")
        assert "'others'" in str(refused.value) and "'workers'" in str(refused.value)

    play(rabbit_url, body)


def test_work_that_is_sent_away_goes_to_another_worker(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        full, free = await world.open("w1", "default"), await world.open("w2", "default")
        for number in range(4):  # whose turn it is changes with each
            await full.publish([Hint(f"acme/{number}", "default", away=True)])
            assert await got(free) == [Hint(f"acme/{number}", "default")]

    play(rabbit_url, body)


def test_work_that_nobody_else_takes_comes_back(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        alone = await world.open("w1", "default")
        await alone.publish([Hint("acme/one", "default", away=True)])
        assert await got(alone) == [ONE]
        await until(lambda: nothing(world))

    async def nothing(world: World) -> bool:
        return await world.waiting() == 0

    play(rabbit_url, body)


def test_a_worker_that_does_not_get_on_leaves_new_work_to_others(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        full, free = await world.open("w1", "default"), await world.open("w2", "default")
        await full.publish([Hint(f"acme/{number}", "default") for number in range(NEAR)])
        await asyncio.sleep(STALLED)
        await full.publish([Hint(f"acme/more-{number}", "default") for number in range(10)])
        assert all("more" in hint.key for hint in await got(free, 5))

    play(rabbit_url, body)


def test_names_may_be_as_long_as_they_are(rabbit_url: str) -> None:
    queues = ["q" * 199 + end for end in "ab"]
    me = "w" * 200

    async def body(world: World) -> None:
        prefix = world.prefix.ljust(64, "x")
        worker = await world.open(me, *queues, prefix=prefix)
        client = await world.open("client", prefix=prefix)
        hints = [Hint("acme/one", queues[0]), Hint("acme/two", queues[1]), Hint("acme/three", "", to=me)]
        await client.publish(hints)
        assert sorted(await got(worker, 3), key=str) == sorted(hints, key=str)

    play(rabbit_url, body)


def test_a_name_that_cannot_be_written_is_dropped_and_raises_nothing(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        bad = "acme/\ud800"
        await client.publish([Hint(bad, "default"), Hint(bad, to="w1"), Hint(bad, ended=True), Hint("", news=bad), ONE])
        assert await got(worker) == [ONE]
        assert client.carries

    play(rabbit_url, body)


def test_two_that_have_the_same_name_do_not_lock_each_other_out(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        # As after a cut that the broker has not noticed yet.
        old, new = await world.open("w1", "default"), await world.open("w1", "default")
        await (await world.open("client")).publish([Hint("acme/mine", to="w1")])
        for stream in (old, new):
            assert await got(stream) == [Hint("acme/mine", to="w1")]

    play(rabbit_url, body)


# Acks.


def test_what_a_dead_worker_took_and_did_not_ack_comes_to_another_one(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        client, dying = await world.open("client"), await world.open("w1", "default")
        await client.publish([ONE])
        assert await got(dying) == [ONE]
        await client.publish([TWO])
        assert await dying.receive(10) == [TWO]
        heir = await world.open("w2", "default")
        await world.die(dying)
        assert await got(heir) == [TWO], "what was acked came again"
        await until(lambda: nothing(world))

    async def nothing(world: World) -> bool:
        return await world.waiting() == 0

    play(rabbit_url, body)


def test_who_leaves_gives_back_what_it_has_and_forgets_no_ack(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        client, leaving = await world.open("client"), await world.open("w1", "default")
        for number in range(100):
            await client.publish([Hint(f"acme/{number}", "default")])
        done = {hint.key for hint in await got(leaving, 60)}
        await leaving.close()
        left = {hint.key for hint in await got(await world.open("w2", "default"), 100 - len(done))}
        assert not done & left and len(done | left) == 100

    play(rabbit_url, body)


def test_what_is_not_confirmed_in_time_goes_to_another_worker(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        slow, client = await world.open("w1", "default", idle=0.5), await world.open("client")
        await client.publish([ONE])
        assert await slow.receive(10) == [ONE]
        other = await world.open("w2", "default")
        began = time.monotonic()
        assert await got(other) == [ONE]
        assert time.monotonic() - began > 0.2, "it was taken away too early"
        await slow.ack([ONE])  # too late: it is the other's, and that is no error
        await client.publish([TWO])
        assert await got(slow) == [TWO]

    play(rabbit_url, body)


def test_where_nothing_is_reclaimed_it_stays_where_it_is(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        slow = await world.open("w1", "default", idle=float("inf"), lease=0.1)
        client, other = await world.open("client"), await world.open("w2", "slow")
        await client.publish([ONE])
        assert await slow.receive(10) == [ONE]
        await other.close()
        other = await world.open("w2", "default")
        await asyncio.sleep(0.6)
        await slow.ack([ONE])
        await slow.close()
        await client.publish([TWO])
        assert await got(other) == [TWO]

    play(rabbit_url, body)


def test_what_was_given_back_unread_is_not_received_twice(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        busy, client = await world.open("w1", "default", idle=0.5), await world.open("client")
        await client.publish([ONE])
        await until(lambda: given_back(busy))  # it comes back to the same worker, as nobody else is there
        assert await busy.receive(10) == [ONE]
        await busy.ack([ONE])
        await client.publish([TWO])
        assert await busy.receive(10) == [TWO]

    def given_back(stream: RabbitStream) -> bool:
        assert stream._desk is not None
        return len(stream._desk.inbox._hints) > 1

    play(rabbit_url, body)


def test_a_worker_has_no_more_in_hand_than_it_may(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        full = await world.open("w1", "default", batch=3)
        for number in range(10):
            await client.publish([Hint(f"acme/{number}", "default")])
        hints = list(await full.receive(10))
        while len(hints) < 3:
            hints += await full.receive(10)
        await until(lambda: left(world, 7))
        await full.ack(hints[:1])
        await until(lambda: left(world, 6))

    async def left(world: World, count: int) -> bool:
        return await world.waiting() == count

    play(rabbit_url, body)


def test_a_full_worker_still_hears_what_is_addressed_to_it(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        full, client = await world.open("w1", "default", batch=1), await world.open("client")
        await client.publish([ONE, TWO])
        assert await full.receive(10) == [ONE]
        mine = [Hint(f"acme/{number}", to="w1") for number in range(5)]
        await client.publish(mine)
        assert await got(full, 5) == mine

    play(rabbit_url, body)


def test_what_waits_in_queues_has_a_bound(rabbit: RabbitServer) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        assert worker._desk is not None
        said = await asyncio.to_thread(rabbit.do, "list_queues", "name", "arguments")
        found = dict(line.split("\t") for line in said.splitlines() if line.startswith(world.prefix))
        assert f'"x-max-length",{WAITING}' in found[world.names.queue("default")].replace(", ", ",")
        assert f'"x-max-length",{OWN}' in found[worker._desk.receiver._own].replace(", ", ",")

    play(rabbit.url, body)


def test_many_hints_share_messages_which_are_acked_when_all_of_it_is_done(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish([Hint(f"acme/{number}", "default") for number in range(400)])
        await until(lambda: some(world))
        assert await world.waiting() <= 50
        worker = await world.open("w1", "default", batch=1)
        hints = list(await worker.receive(100))
        assert len(hints) == 8
        await worker.ack(hints[:7])
        await world.die(worker)
        again = {hint.key for hint in await got(await world.open("w2", "default"), 400)}
        assert hints[7].key in again and len(again) == 400

    async def some(world: World) -> bool:
        return await world.there(world.names.queue("default")) and await world.waiting() == 50

    play(rabbit_url, body)


def test_what_cannot_be_read_is_dropped_and_does_not_come_back(
    rabbit_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        for bad in (b"", b"\xff", b"{}", b"[1]", b'["w9", "default", []]', b"[" * 100_000):
            await world.post(work("default"), bad, "default")
            await world.post(name_of("w1"), bad)
        await client.publish([ONE])
        assert await got(worker) == [ONE]
        await world.die(worker)
        await client.publish([TWO])
        assert await got(await world.open("w2", "default")) == [TWO], "it came back"

    play(rabbit_url, body)
    assert caplog.text.count("cannot be read and is dropped") == 6


def test_what_a_stranger_says_of_a_message_does_not_matter(rabbit_url: str) -> None:
    body_of = b'["w9", "default", ["acme/one"]]'
    odd = ContentHeader(body_size=len(body_of), properties=commands.Basic.Properties(content_type="odd"))

    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        call = commands.Basic.Publish(exchange=world.names.exchange, routing_key=work("default"))
        parts = [frame.marshal(part, wire.CHANNEL) for part in (call, odd, ContentBody(body_of))]
        (await world.line())._send(b"".join(parts).replace(b"odd", b"\xff\xfe\xfd"))  # no text that can be decoded
        assert await worker.receive(10) == [ONE], "a call to look says that it cost the connection"

    play(rabbit_url, body)


def test_nothing_stays_behind_but_empty_queues(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        assert worker._desk is not None
        own = worker._desk.receiver._own
        assert own.startswith(f"{world.prefix}:")
        await (await world.open("client")).publish([ONE])
        assert await got(worker) == [ONE]
        await worker.close()
        assert await world.waiting() == 0
        await until(lambda: gone(world, own))

    async def gone(world: World, own: str) -> bool:
        return not await world.there(own)

    play(rabbit_url, body)


# News.


def test_many_ends_with_long_results_arrive(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        here, there = await world.open("client"), await world.open("w1", "default")
        ends = [Hint(f"acme/{number}", ended=True, status="completed", result="x" * 2000) for number in range(300)]
        for end in ends:
            await here.listen(end.key)
        await there.publish(ends)
        assert sorted(await got(here, 300), key=str) == sorted(ends, key=str)

    play(rabbit_url, body)


def test_a_message_may_be_longer_than_a_frame(rabbit_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGE", wire.SMALL)

    async def body(world: World) -> None:
        here, there = await world.open("client"), await world.open("w1", "default")
        end = Hint("acme/one", ended=True, status="completed", result="x" * 20_000)
        await here.listen(end.key)
        await there.publish([end])
        assert await got(here) == [end]

    play(rabbit_url, body)


def test_who_listens_at_the_same_time_waits_for_the_same_confirmation(rabbit_url: str) -> None:
    async def body(world: World) -> None:
        here, there = await world.open("client"), await world.open("w1", "default")
        await there.publish([ONE])
        assert await got(there) == [ONE]
        await asyncio.gather(*(here.listen("acme/one") for _ in range(5)))
        await there.publish([Hint("acme/one", ended=True)])
        assert await got(here) == [Hint("acme/one", ended=True)]

    play(rabbit_url, body)


# The address.


def test_tls(rabbit: RabbitServer) -> None:
    assert rabbit.certificate is not None
    trusting = f"{rabbit.tls_url}?cafile={rabbit.certificate[0]}"

    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", url=trusting), await world.open("client")
        await client.publish([ONE])
        assert await got(worker) == [ONE]
        with pytest.raises(SettingsError, match=r"certificate .* is not trusted .*\?cafile="):
            await world.open("w2", "default", url=rabbit.tls_url)

    play(rabbit.url, body)


def test_who_is_not_let_in_is_told_so_without_the_password(rabbit: RabbitServer) -> None:
    place = f"127.0.0.1:{rabbit.port}"

    async def body(world: World) -> None:
        for url, why in ((f"amqp://guest:s3cret@{place}/", "Login was refused"), (f"{rabbit.url}nowhere", "nowhere")):
            with pytest.raises(SettingsError, match=f"RabbitMQ at {place} refuses us .*{why}.*mend") as refused:
                await world.open("w1", "default", url=url)
            assert "s3cret" not in str(refused.value)

    play(rabbit.url, body)


def test_rights_to_the_prefix_are_enough_and_needed(rabbit: RabbitServer) -> None:
    rabbit.do("add_user", "shop", "pass/word")
    rabbit.do("set_permissions", "shop", "^shop:", "^shop:", "^shop:")
    url = f"amqp://shop:pass%2Fword@127.0.0.1:{rabbit.port}/"

    async def body(world: World) -> None:
        worker = await world.open("w1", "default", url=url, prefix="shop")
        client = await world.open("client", url=url, prefix="shop")
        await client.listen("acme/one")
        await client.publish([ONE, Hint("acme/mine", to="w1")])
        assert len(await got(worker, 2)) == 2
        await worker.publish([Hint("acme/one", ended=True)])
        assert await got(client) == [Hint("acme/one", ended=True)]
        with pytest.raises(SettingsError, match=f"refuses us .*{world.prefix}:hints.* the rights"):
            await world.open("w2", "default", url=url)

    play(rabbit.url, body)


def test_the_settings_reach_the_broker(rabbit_url: str) -> None:
    prefix = new_prefix()
    given: dict[str, Any] = {"stream": rabbit_url, "stream_prefix": prefix, "stream_group": "crew", "stream_batch": 1}

    async def body(world: World) -> None:
        idle = backends.stream(Settings(**given, stream_idle=1.0))
        await idle.open("w1", ["default"])
        try:
            client = await world.open("client", prefix=prefix, group="crew")
            await client.publish([ONE, TWO])
            assert await idle.receive(10) == [ONE], "more than the batch"
            world.names = Names(prefix, "crew")
            assert await world.waiting() == 1
            patient = backends.stream(Settings(**given, stream_reclaim=False))
            await patient.open("w2", ["default"])
            try:
                assert await patient.receive(10) == [TWO]
                await patient.ack([TWO])
                assert await asyncio.wait_for(patient.receive(10), 5) == [ONE], "it was not given back after a second"
            finally:
                await patient.close()
        finally:
            await idle.close()

    play(rabbit_url, body)


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "perdure.streams.rabbitmq")
    monkeypatch.setitem(sys.modules, "pamqp", None)
    for module in [name for name in sys.modules if name.startswith("perdure.streams.rabbitmq.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(SettingsError, match=r"pip install 'perdure\[rabbitmq\]'"):
        backends.stream(Settings(stream="amqp://host"))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("amqp://host:port/", "amqp://USER:PASSWORD@HOST:5672/VHOST"),
        ("amqps://host/?verify=no", "unknown option verify; use cafile"),
        ("amqp://host/?cafile=ca.pem", "amqps:// rather than amqp://"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        RabbitStream(url)


def test_certificates_that_are_not_there_are_named() -> None:
    with pytest.raises(SettingsError, match=r"cannot be read \(nowhere.pem\)"):
        read_address("amqps://host/?cafile=nowhere.pem").context()


@pytest.mark.parametrize("options", [{"prefix": "a:b"}, {"prefix": ""}, {"group": ""}, {"batch": 0}, {"idle": 0.0}])
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        RabbitStream("amqp://host", **options)


@pytest.mark.parametrize("steps", range(8))
def test_a_stream_can_be_closed_at_any_moment(rabbit_url: str, steps: int) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        await worker.publish([Hint("acme/one", "slow")])
        for _ in range(steps):
            await asyncio.sleep(0)
        await asyncio.wait_for(worker.close(), 5)

    play(rabbit_url, body)
