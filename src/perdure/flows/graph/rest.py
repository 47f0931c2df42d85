"""Rest and checkpoints: when the state of a walk tells all, and when it is worth writing down.

While actions or children are open their commands are part of where a walk stands, and there is no checkpoint. Whether
one is made follows from the log alone, never from settings, and the numbers below are part of what a replay does: with
others, logs that were written before could not be replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from perdure.flows.described import checkpoint
from perdure.flows.graph import model
from perdure.flows.graph.state import State, Token

if TYPE_CHECKING:
    from perdure.flows.graph.run import Walk

#: Nodes that settle between two checkpoints, at the least; and what a settled node costs in the log, about: a
#: checkpoint is not worth more than what it saves.
LEAST, COST = 50, 400
#: A larger state is not written down, in bytes.
LARGEST = 500_000


def resting(walk: Walk) -> bool:
    """Whether the state tells all: nothing is open but what waits for a time, an event or a person."""
    tokens, steps = walk.state.tokens, walk.plan.steps
    return not walk.running.orphans and all(
        id in tokens and isinstance(steps[tokens[id].node].data, model.RESTING) for id in walk.tasks
    )


def position(walk: Walk) -> State:
    """Where it stands, as data."""
    walk.state.sweep()
    return walk.state


def consider(walk: Walk, token: Token) -> None:
    """Begin a new round of the log where a token goes back, if that saves more than it costs."""
    scope = walk.scope(token)
    goes_back = token.node in scope.outputs or (scope.loop and not scope.outputs)
    if walk.settled < walk.worth or not (goes_back and walk.rested and not walk.done and resting(walk)):
        return
    state = position(walk)
    size = len(msgspec.json.encode(state))
    walk.worth = max(LEAST, size // COST)
    if size > LARGEST:
        walk.worth = 2 * walk.settled  # it may become smaller
    elif walk.settled >= walk.worth:
        checkpoint(walk.running, state)
