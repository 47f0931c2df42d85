"""From what people say about times to the times of a schedule, checked.

A time without a zone is one on the clock of the schedule's own zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import UNSET, UnsetType, structs

from perdure.core.durations import Duration, micros
from perdure.core.moments import moment, to_micros
from perdure.errors import InvalidValue, UsageError
from perdure.flows.cron import Times, instant, read, zone

#: The shortest interval in microseconds, the most times in a list, and the most that a preview tells.
SHORTEST, MOST, FORESEEN = 1_000_000, 1000, 1000


def made(
    cron: str | None,
    every: Duration | None,
    at: Sequence[datetime] | None,
    timezone: str,
    start: datetime | None,
    end: datetime | None,
    now: int,
) -> Times:
    """The times of a new schedule; without a start it begins now."""
    if sum(one is not None for one in (cron, every, at)) != 1:
        raise UsageError("a schedule has one of cron, every and at")
    return Times(
        cron=cron or "",
        every=0 if every is None else _interval(every),
        at=_listed(at or (), timezone),
        timezone=timezone,
        start=now if start is None else _moment(start, timezone),
        end=None if end is None else _moment(end, timezone),
    )


def changed(
    times: Times,
    cron: str | None,
    every: Duration | None,
    at: Sequence[datetime] | None,
    timezone: str | None,
    start: datetime | None,
    end: datetime | UnsetType | None,
    now: int,
) -> Times:
    """The same times but for what is given."""
    where = timezone or times.timezone
    if cron is not None or every is not None or at is not None:
        new = made(cron, every, at, where, None, None, now)
        times = structs.replace(new, start=times.start, end=times.end)
    elif times.at and where != times.timezone:
        raise UsageError("a list of times does not move to another zone: give the times anew")
    times = structs.replace(times, timezone=where)
    if start is not None:
        times = structs.replace(times, start=_moment(start, where))
    if end is not UNSET:
        times = structs.replace(times, end=None if end is None else _moment(end, where))
    return times


def check(times: Times) -> None:
    """InvalidValue, unless they can be."""
    zone(times.timezone)
    if times.cron:
        read(times.cron)
    elif not (times.every or times.at):
        read("")


def foreseen(times: Times, after: int, count: int) -> list[datetime]:
    """The next so many times, in their zone."""
    if not 1 <= count <= FORESEEN:
        raise UsageError(f"between 1 and {FORESEEN} times can be foreseen, not {count}")
    where, found, at = zone(times.timezone), list[datetime](), times.after(after)
    while at is not None and len(found) < count:
        found.append(moment(at).astimezone(where))
        at = times.after(at)
    return found


def _interval(every: Duration) -> int:
    length = micros(every)
    if length < SHORTEST:
        raise InvalidValue(f"a schedule cannot run every {every!r}: the shortest interval is a second")
    return length


def _listed(at: Sequence[datetime], timezone: str) -> tuple[int, ...]:
    if len(at) > MOST:
        raise InvalidValue(f"a list of times has at most {MOST:,} of them, not {len(at):,}: use cron or every")
    return tuple(sorted({_moment(one, timezone) for one in at}))


def _moment(given: datetime, timezone: str) -> int:
    if not 1970 < given.year < 9999:
        raise InvalidValue(f"{given} is no time for a schedule: its year is between 1970 and 9999")
    if given.tzinfo is not None:
        return to_micros(given)
    found = instant(given.replace(fold=0), zone(timezone))
    if found is None:
        raise InvalidValue(f"there is no {given} in {timezone}: the clocks leap over it")
    return found
