"""The one way to read durations: numbers of seconds, timedeltas, "1h30m" and ISO 8601, all to integer microseconds.

Rules kept here: exact arithmetic, rounded up, so that no timer fires early; a text that is not clearly one duration is
refused, never guessed; a year or a month has no fixed length and is refused too, except by `span`, which is told when
it begins.
"""

from __future__ import annotations

import math
import re
from calendar import monthrange
from datetime import date, timedelta
from fractions import Fraction
from typing import TypeAlias

from perdure.errors import InvalidValue

Duration: TypeAlias = float | int | str | timedelta

SECOND = 1_000_000
LONGEST_TEXT = 100
LONGEST = 10_000 * 31_556_952 * SECOND  # ten thousand mean years: beyond any calendar that Python has

_UNITS = {"w": 604_800 * SECOND, "d": 86_400 * SECOND, "h": 3_600 * SECOND, "m": 60 * SECOND, "s": SECOND}
_UNITS |= {"ms": 1_000, "us": 1}
_WORDS = {
    **dict.fromkeys(("w", "week", "weeks"), "w"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "µs", "μs", "microsecond", "microseconds"), "us"),
}
_LOOSE = {"y", "yr", "yrs", "year", "years", "mo", "month", "months"}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zµμ]+)")
_TEXT = re.compile(rf"([+-]?)((?:{_PART.pattern})+)")
_ISO_PART = r"(?:([0-9]+(?:[.,][0-9]+)?){})?"
_ISO = re.compile(
    "([+-]?)P(?=[0-9T])"
    + "".join(map(_ISO_PART.format, "YMWD"))
    + "(?:T(?=[0-9])"
    + "".join(map(_ISO_PART.format, "HMS"))
    + ")?"
)
#: The durations of the Serverless Workflow specification, as its schema has them.
_SPAN = re.compile(
    r"P(?!$)"
    + "".join(map(r"(?:(\d+(?:\.\d+)?){})?".format, "YMWD"))
    + r"(?:T(?=\d)"
    + "".join(map(r"(?:(\d+(?:\.\d+)?){})?".format, "HMS"))
    + ")?",
    re.ASCII,
)
_DAY = _UNITS["d"]
_EPOCH = date(1970, 1, 1).toordinal()
#: The calendar repeats itself after so many years, which are so many days.
_CYCLE, _CYCLE_DAYS = 400, 146_097
_EXAMPLES = "give seconds as a number, a timedelta, or a text such as '30s', '250ms', '1h30m', '2 days', 'PT24H'"
_NO_LENGTH = "a year or a month has no fixed length; give days"


def micros(value: Duration, *, negative: bool = False) -> int:
    """The duration in microseconds, rounded up; a plain number means seconds.

    >>> micros("1h30m"), micros("PT0,5S"), micros(0.25)
    (5400000000, 500000, 250000)
    >>> micros("P1M")
    Traceback (most recent call last):
    perdure.errors.InvalidValue: 'P1M' is not a duration: a year or a month has no fixed length; give days
    """
    if isinstance(value, timedelta):
        result = (value.days * 86_400 + value.seconds) * SECOND + value.microseconds
    elif isinstance(value, str):
        result = math.ceil(_parse(value))
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(value, _EXAMPLES)
    elif isinstance(value, int):
        result = value * SECOND
    elif math.isfinite(value):
        # By its decimal form: 0.1 is meant as 100 ms, not as the slightly larger binary number.
        result = math.ceil(Fraction(repr(float(value))) * SECOND)
    else:
        raise _refused(value, "it must be finite")
    if abs(result) > LONGEST:
        raise _refused(value, "it is longer than 10,000 years")
    if result < 0 and not negative:
        raise _refused(value, "it is negative")
    return result


def span(text: str, start: int) -> int:
    """A duration as documents have it, in microseconds: its years and months are those of the calendar from `start` on.

    All parts may have fractions; that of a month is a share of the month that follows. All days are those of UTC.

    >>> span("P1M", 0) // 86_400_000_000, span("P1M", span("P1M", 0)) // 86_400_000_000, span("P1.5DT0.5H", 0)
    (31, 28, 131400000000)
    """
    found = _SPAN.fullmatch(text) if len(text) <= LONGEST_TEXT else None
    if found is None:
        raise _refused(text, "give one such as 'PT30S', 'P1DT12H', 'P2W' or 'P1Y6M'")
    years, months, *rest = (Fraction(part or 0) for part in found.groups())
    whole, part = divmod(years * 12 + months, 1)
    total = sum((count * _UNITS[unit] for count, unit in zip(rest, "wdhms", strict=True)), Fraction())
    if whole or part:
        begin = _later(start, whole)
        total += begin - start + part * (_later(start, whole + 1) - begin)
    if total > LONGEST:
        raise _refused(text, "it is longer than 10,000 years")
    return math.ceil(total)


def _later(moment: int, months: int) -> int:
    """The same day and time so many months later, or the last day of that month where it is shorter."""
    days, time = divmod(moment, _DAY)
    day = date.fromordinal(days + _EPOCH)
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    cycles, year = divmod(year, _CYCLE)
    last = monthrange(year + _CYCLE, month + 1)[1]
    moved = date(year + _CYCLE, month + 1, min(day.day, last)).toordinal() + (cycles - 1) * _CYCLE_DAYS
    return (moved - _EPOCH) * _DAY + time


def seconds(value: Duration, *, negative: bool = False) -> float:
    """The duration in seconds.

    >>> seconds("250ms"), seconds("P1D")
    (0.25, 86400.0)
    """
    return micros(value, negative=negative) / SECOND


def show(micros: int) -> str:
    """A short form for people: the two largest units, the rest is dropped.

    >>> show(5_400_000_000), show(250_000), show(3 * 86_400_000_000), show(0)
    ('1h 30m', '250ms', '3d', '0s')
    """
    rest, parts = abs(micros), []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size) if unit != "w" else (0, rest)
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if micros < 0 else "") + (" ".join(parts[:2]) or "0s")


def _parse(text: str) -> Fraction:
    stripped = text.strip()
    if len(stripped) > LONGEST_TEXT:
        raise _refused(text, _EXAMPLES)
    if iso := _ISO.fullmatch(stripped):
        sign, years, months, *rest = iso.groups()
        if any(part and part.strip("0,.") for part in (years, months)):
            raise _refused(text, _NO_LENGTH)
        parts = [(part.replace(",", "."), unit) for part, unit in zip(rest, "wdhms", strict=True) if part]
    elif plain := _TEXT.fullmatch(stripped):
        sign = plain[1]
        parts = [(match[1], match[2]) for match in _PART.finditer(plain[2])]
        if any(word in _LOOSE for _, word in parts):
            raise _refused(text, _NO_LENGTH)
        if not all(word in _WORDS for _, word in parts):
            raise _refused(text, _EXAMPLES)
        parts = [(part, _WORDS[word]) for part, word in parts]
    else:
        raise _refused(text, _EXAMPLES)
    sizes = [_UNITS[unit] for _, unit in parts]
    if sizes != sorted(set(sizes), reverse=True):
        raise _refused(text, "name each unit once, the largest first")
    if any("." in part for part, _ in parts[:-1]):
        raise _refused(text, "only the last part may have a fraction")
    total = sum((Fraction(part) * size for (part, _), size in zip(parts, sizes, strict=True)), Fraction())
    return -total if sign == "-" else total


def _refused(value: object, why: str) -> InvalidValue:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**100 else "a number that long"
    return InvalidValue(f"{text if len(text) <= 200 else text[:197] + '...'} is not a duration: {why}")
