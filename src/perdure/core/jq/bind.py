"""Variables: `as` with its patterns, `reduce` and `foreach`.

A pattern appends its variables to the environment, in the order of the text. With `?//` all variables of all patterns
exist in the body; those of other patterns than the one that fitted are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from perdure.core.jq import tree
from perdure.core.jq.access import index
from perdure.core.jq.code import Code, Env, Height, Scope, many, single, tall
from perdure.core.jq.limits import Meter, Raised
from perdure.core.jq.tree import Pattern

#: Environments with the variables of a pattern, for one value.
Binder: TypeAlias = Callable[[Env, Any], Iterable[Env]]


def _names(pattern: Pattern) -> list[str]:
    match pattern:
        case tree.Name(name):
            return [name]
        case tree.Items(items):
            return [name for item in items for name in _names(item)]
        case tree.Fields(fields):
            return [
                name
                for variable, _, inner in fields
                for name in [*([variable] if variable else []), *(_names(inner) if inner else [])]
            ]


def _binder(pattern: Pattern, scope: Scope, slots: dict[str, int]) -> tuple[Binder, int]:
    """How to bind one pattern into an environment that has a place for each of its variables; and its height."""
    match pattern:
        case tree.Name(name):
            slot = slots[name]
            return (lambda env, value: ((*env[:slot], value, *env[slot + 1 :]),)), 1
        case tree.Items(items):
            parts = [_binder(item, scope, slots) for item in items]
            keys: list[Code] = [_key(place) for place in range(len(items))]
            return _sequence(keys, [bind for bind, _ in parts]), sum(height + 2 for _, height in parts) + 2
        case tree.Fields(fields):
            return _fields(fields, scope, slots)


def _key(value: Any) -> Code:
    return single(lambda env, item: value, 1)


def _fields(fields: Any, scope: Scope, slots: dict[str, int]) -> tuple[Binder, int]:
    keys: list[Code] = []
    binders: list[Binder] = []
    height = 2
    for variable, key, inner in fields:
        code = scope.build(key, scope)
        for pattern in [tree.Name(variable)] if variable else []:
            keys.append(code)
            binders.append(_binder(pattern, scope, slots)[0])
            height += 3
        if inner is not None:
            bind, tall_inner = _binder(inner, scope, slots)
            keys.append(code)
            binders.append(bind)
            height += tall_inner + 2
        height += code.height.total
    return _sequence(keys, binders), height


def _sequence(keys: list[Code], binders: list[Binder]) -> Binder:
    def bind(env: Env, value: Any) -> Iterator[Env]:
        return fill(env, value, 0)

    def fill(env: Env, value: Any, place: int) -> Iterator[Env]:
        if place == len(keys):
            yield env
            return
        meter: Meter = env[0]
        for key in keys[place].each(env, value):
            for inner in binders[place](env, index(meter, value, key)):
                meter.work(1)
                yield from fill(inner, value, place + 1)

    return bind


class Bound:
    """The patterns of one `as`: the scope of what follows, and how to run it."""

    def __init__(self, patterns: tuple[Pattern, ...], scope: Scope) -> None:
        names = list(dict.fromkeys(name for pattern in patterns for name in _names(pattern)))
        self.scope = scope.variable(*names)
        self.simple = len(patterns) == 1 and isinstance(patterns[0], tree.Name)
        self._nulls = (None,) * len(names)
        built = [_binder(pattern, scope, self.scope.variables) for pattern in patterns]
        self._binders = [bind for bind, _ in built]
        self.height = max(height for _, height in built) + 1
        self._calls = any(not isinstance(pattern, tree.Name) for pattern in patterns)

    def with_room(self, height: Height, more: int) -> Height:
        """The height of what holds this, through `more` frames; keys of patterns may call functions as well."""
        deepest = self.height + more
        return Height(max(height.total, deepest), max(height.reach, deepest if self._calls else 0))

    def run(self, env: Env, value: Any, body: Callable[[Env], Iterable[Any]]) -> Iterator[Any]:
        """What the body gives for each way to bind the value; where it fails, the next pattern is tried."""
        meter: Meter = env[0]
        depth = meter.depth
        empty = (*env, *self._nulls)
        for bind in self._binders[:-1]:
            try:
                for inner in bind(empty, value):
                    yield from body(inner)
                return
            except Raised:
                meter.depth = depth
        for inner in self._binders[-1](empty, value):
            yield from body(inner)


def build_bind(node: tree.Bind, scope: Scope, paths: bool) -> Code:
    source = scope.build(node.source, scope)
    bound = Bound(node.patterns, scope)
    body = scope.build(node.body, bound.scope, paths)
    height = tall([source, body]) if bound.simple else bound.with_room(tall([source, body], 2), 2)
    given, inner = source.one, body.one
    if bound.simple and given is not None:
        if inner is not None:
            return single(lambda env, item: inner((*env, given(env, item[1] if paths else item)), item), height)
        return many(lambda env, item: body.each((*env, given(env, item[1] if paths else item)), item), height)

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for value in source.each(env, item[1] if paths else item):
            meter.work(1)
            if bound.simple:
                yield from body.each((*env, value), item)
            else:
                yield from bound.run(env, value, lambda inner: body.each(inner, item))

    return many(each, height)


def build_reduce(node: tree.Reduce, scope: Scope, paths: bool) -> Code:
    source = scope.build(node.source, scope)
    bound = Bound(node.patterns, scope)
    init, update = scope.build(node.init, scope, paths), scope.build(node.update, bound.scope, paths)
    nothing = (None, None) if paths else None
    step = update.one

    def fold(env: Env, item: Any, state: Any) -> Any:
        meter: Meter = env[0]
        for value in source.each(env, item[1] if paths else item):
            meter.work(1)
            if bound.simple and step is not None:
                state = step((*env, value), state)
                continue
            for inner in _environments(bound, env, value):
                last = nothing
                for found in update.each(inner, state):
                    last = found
                state = last
        return state

    height = bound.with_room(tall([source, init, update], 2 + (not bound.simple)), 3)
    start = init.one
    if start is not None:
        return single(lambda env, item: fold(env, item, start(env, item)), height)

    def each(env: Env, item: Any) -> Iterator[Any]:
        for state in init.each(env, item):
            yield fold(env, item, state)

    return many(each, height)


def build_foreach(node: tree.Foreach, scope: Scope, paths: bool) -> Code:
    source = scope.build(node.source, scope)
    bound = Bound(node.patterns, scope)
    init, update = scope.build(node.init, scope, paths), scope.build(node.update, bound.scope, paths)
    extract = None if node.extract is None else scope.build(node.extract, bound.scope, paths)

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for start in init.each(env, item):
            state = start
            for value in source.each(env, item[1] if paths else item):
                meter.work(1)
                for inner in _environments(bound, env, value):
                    for found in update.each(inner, state):
                        state = found
                        if extract is None:
                            yield state
                        else:
                            yield from extract.each(inner, state)

    codes = [source, init, update] if extract is None else [source, init, update, extract]
    return many(each, bound.with_room(tall(codes, 1 + (not bound.simple)), 2))


def _environments(bound: Bound, env: Env, value: Any) -> Iterable[Env]:
    if bound.simple:
        return ((*env, value),)
    return bound.run(env, value, lambda inner: (inner,))
