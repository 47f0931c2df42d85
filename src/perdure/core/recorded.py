"""What the log already has of an execution: the commands it records and the outputs that were given out.

The code may ask only for what the log records under the same number, and nothing that the log has is given out again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Raw

from perdure.core import events as ev
from perdure.core.commands import Spec, command_of, short
from perdure.core.records import Row
from perdure.errors import Nondeterminism

#: Outputs without a number: they are told apart by their order.
Counted: TypeAlias = ev.Published | ev.EventRejected | ev.StateChanged | ev.NodeStarted | ev.NodeSettled
_INPUTS = (ev.ActionSettled, ev.TimerFired, ev.EventReceived, ev.ChildSettled, ev.CancelRequested)


class Recorded:
    """An index over a log, made before it is fed."""

    __slots__ = ("_counted", "_highest", "_last_input", "_outputs", "_round", "commands", "marks", "patched")

    def __init__(self) -> None:
        self.marks: dict[int, ev.Marked] = {}
        self.patched: set[tuple[int, str]] = set()  # by the version at which the round that took them began
        self.commands: dict[int, tuple[int, ev.Event]] = {}  # that the code has not asked for yet, by their numbers
        self._round = 1
        self._highest = 0  # number of a command
        self._last_input = 0  # version of the last input that was driven when it was written
        self._outputs: set[tuple[type[ev.Event], int]] = set()
        self._counted: dict[type[ev.Event], deque[tuple[int, ev.Event]]] = {}  # nearly none has any

    def index(self, log: Sequence[tuple[Row, ev.Event]], kept_back: bool) -> None:
        """Note what a log, or its next portion, records. Inputs that are kept back prove nothing about the code."""
        for row, event in log:
            ref = getattr(event, "ref", 0)
            if ref and not isinstance(event, ev.Restarted):
                if ref not in self.commands:
                    self.commands[ref] = (row.version, event)
                self._highest = max(self._highest, ref)
            if type(event) is ev.ActionSettled:  # nearly all of them
                if not kept_back:
                    self._last_input = row.version
                continue
            if isinstance(event, ev.Paused | ev.Stuck):
                kept_back = True
            elif isinstance(event, ev.Resumed | ev.Redriven):
                kept_back = False
            elif isinstance(event, _INPUTS):
                self._last_input = self._last_input if kept_back else row.version
            else:
                self._note_output(event, row.version)

    def _note_output(self, event: ev.Event, version: int) -> None:
        match event:
            case ev.TimerCancelled() | ev.ActionCancelled() | ev.ChildStarted():
                self._outputs.add((type(event), event.ref))
            case ev.Marked(kind="patch"):
                self.patched.add((self._round, event.name))
            case ev.Marked():
                self.marks[event.ref] = event
            case ev.Restarted():
                self._round = version
            case ev.Published() | ev.EventRejected() | ev.StateChanged() | ev.NodeStarted() | ev.NodeSettled():
                self._counted.setdefault(type(event), deque()).append((version, event))
            case _:
                pass

    def passed(self, version: int, ref: int) -> bool:
        """The log shows that the code was here before."""
        return version < self._last_input or ref < self._highest

    def has(self, output: ev.TimerCancelled | ev.ActionCancelled | ev.ChildStarted) -> bool:
        return (type(output), output.ref) in self._outputs

    def spend(self, output: Counted) -> tuple[int, ev.Event] | None:
        """The next one that the log has of these, with its version; it is then met."""
        recorded = self._counted.get(type(output))
        return recorded.popleft() if recorded else None

    def fed(self) -> None:
        """All of it was fed: what the code no longer gives out must not hide what comes now."""
        self._counted.clear()


def compare(
    key: str, ref: int, recorded: tuple[int, ev.Event], kind: str, name: str, args: Raw | None, spec: Spec | None
) -> Nondeterminism | None:
    """What is wrong with a command that the code asks for, if the log records another one under its number."""
    version, event = recorded
    if type(event) is ev.ActionSettled and kind == "action" and event.name == name and event.args == args:
        return None
    there, there_name, there_args = command_of(event)
    if there != kind or (there_name and there_name != name):
        asked = f"{kind} {name}".strip()
        return Nondeterminism(
            f"{key}: the code asks for {asked} as command {ref}, but version {version} of the log records"
            f" {there} {there_name}".rstrip()
            + ": run the code that this execution began with, or guard the change with workflow.patched()"
        )
    if args is None or there_args is None or bytes(there_args) == bytes(args):
        return None
    if spec is not None and spec.same_args(there_args, args):
        return None
    return Nondeterminism(
        f"{key}: the code calls {name} (command {ref}) with {short(args)}, but version {version} of the log records"
        f" {short(there_args)}"
    )
