"""Equality and order of values, across kinds: null, false, true, numbers, strings, arrays, objects.

A boolean is never equal to a number, as it would be in Python. NaN is below every number, itself included. Looking
through arrays and objects takes steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.core.jq.limits import NESTED, Meter, too_nested
from perdure.core.jq.text import is_nan

_SCALARS = frozenset({type(None), bool, int, float, str})
_RANKS = {type(None): 0, int: 3, float: 3, str: 4, list: 5}


def _rank(value: Any) -> int:
    return (1 + value) if type(value) is bool else _RANKS.get(type(value), 6)


def equal(meter: Meter, a: Any, b: Any, level: int = 0) -> bool:
    kind_a, kind_b = type(a), type(b)
    if kind_a in _SCALARS or kind_b in _SCALARS:
        if kind_a is str and kind_b is str and len(a) > 1000:
            meter.work(len(a) >> 10)
        return bool(a == b) and (kind_a is kind_b or (kind_a is not bool and kind_b is not bool))
    if kind_a is not kind_b or len(a) != len(b):
        return False
    if level > NESTED:
        raise too_nested()
    meter.work(len(a) + 1)
    if kind_a is list:
        return all(equal(meter, x, y, level + 1) for x, y in zip(a, b, strict=True))
    return all(name in b and equal(meter, x, b[name], level + 1) for name, x in a.items())


def compare(meter: Meter, a: Any, b: Any, level: int = 0) -> int:
    """Below zero if a comes before b, above zero if it comes after, zero if they are equal."""
    rank = _rank(a)
    other = _rank(b)
    if rank != other:
        return rank - other
    if rank < 3:
        return 0
    if rank == 3:
        if is_nan(a):
            return -1
        return 1 if is_nan(b) else int(a > b) - int(a < b)
    if rank == 4:
        if len(a) > 1000:
            meter.work(len(a) >> 10)
        return int(a > b) - int(a < b)
    if level > NESTED:
        raise too_nested()
    meter.work(min(len(a), len(b)) + 1)
    if rank == 6:
        names = sorted(a)
        found = compare(meter, names, sorted(b), level + 1)
        pairs: Iterable[tuple[Any, Any]] = ((a[name], b[name]) for name in names) if found == 0 else ()
    else:
        found = 0
        pairs = zip(a, b, strict=False)
    for x, y in pairs:
        result = compare(meter, x, y, level + 1)
        if result:
            return result
    return found if rank == 6 else len(a) - len(b)


def ordered(meter: Meter, values: list[Any], keys: list[Any]) -> list[tuple[Any, Any]]:
    """Pairs of key and value, sorted by key; equal keys stay in their order."""
    meter.work(len(values) + 1)
    meter.make(len(values))
    pairs = list(zip(keys, values, strict=True))
    kinds = {type(key) for key in keys}
    if kinds <= {int} or kinds <= {str}:
        return sorted(pairs, key=lambda pair: pair[0])
    return sorted(pairs, key=lambda pair: _sortable(meter, pair[0], 0))


def _sortable(meter: Meter, value: Any, level: int) -> tuple[Any, ...]:
    """A tuple that Python sorts as the language sorts the value."""
    rank = _rank(value)
    if rank < 3:
        return (rank,)
    if rank < 5:
        # Whatever is NaN comes before all numbers.
        return (2.5,) if is_nan(value) else (rank, value)
    if level > NESTED:
        raise too_nested()
    meter.work(len(value) + 1)
    meter.make(2 * len(value))
    if rank == 5:
        return (rank, [_sortable(meter, item, level + 1) for item in value])
    names = sorted(value)
    return (rank, names, [_sortable(meter, value[name], level + 1) for name in names])


def contains(meter: Meter, a: Any, b: Any, level: int = 0) -> bool:
    """Whether b is part of a: fields of objects, any element of arrays, substrings."""
    if level > NESTED:
        raise too_nested()
    meter.work(1)
    if type(a) is dict and type(b) is dict:
        return all(name in a and contains(meter, a[name], part, level + 1) for name, part in b.items())
    if type(a) is list and type(b) is list:
        return all(any(contains(meter, item, part, level + 1) for item in a) for part in b)
    if type(a) is str and type(b) is str:
        meter.work((len(a) + len(b)) >> 8)
        return b in a
    return equal(meter, a, b, level)
