"""Where an execution stands while a worker holds it: its log says what was done, and only its code what is being done.

The log is replayed here, if the code is here, and thrown away again; it writes nothing and calls no action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core import summary
from perdure.core.loop import turns
from perdure.core.records import Head, key_of, tenant_of
from perdure.core.replay import Replay
from perdure.errors import PerdureError
from perdure.runtime.managing.dead import dead_of

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure
    from perdure.runtime.run import Run


async def stuck_ones(app: Perdure, key: str, ids: Sequence[str]) -> dict[str, str]:
    """Which of the executions that one waits for need a person, with the cause."""
    found: dict[str, str] = {}
    for id in ids:
        head = await app.store.head(key_of(tenant_of(key), id))
        if head is not None and head.status == "stuck":
            found[id] = dead_of(head).cause
    return found


async def stands(app: Perdure, run: Run[Any], head: Head) -> dict[str, Any] | None:
    """What it waits for, as the summary of one at rest has it; None if that cannot be told from here."""
    if head.holder is None or head.status != "open":
        return None
    workflow = await app._workflows.declared(run.key, await app._workflows.running(head))
    if workflow is None:
        return None
    rows = await run.since_restart()
    replay = Replay(run.key, workflow, app.settings.limits)
    try:
        with turns():
            replay.load(rows)
            found: dict[str, Any] = msgspec.to_builtins(summary.waits(replay))
            return found
    except PerdureError:  # other code than its worker has
        return None
    finally:
        with turns():
            replay.evict()
