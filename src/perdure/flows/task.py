"""A task for a person, as an execution of the engine's own: `person:`. Its log is its history.

Whoever does something to a task sends it an event, and the task itself judges it, one after the other. Rules kept here:

- Every event gets a verdict in the log: a change of state with the id of the event, or a rejection with the reason.
- Only the people of a task may claim it, and of several one. Only who has claimed it may complete or release it;
  while nobody has, any of its people may complete it.
- What is completed fits the form. The form, the data and the name never change; the people may.
- What lists of tasks are searched by is published; who may do it is published as flags, `user:ann` and `role:heads`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.core.codec import codec_for, digest, encode
from perdure.core.durations import show
from perdure.core.events import Received, StateChanged
from perdure.core.records import PERSON
from perdure.core.replay import Replay
from perdure.core.signature import Signature
from perdure.errors import TaskExpired
from perdure.flows.registry import registry
from perdure.flows.schema import Schema
from perdure.flows.workflow import Workflow, finish

VERSION = 1
#: The flag of a task that is for everybody.
ANYONE = "anyone"


class People(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Who may do a task: these users, and whoever has one of these roles. Nobody named means anybody."""

    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def include(self, user: str, roles: Sequence[str]) -> bool:
        if not self.users and not self.roles:
            return True
        return bool(user) and (user in self.users or not set(self.roles).isdisjoint(roles))

    def and_also(self, others: People) -> People:
        """Both of them; where one is anybody, anybody."""
        if not (self.users or self.roles) or not (others.users or others.roles):
            return People()
        users, roles = (*self.users, *others.users), (*self.roles, *others.roles)
        return People(tuple(dict.fromkeys(users)), tuple(dict.fromkeys(roles)))

    def __str__(self) -> str:
        return " or ".join([*self.users, *(f"role {role}" for role in self.roles)]) or ANYONE


class Escalation(Struct, frozen=True):
    """After so many microseconds these people may do it, too."""

    after: int
    to: People


class Order(Struct, frozen=True, omit_defaults=True):
    """What is to be done: the input of a task."""

    name: str
    title: str = ""
    form: dict[str, Any] | bool | None = None
    to: People = People()
    data: Any = None
    due: int | None = None  # microseconds after its start
    escalations: tuple[Escalation, ...] = ()
    priority: int = 0
    expires: bool = True  # by itself when it is due; or else who asks for it sees to that

    @property
    def form_version(self) -> str:
        return "" if self.form is None else digest("form", encode(self.form))[:16]


read_order = msgspec.json.Decoder(Order).decode


def user_flag(user: str) -> str:
    return f"user:{user}"


def role_flag(role: str) -> str:
    return f"role:{role}"


def _flags(people: People) -> dict[str, bool]:
    flags = {**{user_flag(one): True for one in people.users}, **{role_flag(one): True for one in people.roles}}
    return flags or {ANYONE: True}


def first_shown(order: Order, began: int) -> dict[str, Any]:
    """What a task shows from its first moment on, also before a worker has seen it."""
    return {
        "state": "open",
        "task": order.name,
        "title": order.title,
        "priority": order.priority,
        "due": None if order.due is None else began + order.due,
        "form": order.form_version,
        "completed_by": "",
        **_shown_people(order.to),
        "claimed_by": "",
        **_flags(order.to),
    }


def _shown_people(people: People) -> dict[str, Any]:
    return {"users": list(people.users), "roles": list(people.roles)}


def form_of(order: Order) -> Schema | None:
    """The form, compiled; texts that are to be dates must be some, or the value could not be read by the workflow."""
    return None if order.form is None else Schema(order.form, formats=True)


def _as_it_is(payload: Raw) -> Raw:
    return payload


_NOTHING: Mapping[str, Any] = {}
_READ = {
    **dict.fromkeys(("claim", "release", "complete"), _as_it_is),
    "assign": codec_for(People).decode,
}


