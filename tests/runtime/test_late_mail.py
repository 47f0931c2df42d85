"""Mail that comes late: while an execution is being let go of, while it ends, or when it is folded already."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import pytest

from perdure import Perdure, action, event, workflow
from perdure.core.records import Commit, End, Held, Hint, HoldAnswer, Mail, Outcome, Park
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import MemoryStream


@workflow(name="late-mail-waits")
async def waits() -> str:
    return await event("late-mail-word", str)


@workflow(name="late-mail-waits-twice")
async def waits_twice() -> None:
    await event("late-mail-word", str)
    await event("late-mail-word", str)


class Slow(MemoryStore):
    """Between a park and its answer there is time for somebody to send, and for this worker to fetch it."""

    meanwhile: Callable[[str], object] | None = None

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        answers = await super().commit(group, grace)
        for one in group:
            if isinstance(one.settle, Park) and (meanwhile := self.meanwhile) is not None:
                self.meanwhile = None
                await meanwhile(one.key)  # type: ignore[misc]
        return answers


def test_it_is_told_at_once_and_once() -> None:
    """A hint for it was used up by the worker that had just let go of it; the next one would come after a minute."""

    async def body() -> None:
        store = Slow()
        async with Perdure(store, stream=MemoryStream(), grace=60) as app, app.working():

            async def meanwhile(key: str) -> None:
                await run.send("late-mail-word", "hello")
                assert app.worker is not None
                resident = app.worker.rooms.residents[key]
                while not resident.mailbox.letters:
                    await asyncio.sleep(0.001)

            told: list[Outcome] = []
            commit = store.commit

            async def watched(group: Sequence[Commit], grace: int) -> list[Outcome]:
                answers = await commit(group, grace)
                told.extend(answers)
                return answers

            store.commit = watched  # type: ignore[method-assign]
            store.meanwhile = meanwhile
            run = await app.start(waits)
            async with asyncio.timeout(5):
                assert await run.result() == "hello"
            assert set(told) == {"ok"}

    asyncio.run(body())


@workflow(name="late-mail-child")
async def child() -> str:
    return "grown"


@workflow(name="late-mail-parent")
async def parent() -> tuple[str, str]:
    growing = asyncio.create_task(child())
    return await event("late-mail-word", str), await growing


class Quick(MemoryStore):
    """Before a park is written somebody sends."""

    before: Callable[[], Awaitable[None]] | None = None

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        if any(one.children for one in group) and (before := self.before) is not None:
            self.before = None
            await before()
        return await super().commit(group, grace)


def test_what_is_written_with_a_park_that_is_refused_for_it_is_told_at_once() -> None:
    """A child that nobody is told of would begin after a minute."""

    async def body() -> None:
        store = Quick()
        async with Perdure(store, stream=MemoryStream(), grace=60) as app, app.working():

            async def before() -> None:
                await run.send("late-mail-word", "hello")

            store.before = before
            run = await app.start(parent)
            assert await run.result(timeout=20) == ("hello", "grown")

    asyncio.run(body())


class Overtaken(Slow):
    """What is in a mailbox is told when nobody is there any more."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let_go = asyncio.Event(), asyncio.Event()
        self.holds = 0

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        self.holds += 1
        return await super().hold(keys, me, lease, known)

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        boxes = await super().mail(keys)
        self.asked.set()
        await self.let_go.wait()
        return boxes

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        if any(one.done for one in group):
            await self.asked.wait()
        return await super().commit(group, grace)


@pytest.mark.parametrize("in_the_answer", [True, False])
def test_it_is_told_at_once_also_if_its_execution_was_let_go_of_before_anybody_could_say_so(
    in_the_answer: bool,
) -> None:
    async def body() -> None:
        store, stream = Overtaken(), MemoryStream()
        async with Perdure(store, stream=stream, grace=60) as app, app.working() as worker:

            async def meanwhile(key: str) -> None:
                if not in_the_answer:  # to another question, which comes too early
                    await stream.publish([Hint(key, "default")])
                    await store.asked.wait()
                await run.send("late-mail-word", "hello")
                await store.asked.wait()
                await asyncio.sleep(0.01)  # and the hint has come

            store.meanwhile = meanwhile
            run = await app.start(waits)
            async with asyncio.timeout(5):
                await store.asked.wait()
                while worker.residents:
                    await asyncio.sleep(0.001)
                store.let_go.set()
                assert await run.result() == "hello"

    asyncio.run(body())


def test_nobody_is_held_once_more_for_mail_that_is_folded_already() -> None:
    async def body() -> None:
        store, stream = Overtaken(), MemoryStream()
        async with Perdure(store, stream=stream, grace=60, linger=0) as app, app.working() as worker:
            run = await app.start(waits_twice)
            store.let_go.set()
            assert await run.until("waiting", timeout=10)
            store.asked.clear()
            store.let_go.clear()
            await run.send("late-mail-word", "hello")  # the hold brings it; the look below finds it as well
            while not worker.residents:
                await asyncio.sleep(0)
            await stream.publish([Hint(run.key, "default")])
            await store.asked.wait()
            while worker.residents:
                await asyncio.sleep(0.001)
            holds = store.holds
            store.let_go.set()
            await asyncio.sleep(0.1)
            assert store.holds == holds

    asyncio.run(body())


made: Counter[str] = Counter()


@action(name="late-mail-lingers")
async def lingers(what: str) -> None:
    made[what] += 1
    await asyncio.sleep(30)


@workflow(name="late-mail-asks")
async def asks(what: str) -> None:
    await lingers(what)


