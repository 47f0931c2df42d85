"""Turns by tenant."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, strategies as st

from perdure.core.fairness import RoundRobin, share_out

Steps = list[str | None]


def test_a_flood_does_not_hold_up_the_others() -> None:
    queue = RoundRobin[str]()
    for number in range(5000):
        queue.put("flood", f"flood {number}")
    queue.put("small", "small")
    assert [queue.take() for _ in range(3)] == ["flood 0", "small", "flood 1"]


def test_taking_from_an_empty_queue_is_an_error() -> None:
    with pytest.raises(IndexError):
        RoundRobin[int]().take()


def test_what_does_not_fit_is_taken_from_whoever_has_most() -> None:
    queue = RoundRobin[str](capacity=4)
    for item in ("a1", "b1", "a2", "a3", "c1", "c2"):
        queue.put(item[0], item)
    assert sorted(queue.take() for _ in range(len(queue))) == ["a3", "b1", "c1", "c2"]
    assert queue.dropped == 2


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=200), st.integers(1, 12))
def test_it_does_what_a_simple_model_does(steps: Steps, capacity: int) -> None:
    """Each tenant in order of arrival, never more than the capacity, dropped are the oldest of a longest line."""
    queue, model, turns = RoundRobin[int](capacity), dict[str, deque[int]](), list[str]()
    for number, tenant in enumerate(steps):
        if tenant is None:
            if not turns:
                continue
            first = turns.pop(0)
            assert queue.take() == model[first].popleft()
            if model[first]:
                turns.append(first)
        else:
            before = {name: list(line) for name, line in model.items()}
            queue.put(tenant, number)
            model.setdefault(tenant, deque()).append(number)
            if tenant not in turns:
                turns.append(tenant)
            if sum(map(len, before.values())) == capacity:
                longest = max(map(len, before.values()))
                held = {name: list(line) for name, line in queue._lines.items()}
                (dropped,) = [name for name, line in before.items() if line and line[0] not in held.get(name, [])]
                assert len(before[dropped]) == longest
                model[dropped].popleft()
                if not model[dropped]:
                    turns.remove(dropped)
                elif dropped == tenant and len(before[dropped]) == 1:
                    turns.remove(dropped)  # its line was empty for a moment: it is behind the others now
                    turns.append(dropped)
        assert len(queue) == sum(map(len, model.values())) <= capacity


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=50), st.integers(0, 60))
def test_shares_differ_by_no_more_than_one_among_those_who_have_more(tenants: list[str], limit: int) -> None:
    keys = [f"{tenant}/{number}" for number, tenant in enumerate(tenants)]
    shared = share_out(keys, limit)
    assert len(shared) == min(limit, len(keys)) == len(set(shared))
    got = {tenant: sum(key[0] == tenant for key in shared) for tenant in set(tenants)}
    for tenant, count in got.items():
        if count < tenants.count(tenant):
            assert max(got.values()) <= count + 1


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=50), st.integers(1, 4))
def test_claims_one_after_the_other_serve_the_tenants_in_turn(tenants: list[str], limit: int) -> None:
    left = [f"{tenant}/{number}" for number, tenant in enumerate(tenants)]
    last, order = "", list[str]()
    while left:
        shared = share_out(left, limit, last)
        last = shared[-1].partition("/")[0]
        order += [key.partition("/")[0] for key in shared]
        left = [key for key in left if key not in shared]
    for tenant in set(tenants):
        # Before its first turn nobody else has two.
        before = order[: order.index(tenant)]
        assert len(before) == len(set(before))
