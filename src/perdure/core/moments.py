"""Moments: microseconds since 1970 as logs and stores count them, and datetimes as people read them.

Exact both ways, unlike `timestamp()`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from perdure.errors import InvalidValue

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def moment(micros: int) -> datetime:
    """The datetime, in UTC; of what comes after the year 9999, the last moment of that.

    >>> moment(1_900_000_000_000_001).isoformat()
    '2030-03-17T17:46:40.000001+00:00'
    """
    return _EPOCH + timedelta(microseconds=min(micros, _LAST))


def to_micros(moment: datetime) -> int:
    """The microseconds since 1970; a time without a zone is one of this machine's zone.

    >>> to_micros(datetime(2030, 3, 17, 17, 46, 40, 1, UTC))
    1900000000000001
    """
    try:
        return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND
    except OverflowError:  # in its own zone it has a year
        raise InvalidValue(f"{moment} is no time that can be used: in UTC its year is not between 1 and 9999") from None
