"""One execution of which the store does not take what it writes: it waits for a person, and nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from perdure import action, event, workflow
from perdure.core.records import Commit, End, Outcome, Park
from perdure.errors import (
    REFUSALS,
    ExecutionStuck,
    InvalidValue,
    KeyMissing,
    OutcomeUnknown,
    PerdureError,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from perdure.runtime.callers.batch import Batch
from perdure.runtime.parting import in_parts
from perdure.stores.memory import MemoryStore
from perdure.testing import World

POISON = "arsenic"

pytestmark = pytest.mark.virtual_time


class Picky(MemoryStore):
    """Refuses a whole group if one of its commits has the poison in it, as a store with transactions does."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self.error: type[Exception] = StoreRefused
        self.mended = False
        self.partly = False  # whether it has no transactions that span executions
        self.stuck_too = False  # whether it does not even take that the execution is stuck
        self.groups: list[int] = []

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        self.groups.append(len(group))
        if self.partly and len(group) > 1:
            fine = [commit for commit in group if not self._poisoned(commit)]
            answers = iter(await super().commit(fine, grace))
            return [next(answers) if commit in fine else "refused" for commit in group]
        for commit in group:
            if not self.mended and self._poisoned(commit):
                odd = "no \0 and no \ud800" if issubclass(self.error, REFUSALS) else "nothing"
                raise self.error(f"{commit.key}: {odd} here")
        return await super().commit(group, grace)

    def _poisoned(self, commit: Commit) -> bool:
        if isinstance(commit.settle, Park) and commit.settle.status == "stuck":
            return self.stuck_too or (commit.settle.state is not None and POISON.encode() in commit.settle.state)
        texts = [row.data for row in commit.rows]
        if isinstance(commit.settle, Park | End) and commit.settle.state is not None:
            texts.append(commit.settle.state)
        return any(POISON.encode() in text for text in texts)


@action
async def brew(what: str) -> str:
    return what


@workflow
async def drink(what: str) -> str:
    await event("go")
    return await brew(what)


@workflow
async def show(what: str) -> str:
    workflow.publish(cup="clean")
    await event("go")
    workflow.publish(cup=what)
    await event("more")
    return what


def picky(world: World) -> Picky:
    assert isinstance(world.store, Picky)
    return world.store


@pytest.mark.parametrize("error", REFUSALS)
async def test_the_others_of_a_group_are_written_and_the_culprit_is_stuck(error: type[PerdureError]) -> None:
    async with World(store=Picky, check_at_end=False) as world:
        store = picky(world)
        store.error = error
        runs = [await world.start(drink, POISON if n == 13 else f"tea {n}") for n in range(40)]
        for run in runs:
            await run.until("waiting")
        store.groups.clear()
        await asyncio.gather(*(run.send("go") for run in runs))
        for n, run in enumerate(runs):
            if n != 13:
                assert await run.result() == f"tea {n}"
        with pytest.raises(ExecutionStuck, match=r"\(refused\): default/.*: no \\x00 and no \\ud800 here"):
            await runs[13].result()
        assert max(store.groups) == 40
        assert len(store.groups) < 60  # a search by halves, and not one by one for each of its commits

        store.mended = True
        await runs[13].retry(by="ada")
        assert await runs[13].result() == POISON


async def test_who_was_refused_beside_others_that_are_written_is_asked_by_itself_why() -> None:
    async with World(store=Picky, check_at_end=False) as world:
        picky(world).partly = True
        runs = [await world.start(drink, POISON if n == 3 else f"tea {n}") for n in range(10)]
        for run in runs:
            await run.until("waiting")
        await asyncio.gather(*(run.send("go") for run in runs))
        with pytest.raises(ExecutionStuck, match=r"\(refused\): default/.*: no .x00 and no"):
            await runs.pop(3).result()
        assert [await run.result() for run in runs] == [f"tea {n}" for n in range(10) if n != 3]


async def test_what_was_written_before_stays_and_what_was_refused_is_forgotten() -> None:
    async with World(store=Picky, check_at_end=False) as world:
        run = await world.start(drink, POISON)  # its input is what it was started with: only its result is refused
        await run.until("waiting")
        before = [entry.type for entry in await run.log()]
        await run.send("go")
        await run.until("stuck")
        types = [entry.type for entry in await run.log()]
        assert types[: len(before)] == before
        assert "ActionSettled" not in types
        assert types.count("Stuck") == 1
        [dead] = (await world.app.dead()).dead
        assert (dead.cause, dead.tries) == ("refused", 1)


async def test_a_published_state_that_is_refused_is_not_shown_and_the_execution_can_be_cancelled() -> None:
    async with World(store=Picky, check_at_end=False) as world:
        run = await world.start(show, POISON)
        await run.until("waiting")
        await run.send("go")
        await run.until("stuck")
        assert (await run.state()).published == {"cup": "clean"}
        await run.cancel()
        await run.until("cancelled")