class Answering(MemoryStore):
    """Between a hold and its answer there is time for somebody to send."""

    meanwhile: Callable[[], object] | None = None

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        answers = await super().hold(keys, me, lease, known)
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()  # type: ignore[misc]
        return answers


def test_mail_that_comes_after_the_answer_to_a_hold_is_fetched_when_it_is_here() -> None:
    async def body() -> None:
        store = Answering()
        async with Perdure(store, stream=MemoryStream(), grace=0) as outside:
            run = await outside.start(asks, "for a while")  # is due, and not hinted

            async def meanwhile() -> None:
                await app.get(run.id).cancel(now=True)
                await asyncio.sleep(0.01)  # and the hint has come

            store.meanwhile = meanwhile
            async with Perdure(store, stream=MemoryStream(), grace=60) as app, app.working():
                assert await app.get(run.id).until("cancelled", timeout=5)

    asyncio.run(body())


class OneByOne(MemoryStore):
    """Has room for one letter in an answer."""

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        return {key: letters[:1] for key, letters in (await super().mail(keys)).items()}

    async def hold(
        self, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]] | None = None
    ) -> list[HoldAnswer]:
        answers = await super().hold(keys, me, lease, known)
        return [
            msgspec.structs.replace(answer, mail=answer.mail[:1]) if isinstance(answer, Held) else answer
            for answer in answers
        ]


def test_nothing_begins_in_an_execution_that_ends_when_the_rest_of_its_mail_is_folded() -> None:
    async def body() -> None:
        async with Perdure(OneByOne(), stream=MemoryStream()) as app:
            run = await app.start(asks, "too late")
            await run.cancel(now=True)
            await run.send("late-mail-word", "hello")
            async with app.working():
                assert await run.until("cancelled", timeout=10)
            assert made["too late"] == 0
            written = [entry.type for entry in await run.log()]
            assert written == ["Started", "CancelRequested", "EventReceived", "Cancelled"]

    asyncio.run(body())


class Refusing(MemoryStore):
    """Refuses one end for mail that is never seen: its sender has taken it back."""

    refused = 0

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        if not self.refused and any(isinstance(one.settle, End) for one in group):
            self.refused += 1
            return ["mail" for _ in group]
        return await super().commit(group, grace)


def test_an_end_that_was_refused_comes_although_something_still_runs() -> None:
    async def body() -> None:
        store = Refusing()
        async with Perdure(store, stream=MemoryStream()) as app, app.working():
            run = await app.start(asks, "runs on")
            while not made["runs on"]:
                await asyncio.sleep(0.001)
            await run.cancel(now=True)
            assert await run.until("cancelled", timeout=10)
            assert store.refused == 1

    asyncio.run(body())


@workflow(name="late-mail-ends")
async def ends() -> None:
    pass


class Locked(MemoryStore):
    """Refuses ends for as long as a sender's transaction is under way; each call takes its time."""

    locked = True
    refused = 0

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        await asyncio.sleep(0.004)
        if self.locked and any(isinstance(one.settle, End) for one in group):
            self.refused += 1
            return ["mail" for _ in group]
        return await super().commit(group, grace)

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        await asyncio.sleep(0.001)
        return await super().mail(keys)


def test_an_end_that_is_refused_is_asked_for_again_after_a_while_and_not_at_once() -> None:
    async def body() -> None:
        store, stream = Locked(), MemoryStream()
        async with Perdure(store, stream=stream) as app, app.working():
            run = await app.start(ends)
            while not store.refused:
                await asyncio.sleep(0.001)
            for _ in range(20):  # one of these at least is received while the end is being written
                await stream.publish([Hint(run.key, "default")])
                await asyncio.sleep(0.007)
            before = store.refused
            await asyncio.sleep(0.5)
            store.locked = False
            await run.result(timeout=10)
            assert store.refused - before < 25, "ten or fewer where nothing else keeps the machine busy"

    asyncio.run(body())


steps: Counter[str] = Counter()


@action(name="late-mail-takes-long")
async def takes_long() -> None:
    steps["made"] += 1
    await asyncio.sleep(0.3)


@workflow(name="late-mail-two-words")
async def two_words() -> None:
    await event("late-mail-one", str)
    await event("late-mail-two", str)
    await takes_long()


class Detained(MemoryStore):
    """The first answer with mail in it comes very late: what is in it is folded by then."""

    def __init__(self) -> None:
        super().__init__()
        self.looked, self.let_go = asyncio.Event(), asyncio.Event()

    async def mail(self, keys: Sequence[str]) -> dict[str, list[Mail]]:
        boxes = await super().mail(keys)
        if any(boxes.values()) and not self.looked.is_set():
            self.looked.set()
            await self.let_go.wait()
        return boxes

    async def commit(self, group: Sequence[Commit], grace: int) -> list[Outcome]:
        if any(one.done for one in group):
            await self.looked.wait()
        return await super().commit(group, grace)


def test_an_answer_from_before_it_was_held_again_takes_nothing_from_whoever_holds_it() -> None:
    async def body() -> None:
        store, stream = Detained(), MemoryStream()
        async with Perdure(store, stream=stream, linger=0) as app, app.working() as worker:
            run = await app.start(two_words)
            assert await run.until("waiting", timeout=10)
            await run.send("late-mail-one", "one")
            while not store.looked.is_set():
                await stream.publish([Hint(run.key, "default")])
                await asyncio.sleep(0.001)
            while worker.residents:
                await asyncio.sleep(0.001)
            await run.send("late-mail-two", "two")
            while not steps["made"]:
                await asyncio.sleep(0.001)
            store.let_go.set()
            await run.result(timeout=30)
            assert steps["made"] == 1
            assert worker.metrics.errors.counts["stale"] == 0

    asyncio.run(body())
