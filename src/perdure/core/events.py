"""The events of a log: a closed union of small structs, numbered for ever.

A row stores the number of its type, the format of its data and the data itself; `read` turns it back into an event and
lifts old formats by an upcaster. A number never changes its meaning; a type that this code does not know is an error
that parks the execution, never a guess.

Inputs (they drive the code): Started, ActionSettled, TimerFired, EventReceived, ChildSettled, CancelRequested.
Outputs (they follow from the code and are compared on replay): TimerStarted, TimerCancelled, ActionCancelled,
ChildStarted, Marked, Published, EventRejected, StateChanged, NodeStarted, NodeSettled, Restarted, Completed, Failed,
Cancelled.
The rest is the engine's own bookkeeping: attempts, pauses, take-overs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from perdure.core.callbacks import Callback
from perdure.core.records import Row
from perdure.errors import Undecodable

NULL = Raw(b"null")


class Error(Struct, frozen=True, omit_defaults=True):
    """A recorded failure. `type` is the class name, `where` the line of user code that raised it."""

    type: str
    message: str
    where: str = ""
    details: Raw = NULL
    attempts: int = 1
    cause: Error | None = None
    kind: str = ""  # of an action's failure: transient, permanent, contention, external


class Received(Struct, frozen=True, omit_defaults=True):
    """An external event as it waits in a buffer."""

    id: str
    name: str
    payload: Raw = NULL
    by: str = ""
    roles: tuple[str, ...] = ()
    version: int = 0  # of the row that it came with
    attributes: dict[str, str | int | bool] = {}  # of the CloudEvent that it came as


class Owed(Struct, frozen=True, omit_defaults=True):
    """What compensates an action that succeeded before a checkpoint."""

    undo: str
    args: Raw
    result: Raw
    version: int  # of the row that settled the action


class Started(Struct, frozen=True, omit_defaults=True):
    workflow: str
    version: int
    input: Raw
    by: str = ""
    parent: str = ""
    parent_queue: str = ""  # where its outcome is waited for
    forked: str = ""  # key and version of the run this one was forked from
    seed: str = ""  # of its random values, where that is not its own key
    hash: str = ""  # of the definition, if it was published
    callback: Callback | None = None  # whom to tell of its end
    correlation: str = ""
    tags: tuple[str, ...] = ()
    trace: str = ""  # the `traceparent` that it was started with
    acting_as: tuple[str, ...] = ()  # all roles of whoever did it, where a credential named them


class Completed(Struct, frozen=True, omit_defaults=True):
    result: Raw = NULL
    note: str = ""


class Failed(Struct, frozen=True, omit_defaults=True):
    error: Error
    since: int = 0  # the last version that a retry keeps


class CancelRequested(Struct, frozen=True, omit_defaults=True):
    reason: str = ""
    by: str = ""
    deadline: int = 0  # after this the clean-up is over
    now: bool = False  # no clean-up at all
    acting_as: tuple[str, ...] = ()  # all roles of whoever did it, where a credential named them


class Cancelled(Struct, frozen=True, omit_defaults=True):
    reason: str = ""
    forced: bool = False  # without, or before the end of, its clean-up
    since: int = 0  # the last version that a retry keeps


class Paused(Struct, frozen=True, omit_defaults=True):
    until: int = 0
    reason: str = ""
    by: str = ""
    acting_as: tuple[str, ...] = ()  # all roles of whoever did it, where a credential named them


class Resumed(Struct, frozen=True, omit_defaults=True):
    reason: str = ""
    by: str = ""
    acting_as: tuple[str, ...] = ()  # all roles of whoever did it, where a credential named them


class TakenOver(Struct, frozen=True, omit_defaults=True):
    holder: str
    lapses: int = 0


class Stuck(Struct, frozen=True, omit_defaults=True):
    cause: str  # nondeterminism, never-wakes, undecodable, lapses, limit, definition, sealed, attempts, refused, engine
    reason: str
    code: str = ""  # fingerprint of the workflow's code that was at hand
    lapses: int = 0  # of the holds before, in a row
    tries: int = 1  # how often it has got stuck since it began, or since its last restart
    place: str = ""  # of the action whose attempts are spent, if it is that: `/actions/3/charge`


class Redriven(Struct, frozen=True, omit_defaults=True):
    reason: str = ""
    by: str = ""
    asked: str = ""  # the id of the request, so that the same request is known when it comes again
    acting_as: tuple[str, ...] = ()  # all roles of whoever did it, where a credential named them


class Restarted(Struct, frozen=True, omit_defaults=True):
    """A checkpoint: replay begins here, the log stays whole."""

    input: Raw
    ref: int  # command numbers go on, so keys stay unique
    draws: int = 0
    began: int = 0  # when the execution started: the zero of its clock
    workflow: str = ""
    version: int = 0
    buffered: list[Received] = []
    patches: list[str] = []
    published: Raw = NULL
    cancel: CancelRequested | None = None
    seed: str = ""
    hash: str = ""  # of the definition, if it was published
    undos: list[Owed] = []
    by: str = ""  # who asked for another version, if somebody did
    callback: Callback | None = None  # as when it started
    lasting: list[int] = []  # children that are still open
    correlation: str = ""  # as when it started: children inherit it
    trace: str = ""  # as when it started
    acting_as: tuple[str, ...] = ()  # all roles of whoever did it, where a credential named them


class ActionScheduled(Struct, frozen=True, omit_defaults=True):
    """An action that an execution of its own runs, perhaps on another worker."""

    ref: int
    name: str
    args: Raw
    queue: str = ""


class ActionStarted(Struct, frozen=True, omit_defaults=True):
    """Written before an at-most-once action runs, or an external one is given out."""

    ref: int
    name: str
    args: Raw
    worker: str = ""


class ActionProgressed(Struct, frozen=True, omit_defaults=True):
    """The details of a heartbeat; the next attempt can read them."""

    ref: int
    attempt: int
    details: Raw


class ActionAttempted(Struct, frozen=True, omit_defaults=True):
    """A try that failed and will be repeated at `due`; or none, put off because the circuit of the action is open.

    With `spent` it is repeated when the execution, which is stuck from then on, is redriven: with all attempts anew.
    """

    ref: int
    name: str
    args: Raw
    attempt: int
    error: Error
    due: int
    began: int = 0
    free: int = 0  # of the tries since attempts were spent, if ever, those that the retry policy does not count
    put_off: int = 0  # how often in a row it was put off
    worker: str = ""  # that made the try
    spent: bool = False  # the retry policy allows no more, and wants a person to look


class ActionSettled(Struct, frozen=True, omit_defaults=True):
    """The one outcome of an action; for a local one also its schedule."""

    ref: int
    name: str
    args: Raw
    result: Raw = NULL
    error: Error | None = None
    attempts: int = 1
    began: int = 0
    worker: str = ""  # that made the last try; nobody, if there was none


class ActionCancelled(Struct, frozen=True, omit_defaults=True):
    ref: int
    name: str
    args: Raw


class TimerStarted(Struct, frozen=True, omit_defaults=True):
    ref: int
    due: int
    where: str = ""


class TimerFired(Struct, frozen=True, omit_defaults=True):
    ref: int
    due: int


class TimerCancelled(Struct, frozen=True, omit_defaults=True):
    ref: int


class EventReceived(Struct, frozen=True, omit_defaults=True):
    name: str
    payload: Raw = NULL
    id: str = ""
    by: str = ""
    source: str = ""
    roles: tuple[str, ...] = ()  # of who sent it, as machines and tasks judge them
    attributes: dict[str, str | int | bool] = {}  # of the CloudEvent that it came as
    trace: str = ""  # the `traceparent` of who sent it
    acting_as: tuple[str, ...] = ()  # all roles of whoever did it, where a credential named them


class EventRejected(Struct, frozen=True, omit_defaults=True):
    """An event that came but does not fit: not its declared type, or not the state that a machine is in."""

    id: str
    name: str
    reason: str


class StateChanged(Struct, frozen=True, omit_defaults=True):
    """A machine has left one state for another; nothing was left where both are the same and `inner` is set."""

    from_state: str
    to_state: str
    event: str = ""  # its name
    id: str = ""  # of the event, if it came from outside
    by: str = ""
    inner: bool = False


class NodeStarted(Struct, frozen=True, omit_defaults=True):
    """A node of a graph is open. `node` is its id, in a loop with the round before it: `each[3]/pack`."""

    node: str
    input: Raw = NULL


class NodeSettled(Struct, frozen=True, omit_defaults=True):
    node: str
    status: str = "completed"  # or failed, skipped, cancelled
    output: Raw = NULL
    error: Error | None = None
    attempts: int = 1


class ChildStarted(Struct, frozen=True, omit_defaults=True):
    ref: int
    id: str
    workflow: str
    version: int
    input: Raw
    queue: str = ""  # other than that of its parent
    hash: str = ""  # of its definition, if it was published


class ChildSettled(Struct, frozen=True, omit_defaults=True):
    ref: int
    id: str
    result: Raw = NULL
    error: Error | None = None
    status: str = "completed"
    by: str = ""  # who did it, if it was a task for a person


class Marked(Struct, frozen=True, omit_defaults=True):
    """A value computed once (`kind` record) or a patch taken (`kind` patch)."""

    ref: int
    kind: str
    name: str = ""
    value: Raw = NULL


class Published(Struct, frozen=True, omit_defaults=True):
    state: Raw


Event: TypeAlias = (
    Started
    | Completed
    | Failed
    | CancelRequested
    | Cancelled
    | Paused
    | Resumed
    | TakenOver
    | Stuck
    | Redriven
    | Restarted
    | ActionScheduled
    | ActionStarted
    | ActionProgressed
    | ActionAttempted
    | ActionSettled
    | ActionCancelled
    | TimerStarted
    | TimerFired
    | TimerCancelled
    | EventReceived
    | EventRejected
    | StateChanged
    | NodeStarted
    | NodeSettled
    | ChildStarted
    | ChildSettled
    | Marked
    | Published
)

NUMBERS: dict[type[Any], int] = {
    Started: 1,
    Completed: 2,
    Failed: 3,
    CancelRequested: 4,
    Cancelled: 5,
    Paused: 6,
    Resumed: 7,
    TakenOver: 8,
    Stuck: 9,
    Redriven: 10,
    Restarted: 11,
    ActionScheduled: 12,
    ActionStarted: 13,
    ActionAttempted: 14,
    ActionSettled: 15,
    ActionCancelled: 16,
    ActionProgressed: 17,
    TimerStarted: 18,
    TimerFired: 19,
    TimerCancelled: 20,
    EventReceived: 21,
    EventRejected: 22,
    StateChanged: 23,
    ChildStarted: 24,
    ChildSettled: 25,
    Marked: 26,
    Published: 27,
    NodeStarted: 28,
    NodeSettled: 29,
}
TYPES = {number: kind for kind, number in NUMBERS.items()}

#: Lifts data of an old format, by type number and format: `(number, format) -> callable(data) -> data`.
#: A format rises when the meaning of a field changes; adding a field with a default needs no new one.
UPCASTERS: dict[tuple[int, int], Callable[[bytes], bytes]] = {}
FORMATS: dict[int, int] = {}  # type number -> current format, where it is not 1

#: Types that mean an execution got somewhere: a hold that saw one of them did not lapse in vain.
PROGRESS = frozenset({NUMBERS[kind] for kind in (ActionSettled, TimerFired, ChildSettled, Redriven)})

_codes = {kind: number + 1000 * (FORMATS.get(number, 1) - 1) for kind, number in NUMBERS.items()}
_decoders = {number: msgspec.json.Decoder(kind).decode for number, kind in TYPES.items()}
_encode = msgspec.json.Encoder().encode


class _Writer(Struct, frozen=True, omit_defaults=True):
    worker: str = ""


_read_writer = msgspec.json.Decoder(_Writer).decode


def write(event: Event) -> tuple[int, bytes]:
    """The type number and the data of an event."""
    return _codes[type(event)], _encode(event)


def row(event: Event, version: int, at: int, fence: int = 0, message_id: str | None = None, worker: str = "") -> Row:
    """An event as it is stored; beside its own fields the data says which worker wrote it, if one did.

    Who asked for it, or who tried an action, are fields of those events, and a field `worker` of theirs goes first.
    """
    data = _encode(event)
    if worker and not getattr(event, "worker", ""):
        data = b"%s%s%s}" % (data[:-1], b"," if len(data) > 2 else b"", _encode(_Writer(worker))[1:-1])
    return Row(version, _codes[type(event)], data, at, fence, message_id)


def writer(row: Row) -> str:
    """The worker that wrote a row, as the row says it; empty for what was written by none, as a start."""
    return _read_writer(row.data).worker


def read(row: Row) -> Event:
    """The event of a row, or Undecodable with the place."""
    number, format = row.type % 1000, row.type // 1000 + 1
    decode = _decoders.get(number)
    if decode is None or format > FORMATS.get(number, 1):
        raise Undecodable(
            f"version {row.version} of the log has event type {number} in format {format}, which this code does not"
            " know: it was written by a newer release; deploy that release, then retry the execution"
        )
    data = row.data
    while format < FORMATS.get(number, 1):
        data = UPCASTERS[number, format](data)
        format += 1
    try:
        event: Event = decode(data)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"version {row.version} of the log cannot be decoded: {error}") from error
    return event
