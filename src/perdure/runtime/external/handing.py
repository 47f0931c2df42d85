"""External tasks on their way to a worker and back into the store.

Rules kept here: a task is given out only when it is written that it was; a hold that is not given out is given back;
what was written is told to those who wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from perdure.core.loop import turns
from perdure.core.moments import moment
from perdure.core.records import Commit, End, Held, id_of
from perdure.errors import StoreError
from perdure.flows.action import Action
from perdure.runtime.callers.ends import news_of
from perdure.runtime.execution.course import Ground
from perdure.runtime.external.overdue import Overdue
from perdure.runtime.external.task import Task
from perdure.runtime.external.ticket import Ticket, holder_of, new_secret
from perdure.runtime.external.watch import Wanted, Watch, news_of_change

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: Mail that arrives again and again while a hold is given back is left to the next one.
_TRIES = 5


class ExternalTask(Struct, frozen=True, omit_defaults=True):
    """What a worker needs to know. `key` is the idempotency key: the same for every attempt of this call."""

    token: str
    action: str
    version: int
    args: list[Any]
    key: str
    attempt: int
    execution: str  # that asked for it
    until: datetime  # it is given to another worker then, unless there is a heartbeat
    kwargs: dict[str, Any] = {}
    deadline: datetime | None = None  # no heartbeat goes beyond this
    progress: Any = None  # the details of the last heartbeat, also of an earlier attempt
    traceparent: str = ""  # for what the worker calls


class Wish(Struct, frozen=True):
    """What somebody asks for, checked."""

    wanted: Mapping[str, Action[..., Any]]  # by definition
    limit: int
    worker: str
    lease: int

    @property
    def definitions(self) -> Wanted:
        return tuple(self.wanted)


class Handing:
    """`ground` is what tasks need of whoever holds them."""

    def __init__(self, app: Perdure, ground: Ground) -> None:
        self._app = app
        self._ground = ground
        self.overdue = Overdue(app, ground, self.part)

    # Giving out.

    async def take(self, watch: Watch, wish: Wish) -> list[ExternalTask]:
        keys = await watch.keys(wish.definitions, wish.limit)
        if not keys:
            return []
        secret = new_secret()
        answers = await self._app.store.hold(keys, holder_of(secret, wish.worker), wish.lease)
        helds = [held for held in answers if isinstance(held, Held)]
        given: list[Task] = []
        try:
            given = await self._give_out(watch, wish, helds)
            return [await self._described(task, wish, secret) for task in given]
        except BaseException:
            # Whoever comes next sees what was written of this: what may have been given out counts as lost.
            with suppress(StoreError):
                await asyncio.shield(self._app.store.release([(held.key, held.token) for held in helds]))
            raise
        finally:
            for task in given:
                task.drop()

    async def _give_out(self, watch: Watch, wish: Wish, helds: Sequence[Held]) -> list[Task]:
        now, commits, others = self._app.clock.now(), [], []
        astray: list[tuple[str, int]] = []
        for held in helds:
            action = wish.wanted.get(held.definition)
            if action is None or held.queue != watch.queue:
                astray.append((held.key, held.token))
                continue
            task = Task(self._ground, held, action)
            with turns():
                task.wake(now)
                asked = task.give_out(wish.worker, now)
            if asked is None:
                others.append(task)
            elif (commit := task.keep()) is not None:
                commits.append((task, commit))
        if astray:
            await self._app.store.release(astray)
        for task in others:  # cancelled, paused, failed by its limits, due later
            await self.part(task)
            task.drop()
        return await self.write(commits) if commits else []

    async def _described(self, task: Task, wish: Wish, secret: str) -> ExternalTask:
        asked = task.open
        assert asked is not None
        action, now = asked.spec, self._app.clock.now()
        lease = task.lease(asked, wish.lease, now)
        if lease < wish.lease:
            await self._app.store.renew([(task.key, task.token)], lease)
        if task.limited(asked):
            self.overdue.follow(task.key, holder_of(secret, wish.worker), lease)
        args, kwargs = _arguments(asked.args)
        limit = task.limit(asked)
        return ExternalTask(
            Ticket(task.key, secret, wish.worker, wish.lease).token(),
            action.name,
            action.version,
            args,
            action.call_key,
            asked.attempts + 1,
            id_of(action.caller),
            moment(now + lease),
            kwargs,
            None if limit is None else moment(task.began + limit),
            None if asked.progress is None else msgspec.json.decode(asked.progress),
            str(task.trace.within(action.call_key)),
        )

    # Writing.

    async def part(self, task: Task) -> bool:
        """Give the hold back with what there is to write; False when it was no longer ours."""
        for _ in range(_TRIES):
            now = self._app.clock.now()
            with turns():
                commit = task.part(now)
            [outcome] = await self._app.store.commit([commit], self._app._grace())
            if outcome == "stale":
                return False
            if outcome == "ok":
                await self._written(task, commit)
                return True
            if outcome == "early":  # our clock runs ahead
                await self._app.clock.sync()
                continue
            if not isinstance(commit.settle, End):
                task.committed()
            letters = await self._app.store.mail([task.key])
            task.mailbox.deliver(letters.get(task.key, ()))  # none if the keys of its tenant are gone
            with turns():
                task.fold(now)
        await self._app.store.release([(task.key, task.token)])
        return True

    async def write(self, commits: Sequence[tuple[Task, Commit]]) -> list[Task]:
        """Write while the holds stand; gives those that were ours."""
        outcomes = await self._app.store.commit([commit for _, commit in commits], self._app._grace())
        ours = []
        for (task, commit), outcome in zip(commits, outcomes, strict=True):
            if outcome == "ok":
                await self._written(task, commit)
                ours.append(task)
            else:
                task.drop()
        return ours

    async def _written(self, task: Task, commit: Commit) -> None:
        task.committed()
        self._ground.metrics.wrote(commit.rows)
        hints = task.kin.hints(commit.mail, task.replay)
        if isinstance(commit.settle, End):
            hints.append(news_of(task.key, commit.settle))
            self._ground.metrics.ended.add(commit.settle.status)
            self._app._ends.came(task.key, commit.settle)
        elif commit.settle is not None:
            hints.append(news_of_change(task.queue))
        if hints:
            await self._app.stream.publish(hints)


def _arguments(raw: Raw) -> tuple[list[Any], dict[str, Any]]:
    call = msgspec.json.decode(raw)
    return (call, {}) if isinstance(call, list) else (call["args"], call["kwargs"])
