"""Dates, in UTC and with English names only: the same on every machine, whatever its locale and time zone.

A date in parts is jq's array: year, month from 0, day, hour, minute, second, day of the week from Sunday, day of the
year from 0. Years are those of Python's calendar, 1 to 9999.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from perdure.core.jq.limits import Meter, Raised
from perdure.core.jq.text import is_nan

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - everything here is UTC
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_NUMBERS = frozenset({int, float})
_TOO_FAR = "error converting number of seconds since epoch to datetime"


def gmtime(meter: Meter, value: Any) -> list[Any]:
    if type(value) not in _NUMBERS:
        raise Raised("gmtime() requires numeric inputs")
    try:
        moment = _EPOCH + timedelta(seconds=math.trunc(value))
    except (OverflowError, ValueError):
        raise Raised(_TOO_FAR) from None
    meter.make(8)
    fraction = value - math.floor(value)
    parts = _parts(moment)
    parts[5] += fraction or 0
    return parts


def _parts(moment: datetime) -> list[Any]:
    day = moment.timetuple()
    week_day = (day.tm_wday + 1) % 7
    return [day.tm_year, day.tm_mon - 1, day.tm_mday, day.tm_hour, day.tm_min, day.tm_sec, week_day, day.tm_yday - 1]


def _moment(value: list[Any], message: str) -> datetime:
    """The moment that the parts stand for; parts beyond their range carry over."""
    given: list[int] = []
    for part in value[:8]:
        if type(part) not in _NUMBERS or is_nan(part):
            raise Raised(message)
        given.append(int(max(-(2**31), min(part, 2**31 - 1))))
    year, month, day, hour, minute, second = (given + [0] * 6)[:6] if given else (1900, 0, 0, 0, 0, 0)
    try:
        start = datetime(year + month // 12, month % 12 + 1, 1)  # noqa: DTZ001
        return start + timedelta(days=day - 1, hours=hour, minutes=minute, seconds=second)
    except (OverflowError, ValueError):
        raise Raised("invalid gmtime representation") from None


def mktime(meter: Meter, value: Any) -> int:
    if type(value) is not list:
        raise Raised("mktime requires array inputs")
    return _seconds(_moment(value, "mktime requires parsed datetime inputs"))


def _seconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(seconds=1)


def strftime(meter: Meter, value: Any, format: Any) -> str:
    if type(value) in _NUMBERS:
        value = gmtime(meter, value)
    elif type(value) is not list:
        raise Raised("strftime/1 requires parsed datetime inputs")
    if type(format) is not str:
        raise Raised("strftime/1 requires a string format")
    moment = _moment(value, "strftime/1 requires parsed datetime inputs")
    meter.make(len(format) * 8)
    meter.work(1 + len(format))
    return _written(format, moment)


_COMPOUND = {
    "D": "%m/%d/%y",
    "F": "%Y-%m-%d",
    "T": "%H:%M:%S",
    "R": "%H:%M",
    "r": "%I:%M:%S %p",
    "c": "%a %b %e %H:%M:%S %Y",
    "x": "%m/%d/%y",
    "X": "%H:%M:%S",
    "h": "%b",
}


def _written(format: str, moment: datetime) -> str:
    return re.sub(
        r"%[-_0^#EO]*(.)", lambda found: _field(found.group(1), found.group(), moment), format, flags=re.DOTALL
    )


def _field(letter: str, whole: str, moment: datetime) -> str:
    if letter in _COMPOUND:
        return _written(_COMPOUND[letter], moment)
    if letter in _PADDED:
        return _PADDED[letter].format(moment, hour=moment.hour % 12 or 12)
    return _CALENDAR[letter](moment) if letter in _CALENDAR else _FIXED.get(letter, whole)


_PADDED = {
    "Y": "{0.year}",
    "m": "{0.month:02d}",
    "d": "{0.day:02d}",
    "e": "{0.day:2d}",
    "H": "{0.hour:02d}",
    "k": "{0.hour:2d}",
    "I": "{hour:02d}",
    "l": "{hour:2d}",
    "M": "{0.minute:02d}",
    "S": "{0.second:02d}",
}
_FIXED = {"Z": "GMT", "z": "+0000", "n": "\n", "t": "\t", "%": "%"}


def _week_day(moment: datetime) -> int:
    return (moment.weekday() + 1) % 7


def _year_day(moment: datetime) -> int:
    return moment.timetuple().tm_yday


_CALENDAR: dict[str, Callable[[datetime], str]] = {
    "C": lambda moment: f"{moment.year // 100:02d}",
    "y": lambda moment: f"{moment.year % 100:02d}",
    "p": lambda moment: "AM" if moment.hour < 12 else "PM",
    "P": lambda moment: "am" if moment.hour < 12 else "pm",
    "j": lambda moment: f"{_year_day(moment):03d}",
    "a": lambda moment: _DAYS[_week_day(moment)][:3],
    "A": lambda moment: _DAYS[_week_day(moment)],
    "b": lambda moment: _MONTHS[moment.month - 1][:3],
    "B": lambda moment: _MONTHS[moment.month - 1],
    "u": lambda moment: str(_week_day(moment) or 7),
    "w": lambda moment: str(_week_day(moment)),
    "U": lambda moment: f"{(_year_day(moment) + 6 - _week_day(moment)) // 7:02d}",
    "W": lambda moment: f"{(_year_day(moment) + 6 - moment.weekday()) // 7:02d}",
    "V": lambda moment: f"{moment.isocalendar().week:02d}",
    "G": lambda moment: str(moment.isocalendar().year),
    "g": lambda moment: f"{moment.isocalendar().year % 100:02d}",
    "s": lambda moment: str(_seconds(moment)),
}


# --- reading ---------------------------------------------------------------------------------------------------------

#: How many digits a field has, and between what it must lie.
_NUMERIC = {
    "Y": (4, 0, 9999),
    "C": (2, 0, 99),
    "y": (2, 0, 99),
    "m": (2, 1, 12),
    "d": (2, 1, 31),
    "e": (2, 1, 31),
    "j": (3, 1, 366),
    "H": (2, 0, 23),
    "k": (2, 0, 23),
    "I": (2, 1, 12),
    "l": (2, 1, 12),
    "M": (2, 0, 59),
    "S": (2, 0, 61),
    "u": (1, 1, 7),
    "w": (1, 0, 6),
    **dict.fromkeys("UWV", (2, 0, 53)),
}
_ZONE = re.compile(r"Z|[+-]\d\d(?::?\d\d)?")


class _Reader:
    """Reads a text by a format, as `strptime` of C does."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[str, int] = {}

    def read(self, format: str) -> bool:
        place = 0
        while place < len(format):
            char = format[place]
            place += 1
            if char.isspace():
                self.spaces()
            elif char != "%":
                if not self.literal(char):
                    return False
            else:
                while format[place : place + 1] in ("E", "O", "-", "_", "0", "^", "#") and place < len(format):
                    place += 1
                letter = format[place : place + 1]
                place += 1
                if not self.field(letter):
                    return False
        return True

    def spaces(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def literal(self, char: str) -> bool:
        if not self.text.startswith(char, self.at):
            return False
        self.at += len(char)
        return True

    def field(self, letter: str) -> bool:
        if letter in _COMPOUND:
            return self.read(_COMPOUND[letter])
        if letter in _NUMERIC:
            return self.number(letter, *_NUMERIC[letter])
        match letter:
            case "a" | "A":
                return self.name("w", _DAYS)
            case "b" | "B":
                return self.name("b", _MONTHS)
            case "p" | "P":
                return self.name("p", ("AM", "PM"))
            case "n" | "t":
                self.spaces()
                return True
            case "%":
                return self.literal("%")
            case "Z":
                # C reads no name of a zone either: whatever letters stand there are passed over.
                while self.text[self.at : self.at + 1].isalpha():
                    self.at += 1
                return True
            case "z":
                self.spaces()
                match = _ZONE.match(self.text, self.at)
                self.at = match.end() if match else self.at
                return match is not None
            case "s":
                return self.number("s", 18, 0, 10**18)
            case _:
                return False

    def number(self, letter: str, digits: int, least: int, most: int) -> bool:
        self.spaces()
        match = re.compile(rf"[+-]?\d{{1,{digits}}}", re.ASCII).match(self.text, self.at)
        if match is None or (match.group()[0] in "+-" and letter not in "Ys"):
            return False
        value = int(match.group())
        if not least <= value <= most:
            return False
        self.at = match.end()
        self.found[letter] = value
        return True

    def name(self, letter: str, names: tuple[str, ...]) -> bool:
        rest = self.text[self.at :].lower()
        for place, name in enumerate(names):
            for form in (name.lower(), name[:3].lower()):
                if rest.startswith(form):
                    self.at += len(form)
                    self.found[letter] = place
                    return True
        return False

    def parts(self) -> list[Any]:
        found = self.found
        if "s" in found:
            return _parts(_EPOCH + timedelta(seconds=found["s"]))
        year = found.get("Y", 1900)
        if "y" in found and "Y" not in found:
            year = found["y"] + (1900 if found["y"] >= 69 else 2000)
        if "C" in found:
            year = found["C"] * 100 + found.get("y", 0)
        month = found.get("m", found.get("b", 0) + 1)
        day = found.get("d", found.get("e", 0))
        hour = found.get("H", found.get("k", 0))
        if "I" in found or "l" in found:
            hour = found.get("I", found.get("l", 0)) % 12 + 12 * found.get("p", 0)
        week_day, year_day = found.get("w", found.get("u", 0) % 7), found.get("j", 1) - 1
        if "j" in found and not ({"m", "b"} & found.keys()):
            moment = datetime(max(year, 1), 1, 1) + timedelta(days=year_day)  # noqa: DTZ001
            month, day = moment.month, moment.day
        if day:
            # A day that the month does not have still has a place in the week, as in C.
            start = datetime(max(year, 1), month, 1)  # noqa: DTZ001
            week_day = (start.weekday() + day) % 7
            year_day = start.timetuple().tm_yday + day - 2
        return [year, month - 1, day, hour, found.get("M", 0), found.get("S", 0), week_day, year_day]


def strptime(meter: Meter, value: Any, format: Any) -> list[Any]:
    if type(value) is not str or type(format) is not str:
        raise Raised("strptime/1 requires string inputs and arguments")
    meter.make(len(value) + 8)
    meter.work(len(format) + (len(value) >> 3))
    reader = _Reader(value)
    rest = ""
    if reader.read(format):
        rest = value[reader.at :]
        if not rest or rest[0].isspace():
            return reader.parts() + ([rest] if rest else [])
    raise Raised(f'date "{value}" does not match format "{format}"')
