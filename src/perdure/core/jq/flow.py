"""What passes items on: pipes, commas, conditions, alternatives, `try`, labels. All of it works on paths as well.

Whoever catches an error or a break sets the depth of the meter back to what it was: the frames in between are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from perdure.core.jq import tree
from perdure.core.jq.code import Code, Env, Scope, many, single, tall
from perdure.core.jq.collect import true
from perdure.core.jq.lexer import wrong
from perdure.core.jq.limits import Broken, Meter, Raised


def build_identity(node: tree.Identity, scope: Scope, paths: bool) -> Code:
    return single(lambda env, item: item, 1)


def build_pipe(node: tree.Pipe, scope: Scope, paths: bool) -> Code:
    codes = [scope.build(stage, scope, paths) for stage in node.stages]
    ones = [code.one for code in codes]
    if None not in ones:

        def one(env: Env, item: Any) -> Any:
            for stage in ones:
                item = stage(env, item)  # type: ignore[misc]
            return item

        return single(one, tall(codes))
    code = codes[-1]
    for before in reversed(codes[:-1]):
        code = _joined(before, code)
    return code


def _joined(first: Code, second: Code) -> Code:
    height = tall([first, second])
    one, other = first.one, second.one
    if one is not None:
        return many(lambda env, item: second.each(env, one(env, item)), height)

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for found in first.each(env, item):
            meter.steps -= 1
            if meter.steps < 0:
                meter.weary()
            if other is not None:
                yield other(env, found)
            else:
                yield from second.each(env, found)

    return many(each, height)


def build_comma(node: tree.Comma, scope: Scope, paths: bool) -> Code:
    codes = [scope.build(item, scope, paths) for item in node.items]

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for code in codes:
            meter.steps -= 1
            if meter.steps < 0:
                meter.weary()
            if code.one is not None:
                yield code.one(env, item)
            else:
                yield from code.each(env, item)

    return many(each, tall(codes))


def build_if(node: tree.If, scope: Scope, paths: bool) -> Code:
    condition = scope.build(node.condition, scope)
    then, orelse = scope.build(node.then, scope, paths), scope.build(node.orelse, scope, paths)
    test, first, second = condition.one, then.one, orelse.one
    height = tall([condition, then, orelse])
    if test is not None and first is not None and second is not None:

        def one(env: Env, item: Any) -> Any:
            answer = test(env, item[1] if paths else item)
            return second(env, item) if answer is None or answer is False else first(env, item)

        return single(one, height)

    def each(env: Env, item: Any) -> Iterator[Any]:
        for answer in condition.each(env, item[1] if paths else item):
            yield from (then if true(answer) else orelse).each(env, item)

    return many(each, height)


def build_otherwise(node: tree.Otherwise, scope: Scope, paths: bool) -> Code:
    left, right = scope.build(node.left, scope, paths), scope.build(node.right, scope, paths)
    first, second = left.one, right.one
    height = tall([left, right])
    if first is not None and second is not None:

        def one(env: Env, item: Any) -> Any:
            found = first(env, item)
            return found if true(found[1] if paths else found) else second(env, item)

        return single(one, height)

    def each(env: Env, item: Any) -> Iterator[Any]:
        some = False
        for found in left.each(env, item):
            if true(found[1] if paths else found):
                some = True
                yield found
        if not some:
            yield from right.each(env, item)

    return many(each, height)


def build_try(node: tree.Try, scope: Scope, paths: bool) -> Code:
    body = scope.build(node.body, scope, paths)
    handler = None if node.handler is None else scope.build(node.handler, scope, paths)

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        depth = meter.depth
        try:
            yield from body.each(env, item)
            return
        except Raised as raised:
            meter.depth = depth
            error = raised.value
        if handler is not None:
            yield from handler.each(env, (None, error) if paths else error)

    return many(each, tall([body] if handler is None else [body, handler]))


def build_label(node: tree.Label, scope: Scope, paths: bool) -> Code:
    body = scope.build(node.body, scope.label(node.name), paths)

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        depth = meter.depth
        label = object()
        try:
            yield from body.each((*env, label), item)
        except Broken as broken:
            if broken.label is not label:
                raise
            meter.depth = depth

    return many(each, tall([body], 1))


def build_break(node: tree.Break, scope: Scope, paths: bool) -> Code:
    slot = scope.labels.get(node.name)
    if slot is None:
        raise wrong(scope.text, node.at, f"there is no `label ${node.name}` around this")

    def one(env: Env, item: Any) -> NoReturn:
        raise Broken(env[slot])

    return single(one, 1)
