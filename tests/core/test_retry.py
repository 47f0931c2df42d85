"""When an action is tried again: a pure decision."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from perdure.core.durations import micros
from perdure.core.retry import Retry, policy
from perdure.errors import UsageError


@given(
    attempt=st.integers(1, 200),
    first=st.floats(0.001, 100),
    factor=st.floats(1, 10),
    cap=st.floats(0.001, 1000),
    jitter=st.floats(0, 1),
    key=st.text(max_size=20),
)
def test_delays_stay_within_their_bounds(
    attempt: int, first: float, factor: float, cap: float, jitter: float, key: str
) -> None:
    retry = Retry(attempts=0, first=first, factor=factor, cap=cap, jitter=jitter)
    delay = retry.delay(attempt, key)
    plain = min(micros(first) * factor ** min(attempt - 1, 300), micros(cap))
    assert min(int(plain), micros(cap)) <= delay <= min(plain * (1 + jitter) + 1, micros(cap))
    assert delay == retry.delay(attempt, key)


@given(attempts=st.integers(1, 20))
def test_there_are_exactly_as_many_attempts_as_said(attempts: int) -> None:
    retry = Retry(attempts=attempts)
    tries = 1
    while retry.again(tries, OSError(), 0, "k") is not None:
        tries += 1
    assert tries == attempts


def test_retries_count_the_tries_after_the_first() -> None:
    assert policy(0).attempts == 1
    assert policy(5).attempts == 6


def test_fatal_errors_end_it_also_beside_a_policy() -> None:
    assert policy(Retry(attempts=9), fatal=(ValueError,)).again(1, ValueError(), 0, "k") is None
    assert policy(Retry(attempts=9, fatal=(KeyError,)), fatal=(ValueError,)).again(1, KeyError(), 0, "k") is None


def test_no_attempt_begins_after_the_elapsed_limit() -> None:
    retry = Retry(attempts=0, first="1s", jitter=0, elapsed="10s")
    assert retry.again(1, OSError(), micros("8s"), "k") is not None
    assert retry.again(1, OSError(), micros("9.5s"), "k") is None


@pytest.mark.parametrize("wrong", [{"attempts": -1}, {"factor": 0.5}, {"jitter": 2}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="retry policy"):
        Retry(**wrong)  # type: ignore[arg-type]
