"""The store in Redis: the whole contract, its address, what it asks of a server, and what is its own."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from redis.asyncio import Redis

from perdure.core import events
from perdure.core.events import Restarted, Started
from perdure.core.records import Held, Hint, Mail, Park, Query, Row
from perdure.errors import InvalidValue, SettingsError, StoreError, StoreOutdated, StoreReadOnly
from perdure.ports import Joining, Store, Twinned
from perdure.runtime import backends
from perdure.runtime.managing.locks import StoreLocks
from perdure.runtime.pair import Pair
from perdure.runtime.settings import Settings
from perdure.stores.redis import RedisStore, packing, promises, search, store as module
from perdure.stores.redis.address import read_address
from perdure.stores.redis.wires import LAYOUT, script
from perdure.streams.redis import RedisStream
from perdure.testing.contract import (
    DEFINITIONS,
    GRACE,
    LEASE,
    ONE,
    QUEUES,
    SECOND,
    THREE,
    TWO,
    LocksContract,
    ManualClock,
    StoreContract,
    accepted,
    begin,
    begun,
    first_row,
    head_of,
    kinds,
    letter,
    log,
    settled,
    take,
)
from perdure.testing.servers.valkey import ValkeyServer, new_prefix, private_cluster

ROOT = Path(__file__).parents[2]


def fresh(url: str, **options: Any) -> str:
    """The address of an empty store on a server that keeps nothing."""
    given = {"durability": "none", "prefix": new_prefix(), **options}
    return f"{url}?{'&'.join(f'{name}={value}' for name, value in given.items())}"


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Any]:
    client: Any = Redis.from_url(url.partition("?")[0])
    try:
        yield client
    finally:
        await client.aclose()


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = fresh(redis_url)

    async def make_store(self) -> Store:
        return RedisStore(self.url, clock=self.clock)


class TestLocksInTheRedisStore(LocksContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = fresh(redis_url)

    async def play(self, body: Any) -> None:
        async with opened(self.url) as store:
            await body(self, StoreLocks(store, "default"))


# Addresses


def test_an_address_is_taken_apart() -> None:
    address = read_address("rediss://ada:s3cret@db:6380/2?prefix=orders&replicas=1&timeout=0.5&ssl_cert_reqs=none")
    assert address.url == "rediss://ada:s3cret@db:6380/2?ssl_cert_reqs=none"
    assert (address.place, address.keys) == ("Redis at db:6380/2", "{orders}:")
    assert (address.durability, address.replicas, address.timeout) == ("always", 1, 0.5)


@pytest.mark.parametrize("query", ["prefix=a:b", "prefix=a}b", "durability=some", "replicas=many", "timeout=soon"])
def test_an_address_that_makes_no_sense_is_refused(query: str) -> None:
    with pytest.raises(SettingsError, match=query.partition("=")[0]):
        read_address(f"redis://db?{query}")


@pytest.mark.parametrize(
    ("address", "what"), [("db:six", "port"), ("db/shop", "database"), ("p@ss/s3cret@db", "database")]
)
def test_a_port_and_a_database_are_numbers(address: str, what: str) -> None:
    with pytest.raises(SettingsError, match=f"the {what} of the address of Redis is no number") as refusal:
        read_address(f"redis://{address}")
    assert "s3cret" not in str(refusal.value)


def test_an_address_of_a_cluster_is_refused_in_words() -> None:
    with pytest.raises(SettingsError, match="one node"):
        read_address("redis+cluster://db")


def test_an_address_names_the_store_and_its_stream(redis_url: str) -> None:
    store, stream = backends.connect(fresh(redis_url))
    assert isinstance(store, RedisStore)
    assert isinstance(store, Twinned)
    assert not isinstance(store, Joining)
    assert isinstance(stream, RedisStream)


def test_a_store_and_its_stream_have_one_prefix(redis_url: str) -> None:
    url = fresh(redis_url, prefix="orders")
    chosen = Settings(store=url, stream_prefix="others", stream_shards=3)
    _, stream = backends.chosen(None, None, chosen)
    assert isinstance(stream, RedisStream)
    assert (stream._keys.prefix, stream._keys.shards) == ("orders", 3)
    _, unnamed = backends.chosen(None, None, Settings(store=redis_url, stream_prefix="others"))
    assert isinstance(unnamed, RedisStream)
    assert unnamed._keys.prefix == "others"


def test_the_same_address_may_be_given_for_the_stream(redis_url: str) -> None:
    url = fresh(redis_url)
    settings = Settings(store=url, stream=url, locks="stream")
    store, stream = backends.chosen(None, None, settings)
    assert isinstance(stream, RedisStream), "it would read its own hints twice"

    async def scenario() -> None:
        locks, warm = backends.locks(settings, "default"), backends.warm(settings)
        assert locks is not None
        assert warm is not None
        await store.open()
        await stream.open("w1", ["default"])
        await stream.publish([Hint(ONE, "default")])
        assert [hint.key for hint in await stream.receive(10) if hint.key] == [ONE]
        assert await locks.take("stock", "me", LEASE) is not None
        await locks.close()
        await stream.close()
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_stream_on_another_server_goes_before_that_of_the_store() -> None:
    _, stream = backends.chosen(None, None, Settings(store="redis://one", stream="redis://two"))
    assert isinstance(stream, Pair)


def test_without_the_driver_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['redis'] = None; from perdure.runtime import backends; backends.connect('redis://db')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "SettingsError: a store in Redis needs its driver: pip install 'perdure[redis]'" in done.stderr


# What is asked of a server


@pytest.fixture(scope="module")
def durable() -> Iterator[ValkeyServer]:
    """A server that has on its disk what it answered, and whose settings a test may change for itself."""
    with ValkeyServer(durable=True) as server:
        yield server


@pytest.fixture
def configured(durable: ValkeyServer) -> Iterator[ValkeyServer]:
    yield durable
    for name, value in (
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("no-appendfsync-on-rewrite", "no"),
        ("maxmemory", "0"),
        ("maxmemory-policy", "noeviction"),
    ):
        assert durable.do("CONFIG", "SET", name, value) == b"+OK\r\n"


def at(server: ValkeyServer, **options: str) -> str:
    return f"{server.url}?" + "&".join(f"{name}={value}" for name, value in {"prefix": new_prefix(), **options}.items())


def open_once(url: str) -> None:
    async def scenario() -> None:
        async with opened(url):
            pass

    asyncio.run(scenario())


def test_a_durable_server_is_taken_without_a_word(durable: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        open_once(at(durable))
    assert caplog.records == []


def test_a_server_that_keeps_nothing_is_refused_unless_the_address_says_so(configured: ValkeyServer) -> None:
    configured.do("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(SettingsError, match="appendonly yes"):
        open_once(at(configured))
    with pytest.raises(SettingsError, match="appendonly yes"):
        open_once(at(configured, durability="everysec"))
    open_once(at(configured, durability="none"))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("appendfsync", "everysec", "second or two"),
        ("appendfsync", "no", "half a minute"),
        ("no-appendfsync-on-rewrite", "yes", "while it rewrites"),
    ],
)
def test_a_server_that_may_forget_the_newest_is_taken_with_a_warning(
    configured: ValkeyServer, caplog: pytest.LogCaptureFixture, name: str, value: str, told: str
) -> None:
    configured.do("CONFIG", "SET", name, value)
    with caplog.at_level(logging.WARNING):
        open_once(at(configured))
    [said] = caplog.messages
    assert told in said
    assert f"{name} {value}" in said
    caplog.clear()
    open_once(at(configured, durability="everysec"))
    assert caplog.messages == []


def test_a_server_that_throws_keys_away_is_refused_whatever_the_address_says(configured: ValkeyServer) -> None:
    configured.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    for durability in ("always", "none"):
        with pytest.raises(SettingsError, match="noeviction"):
            open_once(at(configured, durability=durability))


@pytest.fixture
def guest(durable: ValkeyServer) -> Iterator[str]:
    """The address of a user who may not see the settings, as with those who rent a server."""
    durable.do("ACL", "SETUSER", "guest", "on", ">s3cret", "~*", "+@all", "-config")
    yield at(durable).replace("redis://", "redis://guest:s3cret@")
    durable.do("ACL", "DELUSER", "guest")


def test_where_the_settings_are_hidden_that_is_said(guest: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        open_once(guest)
    [said] = caplog.messages
    assert "does not show its settings" in said
    assert "s3cret" not in said


def test_the_rights_that_the_pages_name_are_enough(durable: ValkeyServer) -> None:
    page = (ROOT / "docs/howto/redis-store.md").read_text()
    words = page.partition("ACL SETUSER shop ")[2].partition("\n")[0].replace("{shop}", "{rights}").split()
    durable.do("ACL", "SETUSER", "shop", "reset", *words)
    url = at(durable, prefix="rights").replace("redis://", "redis://shop:password@")

    async def scenario() -> None:
        async with opened(url) as store:
            hand = await begun(store, topics=("x",), lane="a", tags=("t",))
            await accepted(store, letter())
            assert await store.renew([(ONE, hand.token)], LEASE) == {ONE}
            assert await hand.end(letter(), children=[begin(TWO)]) == "ok"
            await store.claim(QUEUES, DEFINITIONS, 10, GRACE)
            assert await store.backlog() == []
            assert [head.key for head in await store.find(Query(None))] == [TWO, ONE]
            assert await store.listening("acme", ["x"], 10) == {}
            assert (await store.begun("acme", 10), await store.extent("acme", "order")) == (0, (2, 4))

    asyncio.run(scenario())
    durable.do("ACL", "DELUSER", "shop")


def test_what_can_be_seen_without_the_settings_is_still_looked_at(configured: ValkeyServer, guest: str) -> None:
    configured.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(SettingsError, match="noeviction"):
        open_once(guest)
    configured.do("CONFIG", "SET", "maxmemory-policy", "noeviction")
    configured.do("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(SettingsError, match="appendonly yes"):
        open_once(guest)


@pytest.mark.parametrize("read_only", ["yes", "no"])
def test_a_replica_is_refused_also_one_that_could_be_written(durable: ValkeyServer, read_only: str) -> None:
    of = ("--replicaof", "127.0.0.1", str(durable.port), "--replica-read-only", read_only)
    with ValkeyServer(*of, durable=True) as replica:
        with pytest.raises(StoreReadOnly, match="replica"):
            open_once(at(replica))


def test_an_old_server_is_refused() -> None:
    class Old:
        """Redis 6 cannot be had here; this is what it says of itself."""

        async def ask(self, commands: Any, writes: bool) -> list[Any]:
            return [b"# Server\r\nredis_version:6.2.14\r\n", [b"appendonly", b"yes"]]

    with pytest.raises(SettingsError, match="7.0 or newer"):
        asyncio.run(promises.examine(Old(), read_address("redis://old")))  # type: ignore[arg-type]


# The layout


def test_many_that_open_at_once_agree_on_one_layout(redis_url: str) -> None:
    url = fresh(redis_url)

    async def scenario() -> None:
        stores = [RedisStore(url) for _ in range(20)]
        assert await stores[0].schema_number() == 0
        await asyncio.gather(*(store.open() for store in stores))
        answers = await asyncio.gather(*(store.start([begin()], GRACE) for store in stores))
        assert sorted(answer for [answer] in answers) == ["created"] + ["same"] * 19
        assert await stores[0].schema_number() == LAYOUT
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_a_newer_layout_is_refused_at_the_opening_and_by_whoever_was_there_before(redis_url: str) -> None:
    url = fresh(redis_url)

    async def scenario() -> None:
        async with opened(url) as store, client_of(url) as client:
            hand = await begun(store)
            await client.set(f"{store.address.keys}layout", LAYOUT + 1)
            with pytest.raises(StoreOutdated, match=f"number {LAYOUT + 1}"):
                await hand.commit(settled())
            with pytest.raises(StoreOutdated, match="newer"):
                await RedisStore(url).open()
            await client.set(f"{store.address.keys}layout", LAYOUT)
            assert kinds(await log(store)) == [Started]

    asyncio.run(scenario())


def test_who_finds_everything_gone_begins_nothing_anew_in_silence(redis_url: str) -> None:
    url = fresh(redis_url)

    async def scenario() -> None:
        async with opened(url) as store, client_of(url) as client:
            await store.start([begin()], GRACE)
            await client.delete(*[key async for key in client.scan_iter(f"{store.address.keys}*")])
            with pytest.raises(StoreError, match="vanished"):
                await store.start([begin(TWO)], GRACE)
            assert await client.keys(f"{store.address.keys}*") == []

    asyncio.run(scenario())


# Keys and scripts


def test_all_keys_have_one_hash_tag_and_none_is_left_behind_by_what_has_ended(redis_url: str) -> None:
    url = fresh(redis_url)

    async def scenario() -> None:
        async with opened(url) as store, client_of(url) as client:
            parts: dict[str, Any] = {"lane": "a", "topics": ("x",), "tags": ("t",), "correlation": "c", "parent": TWO}
            hand = await begun(store, **parts)
            await accepted(store, letter())
            names = {key.decode() async for key in client.scan_iter(f"*{store.address.prefix}*")}
            assert all(name.startswith(f"{{{store.address.prefix}}}:") for name in names)
            await hand.end(letter())
            left = {
                key.decode().removeprefix(store.address.keys).partition(":")[0]
                for key in await client.keys(f"{store.address.keys}*")
            }
            assert left == {"x", "l", "f", "by", "rows", "tenants", "clock", "layout"}

    asyncio.run(scenario())


def test_no_script_changes_or_removes_a_row_of_a_log() -> None:
    folder = files("perdure.stores.redis") / "scripts"
    texts = [file.read_text("utf-8") for file in folder.iterdir()]
    uses = {use for text in texts for use in re.findall(r"call\('(\w+)', P \.\. 'l:'", text)}
    assert uses == {"RPUSH", "LLEN", "LRANGE", "LINDEX"}


def test_the_rights_to_all_commands_of_all_scripts_are_asked_for() -> None:
    folder = files("perdure.stores.redis") / "scripts"
    texts = {file.name: file.read_text("utf-8") for file in folder.iterdir()}
    used = {use for text in texts.values() for use in re.findall(r"call\('(\w+)'", text)}
    asked = texts["open.lua"].partition("COMMANDS = {")[2].partition("}")[0]
    assert set(re.findall(r"'(\w+)'", asked)) == used - {"TIME"}


def test_scripts_that_only_read_say_so_and_writers_are_refused_as_a_whole() -> None:
    names = {file.name.removesuffix(".lua") for file in (files("perdure.stores.redis") / "scripts").iterdir()}
    flags = {name: script(name).partition("\n")[0] for name in names - {"shared", "writing"}}
    writers = {"start", "send", "hold", "commit", "claim", "open"}
    assert {name for name, line in flags.items() if line == "#!lua"} == writers
    assert {name for name, line in flags.items() if line == "#!lua flags=allow-oom"} == {"renew", "release"}
    assert {name for name, line in flags.items() if line == "#!lua flags=no-writes"} == {*flags} - writers - {
        "renew",
        "release",
    }


def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(redis_url: str) -> None:
    url = fresh(redis_url)

    async def scenario() -> None:
        async with opened(url) as store, client_of(url) as client:
            hand = await begun(store)
            await client.script_flush()
            assert await hand.commit(settled()) == "ok"
            await client.script_flush()
            assert (await head_of(store)).version == 2

    asyncio.run(scenario())


def test_the_node_of_a_cluster_that_has_the_slot_keeps_a_store() -> None:
    async def scenario(url: str) -> None:
        prefix = new_prefix()
        refused: list[bool] = []
        taken = 0
        async with client_of(url.replace("redis+cluster", "redis")) as client:
            ports = [node[1] for _, _, node, *_ in await client.execute_command("CLUSTER SLOTS")]
        for port in ports:
            try:
                async with opened(f"redis://127.0.0.1:{port}?durability=none&prefix={prefix}") as store:
                    hand = await begun(store, topics=("x",), lane="a", tags=("t",))
                    await accepted(store, letter())
                    assert await hand.end(letter(), children=[begin(TWO)]) == "ok"
                    assert [head.key for head in await store.find(Query("acme", tags=("t",)))] == [ONE]
                    taken += 1
            except StoreError as error:
                refused.append("another node" in str(error))
        assert (taken, refused) == (1, [True, True])

    with private_cluster() as url:
        asyncio.run(scenario(url))


# Values


def test_what_is_not_text_is_kept_as_it_is(redis_url: str) -> None:
    strange = bytes(range(256))

    async def scenario() -> None:
        async with opened(fresh(redis_url)) as store:
            first = Row(1, 1, strange, at=5)
            await store.start([begin(rows=(first,), state=strange)], GRACE)
            await accepted(store, Mail(ONE, "ü 5 \x00", strange, "sh a"))
            [held] = await store.hold([ONE], "w ö", LEASE)
            assert isinstance(held, Held)
            assert held.rows == [first]
            assert held.mail == [Mail(ONE, "ü 5 \x00", strange, "sh a")]
            head = await head_of(store)
            assert (head.state, head.holder) == (strange, "w ö")
            assert await store.message(ONE, "ü 5 \x00") == held.mail[0]

    asyncio.run(scenario())


def test_a_value_that_is_no_text_or_too_large_is_refused_before_it_is_sent(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(fresh(redis_url)) as store:
            with pytest.raises(InvalidValue, match="cannot be stored"):
                await store.start([begin("acme/\ud800")], GRACE)
            monkeypatch.setattr(packing, "LARGEST", 1000)
            with pytest.raises(InvalidValue, match="more than Redis takes"):
                await store.start([begin(state=b"x" * 1001)], GRACE)
            assert await store.head(ONE) is None

    asyncio.run(scenario())


def test_a_log_longer_than_lua_can_take_apart_at_once_is_kept_whole(redis_url: str) -> None:
    rows = (first_row(), *(events.row(settled(n), n, at=0) for n in range(2, 20_001)))

    async def scenario() -> None:
        async with opened(fresh(redis_url)) as store:
            assert await store.start([begin(rows=rows)], GRACE) == ["created"]
            hand = await take(store)
            assert hand.held.rows == list(rows)
            assert await hand.commit(*(settled(n) for n in range(20_001, 30_001))) == "ok"
            assert (await head_of(store)).version == 30_000

    asyncio.run(scenario())


def test_many_are_handed_over_in_parts_and_each_is_answered(redis_url: str) -> None:
    keys = [f"acme/{number:04}" for number in range(3 * module.PART + 7)]

    async def scenario() -> None:
        async with opened(fresh(redis_url)) as store:
            assert await store.start([begin(key) for key in keys], GRACE) == ["created"] * len(keys)
            sent = await store.send([letter(key=key) for key in keys], GRACE)
            assert {one.answer for one in sent} == {"accepted"}
            held = await store.hold(keys[::-1], "w1", LEASE)
            assert [one.key for one in held if isinstance(one, Held)] == keys[::-1]
            tokens = [(one.key, one.token) for one in held if isinstance(one, Held)]
            assert await store.renew(tokens, LEASE) == set(keys)
            assert all((await store.mail(keys)).values())
            await store.release(tokens)
            assert len(await store.fresh(keys)) == len(keys)
            found = await store.find(Query("acme", limit=10_000))
            assert [head.key for head in found] == keys[::-1]

    asyncio.run(scenario())


# The clock


def test_the_clock_is_the_servers_and_never_runs_backwards(redis_url: str) -> None:
    async def scenario() -> None:
        url = fresh(redis_url)
        async with opened(url) as store, client_of(url) as client:
            seconds, micros = await client.time()
            now = await store.now()
            assert 0 <= now - (seconds * SECOND + micros) < 5 * SECOND
            later = now + 3600 * SECOND
            await client.set(f"{store.address.keys}clock", later)
            async with opened(url) as other:
                assert await other.now() >= later
                await other.start([begin()], GRACE)
                assert (await head_of(other)).started_at >= later

    asyncio.run(scenario())


def test_a_clock_that_is_set_back_writes_nothing_into_the_past(redis_url: str) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with opened(fresh(redis_url), clock=clock) as store:
            hand = await begun(store)
            clock.advance(-3600)
            await store.start([begin(TWO)], GRACE)
            assert (await head_of(store, TWO)).started_at == (await head_of(store)).started_at
            assert await hand.park(due=await store.now() + SECOND) == "ok"

    asyncio.run(scenario())


# Turns, searches


def test_where_very_many_tenants_wait_each_has_its_turn(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VISITS", 10)

    async def scenario() -> None:
        clock = ManualClock()
        async with opened(fresh(redis_url), clock=clock) as store:
            floods = [f"flood{number:02}/{n}" for number in range(12) for n in range(50)]
            await store.start([begin(key) for key in floods], 0)
            clock.advance(1)
            late = {"small1/one", "small2/one", "small3/one"}
            await store.start([begin(key, queue="slow" if "3" in key else "default") for key in late], 0)
            clock.advance(1)
            found: set[str] = set()
            for _ in range(20):
                due = await store.claim(["default", "slow"], DEFINITIONS, 5, 1000 * SECOND)
                assert len({one.key for one in due}) == len(due) == 5
                found |= {one.key for one in due}
            # What is due earlier in more tenants than are looked at is far from its end.
            assert late <= found

    asyncio.run(scenario())


def test_a_queue_that_is_named_twice_gives_its_rows_once(redis_url: str) -> None:
    async def scenario() -> None:
        async with opened(fresh(redis_url)) as store:
            await store.start([begin(key) for key in (ONE, TWO, THREE)], 0)
            due = await store.claim(QUEUES * 2, DEFINITIONS * 2, 50, LEASE)
            assert sorted(one.key for one in due) == sorted([ONE, TWO, THREE])

    asyncio.run(scenario())


def test_a_claim_is_full_although_most_tenants_have_little(redis_url: str) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with opened(fresh(redis_url), clock=clock) as store:
            await store.start([begin(f"small{number}/one") for number in range(20)], 0)
            await store.start([begin(f"flood/{number}", queue="slow") for number in range(100)], 0)
            clock.advance(1)
            found = await store.claim(["slow", *QUEUES], DEFINITIONS, 50, GRACE)
            assert len(found) == 50
            assert sum(due.key.startswith("small") for due in found) == 20

    asyncio.run(scenario())


def test_a_long_search_is_many_short_ones(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SCAN", 7)
    monkeypatch.setattr(search, "PAGE", 3)

    async def scenario() -> None:
        async with opened(fresh(redis_url), clock=ManualClock()) as store:
            numbers = range(450)  # all of one moment, and more than one script reads at once
            await store.start(
                [begin(f"acme/ö{n:03}", state=b'{"n":%d}' % (n % 10), workflow=f"w{n % 2}") for n in numbers], GRACE
            )
            newest = [f"acme/ö{n:03}" for n in reversed(numbers)]
            assert [head.key for head in await store.find(Query("acme", limit=1000))] == newest
            fours = [head.key for head in await store.find(Query("acme", fields={"n": 4}, limit=20))]
            assert fours == [key for key in newest if key.endswith("4")][:20]
            odd = await store.find(Query("acme", workflow="w1", status="waiting", limit=9, cursor=(1 << 52, "")))
            assert [head.key for head in odd] == newest[::2][:9]
            everybody = await store.find(Query(None, limit=5))
            assert [head.key for head in everybody] == newest[:5]

    asyncio.run(scenario())


def test_a_checkpoint_and_a_park_move_the_base_and_it_never_moves_back(redis_url: str) -> None:
    async def scenario() -> None:
        async with opened(fresh(redis_url)) as store:
            hand = await begun(store)
            assert await hand.commit(settled(1), Restarted(Raw(b"1"), ref=2)) == "ok"
            assert await hand.commit(settled(3), settle=Park("open", None, base=1)) == "ok"
            assert (await head_of(store)).base == 3
            assert [row.version for row in (await take(store)).held.rows] == [3, 4]

    asyncio.run(scenario())


def test_a_lane_keeps_the_order_of_starts_of_one_moment(redis_url: str) -> None:
    async def scenario() -> None:
        async with opened(fresh(redis_url), clock=ManualClock()) as store:
            await store.start([begin(key, lane="a") for key in (THREE, ONE, TWO)], GRACE)
            answers = await store.hold([ONE, TWO, THREE], "w1", LEASE)
            assert [one.key for one in answers if isinstance(one, Held)] == [THREE]

    asyncio.run(scenario())


def test_a_store_that_is_not_open_says_so(redis_url: str) -> None:
    async def scenario() -> None:
        with pytest.raises(StoreError, match="not open"):
            await RedisStore(fresh(redis_url)).head(ONE)

    asyncio.run(scenario())
