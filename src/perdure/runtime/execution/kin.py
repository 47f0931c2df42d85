"""The executions that belong to one: its parent, its children, and its actions that run apart.

An action that runs apart is an execution of its own, a child in all but name. Rules kept here: whatever is started or
told goes out with the commit of what caused it; a letter's id is the same however often it is written, so it is folded
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Raw, structs

from perdure.core import events as ev, letters as mail, summary, tracing
from perdure.core.callbacks import Ended
from perdure.core.codec import encode
from perdure.core.commands import Asked
from perdure.core.records import ACTION, PERSON, End, Held, Hint, Mail, Start, id_of, is_external, key_of, tenant_of
from perdure.core.replay import Replay
from perdure.errors import ExpressionError
from perdure.flows.apart import Apart, args_of, order
from perdure.flows.listening import Listen, topics
from perdure.flows.task import first_shown, read_order
from perdure.flows.workflow import Workflow
from perdure.runtime.attempts.attempt import key_of_call
from perdure.runtime.execution.draft import Draft
from perdure.runtime.execution.notes import Notes
from perdure.runtime.web.callbacks import call_back

_OUTCOME = "/action:"  # how the id of the outcome of an action that ran apart begins


class Kin:
    __slots__ = ("_draft", "_key", "_notes", "_parent", "_parent_ref", "_queue")

    def __init__(self, held: Held, notes: Notes, draft: Draft) -> None:
        self._key = held.key
        self._queue = held.queue
        self._parent, self._parent_ref = held.parent, held.parent_ref
        self._notes = notes
        self._draft = draft

    def queue_of(self, key: str, replay: Replay | None) -> str:
        """Where a letter is expected; a wrong guess costs a detour."""
        if key == self._parent:
            return self._notes.parent_queue or self._queue
        ref = key.removeprefix(f"{self._key}.")
        child = replay.children.get(int(ref)) if replay is not None and ref.isdecimal() else None
        return child.spec.queue or self._queue if child is not None else self._draft.sent.get(key, self._queue)

    def hints(self, letters: Iterable[Mail], replay: Replay | None) -> list[Hint]:
        """For whoever serves those to whom the letters go; who does an external task asks for its mail himself."""
        queues = ((letter.key, self.queue_of(letter.key, replay)) for letter in letters)
        return [Hint(key, queue) for key, queue in queues if not is_external(queue)]

    @property
    def trace(self) -> tracing.Trace:
        """What all of them belong to."""
        return tracing.of_execution(self._notes.trace, self._key, self._notes.began)

    # The parent.

    @property
    def is_child(self) -> bool:
        return self._parent is not None

    def tell_parent(self, replay: Replay, workflow: Workflow[..., Any]) -> None:
        """The execution that waits for this one is told of its end, once."""
        if self._parent is not None and not any(letter.key == self._parent for letter in self._draft.mail):
            self._draft.mail.append(self._outcome_letter(self._parent, replay, workflow))

    def without_outcome(self, letters: Sequence[Mail]) -> list[Mail]:
        """All but what tells the parent."""
        return [letter for letter in letters if letter.key != self._parent]

    def _outcome_letter(self, parent: str, replay: Replay, workflow: Workflow[..., Any]) -> Mail:
        ref = self._parent_ref or 0
        status, _, error = summary.ended(replay.outcome)
        result = summary.result_of(replay.outcome)
        if not isinstance(workflow, Apart):
            by = str(replay.published.get("completed_by", "")) if workflow.name == PERSON else ""
            letter = mail.ChildLetter(ref, id_of(self._key), status, result, error, by)
            return Mail(parent, f"/child:{ref}", mail.seal(letter))
        name, args = workflow.action.name, args_of(replay.input)
        tries = max(replay.tries, 1)
        done = mail.ActionLetter(ref, name, args, result, error, tries, replay.began, replay.worker)
        return Mail(parent, f"{_OUTCOME}{ref}", mail.seal(done))

    def callback(self, workflow: str, end: End, version: int, at: int) -> list[Start]:
        """The execution that tells others of this end, if they want to hear of it.

        It belongs to the commit of the end alone and not to the draft: an end that is refused tells nobody.
        """
        wanted = self._notes.callback
        if wanted is None or end.status not in wanted.events:
            return []
        ended = Ended(self._key, workflow, end.status, at, self._notes.correlation)
        key = f"{self._key}/callback"
        args = Raw(call_back.signature.encode((wanted, ended), {}))
        input = order(call_back, args, key, self._key, version)
        trace = str(self.trace)
        first = ev.Started(ACTION + call_back.name, call_back.version, input, parent=self._key, trace=trace)
        return [summary.begin(key, first, self._queue, at)]

    # Children.

    def begin_child(self, started: ev.ChildStarted, queue: str, at: int, listens: Sequence[Listen] = ()) -> None:
        first = ev.Started(
            started.workflow,
            started.version,
            started.input,
            parent=self._key,
            parent_queue=self._queue,
            hash=started.hash,
            correlation=self._notes.correlation,
            trace=str(self.trace),
        )
        key = key_of(tenant_of(self._key), started.id)
        start = summary.begin(key, first, queue, at, started.ref)
        if started.workflow == PERSON:  # people look for it as soon as it is there
            start = structs.replace(start, state=encode(first_shown(read_order(started.input), at)))
        if listens:
            # A child has to begin: if an expression fails on its input, it hears of nothing.
            with suppress(ExpressionError):
                start = structs.replace(start, topics=topics(start.definition, listens, started.input))
        self._draft.children.append(start)

    def cancel_children(self, refs: Iterable[int]) -> None:
        for ref in refs:
            key = key_of(tenant_of(self._key), f"{id_of(self._key)}.{ref}")
            letter = mail.CancelLetter("its parent no longer waits for it", self._key)
            self._draft.mail.append(Mail(key, "/cancel:parent", mail.seal(letter)))

    # Actions that run apart.

    def send_apart(self, asked: Asked, queue: str, version: int, at: int) -> None:
        """Whoever serves the queue runs the action, and its outcome comes back as mail."""
        action = asked.spec
        input = order(action, asked.args, key_of_call(self._key, asked.ref, action.name), self._key, version)
        first = ev.Started(
            ACTION + action.name,
            action.version,
            input,
            parent=self._key,
            parent_queue=self._queue,
            trace=str(self.trace),
        )
        self._draft.children.append(summary.begin(self._apart_key(asked.ref), first, queue, at, asked.ref))

    def recall(self, refs: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        for ref in refs:
            letter = mail.CancelLetter("its workflow no longer wants it", self._key, now=True)
            self._post(ref, "/cancel:parent", letter)
            self._notes.apart.pop(ref, None)

    def recall_all(self) -> None:
        if self._notes.apart:
            self.recall(sorted(self._notes.apart))

    def tell_apart(self, what: str, version: int, letter: mail.Letter) -> None:
        """Pause and resume reach also what runs apart."""
        for ref in sorted(self._notes.apart):
            self._post(ref, f"/{what}:{version}", letter)

    def _post(self, ref: int, id: str, letter: mail.Letter) -> None:
        key = self._apart_key(ref)
        self._draft.mail.append(Mail(key, id, mail.seal(letter)))
        self._draft.sent[key] = self._notes.apart[ref]

    def _apart_key(self, ref: int) -> str:
        return f"{self._key}.{ref}"
