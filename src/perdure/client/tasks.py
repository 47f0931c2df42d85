"""Tasks for people, over HTTP: who does something is whom the credential stands for, with the roles in it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from perdure.client.door import Door, path_of, span
from perdure.core.durations import Duration, seconds
from perdure.flows.person import Assigned, people
from perdure.http.tasks import FilledIn, PeopleIn
from perdure.runtime.managing.tasks import PATIENCE, Task, TaskPage, TaskStatus

#: The status of an answer without a verdict.
_UNDECIDED = 202


class RemoteTasks:
    """`client.tasks`. What is asked of a task has an id before it is sent, so it is asked once."""

    def __init__(self, door: Door) -> None:
        self._door = door

    # Looking.

    async def list(
        self,
        *,
        name: str | None = None,
        status: TaskStatus | None = None,
        assignee: str | None = None,
        role: str | None = None,
        claimed_by: str | None = None,
        execution: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> TaskPage:
        """Tasks by name, status, who may do them, who has claimed them, and the execution that waits; newest first."""
        return await self._door.get(
            path_of("tasks"),
            TaskPage,
            name=name,
            status=status,
            assignee=assignee,
            role=role,
            claimed_by=claimed_by,
            execution=execution,
            limit=limit,
            cursor=cursor,
        )

    async def mine(
        self,
        *,
        name: str | None = None,
        status: Literal["open", "claimed", "completed"] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> TaskPage:
        """What the caller can do now; with a status only those, and `completed` gives what the caller has completed."""
        return await self._door.get(
            path_of("tasks"), TaskPage, mine=True, name=name, status=status, limit=limit, cursor=cursor
        )

    async def get(self, id: str) -> Task:
        """One task, with its form, its data and what was filled in."""
        return await self._door.get(path_of("tasks", id), Task)

    # Doing.

    async def claim(self, id: str, *, event_id: str | None = None, wait: Duration = PATIENCE) -> Task:
        """Take a task for oneself: of several who try, one has it, and the others get EventRefused."""
        return await self._tell(id, "claim", None, event_id, wait)

    async def release(self, id: str, *, event_id: str | None = None, wait: Duration = PATIENCE) -> Task:
        """Give a task back that one has claimed."""
        return await self._tell(id, "release", None, event_id, wait)

    async def assign(
        self, id: str, to: Assigned, *, reason: str = "", event_id: str | None = None, wait: Duration = PATIENCE
    ) -> Task:
        """Let others do it, instead of those who could before; a claim is over with that."""
        named = people(to)
        return await self._tell(id, "assign", PeopleIn(list(named.users), list(named.roles)), event_id, wait, reason)

    async def complete(
        self, id: str, value: Any = None, *, event_id: str | None = None, wait: Duration = PATIENCE
    ) -> Task:
        """Hand in what the form asks for; FormInvalid says all that does not fit. The same once more is the same."""
        return await self._tell(id, "complete", FilledIn(value), event_id, wait)

    async def _tell(
        self, id: str, what: str, body: Any, event_id: str | None, wait: Duration, reason: str = ""
    ) -> Task:
        answer = await self._door.ask(
            "POST",
            path_of("tasks", id, what),
            body,
            patience=seconds(wait),
            reason=reason,
            event_id=event_id or self._door.new_id(),
            wait=span(wait),
        )
        if answer.status_code == _UNDECIDED:
            raise TimeoutError(f"{what} of task {id} is durable and will be judged, but no worker has done so yet")
        return msgspec.json.decode(answer.content, type=Task)
