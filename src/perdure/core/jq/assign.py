"""Assignments: the paths of the left side, one by one, in the value as it is by then.

The paths come from the input as it was; nothing is changed in place, so assigning while looking for paths is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perdure.core.jq import tree
from perdure.core.jq.access import delete_paths, get_path, set_path
from perdure.core.jq.arithmetic import OPERATORS
from perdure.core.jq.code import Code, Env, Scope, many, single, tall
from perdure.core.jq.limits import Meter, Raised
from perdure.core.jq.text import brief


def build_assign(node: tree.Assign, scope: Scope, paths: bool) -> Code:
    target = scope.build(node.target, scope, True)
    value = scope.build(node.value, scope)
    height = tall([target, value], 3)

    def places(env: Env, root: Any) -> Iterator[tuple[Any, ...]]:
        meter: Meter = env[0]
        for path, found in target.each(env, ((), root)):
            meter.work(1)
            if path is None:
                raise Raised(f"Invalid path expression with result {brief(meter, found)}")
            yield path

    if node.op == "|=":

        def update(env: Env, root: Any) -> Any:
            meter: Meter = env[0]
            result = root
            gone: list[Any] = []
            for path in places(env, root):
                for new in value.each(env, get_path(meter, result, path)):
                    result = set_path(meter, result, path, new)
                    break
                else:
                    gone.append(path)
            return delete_paths(meter, result, gone) if gone else result

        return single(update, height)

    change = _change(node.op)

    def assign(env: Env, root: Any, new: Any) -> Any:
        meter: Meter = env[0]
        result = root
        for path in places(env, root):
            result = set_path(meter, result, path, change(meter, result, path, new))
        return result

    given = value.one
    if given is not None:
        return single(lambda env, root: assign(env, root, given(env, root)), height)

    def each(env: Env, root: Any) -> Iterator[Any]:
        for new in value.each(env, root):
            yield assign(env, root, new)

    return many(each, height)


def _change(op: str) -> Callable[[Meter, Any, Any, Any], Any]:
    """What the operator puts at a path of the root, given the value of the right side."""
    if op == "=":
        return lambda meter, root, path, new: new
    if op == "//=":

        def otherwise(meter: Meter, root: Any, path: Any, new: Any) -> Any:
            old = get_path(meter, root, path)
            return new if old is None or old is False else old

        return otherwise
    operator = OPERATORS[op[:-1]]
    return lambda meter, root, path, new: operator(meter, get_path(meter, root, path), new)