class Desk:
    """Where a task lies: who has it, and what becomes of what people send."""

    def __init__(self, running: Replay, order: Order) -> None:
        self.running = running
        self.order = order
        self.people = order.to
        self.claimed_by = ""
        self._form = form_of(order)
        self._state = ""
        self._flags: dict[str, bool] = {}
        self._move("open", {}, first_shown(order, running.began))

    async def completed(self) -> Raw:
        """What the person has filled in, who may do so."""
        while True:
            received, sent = await self.running.receive(_READ, {})
            if reason := self._refuses(received, sent):
                self.running.reject(received, reason)
                continue
            cause = {"event": received.name, "id": received.id, "by": received.by}
            match received.name:
                case "claim":
                    self.claimed_by = received.by
                    self._move("claimed", cause)
                case "release":
                    self.claimed_by = ""
                    self._move("open", cause)
                case "assign":
                    self.people, self.claimed_by = sent, ""
                    self._move("open", cause)
                case _:
                    self._move("completed", cause, {"completed_by": received.by})
                    return Raw(bytes(sent))

    def escalate(self, to: People) -> None:
        """More people may do it, and whoever had claimed it has it no more for himself."""
        self.people, self.claimed_by = self.people.and_also(to), ""
        self._move("open", {"event": "escalate"})

    def expire(self) -> TaskExpired:
        self._move("expired", {"event": "due"})
        return TaskExpired(f"nobody did {self.order.name} within {show(self.order.due or 0)}")

    def cancel(self) -> None:
        asked = self.running.cancel
        self._move("cancelled", {"event": "cancel", "by": asked.by if asked is not None else ""})

    def _refuses(self, received: Received, sent: Any) -> str:
        """Why it does not take this, or nothing."""
        by, mine = received.by, self.claimed_by != "" and self.claimed_by == received.by
        if received.name == "assign":
            return ""
        if self.claimed_by and not mine:
            return f"{self.claimed_by} has claimed it"
        if received.name == "release":
            return "" if self.claimed_by else "nobody has claimed it"
        if not mine and not self.people.include(by, received.roles):
            return f"it is for {self.people}, not for {by or 'somebody without a name'}"
        if received.name == "claim":
            return "" if by else "it does not say who claims it (by=…)"
        wrong = self._form.check(msgspec.json.decode(sent)) if self._form is not None else []
        return f"it does not fit the form: {'; '.join(wrong)}" if wrong else ""

    def _move(self, state: str, cause: Mapping[str, str], shown: Mapping[str, Any] = _NOTHING) -> None:
        """A verdict, or what the clock did, for the log and for those who look."""
        self.running.note(StateChanged(self._state, state, **cause, inner=state == self._state))
        self._state = state
        # What was published cannot be taken back, but it can be made false.
        self._flags = {**dict.fromkeys(self._flags, False), **_flags(self.people)}
        people = _shown_people(self.people)
        self.running.publish({**shown, **people, "claimed_by": self.claimed_by, **self._flags})


async def _task(running: Replay, order: Order) -> Raw:
    """From its start to its end: who may do it grows with time, and at some time it is over."""
    desk = Desk(running, order)
    try:
        for step in order.escalations:
            try:
                async with asyncio.timeout_at(step.after / 1e6):
                    return await desk.completed()
            except TimeoutError:
                desk.escalate(step.to)
        try:
            async with asyncio.timeout_at(order.due / 1e6 if order.due is not None and order.expires else None):
                return await desk.completed()
        except TimeoutError:
            raise desk.expire() from None
    except asyncio.CancelledError:
        if not running.loop.closed:
            desk.cancel()
        raise


class Tasks(Workflow[..., Any]):
    """The definition of all tasks. Who may assign a task is not its matter, so nobody can just send that event."""

    def __init__(self) -> None:
        self.fn = _task
        self.name = PERSON
        self.version = VERSION
        self.queue = "default"
        self.description = "A task for a person."
        self.signature = Signature(_task)
        self.events = dict.fromkeys(("claim", "release", "complete"), codec_for(Any))
        self._checked = True

    def begin(self, running: Replay, input: Raw) -> Coroutine[Any, Any, Raw]:
        return self._finished(running, read_order(input))

    async def _finished(self, running: Replay, order: Order) -> Raw:
        try:
            return await _task(running, order)
        except (Exception, asyncio.CancelledError) as error:
            await finish(running, error)
            raise


registry.add_inner(Tasks())
