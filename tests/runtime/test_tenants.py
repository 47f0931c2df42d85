"""Tenants that are suspended: nothing of theirs runs, nothing of theirs is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, action, event, workflow
from perdure.errors import UsageError
from perdure.runtime.managing.tenants import Resting
from perdure.testing import World

ran: list[str] = []


@action(name="tenants.note")
async def note(what: str) -> str:
    ran.append(what)
    return what


@workflow(name="tenants-two-words", events={"word": str})
async def two_words(who: str) -> str:
    first = await event("word", str)
    await note(f"{who} {first}")
    return f"{first} {await event('word', str)}"


@workflow(name="tenants-quick")
async def quick(who: str) -> str:
    return await note(who)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/tenants.db"
        case _:
            return str(request.getfixturevalue("postgres")) + "&synchronous_commit=off&unsafe=yes"


def play(test: Callable[[Perdure], Awaitable[None]], url: str = "memory://", **settings: Any) -> None:
    ran.clear()

    async def main() -> None:
        async with asyncio.timeout(30), Perdure(url, **settings) as app:
            await test(app)

    asyncio.run(main())


def test_executions_of_a_suspended_tenant_wait_and_go_on_with_all_that_came(url: str) -> None:
    async def main(app: Perdure) -> None:
        await app.tenants.suspend("acme", "the invoice of May", by="ada")
        async with app.working():
            mine = await app.start(two_words, "acme", id="x", tenant="acme")
            for number, word in enumerate(("hello", "world")):
                await mine.send("word", word, id=f"w{number}")
            yours = await app.start(quick, "mill", tenant="mill")
            assert await yours.result(10) == "mill"
            assert (await mine.head()).mail == 2
            assert ran == ["mill"]
            await app.tenants.resume("acme")
            assert await mine.result(10) == "hello world"
            assert ran == ["mill", "acme hello"]

    play(main, url)


def test_what_is_held_rests_at_its_next_wait() -> None:
    async def main(app: Perdure) -> None:
        async with app.working():
            run = await app.start(two_words, "acme", tenant="acme")
            await run.until("waiting")
            await app.tenants.suspend("acme")
            while "acme" not in app.worker._resting.tenants:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            await run.send("word", "hello")
            assert await (await app.start(quick, "mill", tenant="mill")).result(10) == "mill"
            assert "acme hello" not in ran
            await app.tenants.resume("acme")
            await run.send("word", "world")
            assert await run.result(10) == "hello world"

    play(main, linger=0)


def test_a_worker_that_starts_later_knows_before_its_first_hint(url: str) -> None:
    async def main(app: Perdure) -> None:
        mine = await app.start(quick, "acme", tenant="acme")
        await app.tenants.suspend("acme")
        async with app.working():
            assert await (await app.start(quick, "mill", tenant="mill")).result(10) == "mill"
            assert ran == ["mill"]
        await app.tenants.resume("acme")
        async with app.working():
            assert await mine.result(10) == "acme"

    play(main, url)


def test_a_worker_that_was_not_told_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(app: Perdure) -> None:
        async def lost(hints: Any) -> None:
            pass

        async with app.working():
            monkeypatch.setattr(app.stream, "publish", lost)
            await app.tenants.suspend("acme")
            while "acme" not in app.worker._resting.tenants:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)

    play(main, probe=0.1)


def test_those_that_are_suspended_are_listed_with_who_and_why() -> None:
    async def main(app: Perdure) -> None:
        for _ in range(2):  # the second time it is so already
            await app.tenants.suspend("acme", "the invoice of May", by="ada")
        await app.tenants.suspend("mill")
        await app.tenants.resume("mill", by="ada")
        await app.tenants.resume("zoo")
        [one] = await app.tenants.suspended()
        assert (one.tenant, one.reason, one.by) == ("acme", "the invoice of May", "ada")
        assert [row.type for row in await app.store.read("tenants:/acme")] != []
        assert len(await app.store.read("tenants:/acme")) == 2
        with pytest.raises(UsageError):
            await app.tenants.suspend("a/b")

    play(main)


def test_what_is_remembered_of_resting_executions_has_a_bound() -> None:
    resting = Resting(None, most=10)  # type: ignore[arg-type]
    resting.tenants = frozenset({"acme"})
    assert resting.awake([f"acme/{number}" for number in range(100)] + ["mill/1"]) == ["mill/1"]
    assert len(resting._passed) == 10


@pytest.mark.virtual_time
async def test_those_for_whom_there_is_no_place_when_their_tenant_goes_on_come_as_soon_as_there_is() -> None:
    async with World(resident=2, grace="1h", lease="1h", probe="1h") as world:
        await world.app.tenants.suspend("acme")
        runs = [await world.app.start(quick, "ada", tenant="acme") for _ in range(7)]
        await world.settle()
        await world.app.tenants.resume("acme")
        began = world.now()
        assert [await run.result() for run in runs] == ["ada"] * 7
        assert world.now() - began < timedelta(seconds=1)
