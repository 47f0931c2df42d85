"""What a machine is made of: states, transitions, actions. The same pieces in Python and, as names and texts, in JSON.

Wherever a function of Python may stand, an expression may stand as well: a text `${ … }` that sees `.data`, `.event`
(name, payload, by, roles) and, where there is one, `.result`. A definition with expressions alone is data and can be
published; functions live in the process that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from perdure.core.durations import Duration
from perdure.core.retry import Retry
from perdure.flows.action import Action

#: A condition: a function of (data, event), or an expression.
When: TypeAlias = Callable[[Any, Any], bool] | str
#: New data: a function of (data, event), after an action of (data, result), that changes the data or gives new data;
#: or fields with values, which may be expressions.
Set: TypeAlias = Callable[[Any, Any], Any] | Mapping[str, Any]
#: Arguments of an action: a function of (data, event) that gives them as a tuple, list or dict; or the values
#: themselves, by name or in their order, which may be expressions.
Args: TypeAlias = Callable[[Any, Any], Any] | Mapping[str, Any] | Sequence[Any]


class Event(Struct, frozen=True):
    """What functions of a machine see of the event that they are about."""

    name: str
    payload: Any = None
    id: str = ""  # empty where it came from inside: a timer, a failure
    by: str = ""
    roles: tuple[str, ...] = ()


class Do(Struct, frozen=True):
    """An action of a transition or a state: `Do(charge, after=["reserve"])`.

    It runs at once, beside the others, unless it comes `after` some of them; where one of those failed it does not
    run. Without `args` it gets the data of the machine, if it needs an argument. `set` changes the data by its result.
    The failure of an `optional` one does not matter.
    """

    action: Action[..., Any] | str
    args: Any = None  # Args
    name: str = ""  # the action's own unless another one is given
    after: Sequence[str] = ()
    set: Any = None  # Set
    retries: int | Retry | None = None
    timeout: Duration | None = None
    optional: bool = False


class Ask(Struct, frozen=True):
    """A task for a person, open as long as a state lasts: `Ask("Approve it", form=Approval, roles=["managers"])`.

    `task` is its title, `assign` a user, `data` what it is about: values, which may be expressions on `.data`, or
    functions of the data. `form` is a type, or a JSON Schema. When it is `due` is told to people; what happens then is
    a matter of `after`.
    """

    task: Any
    form: Any = None
    assign: Any = ""
    roles: Sequence[str] = ()
    data: Any = None
    due: Duration | None = None
    priority: int = 0


class To(Struct, frozen=True):
    """A transition. Without a target it leaves no state: its actions run, and the data may change."""

    target: str = ""
    when: Any = None  # When
    do: Sequence[Do | Action[..., Any] | str] = ()
    set: Any = None  # Set
    roles: Sequence[str] = ()  # one of them is needed to send the event; none: anybody may


#: Where several transitions belong to one event, the first one whose condition holds is taken.
Tos: TypeAlias = To | str | Sequence[To | str]


class State(Struct, frozen=True, kw_only=True):
    """A state, with states inside it or without."""

    on: Mapping[str, Tos] = {}
    entry: Sequence[Do | Action[..., Any] | str] = ()
    exit: Sequence[Do | Action[..., Any] | str] = ()
    after: Mapping[str, Tos] = {}  # a duration, and the event or the transition that follows if the state lasts so long
    always: Tos = ()  # taken as soon as its condition holds, without an event
    done: Tos = ()  # taken when a final state inside is reached, or when the person has done the task
    error: Tos = ()  # taken when an action on the way in, or of a state inside, has failed
    final: bool = False
    settles: bool = False  # once here, nothing that was done before is undone any more
    initial: str = ""
    states: Mapping[str, State] = {}
    description: str = ""
    person: Ask | None = None
