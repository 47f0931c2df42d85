"""The sealed store: the whole contract, and what it is for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw, structs

from perdure.core import events as ev
from perdure.core.records import Commit, End, Gone, Held, Mail, Park, Query
from perdure.errors import KeyMissing, KeyShredded, SealBroken, StoreUnavailable, UsageError
from perdure.ports import Joining, Store, Twinned
from perdure.runtime.sealing.seals import MARK, Seals
from perdure.runtime.sealing.store import SealedStore, sealed_store
from perdure.stores.memory import MemoryStore
from perdure.stores.mongodb import MongoStore
from perdure.stores.postgres import PostgresStore
from perdure.stores.redis import RedisStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.contract import (
    GRACE,
    LEASE,
    ONE,
    TWO,
    StoreContract,
    begin,
    begun,
    claimed,
    head_of,
    letter,
    log,
    take,
)
from perdure.testing.servers.valkey import new_prefix
from tests.stores.sealing import Ring

CANARY = b'"canary-in-the-store"'
#: What the contract searches for.
FIELDS = frozenset({"city", "n", "rate", "paid", "note", "one", "none", "a.b", "it's", 'say "x"', "0"})


class Telling(Seals):
    """The contract compares what makes two starts or letters the same with what it gave; here it can."""

    def fingerprint(self, tenant: str, *parts: str) -> str:
        return parts[-1] if parts[0] in ("start", "mail") else super().fingerprint(tenant, *parts)


class TestSealedMemory(StoreContract):
    async def make_store(self) -> Store:
        return sealed_store(MemoryStore(self.clock), Telling(Ring(), FIELDS))


class TestSealedSqlite(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    async def make_store(self) -> Store:
        return sealed_store(SqliteStore(str(self.folder / "store.db"), clock=self.clock), Telling(Ring(), FIELDS))


class TestSealedPostgres(StoreContract):
    @pytest.fixture(autouse=True)
    def _schema(self, emptied_postgres: str) -> None:
        self.url = emptied_postgres + "&synchronous_commit=off&unsafe=yes"  # what it does is the same, and sooner

    async def make_store(self) -> Store:
        return sealed_store(PostgresStore(self.url, clock=self.clock), Telling(Ring(), FIELDS))


class TestSealedRedis(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = f"{redis_url}?durability=none&prefix={new_prefix()}"

    async def make_store(self) -> Store:
        return sealed_store(RedisStore(self.url, clock=self.clock), Telling(Ring(), FIELDS))


class TestSealedMongo(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, emptied_mongodb: str) -> None:
        self.url = emptied_mongodb

    async def make_store(self) -> Store:
        return sealed_store(MongoStore(self.url, clock=self.clock), Telling(Ring(), FIELDS))


def store_of(seals: Seals | None = None, inside: Store | None = None) -> SealedStore:
    made = sealed_store(inside or MemoryStore(), seals or Seals(Ring()))
    assert isinstance(made, SealedStore)
    return made


def play(body: Callable[[SealedStore, Ring], Awaitable[None]], searchable: str = "") -> None:
    ring = Ring()

    async def main() -> None:
        await body(store_of(Seals(ring, frozenset(searchable.split()))), ring)

    asyncio.run(main())


# What the store inside sees.


def test_nothing_that_was_given_is_in_the_store_inside() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        first = ev.row(ev.Started("order", 1, Raw(CANARY)), 1, 0)
        await store.start([begin(rows=(first,), state=b'{"city":' + CANARY + b"}")], GRACE)
        await store.start([begin("acme/done", rows=(first,), status="completed", result=CANARY)], GRACE)
        await store.send([Mail(ONE, "m1", CANARY, "sha")], GRACE)
        hand = await take(store)
        child = begin(TWO, rows=(first,))
        [box] = (await store.mail([ONE])).values()
        row = ev.row(ev.Published(Raw(CANARY)), hand.version + 1, 0, hand.token)
        commit = Commit(ONE, hand.token, [row], done=["m1"], children=[child], mail=[Mail(TWO, "m2", CANARY)])
        assert box[0].data == CANARY and await store.commit([commit], GRACE) == ["ok"]
        ended = Commit(ONE, hand.token, [], End("failed", CANARY, b'{"city":' + CANARY + b"}"))
        [two] = await store.hold([TWO], "w2", LEASE)
        assert isinstance(two, Held) and two.mail[0].data == CANARY
        parked = Commit(TWO, two.token, [], Park("open", None, b"[" + CANARY + b"]", CANARY), done=["m2"])
        assert await store.commit([ended, parked], GRACE) == ["ok", "ok"]
        for key in (ONE, TWO, "acme/done"):
            rows, head = await store.inside.read(key), await store.inside.head(key)
            assert b"canary" not in msgspec.json.encode([rows, head])
            assert all(one.data.startswith(MARK) for one in rows if one.type != ev.NUMBERS[ev.TakenOver])
            assert "canary" not in str(rows) + str(head)
        shown = await head_of(store)
        assert (shown.result, shown.state) == (CANARY, b'{"city":' + CANARY + b"}")
        assert (await head_of(store, TWO)).waits == CANARY

    play(main)


def test_a_commit_is_not_changed_by_sealing_it() -> None:
    """One that failed is prepared again from what is in memory."""

    async def main(store: SealedStore, ring: Ring) -> None:
        hand = await begun(store)
        commit = await hand.prepare(ev.Published(Raw(CANARY)), settle=Park("open", None, b"{}", CANARY))
        before = msgspec.json.encode(commit)
        assert await store.commit([commit], GRACE) == ["ok"]
        assert msgspec.json.encode(commit) == before

    play(main)


def test_the_same_start_is_the_same_also_after_a_rotation() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        assert await store.start([begin(sha="a")], GRACE) == ["created"]
        ring.rotate("acme")
        assert await store.start([begin(sha="a")], GRACE) == ["same"]
        assert await store.start([begin(sha="b")], GRACE) == ["conflict"]
        head = await store.inside.head(ONE)
        assert head is not None and head.sha != "a" and len(head.sha) == 64

    play(main)


def test_a_letter_that_comes_twice_is_known_and_another_of_its_id_refused() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        await store.start([begin()], GRACE)
        for sha, answer in (("a", "accepted"), ("a", "duplicate"), ("b", "conflict")):
            [sent] = await store.send([letter(sha=sha)], GRACE)
            assert sent.answer == answer

    play(main)


def test_equal_inputs_of_two_tenants_do_not_look_equal() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        await store.start([begin("acme/one"), begin("rival/one")], GRACE)
        heads = [await store.inside.head(key) for key in ("acme/one", "rival/one")]
        assert heads[0] is not None and heads[1] is not None and heads[0].sha != heads[1].sha

    play(main)


def test_what_was_written_in_the_clear_stays_readable() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        await store.inside.start([begin(state=b'{"a":1}', sha="old")], GRACE)
        assert (await log(store))[0].data == begin().rows[0].data
        assert (await head_of(store)).state == b'{"a":1}'
        assert await store.start([begin(sha="old")], GRACE) == ["same"]
        hand = await take(store)
        assert await hand.end() == "ok"

    play(main)


def test_what_the_engine_keeps_for_itself_is_not_sealed() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        await store.start([begin("keys:/k1", state=b'{"tenant":"acme"}')], GRACE)
        assert [head.key for head in await store.find(Query("keys:", fields={"tenant": "acme"}))] == ["keys:/k1"]
        assert ring.numbers == {}

    play(main)


# Seals.


def test_old_data_is_readable_after_a_rotation_and_new_data_uses_the_new_key() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        hand = await begun(store)
        ring.rotate("acme")
        assert await hand.commit(ev.Published(Raw(CANARY))) == "ok"
        sealed = [row.data[len(MARK) : len(MARK) + 8] for row in await store.inside.read(ONE)]
        assert sealed == [(1).to_bytes(8, "big"), (2).to_bytes(8, "big")]
        assert CANARY in (await log(store))[1].data

    play(main)


def test_the_same_data_never_looks_the_same() -> None:
    seals = Seals(Ring())
    assert seals.seal(ONE, b"row", CANARY) != seals.seal(ONE, b"row", CANARY)


@pytest.mark.parametrize("way", ["other key", "other use", "changed", "cut", "other tenant"])
def test_bytes_that_were_changed_or_moved_are_refused(way: str) -> None:
    ring = Ring()
    seals = Seals(ring)
    for tenant in ("acme", "rival"):
        ring.current(tenant)
    data = seals.seal(ONE, b"result", CANARY)
    key, use = ("rival/one" if way == "other tenant" else TWO if way == "other key" else ONE), b"result"
    if way == "other use":
        use = b"state"
    if way == "changed":
        data = data[:-1] + bytes([data[-1] ^ 1])
    if way == "cut":
        data = data[:30]
    with pytest.raises(SealBroken, match="its seal is broken"):
        seals.open(key, use, data)


def test_rows_that_change_places_are_noticed() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        hand = await begun(store)
        await hand.commit(ev.Published(Raw(b"1")), ev.Published(Raw(b"2")))
        rows = await store.inside.read(ONE)
        with pytest.raises(SealBroken):
            store._opened_row(ONE, structs.replace(rows[1], data=rows[2].data))

    play(main)


# Searching.


def test_fields_that_are_not_searchable_say_so() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        await store.start([begin(state=b'{"city":"Graz","iban":"AT61"}')], GRACE)
        with pytest.raises(UsageError, match="cannot be found by iban: .* in the setting `searchable`"):
            await store.find(Query("acme", fields={"city": "Graz", "iban": "AT61"}))
        [head] = await store.find(Query("acme", fields={"city": "Graz"}))
        assert head.state == b'{"city":"Graz","iban":"AT61"}'
        assert await store.find(Query("acme", fields={"city": "Linz"})) == []
        inside = await store.inside.head(ONE)
        assert inside is not None and "Graz" not in str(inside.state)

    play(main, searchable="city")


# A tenant whose keys are gone.


def test_to_hold_an_execution_without_a_key_makes_it_stuck_and_leaves_its_neighbours_alone() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        await store.start([begin("acme/one"), begin("rival/one")], 0)
        await store.send([letter(key="acme/one")], 0)
        ring.shredded.add("acme")
        answers = await store.hold(["acme/one", "rival/one"], "w1", LEASE)
        assert isinstance(answers[0], Gone) and isinstance(answers[1], Held)
        [head] = await store.find(Query("acme", status="stuck"))
        assert head.mail == 0 and head.holder is None and head.due is None
        assert msgspec.json.decode(head.waits or b"")["stuck"]["cause"] == "sealed"
        assert await claimed(store) == []

    play(main)


def test_neighbours_are_held_although_the_store_fails_while_one_is_made_stuck() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        await store.start([begin("acme/one"), begin("rival/one")], 0)
        ring.shredded.add("acme")

        async def commit(group: object, grace: int) -> None:
            raise StoreUnavailable("not now")

        store.inside.commit, usual = commit, store.inside.commit
        answers = await store.hold(["acme/one", "rival/one"], "w1", LEASE)
        assert isinstance(answers[0], Gone) and isinstance(answers[1], Held)
        store.inside.commit = usual
        assert await store.hold(["acme/one"], "w1", LEASE) == [Gone("acme/one")]
        assert [head.status for head in await store.find(Query("acme"))] == ["stuck"]

    play(main)


def test_a_held_execution_that_loses_its_key_is_stale_and_then_stuck() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        hands = [await begun(store, "acme/one"), await begun(store, "rival/one")]
        commits = [await hand.prepare(ev.Published(Raw(b"1"))) for hand in hands]
        ring.shredded.add("acme")
        assert await store.commit(commits, GRACE) == ["stale", "ok"]
        known = {"acme/one": (1, hands[0].token)}
        await store.release([("acme/one", hands[0].token)])
        assert await store.hold(["acme/one"], "w1", LEASE, known) == [Gone("acme/one")]
        assert [head.status for head in await store.find(Query("acme"))] == ["stuck"]

    play(main)


def test_letters_without_a_key_do_not_keep_others_from_theirs() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        for key in ("acme/one", "rival/one"):
            await begun(store, key)
            await store.send([letter(key=key)], GRACE)
        ring.shredded.add("acme")
        boxes = await store.mail(["acme/one", "rival/one"])
        assert "acme/one" not in boxes and len(boxes["rival/one"]) == 1

    play(main)


def test_reading_without_a_key_is_an_error_and_a_search_shows_what_is_left() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        await store.start([begin(state=b'{"a":1}')], GRACE)
        ring.shredded.add("acme")
        for asking in (store.read(ONE), store.head(ONE), store.start([begin(TWO)], 0), store.send([letter()], 0)):
            with pytest.raises(KeyShredded):
                await asking
        [head] = await store.find(Query("acme"))
        assert (head.key, head.state, head.workflow) == (ONE, None, "order")

    play(main)


def test_a_key_that_is_missing_is_not_shredded_and_comes_back() -> None:
    async def main(store: SealedStore, ring: Ring) -> None:
        await store.start([begin()], 0)
        numbers, ring.numbers = ring.numbers, {}
        with pytest.raises(KeyMissing):
            await store.read(ONE)
        assert await store.hold([ONE], "w1", LEASE) == [Gone(ONE)]
        ring.numbers = numbers
        assert [head.status for head in await store.find(Query("acme"))] == ["stuck"]
        kinds = [type(ev.read(row)) for row in await store.read(ONE)]
        assert kinds == [ev.Started, ev.Stuck]

    play(main)


# The optional ports.


def test_a_sealed_store_has_the_ports_that_the_store_inside_has(tmp_path: Path) -> None:
    seals = Seals(Ring())
    for inside in (MemoryStore(), SqliteStore(str(tmp_path / "s.db")), PostgresStore("postgresql://localhost/none")):
        made = sealed_store(inside, seals)
        assert isinstance(made, Joining) == isinstance(inside, Joining)
        assert isinstance(made, Twinned) == isinstance(inside, Twinned)
        if isinstance(made, Twinned):
            assert isinstance(made.twin(), SealedStore)
    assert store_of(seals, SqliteStore(str(tmp_path / "s.db"))).path == str(tmp_path / "s.db")
