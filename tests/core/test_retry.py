"""When an action is tried again: a pure decision."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from perdure.core.durations import LONGEST, micros
from perdure.core.retry import FREE, Again, Retry, left_alone, policy
from perdure.errors import External, UsageError


@given(
    attempt=st.integers(1, 200),
    first=st.floats(0.001, 100),
    factor=st.floats(1, 10),
    step=st.floats(0, 100),
    cap=st.floats(0.001, 1000),
    jitter=st.floats(0, 1),
    key=st.text(max_size=20),
)
def test_delays_stay_within_their_bounds(
    attempt: int, first: float, factor: float, step: float, cap: float, jitter: float, key: str
) -> None:
    retry = Retry(attempts=0, first=first, factor=factor, step=step, cap=cap, jitter=jitter)
    delay = retry.delay(attempt, key)
    plain = min((micros(first) + micros(step) * (attempt - 1)) * factor ** (attempt - 1), micros(cap))
    assert min(int(plain), micros(cap)) <= delay <= min(plain * (1 + jitter) + 1, micros(cap))
    assert delay == retry.delay(attempt, key)


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ({"factor": 1}, [3, 3, 3, 3, 3]),
        ({"factor": 1, "step": "2s"}, [3, 5, 7, 9, 11]),
        ({}, [3, 6, 12, 24, 48]),
        ({"cap": "10s"}, [3, 6, 10, 10, 10]),
    ],
    ids=["constant", "linear", "exponential", "capped"],
)
def test_delays_follow_their_formula_and_jitter_lengthens_them_by_its_share(
    how: dict[str, Any], seconds: list[int]
) -> None:
    plain, shaken = (Retry(attempts=0, first="3s", jitter=jitter, **how) for jitter in (0.0, 0.5))
    assert [plain.delay(attempt, "k") for attempt in range(1, 6)] == [one * 1_000_000 for one in seconds]
    for attempt, one in enumerate(seconds, 1):
        most = min(1.5 * one, 10 if "cap" in how else 60) * 1_000_000
        found = [shaken.delay(attempt, f"key {number}") for number in range(200)]
        assert one * 1_000_000 <= min(found) <= max(found) <= most
        assert max(found) - min(found) >= 0.9 * (most - one * 1_000_000)


def test_a_pause_that_no_number_is_large_enough_for_is_the_longest() -> None:
    assert Retry(attempts=0, factor=10.0, cap="1m").delay(1_000_000, "k") == micros("1m")


@given(attempts=st.integers(1, 20))
def test_there_are_exactly_as_many_attempts_as_said(attempts: int) -> None:
    retry = Retry(attempts=attempts)
    tries = 1
    while retry.again(tries, "transient", 0, "k") is not None:
        tries += 1
    assert tries == attempts


def test_retries_count_the_tries_after_the_first() -> None:
    assert policy(0).attempts == 1
    assert policy(5).attempts == 6


def test_fatal_errors_are_added_to_those_of_a_policy() -> None:
    assert policy(Retry(attempts=9, fatal=(KeyError,)), fatal=(ValueError,)).fatal == (KeyError, ValueError)


def test_a_permanent_failure_is_never_tried_again() -> None:
    assert Retry(attempts=0).again(1, "permanent", 0, "k") is None


def test_contention_is_tried_again_soon_and_without_using_up_attempts() -> None:
    once = Retry(attempts=1)
    free = 0
    for attempt in range(1, FREE + 1):
        again = once.again(attempt, "contention", 0, "k", free)
        assert again is not None
        assert again.delay <= min(100_000 * 2**free, 5_000_000)
        free = again.free
    assert free == FREE


def test_contention_counts_after_a_hundred_times() -> None:
    assert Retry(attempts=1).again(FREE + 1, "contention", 0, "k", FREE) is None
    counted = Retry(attempts=2, first="7s", jitter=0).again(FREE + 1, "contention", 0, "k", FREE)
    assert counted == Again(7_000_000, FREE)


def test_contention_spreads_over_the_whole_span() -> None:
    delays = sorted(again.delay for n in range(200) if (again := Retry().again(1, "contention", 0, f"key {n}")))
    assert delays[0] < 10_000
    assert 90_000 < delays[-1] <= 100_000


def test_free_tries_do_not_lengthen_the_pause_of_those_that_count() -> None:
    retry = Retry(attempts=9, first="1s", jitter=0)
    assert retry.again(8, "transient", 0, "k", free=7) == Again(1_000_000, 7)


def test_an_ill_service_is_left_alone_for_as_long_as_it_asks() -> None:
    retry = Retry(attempts=9, first="1s", jitter=0)
    assert retry.again(1, "external", 0, "k", least=micros("2m")) == Again(micros("2m"))
    assert retry.again(1, "external", 0, "k", least=1) == Again(micros("1s"))


@pytest.mark.parametrize("wish", [None, "soon", -1, float("nan"), True, [3]])
def test_a_wish_to_be_left_alone_that_makes_no_sense_is_ignored(wish: object) -> None:
    error = OSError()
    error.retry_after = wish  # type: ignore[attr-defined]
    assert left_alone(error) == 0


@pytest.mark.parametrize(("wish", "micros"), [(2, 2_000_000), (0.5, 500_000), (float("inf"), LONGEST)])
def test_a_wish_to_be_left_alone_is_in_seconds_and_bounded(wish: float, micros: int) -> None:
    assert left_alone(External("ill", retry_after=wish)) == micros


def test_no_attempt_begins_after_the_elapsed_limit() -> None:
    retry = Retry(attempts=0, first="1s", jitter=0, elapsed="10s")
    assert retry.again(1, "transient", micros("8s"), "k") is not None
    assert retry.again(1, "transient", micros("9.5s"), "k") is None
    assert retry.again(1, "contention", micros("10s"), "k") is None


@pytest.mark.parametrize("wrong", [{"attempts": -1}, {"factor": 0.5}, {"jitter": 2}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="retry policy"):
        Retry(**wrong)  # type: ignore[arg-type]
