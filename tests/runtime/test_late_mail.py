"""Mail that comes while an execution is being let go of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from perdure import Perdure, event, workflow
from perdure.core.records import Commit, Outcome, Park
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import MemoryStream


@workflow(name="late-mail-waits")
async def waits() -> str:
    return await event("late-mail-word", str)


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
