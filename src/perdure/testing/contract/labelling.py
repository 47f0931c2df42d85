"""Executions by what they are about: correlation ids and tags, which `find` goes by."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from perdure.core.records import Head, Query
from perdure.ports import Store
from perdure.testing.contract.stage import (
    GRACE,
    ONE,
    THREE,
    TWO,
    StoreTests,
    begin,
    begun,
    first_row,
    head_of,
    scenario,
    settled,
    take,
)


async def _found(store: Store, **parts: Any) -> list[str]:
    return [head.key for head in await store.find(Query("acme", **parts))]


class Labelling(StoreTests):
    @scenario
    async def test_a_head_shows_its_correlation_id_and_its_tags(self, store: Store) -> None:
        await store.start([begin(ONE, correlation="order-1", tags=("eu", "vip")), begin(TWO)], GRACE)
        head = await head_of(store)
        assert (head.correlation, head.tags) == ("order-1", ("eu", "vip"))
        plain = await head_of(store, TWO)
        assert (plain.correlation, plain.tags) == (None, ())
        assert await store.find(Query("acme", correlation="order-1")) == [head]

    @scenario
    async def test_executions_may_share_a_correlation_id(self, store: Store) -> None:
        for key, about in ((TWO, "a"), (ONE, "a"), (THREE, "b")):
            await store.start([begin(key, correlation=about)], GRACE)
            self.advance(1)
        assert await _found(store, correlation="a") == [ONE, TWO]
        assert await _found(store, correlation="c") == []

    @scenario
    async def test_all_tags_that_are_asked_for_must_be_there(self, store: Store) -> None:
        await store.start([begin(ONE, tags=("eu", "vip")), begin(TWO, tags=("eu",)), begin(THREE)], GRACE)
        assert sorted(await _found(store, tags=("eu",))) == [ONE, TWO]
        assert await _found(store, tags=("vip", "eu")) == [ONE]
        assert await _found(store, tags=("vip", "us")) == []

    @scenario
    async def test_a_correlation_id_is_no_tag(self, store: Store) -> None:
        await store.start([begin(ONE, correlation="eu"), begin(TWO, tags=("eu",))], GRACE)
        assert await _found(store, correlation="eu") == [ONE]
        assert await _found(store, tags=("eu",)) == [TWO]
        assert await _found(store, correlation="eu", tags=("eu",)) == []

    @scenario
    async def test_any_text_will_do(self, store: Store) -> None:
        texts = ["Straße 7", "a/b:c", "t:x", "c:x", "it's 100%", "_", "日本" * 100, "[]", '"', "x" * 200]
        starts = [begin(f"acme/{n}", correlation=text, tags=(text,)) for n, text in enumerate(texts)]
        await store.start(starts, GRACE)
        for number, text in enumerate(texts):
            assert await _found(store, correlation=text, tags=(text,)) == [f"acme/{number}"], text
            head = await head_of(store, f"acme/{number}")
            assert (head.correlation, head.tags) == (text, (text,))

    @scenario
    async def test_a_search_by_label_never_leaves_its_tenant(self, store: Store) -> None:
        keys = (ONE, "acme2/one", "ac/me", "other/one")
        await store.start([begin(key, correlation="x", tags=("t",)) for key in keys], GRACE)
        assert await _found(store, correlation="x") == await _found(store, tags=("t",)) == [ONE]
        assert await store.find(Query("nobody", correlation="x")) == []
        assert await store.find(Query(None, correlation="x")) == []

    @scenario
    async def test_labels_go_together_with_all_other_filters(self, store: Store) -> None:
        starts = [
            begin(ONE, tags=("eu",), state=b'{"n":1}'),
            begin(TWO, tags=("eu",), workflow="refund"),
            begin(THREE, tags=("eu",), workflow="action:charge"),
            begin("acme/four", tags=("us",), state=b'{"n":1}'),
        ]
        times = []
        for start in starts:
            await store.start([start], GRACE)
            times.append((await head_of(store, start.key)).started_at)
            self.advance(1)
        await take(store, TWO)
        assert await _found(store, tags=("eu",)) == [THREE, TWO, ONE]
        assert await _found(store, tags=("eu",), inner=False) == [TWO, ONE]
        assert await _found(store, tags=("eu",), workflow="refund") == [TWO]
        assert await _found(store, tags=("eu",), status="running") == [TWO]
        assert await _found(store, tags=("eu",), status="waiting", inner=False) == [ONE]
        assert await _found(store, tags=("eu",), after=times[1]) == [THREE, TWO]
        assert await _found(store, tags=("eu",), before=times[1]) == [ONE]
        assert await _found(store, tags=("eu",), fields={"n": 1}) == [ONE]

    @scenario
    async def test_a_search_by_label_is_paged_without_gaps_or_doubles(self, store: Store) -> None:
        for batch in range(3):
            await store.start([begin(f"acme/{batch}-{n}", correlation="a", tags=("t",)) for n in range(4)], GRACE)
            await store.start([begin(f"acme/{batch}-other")], GRACE)
            self.advance(1)
        everything = await _found(store, correlation="a")
        assert everything == [f"acme/{batch}-{n}" for batch in (2, 1, 0) for n in (3, 2, 1, 0)]
        page = Query("acme", limit=5)
        for query in (
            structs.replace(page, correlation="a"),
            structs.replace(page, tags=("t",)),
            structs.replace(page, correlation="a", tags=("t",)),
        ):
            pages: list[list[Head]] = []
            cursor: tuple[int, str] | None = None
            while heads := await store.find(structs.replace(query, cursor=cursor)):
                pages.append(heads)
                cursor = heads[-1].started_at, heads[-1].key
            assert [len(page) for page in pages] == [5, 5, 2]
            assert [head.key for page in pages for head in page] == everything

    @scenario
    async def test_labels_stay_when_an_execution_has_ended(self, store: Store) -> None:
        hand = await begun(store, correlation="a", tags=("t",))
        await hand.end()
        assert await _found(store, correlation="a", tags=("t",), status="completed") == [ONE]

    @scenario
    async def test_an_import_of_an_ended_log_is_found_by_its_labels(self, store: Store) -> None:
        await store.start([begin(rows=(first_row(),), status="completed", correlation="a")], GRACE)
        assert await _found(store, correlation="a") == [ONE]

    @scenario
    async def test_a_second_start_adds_no_labels(self, store: Store) -> None:
        await store.start([begin(correlation="a")], GRACE)
        again = [begin(correlation="a"), begin(sha="other", correlation="b", tags=("t",)), begin(TWO, tags=("t",))]
        assert await store.start(again, GRACE) == ["same", "conflict", "created"]
        assert await _found(store, correlation="b") == []
        assert await _found(store, tags=("t",)) == [TWO]
        assert (await head_of(store)).tags == ()

    @scenario
    async def test_a_child_is_found_by_its_labels_once_its_start_is_committed(self, store: Store) -> None:
        hand = await begun(store)
        stale = await hand.prepare(settled(), children=[begin(THREE, correlation="a")])
        assert await hand.commit(settled(), children=[begin(TWO, correlation="a")]) == "ok"
        assert await _found(store, correlation="a") == [TWO]
        assert await store.commit([stale], GRACE) == ["stale"]
        assert await _found(store, correlation="a") == [TWO]

    @scenario
    async def test_a_child_whose_key_is_taken_adds_no_labels(self, store: Store) -> None:
        hand = await begun(store)
        await store.start([begin(TWO, sha="other")], GRACE)
        await hand.commit(settled(), children=[begin(TWO, correlation="a")])
        assert await _found(store, correlation="a") == []

    @scenario
    async def test_labels_and_topics_go_together(self, store: Store) -> None:
        hand = await begun(store, correlation="a", topics=("x",))
        await hand.commit(settled(), children=[begin(TWO, correlation="a", topics=("x",))])
        assert await store.listening("acme", ["x"], 10) == {"x": [ONE, TWO]}
        assert sorted(await _found(store, correlation="a")) == [ONE, TWO]
