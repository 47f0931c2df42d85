"""How events and other letters get into mailboxes.

Rules kept here: an event that the workflow does not declare, or whose payload does not fit its declaration, is refused
before anything is written; a letter that was sent before is a duplicate, unless it said something else; every other
answer of the store is an error that says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw

from perdure.core import events as ev, letters as mail
from perdure.core.codec import encode
from perdure.core.records import Mail
from perdure.errors import EventConflict, EventRefused, ExecutionEnded, ExecutionNotFound, InvalidValue
from perdure.flows.machine import Machine
from perdure.flows.workflow import Workflow
from perdure.ports import Store
from perdure.runtime.checks import checked_size
from perdure.runtime.workflows import Workflows
from perdure.runtime.writing import Writes


class Sends:
    """`most` is the size of the longest payload, in bytes."""

    def __init__(self, writes: Writes, workflows: Workflows, store: Store, most: int) -> None:
        self._writes = writes
        self._workflows = workflows
        self._store = store
        self._most = most

    async def payload(self, key: str, name: str, payload: Any, by: str, roles: Sequence[str]) -> Raw:
        """Checked against the workflow's declaration, where it declares its events."""
        raw = Raw(encode(payload))
        workflows = self._workflows
        definition = await workflows.definition(key)
        try:
            _check_payload(await workflows.declared(key, definition), key, name, raw, by, roles)
        except (InvalidValue, EventRefused):
            if (current := await workflows.current(key, definition)) == definition:
                raise
            workflows.remember(key, current)
            _check_payload(await workflows.declared(key, current), key, name, raw, by, roles)
        return checked_size(raw, self._most, f"the payload of {name}")

    async def judge(self, key: str, name: str, by: str, roles: Sequence[str]) -> None:
        """Refuse what a machine that rests in its state does not take. One that is at work may be elsewhere soon."""
        head = await self._store.head(key)
        if head is None or head.holder is not None or head.mail or head.status != "open" or not head.state:
            return
        found = await self._workflows.declared(key, await self._workflows.current(key, head.definition))
        state = msgspec.json.decode(head.state).get("state")
        if isinstance(found, Machine) and isinstance(state, str) and (reason := found.refuses(state, name, by, roles)):
            raise EventRefused(f"{key} does not take {name}: {reason}", key)

    async def post(
        self, key: str, id: str, letter: mail.Letter, sha: str = "", connection: Any = None
    ) -> Literal["accepted", "duplicate"]:
        """Put a letter into a mailbox, or say why that cannot be."""
        sealed = Mail(key, id, mail.seal(letter), sha)
        if connection is None:
            sent = await self._writes.sends.put(sealed)
        else:
            [sent] = await self._writes.joining().send_in(connection, [sealed], 0)
        answer = sent.answer
        if sent.version and isinstance(letter, mail.EventLetter):
            answer = await self._compare(key, sent.version, letter)
        match answer:
            case "conflict":
                raise EventConflict(f"{key}: event {id!r} was sent before with another name or payload", key)
            case "ended":
                raise ExecutionEnded(f"{key} has ended and takes no more events; `perdure show` tells how", key)
            case "missing":
                raise ExecutionNotFound(f"there is no execution {key}", key)
            case "accepted" | "duplicate":
                return answer

    async def _compare(self, key: str, version: int, letter: mail.EventLetter) -> Literal["duplicate", "conflict"]:
        """Whether a duplicate says the same as the event in the log."""
        [row] = await self._store.read(key, version - 1, version)
        there = ev.read(row)
        if not isinstance(there, ev.EventReceived):
            return "conflict"
        same = (there.name, bytes(there.payload)) == (letter.name, bytes(letter.payload))
        return "duplicate" if same else "conflict"


def _check_payload(
    declared: Workflow[..., Any] | None, key: str, name: str, payload: Raw, by: str, roles: Sequence[str]
) -> None:
    if declared is not None and declared.events:
        if name not in declared.events:
            names = ", ".join(declared.events)
            raise InvalidValue(f"{declared.definition} takes no event {name!r}; it takes: {names}")
        declared.events[name].decode(payload)
    if isinstance(declared, Machine) and (reason := declared.refuses("", name, by, roles)):
        raise EventRefused(f"{key} does not take {name}: {reason}", key)
