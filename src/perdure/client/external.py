"""External tasks, over HTTP: a worker in Python that has no store of its own.

while True:
    for task in await client.external.poll("node", limit=10):
        await client.external.complete(task.token, do(*task.args))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.client.door import Door, path_of, span
from perdure.core.durations import Duration, seconds
from perdure.http.external import CompleteIn, FailIn, HeartbeatIn, PollIn, TasksOut
from perdure.runtime.external.external import Beat
from perdure.runtime.external.handing import ExternalTask


class RemoteExternalTasks:
    """`client.external`.

    What is said of a task whose answer got lost is said again: then TaskLost may mean that it was taken the first time.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    async def poll(
        self,
        queue: str,
        *,
        actions: Sequence[str] | None = None,
        limit: int = 1,
        wait: Duration = "30s",
        worker: str = "",
        lease: Duration = "30s",
    ) -> list[ExternalTask]:
        """Ask for tasks of a queue, and wait until there are some, for at most a minute; none is an answer."""
        wanted = None if actions is None else list(actions)
        body = PollIn(queue, wanted, limit, span(wait), span(lease), worker)
        return (await self._door.post(path_of("external", "poll"), body, TasksOut, patience=seconds(wait))).tasks

    async def heartbeat(self, token: str, details: Any = None) -> Beat:
        """Say that a task is being done, with details that survive a crash. Raises TaskLost if it is another's."""
        return await self._door.post(path_of("external", "heartbeat"), HeartbeatIn(token, details), Beat)

    async def complete(self, token: str, result: Any = None) -> None:
        """Give the result. One that does not fit what was declared is InvalidValue, and the task stays."""
        await self._door.do(path_of("external", "complete"), CompleteIn(token, result))

    async def fail(
        self,
        token: str,
        type: str,
        message: str = "",
        *,
        retry: bool = True,
        after: Duration | None = None,
        details: Any = None,
    ) -> None:
        """Say that a task failed. Its retry policy decides about another attempt, unless `retry` is False."""
        await self._door.do(path_of("external", "fail"), FailIn(token, type, message, retry, span(after), details))
