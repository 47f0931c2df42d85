"""Functions that take filters and decide themselves how often to run them.

They loop instead of calling themselves, so how long they run is a matter of steps, not of depth. Those that only pass
items on work on paths as well: `site.same` builds their argument in the mode in which they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from perdure.core.jq import arithmetic
from perdure.core.jq.code import Code, Env, Site, many, single, tall
from perdure.core.jq.collect import COLLECTORS, Form, true
from perdure.core.jq.limits import Meter, Raised
from perdure.core.jq.text import bad_pair, brief, kind

Expand: TypeAlias = Callable[[Env, Any], Iterator[tuple[bool, Any]]]
_NUMBERS = frozenset({int, float})


# --- passing on ------------------------------------------------------------------------------------------------------


def _empty(site: Site) -> Code:
    return many(lambda env, item: (), 1)


def _select(site: Site) -> Code:
    condition = site.value(0)
    paths = site.paths
    test = condition.one

    def each(env: Env, item: Any) -> Any:
        answer = test(env, item[1] if paths else item)  # type: ignore[misc]
        return (item,) if answer is not None and answer is not False else ()

    def each_of_many(env: Env, item: Any) -> Iterator[Any]:
        for answer in condition.each(env, item[1] if paths else item):
            if answer is not None and answer is not False:
                yield item

    return many(each if test is not None else each_of_many, tall([condition], 1))


def _of_kind(*kinds: str) -> Form:
    def form(site: Site) -> Code:
        paths = site.paths
        return many(lambda env, item: (item,) if kind(item[1] if paths else item) in kinds else (), 1)

    return form


def _first(site: Site) -> Code:
    body = site.same(0)
    if body.one is not None:
        return body

    def each(env: Env, item: Any) -> Any:
        for found in body.each(env, item):
            return (found,)
        return ()

    return many(each, tall([body], 1))


def _last(site: Site) -> Code:
    body = site.value(0)

    def each(env: Env, value: Any) -> Any:
        found: tuple[Any, ...] = ()
        for last in body.each(env, value):
            found = (last,)
        return found

    return site.wrap(many(each, tall([body])))


def _counted(name: str) -> Form:
    """`limit` and `skip`."""

    def form(site: Site) -> Code:
        count, body, paths = site.value(0), site.same(1), site.paths

        def each(env: Env, item: Any) -> Iterator[Any]:
            for n in count.each(env, item[1] if paths else item):
                if n is None or type(n) is bool or (type(n) in _NUMBERS and not n >= 0):
                    raise Raised(f"{name} doesn't support negative count")
                if type(n) not in _NUMBERS:
                    raise bad_pair(env[0], n, 1, "cannot be subtracted")
                yield from (taken if name == "limit" else left)(n, env, item)

        def taken(n: Any, env: Env, item: Any) -> Iterator[Any]:
            if n > 0:
                for found in body.each(env, item):
                    yield found
                    n -= 1
                    if n <= 0:
                        return

        def left(n: Any, env: Env, item: Any) -> Iterator[Any]:
            for found in body.each(env, item):
                if n <= 0:
                    yield found
                n -= 1

        return many(each, tall([count, body], 2))

    return form


# --- loops -----------------------------------------------------------------------------------------------------------


def _explore(expand: Expand) -> Callable[[Env, Any], Iterator[Any]]:
    """Depth first, without recursion: `expand` gives outputs (True) and items to go into (False)."""

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        stack = [expand(env, item)]
        while stack:
            for output, found in stack[-1]:
                meter.steps -= 1
                if meter.steps < 0:
                    meter.weary()
                if output:
                    yield found
                else:
                    stack.append(expand(env, found))
                    break
            else:
                stack.pop()

    return each


def _recurse_by(body: Code) -> Code:
    step = body.one

    def expand(env: Env, item: Any) -> Iterator[tuple[bool, Any]]:
        yield True, item
        for found in body.each(env, item):
            yield False, found

    def chain(env: Env, item: Any) -> Iterator[Any]:
        while True:
            env[0].work(1)
            yield item
            item = step(env, item)  # type: ignore[misc]

    return many(_explore(expand) if step is None else chain, tall([body], 2))


def _recurse(site: Site) -> Code:
    return _recurse_by(site.same(0))


def _recurse_if(site: Site) -> Code:
    body, condition, paths = site.same(0), site.value(1), site.paths

    def each(env: Env, item: Any) -> Iterator[Any]:
        for found in body.each(env, item):
            for answer in condition.each(env, found[1] if paths else found):
                if true(answer):
                    yield found

    return _recurse_by(many(each, tall([body, condition])))


def _recurse_all(site: Site) -> Code:
    paths = site.paths

    def each(env: Env, item: Any) -> Any:
        value = item[1] if paths else item
        if type(value) is list:
            return [((*item[0], place), found) for place, found in enumerate(value)] if paths else value
        if type(value) is dict:
            return [((*item[0], name), found) for name, found in value.items()] if paths else value.values()
        return ()

    def checked(env: Env, item: Any) -> Any:
        if paths and item[0] is None:
            raise Raised(f"Invalid path expression near attempt to iterate through {brief(env[0], item[1])}")
        return each(env, item)

    return _recurse_by(many(checked, 2))


def _while(site: Site) -> Code:
    condition, update, paths = site.value(0), site.same(1), site.paths
    test, step = condition.one, update.one

    def expand(env: Env, item: Any) -> Iterator[tuple[bool, Any]]:
        for answer in condition.each(env, item[1] if paths else item):
            if true(answer):
                yield True, item
                for found in update.each(env, item):
                    yield False, found

    def chain(env: Env, item: Any) -> Iterator[Any]:
        while true(test(env, item[1] if paths else item)):  # type: ignore[misc]
            env[0].work(1)
            yield item
            item = step(env, item)  # type: ignore[misc]

    plain = test is not None and step is not None
    return many(chain if plain else _explore(expand), tall([condition, update], 2))


def _until(site: Site) -> Code:
    condition, update, paths = site.value(0), site.same(1), site.paths
    test, step = condition.one, update.one

    def expand(env: Env, item: Any) -> Iterator[tuple[bool, Any]]:
        for answer in condition.each(env, item[1] if paths else item):
            if true(answer):
                yield True, item
                continue
            for found in update.each(env, item):
                yield False, found

    if test is None or step is None:
        return many(_explore(expand), tall([condition, update], 2))

    def one(env: Env, item: Any) -> Any:
        while not true(test(env, item[1] if paths else item)):
            env[0].work(1)
            item = step(env, item)
        return item

    return single(one, tall([condition, update]))


def _repeat(site: Site) -> Code:
    body = site.same(0)

    def each(env: Env, item: Any) -> Iterator[Any]:
        while True:
            env[0].work(1)
            yield from body.each(env, item)

    return many(each, tall([body], 1))


def _range(site: Site) -> Code:
    start, end = site.value(0), site.value(1)

    def each(env: Env, value: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for first in start.each(env, value):
            for limit in end.each(env, value):
                if type(first) not in _NUMBERS or type(limit) not in _NUMBERS:
                    raise Raised("Range bounds must be numeric")
                number = first
                while number < limit:
                    meter.steps -= 1
                    if meter.steps < 0:
                        meter.weary()
                    yield number
                    number = number + 1 if type(number) is int else arithmetic.add(meter, number, 1)

    return site.wrap(many(each, tall([start, end])))


def _error(site: Site) -> Code:
    paths = site.paths

    def one(env: Env, item: Any) -> Any:
        raise Raised(item[1] if paths else item)

    return single(one, 1)


FORMS: dict[tuple[str, int], Form] = {
    **COLLECTORS,
    ("empty", 0): _empty,
    ("error", 0): _error,
    ("select", 1): _select,
    ("arrays", 0): _of_kind("array"),
    ("objects", 0): _of_kind("object"),
    ("iterables", 0): _of_kind("array", "object"),
    ("booleans", 0): _of_kind("boolean"),
    ("numbers", 0): _of_kind("number"),
    ("strings", 0): _of_kind("string"),
    ("nulls", 0): _of_kind("null"),
    ("values", 0): _of_kind("boolean", "number", "string", "array", "object"),
    ("scalars", 0): _of_kind("null", "boolean", "number", "string"),
    ("first", 1): _first,
    ("last", 1): _last,
    ("limit", 2): _counted("limit"),
    ("skip", 2): _counted("skip"),
    ("recurse", 0): _recurse_all,
    ("recurse", 1): _recurse,
    ("recurse", 2): _recurse_if,
    ("while", 2): _while,
    ("until", 2): _until,
    ("repeat", 1): _repeat,
    ("range", 2): _range,
}
