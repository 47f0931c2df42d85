"""When a schedule fires: by a cron line, at an interval, or at given times.

Rules kept here: nothing but values goes in and out, so the same question has the same answer. A cron line speaks of the
clock on the wall of its time zone. A time that this clock leaps over when summer begins does not happen; one that it
shows twice when summer ends happens at the first. Times are integer microseconds since the epoch.

The line has the five fields of crontab(5): minute, hour, day of month, month, day of week. Names may stand for months
and days of the week, `L` for the last day of the month, 7 for Sunday, `@daily` and the like for a whole line. If both
sorts of days are restricted, one of them is enough.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from msgspec import Struct

from perdure.core.moments import moment, to_micros
from perdure.errors import InvalidValue

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_NAMES = {
    "month": {name: number for number, name in enumerate(_MONTHS, 1)},
    "day of week": {name: number for number, name in enumerate(_WEEKDAYS)},
}
_HOW = "write five fields, as in '0 9 * * 1-5' (at 9:00 from Monday to Friday)"
_LONGEST = 200
#: The rarest day, the 29th of February, comes back within eight years.
_HORIZON = 9 * 366
_DAY = timedelta(days=1)
#: Calendars end with the year 9999; a day before that every zone can still tell the time.
LAST = 253_402_214_400_000_000
#: No clock on a wall is put back by more than this.
_PUT_BACK = timedelta(hours=3)


class Cron(Struct, frozen=True):
    """A cron line, understood. `times` are minutes of the day."""

    times: tuple[int, ...]
    days: frozenset[int]
    last: bool  # the last day of a month
    months: frozenset[int]
    weekdays: frozenset[int]  # Sunday is 0
    either: bool  # whether one sort of days is enough

    def next(self, after: datetime) -> datetime | None:
        """The first time later than this one, on a clock without a zone.

        >>> read("30 8 * * mon").next(datetime(2030, 1, 1))
        datetime.datetime(2030, 1, 7, 8, 30)
        """
        start = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
        for day in self._days(start.date(), _DAY):
            index = bisect_left(self.times, _minute(start) if day == start.date() else 0)
            if index < len(self.times):
                return _at(day, self.times[index])
        return None

    def before(self, until: datetime) -> datetime | None:
        """The latest time that is not later than this one."""
        for day in self._days(until.date(), -_DAY):
            index = bisect_right(self.times, _minute(until) if day == until.date() else 1440)
            if index > 0:
                return _at(day, self.times[index - 1])
        return None

    def _days(self, day: date, step: timedelta) -> Iterator[date]:
        for _ in range(_HORIZON):
            if self._takes(day):
                yield day
            try:
                day += step
            except OverflowError:
                return

    def _takes(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month = day.day in self.days or (self.last and day.day == monthrange(day.year, day.month)[1])
        in_week = day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either else in_month and in_week


@functools.lru_cache(1000)
def read(text: str) -> Cron:
    """A cron line from its text.

    >>> read("0 9 * * 8")
    Traceback (most recent call last):
    perdure.errors.InvalidValue: '0 9 * * 8' is not a cron line: its day of week takes 0 to 7, not '8'
    """
    line = _MACROS.get(text.strip().lower(), text)
    parts = line.lower().split()
    if len(parts) != 5 or len(text) > _LONGEST or not text.isascii():
        raise InvalidValue(f"{text[:80]!r} is not a cron line: {_HOW}")
    try:
        last = "l" in parts[2].split(",")
        parts[2] = ",".join(part for part in parts[2].split(",") if part != "l")
        minutes, hours, days, months, weekdays = [
            _field(part, *field) if part else set[int]() for part, field in zip(parts, _FIELDS, strict=True)
        ]
    except ValueError as error:
        raise InvalidValue(f"{text[:80]!r} is not a cron line: {error}") from None
    times = tuple(sorted(hour * 60 + minute for hour in hours for minute in minutes))
    either = not (parts[2].startswith("*") or parts[4].startswith("*"))
    made = Cron(times, frozenset(days), last, frozenset(months), frozenset(day % 7 for day in weekdays), either)
    if made.next(_at(date(2000, 1, 1), 0)) is None:
        raise InvalidValue(f"{text[:80]!r} never comes: there is no such day")
    return made


def _field(text: str, name: str, low: int, high: int) -> set[int]:
    """The numbers that a field stands for."""
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if slash and not (step.isdecimal() and 1 <= int(step) <= high):
            raise ValueError(f"a step of its {name} is a number from 1 to {high}, not {step!r}")
        first, dash, last = span.partition("-")
        if span == "*":
            begin, end = low, 6 if high == 7 else high
        else:
            begin = _number(first, name, low, high)
            end = _number(last, name, low, high) if dash else (high if slash else begin)
        if begin > end:
            raise ValueError(f"its {name} {span!r} ends before it begins")
        found.update(range(begin, end + 1, int(step or 1)))
    return found


def _number(text: str, name: str, low: int, high: int) -> int:
    number = _NAMES.get(name, {}).get(text, int(text) if text.isdecimal() and len(text) <= 2 else -1)
    if not low <= number <= high:
        raise ValueError(f"its {name} takes {low} to {high}, not {text!r}")
    return number


def _minute(local: datetime) -> int:
    return local.hour * 60 + local.minute


def _at(day: date, minute: int) -> datetime:
    return datetime.combine(day, time(minute // 60, minute % 60))


class Times(Struct, frozen=True, omit_defaults=True):
    """All times of a schedule: those of one of `cron`, `every` and `at`, from `start` to `end`."""

    cron: str = ""
    every: int = 0  # microseconds, counted from the start
    at: tuple[int, ...] = ()  # in order
    timezone: str = "UTC"
    start: int = 0
    end: int | None = None

    def after(self, moment: int) -> int | None:
        """The first time later than this one, if there is one.

        >>> Times(every=300_000_000, start=7).after(300_000_000)
        300000007
        """
        moment = max(moment, self.start - 1)
        found: int | None
        if self.at:
            index = bisect_right(self.at, moment)
            found = self.at[index] if index < len(self.at) else None
        elif self.every:
            found = self.start + ((moment - self.start) // self.every + 1) * self.every
        else:
            found = _after(read(self.cron), zone(self.timezone), moment) if moment < LAST else None
        return None if found is None or found > (LAST if self.end is None else min(self.end, LAST)) else found

    def latest(self, after: int, until: int) -> int | None:
        """The last time that is later than `after` and not later than `until`, if there is one."""
        until = until if self.end is None else min(until, self.end)
        found: int | None
        if self.at:
            index = bisect_right(self.at, until)
            found = self.at[index - 1] if index else None
        elif self.every:
            found = self.start + (until - self.start) // self.every * self.every
        else:
            found = _latest(read(self.cron), zone(self.timezone), until)
        return None if found is None or found <= max(after, self.start - 1) else found


def zone(name: str) -> ZoneInfo:
    """A time zone by its name, as `Europe/Berlin`."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise InvalidValue(
            f"{name[:80]!r} is no time zone here: write one as 'Europe/Berlin'; if the system has none, install tzdata"
        ) from error


def instant(local: datetime, where: ZoneInfo) -> int | None:
    """When a clock on the wall there shows this time, for the first time; None if it leaps over it."""
    first = local.replace(tzinfo=where, fold=0).astimezone(UTC)
    return to_micros(first) if first.astimezone(where).replace(tzinfo=None, fold=0) == local else None


def _local(micros: int, where: ZoneInfo) -> datetime:
    return moment(micros).astimezone(where).replace(tzinfo=None, fold=0)


def _after(cron: Cron, where: ZoneInfo, moment: int) -> int | None:
    local: datetime | None = _local(moment, where)
    while local is not None and (local := cron.next(local)) is not None:
        found = instant(local, where)
        # While the clock shows an hour for the second time, times of that hour are over already.
        if found is not None and found > moment:
            return found
    return None


def _latest(cron: Cron, where: ZoneInfo, until: int) -> int | None:
    local: datetime | None = _local(until, where) + _PUT_BACK
    while local is not None and (local := cron.before(local)) is not None:
        found = instant(local, where)
        if found is not None and found <= until:
            return found
        local -= timedelta(minutes=1)
    return None
