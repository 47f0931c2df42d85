"""What goes wrong between a worker and a store in Redis, on real servers."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure.core import events
from perdure.core.events import ActionSettled, Started, TakenOver
from perdure.core.records import Commit, Gone, Held
from perdure.errors import OutcomeUnknown, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from perdure.stores.redis import RedisStore, store as module, wires
from perdure.testing.contract import (
    GRACE,
    LEASE,
    ONE,
    TWO,
    Hand,
    accepted,
    begin,
    begun,
    head_of,
    ids,
    kinds,
    letter,
    log,
    settled,
    take,
)
from perdure.testing.invariants import check_log
from perdure.testing.proxy import Proxy
from perdure.testing.servers.valkey import ValkeyServer, new_prefix
from tests.stores.test_redis_store import at, client_of, fresh, opened


@asynccontextmanager
async def through(url: str, **options: Any) -> AsyncIterator[tuple[RedisStore, Proxy, RedisStore]]:
    """A store behind a proxy, the proxy, and a store with a wire of its own."""
    parts = urlsplit(url)
    prefix = new_prefix()
    async with Proxy(parts.hostname or "127.0.0.1", parts.port or 6379) as proxy:
        async with opened(fresh(url, prefix=prefix)) as direct:
            near = f"redis://127.0.0.1:{proxy.port}{parts.path}"
            async with opened(fresh(near, prefix=prefix, **options)) as store:
                yield store, proxy, direct


@pytest.fixture(scope="module")
def own_server() -> Iterator[ValkeyServer]:
    """A durable server that a test may do anything to."""
    with ValkeyServer("--repl-diskless-sync-delay", "0", durable=True) as server:
        yield server


# Lost connections


def test_a_commit_whose_reply_is_lost_is_unknown_and_was_written(redis_url: str) -> None:
    async def scenario() -> None:
        async with through(redis_url) as (store, proxy, direct):
            hand = await begun(store)
            await hand.commit(settled(1))
            commit = await hand.prepare(settled(2))
            proxy.cut("reply")
            with pytest.raises(OutcomeUnknown, match="may or may not"):
                await store.commit([commit], GRACE)
            again = await take(store)
            assert kinds(again.held.rows) == [Started, ActionSettled, ActionSettled, TakenOver]
            assert await again.commit(settled(3)) == "ok"
            check_log(await log(direct), ONE)

    asyncio.run(scenario())


def test_a_commit_whose_request_is_lost_is_unknown_and_was_not_written(redis_url: str) -> None:
    async def scenario() -> None:
        async with through(redis_url) as (store, proxy, _):
            hand = await begun(store)
            await hand.commit(settled(1))
            commit = await hand.prepare(settled(2))
            proxy.cut("request")
            with pytest.raises(OutcomeUnknown):
                await store.commit([commit], GRACE)
            again = await take(store)
            assert kinds(again.held.rows) == [Started, ActionSettled, TakenOver]

    asyncio.run(scenario())


def test_what_is_repeated_after_a_lost_reply_is_the_same(redis_url: str) -> None:
    async def scenario() -> None:
        async with through(redis_url) as (store, proxy, direct):
            await begun(
                store, TWO
            )  # the server knows the scripts by now: what is lost is not its word that it does not
            await accepted(store, letter(key=TWO))
            proxy.cut("reply")
            with pytest.raises(OutcomeUnknown):
                await store.start([begin()], GRACE)
            assert await store.start([begin()], GRACE) == ["same"]
            proxy.cut("reply")
            with pytest.raises(OutcomeUnknown):
                await store.send([letter()], GRACE)
            assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["duplicate"]
            assert ids((await direct.mail([ONE]))[ONE]) == ["m1"]

    asyncio.run(scenario())


def test_a_hold_whose_reply_is_lost_is_known_to_whoever_holds_again(redis_url: str) -> None:
    async def scenario() -> None:
        async with through(redis_url) as (store, proxy, direct):
            await begun(store, TWO)
            await store.start([begin()], GRACE)
            proxy.cut("reply")
            with pytest.raises(OutcomeUnknown):
                await store.hold([ONE], "w1", LEASE)
            assert (await head_of(direct)).holder == "w1"
            assert kinds((await take(store)).held.rows) == [Started, TakenOver]

    asyncio.run(scenario())


def test_of_a_hold_in_parts_what_was_held_is_told(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 1)

    async def scenario() -> None:
        async with through(redis_url) as (store, proxy, _):
            await store.start([begin(ONE), begin(TWO)], GRACE)
            proxy.cut("request", at=TWO.encode())
            first, second = await store.hold([ONE, TWO], "w1", LEASE)
            assert isinstance(first, Held)
            assert second == Gone(TWO)
            assert isinstance((await store.hold([TWO], "w1", LEASE))[0], Held)

    asyncio.run(scenario())


def test_a_lost_read_is_unavailable_and_the_next_one_connects_again(redis_url: str) -> None:
    async def scenario() -> None:
        async with through(redis_url) as (store, proxy, _):
            await store.start([begin()], GRACE)
            assert await store.head(ONE)
            proxy.cut("reply")
            with pytest.raises(StoreUnavailable, match="lost"):
                await store.head(ONE)
            assert await store.head(ONE)

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["ended", "reset"])
def test_a_connection_that_was_ended_meanwhile_is_not_used_again(redis_url: str, how: str) -> None:
    async def scenario() -> None:
        async with through(redis_url) as (store, proxy, _):
            hand = await begun(store)
            for writer in proxy._writers if how == "reset" else ():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            proxy.sever()
            while any(not (wire._reader.at_eof() or wire._reader.exception()) for wire in store._work._free):
                await asyncio.sleep(0.01)
            assert await hand.commit(settled()) == "ok"

    asyncio.run(scenario())


def test_silence_is_a_lost_connection(redis_url: str) -> None:
    async def scenario() -> None:
        async with through(redis_url, timeout="1") as (store, proxy, _):
            hand = await begun(store)
            commit = await hand.prepare(settled(2))
            proxy.swallow()
            with pytest.raises(OutcomeUnknown):
                await store.commit([commit], GRACE)
            with pytest.raises(StoreUnavailable):
                await store.head(ONE)
            proxy.heal()
            assert isinstance((await store.hold([ONE], "w1", LEASE))[0], Held)

    asyncio.run(scenario())


def test_a_call_that_is_given_up_leaves_no_answer_for_the_next(redis_url: str) -> None:
    async def scenario() -> None:
        async with through(redis_url) as (store, proxy, _):
            await store.start([begin(), begin(TWO)], GRACE)
            proxy.delay = 0.05
            asked = asyncio.create_task(store.head(ONE))
            await asyncio.sleep(0.02)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            assert (await head_of(store, TWO)).key == TWO

    asyncio.run(scenario())


def test_many_calls_at_once_share_few_connections(redis_url: str) -> None:
    async def scenario() -> None:
        url = fresh(redis_url)
        async with opened(url) as store, client_of(url) as client:
            await client.client_setname("us")
            before = len(await client.client_list())
            await store.start([begin()], GRACE)
            heads = await asyncio.gather(*(store.head(ONE) for _ in range(300)))
            assert all(heads)
            assert len(await client.client_list()) - before <= module.CALLS + module.WORK

    asyncio.run(scenario())


def test_a_call_under_way_while_the_store_is_closed_leaves_no_connection(redis_url: str) -> None:
    async def scenario() -> None:
        async with through(redis_url) as (store, proxy, _):
            made: list[Any] = []
            connected = store._calls._connected

            async def counted() -> Any:
                made.append(await connected())
                return made[-1]

            store._calls._connected = counted  # type: ignore[method-assign]
            while store._calls._free:
                await store._calls._free.pop().disconnect()
            async with client_of(redis_url) as client:
                await client.script_flush()  # the call needs a second connection, or the same once more
            proxy.delay = 0.1
            call = asyncio.create_task(store.head(ONE))
            while not made:
                await asyncio.sleep(0.01)
            await store.close()
            assert await call is None
            assert not any(wire.is_connected for wire in made)

    asyncio.run(scenario())


def test_without_a_server_nothing_was_written() -> None:
    async def scenario(server: ValkeyServer) -> None:
        async with opened(at(server)) as store:
            await store.start([begin()], GRACE)
            server.kill()
            with pytest.raises(StoreError):
                await store.start([begin(TWO)], GRACE)
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await store.start([begin(TWO)], GRACE)
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await RedisStore(at(server)).open()
            server.start()
            assert await store.start([begin(TWO), begin()], GRACE) == ["created", "same"]

    with ValkeyServer(durable=True) as server:
        asyncio.run(scenario(server))


# A server that dies


def test_a_server_that_is_killed_loses_nothing_that_was_answered() -> None:
    async def worker(store: RedisStore, number: int, done: dict[str, list[str]]) -> None:
        """Starts, sends and folds until the server is gone; keeps what was answered."""
        for turn in range(10_000):
            key = f"acme/{number}-{turn}"
            answered = done.setdefault(key, [])
            try:
                hand = await begun(store, key)
                answered.append("started")
                await accepted(store, letter(key=key))
                answered.append("sent")
                assert await hand.commit(settled(1), letter(key=key), children=[begin(f"{key}.1")]) == "ok"
                answered.append("committed")
                assert await hand.end() == "ok"
                answered.append("ended")
            except StoreError:
                return

    async def scenario(server: ValkeyServer) -> None:
        done: dict[str, list[str]] = {}
        async with opened(at(server, prefix="kept")) as store:
            workers = [asyncio.create_task(worker(store, number, done)) for number in range(4)]
            while len(done) < 60:
                await asyncio.sleep(0.01)
            server.kill()
            await asyncio.gather(*workers)
            server.start()
            interrupted = 0
            for key, answered in done.items():
                rows, head = await log(store, key), await store.head(key)
                check_log(rows, key)
                if "started" in answered:
                    assert head is not None
                if "sent" in answered:
                    assert await store.message(key, "m1") is not None
                # All of a commit is there, or nothing of it.
                child = await store.head(f"{key}.1")
                assert (child is not None) == (len(rows) >= 3)
                if "committed" in answered:
                    assert len(rows) >= 3
                if "ended" in answered:
                    assert head is not None
                    assert head.status == "completed"
                interrupted += answered[-1:] != ["ended"]
            assert 1 <= interrupted <= 4

    with ValkeyServer(durable=True) as server:
        asyncio.run(scenario(server))


def test_a_file_that_ends_in_the_middle_of_a_commit_has_nothing_of_it() -> None:
    async def scenario(server: ValkeyServer) -> None:
        url = at(server, prefix="torn")
        async with opened(url) as store:
            hands = [await begun(store, key) for key in (ONE, TWO)]
            group = [await hand.prepare(settled(), children=[begin(f"{hand.key}.1")]) for hand in hands]
            assert await store.commit(group, GRACE) == ["ok", "ok"]
        server.kill()
        file = max(server.folder.glob("appendonlydir/*.incr.aof"), key=lambda one: one.stat().st_size)
        whole = file.read_bytes()
        file.write_bytes(whole[: whole.rindex(b"MULTI") + 400])
        server.start()
        async with opened(url) as store:
            assert [kinds(await log(store, key)) for key in (ONE, TWO)] == [[Started], [Started]]
            assert [await store.head(f"{key}.1") for key in (ONE, TWO)] == [None, None]
            assert await store.commit(group, GRACE) == ["ok", "ok"]

    with ValkeyServer(durable=True) as server:
        asyncio.run(scenario(server))


def test_the_time_is_not_ahead_of_the_servers_though_it_took_long_to_ask_for_it(own_server: ValkeyServer) -> None:
    async def scenario() -> None:
        async with opened(fresh(own_server.url)) as store, opened(fresh(own_server.url)) as other:
            await store.now()
            await asyncio.to_thread(own_server.do, "CLIENT", "PAUSE", "500")
            await store.next_due(["default"], ["work@1"])
            told = await store.now()
            assert told <= await other.now()

    asyncio.run(scenario())


# A server that refuses


def test_a_full_memory_takes_nothing_of_a_group_and_leases_are_kept(own_server: ValkeyServer) -> None:
    async def scenario() -> None:
        async with opened(at(own_server)) as store:
            hands = [await begun(store, key) for key in (ONE, TWO)]
            group = [await hand.prepare(settled(), children=[begin(f"{hand.key}.1")]) for hand in hands]
            own_server.do("CONFIG", "SET", "maxmemory", "1")
            try:
                for write in (store.commit(group, GRACE), store.start([begin("acme/3")], GRACE)):
                    with pytest.raises(StoreFull, match="maxmemory"):
                        await write
                assert await store.renew([(hand.key, hand.token) for hand in hands], LEASE) == {ONE, TWO}
                assert (await head_of(store)).version == 1
                await store.release([(TWO, hands[1].token)])
            finally:
                own_server.do("CONFIG", "SET", "maxmemory", "0")
            assert [await store.head(key) for key in ("acme/3", f"{ONE}.1", f"{TWO}.1")] == [None] * 3
            assert await store.commit(group, GRACE) == ["ok", "ok"]

    asyncio.run(scenario())


def test_a_memory_that_is_full_in_the_middle_of_a_call_leaves_it_unknown(
    own_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was handed over in the first part is written."""
    monkeypatch.setattr(module, "PART", 1)

    async def scenario() -> None:
        async with opened(at(own_server)) as store:
            run = store._calls.run

            async def filled(*words: Any, **options: Any) -> Any:
                try:
                    return await run(*words, **options)
                finally:
                    own_server.do("CONFIG", "SET", "maxmemory", 1)

            monkeypatch.setattr(store._calls, "run", filled)
            try:
                with pytest.raises(OutcomeUnknown, match="1 of 2"):
                    await store.start([begin(ONE), begin(TWO)], GRACE)
                own_server.do("CONFIG", "SET", "maxmemory", 0)
                with pytest.raises(OutcomeUnknown, match="1 of 2"):
                    await store.send([letter("m1"), letter("m2")], GRACE)
                with pytest.raises(StoreFull, match="nothing was written"):
                    await store.send([letter("m1"), letter("m2")], GRACE)
                assert ids((await store.mail([ONE]))[ONE]) == ["m1"]
                assert await store.head(TWO) is None
            finally:
                own_server.do("CONFIG", "SET", "maxmemory", 0)

    asyncio.run(scenario())


