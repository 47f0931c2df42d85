"""A transactional action: its writes and its result are one commit, so it takes effect exactly once.

The action runs inside a transaction of the store's database. When it is done, the event of its result, and the turn
that this causes, are written in the same transaction; if another worker has gone on with the execution meanwhile, the
log refuses the version and everything is rolled back. While that is under way the execution takes part in no other
commit. What was prepared and not written exists only in memory, so then the memory is dropped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, assert_never

from perdure.core import events as ev
from perdure.core.records import Commit
from perdure.errors import REFUSALS, OutcomeUnknown, PerdureError, Permanent, StoreError, Transient
from perdure.ports import Joining, Standing
from perdure.runtime.execution.resident import Resident


class Floor(Protocol):
    """What a joint commit needs of its worker."""

    @property
    def grace(self) -> int: ...
    def now(self) -> int: ...
    def here(self, resident: Resident) -> bool: ...
    async def reserve(self, resident: Resident) -> None: ...
    def set_free(self, resident: Resident) -> None: ...
    async def joined(self, resident: Resident, commit: Commit) -> None: ...
    async def forget(self, resident: Resident, error: PerdureError | None) -> None: ...


class _NotWanted(Exception):
    """Nobody waits for the action any more: roll back."""


class _Refused(Exception):
    """The log has another version by now: roll back."""


async def perform(
    floor: Floor, store: Joining, resident: Resident, ref: int, work: Callable[[Any], Awaitable[ev.Event]]
) -> bool:
    """Run the work, given a connection, and commit it with the event that it returns; whether that was done.

    What the work raises comes out, with nothing written.
    """
    commit: Commit | None = None
    reserved = False
    try:
        async with store.transaction() as connection:
            event = await work(connection)
            _check(await store.standing(connection))
            await floor.reserve(resident)
            reserved = True
            if not floor.here(resident) or not resident.wants(ref):
                raise _NotWanted
            commit = resident.settle_within(ref, event, floor.now())
            [outcome] = await store.commit_in(connection, [commit], floor.grace)
            if outcome != "ok":
                raise _Refused
    except _NotWanted:
        return False
    except (_Refused, StoreError, *REFUSALS) as error:
        if commit is None and not isinstance(error, OutcomeUnknown):
            raise
        resident.running.pop(ref, None)
        await floor.forget(resident, error if isinstance(error, PerdureError) else None)
        return False
    finally:
        if reserved:
            floor.set_free(resident)
    await floor.joined(resident, commit)
    return True


def _check(standing: Standing) -> None:
    """The result can be written only where the action has left its transaction open; else the attempt has failed."""
    match standing:
        case "open":
            return
        case "failed":
            raise Transient(
                "a statement over action.connection failed and the action went on; its transaction takes no more, so"
                " do what may fail inside of `async with action.connection.transaction()`, a savepoint"
            )
        case "ended":
            raise Permanent(
                "it ended the transaction that it ran in, and with it what makes its writes and its result one: leave"
                " commit and rollback to Perdure, and use `action.connection.transaction()` for savepoints"
            )
        case _:
            assert_never(standing)