async def test_mail_that_waits_beside_what_is_refused_is_folded() -> None:
    async with World(store=Picky, check_at_end=False) as world:
        run = await world.start(drink, POISON)
        await run.until("waiting")
        await asyncio.gather(run.send("go"), *(run.send("spare") for _ in range(5)))
        await run.until("stuck")
        async with asyncio.timeout(60):
            while (await run.head()).mail or (await run.head()).holder:
                await asyncio.sleep(0.1)
        assert [entry.type for entry in await run.log()].count("EventReceived") == 6
        picky(world).mended = True
        await run.retry()
        assert await run.result() == POISON


async def test_one_that_cannot_even_be_stuck_is_tried_less_and_less_and_holds_up_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with World(store=Picky, check_at_end=False) as world:
        logging.getLogger("perdure.worker").removeHandler(world._errors)  # that it says so is right here
        store = picky(world)
        store.stuck_too = True
        run = await world.start(drink, POISON)
        await run.until("waiting")
        await run.send("go")
        with caplog.at_level(logging.ERROR):
            await world.advance("10m")
        told = [record.getMessage() for record in caplog.records if "not even take that it is stuck" in record.message]
        assert 5 <= len(told) <= 12
        assert r"no \x00" in told[0]
        assert await (await world.start(drink, "tea")).status() == "waiting"
        store.stuck_too = False
        await world.advance("10m")
        assert await run.status() == "stuck"


@pytest.mark.parametrize("error", [StoreUnavailable, StoreFull, StoreError, OutcomeUnknown])
async def test_what_is_wrong_with_the_store_makes_nobody_stuck(error: type[PerdureError]) -> None:
    async with World(store=Picky, check_at_end=False) as world:
        store = picky(world)
        store.error = error
        run = await world.start(drink, POISON)
        await run.until("waiting")
        await run.send("go")
        await world.advance("1m")
        assert await run.status() in ("running", "waiting")
        store.mended = True
        assert await run.result() == POISON


async def test_a_mistake_of_a_store_leaves_open_what_was_written_and_holds_up_nobody() -> None:
    async with World(store=Picky, check_at_end=False) as world:
        logging.getLogger("perdure.worker").removeHandler(world._errors)
        store = picky(world)
        store.error = TypeError
        run = await world.start(drink, POISON)
        await run.until("waiting")
        await run.send("go")
        await world.advance("10s")
        assert await (await world.start(drink, "tea")).until("waiting") == "waiting"
        store.mended = True
        assert await run.result() == POISON


# By halves


async def writing(bad: dict[int, Exception], items: Sequence[int]) -> tuple[list[int | Exception], list[int]]:
    calls: list[int] = []

    async def write(part: Sequence[int]) -> list[int]:
        calls.append(len(part))
        for one in part:
            if one in bad:
                raise bad[one]
        return list(part)

    return [answer async for answers in in_parts(write, items) for answer in answers], calls


async def test_a_culprit_among_many_costs_few_calls() -> None:
    error = InvalidValue("no")
    answers, calls = await writing({250: error}, range(400))
    assert answers == [*range(250), error, *range(251, 400)]
    assert len(calls) <= 1 + 2 * 9


async def test_two_culprits_are_both_found() -> None:
    no, never = KeyMissing("no"), StoreRefused("never")
    answers, _ = await writing({3: no, 4: never}, range(8))
    assert answers == [0, 1, 2, no, never, 5, 6, 7]


async def test_a_store_that_goes_away_meanwhile_is_asked_no_more() -> None:
    no, away = InvalidValue("no"), OutcomeUnknown("away")
    answers, calls = await writing({0: no, 4: away}, range(16))
    assert answers[:4] == [no, 1, 2, 3]
    assert answers[4:8] == [away] * 4
    assert all(isinstance(answer, StoreUnavailable) for answer in answers[8:])
    assert calls == [16, 8, 4, 2, 1, 1, 2, 4]


async def test_starts_and_sends_are_parted_in_the_same_way() -> None:
    calls = []

    async def write(part: Sequence[int]) -> list[int]:
        calls.append(len(part))
        if 250 in part:
            raise StoreRefused("no")
        return list(part)

    batch = Batch(write)
    answers = await asyncio.gather(*map(batch.put, range(400)), return_exceptions=True)
    assert isinstance(answers.pop(250), StoreRefused)
    assert answers == [*range(250), *range(251, 400)]
    assert len(calls) <= 20


async def test_what_one_caller_writes_together_is_written_but_for_what_is_refused() -> None:
    written: list[int] = []

    async def write(part: Sequence[int]) -> list[int]:
        if 3 in part:
            raise StoreRefused("no")
        written.extend(part)
        return list(part)

    batch = Batch(write, 4)
    assert await batch.put_all([]) == []
    with pytest.raises(StoreRefused):
        await batch.put_all(range(10))
    assert sorted(written) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert await batch.put_all([5, 4]) == [5, 4]
