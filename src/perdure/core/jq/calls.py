"""Functions: which one a name means, and how it is called.

A name is looked for in the scope, then among the functions built in Python, then in the library. What would read the
environment, the clock, other inputs or files has no place in an expression; those names are refused with a reason.
Every call enters the meter with the height of what it calls, and leaves it whenever it hands out a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perdure.core.jq import library, tree
from perdure.core.jq.code import (
    CALL,
    Code,
    Env,
    Filter,
    Function,
    Parameter,
    Scope,
    Site,
    lift,
    many,
    product,
    single,
    tall,
)
from perdure.core.jq.forms import FORMS
from perdure.core.jq.lexer import wrong
from perdure.core.jq.limits import Meter
from perdure.core.jq.natives import NATIVES

_ENVIRONMENT = "expressions see no environment"
_INPUT = "an expression has one input, `.`"
_OUTPUT = "expressions write nothing"
_CLOCK = "expressions have no clock: pass the time in, or use a timer"
_ZONE = "the time zone of a machine is not the same everywhere: use `gmtime` and `strftime`"
_HALT = "use `error`"
_MODULES = "expressions have no modules"
BANNED: dict[str, str] = {
    "env": _ENVIRONMENT,
    "get_jq_origin": _ENVIRONMENT,
    "get_prog_origin": _ENVIRONMENT,
    "get_search_list": _ENVIRONMENT,
    "input": _INPUT,
    "inputs": _INPUT,
    "input_filename": _INPUT,
    "input_line_number": _INPUT,
    "debug": _OUTPUT,
    "stderr": _OUTPUT,
    "now": _CLOCK,
    "localtime": _ZONE,
    "strflocaltime": _ZONE,
    "halt": _HALT,
    "halt_error": _HALT,
    "modulemeta": _MODULES,
    "builtins": "the list is in the documentation",
}


def build_define(node: tree.Define, scope: Scope, paths: bool) -> Code:
    """The rest of the text sees a closure: the body, and the environment in which it was defined."""
    slot = scope.size
    arity = len(node.params)
    body = Filter(node.body, scope)
    known = scope.function(node.name, arity, Function(body, slot))
    body.scope = known.params(node.params)
    body.code(False)
    rest = scope.build(node.rest, known, paths)
    inner = rest.one
    if inner is not None:
        return single(lambda env, item: inner((*env, (body, env)), item), tall([rest], 1))
    return many(lambda env, item: rest.each((*env, (body, env)), item), tall([rest], 1))


def build_call(node: tree.Call, scope: Scope, paths: bool) -> Code:
    found = scope.functions.get((node.name, len(node.args)))
    if isinstance(found, Parameter):
        return _parameter(found.slot, paths)
    if isinstance(found, Function):
        return _function(found, node, scope, paths)
    if node.name.startswith("_") and not scope.inner:
        raise _unknown(node, scope)
    form = FORMS.get((node.name, len(node.args)))
    if form is not None:
        return form(Site(node.args, scope, paths))
    native = NATIVES.get((node.name, len(node.args)))
    if native is not None:
        code = _native(native, [scope.build(arg, scope) for arg in node.args])
        return lift(code) if paths else code
    function = library.find(node.name, len(node.args), scope.build)
    if function is None:
        raise _unknown(node, scope)
    return _function(function, node, scope, paths)


def _unknown(node: tree.Call, scope: Scope) -> Exception:
    if node.name in BANNED:
        return wrong(scope.text, node.at, f"`{node.name}` is not allowed: {BANNED[node.name]}")
    arities = sorted({arity for name, arity in (*FORMS, *NATIVES, *library.names()) if name == node.name})
    hint = f" (it takes {' or '.join(map(str, arities))})" if arities and not node.name.startswith("_") else ""
    with_args = f" with {len(node.args)} argument{'s' * (len(node.args) != 1)}" if node.args or hint else ""
    return wrong(scope.text, node.at, f"there is no function `{node.name}`{with_args}{hint}")


def _parameter(slot: int, paths: bool) -> Code:
    def each(env: Env, item: Any) -> Iterator[Any]:
        argument, inner = env[slot]
        return _entered(argument.code(paths), inner, item)

    return many(each, CALL)


def _entered(code: Code, env: Env, item: Any) -> Iterator[Any]:
    meter: Meter = env[0]
    reach = code.reach
    meter.enter(reach, code.total)
    for found in code.each(env, item):
        meter.depth -= reach
        yield found
        meter.depth += reach
    meter.depth -= reach


def _function(function: Function, node: tree.Call, scope: Scope, paths: bool) -> Code:
    slot, body = function.slot, function.body
    arguments = _arguments(node.args, scope)

    def environment(env: Env) -> Env:
        if slot is None:
            return (env[0], *arguments(env))
        closure = env[slot]
        return (*closure[1], closure, *arguments(env))

    if not body.gives_one(paths):
        return many(lambda env, item: _entered(body.code(paths), environment(env), item), CALL)
    code = body.code(paths)
    inner, reach, total = code.one, code.height.reach, code.height.total

    def one(env: Env, item: Any) -> Any:
        meter: Meter = env[0]
        meter.enter(reach, total)
        found = inner(environment(env), item)  # type: ignore[misc]
        meter.depth -= reach
        return found

    return single(one, CALL)


def _arguments(nodes: tuple[tree.Node, ...], scope: Scope) -> Callable[[Env], tuple[Any, ...]]:
    """The arguments as closures. One that is a parameter of the caller is handed on as it is, not wrapped again."""
    made: list[tuple[int, Filter | None]] = []
    for node in nodes:
        found = scope.functions.get((node.name, 0)) if isinstance(node, tree.Call) and not node.args else None
        if isinstance(found, Parameter):
            made.append((found.slot, None))
            continue
        argument = Filter(node, scope)
        argument.code(False)
        made.append((0, argument))
    if not made:
        return lambda env: ()
    return lambda env: tuple([env[slot] if code is None else (code, env) for slot, code in made])


def _native(native: Callable[..., Any], args: list[Code]) -> Code:
    height = tall(args, 2)
    ones = [arg.one for arg in args]
    if not args:
        return single(lambda env, value: native(env[0], value), height)
    if None not in ones:
        if len(ones) == 1:
            only = ones[0]
            return single(lambda env, value: native(env[0], value, only(env, value)), height)  # type: ignore[misc]
        return single(
            lambda env, value: native(env[0], value, *[one(env, value) for one in ones]),  # type: ignore[misc]
            height,
        )
    values = product(args)

    def each(env: Env, value: Any) -> Iterator[Any]:
        for given in values(env, value):
            yield native(env[0], value, *given)

    return many(each, height + len(args))
