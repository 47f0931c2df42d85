"""The tree of an expression: what the parser gives to the builder. Values only, no behaviour.

`at` is the position in the text, for errors. What is only another way of writing something else has no node here:
`..` is a call of `recurse`, `.a?` an index that is optional, `def f($x): …` a definition whose body binds `$x`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct


class Identity(Struct, frozen=True):
    """`.`"""


class Literal(Struct, frozen=True):
    value: Any


class Index(Struct, frozen=True):
    """`term.name`, `term[key]`; the key is evaluated on the input of the whole, not on the term."""

    term: Node
    key: Node
    optional: bool = False


class Slice(Struct, frozen=True):
    term: Node
    start: Node
    end: Node
    optional: bool = False


class Iterate(Struct, frozen=True):
    """`term[]`"""

    term: Node
    optional: bool = False


class Text(Struct, frozen=True):
    """A string with interpolations, each written in the format."""

    parts: tuple[str | Node, ...]
    format: str = "text"


class Format(Struct, frozen=True):
    """`@base64`"""

    name: str


class Negate(Struct, frozen=True):
    term: Node


class Array(Struct, frozen=True):
    body: Node


class Object(Struct, frozen=True):
    entries: tuple[tuple[Node, Node | None], ...]  # no value: the field of that name


class Pipe(Struct, frozen=True):
    stages: tuple[Node, ...]


class Comma(Struct, frozen=True):
    items: tuple[Node, ...]


class Binary(Struct, frozen=True):
    """Arithmetic and comparison."""

    op: str
    left: Node
    right: Node


class Logic(Struct, frozen=True):
    """`and`, `or`"""

    op: str
    left: Node
    right: Node


class Otherwise(Struct, frozen=True):
    """`left // right`"""

    left: Node
    right: Node


class Assign(Struct, frozen=True):
    """`=`, `|=`, and the operators with `=` behind them."""

    op: str
    target: Node
    value: Node


class If(Struct, frozen=True):
    condition: Node
    then: Node
    orelse: Node


class Try(Struct, frozen=True):
    body: Node
    handler: Node | None = None


class Reduce(Struct, frozen=True):
    source: Node
    patterns: tuple[Pattern, ...]
    init: Node
    update: Node


class Foreach(Struct, frozen=True):
    source: Node
    patterns: tuple[Pattern, ...]
    init: Node
    update: Node
    extract: Node | None = None


class Bind(Struct, frozen=True):
    """`source as pattern ?// pattern | body`"""

    source: Node
    patterns: tuple[Pattern, ...]
    body: Node


class Label(Struct, frozen=True):
    name: str
    body: Node


class Break(Struct, frozen=True):
    name: str
    at: int


class Define(Struct, frozen=True):
    """`def name(params): body; rest`"""

    name: str
    params: tuple[str, ...]
    body: Node
    rest: Node


class Call(Struct, frozen=True):
    name: str
    args: tuple[Node, ...]
    at: int


class Variable(Struct, frozen=True):
    name: str
    at: int


class Name(Struct, frozen=True):
    """A pattern that is a variable."""

    name: str


class Items(Struct, frozen=True):
    """A pattern for arrays."""

    items: tuple[Pattern, ...]


class Fields(Struct, frozen=True):
    """A pattern for objects: for each field the variable that takes it whole, its key, the pattern for it."""

    fields: tuple[tuple[str | None, Node, Pattern | None], ...]


Pattern: TypeAlias = Name | Items | Fields
Node: TypeAlias = (
    Identity
    | Literal
    | Index
    | Slice
    | Iterate
    | Text
    | Format
    | Negate
    | Array
    | Object
    | Pipe
    | Comma
    | Binary
    | Logic
    | Otherwise
    | Assign
    | If
    | Try
    | Reduce
    | Foreach
    | Bind
    | Label
    | Break
    | Define
    | Call
    | Variable
)