def test_a_primary_that_has_become_a_replica_takes_no_writes(own_server: ValkeyServer) -> None:
    async def scenario() -> None:
        async with opened(at(own_server)) as store:
            hand = await begun(store)
            commit = await hand.prepare(settled())
            own_server.do("REPLICAOF", "127.0.0.1", "1")
            try:
                with pytest.raises(StoreReadOnly, match="replica"):
                    await store.commit([commit], GRACE)
            finally:
                own_server.do("REPLICAOF", "NO", "ONE")
            assert await store.commit([commit], GRACE) == ["ok"]

    asyncio.run(scenario())


def test_a_busy_server_has_done_nothing(own_server: ValkeyServer) -> None:
    async def scenario() -> None:
        async with opened(at(own_server)) as store, client_of(own_server.url) as other:
            await store.start([begin()], GRACE)
            own_server.do("CONFIG", "SET", "busy-reply-threshold", "20")
            endless = asyncio.create_task(other.eval("while true do end", 0))
            try:
                async with asyncio.timeout(10):
                    with pytest.raises(StoreUnavailable, match="busy"):
                        while True:
                            await store.start([begin(TWO)], GRACE)
            finally:
                own_server.do("SCRIPT", "KILL")
                own_server.do("CONFIG", "SET", "busy-reply-threshold", "5000")
            await asyncio.gather(endless, return_exceptions=True)
            assert await store.start([begin("acme/3")], GRACE) == ["created"]

    asyncio.run(scenario())


