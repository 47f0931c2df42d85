"""What makes new values: literals, variables, text, arrays, objects, operators.

All of it is built for values; in the mode of paths it is lifted. The operands of jq's operators run right to left, and
so do ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from perdure.core.jq import tree
from perdure.core.jq.access import index
from perdure.core.jq.arithmetic import OPERATORS, negate
from perdure.core.jq.code import Code, Env, Scope, many, product, single, tall
from perdure.core.jq.collect import true
from perdure.core.jq.formats import FORMATS
from perdure.core.jq.lexer import wrong
from perdure.core.jq.limits import Meter, Raised
from perdure.core.jq.text import brief, kind


def build_literal(node: tree.Literal, scope: Scope, paths: bool) -> Code:
    value = node.value
    return single(lambda env, item: value, 1)


def build_variable(node: tree.Variable, scope: Scope, paths: bool) -> Code:
    slot = scope.variables.get(node.name)
    if slot is None:
        if node.name in ("ENV", "__prog_args"):
            raise wrong(scope.text, node.at, f"`${node.name}` is not allowed: expressions see no environment")
        raise wrong(scope.text, node.at, f"`${node.name}` is not defined")
    return single(lambda env, item: env[slot], 1)


def build_text(node: tree.Text, scope: Scope, paths: bool) -> Code:
    write = _format_named(node.format)
    codes = [scope.build(part, scope) for part in node.parts if not isinstance(part, str)]
    parts = [part if isinstance(part, str) else None for part in node.parts]

    def joined(meter: Meter, values: Any) -> str:
        given = iter(values)
        text = "".join([write(meter, next(given)) if part is None else part for part in parts])
        meter.make(len(text))
        return text

    ones = [code.one for code in codes]
    height = tall(codes, 2)
    if None not in ones:
        return single(lambda env, value: joined(env[0], [one(env, value) for one in ones]), height)  # type: ignore[misc]
    each = product(codes)

    def texts(env: Env, value: Any) -> Iterator[Any]:
        for values in each(env, value):
            yield joined(env[0], values)

    return many(texts, height + len(codes) + 1)


def build_format(node: tree.Format, scope: Scope, paths: bool) -> Code:
    write = _format_named(node.name)
    return single(lambda env, value: write(env[0], value), 1)


def _format_named(name: str) -> Callable[[Meter, Any], str]:
    def unknown(meter: Meter, value: Any) -> NoReturn:
        raise Raised(f"{name} is not a valid format")

    return FORMATS.get(name, unknown)


def build_negate(node: tree.Negate, scope: Scope, paths: bool) -> Code:
    if isinstance(node.term, tree.Literal) and type(node.term.value) in (int, float):
        return build_literal(tree.Literal(-node.term.value), scope, paths)
    code = scope.build(node.term, scope)
    inner = code.one
    if inner is not None:
        return single(lambda env, value: negate(env[0], inner(env, value)), tall([code], 1))

    def each(env: Env, value: Any) -> Iterator[Any]:
        for found in code.each(env, value):
            yield negate(env[0], found)

    return many(each, tall([code], 1))


def build_array(node: tree.Array, scope: Scope, paths: bool) -> Code:
    constant = _constant(node)
    if constant is not None:
        return build_literal(tree.Literal(constant), scope, paths)
    body = scope.build(node.body, scope)

    def one(env: Env, value: Any) -> Any:
        items = list(body.each(env, value))
        env[0].make(len(items) + 1)
        return items

    return single(one, tall([body], 1))


def _constant(node: tree.Array) -> list[Any] | None:
    items = node.body.items if isinstance(node.body, tree.Comma) else (node.body,)
    values = [item.value for item in items if isinstance(item, tree.Literal)]
    return values if len(values) == len(items) else None


def build_object(node: tree.Object, scope: Scope, paths: bool) -> Code:
    keys = [scope.build(key, scope) for key, _ in node.entries]
    values = [None if value is None else scope.build(value, scope) for _, value in node.entries]
    height = tall([*keys, *(value for value in values if value is not None)], 2)

    def field(meter: Meter, made: dict[str, Any], key: Any, value: Any) -> None:
        if type(key) is not str:
            raise Raised(f"Cannot use {kind(key)} ({brief(meter, key)}) as object key")
        made[key] = value

    if all(key.one for key in keys) and all(value is None or value.one for value in values):
        ones = [(key.one, None if value is None else value.one) for key, value in zip(keys, values, strict=True)]

        def one(env: Env, value: Any) -> Any:
            meter: Meter = env[0]
            meter.make(len(ones) + 1)
            made: dict[str, Any] = {}
            for key_of, value_of in ones:
                key = key_of(env, value)  # type: ignore[misc]
                field(meter, made, key, index(meter, value, key) if value_of is None else value_of(env, value))
            return made

        return single(one, height)

    def fill(env: Env, value: Any, place: int, made: dict[str, Any]) -> Iterator[Any]:
        if place == len(keys):
            yield made
            return
        meter: Meter = env[0]
        code = values[place]
        for key in keys[place].each(env, value):
            for found in (index(meter, value, key),) if code is None else code.each(env, value):
                meter.work(1)
                meter.make(len(made) + 1)
                copy = dict(made)
                field(meter, copy, key, found)
                yield from fill(env, value, place + 1, copy)

    return many(lambda env, value: fill(env, value, 0, {}), height + len(keys))


def build_binary(node: tree.Binary, scope: Scope, paths: bool) -> Code:
    operator = OPERATORS[node.op]
    left, right = scope.build(node.left, scope), scope.build(node.right, scope)
    first, second = left.one, right.one
    height = tall([left, right])
    if first is not None and second is not None:
        return single(_FAST.get(node.op, _plain_binary)(first, second, operator), height)

    def each(env: Env, value: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for b in right.each(env, value):
            for a in left.each(env, value):
                meter.work(1)
                yield operator(meter, a, b)

    return many(each, height)


def _plain_binary(first: Any, second: Any, operator: Any) -> Any:
    def one(env: Env, value: Any) -> Any:
        b = second(env, value)
        return operator(env[0], first(env, value), b)

    return one


def _fast_less(first: Any, second: Any, operator: Any) -> Any:
    def one(env: Env, value: Any) -> Any:
        b = second(env, value)
        a = first(env, value)
        return a < b if type(a) is type(b) is int else operator(env[0], a, b)

    return one


def _fast_more(first: Any, second: Any, operator: Any) -> Any:
    def one(env: Env, value: Any) -> Any:
        b = second(env, value)
        a = first(env, value)
        return a > b if type(a) is type(b) is int else operator(env[0], a, b)

    return one


def _fast_equal(first: Any, second: Any, operator: Any) -> Any:
    def one(env: Env, value: Any) -> Any:
        b = second(env, value)
        a = first(env, value)
        return a == b if type(a) is type(b) is int else operator(env[0], a, b)

    return one


_FAST = {"<": _fast_less, ">": _fast_more, "==": _fast_equal}


def build_logic(node: tree.Logic, scope: Scope, paths: bool) -> Code:
    left, right = scope.build(node.left, scope), scope.build(node.right, scope)
    first, second = left.one, right.one
    decides = node.op == "or"  # the answer on the left that needs no right
    height = tall([left, right])
    if first is not None and second is not None:

        def one(env: Env, value: Any) -> Any:
            return decides if true(first(env, value)) is decides else true(second(env, value))

        return single(one, height)

    def each(env: Env, value: Any) -> Iterator[Any]:
        for a in left.each(env, value):
            if true(a) is decides:
                yield decides
                continue
            for b in right.each(env, value):
                env[0].work(1)
                yield true(b)

    return many(each, height)
