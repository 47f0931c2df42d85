"""Splits and joins: which tokens a join waits for.

A join waits for the tokens of its split that can still come to it, and for no other: a branch that has ended elsewhere,
or can only end elsewhere, keeps nobody waiting. Its split is the outermost one of the arriving token of which at least
two branches can meet there. A join of some (`any`, or a number) ends what else its split has under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.core.events import NodeStarted
from perdure.flows.graph.nodes import Left
from perdure.flows.graph.state import Token

if TYPE_CHECKING:
    from perdure.flows.graph.run import Walk


def arrive(walk: Walk, token: Token) -> None:
    if not others(walk, token):
        walk.running.note(NodeStarted(walk.path(token)))
    token.stage = "joined"
    group = _group(walk, token)
    mode = walk.plan.steps[token.node].data.mode
    if mode != "all" and len(group) >= (1 if mode == "any" else mode):
        _fire(walk, group)


def others(walk: Walk, token: Token) -> list[Token]:
    """Who else waits at the same join."""
    return [
        other
        for other in walk.state.tokens.values()
        if other is not token and other.stage == "joined" and other.node == token.node and other.scope == token.scope
    ]


def fire_next(walk: Walk) -> bool:
    """Nothing moves by itself now: let the first join go on that no token can come to any more.

    Joins may wait for each other in a circle, where the way from one leads to the other and back. If nothing that is at
    work can come to any of them, the one that was reached first goes on.
    """
    groups: dict[tuple[str, int], list[Token]] = {}
    for token in walk.state.tokens.values():
        if token.stage == "joined":
            groups.setdefault((token.node, token.scope), []).append(token)
    if not groups:
        return False
    awaited = {key: _awaited(walk, group) for key, group in groups.items()}
    # What is at work and can come to one join can also come to those behind it, so looking once is enough.
    free = [key for key, tokens in awaited.items() if all(token.stage == "joined" for token in tokens)]
    if not free:
        return False
    _fire(walk, groups[next((key for key in free if not awaited[key]), free[0])])
    return True


def _split_of(walk: Walk, token: Token) -> int:
    """The split that this token's join joins; 0 if it is alone."""
    state, feeds = walk.state, walk.plan.ways.feeds
    return next((split for split in state.chain(token.split) if feeds(state.splits[split].node, token.node)), 0)


def _group(walk: Walk, token: Token) -> list[Token]:
    return sorted([token, *others(walk, token)], key=lambda one: one.id)


def _awaited(walk: Walk, group: list[Token]) -> list[Token]:
    """The tokens that can still come."""
    split = _split_of(walk, group[0])
    if not split:
        return []
    sources = walk.plan.ways.sources(group[0].node, walk.state.splits[split].node)
    return [token for token in walk.state.under(split) if token not in group and token.node in sources]


def _fire(walk: Walk, group: list[Token]) -> None:
    state, join = walk.state, group[0].node
    if walk.plan.steps[join].data.mode != "all" and (split := _split_of(walk, group[0])):
        walk.drop([token for token in state.under(split) if token not in group])
    came = {token.source: token.value for token in group}
    output: dict[str, Any] = {
        edge.source: came[edge.source] for edge in walk.plan.ways.into[join] if edge.source in came
    }
    chains = [state.chain(token.split) for token in group]
    common = [one for one, *rest in zip(*chains, strict=False) if all(other == one for other in rest)]
    token, *rest = group
    for other in rest:
        walk.gone(other)
    token.split = common[-1] if common else 0
    token.stage = "ready"
    walk.leave(token, Left(output))
