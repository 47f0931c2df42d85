from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from perdure.core.durations import LONGEST, micros, seconds, show
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
