"""Executions by what is known of them: `find`, its filters, its order and its pages; and the `extent` of a workflow."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from perdure.core.events import Paused, Restarted
from perdure.core.records import Park, Query, ShownStatus
from perdure.ports import Store
from perdure.testing.contract.stage import (
    GRACE,
    ONE,
    THREE,
    TWO,
    StoreTests,
    begin,
    begun,
    head_of,
    scenario,
    settled,
    take,
)


class Searching(StoreTests):
    async def found(self, store: Store, **parts: Any) -> list[str]:
        return [head.key for head in await store.find(Query("acme", **parts))]

    @scenario
    async def test_a_search_answers_heads(self, store: Store) -> None:
        await begun(store)
        assert await store.find(Query("acme")) == [await head_of(store)]

    @scenario
    async def test_a_search_shows_the_newest_first(self, store: Store) -> None:
        for key in (TWO, ONE, THREE):
            await store.start([begin(key)], GRACE)
            self.advance(1)
        assert await self.found(store) == [THREE, ONE, TWO]

    @scenario
    async def test_a_search_never_leaves_its_tenant(self, store: Store) -> None:
        await store.start([begin(ONE), begin("acme2/one"), begin("ac/me"), begin("zeta/one", parent=ONE)], GRACE)
        assert await self.found(store) == [ONE]
        assert await self.found(store, parent=ONE) == []
        assert await store.find(Query("")) == []

    @scenario
    async def test_a_search_by_status(self, store: Store) -> None:
        await (await begun(store, "acme/parked")).park()
        await begun(store, "acme/held")
        await (await begun(store, "acme/paused")).commit(Paused(), settle=Park("paused", None))
        await (await begun(store, "acme/stuck")).commit(settle=Park("stuck", None))
        await (await begun(store, "acme/done")).end()
        expected: dict[ShownStatus, list[str]] = {
            "waiting": ["acme/parked"],
            "running": ["acme/held"],
            "paused": ["acme/paused"],
            "stuck": ["acme/stuck"],
            "completed": ["acme/done"],
            "failed": [],
        }
        assert {status: await self.found(store, status=status) for status in expected} == expected

    @scenario
    async def test_a_search_shows_a_lapsed_hold_as_waiting(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        assert await self.found(store, status="running") == []
        assert await self.found(store, status="waiting") == [ONE]

    @scenario
    async def test_a_search_by_workflow(self, store: Store) -> None:
        await store.start([begin(ONE), begin(TWO, workflow="refund")], GRACE)
        assert await self.found(store, workflow="refund") == [TWO]

    @scenario
    async def test_a_search_may_leave_out_what_is_the_engines_own(self, store: Store) -> None:
        await store.start([begin(ONE), begin(TWO, workflow="action:charge")], GRACE)
        assert await self.found(store, inner=False) == [ONE]
        assert await self.found(store, workflow="action:charge") == [TWO]

    @scenario
    async def test_a_search_by_parent(self, store: Store) -> None:
        await store.start([begin(ONE), begin(TWO, parent=ONE), begin(THREE, parent=TWO)], GRACE)
        assert await self.found(store, parent=ONE) == [TWO]

    @scenario
    async def test_a_search_by_time(self, store: Store) -> None:
        for key in (ONE, TWO, THREE):
            await store.start([begin(key)], GRACE)
            self.advance(1)
        times = [(await head_of(store, key)).started_at for key in (ONE, TWO, THREE)]
        assert await self.found(store, after=times[1]) == [THREE, TWO]
        assert await self.found(store, before=times[1]) == [ONE]
        assert await self.found(store, after=times[1], before=times[2]) == [TWO]

    @scenario
    async def test_a_search_by_published_fields(self, store: Store) -> None:
        state = b'{"city":"Graz","n":1,"rate":0.5,"paid":true,"note":null,"one":"1"}'
        await store.start([begin(ONE, state=state), begin(TWO, state=b'{"city":"Linz"}'), begin(THREE)], GRACE)
        for fields in ({"city": "Graz"}, {"n": 1}, {"rate": 0.5}, {"paid": True}, {"note": None}, {"n": 1, "one": "1"}):
            assert await self.found(store, fields=fields) == [ONE], fields
        assert await self.found(store, fields={"city": "Linz"}) == [TWO]

    @scenario
    async def test_a_search_keeps_the_types_of_json_apart(self, store: Store) -> None:
        await store.start([begin(state=b'{"n":1,"paid":true,"one":"1","note":null}')], GRACE)
        for fields in ({"n": True}, {"n": "1"}, {"paid": 1}, {"one": 1}, {"note": False}, {"none": None}):
            assert await self.found(store, fields=fields) == [], fields

    @scenario
    async def test_a_search_takes_any_name_of_a_field(self, store: Store) -> None:
        await store.start([begin(state=b'{"a.b":1,"it\'s":2,"say \\"x\\"":3}')], GRACE)
        for fields in ({"a.b": 1}, {"it's": 2}, {'say "x"': 3}):
            assert await self.found(store, fields=fields) == [ONE], fields

    @scenario
    async def test_a_state_that_is_no_object_has_no_fields(self, store: Store) -> None:
        await store.start([begin(ONE, state=b"[1,2]"), begin(TWO, state=b'"x"')], GRACE)
        assert await self.found(store, fields={"0": 1}) == []

    @scenario
    async def test_a_search_is_paged_without_gaps_or_doubles(self, store: Store) -> None:
        for batch in range(3):
            await store.start([begin(f"acme/{batch}-{number}") for number in range(4)], GRACE)
            self.advance(1)
        expected = await self.found(store)
        pages: list[list[str]] = []
        cursor: tuple[int, str] | None = None
        while heads := await store.find(Query("acme", limit=5, cursor=cursor)):
            pages.append([head.key for head in heads])
            cursor = (heads[-1].started_at, heads[-1].key)
        assert [len(page) for page in pages] == [5, 5, 2]
        assert [key for page in pages for key in page] == expected
        assert len(set(expected)) == 12

    @scenario
    async def test_a_head_tells_where_the_newest_checkpoint_is(self, store: Store) -> None:
        hand = await begun(store)
        assert (await head_of(store)).base == 1
        await hand.commit(settled(1), Restarted(Raw(b"1"), ref=2))
        assert [head.base for head in await store.find(Query("acme"))] == [(await head_of(store)).base] == [3]
        await hand.end()
        assert (await head_of(store)).base == 3

    # How much there is of a workflow

    @scenario
    async def test_the_extent_of_a_workflow_rises_with_every_start_and_every_row(self, store: Store) -> None:
        assert await store.extent("acme", "order") == (0, 0)
        hand = await begun(store)
        assert await store.extent("acme", "order") == (1, 1)
        await hand.commit(settled(1))
        assert await store.extent("acme", "order") == (1, 2)
        await store.start([begin(TWO)], GRACE)
        assert await store.extent("acme", "order") == (2, 3)
        await hand.end()
        assert await store.extent("acme", "order") == (2, 4)

    @scenario
    async def test_the_extent_of_a_workflow_is_that_of_one_tenant(self, store: Store) -> None:
        await store.start([begin(ONE), begin("acme2/one"), begin(TWO, workflow="refund")], GRACE)
        assert await store.extent("acme", "order") == await store.extent("acme2", "order") == (1, 1)
        assert await store.extent("ac", "order") == (0, 0)

    @scenario
    async def test_filters_of_a_search_work_together(self, store: Store) -> None:
        await store.start([begin(ONE, state=b'{"n":1}'), begin(TWO, state=b'{"n":1}', workflow="refund")], GRACE)
        await take(store, TWO)
        assert await self.found(store, status="running", workflow="refund", fields={"n": 1}) == [TWO]
        assert await self.found(store, status="running", workflow="order", fields={"n": 1}) == []
