"""One thing done to many executions, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from perdure.client.door import Door, path_of
from perdure.client.run import RemoteRun
from perdure.core.records import ShownStatus
from perdure.flows.bulk import Act
from perdure.http.bulk import BulkIn, FilterIn, OperationsOut
from perdure.http.forms import StartedOut
from perdure.runtime.managing.bulk import Operation


class RemoteBulk:
    """`client.bulk`. An operation is an execution, so it can be paused, resumed and cancelled."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def start(
        self,
        act: Act,
        *,
        status: ShownStatus | None = None,
        workflow: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        fields: Mapping[str, str | int | float | bool | None] | None = None,
        correlation: str | None = None,
        tag: str | Sequence[str] = (),
        all: bool = False,
        event: str = "",
        payload: Any = None,
        version: int | None = None,
        reason: str = "",
        dry_run: bool = False,
        id: str | None = None,
    ) -> RemoteRun[Any]:
        """Do something to all executions that fit; a worker does it, and `get` tells how far it is.

        `send` takes an `event` and its `payload`, `migrate` the `version` of a definition. With `dry_run` they are only
        found. The same `id` twice is one operation.
        """
        tags = [tag] if isinstance(tag, str) else list(tag)
        which = FilterIn(status, workflow, after, before, dict(fields or {}), correlation, tags)
        chosen = id or f"bulk-{self._door.new_id()}"
        body = BulkIn(act, which, all, event, payload, version, reason, dry_run, chosen)
        return RemoteRun(self._door, (await self._door.post(path_of("bulk"), body, StartedOut)).id)

    async def get(self, id: str) -> Operation:
        """How far an operation is; ExecutionNotFound if this is none."""
        return await self._door.get(path_of("bulk", id), Operation)

    async def list(self, *, limit: int = 50) -> list[Operation]:
        """The newest operations."""
        return (await self._door.get(path_of("bulk"), OperationsOut, limit=limit)).operations
