"""Going into values: fields, keys, slices, `[]`. In the mode of paths each step adds its key to the path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.core.jq import tree
from perdure.core.jq.access import index
from perdure.core.jq.code import Code, Env, Scope, many, single, tall
from perdure.core.jq.limits import Meter, Raised
from perdure.core.jq.text import brief, kind
from perdure.core.jq.tree import Node


def build_index(node: tree.Index, scope: Scope, paths: bool) -> Code:
    names = _fields(node)
    if names and not paths:
        return _fields_of(node, names, scope)
    return _into(node.term, scope.build(node.key, scope), node.optional, scope, paths)


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
    term = scope.build(node, scope)

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
    term = scope.build(term_node, scope, paths)

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


def build_slice(node: tree.Slice, scope: Scope, paths: bool) -> Code:
    start, end = scope.build(node.start, scope), scope.build(node.end, scope)
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


def build_iterate(node: tree.Iterate, scope: Scope, paths: bool) -> Code:
    term = scope.build(node.term, scope, paths)
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
