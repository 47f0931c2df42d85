"""What an expression is built into: closures, and what they need to know about one another.

A `Code` turns one item into items. Where it is certain to give exactly one, `one` does it without a generator: most
expressions of practice are a few plain calls. In the other mode, that of paths, an item is a pair of path and value;
the path is None where the value is not part of the input. Codes that only pass items on serve both modes.

An environment is a tuple: the meter, then variables and closures in the order in which the text introduces them. It is
never changed, because a generator may be resumed after others ran with the same environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

from perdure.core.jq.limits import Meter
from perdure.core.jq.tree import Node

Env: TypeAlias = tuple[Any, ...]
One: TypeAlias = Callable[[Env, Any], Any]
Each: TypeAlias = Callable[[Env, Any], Iterable[Any]]


class Height:
    """How many frames of Python a code takes: `total` at most, `reach` down to the calls in it, 0 if there are none.

    Whoever is called runs below `reach`, so this is what a call adds to the depth; `total` must still have room there.
    """

    __slots__ = ("reach", "total")

    def __init__(self, total: int, reach: int = 0) -> None:
        self.total = total
        self.reach = reach

    def __add__(self, more: int) -> Height:
        return Height(self.total + more, self.reach + more if self.reach else 0)


#: A call of a function: one frame, and whatever is called is below it.
CALL = Height(1, 1)


class Code:
    __slots__ = ("each", "height", "one", "reach", "total")

    def __init__(self, one: One | None, each: Each, height: int | Height) -> None:
        self.one = one
        self.each = each
        self.height = Height(height) if isinstance(height, int) else height
        # What `each` takes, at hand for calls: of a code that gives one it takes another frame.
        self.total = self.height.total + (one is not None)
        self.reach = self.height.reach + (one is not None) if self.height.reach else 0


def single(one: One, height: int | Height) -> Code:
    return Code(one, lambda env, item: (one(env, item),), height)


def many(each: Each, height: int | Height) -> Code:
    return Code(None, each, height)


def lift(code: Code) -> Code:
    """A code for values, in the mode of paths: what it gives is not part of the input."""
    inner = code.one
    if inner is not None:
        return single(lambda env, item: lost(item, inner(env, item[1])), tall([code], 1))

    def each(env: Env, item: Any) -> Iterator[Any]:
        for value in code.each(env, item[1]):
            yield lost(item, value)

    return many(each, tall([code], 1))


def lost(item: Any, value: Any) -> Any:
    # jq cannot tell null, true and false from the same value of the input; programs such as `path(.. | not)` see it.
    if value is item[1] and (value is None or value is True or value is False):
        return item
    return (None, value)


def product(codes: list[Code]) -> Each:
    """Tuples of what several codes give for one input; the last code is the outermost loop."""

    def each(env: Env, value: Any) -> Iterator[tuple[Any, ...]]:
        return fill(env, value, len(codes) - 1, ())

    def fill(env: Env, value: Any, place: int, rest: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if place < 0:
            yield rest
            return
        meter: Meter = env[0]
        for found in codes[place].each(env, value):
            meter.work(1)
            yield from fill(env, value, place - 1, (found, *rest))

    return each


def tall(codes: Iterable[Code], more: int = 1) -> Height:
    """The height of what calls these codes through `more` frames; `each` of one that gives one takes another frame."""
    total = reach = 0
    for code in codes:
        total, reach = max(total, code.total), max(reach, code.reach)
    return Height(total, reach) + more


class Filter:
    """What is called: the body of a function, or an argument. The mode of paths is built on demand."""

    __slots__ = ("_building", "_codes", "node", "scope")

    def __init__(self, node: Node, scope: Scope) -> None:
        self.node = node
        self.scope = scope
        self._codes: list[Code | None] = [None, None]
        self._building = [False, False]

    def code(self, paths: bool) -> Code:
        found = self._codes[paths]
        if found is None:
            self._building[paths] = True
            try:
                found = self._codes[paths] = self.scope.build(self.node, self.scope, paths)
            finally:
                self._building[paths] = False
        return found

    def gives_one(self, paths: bool) -> bool:
        """Whether it is certain to give exactly one output; a function that calls itself is not."""
        return not self._building[paths] and self.code(paths).one is not None


class Function:
    """A function in scope. Without a slot it is one of the library, and closes over nothing."""

    __slots__ = ("body", "slot")

    def __init__(self, body: Filter, slot: int | None) -> None:
        self.body = body
        self.slot = slot


class Parameter:
    __slots__ = ("slot",)

    def __init__(self, slot: int) -> None:
        self.slot = slot


class Build(Protocol):
    def __call__(self, node: Node, scope: Scope, paths: bool = False) -> Code: ...


class Scope:
    """What names mean at a place of the text; `size` is how long the environment is there."""

    __slots__ = ("build", "functions", "inner", "labels", "level", "size", "text", "variables")

    def __init__(self, text: str, build: Build, inner: bool = False) -> None:
        self.text = text
        self.build = build
        self.inner = inner  # of the library: may use the names that begin with an underscore
        self.size = 1
        self.level = 0
        self.variables: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self.functions: dict[tuple[str, int], Function | Parameter] = {}

    def copy(self) -> Scope:
        scope = Scope(self.text, self.build, self.inner)
        scope.size, scope.level = self.size, self.level
        scope.variables, scope.labels, scope.functions = self.variables, self.labels, self.functions
        return scope

    def variable(self, *names: str) -> Scope:
        scope = self.copy()
        scope.variables = dict(self.variables)
        for name in names:
            scope.variables[name] = scope.size
            scope.size += 1
        return scope

    def label(self, name: str) -> Scope:
        scope = self.copy()
        scope.labels = {**self.labels, name: scope.size}
        scope.size += 1
        return scope

    def function(self, name: str, arity: int, found: Function) -> Scope:
        scope = self.copy()
        scope.functions = {**self.functions, (name, arity): found}
        if found.slot is not None:
            scope.size += 1
        return scope

    def params(self, names: Iterable[str]) -> Scope:
        scope = self.copy()
        scope.functions = dict(self.functions)
        for name in names:
            scope.functions[name, 0] = Parameter(scope.size)
            scope.size += 1
        return scope


class Site:
    """A call of one of the functions that `forms` builds itself: its arguments, and the mode in which it stands."""

    __slots__ = ("args", "paths", "scope")

    def __init__(self, args: tuple[Node, ...], scope: Scope, paths: bool) -> None:
        self.args = args
        self.scope = scope
        self.paths = paths

    def value(self, place: int) -> Code:
        return self.scope.build(self.args[place], self.scope, False)

    def path(self, place: int) -> Code:
        return self.scope.build(self.args[place], self.scope, True)

    def same(self, place: int) -> Code:
        """The argument in the mode of the call itself."""
        return self.scope.build(self.args[place], self.scope, self.paths)

    def wrap(self, code: Code) -> Code:
        """A code for values, in the mode of the call."""
        return lift(code) if self.paths else code
