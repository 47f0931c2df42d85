"""From the tree to code: names are resolved here, and every node becomes a closure.

Each `_node` function builds one kind of node in one of the two modes. What makes new values (literals, arithmetic,
arrays, …) is built for values and lifted. The operands of jq's operators run right to left, and so do ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

from perdure.core.jq import tree
from perdure.core.jq.access import index
from perdure.core.jq.arithmetic import OPERATORS, negate
from perdure.core.jq.assign import build_assign
from perdure.core.jq.bind import build_bind, build_foreach, build_reduce
from perdure.core.jq.calls import build_call, build_define
from perdure.core.jq.code import Code, Env, Scope, lift, many, product, single, tall
from perdure.core.jq.formats import FORMATS
from perdure.core.jq.forms import true
from perdure.core.jq.lexer import wrong
from perdure.core.jq.limits import Broken, Meter, Raised
from perdure.core.jq.text import brief, kind
from perdure.core.jq.tree import Node
from perdure.errors import ExpressionError

Builder: TypeAlias = Callable[[Any, Scope, bool], Code]
#: How deep the tree may be; three frames of Python go into each level.
_LEVELS = 150


def build(node: Node, scope: Scope, paths: bool = False) -> Code:
    scope = scope.copy()
    scope.level += 1
    if scope.level > _LEVELS:
        raise ExpressionError(f"the expression is nested deeper than {_LEVELS} levels: take it apart")
    if paths and type(node) in _MAKERS:
        return lift(_BUILDERS[type(node)](node, scope, False))
    return _BUILDERS[type(node)](node, scope, paths)


# --- values ----------------------------------------------------------------------------------------------------------


def _identity(node: tree.Identity, scope: Scope, paths: bool) -> Code:
    return single(lambda env, item: item, 1)


def _literal(node: tree.Literal, scope: Scope, paths: bool) -> Code:
    value = node.value
    return single(lambda env, item: value, 1)


def _variable(node: tree.Variable, scope: Scope, paths: bool) -> Code:
    slot = scope.variables.get(node.name)
    if slot is None:
        if node.name in ("ENV", "__prog_args"):
            raise wrong(scope.text, node.at, f"`${node.name}` is not allowed: expressions see no environment")
        raise wrong(scope.text, node.at, f"`${node.name}` is not defined")
    return single(lambda env, item: env[slot], 1)


def _text(node: tree.Text, scope: Scope, paths: bool) -> Code:
    write = _format_named(node.format)
    codes = [build(part, scope) for part in node.parts if not isinstance(part, str)]
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


def _format(node: tree.Format, scope: Scope, paths: bool) -> Code:
    write = _format_named(node.name)
    return single(lambda env, value: write(env[0], value), 1)


def _format_named(name: str) -> Callable[[Meter, Any], str]:
    def unknown(meter: Meter, value: Any) -> NoReturn:
        raise Raised(f"{name} is not a valid format")

    return FORMATS.get(name, unknown)


def _negate(node: tree.Negate, scope: Scope, paths: bool) -> Code:
    if isinstance(node.term, tree.Literal) and type(node.term.value) in (int, float):
        return _literal(tree.Literal(-node.term.value), scope, paths)
    code = build(node.term, scope)
    inner = code.one
    if inner is not None:
        return single(lambda env, value: negate(env[0], inner(env, value)), tall([code], 1))

    def each(env: Env, value: Any) -> Iterator[Any]:
        for found in code.each(env, value):
            yield negate(env[0], found)

    return many(each, tall([code], 1))


def _array(node: tree.Array, scope: Scope, paths: bool) -> Code:
    constant = _constant(node)
    if constant is not None:
        return _literal(tree.Literal(constant), scope, paths)
    body = build(node.body, scope)

    def one(env: Env, value: Any) -> Any:
        items = list(body.each(env, value))
        env[0].make(len(items) + 1)
        return items

    return single(one, tall([body], 1))


def _constant(node: tree.Array) -> list[Any] | None:
    items = node.body.items if isinstance(node.body, tree.Comma) else (node.body,)
    values = [item.value for item in items if isinstance(item, tree.Literal)]
    return values if len(values) == len(items) else None


def _object(node: tree.Object, scope: Scope, paths: bool) -> Code:
    keys = [build(key, scope) for key, _ in node.entries]
    values = [None if value is None else build(value, scope) for _, value in node.entries]
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


def _binary(node: tree.Binary, scope: Scope, paths: bool) -> Code:
    operator = OPERATORS[node.op]
    left, right = build(node.left, scope), build(node.right, scope)
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


def _logic(node: tree.Logic, scope: Scope, paths: bool) -> Code:
    left, right = build(node.left, scope), build(node.right, scope)
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


# --- going into values -----------------------------------------------------------------------------------------------


def _index(node: tree.Index, scope: Scope, paths: bool) -> Code:
    names = _fields(node)
    if names and not paths:
        return _fields_of(node, names, scope)
    return _into(node.term, build(node.key, scope), node.optional, scope, paths)


def _fields(node: Node) -> list[str]:
    """The names of `term.a.b.c`, innermost first."""
    names: list[str] = []
    while isinstance(node, tree.Index) and isinstance(node.key, tree.Literal) and not node.optional:
        if type(node.key.value) is not str:
            break
        names.append(node.key.value)
        node = node.term
    return names[::-1]


def _fields_of(node: Node, names: list[str], scope: Scope) -> Code:
    """Several fields in a row, which is what most expressions do."""
    for _ in names:
        assert isinstance(node, tree.Index)
        node = node.term
    term = build(node, scope)

    def walk(env: Env, value: Any) -> Any:
        for name in names:
            if type(value) is dict:
                value = value.get(name)
            elif value is not None:
                index(env[0], value, name)
        return value

    if isinstance(node, tree.Identity):
        return single(walk, 1)
    base = term.one
    if base is not None:
        return single(lambda env, value: walk(env, base(env, value)), tall([term], 2))

    def each(env: Env, value: Any) -> Iterator[Any]:
        for found in term.each(env, value):
            yield walk(env, found)

    return many(each, tall([term], 2))


def _into(term_node: Node, key: Code, optional: bool, scope: Scope, paths: bool) -> Code:
    """`term[key]`: keys are the outer loop and come from the input of the whole."""
    term = build(term_node, scope, paths)

    def get(meter: Meter, item: Any, key: Any) -> Any:
        if not paths:
            return index(meter, item, key)
        path, value = item
        if path is None:
            raise Invalid(
                f"Invalid path expression near attempt to access element {brief(meter, key)} of {brief(meter, value)}"
            )
        return ((*path, key), index(meter, value, key))

    base, key_of = term.one, key.one
    height = tall([term, key])
    if base is not None and key_of is not None and not optional:

        def one(env: Env, item: Any) -> Any:
            found = key_of(env, item[1] if paths else item)
            return get(env[0], base(env, item), found)

        return single(one, height)

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        for found in key.each(env, item[1] if paths else item):
            for inner in term.each(env, item):
                meter.work(1)
                try:
                    got = get(meter, inner, found)
                except Invalid:
                    raise
                except Raised:
                    if not optional:
                        raise
                    continue
                yield got

    return many(each, height)


class Invalid(Raised):
    """A value that is no part of the input was treated as a path; `?` of an index does not hide it."""


def _slice(node: tree.Slice, scope: Scope, paths: bool) -> Code:
    start, end = build(node.start, scope), build(node.end, scope)
    first, last = start.one, end.one
    if first is not None and last is not None:
        key = single(
            lambda env, value: {"start": first(env, value), "end": last(env, value)},
            tall([start, end]),
        )
        return _into(node.term, key, node.optional, scope, paths)

    def each(env: Env, value: Any) -> Iterator[Any]:
        for a in start.each(env, value):
            for b in end.each(env, value):
                yield {"start": a, "end": b}

    return _into(node.term, many(each, tall([start, end])), node.optional, scope, paths)


def _iterate(node: tree.Iterate, scope: Scope, paths: bool) -> Code:
    term = build(node.term, scope, paths)
    optional = node.optional

    def inside(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        path: Any
        path, value = item if paths else (None, item)
        if paths and path is None:
            raise Raised(f"Invalid path expression near attempt to iterate through {brief(meter, value)}")
        pairs: Any
        if type(value) is list:
            pairs = enumerate(value) if paths else value
        elif type(value) is dict:
            pairs = value.items() if paths else value.values()
        elif optional:
            return
        else:
            raise Raised(f"Cannot iterate over {kind(value)} ({brief(meter, value)})")
        for found in pairs:
            meter.steps -= 1
            if meter.steps < 0:
                meter.weary()
            yield ((*path, found[0]), found[1]) if paths else found

    base = term.one
    if isinstance(node.term, tree.Identity):
        return many(inside, 1)
    if base is not None:
        return many(lambda env, item: inside(env, base(env, item)), tall([term], 2))

    def each(env: Env, item: Any) -> Iterator[Any]:
        for found in term.each(env, item):
            yield from inside(env, found)

    return many(each, tall([term], 2))


# --- passing on ------------------------------------------------------------------------------------------------------


def _pipe(node: tree.Pipe, scope: Scope, paths: bool) -> Code:
    codes = [build(stage, scope, paths) for stage in node.stages]
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


def _comma(node: tree.Comma, scope: Scope, paths: bool) -> Code:
    codes = [build(item, scope, paths) for item in node.items]

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


def _if(node: tree.If, scope: Scope, paths: bool) -> Code:
    condition = build(node.condition, scope)
    then, orelse = build(node.then, scope, paths), build(node.orelse, scope, paths)
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


def _otherwise(node: tree.Otherwise, scope: Scope, paths: bool) -> Code:
    left, right = build(node.left, scope, paths), build(node.right, scope, paths)
    first, second = left.one, right.one
    height = tall([left, right])
    if first is not None and second is not None:

        def one(env: Env, item: Any) -> Any:
            meter: Meter = env[0]
            depth = meter.depth
            try:
                found = first(env, item)
            except Raised:
                meter.depth = depth
            else:
                if true(found[1] if paths else found):
                    return found
            return second(env, item)

        return single(one, height)

    def each(env: Env, item: Any) -> Iterator[Any]:
        meter: Meter = env[0]
        depth = meter.depth
        some = False
        try:
            for found in left.each(env, item):
                if true(found[1] if paths else found):
                    some = True
                    yield found
        except Raised:
            meter.depth = depth
        if not some:
            yield from right.each(env, item)

    return many(each, height)


def _try(node: tree.Try, scope: Scope, paths: bool) -> Code:
    body = build(node.body, scope, paths)
    handler = None if node.handler is None else build(node.handler, scope, paths)

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


def _label(node: tree.Label, scope: Scope, paths: bool) -> Code:
    body = build(node.body, scope.label(node.name), paths)

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


def _break(node: tree.Break, scope: Scope, paths: bool) -> Code:
    slot = scope.labels.get(node.name)
    if slot is None:
        raise wrong(scope.text, node.at, f"there is no `label ${node.name}` around this")

    def one(env: Env, item: Any) -> NoReturn:
        raise Broken(env[slot])

    return single(one, 1)


_BUILDERS: dict[type, Builder] = {
    tree.Identity: _identity,
    tree.Literal: _literal,
    tree.Variable: _variable,
    tree.Text: _text,
    tree.Format: _format,
    tree.Negate: _negate,
    tree.Array: _array,
    tree.Object: _object,
    tree.Binary: _binary,
    tree.Logic: _logic,
    tree.Assign: build_assign,
    tree.Index: _index,
    tree.Slice: _slice,
    tree.Iterate: _iterate,
    tree.Pipe: _pipe,
    tree.Comma: _comma,
    tree.If: _if,
    tree.Otherwise: _otherwise,
    tree.Try: _try,
    tree.Label: _label,
    tree.Break: _break,
    tree.Reduce: build_reduce,
    tree.Foreach: build_foreach,
    tree.Bind: build_bind,
    tree.Define: build_define,
    tree.Call: build_call,
}
#: What makes new values.
_MAKERS = frozenset(
    {
        tree.Literal,
        tree.Variable,
        tree.Text,
        tree.Format,
        tree.Negate,
        tree.Array,
        tree.Object,
        tree.Binary,
        tree.Logic,
        tree.Assign,
    }
)
