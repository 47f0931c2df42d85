"""What goes over the wire: requests and answers as typed structs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from perdure.core.callbacks import Callback
from perdure.core.moments import moment
from perdure.core.reasons import rests
from perdure.core.records import Head, ShownStatus, id_of
from perdure.core.trouble import Trouble
from perdure.runtime.app import Page, Perdure
from perdure.runtime.checks import LONGEST_LABEL, MOST_TAGS
from perdure.runtime.cursors import LONGEST_PAGE

Limit = Annotated[int, Meta(ge=1, le=LONGEST_PAGE)]
Wait = Annotated[str, Meta(description="A duration, as `5s` or `PT5S`; at most 60 seconds.")]
Fields = Annotated[
    dict[str, str],
    Meta(description="Published fields, each as `field.NAME=VALUE`; a value is JSON, or a plain word."),
]
Label = Annotated[str, Meta(min_length=1, max_length=LONGEST_LABEL)]
Correlation = Annotated[Label, Meta(description="What it is about; several executions may be about the same.")]
Tags = Annotated[list[Label], Meta(max_length=MOST_TAGS)]
#: The longest name of an event.
LONGEST_NAME = 200
Status = Literal["running", "waiting", "paused", "stuck", "completed", "failed", "cancelled"]


class StartIn(Struct, frozen=True, forbid_unknown_fields=True):
    """A start: of a workflow of the workers' code (`args`) or of a published definition (`input`)."""

    workflow: str
    input: Any = None
    args: list[Any] | None = None
    version: int | None = None
    id: str | None = None
    lane: str | None = None
    callback: Callback | None = None
    correlation: Correlation | None = None
    tags: Tags = []


class EventIn(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
    payload: Any = None
    id: str | None = None


class HowToSend(Struct, frozen=True, forbid_unknown_fields=True):
    wait: Wait | None = None
    validate: Literal["now", "later"] = "later"


class HowToStart(Struct, frozen=True, forbid_unknown_fields=True):
    wait: Wait | None = None


class Accepted(Struct, frozen=True):
    """An event that is durable and will be applied exactly once."""

    id: str
    execution: str


class ExecutionOut(Struct, frozen=True, omit_defaults=True):
    """An execution in short."""

    id: str
    workflow: str
    definition: Annotated[str, Meta(description="What it runs now.")]
    status: ShownStatus
    version: int
    queue: str
    started_at: datetime
    changed_at: datetime
    state: Any = None
    result: Any = None
    parent: str | None = None
    lane: str | None = None
    mail: int = 0
    correlation: str | None = None
    tags: tuple[str, ...] = ()
    began_as: Annotated[str | None, Meta(description="What it began with, if it was migrated since.")] = None
    rests: Annotated[bool, Meta(description="Whether nothing is left to do about what has come so far.")] = False


class ExecutionsOut(Struct, frozen=True):
    executions: list[ExecutionOut]
    next: str | None = None


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    status: Status | None = None
    workflow: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    parent: str | None = None
    correlation: Label | None = None
    tag: Annotated[
        list[Label], Meta(max_length=MOST_TAGS, description="May be repeated: all of them must be there.")
    ] = []
    field: Fields = {}
    limit: Limit = 50
    cursor: str | None = None


#: What a diagram is drawn as.
Form: TypeAlias = Annotated[Literal["svg", "mermaid"], Meta(description="A picture, or a text that others draw.")]


class DiagramQuery(Struct, frozen=True, forbid_unknown_fields=True):
    form: Form = "svg"


class StateQuery(Struct, frozen=True, forbid_unknown_fields=True):
    at: str | None = None  # a version, or a time


class StateOut(Struct, frozen=True):
    """An execution as its log tells it, up to `version`; times are microseconds since 1970."""

    key: str
    version: int
    at: int
    status: str
    workflow: str
    definition: str
    input: Any
    started_at: int
    published: dict[str, Any]
    current: str
    nodes: dict[str, Any]
    actions: dict[str, Any]
    timers: dict[str, int]
    children: dict[str, str]
    events: int
    result: Any
    error: Any
    paused: Any
    cancel: Any
    stuck: Any
    base: int
    trace: str = ""  # the id of its trace


class ResultQuery(Struct, frozen=True, forbid_unknown_fields=True):
    wait: Wait | None = None


class ResultOut(Struct, frozen=True, omit_defaults=True):
    status: ShownStatus
    result: Any = None
    error: Any = None
    problem: Trouble | None = None  # of what failed or is stuck: why, and at which task


class ReasonIn(Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = ""


class PauseIn(ReasonIn, frozen=True, forbid_unknown_fields=True):
    until: datetime | None = None


class ResumeIn(ReasonIn, frozen=True, forbid_unknown_fields=True):
    at: datetime | None = None


class CancelIn(ReasonIn, frozen=True, forbid_unknown_fields=True):
    timeout: str | None = None
    now: bool = False


class RetryIn(ReasonIn, frozen=True, forbid_unknown_fields=True):
    id: str | None = None  # of the new execution, if it takes one


class ForkIn(Struct, frozen=True, forbid_unknown_fields=True):
    at: Annotated[int, Meta(ge=1)] | None = None
    edit: dict[str, Any] = {}  # by version
    id: str | None = None


class MigrateIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Which version of its published definition an execution shall go on with."""

    version: Annotated[int, Meta(ge=1)]


class StartedOut(Struct, frozen=True):
    id: str


async def shown(app: Perdure, head: Head) -> ExecutionOut:
    running = await app.running(head)
    return ExecutionOut(
        id_of(head.key),
        head.workflow,
        running,
        head.shown,
        head.version,
        head.queue,
        moment(head.started_at),
        moment(head.changed_at),
        _json(head.state),
        _json(head.result),
        None if head.parent is None else id_of(head.parent),
        head.lane,
        head.mail,
        head.correlation,
        head.tags,
        None if running == head.definition else head.definition,
        rests(head),
    )


async def page(app: Perdure, found: Page) -> ExecutionsOut:
    return ExecutionsOut([await shown(app, head) for head in found.heads], found.next)


def _json(raw: bytes | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


def fields(given: dict[str, str]) -> dict[str, str | int | float | bool | None]:
    """The values of published fields, as a query says them."""
    return {name: _scalar(text) for name, text in given.items()}


def _scalar(text: str) -> str | int | float | bool | None:
    try:
        value: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return text if isinstance(value, dict | list) else value
