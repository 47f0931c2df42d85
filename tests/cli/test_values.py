from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from perdure.cli import values
from perdure.cli.display import age, ago, brief
from perdure.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [("42", 42), ("tea", "tea"), ('"42"', "42"), ("[1]", [1]), ("true", True), ("null", None), ("it's", "it's")],
)
def test_json_or_a_plain_word(text: str, value: object) -> None:
    assert values.json_value(text, "it") == value


@pytest.mark.parametrize("text", ["", "{", "[1,", '"x', "1.2.3", "-"])
def test_what_begins_like_json_must_be_json(text: str) -> None:
    with pytest.raises(UsageError, match="is not JSON"):
        values.json_value(text, "it")


def test_times_relative_and_absolute() -> None:
    now = datetime.now(UTC)
    minute = timedelta(minutes=1)
    assert abs(values.moment("+2h") - now - timedelta(hours=2)) < minute
    assert abs(values.moment("-90s") - now + timedelta(seconds=90)) < minute
    assert values.moment("2024-05-01T12:00Z") == datetime(2024, 5, 1, 12, tzinfo=UTC)
    assert values.moment("2024-05-01").tzinfo is not None
    assert values.moment("9:05").minute == 5
    assert abs(values.since("2h") - now + timedelta(hours=2)) < minute
    assert abs(values.since("-2h") - now + timedelta(hours=2)) < minute
    assert values.since("2024-05-01T12:00Z") == values.moment("2024-05-01T12:00Z")
    assert values.version_or_moment("7") == 7


@pytest.mark.parametrize("text", ["", "+", "soon", "+2 parsecs", "25:99", "2024-13-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        values.moment(text)


def test_durations_for_people() -> None:
    assert (age(0), age(3_600_000_000), age(200_000_000)) == ("0s", "1h", "3m")
    assert (ago(0, 500), ago(0, 65_000_000)) == ("just now", "1m ago")
    assert (brief(138), brief(5_828), brief(3_074_123), brief(30_632_000)) == ("138us", "5ms", "3s 74ms", "30s")
