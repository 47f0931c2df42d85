"""Loops: rounds with tokens and outputs of their own, one after the other or some at once.

Only as many rounds exist as may be open; what a round did is forgotten when it is over, except for its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.flows.graph import model, rest
from perdure.flows.graph.nodes import Left
from perdure.flows.graph.state import Rounds, Scope, Token
from perdure.flows.graph.ways import EACH

if TYPE_CHECKING:
    from perdure.flows.graph.run import Walk

#: Settled nodes, after which a parallel loop lets its open rounds end, so that there can be a checkpoint. Like the
#: numbers of checkpoints it is part of what a replay does.
DRAIN = 5_000


def begin(walk: Walk, token: Token, items: list[Any]) -> None:
    token.stage = "looping"
    walk.state.loops[token.id] = Rounds(items, [None] * len(items))
    _go_on(walk, token)


def round_over(walk: Walk, scope: Scope, result: Any) -> None:
    """No token of the round is left."""
    token = walk.state.tokens[scope.loop]
    rounds = walk.state.loops[token.id]
    rounds.results[scope.index] = result
    rounds.open.remove(scope.id)
    del walk.state.scopes[scope.id]
    _go_on(walk, token)


def round_failed(walk: Walk, scope: Scope, error: BaseException) -> None:
    """A node of the round has failed, and with it the round."""
    token = walk.state.tokens[scope.loop]
    _drop_round(walk, scope)
    if walk.plan.steps[token.node].on_error == "continue":
        round_over(walk, scope, None)
    else:
        drop_rounds(walk, token)
        token.stage = "ready"
        walk.fail(token, error)


def drop_rounds(walk: Walk, token: Token) -> None:
    """End all that a loop has under way."""
    for id in list(walk.state.loops.pop(token.id).open):
        scope = walk.state.scopes[id]
        _drop_round(walk, scope)
        del walk.state.scopes[id]


def _drop_round(walk: Walk, scope: Scope) -> None:
    walk.drop([token for token in walk.state.tokens.values() if token.scope == scope.id])


def _go_on(walk: Walk, token: Token) -> None:
    """Begin the rounds that there is room for; after the last one is over, leave."""
    data: model.Loop = walk.plan.steps[token.node].data
    rounds = walk.state.loops[token.id]
    room = 1 if data.mode == "sequential" else data.limit
    body = walk.plan.ways.targets(token.node, EACH)
    while rounds.begun < len(rounds.items) and len(rounds.open) < room:
        if rounds.open and _drains(walk, token):
            return
        index, rounds.begun = rounds.begun, rounds.begun + 1
        if not body or body[0] == token.node:
            rounds.results[index] = rounds.items[index]
            continue
        _begin_round(walk, token, index, body[0], data.name)
    if not rounds.open:
        del walk.state.loops[token.id]
        token.stage = "ready"
        walk.leave(token, Left(rounds.results, "done"))


def _drains(walk: Walk, token: Token) -> bool:
    """Whether to begin no more rounds for now: a checkpoint is due, and nothing but this loop is in its way."""
    if walk.settled < max(DRAIN, walk.worth) or rest.resting(walk):
        return False
    return all(
        _within(walk, other, token.id) or isinstance(walk.plan.steps[other.node].data, model.RESTING)
        for other in walk.state.tokens.values()
        if other.stage == "open"
    )


def _within(walk: Walk, token: Token, loop: int) -> bool:
    while (outer := walk.scope(token).loop) and outer != loop:
        token = walk.state.tokens[outer]
    return outer == loop


def _begin_round(walk: Walk, token: Token, index: int, target: str, name: str) -> None:
    rounds = walk.state.loops[token.id]
    item = rounds.items[index]
    prefix = f"{walk.path(token)}[{index}]/"
    scope = Scope(walk.state.number(), token.id, index, prefix, {name: item, "index": index})
    walk.state.scopes[scope.id] = scope
    rounds.open.append(scope.id)
    walk.send(walk.born(scope.id, item, token.node), target)
