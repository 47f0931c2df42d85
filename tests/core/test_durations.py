from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from perdure.core.durations import LONGEST, micros, seconds, show, span
from perdure.errors import InvalidValue

DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (30, 30_000_000),
        (0.1, 100_000),
        (1.5, 1_500_000),
        (1e-9, 1),
        (0.0000011, 2),
        ("30s", 30_000_000),
        ("250ms", 250_000),
        ("7us", 7),
        ("7µs", 7),
        ("0.1us", 1),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("  1 hour 30 minutes ", 5_400_000_000),
        ("2 days", 2 * DAY),
        ("1.5h", 5_400_000_000),
        ("1w 1d", 8 * DAY),
        ("PT24H", DAY),
        ("P1DT2H", DAY + 7_200_000_000),
        ("P2W", 14 * DAY),
        ("PT0.5S", 500_000),
        ("PT0,5S", 500_000),
        ("P0,5D", DAY // 2),
        ("P0Y0M1DT0H", DAY),
        ("PT36H", 36 * 3_600_000_000),
        ("P3652425D", LONGEST),
        (timedelta(days=1, microseconds=1), DAY + 1),
        (timedelta(0), 0),
        (-0.0, 0),
    ],
)
def test_reads(value: Any, expected: int) -> None:
    assert micros(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "30", "s", "soon", "1 fortnight", "1h30", "30m1h", "1h1h", "1.5h30m", "1,5h", "1e3s", "1H", "٣s",
        "--1s",
        "P", "PT", "P1DT", "T1H", "P1H", "PT1D", "P1.5DT2H", "PT1,5H30M", "PT1.S", "p1d", "pt1h", "P-1D",
        "1" * 5000 + "s",
        None, True, False, b"30s", [], object(), 1j, "1s\x00", "1h, 30m",
    ],
)  # fmt: skip
def test_refuses_with_examples(value: Any) -> None:
    with pytest.raises(InvalidValue, match="is not a duration") as caught:
        micros(value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", ["P1Y", "P1M", "P1Y2M3D", "P0.5Y", "1 month", "2 years", "1y", "3mo", "P100000Y"])
def test_months_and_years_have_no_length(value: str) -> None:
    with pytest.raises(InvalidValue, match="no fixed length; give days"):
        micros(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_only_finite_numbers(value: float) -> None:
    with pytest.raises(InvalidValue, match="finite"):
        micros(value)


@pytest.mark.parametrize(
    "value",
    [10**18, 1e300, 10**5000, "3652425.1 days", "999999999999w", timedelta.max],
    ids=lambda value: type(value).__name__,
)
def test_nothing_longer_than_ten_thousand_years(value: Any) -> None:
    with pytest.raises(InvalidValue, match="10,000 years"):
        micros(value)


@pytest.mark.parametrize("value", [-1, -0.5, "-1s", "-PT1H", timedelta(microseconds=-1)])
def test_negative_only_on_request(value: Any) -> None:
    with pytest.raises(InvalidValue, match="negative"):
        micros(value)
    assert micros(value, negative=True) < 0


@given(st.integers(0, LONGEST))
def test_iso_and_text_agree(count: int) -> None:
    assert micros(f"{count}us") == count
    assert micros(f"PT{count // 1_000_000}.{count % 1_000_000:06}S") == count


@given(st.timedeltas(timedelta(0), timedelta(days=3_000_000)))
def test_timedeltas_are_exact(value: timedelta) -> None:
    assert timedelta(microseconds=micros(value)) == value


@given(st.floats(0, 1e9))
def test_never_rounds_down(value: float) -> None:
    assert seconds(value) >= value or math.isclose(seconds(value), value, rel_tol=1e-15)


@given(st.integers(0, LONGEST))
def test_what_is_shown_can_be_read(count: int) -> None:
    assert 0 <= count - micros(show(count)) <= count / 24 + 1
    assert show(-count) == ("-" if count else "") + show(count)


# Of documents: years and months are those of the calendar.

#: As the schema of the Serverless Workflow specification, version 1.0.3, has it.
SCHEMA = (
    r"^P(?!$)(\d+(?:\.\d+)?Y)?(\d+(?:\.\d+)?M)?(\d+(?:\.\d+)?W)?(\d+(?:\.\d+)?D)?"
    r"(T(?=\d)(\d+(?:\.\d+)?H)?(\d+(?:\.\d+)?M)?(\d+(?:\.\d+)?S)?)?$"
)
PARTS = st.none() | st.integers(0, 99).map(str) | st.decimals(0, 99, places=2).map(str)


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)


@given(st.tuples(*[PARTS] * 7), st.integers(0, 4_000_000_000_000_000))
def test_every_form_of_the_schema_is_a_span(parts: tuple[str | None, ...], start: int) -> None:
    said = [f"{part}{unit}" if part is not None else "" for part, unit in zip(parts, "YMWDHMS", strict=True)]
    text = f"P{''.join(said[:4])}{'T' if any(said[4:]) else ''}{''.join(said[4:])}"
    if not re.match(SCHEMA, text):
        assert text == "P"
        return
    least = (12 * 28, 28, 7, 1, 1 / 24, 1 / 1440, 1 / 86400)
    most = (12 * 31, 31, *least[2:])
    low, high = (sum(float(part or 0) * days for part, days in zip(parts, many, strict=True)) for many in (least, most))
    assert low * DAY - 1 <= span(text, start) <= high * DAY + 2


@given(st.text("PYMWDTHS0123456789., -+\n٣", max_size=12) | st.from_regex(SCHEMA))
def test_what_is_not_of_the_schema_is_no_span(text: str) -> None:
    fits = re.fullmatch(SCHEMA, text, re.ASCII) is not None and not text.endswith("\n")
    try:
        found, why = span(text, 0), ""
    except InvalidValue as error:
        found, why = 0, str(error)
    assert 0 <= found <= LONGEST
    assert fits == (not why) or "10,000 years" in why or len(text) > 100


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("P1M", "2026-01-31T10:00", "2026-02-28T10:00"),
        ("P1M", "2028-01-31T10:00", "2028-02-29T10:00"),
        ("P1Y", "2028-02-29T00:00", "2029-02-28T00:00"),
        ("P13M", "2026-12-15T23:59", "2028-01-15T23:59"),
        ("P1Y2M3DT4H", "2026-01-01T00:00", "2027-03-04T04:00"),
        ("P0.5Y", "2026-01-01T00:00", "2026-07-01T00:00"),
        ("P0.5M", "2026-02-01T00:00", "2026-02-15T00:00"),
        ("P10Y", "2026-03-01T00:00", "2036-03-01T00:00"),
        ("P1.5DT2H", "2026-01-01T00:00", "2026-01-02T14:00"),
        ("P0.5W", "2026-01-01T00:00", "2026-01-04T12:00"),
        ("P0Y0M", "2026-01-01T00:00", "2026-01-01T00:00"),
    ],
)
def test_months_and_years_follow_the_calendar(text: str, start: str, end: str) -> None:
    assert at(start) + span(text, at(start)) == at(end)


def test_a_span_may_be_as_long_as_any_duration() -> None:
    assert span("P10000Y", at("2026-05-05T05:05")) == LONGEST
    for text in ("P10000Y1D", f"P{'9' * 90}M"):
        with pytest.raises(InvalidValue, match="10,000 years"):
            span(text, 0)
