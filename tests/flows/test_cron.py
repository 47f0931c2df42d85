"""Cron lines and time zones, against a scan of every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings, strategies as st

from perdure.core.moments import moment, to_micros
from perdure.errors import InvalidValue
from perdure.flows.cron import LAST, Times, instant, read, zone

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Antarctica/Troll"]


def item(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.tuples(span | st.just("*"), st.integers(1, high)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return number.map(str) | span | stepped


def field(low: int, high: int) -> st.SearchStrategy[str]:
    return st.just("*") | st.lists(item(low, high), min_size=1, max_size=3).map(",".join)


LINES = st.tuples(field(0, 59), field(0, 23), st.just("*") | field(1, 28), field(1, 12), field(0, 7)).map(" ".join)
#: The weeks around the days on which clocks are changed somewhere.
MOMENTS = st.sampled_from(
    [datetime(2030, 3, 10), datetime(2030, 3, 31), datetime(2030, 4, 7), datetime(2030, 10, 6), datetime(2030, 10, 27)]
).flatmap(
    lambda day: st.integers(-2 * 86_400, 2 * 86_400).map(lambda s: to_micros(day.replace(tzinfo=UTC)) + s * 10**6)
)


def has(text: str, low: int, high: int, number: int) -> bool:
    """Whether a field stands for a number: one part after the other, with no set of numbers made."""
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        begin = low if span == "*" else int(first)
        end = high if span == "*" or (step and not dash) else int(last or first)
        if begin <= number <= end and (number - begin) % int(step or 1) == 0:
            return True
    return False


def matches(line: str, local: datetime) -> bool:
    minute, hour, day, month, week = line.split()
    weekday = local.isoweekday() % 7
    in_week = has(week, 0, 6, weekday) or (
        weekday == 0 and "7" in week and not week.startswith("*") and has(week, 0, 7, 7)
    )
    in_month = has(day, 1, 31, local.day)
    either = not (day.startswith("*") or week.startswith("*"))
    fits = in_month or in_week if either else in_month and in_week
    return fits and has(minute, 0, 59, local.minute) and has(hour, 0, 23, local.hour) and has(month, 1, 12, local.month)


def scan(line: str, where: str, start: int, step: int, minutes: int) -> int | None:
    """Minute by minute of real time: the first that matches on the wall, unless the wall shows it a second time."""
    at = moment(start).replace(second=0, microsecond=0)
    at += timedelta(minutes=1) if step > 0 else timedelta()
    for _ in range(minutes):
        local = at.astimezone(ZoneInfo(where))
        if local.fold == 0 and matches(line, local):
            return to_micros(at)
        at += timedelta(minutes=step)
    return None


@settings(max_examples=150, deadline=None)
@given(line=LINES, where=st.sampled_from(ZONES), moment=MOMENTS)
@example(line="30 2 * * *", where="Europe/Berlin", moment=to_micros(datetime(2030, 3, 30, 12, tzinfo=UTC)))
@example(line="*/7 2 * * *", where="Europe/Berlin", moment=to_micros(datetime(2030, 10, 27, 1, 10, tzinfo=UTC)))
def test_the_next_time_is_the_one_that_a_scan_of_all_minutes_finds(line: str, where: str, moment: int) -> None:
    found = Times(cron=line, timezone=where).after(moment)
    within = 4 * 1440
    scanned = scan(line, where, moment, 1, within)
    if scanned is None:
        assert found is None or found > moment + (within - 1) * 60 * 10**6
    else:
        assert found == scanned


@settings(max_examples=150, deadline=None)
@given(line=LINES, where=st.sampled_from(ZONES), moment=MOMENTS)
@example(line="45 2 * * *", where="Europe/Berlin", moment=to_micros(datetime(2030, 10, 27, 1, 10, tzinfo=UTC)))
def test_the_latest_time_is_the_one_that_a_scan_backwards_finds(line: str, where: str, moment: int) -> None:
    within = 4 * 1440
    since = moment - (within - 1) * 60 * 10**6
    scanned = scan(line, where, moment, -1, within)
    found = Times(cron=line, timezone=where).latest(since, moment)
    assert found == (scanned if scanned is not None and scanned > since else None)


@settings(max_examples=200, deadline=None)
@given(every=st.integers(1, 10**12), start=st.integers(0, 10**15), moment=st.integers(0, 10**16))
def test_an_interval_is_counted_from_the_start(every: int, start: int, moment: int) -> None:
    times = Times(every=every, start=start)
    found = times.after(moment)
    assert found is not None and found > moment and found >= start and (found - start) % every == 0
    assert found - every <= max(moment, start - 1) or found == start
    assert times.latest(moment, found) == found and times.latest(found, found) is None


def when(text: str) -> int:
    return to_micros(datetime.fromisoformat(text).astimezone(UTC))


def fires(line: str, where: str, after: str, count: int) -> list[str]:
    times, at, found = Times(cron=line, timezone=where), when(after), []
    for _ in range(count):
        at = times.after(at) or 0
        found.append(moment(at).astimezone(zone(where)).isoformat(timespec="minutes"))
    return found


def test_a_time_that_the_clock_leaps_over_does_not_happen() -> None:
    assert fires("30 2 * * *", "Europe/Berlin", "2030-03-30T00:00+01:00", 2) == [
        "2030-03-30T02:30+01:00",
        "2030-04-01T02:30+02:00",
    ]


def test_a_time_that_the_clock_shows_twice_happens_at_the_first() -> None:
    assert fires("30 2 * * *", "Europe/Berlin", "2030-10-27T00:00+02:00", 2) == [
        "2030-10-27T02:30+02:00",
        "2030-10-28T02:30+01:00",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("@daily", ["2030-01-02T00:00+00:00", "2030-01-03T00:00+00:00"]),
        ("0 9 * * MON-FRI", ["2030-01-01T09:00+00:00", "2030-01-02T09:00+00:00"]),
        ("0 0 13 * fri", ["2030-01-04T00:00+00:00", "2030-01-11T00:00+00:00"]),
        ("0 0 L * *", ["2030-01-31T00:00+00:00", "2030-02-28T00:00+00:00"]),
        ("0 0 29 2 *", ["2032-02-29T00:00+00:00", "2036-02-29T00:00+00:00"]),
        ("5/20 * * * *", ["2030-01-01T00:05+00:00", "2030-01-01T00:25+00:00"]),
        ("0 0 * * 7", ["2030-01-06T00:00+00:00", "2030-01-13T00:00+00:00"]),
    ],
)
def test_lines_say_what_people_expect(line: str, expected: list[str]) -> None:
    assert fires(line, "UTC", "2030-01-01T00:00Z", 2) == expected


@pytest.mark.parametrize(
    "line", ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "5-1 * * * *", "*/0 * * * *",
             "a * * * *", "1, * * * *", "0 0 30 2 *", "٣ * * * *", "* * * * mon-", "@never", "1" * 300]
)  # fmt: skip
def test_what_is_no_cron_line_is_refused(line: str) -> None:
    with pytest.raises(InvalidValue):
        read(line)


@pytest.mark.parametrize("name", ["", "Mars/Base", "../etc/passwd", "Europe", "/etc/passwd"])
def test_what_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue):
        zone(name)


def test_times_end_with_the_last_one_and_with_the_end() -> None:
    listed = Times(at=(5, 9))
    assert (listed.after(0), listed.after(5), listed.after(9)) == (5, 9, None)
    assert listed.latest(0, 8) == 5 and listed.latest(5, 8) is None
    ending = Times(every=10, start=0, end=25)
    assert (ending.after(10), ending.after(20)) == (20, None) and ending.latest(0, 1000) == 20


def test_a_wall_time_that_does_not_exist_is_no_instant() -> None:
    assert instant(datetime(2030, 3, 31, 2, 30), zone("Europe/Berlin")) is None
    assert instant(datetime(2030, 10, 27, 2, 30), zone("Europe/Berlin")) == when("2030-10-27T02:30+02:00")


def test_calendars_have_an_end() -> None:
    late = when("9999-12-30T12:00+00:00")
    assert Times(cron="@daily", timezone="Pacific/Auckland").after(late) is None
    assert Times(cron="0 0 29 2 *").after(when("9997-01-01T00:00+00:00")) is None
    assert Times(every=10**15).after(LAST) is None
    assert Times(cron="@yearly", timezone="Pacific/Auckland").after(when("9998-06-01T00:00+00:00")) is not None
