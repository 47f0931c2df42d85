"""Cursors: signed, the same for all processes of a store, and good for one question only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, strategies as st
from msgspec import Raw

from perdure import DirectoryRing, Perdure, event, workflow
from perdure.core import events as ev
from perdure.core.records import Query, Row, Start, Started
from perdure.errors import ExecutionNotFound, InvalidValue, OutcomeUnknown, UsageError
from perdure.runtime.cursors import CURSORS, KEY, Cursors, Purpose
from perdure.stores.memory import MemoryStore

T = TypeVar("T")
PURPOSE = Purpose("acme", "find", {"status": "stuck"})
#: Every letter of a cursor, some that no cursor has, and nothing at all.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_OTHERS = ["=", "+", "/", " ", "\n", "\0", "é", "\ud800", ""]


@workflow(name="cursors-waits", events={"go": int, "other": int})
async def waits() -> int:
    return await event("go", int)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path / 'store.db'}"


async def refused(asked: Awaitable[Any]) -> str:
    with pytest.raises(InvalidValue, match="begin again without a cursor") as caught:
        await asked
    return str(caught.value)


def written(place: Any = (17, "a")) -> tuple[Cursors, str]:
    cursors = Cursors(MemoryStore())
    return cursors, asyncio.run(cursors.write(PURPOSE, place))


def test_a_cursor_gives_back_its_place_and_is_fit_for_a_url() -> None:
    cursors, cursor = written((17, "a/b ü"))
    assert set(cursor) <= set(_LETTERS)
    assert asyncio.run(cursors.read(PURPOSE, cursor, tuple[int, str])) == (17, "a/b ü")


def test_a_cursor_that_was_changed_in_any_place_is_refused() -> None:
    cursors, cursor = written()

    async def main() -> None:
        words = set()
        for place, letter in enumerate(cursor):
            for other in [*_LETTERS, *_OTHERS]:
                if other != letter:
                    changed = cursor[:place] + other + cursor[place + 1 :]
                    words.add(await refused(cursors.read(PURPOSE, changed, tuple[int, str])))
        assert len(words) == 1

    asyncio.run(main())


def test_a_cursor_that_was_cut_or_made_longer_is_refused() -> None:
    cursors, cursor = written()

    async def main() -> None:
        for length in range(len(cursor)):
            await refused(cursors.read(PURPOSE, cursor[:length], tuple[int, str]))
        for more in ("A", "=", "==", "\n", cursor, "A" * 10_000):
            await refused(cursors.read(PURPOSE, cursor + more, tuple[int, str]))

    asyncio.run(main())


@given(st.one_of(st.text(), st.text(_LETTERS), st.text(_LETTERS, min_size=22, max_size=60)))
def test_whatever_else_somebody_sends_is_refused(text: str) -> None:
    cursors, _ = written()
    asyncio.run(refused(cursors.read(PURPOSE, text, tuple[int, str])))


@pytest.mark.parametrize(
    "other",
    [
        Purpose("evil", "find", {"status": "stuck"}),
        Purpose("acme", "dead", {"status": "stuck"}),
        Purpose("acme", "find", {}),
        Purpose("acme", "find", {"status": "failed"}),
        Purpose("acme", "find", {"status": None}),
        Purpose("acme", "find", {"status": "stuck", "workflow": "w"}),
        Purpose("acmefind", "", {"status": "stuck"}),
    ],
)
def test_a_cursor_is_good_for_one_purpose_only(other: Purpose) -> None:
    cursors, cursor = written()
    asyncio.run(refused(cursors.read(other, cursor, tuple[int, str])))


@pytest.mark.parametrize("value", [10**40, float("nan"), "\ud800", None, 0.1, True])
def test_whatever_is_looked_for_can_be_signed(value: Any) -> None:
    cursors = Cursors(MemoryStore())
    purpose = Purpose("acme", "find", {"fields": {"n": value}})

    async def main() -> None:
        assert await cursors.read(purpose, await cursors.write(purpose, [1]), list[int]) == [1]

    asyncio.run(main())


def test_a_cursor_of_another_deployment_is_refused() -> None:
    _, cursor = written()
    other, _ = written()
    asyncio.run(refused(other.read(PURPOSE, cursor, tuple[int, str])))


def test_a_place_of_another_release_is_refused_like_all_others() -> None:
    cursors, cursor = written("elsewhere")
    asyncio.run(refused(cursors.read(PURPOSE, cursor, tuple[int, str])))


# The key.


def test_nothing_is_written_for_a_cursor_that_somebody_brings() -> None:
    async def main() -> None:
        store = MemoryStore()
        await refused(Cursors(store).read(PURPOSE, "x", list[int]))
        assert await store.head(KEY) is None

    asyncio.run(main())


def test_an_application_that_gave_no_cursor_has_no_key() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            await app.start(waits)
            assert (await app.find()).next is None
            assert await app.store.head(KEY) is None

    asyncio.run(main())


class Deaf(MemoryStore):
    """Does what it is asked, or not, and does not say which."""

    def __init__(self, fates: Sequence[bool]) -> None:
        super().__init__()
        self.fates = list(fates)

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        done = self.fates.pop(0)
        if done:
            await super().start(starts, grace)
        raise OutcomeUnknown("nobody knows")


@pytest.mark.parametrize("fates", [[True], [False, True]])
def test_a_key_that_may_have_been_made_is_looked_for(fates: list[bool]) -> None:
    async def main() -> None:
        cursors = Cursors(store := Deaf(fates))
        cursor = await cursors.write(PURPOSE, [1])
        assert await Cursors(store).read(PURPOSE, cursor, list[int]) == [1]

    asyncio.run(main())


def test_a_store_that_never_answers_is_not_asked_for_ever() -> None:
    with pytest.raises(OutcomeUnknown):
        asyncio.run(Cursors(Deaf([False] * 3)).write(PURPOSE, [1]))


async def filled(app: Perdure, count: int = 5, tenant: str = "default") -> None:
    for number in range(count):
        await app.start(waits, id=f"w{number}", tenant=tenant)


async def pages(app: Perdure, **asked: Any) -> list[str]:
    """The ids of all pages."""
    page = await app.find(**asked)
    ids = [head.key.partition("/")[2] for head in page.heads]
    while page.next is not None:
        page = await app.find(**asked, cursor=page.next)
        ids += [head.key.partition("/")[2] for head in page.heads]
    return ids


def test_many_processes_that_begin_at_once_have_one_key(url: str) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            apps = [await stack.enter_async_context(Perdure(url)) for _ in range(4)]
            await filled(apps[0])
            firsts = await asyncio.gather(*(app.find(limit=2) for app in apps for _ in range(3)))
            for app in apps:
                for first in firsts:
                    page = await app.find(limit=3, cursor=first.next)
                    assert [head.key for head in page.heads] == ["default/w2", "default/w1", "default/w0"]
            assert len(await apps[0].store.find(Query(CURSORS))) == 1

    asyncio.run(main())


def test_cursors_are_good_after_a_restart(url: str) -> None:
    async def first() -> str | None:
        async with Perdure(url) as app:
            await filled(app)
            return (await app.find(limit=4)).next

    async def then(cursor: str | None) -> None:
        async with Perdure(url) as app:
            assert [head.key for head in (await app.find(cursor=cursor)).heads] == ["default/w0"]

    asyncio.run(then(asyncio.run(first())))


def test_an_encrypted_store_has_cursors_as_well(tmp_path: Path) -> None:
    DirectoryRing.create(str(tmp_path / "ring"))

    async def main() -> None:
        for _ in range(2):
            async with Perdure(f"sqlite:///{tmp_path}/s.db", keyring=str(tmp_path / "ring")) as app:
                await filled(app)
                assert await pages(app, limit=2) == ["w4", "w3", "w2", "w1", "w0"]

    asyncio.run(main())


def test_no_worker_takes_the_key_up_and_no_list_shows_it() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            await filled(app)
            await app.find(limit=1)
            head = await app.store.head(KEY)
            assert head is not None and (head.status, head.queue) == ("completed", "")
            for asked in ({}, {"workflow": CURSORS}):
                assert not [one for one in (await app.find(**asked)).heads if one.workflow == CURSORS]
            with pytest.raises(UsageError):
                await app.find(workflow=CURSORS, tenant=CURSORS)

    asyncio.run(main())


# Lists.


def test_the_times_of_a_list_travel_in_its_cursor() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            await filled(app, 3)
            since = datetime.now(UTC) - timedelta(hours=1)
            until = since + timedelta(hours=2)
            first = await app.find(limit=1, after=since, before=until)
            for asked in ({}, {"after": since}, {"before": until}, {"after": since, "before": until}):
                page = await app.find(limit=1, cursor=first.next, **asked)
                assert [head.key for head in page.heads] == ["default/w1"]
            second = await app.find(limit=1, cursor=first.next)
            later = since + timedelta(seconds=1)
            for cursor in (first.next, second.next):
                await refused(app.find(cursor=cursor, after=later))
                await refused(app.find(cursor=cursor, before=later))
            bare = (await app.find(limit=1)).next
            await refused(app.find(cursor=bare, after=since))

    asyncio.run(main())


def test_a_time_that_a_cursor_carries_still_bounds_its_pages() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            await filled(app, 2)
            await asyncio.sleep(0.002)
            since = datetime.now(UTC)
            await asyncio.sleep(0.002)
            for id in ("x", "y", "z"):
                await app.start(waits, id=id)
            page = await app.find(limit=1, after=since)
            found = [head.key for head in page.heads]
            while page.next is not None:
                page = await app.find(limit=1, cursor=page.next)
                found += [head.key for head in page.heads]
            assert found == ["default/z", "default/y", "default/x"]

    asyncio.run(main())


async def _find(app: Perdure, **asked: Any) -> str | None:
    return (await app.find(**asked)).next


async def _dead(app: Perdure, **asked: Any) -> str | None:
    return (await app.dead(**asked)).next


async def _tasks(app: Perdure, **asked: Any) -> str | None:
    return (await app.tasks.list(**asked)).next


async def _mine(app: Perdure, **asked: Any) -> str | None:
    by = asked.pop("by", "ann")
    return (await app.tasks.mine(by, asked.pop("roles", ["a", "b"]), **asked)).next


async def _audit(app: Perdure, **asked: Any) -> str | None:
    return (await app.audit.find(**asked)).next


async def _log(app: Perdure, **asked: Any) -> str | None:
    id, tenant = asked.pop("id", "w0"), asked.pop("tenant", None)
    return (await app.get(id, tenant).log_page(**asked)).next


#: Verbs that give pages, with filters none of which is that of the plain question.
VERBS: list[tuple[Callable[..., Awaitable[str | None]], list[dict[str, Any]]]] = [
    (
        _find,
        [
            {"tenant": "evil"},
            {"status": "waiting"},
            {"workflow": "cursors-waits"},
            {"parent": "w0"},
            {"correlation": "c"},
            {"tag": "t"},
            {"stage": "paid"},
            {"published": {"stage": None}},
        ],
    ),
    (_dead, [{"tenant": "evil"}, {"cause": "lapses"}, {"workflow": "w"}, {"oldest": True}]),
    (
        _tasks,
        [
            {"tenant": "evil"},
            {"name": "n"},
            {"status": "open"},
            {"status": "cancelled"},
            {"assignee": "ann"},
            {"role": "a"},
            {"claimed_by": "ann"},
            {"execution": "w0"},
        ],
    ),
    (_mine, [{"tenant": "evil"}, {"by": "bob"}, {"roles": ["a"]}, {"name": "n"}, {"status": "open"}]),
    (_audit, [{"tenant": "evil"}, {"actor": "ann"}, {"act": "a"}, {"target": "t"}]),
    (_log, [{"tenant": "evil"}, {"id": "w1"}, {"after": 1}, {"until": 3}]),
]


class Watched(Cursors):
    """Remembers what a cursor would have to be for."""

    asked: Purpose

    async def read(self, purpose: Purpose, text: str, into: type[T]) -> T:
        self.asked = purpose
        return await super().read(purpose, text, into)


def test_every_verb_takes_cursors_for_its_own_question_only() -> None:
    """There need be nothing to list: a cursor is judged before anything is looked for."""
    questions = [(ask, asked) for ask, filters in VERBS for asked in [{}, *filters]]

    async def main() -> None:
        async with Perdure("memory://") as app:
            await filled(app, 2)
            await filled(app, 2, "evil")
            app.cursors = watched = Watched(app.store)
            cursors: list[str] = []
            for ask, asked in questions:
                await refused(ask(app, cursor="x", **asked))
                place = [asked.get("after", 0), asked.get("until"), 0] if ask is _log else [1, "a"]
                cursors.append(await watched.write(watched.asked, place))
            for number, (ask, asked) in enumerate(questions):
                for of, cursor in enumerate(cursors):
                    own, bounds = of == number, {"after", "until"} & questions[of][1].keys()
                    if own or (ask is _log and questions[of][0] is _log and not asked and bounds):
                        await ask(app, cursor=cursor, **asked)  # that of a log may come alone
                    else:
                        await refused(ask(app, cursor=cursor, **asked))

    asyncio.run(main())


# Logs.


def long_log(length: int) -> list[Row]:
    marks = [ev.row(ev.Marked(n, "record", "n", Raw(b'"%080d"' % n)), n, n) for n in range(2, length)]
    return [
        ev.row(ev.Started("cursors-waits", 1, Raw(b"[]")), 1, 1),
        *marks,
        ev.row(ev.Completed(Raw(b"0")), length, length),
    ]


async def versions(app: Perdure, limit: int, *, alone: bool, **asked: Any) -> list[list[int]]:
    run = app.get("long")
    page = await run.log_page(limit=limit, **asked)
    found = [[one.version for one in page.events]]
    while page.next is not None:
        page = await run.log_page(limit=limit, cursor=page.next, **({} if alone else asked))
        found.append([one.version for one in page.events])
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 10, 11, 12, 1000])
def test_pages_of_a_log_are_exactly_the_versions_asked_for(limit: int) -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            await app.adopt(long_log(11), "long")
            for after in (None, 0, 1, 4, 10, 11, 12, 10**30):
                for until in (None, 1, 2, 5, 10, 11, 12, 10**30):
                    asked = {"after": after, "until": until}
                    whole = list(range((after or 0) + 1, min(11, until or 11) + 1)) if (after or 0) < 11 else []
                    for alone in (True, False):
                        found = await versions(app, limit, alone=alone, **asked)
                        assert found == [whole[at : at + limit] for at in range(0, len(whole), limit)] or (
                            found == [[]] and not whole
                        )
                    if after != 10**30 and until != 10**30:
                        assert [one.version for one in await app.get("long").log(after or 0, until)] == whole

    asyncio.run(main())


def test_versions_beyond_all_logs_are_asked_for_in_vain(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            await app.adopt(long_log(5), "long")
            assert await versions(app, 3, alone=True, after=10**30) == [[]]
            assert await versions(app, 3, alone=True, until=10**30) == [[1, 2, 3], [4, 5]]
            with pytest.raises(UsageError):
                await app.get("long").log_page(-1)
            with pytest.raises(UsageError):
                await app.get("long").log_page(until=0)
            for limit in (0, 1001):
                with pytest.raises(UsageError, match="limit"):
                    await app.get("long").log_page(limit=limit)
            for after in (None, 3):
                with pytest.raises(ExecutionNotFound):
                    await app.get("nobody").log_page(after)

    asyncio.run(main())


def test_the_cursor_of_a_log_keeps_to_the_versions_it_was_made_for() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            await app.adopt(long_log(20), "long")
            await app.adopt(long_log(20), "other")
            run = app.get("long")
            first = await run.log_page(2, 9, limit=3)
            second = await run.log_page(limit=3, cursor=first.next)
            assert [one.version for one in second.events] == [6, 7, 8]
            for cursor in (first.next, second.next):
                for asked in ({"after": 3}, {"after": 0}, {"until": 8}, {"until": 20}, {"after": 2, "until": 10}):
                    await refused(run.log_page(cursor=cursor, **asked))
                await refused(app.get("other").log_page(cursor=cursor))
                await refused(app.get("nobody").log_page(cursor=cursor))
            await refused(run.log_page(cursor=(await app.find(limit=1)).next))

    asyncio.run(main())


def test_a_log_that_grows_is_gone_on_with_and_has_no_doubles() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            run = await app.start(waits, id="grows")
            async with app.working():
                for number in range(3):
                    await run.send("other", number)
                await run.until("waiting")
                page = await run.log_page(limit=2)
                await run.send("go", 1)
                await run.result()
                seen = [one.version for one in page.events]
                while page.next is not None:
                    page = await run.log_page(limit=2, cursor=page.next)
                    seen += [one.version for one in page.events]
                assert seen == list(range(1, (await run.head()).version + 1))

    asyncio.run(main())
