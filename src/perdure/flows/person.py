"""`await person("approve", form=Approval, assign=role("heads"))`: a workflow asks a person, and gets what is filled in.

The task is a child of the execution, so it is cancelled when nobody waits for it any more, and its end is in the log.
Of what the code says about a task only its name counts for a replay: the title, the form or the people may change in
the code while older tasks are open. Those keep what they began with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, overload

import msgspec
from msgspec import Raw, Struct

from perdure.core.codec import Codec, codec_for, encode
from perdure.core.durations import Duration, micros
from perdure.core.events import Error
from perdure.core.failures import child_failed
from perdure.core.records import PERSON
from perdure.errors import InvalidValue, TaskExpired, UsageError
from perdure.flows.current import inside
from perdure.flows.task import VERSION, Escalation, Order, People, form_of, read_order

T = TypeVar("T")
D = TypeVar("D")
#: The longest name of a task, a user or a role, and how many people may be named.
LONGEST, MOST = 200, 100


class Role(Struct, frozen=True):
    """Whoever has this role. The roles of a person come with what that person sends."""

    name: str


def role(name: str) -> Role:
    """Whoever has this role: `assign=role("managers")`."""
    return Role(name)


Assigned: TypeAlias = str | Role | Sequence[str | Role]


class Escalate(Struct, frozen=True):
    """After this long these people may do the task, too: `Escalate("4h", to=role("heads"))`."""

    after: Duration
    to: Assigned


class _Needed:
    """No default was given."""


_NEEDED = _Needed()


class Asked:
    """What a replay needs to know of one task: how its outcome is read."""

    name = PERSON
    queue = ""
    hash: Literal[""] = ""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec

    def decode_result(self, result: Raw, /) -> Any:
        return self._codec.decode(result)

    def failure(self, error: Error, /) -> BaseException:
        if error.type == TaskExpired.__name__:
            return TaskExpired(error.message)
        return child_failed(error, PERSON)

    def same_args(self, recorded: Raw, asked: Raw, /) -> bool:
        return read_order(recorded).name == read_order(asked).name


@overload
async def person(
    name: str,
    *,
    form: type[T],
    title: str = ...,
    assign: Assigned = ...,
    data: Any = ...,
    due: Duration | None = ...,
    escalate: Sequence[Escalate] = ...,
    priority: int = ...,
) -> T: ...
@overload
async def person(
    name: str,
    *,
    form: type[T],
    default: D,
    title: str = ...,
    assign: Assigned = ...,
    data: Any = ...,
    due: Duration | None = ...,
    escalate: Sequence[Escalate] = ...,
    priority: int = ...,
) -> T | D: ...
@overload
async def person(
    name: str,
    *,
    form: Mapping[str, Any] | None = ...,
    default: Any = ...,
    title: str = ...,
    assign: Assigned = ...,
    data: Any = ...,
    due: Duration | None = ...,
    escalate: Sequence[Escalate] = ...,
    priority: int = ...,
) -> Any: ...
async def person(
    name: str,
    *,
    form: Any = None,
    default: Any = _NEEDED,
    title: str = "",
    assign: Assigned = (),
    data: Any = None,
    due: Duration | None = None,
    escalate: Sequence[Escalate] = (),
    priority: int = 0,
) -> Any:
    """Ask a person, and wait for what is filled in.

    `form` is a type, or a JSON Schema. `assign` names a user, a role, or several of both; nobody means anybody. When it
    is not done within `due` the result is `default`, or else TaskExpired is raised, which is a TimeoutError.
    """
    running = inside("person()")
    typed = not (form is None or isinstance(form, Mapping))
    codec: Codec[Any] = codec_for(form if typed else Any)
    steps = tuple(sorted((_escalation(one) for one in escalate), key=lambda one: one.after))
    order = Order(
        _named(name, "name of a task"),
        title,
        codec.schema() if typed else None if form is None else dict(form),
        people(assign),
        msgspec.json.decode(encode(data)),
        None if due is None else micros(due),
        steps,
        priority,
    )
    if order.due is not None and steps and steps[-1].after >= order.due:
        raise UsageError(f"task {name!r} escalates when it is due already: give a longer `due`")
    form_of(order)
    try:
        return await running.child(Asked(codec), VERSION, Raw(encode(order)))
    except TaskExpired:
        if isinstance(default, _Needed):
            raise
        return default


def people(assign: Assigned) -> People:
    """Users and roles, as a task keeps them."""
    several = [assign] if isinstance(assign, str | Role) else list(assign)
    if len(several) > MOST:
        raise UsageError(f"a task is for at most {MOST} users and roles: give them a role")
    users = [_named(one, "name of a user") for one in several if isinstance(one, str)]
    roles = [_named(one.name, "name of a role") for one in several if isinstance(one, Role)]
    return People(tuple(dict.fromkeys(users)), tuple(dict.fromkeys(roles)))


def _escalation(one: Escalate) -> Escalation:
    return Escalation(micros(one.after), people(one.to))


def _named(text: str, what: str) -> str:
    if not (0 < len(text) <= LONGEST and text.isprintable() and text == text.strip()):
        raise InvalidValue(f"{text[:80]!r} cannot be the {what}: it has 1 to {LONGEST} characters that can be shown")
    return text
