"""How executions begin: with an input, or with the rows of another log.

Rules kept here: an input that the workflow cannot take is refused before anything is written; every start says who
starts, which is the application itself where the caller names nobody; the same start again is the same execution,
another start under its key is an error; whoever starts where ends are heard of expects this end before the start is
written, for the execution may be quicker than the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw, structs

from perdure.core import copies, events as ev, summary
from perdure.core.behalf import acting_as
from perdure.core.callbacks import Callback
from perdure.core.codec import encode
from perdure.core.records import ENDED, Row, Start
from perdure.errors import ExecutionExists, UsageError
from perdure.flows.current import traceparent
from perdure.flows.described import Described
from perdure.flows.listening import topics
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow
from perdure.ports import Stream
from perdure.runtime.callers.ends import Ends
from perdure.runtime.callers.workflows import Workflows
from perdure.runtime.callers.writing import Writes
from perdure.runtime.checks import NONE, Labels, checked_labels, checked_name, checked_size
from perdure.runtime.run import Run


class Starts:
    """`hears` tells whether this process hears of ends; `most` is the size of the longest input, in bytes; `actor` is
    who starts what nobody else does."""

    def __init__(
        self,
        writes: Writes,
        workflows: Workflows,
        stream: Stream,
        ends: Ends,
        hears: Callable[[], bool],
        most: int,
        actor: str,
    ) -> None:
        self._writes = writes
        self._workflows = workflows
        self._stream = stream
        self._ends = ends
        self._hears = hears
        self._most = most
        self._actor = actor

    async def start(
        self,
        definition: Workflow[..., Any],
        input: Raw,
        key: str,
        at: int,
        by: str,
        lane: str | None = None,
        connection: Any = None,
        callback: Callback | None = None,
        labels: Labels = NONE,
    ) -> bool:
        """Start an execution of a workflow; whether it is new."""
        start = self.made(definition, input, key, at, by, callback, labels)
        if lane is not None:
            start = structs.replace(start, lane=checked_name(lane, "lane"))
        if connection is None and self._hears():
            await self._stream.listen(key)
            self._ends.expect(key)
        created = await self.begin(start, connection)
        if created:
            self._workflows.remember(key, start.definition)
        else:
            self._ends.forget(key)
        return created

    async def own(
        self, definition: Workflow[..., Any], args: tuple[Any, ...], key: str, at: int, by: str, queue: str, shown: Any
    ) -> bool:
        """Start an execution of the engine's own; what it shows before a worker has seen it is given."""
        input = Raw(definition.signature.encode(args, {}))
        first = ev.Started(definition.name, definition.version, input, by or self._actor, acting_as=acting_as())
        start = summary.begin(key, first, queue, at)
        return await self.begin(structs.replace(start, state=encode(shown)))

    def made(
        self,
        definition: Workflow[..., Any],
        input: Raw,
        key: str,
        at: int,
        by: str,
        callback: Callback | None = None,
        labels: Labels = NONE,
        trace: str = "",
    ) -> Start:
        """A start that can be written, with what the execution will listen for; its trace is that of the caller."""
        args, kwargs = definition.signature.decode(input)
        if isinstance(definition, Described):
            definition.check_input(next(iter((*args, *kwargs.values())), None))
        if not definition.hash:
            registry.use(definition)
        checked_size(input, self._most, f"the input of {definition.name}")
        first = ev.Started(
            definition.name,
            definition.version,
            input,
            by or self._actor,
            hash=definition.hash,
            callback=callback,
            correlation=labels.correlation,
            tags=labels.tags,
            trace=trace or traceparent(),
            acting_as=acting_as(),
        )
        start = summary.begin(key, first, definition.queue, at)
        if definition.listens:
            start = structs.replace(start, topics=topics(start.definition, definition.listens, input))
        return start

    async def copied(self, key: str, rows: Sequence[Row], queue: str) -> Start:
        """A log as a new execution; one that is open listens like one that begins with the input of this log."""
        start = copies.as_start(key, rows, queue)
        checked_labels(start.correlation, start.tags)  # a log may come from anywhere
        first = ev.read(rows[0])
        declared = await self._workflows.declared(key, start.definition)
        if declared is None or start.status in ENDED or not isinstance(first, ev.Started):
            return start
        return structs.replace(start, topics=topics(start.definition, declared.listens, first.input))

    async def begin(self, start: Start, connection: Any = None) -> bool:
        """Whether it is new; the same start again is not."""
        if connection is None:
            answer = await self._writes.starts.put(start)
        else:
            [answer] = await self._writes.joining().start_in(connection, [start], 0)
        if answer == "conflict":
            raise ExecutionExists(
                f"{start.key} exists already, of another workflow or with another input, correlation id or tags: choose"
                " another id, or start it with the same to get that run",
                start.key,
            )
        return answer == "created"


async def forked(run: Run[Any], at: int | None, edit: Mapping[int, Any], by: str) -> tuple[str, list[Row]]:
    """The queue of an execution, and its log up to a version as a fork begins with it."""
    head = await run.head()
    if at is not None and not at >= 1:
        raise UsageError("versions begin at 1")
    rows = [row async for row in run.rows(0, at)]
    edits = {version: Raw(encode(value)) for version, value in edit.items()}
    return head.queue, copies.prefix(rows, edits, f"{run.key}@{rows[-1].version if rows else 0}", by, acting_as())
