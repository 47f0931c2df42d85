"""A state made ready to run: what every state has, whatever it does.

What comes in is filtered, then it works on its data, then what it leaves is filtered. Rules kept here: every passage is
noted as started and settled, however it ends; an error that the state names leads where it says, and with the data that
was there; every other one halts the workflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

from msgspec import Struct

from perdure.core.events import NodeSettled, NodeStarted
from perdure.core.failures import describe
from perdure.flows.document.course import Scope
from perdure.flows.document.faults import fault_of, within
from perdure.flows.document.reader import escaped
from perdure.flows.states.course import Course
from perdure.flows.states.data import Data
from perdure.flows.states.errors import Errors
from perdure.flows.states.limits import Limits, seconds
from perdure.flows.states.reader import StatesReader
from perdure.flows.states.ways import Way, read_way

_COMMON = (
    *("id", "name", "type", "stateDataFilter", "timeouts", "onErrors", "compensatedBy", "usedForCompensation"),
    *("metadata",),
)


class Left(Struct, frozen=True):
    """How a state is left: with which data, and where to. Without a way a compensation is over."""

    data: Any
    way: Way | None


class State:
    """A state. `keys` are those that its type has, of which it needs `needs`."""

    type: ClassVar[str] = ""
    keys: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    times: ClassVar[tuple[str, ...]] = ("stateExecTimeout",)
    leads: ClassVar[bool] = True  # it has a transition or an end of its own

    def __init__(self, reader: StatesReader, body: dict[str, Any], at: str, limits: Limits, own: str) -> None:
        self.at = at
        self.body = body
        self.name = reader.text(body.get("name"), f"{at}/name")
        self.path = f"/states/{escaped(self.name)}"
        self.own = own  # the name of the workflow
        ways = ("transition", "end") if self.leads else ()
        reader.object(body, at, (*_COMMON, *self.keys, *ways), self.needs)
        shaped = reader.object(body.get("stateDataFilter", {}), f"{at}/stateDataFilter", ("input", "output"))
        self._input = reader.test(shaped.get("input"), f"{at}/stateDataFilter/input")
        self._output = reader.test(shaped.get("output"), f"{at}/stateDataFilter/output")
        self.limits = limits.read(reader, body.get("timeouts", {}), f"{at}/timeouts", self.times)
        self.compensates = reader.flag(body.get("usedForCompensation", False), f"{at}/usedForCompensation")
        self.compensated_by = body.get("compensatedBy") and reader.text(body["compensatedBy"], f"{at}/compensatedBy")
        self.way: Way | None = None
        if self.leads:
            self.way = read_way(reader, body, at, own, needed=not self.compensates)
        self.catches = [
            found
            for number, one in enumerate(reader.list(body.get("onErrors"), f"{at}/onErrors"))
            if (found := _read_catch(reader, one, f"{at}/onErrors/{number}", own)) is not None
        ]
        self.make(reader)

    def make(self, reader: StatesReader) -> None:
        """Read what the type has."""

    async def work(self, course: Course, data: Data) -> Way | None:
        """Do it, and say where to go on, unless that is always the same."""
        raise NotImplementedError

    def ways(self) -> Iterator[tuple[str, Way]]:
        """Where it may lead, each with a label."""
        if self.way is not None:
            yield "", self.way
        for errors, way in self.catches:
            yield ", ".join(sorted(errors.wanted)), way

    @property
    def scope(self) -> Scope:
        return Scope()

    async def run(self, course: Course, raw: Any) -> Left:
        """One passage through the state."""
        course.note(NodeStarted(self.path, course.encoded(raw, self.path)))
        data = Data(raw, course.names)
        try:
            if self._input is not None:
                data.value = self._input.of(raw, course.names)
            limit = seconds(self.limits.state, data.value, course)
            way = await within(limit, f"state {self.name}", self.at, self.work(course, data))
            output = data.value if self._output is None else self._output.of(data.value, course.names)
            course.settle(NodeSettled(self.path, output=course.encoded(output, self.path)))
        except asyncio.CancelledError:
            if not course.running.loop.closed:
                course.settle(NodeSettled(self.path, "cancelled"))
            raise
        except Exception as error:
            found = fault_of(error, self.at)
            course.settle(NodeSettled(self.path, "failed", error=describe(found)))
            caught = next((way for errors, way in self.catches if errors.mean(found)), None)
            if caught is None:
                raise found from None
            return Left(data.value, caught)
        if self.compensated_by:
            course.done.append(self.name)
        return Left(output, way or self.way)


def _read_catch(reader: StatesReader, body: Any, at: str, own: str) -> tuple[Errors, Way] | None:
    found = reader.object(body, at, ("errorRef", "errorRefs", "transition", "end"))
    if ("errorRef" in found) == ("errorRefs" in found):
        reader.wrong(at, "one of errorRef and errorRefs is expected here")
    several = reader.list(found.get("errorRefs"), f"{at}/errorRefs")
    names = {f"{at}/errorRefs/{number}": name for number, name in enumerate(several)}
    if "errorRef" in found:
        names[f"{at}/errorRef"] = found["errorRef"]
    errors = Errors(reader, names)
    way = read_way(reader, found, at, own)
    return None if way is None else (errors, way)
