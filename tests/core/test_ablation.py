"""The laws have teeth: without what makes asyncio deterministic they fail, on these members and orders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from perdure.core import loop as loops, patches
from tests.corpus.drive import Broken, Case, Drive, evict, law, replay_of
from tests.corpus.workflows import CORPUS

#: What is taken away, and the members that must notice.
WITHOUT = {
    "as_completed": ["as_completed_actions", "as_completed_helpers", "as_completed_many"],
    "wait": ["wait_for_bare_futures"],
    "gather's hash": ["wait_for_gathers", "as_completed_mixed"],
    "the task's hash": ["wait_first_completed", "sets_of_tasks", "large_task_group", "task_group_with_clean_up"],
}
ORDERS = [(seed, failing) for seed in range(4) for failing in (False, True)]


def take_away(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == "as_completed":
        monkeypatch.setattr(asyncio, "as_completed", patches._as_completed)
    elif what == "wait":
        monkeypatch.setattr(asyncio, "wait", patches._wait)
    elif what == "gather's hash":
        monkeypatch.setattr(asyncio.tasks._GatheringFuture, "__hash__", object.__hash__)  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(loops.Task, "__hash__", object.__hash__)


def broken(member: str) -> int:
    """In how many random orders a law does not hold."""
    shuffled, found, before = Memory(), 0, set(loops._live)
    for seed, failing in ORDERS:
        shuffled.again()
        live = Drive(Case(member, seed, failing, noise=False)).run()
        shuffled.again()
        try:
            law(live)
            evict(replay_of(CORPUS[member].workflow, live.rows[:-1]))
        except Broken:
            found += 1
        for loop in loops._live - before:
            loop.evict()
    return found


class Memory:
    """Makes addresses come in another order: the allocator gives out again what was freed last."""

    def __init__(self) -> None:
        self.random = random.Random(7)
        self.kept: list[Any] = []

    def again(self) -> None:
        async def nothing() -> None: ...

        async def helper(name: str, n: int = 0) -> str:
            return name

        made: list[Coroutine[Any, Any, Any]] = [maker() for _ in range(200) for maker in (nothing, lambda: helper("x"))]
        futures = [asyncio.Future(loop=loops.new_loop(None)) for _ in range(200)]
        for coro in made:
            coro.close()
        self.random.shuffle(made)
        self.random.shuffle(futures)
        self.kept = [*made[::2], *futures[::2]]


@pytest.mark.parametrize("what, member", [(what, member) for what, members in WITHOUT.items() for member in members])
def test_without_it_a_law_does_not_hold(what: str, member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, what)
    assert broken(member) > 0


@pytest.mark.parametrize("member", [member for members in WITHOUT.values() for member in members])
def test_with_all_of_it_they_hold(member: str) -> None:
    assert broken(member) == 0
