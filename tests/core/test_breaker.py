"""Circuit breakers: a pure state machine over time as a value."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from perdure import Breaker, Contention, External, Permanent, Transient
from perdure.core.breaker import Circuit, News, news_of, read
from perdure.core.durations import SECOND
from perdure.errors import ActionError, UsageError

BREAKER = Breaker(failures=3, window="10s", pause="20s")


def opened(at: int = 100 * SECOND) -> Circuit:
    """A circuit that three failures in a row have opened."""
    circuit = Circuit(BREAKER)
    for _ in range(3):
        circuit.ended(circuit.admit(at), "external", at)
    assert circuit.state == "open"
    return circuit


def test_so_many_failures_within_the_window_open_it() -> None:
    circuit = Circuit(BREAKER)
    changed = [circuit.ended(circuit.admit(at * SECOND), "external", at * SECOND) for at in (0, 5, 10)]
    assert changed == [False, False, True]
    assert circuit.refuses(10 * SECOND)
    assert circuit.opened == 1


def test_failures_that_are_further_apart_do_not() -> None:
    circuit = Circuit(BREAKER)
    for at in range(0, 100, 6):
        assert not circuit.ended(circuit.admit(at * SECOND), "external", at * SECOND)


def test_only_the_kinds_that_count_do() -> None:
    circuit = Circuit(Breaker(failures=1, counts=(Contention,)))
    for kind in ("external", "transient", "permanent", None):
        assert not circuit.ended(circuit.admit(0), kind, 0)  # type: ignore[arg-type]
    assert circuit.ended(circuit.admit(0), "contention", 0)


def test_it_refuses_until_the_pause_is_over() -> None:
    circuit = opened()
    assert circuit.refuses(120 * SECOND - 1)
    assert not circuit.refuses(120 * SECOND)


def test_one_probe_goes_through_and_the_others_wait() -> None:
    circuit = opened()
    circuit.admit(121 * SECOND)
    assert circuit.refuses(121 * SECOND)


def test_a_probe_that_succeeds_closes_it() -> None:
    circuit = opened()
    assert circuit.ended(circuit.admit(121 * SECOND), None, 122 * SECOND)
    assert circuit.state == "closed"
    assert not circuit.refuses(122 * SECOND)


def test_a_probe_that_fails_in_a_way_that_does_not_count_closes_it() -> None:
    circuit = opened()
    assert circuit.ended(circuit.admit(121 * SECOND), "permanent", 122 * SECOND)
    assert circuit.state == "closed"


def test_a_probe_that_fails_opens_it_for_another_pause() -> None:
    circuit = opened()
    assert circuit.ended(circuit.admit(121 * SECOND), "external", 125 * SECOND)
    assert circuit.refuses(145 * SECOND - 1)
    assert not circuit.refuses(145 * SECOND)
    assert circuit.opened == 2


def test_a_probe_that_was_called_off_makes_room_for_the_next() -> None:
    circuit = opened()
    circuit.abandoned(circuit.admit(121 * SECOND), 122 * SECOND)
    assert not circuit.refuses(122 * SECOND)


def test_a_probe_that_never_comes_back_blocks_for_one_pause() -> None:
    circuit = opened()
    lost = circuit.admit(121 * SECOND)
    assert circuit.refuses(141 * SECOND - 1)
    again = circuit.admit(141 * SECOND)
    assert not circuit.ended(lost, "external", 150 * SECOND)
    assert circuit.ended(again, None, 151 * SECOND)


def test_attempts_that_began_before_it_opened_say_nothing_about_the_probe() -> None:
    circuit = Circuit(BREAKER)
    old = [circuit.admit(0) for _ in range(6)]
    for ticket in old[:3]:
        circuit.ended(ticket, "external", SECOND)
    assert not circuit.ended(old[3], None, 2 * SECOND)
    probe = circuit.admit(30 * SECOND)
    assert not circuit.ended(old[4], "external", 31 * SECOND)
    assert not circuit.ended(old[5], None, 31 * SECOND)
    assert circuit.ended(probe, None, 32 * SECOND)


def test_what_failed_before_it_closed_is_forgotten() -> None:
    circuit = opened()
    circuit.ended(circuit.admit(121 * SECOND), None, 121 * SECOND)
    assert not circuit.ended(circuit.admit(121 * SECOND), "external", 121 * SECOND)


# --- news ------------------------------------------------------------------------------------------------------------


@given(name=st.text(min_size=1, max_size=30), state=st.sampled_from(["open", "closed"]), at=st.integers(0, 10**18))
def test_news_is_read_as_it_was_written(name: str, state: str, at: int) -> None:
    news = News(name, state, at)  # type: ignore[arg-type]
    assert read(str(news)) == news


@pytest.mark.parametrize(
    "text", ["", "breaker", "breaker:x:open", "breaker:x:ajar:1", "breaker:x:open:-1", "hot:x:open:1"]
)
def test_what_is_no_news_of_a_breaker_is_ignored(text: str) -> None:
    assert read(text) is None


def test_news_opens_and_closes_the_circuits_of_others() -> None:
    here, there = opened(), Circuit(BREAKER)
    there.heard(news_of("act", here, 100 * SECOND), 100 * SECOND)
    assert there.refuses(119 * SECOND)
    here.ended(here.admit(121 * SECOND), None, 122 * SECOND)
    there.heard(news_of("act", here, 122 * SECOND), 122 * SECOND)
    assert there.state == "closed"


def test_late_news_of_an_opening_does_not_open_a_circuit_that_closed_since() -> None:
    here, there = opened(), opened()
    late = news_of("act", here, 100 * SECOND)
    there.heard(News("act", "closed", 105 * SECOND), 105 * SECOND)
    there.heard(late, 106 * SECOND)
    assert there.state == "closed"


def test_late_news_of_a_closing_does_not_close_a_circuit_that_opened_since() -> None:
    circuit = opened()
    circuit.heard(News("act", "closed", 99 * SECOND), 101 * SECOND)
    assert circuit.state == "open"


def test_news_of_a_pause_that_is_over_is_ignored() -> None:
    circuit = Circuit(BREAKER)
    circuit.heard(News("act", "open", 50 * SECOND), 50 * SECOND)
    assert circuit.state == "closed"


def test_news_opens_for_no_longer_than_a_pause() -> None:
    circuit = Circuit(BREAKER)
    circuit.heard(News("act", "open", 10**17), 50 * SECOND)
    assert circuit.until == 70 * SECOND


def test_a_probe_under_way_is_not_disturbed_by_news_of_an_opening() -> None:
    circuit = opened()
    probe = circuit.admit(121 * SECOND)
    circuit.heard(News("act", "open", 142 * SECOND), 122 * SECOND)
    assert circuit.ended(probe, None, 123 * SECOND)


# --- putting off -----------------------------------------------------------------------------------------------------


@given(key=st.text(max_size=20), put_off=st.integers(0, 100), left=st.integers(-(10**9), 10**9))
def test_nobody_is_put_off_to_a_time_within_the_pause(key: str, put_off: int, left: int) -> None:
    delay = BREAKER.delay(until=10**12 + left, now=10**12, put_off=put_off, key=key)
    assert max(left, 0) <= delay <= max(left, 0) + 20 * SECOND * 32


def test_those_who_were_put_off_together_do_not_come_back_together() -> None:
    delays = sorted(BREAKER.delay(0, 0, 0, f"key {n}") for n in range(100))
    assert delays[0] < 2 * SECOND
    assert delays[-1] > 18 * SECOND


@pytest.mark.parametrize(
    "wrong", [{"failures": 0}, {"window": 0}, {"pause": 0}, {"counts": ()}, {"counts": (ActionError,)}]
)
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Breaker(**wrong)  # type: ignore[arg-type]


def test_by_default_ill_services_and_what_is_not_listed_count() -> None:
    assert set(Breaker().counts) == {External, Transient}
    assert Permanent not in Breaker().counts
