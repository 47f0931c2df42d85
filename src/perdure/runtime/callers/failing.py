"""What is wrong with an execution, as its log tells it."""

from __future__ import annotations

from perdure.core import events as ev
from perdure.core.records import Head
from perdure.core.trouble import Trouble, failed, stuck
from perdure.runtime.run import Run


async def trouble_of(run: Run[object], head: Head) -> Trouble | None:
    """Why it failed or is stuck; None if it is neither. Of a long log only the end is read."""
    if head.status == "stuck":
        told = (await run.state()).stuck
        return None if told is None else stuck(told)
    if head.status != "failed":
        return None
    events = [ev.read(row) async for row in run.rows(head.version - 1)]
    match events:
        case [ev.Failed(error=error, since=since)]:
            return failed(error, [ev.read(row) async for row in run.rows(since)])
        case _:
            return None
