"""One execution's walk through a graph: tokens on the deterministic loop.

A token stands at a node. `advance` moves all that can move, without recursion, until nothing is ready; a node that
takes time is a task, and its end wakes the walk. Rules kept here:

- The state is plain data. What is open can be told from it, except for actions and children, which are commands.
- Every passage through a node is noted as started and settled, also when it fails or is no longer wanted.
- Whatever ends the walk without success ends all that is open first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from perdure.core.events import NodeSettled, NodeStarted
from perdure.core.failures import describe
from perdure.core.replay import Replay
from perdure.errors import ActionFailed
from perdure.flows.described import check_rest
from perdure.flows.graph import joins, loops, model, people, rest, showing
from perdure.flows.graph.nodes import At, Left, Step
from perdure.flows.graph.plan import Plan
from perdure.flows.graph.state import Scope, Split, State, Token


class Walk:
    """Moves the tokens of one execution."""

    def __init__(self, plan: Plan, running: Replay, state: State) -> None:
        self.plan = plan
        self.running = running
        self.state = state
        self.ready: deque[Token] = deque()
        self.tasks: dict[int, asyncio.Task[Left]] = {}
        self.done: deque[int] = deque()  # tokens whose tasks are over
        self.settled = 0  # since the last checkpoint
        self.rested = False  # since the last checkpoint: a circle without any rest is no progress
        self.worth = rest.LEAST  # settled nodes, after which a checkpoint is thought of
        self._notes = 0  # in this turn
        self._wake: asyncio.Future[None] | None = None

    # Life.

    async def run(self) -> Any:
        """Until no token is left."""
        try:
            for token in list(self.state.tokens.values()):  # of a checkpoint
                if token.stage == "ready":
                    self.ready.append(token)
                elif token.stage == "open":
                    self._open(token)
            while True:
                self.advance()
                showing.publish(self)
                if not self.state.tokens:
                    break
                await self._rest()
        except (Exception, asyncio.CancelledError):
            self.running.position = None
            self.drop(list(self.state.tokens.values()))
            showing.publish(self)
            raise
        self.running.position = None
        return self.state.result

    async def _rest(self) -> None:
        self.running.position = (lambda: rest.position(self)) if rest.resting(self) else None
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake
        self.rested, self._notes = True, 0

    def advance(self) -> None:
        """Move whatever can move."""
        while True:
            if self.ready and self.ready[0].id not in self.state.tokens:
                self.ready.popleft()  # dropped
            elif self.ready:
                rest.consider(self, self.ready[0])
                self.enter(self.ready.popleft())
            elif self.done:
                self._finish(self.done.popleft())
            elif not joins.fire_next(self):
                return

    def enter(self, token: Token) -> None:
        step = self.plan.steps[token.node]
        if isinstance(step.data, model.Join):
            joins.arrive(self, token)
            return
        path = self.path(token)
        try:
            prepared = step.prepare(lambda: showing.see(self, token), path)
            shown = showing.begins_with(self, step, prepared.given, path)
        except Exception as error:
            self.running.note(NodeStarted(path))
            self.fail(token, error)
            return
        self.running.note(NodeStarted(path, shown))
        if isinstance(step.data, model.Loop):
            loops.begin(self, token, prepared.given)
        elif step.instant:
            self._decide(token, step, prepared.given)
        else:
            token.given = prepared.given
            token.due = None if prepared.length is None else self.now + prepared.length
            self._open(token)

    def _decide(self, token: Token, step: Step[Any], given: Any) -> None:
        try:
            left = step.decide(given, token)
        except Exception as error:
            self.fail(token, error)
            return
        match step.data:
            case model.Assign():
                if self.settle(token, left.output):
                    self.state.variables = {**self.state.variables, **given}
                    self.go(token, left.handle)
            case model.Parallel():
                self._split(token, left)
            case model.End():
                self._end(token, step.data, left)
            case _:
                self.leave(token, left)

    def _open(self, token: Token) -> None:
        token.stage, token.kind = "open", self.plan.model.nodes[token.node].type
        task = asyncio.create_task(self.plan.steps[token.node].work(At(self.running, token)))
        self.tasks[token.id] = task
        task.add_done_callback(lambda _: self._over(token.id))

    def _over(self, id: int) -> None:
        self.done.append(id)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _finish(self, id: int) -> None:
        """A task is over: its token goes on, unless nobody wants it any more."""
        task = self.tasks.pop(id)
        error = None if task.cancelled() else task.exception()
        token = self.state.tokens.get(id)
        if token is None:
            return
        people.withdraw(self.running, token)
        token.stage, token.kind, token.given, token.due, token.got = "ready", "", None, None, {}
        if isinstance(error, Exception):
            self.fail(token, error)
        else:
            self.leave(token, task.result())

    # Moves.

    def leave(self, token: Token, left: Left) -> None:
        """The node is done; the token goes on."""
        if not self.settle(token, left.output, left.attempts):
            return
        if not left.passes:
            token.value = left.output
        self.go(token, left.handle)

    def settle(self, token: Token, output: Any, attempts: int = 1) -> bool:
        """Keep the output of a node; False if it cannot be kept."""
        try:
            shown = showing.encoded(self, output, self.path(token))
        except Exception as error:
            self.fail(token, error)
            return False
        self.scope(token).outputs[token.node] = output
        self._note_settled(NodeSettled(self.path(token), output=shown, attempts=attempts))
        return True

    def go(self, token: Token, handle: str) -> None:
        targets = self.plan.ways.targets(token.node, handle)
        if targets:
            self.send(token, targets[0])
        else:
            self.end(token)

    def send(self, token: Token, target: str) -> None:
        """Along an edge; one that comes back to the loop ends the round."""
        loop = self.scope(token).loop
        if loop and self.state.tokens[loop].node == target:
            self.end(token)
            return
        token.source, token.node, token.stage = token.node, target, "ready"
        self.ready.append(token)

    def _split(self, token: Token, left: Left) -> None:
        if not self.settle(token, left.output):
            return
        self.state.prune(token)
        self.state.sweep()
        targets = self.plan.ways.all_targets(token.node)
        split = self.state.number()
        self.state.splits[split] = Split(token.node, token.split)
        for target in targets:
            self.send(self.born(token.scope, token.value, token.node, split), target)
        self.end(token)

    def born(self, scope: int, value: Any, node: str, split: int = 0) -> Token:
        """A new token, at a node that it comes from."""
        token = Token(self.state.number(), node, scope, split, value)
        self.state.tokens[token.id] = token
        self.state.scopes[scope].live += 1
        return token

    def gone(self, token: Token) -> Scope:
        """The token is no more."""
        del self.state.tokens[token.id]
        scope = self.scope(token)
        scope.live -= 1
        return scope

    def end(self, token: Token) -> None:
        """A branch is at its end. Where it was the last of its round, the round is over."""
        scope = self.gone(token)
        scope.last = token.value
        if scope.live:
            return
        if scope.loop:
            loops.round_over(self, scope, scope.last)
        elif not self.state.ended:
            self.state.result = scope.last

    def _end(self, token: Token, data: model.End, left: Left) -> None:
        if not self.settle(token, left.output):
            return
        token.value = left.output
        if data.stop or not self.scope(token).loop:
            self.state.result, self.state.ended = left.output, True
        if data.stop:
            self.drop([other for other in self.state.tokens.values() if other is not token])
            self.state.tokens.clear()
        else:
            self.end(token)

    # Trouble.

    def fail(self, token: Token, error: BaseException) -> None:
        """The node has failed; what follows is its own to say."""
        attempts = error.attempts if isinstance(error, ActionFailed) else 1
        recorded = describe(error, attempts)
        step = self.plan.steps[token.node]
        handles = self.plan.ways.out[token.node]
        match step.on_error or ("handle" if "error" in handles else "fail"):
            case "continue" if not isinstance(step.data, model.Loop):
                output, handle = None, ""
            case "handle":
                output, handle = {"error": {"type": recorded.type, "message": recorded.message}}, "error"
            case policy:
                self._note_settled(NodeSettled(self.path(token), "failed", error=recorded, attempts=attempts))
                if not getattr(error, "__notes__", ()):  # the node where it began, not the loops around it
                    error.add_note(f"node {self.path(token)}")
                if policy == "compensate" or not self.scope(token).loop:
                    raise error
                loops.round_failed(self, self.scope(token), error)
                return
        shown = showing.encoded(self, output, self.path(token))
        self._note_settled(NodeSettled(self.path(token), "failed", shown, recorded, attempts))
        self.scope(token).outputs[token.node] = token.value = output
        self.go(token, handle)

    def drop(self, tokens: Iterable[Token]) -> None:
        """Nobody wants these any more, nor the rounds of their loops."""
        for token in tokens:
            if token.id not in self.state.tokens:
                continue
            if token.stage == "looping":
                loops.drop_rounds(self, token)
            people.withdraw(self.running, token)
            if token.id in self.tasks:
                self.tasks[token.id].cancel()
            self.gone(token)
            if token.stage in ("open", "looping") or (token.stage == "joined" and not joins.others(self, token)):
                self._note_settled(NodeSettled(self.path(token), "cancelled"))

    # Looking.

    @property
    def now(self) -> int:
        return self.running.began + round(self.running.loop.now * 1e6)

    def scope(self, token: Token) -> Scope:
        return self.state.scopes[token.scope]

    def path(self, token: Token) -> str:
        return f"{self.scope(token).prefix}{token.node}"

    def _note_settled(self, event: NodeSettled) -> None:
        self.settled += 1
        self._notes += 1
        check_rest(self.running, self._notes, f"node {event.node}")
        self.running.note(event)