def test_a_script_that_breaks_leaves_a_write_unknown(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(fresh(redis_url)) as store:
            hand = await begun(store)
            commit = await hand.prepare(settled())
            whole = wires.script("commit")
            monkeypatch.setattr(wires, "script", lambda name: whole.replace("local due = ", "local due = nil .. "))
            with pytest.raises(OutcomeUnknown, match="broke"):
                await store.commit([commit], GRACE)

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def guarded() -> Iterator[ValkeyServer]:
    with ValkeyServer("--requirepass", "right", durable=True) as server:
        yield server


@pytest.mark.parametrize("user", ["", ":wr0ng@", "ada:wr0ng@"])
def test_a_wrong_password_is_refused_and_not_shown(guarded: ValkeyServer, user: str) -> None:
    async def scenario() -> None:
        with pytest.raises(StoreError, match="password") as raised:
            await RedisStore(at(guarded).replace("redis://", f"redis://{user}")).open()
        assert "wr0ng" not in str(raised.value)
        async with opened(at(guarded).replace("redis://", "redis://:right@")) as store:
            assert await store.head(ONE) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("right", ["-zadd", "-evalsha", "resetkeys"])
def test_a_user_who_lacks_a_right_is_told_before_anything_is_written(own_server: ValkeyServer, right: str) -> None:
    own_server.do("ACL", "SETUSER", "reader", "reset", "on", ">s3cret", "~*", "&*", "+@all", right)
    url = at(own_server)

    async def scenario() -> None:
        with pytest.raises(StoreError, match="lacks a right") as raised:
            await RedisStore(url.replace("redis://", "redis://reader:s3cret@")).open()
        assert "s3cret" not in str(raised.value)
        assert await RedisStore(url).schema_number() == 0

    asyncio.run(scenario())


# Replicas


async def follows(replica: ValkeyServer) -> None:
    """Wait until it has all that its primary has, in its own file."""
    async with asyncio.timeout(20):
        while True:
            facts = replica.do("INFO", "replication", "persistence")
            busy = b"aof_rewrite_in_progress:1" in facts or b"aof_rewrite_scheduled:1" in facts
            if b"master_link_status:up" in facts and not busy:
                return
            await asyncio.sleep(0.02)


def test_what_a_replica_must_have_is_unknown_until_it_has_it(own_server: ValkeyServer) -> None:
    async def scenario() -> None:
        url = at(own_server, replicas="1", timeout="6")
        with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
            await RedisStore(url.replace("timeout=6", "timeout=1")).open()
        with ValkeyServer("--replicaof", "127.0.0.1", str(own_server.port), durable=True) as replica:
            await follows(replica)
            async with opened(url) as store:
                hand = await begun(store)
                assert await hand.commit(settled()) == "ok"
                replica.pause()
                commit = await hand.prepare(settled(2))
                with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
                    await store.commit([commit], GRACE)
                replica.go_on()
                assert kinds((await take(store)).held.rows)[-2:] == [ActionSettled, TakenOver]

    asyncio.run(scenario())


def test_what_is_repeated_is_not_confirmed_before_the_replica_has_it(own_server: ValkeyServer) -> None:
    """Whoever repeats a call is told what another connection wrote, and a server waits for those of one at a time."""

    async def scenario() -> None:
        with ValkeyServer("--replicaof", "127.0.0.1", str(own_server.port), durable=True) as replica:
            await follows(replica)
            url = at(own_server, replicas="1", timeout="6")
            async with opened(url) as patient, opened(url.replace("timeout=6", "timeout=1")) as store:
                hand = await begun(patient)
                await accepted(patient, letter("folded"))
                assert await hand.commit(letter("folded")) == "ok"
                replica.pause()
                async with opened(url.replace("replicas=1&", "")) as hasty:
                    await accepted(hasty, letter())
                    await hasty.start([begin(TWO)], GRACE)
                for repeated in (
                    store.send([letter()], GRACE),
                    store.send([letter("folded")], GRACE),
                    store.start([begin(TWO)], GRACE),
                ):
                    with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
                        await repeated
                replica.go_on()
                assert [sent.answer for sent in await patient.send([letter()], GRACE)] == ["duplicate"]
                assert await patient.start([begin(TWO)], GRACE) == ["same"]

    asyncio.run(scenario())


def test_a_replica_that_takes_over_has_what_was_confirmed(own_server: ValkeyServer) -> None:
    async def scenario() -> None:
        with ValkeyServer("--replicaof", "127.0.0.1", str(own_server.port), durable=True) as replica:
            await follows(replica)
            url = at(own_server, replicas="1")
            async with opened(url) as store:
                hand = await begun(store)
                assert await hand.commit(settled()) == "ok"
            replica.do("REPLICAOF", "NO", "ONE")
            async with opened(url.replace(str(own_server.port), str(replica.port)).replace("replicas=1", "")) as other:
                assert kinds(await log(other)) == [Started, ActionSettled]

    asyncio.run(scenario())


def step(hand: Hand, version: int) -> Commit:
    return Commit(hand.key, hand.token, [events.row(settled(version), version, at=0, fence=hand.token)])


def test_who_held_it_before_a_failover_lost_that_writes_nothing_more(own_server: ValkeyServer) -> None:
    async def scenario() -> None:
        with ValkeyServer("--replicaof", "127.0.0.1", str(own_server.port), durable=True) as replica:
            await follows(replica)
            url = at(own_server, replicas="1")
            async with opened(url) as before:
                await before.start([begin()], GRACE)
                replica.do("REPLICAOF", "NO", "ONE")
            async with (
                opened(url.replace("&replicas=1", "")) as before,
                opened(url.replace(str(own_server.port), str(replica.port)).replace("&replicas=1", "")) as after,
            ):
                lost, hand = await take(before, me="w1"), await take(after, me="w2")
                assert hand.token > lost.token
                assert await before.commit([step(lost, 2)], GRACE) == ["ok"]
                assert await after.commit([step(hand, 2)], GRACE) == ["ok"]
                # Both logs are as long, and the next version is free in both.
                assert await after.commit([step(lost, 3)], GRACE) == ["stale"]
                lost.store, lost.version = after, 2
                assert await lost.end() == "stale"
                check_log(await log(after), ONE)

    asyncio.run(scenario())
