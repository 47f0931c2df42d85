"""Functions that run a filter over elements and make one value of what it gives: `map`, `any`, `add`, `sort_by`, …"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from perdure.core.jq import arithmetic
from perdure.core.jq.access import delete_paths, get_path
from perdure.core.jq.code import Code, Env, Site, many, product, single, tall
from perdure.core.jq.limits import Meter, Raised
from perdure.core.jq.order import compare, equal, ordered
from perdure.core.jq.regex import captured, find
from perdure.core.jq.text import bad, bad_pair, brief, kind

Form: TypeAlias = Callable[[Site], Code]
_NUMBERS = frozenset({int, float})


def true(value: Any) -> bool:
    return value is not None and value is not False


def elements(meter: Meter, value: Any) -> Any:
    if type(value) is list:
        return value
    if type(value) is dict:
        return value.values()
    raise Raised(f"Cannot iterate over {kind(value)} ({brief(meter, value)})")


def _map(site: Site) -> Code:
    body = site.value(0)
    change = body.one

    def one(env: Env, value: Any) -> Any:
        meter: Meter = env[0]
        found = elements(meter, value)
        meter.work(len(found))
        if change is None:
            result = [output for item in found for output in body.each(env, item)]
        else:
            result = [change(env, item) for item in found]
        meter.make(len(result) + 1)
        return result

    return site.wrap(single(one, tall([body], 2)))


def _path(site: Site) -> Code:
    body = site.path(0)

    def each(env: Env, value: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for path, found in body.each(env, ((), value)):
            if path is None:
                raise Raised(f"Invalid path expression with result {brief(meter, found)}")
            meter.make(len(path) + 1)
            yield list(path)

    return site.wrap(many(each, tall([body], 1)))


def _delete(site: Site) -> Code:
    paths = _path(Site(site.args, site.scope, False))

    def one(env: Env, value: Any) -> Any:
        return delete_paths(env[0], value, list(paths.each(env, value)))

    return site.wrap(single(one, tall([paths], 1)))


def _get_path(site: Site) -> Code:
    keys, paths = site.value(0), site.paths

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for path in keys.each(env, item[1] if paths else item):
            value = get_path(meter, item[1] if paths else item, path)
            if paths and item[0] is None:
                raise Raised(f"Invalid path expression near attempt to access {brief(meter, path)}")
            yield ((*item[0], *path), value) if paths else value

    return many(each, tall([keys], 1))


def _is_empty(site: Site) -> Code:
    body = site.value(0)

    def one(env: Env, value: Any) -> Any:
        return all(False for _ in body.each(env, value))

    return site.wrap(single(one, tall([body], 2)))


def _quantified(wanted: bool, form: str) -> Form:
    """`any` (wanted) and `all`, with a generator and a condition, a condition, or neither."""

    def build(site: Site) -> Code:
        source = site.value(0) if form == "both" else None
        condition = site.value(1 if form == "both" else 0) if form != "none" else None

        def one(env: Env, value: Any) -> Any:
            meter: Meter = env[0]
            for item in elements(meter, value) if source is None else source.each(env, value):
                meter.work(1)
                for answer in (item,) if condition is None else condition.each(env, item):
                    if true(answer) is wanted:
                        return wanted
            return not wanted

        return site.wrap(single(one, tall([code for code in (source, condition) if code])))

    return build


def _add(site: Site) -> Code:
    body = site.value(0)
    return site.wrap(single(lambda env, value: total(env[0], list(body.each(env, value))), tall([body], 2)))


def total(meter: Meter, items: list[Any]) -> Any:
    """The sum of items; strings, arrays and objects are joined at once, not one by one."""
    meter.work(len(items))
    kinds = {type(item) for item in items} - {type(None)}
    if len(kinds) == 1 and not kinds & _NUMBERS and kinds != {bool}:
        items = [item for item in items if item is not None]
        meter.make(sum(map(len, items)))
        if kinds == {str}:
            return "".join(items)
        if kinds == {list}:
            return [inner for item in items for inner in item]
        return {name: inner for item in items for name, inner in item.items()}
    result = None
    for item in items:
        result = arithmetic.add(meter, result, item)
    return result


# --- order -----------------------------------------------------------------------------------------------------------


def _by(use: Callable[[Meter, list[Any], list[Any]], Any]) -> Form:
    def form(site: Site) -> Code:
        body = site.value(0)

        def one(env: Env, value: Any) -> Any:
            meter: Meter = env[0]
            keys = []
            for item in elements(meter, value):
                meter.work(1)
                meter.make(1)
                keys.append(list(body.each(env, item)))
            if type(value) is not list:
                looked = use is min_by or use is max_by
                wanted = "cannot be iterated over" if looked else "cannot be sorted, as they are not both arrays"
                raise bad_pair(meter, value, keys, wanted)
            return use(meter, value, keys)

        return site.wrap(single(one, tall([body], 2)))

    return form


def sort_by(meter: Meter, values: list[Any], keys: list[Any]) -> list[Any]:
    return [value for _, value in ordered(meter, values, keys)]


def group_by(meter: Meter, values: list[Any], keys: list[Any]) -> list[list[Any]]:
    groups: list[list[Any]] = []
    last: Any = None
    for key, value in ordered(meter, values, keys):
        if groups and equal(meter, key, last):
            groups[-1].append(value)
        else:
            groups.append([value])
        last = key
    return groups


def unique_by(meter: Meter, values: list[Any], keys: list[Any]) -> list[Any]:
    return [group[0] for group in group_by(meter, values, keys)]


def min_by(meter: Meter, values: list[Any], keys: list[Any]) -> Any:
    best = 0
    for place in range(1, len(keys)):
        if compare(meter, keys[place], keys[best]) < 0:
            best = place
    return values[best] if values else None


def max_by(meter: Meter, values: list[Any], keys: list[Any]) -> Any:
    best = 0
    for place in range(1, len(keys)):
        if compare(meter, keys[place], keys[best]) >= 0:
            best = place
    return values[best] if values else None


def _walk(site: Site) -> Code:
    """From the leaves up. A filter with several outputs keeps them in arrays; in objects the first one counts."""
    body = site.value(0)
    change = body.one

    def walk(env: Env, value: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        meter.enter(3, 3)
        if type(value) is list:
            meter.make(len(value))
            value = [found for item in value for found in walk(env, item)]
        elif type(value) is dict:
            meter.make(len(value))
            value = {name: found for name, item in value.items() for found in first(walk(env, item))}
        meter.depth -= 3
        yield from body.each(env, value)

    def first(found: Iterator[Any]) -> Any:
        for value in found:
            return (value,)
        return ()

    def walk_one(env: Env, value: Any) -> Any:
        meter: Meter = env[0]
        meter.enter(2, 2)
        if type(value) is list:
            meter.make(len(value))
            value = [walk_one(env, item) for item in value]
        elif type(value) is dict:
            meter.make(len(value))
            value = {name: walk_one(env, item) for name, item in value.items()}
        meter.depth -= 2
        return change(env, value)  # type: ignore[misc]

    if change is None:
        return site.wrap(many(walk, tall([body], 3)))
    return site.wrap(single(walk_one, tall([body], 2)))


def _substitute(site: Site) -> Code:
    """`sub(re; text; flags)`: each output of `text` makes a string of its own."""
    pattern, body, flags = site.value(0), site.value(1), site.value(2)
    both = product([flags, pattern])

    def each(env: Env, value: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for flag, expression in both(env, value):
            results: list[list[str]] = []
            previous = 0
            for match in find(meter, value, expression, flag):
                gap = value[previous : match["offset"]]
                for place, text in enumerate(list(body.each(env, captured(match)))):
                    meter.work(1)
                    if place == len(results):
                        results.append([])
                    results[place].append(arithmetic.add(meter, gap, text))
                previous = match["offset"] + match["length"]
            for result in results:
                meter.make(len(value))
                yield "".join(result) + value[previous:]
            if not results:
                yield value

    return site.wrap(many(each, tall([pattern, body, flags], 4)))


def _simple(name: str) -> Form:
    """`add`, `sort` and the like without a filter."""
    by = {"sort": sort_by, "unique": unique_by, "min": min_by, "max": max_by}[name]

    def form(site: Site) -> Code:
        def one(env: Env, value: Any) -> Any:
            if type(value) is not list and name in ("min", "max"):
                raise bad_pair(env[0], value, value, "cannot be iterated over")
            if type(value) is not list:
                raise bad(env[0], value, "cannot be sorted, as it is not an array")
            return by(env[0], value, value)

        return site.wrap(single(one, 2))

    return form


COLLECTORS: dict[tuple[str, int], Form] = {
    ("map", 1): _map,
    ("path", 1): _path,
    ("del", 1): _delete,
    ("getpath", 1): _get_path,
    ("isempty", 1): _is_empty,
    ("any", 0): _quantified(True, "none"),
    ("any", 1): _quantified(True, "one"),
    ("any", 2): _quantified(True, "both"),
    ("all", 0): _quantified(False, "none"),
    ("all", 1): _quantified(False, "one"),
    ("all", 2): _quantified(False, "both"),
    ("add", 1): _add,
    ("add", 0): lambda site: site.wrap(
        single(lambda env, value: total(env[0], list(elements(env[0], value))), 2),
    ),
    ("sort", 0): _simple("sort"),
    ("unique", 0): _simple("unique"),
    ("min", 0): _simple("min"),
    ("max", 0): _simple("max"),
    ("sort_by", 1): _by(sort_by),
    ("group_by", 1): _by(group_by),
    ("unique_by", 1): _by(unique_by),
    ("min_by", 1): _by(min_by),
    ("max_by", 1): _by(max_by),
    ("walk", 1): _walk,
    ("sub", 3): _substitute,
}
