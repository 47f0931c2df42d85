"""From the tree to code: which function builds which node, in which mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from perdure.core.jq import tree
from perdure.core.jq.assign import build_assign
from perdure.core.jq.bind import build_bind, build_foreach, build_reduce
from perdure.core.jq.calls import build_call, build_define
from perdure.core.jq.code import Code, Scope, lift
from perdure.core.jq.flow import (
    build_break,
    build_comma,
    build_identity,
    build_if,
    build_label,
    build_otherwise,
    build_pipe,
    build_try,
)
from perdure.core.jq.inside import build_index, build_iterate, build_slice
from perdure.core.jq.makers import (
    build_array,
    build_binary,
    build_format,
    build_literal,
    build_logic,
    build_negate,
    build_object,
    build_text,
    build_variable,
)
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


_BUILDERS: dict[type, Builder] = {
    tree.Identity: build_identity,
    tree.Literal: build_literal,
    tree.Variable: build_variable,
    tree.Text: build_text,
    tree.Format: build_format,
    tree.Negate: build_negate,
    tree.Array: build_array,
    tree.Object: build_object,
    tree.Binary: build_binary,
    tree.Logic: build_logic,
    tree.Assign: build_assign,
    tree.Index: build_index,
    tree.Slice: build_slice,
    tree.Iterate: build_iterate,
    tree.Pipe: build_pipe,
    tree.Comma: build_comma,
    tree.If: build_if,
    tree.Otherwise: build_otherwise,
    tree.Try: build_try,
    tree.Label: build_label,
    tree.Break: build_break,
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
