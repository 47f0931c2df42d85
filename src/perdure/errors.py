"""Every error that Perdure raises, in one tree.

    PerdureError
    ├── UsageError                the caller asked for something that cannot be
    │   ├── Forbidden             a call that cannot be replayed, inside a workflow
    │   ├── InvalidValue          a value that does not fit its declared type, or cannot be stored
    │   │   ├── DefinitionInvalid what is data, with mistakes, all of them in `problems`
    │   │   ├── FormInvalid       what a person filled in does not fit the form, all of it in `problems`
    │   │   └── ExpressionError   an expression that cannot be read, fails, or uses more than it may
    │   ├── DefinitionNotFound    no definition of that name and version was published
    │   ├── DefinitionConflict    a published version is something else than what it should be
    │   ├── LimitReached          more than a limit allows; if it is a setting, it is named
    │   ├── NotRegistered         no workflow or action of that name and version in this process
    │   ├── KeyNotFound           the tenant has no API key of that id
    │   ├── RequestRefused        the HTTP API does not take the request as it is
    │   ├── TaskNotFound          the token is not that of an external task of the tenant
    │   ├── HookNotFound          the tenant has no webhook of that name
    │   ├── CallTaken             a call of a webhook comes a second time, as it was signed
    │   ├── SecretNotFound        the process finds no secret of that name for the tenant
    │   ├── SecretExposed         what an action returned contains a secret
    │   ├── OutboundRefused       an address that must not be called, or a request that must not be sent
    │   └── SettingsError         an unknown or ill-typed setting
    ├── ExecutionError            something about one execution
    │   ├── ExecutionNotFound
    │   ├── ExecutionExists       the id is taken by a run with another input
    │   ├── ExecutionEnded        it has ended and takes no more events
    │   ├── EventNotFound         no event of that id was sent to it
    │   ├── EventConflict         the event id was used before with another payload
    │   ├── EventRefused          a machine or a task does not take the event, in this state or from this sender
    │   ├── TaskLost              the external task has ended, or is another worker's by now
    │   ├── MigrationRefused      it cannot go on with another version of its definition, now or at all
    │   ├── RetryRefused          it goes on by itself, or was completed: there is nothing to try again
    │   ├── ExecutionFailed       what result() raises for a failed run
    │   ├── ExecutionCancelled    what result() raises for a cancelled run
    │   └── ExecutionStuck        what result() raises for a run that needs a person
    ├── ActionError               what an action raises to say which kind of failure it is
    │   ├── Transient             worth another try, as the retry policy says
    │   ├── Permanent             no other try can help
    │   ├── Contention            somebody else has it: soon again
    │   └── External              a service of others is ill
    │       ├── CircuitOpen       the circuit breaker of the action let no attempt through
    │       ├── Unreachable       an outgoing call found nobody: nothing was sent
    │       └── AnswerLate        an outgoing call was not answered in time: it may have taken effect
    ├── ActionFailed              what awaiting an action raises in a workflow
    ├── ProcessDied               the process of an action ended before it answered
    ├── ChildFailed               what awaiting a child workflow raises
    ├── TaskExpired               what awaiting a person raises when the task was not done in time
    ├── Nondeterminism            the code asks for other commands than the log records
    ├── NeverWakes                the workflow waits for something that no event can bring
    ├── Undecodable               the log holds something that this code cannot read
    ├── LockError                 something about a lock
    │   ├── LockTaken             others kept it for as long as one would wait
    │   └── LockLost              the lease ran out, or the lock was held for too long
    ├── KeyringError              something encrypted cannot be read, or written
    │   ├── KeyShredded           the keys of its tenant were destroyed, for ever
    │   ├── KeyMissing            the key ring does not have the key, but should
    │   └── SealBroken            it was changed in the store, or moved
    ├── AccessError               who calls over HTTP, and what they may do
    │   ├── Unauthenticated       no credential, or none that is valid
    │   ├── NotAllowed            the credential is valid, but not for this
    │   └── AccessUnavailable     it cannot be told now whether it is valid: try again
    └── StoreError                the store could not do it
        ├── StoreUnavailable      try again: busy, unreachable
        ├── StoreFull             no space left
        ├── StoreReadOnly
        ├── StoreOutdated         migrations are missing, or the store is newer than this code
        ├── StoreRefused          it will never take what one execution wants to write
        └── OutcomeUnknown        the write may or may not have happened

Messages say what happened, to which execution, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PerdureError(Exception):
    """The root of the tree."""


class UsageError(PerdureError):
    """The caller asked for something that cannot be."""


class Forbidden(UsageError):
    """A call inside a workflow that could not be replayed."""


class InvalidValue(UsageError):
    """A value that does not fit its declared type, or that cannot be stored."""


class DefinitionInvalid(InvalidValue):
    """A machine, a graph or a document with mistakes; `problems` has all, each with its place and how to mend it."""

    def __init__(self, what: str, problems: Sequence[Any]) -> None:
        lines = [f"{what} has {len(problems)} mistake{'s' if len(problems) > 1 else ''}:", *map(str, problems)]
        super().__init__("\n- ".join(lines))
        self.problems = list(problems)


class FormInvalid(InvalidValue):
    """What a person filled in does not fit the form of the task; `problems` has all of it, each with its place."""

    def __init__(self, what: str, problems: Sequence[Any]) -> None:
        super().__init__(f"{what}: {'; '.join(map(str, problems))}")
        self.problems = list(problems)


class ExpressionError(InvalidValue):
    """An expression that cannot be read, fails, or uses more than it may; `position` is the place in its text."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class DefinitionNotFound(UsageError):
    """No definition of this name and version was published for this tenant."""


class DefinitionConflict(UsageError):
    """A published version is something else than what it should be: versions never change."""


class LimitReached(UsageError):
    """More than a limit allows. If the limit is a setting, the message names it."""


class NotRegistered(UsageError):
    """No workflow or action of that name and version in this process."""


class KeyNotFound(UsageError):
    """The tenant has no API key of this id."""


class RequestRefused(UsageError):
    """The HTTP API does not take the request as it is; `status` and `type` are those of its answer."""

    def __init__(self, message: str, status: int = 400, type: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.type = type


class TaskNotFound(UsageError):
    """The token is not that of an external task of this tenant."""


class HookNotFound(UsageError):
    """The tenant has no webhook of this name."""


class CallTaken(UsageError):
    """A call of a webhook that was taken before, as it was signed; nothing was done again."""


class OutboundRefused(UsageError):
    """An address that must not be called, or a request that must not be sent; nothing was sent."""


class SecretNotFound(UsageError):
    """The process finds no secret of this name for the tenant; no other try can help before it is there."""

    fatal = True


class SecretExposed(UsageError):
    """What an action returned contains a secret that it has revealed; it was not written."""

    fatal = True


class SettingsError(UsageError):
    """An unknown or ill-typed setting."""


class ExecutionError(PerdureError):
    """Something about one execution; `key` names it."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class ExecutionNotFound(ExecutionError):
    """No execution has this id."""


class ExecutionExists(ExecutionError):
    """The id is taken by a run of another workflow or with another input."""


class ExecutionEnded(ExecutionError):
    """The execution has ended and takes no more events."""


class EventNotFound(ExecutionError):
    """No event of that id was sent to the execution."""


class EventConflict(ExecutionError):
    """The event id was used before with another payload."""


class EventRefused(ExecutionError):
    """A machine or a task does not take the event: not in the state it is in, or not from whoever sent it."""


class TaskLost(ExecutionError):
    """What an external worker says comes too late: the task has ended, or is another worker's by now."""


class MigrationRefused(ExecutionError):
    """The execution cannot go on with another version of its definition; `problems` says why."""

    def __init__(self, message: str, key: str = "", problems: Sequence[Any] = ()) -> None:
        super().__init__(message, key)
        self.problems = list(problems)


class RetryRefused(ExecutionError):
    """Only what has failed, was cancelled or is stuck can be tried again."""


class ExecutionFailed(ExecutionError):
    """The execution failed; `type` and `details` are those of the recorded error."""

    def __init__(self, message: str, key: str = "", type: str = "", details: Any = None) -> None:
        super().__init__(message, key)
        self.type = type
        self.details = details


class ExecutionCancelled(ExecutionError):
    """The execution was cancelled."""


class ExecutionStuck(ExecutionError):
    """The execution needs a person; the message says why, `retry` redrives it."""


class ActionError(PerdureError):
    """What an action raises to say which kind of failure it is; derive your own from one of the four below."""

    #: Anything that JSON can hold; it is kept in the log.
    details: Any = None

    def __init__(self, message: str = "", details: Any = None) -> None:
        super().__init__(message)
        self.details = details


class Transient(ActionError):
    """It may go better next time: tried again as the retry policy says."""


class Permanent(ActionError):
    """No other try can help: never tried again."""


class Contention(ActionError):
    """Somebody else has what is needed: tried again soon, and the first hundred times do not use up attempts."""


class External(ActionError):
    """A service of others is ill. `retry_after` is how many seconds it asked to be left alone."""

    retry_after: float | None = None

    def __init__(self, message: str = "", details: Any = None, *, retry_after: float | None = None) -> None:
        super().__init__(message, details)
        self.retry_after = retry_after


class CircuitOpen(External):
    """The circuit breaker of an action let no attempt through."""


class Unreachable(External):
    """An outgoing call found nobody who would take it: nothing was sent."""


class AnswerLate(External):
    """An outgoing call was not answered in time; it may have taken effect."""


class ActionFailed(PerdureError):
    """An action failed for good. `type` is the name of the original error, `kind` says which kind of failure it is."""

    kind: str = ""

    def __init__(
        self,
        message: str,
        action: str = "",
        type: str = "",
        details: Any = None,
        attempts: int = 1,
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.action = action
        self.type = type
        self.details = details
        self.attempts = attempts
        self.kind = kind


class ProcessDied(PerdureError):
    """The process of an action ended before it answered; that attempt has failed."""


class ChildFailed(PerdureError):
    """A child workflow failed, was cancelled, or got stuck for good."""

    def __init__(self, message: str, child: str = "", type: str = "", details: Any = None) -> None:
        super().__init__(message)
        self.child = child
        self.type = type
        self.details = details


class TaskExpired(PerdureError, TimeoutError):
    """Nobody did the task in time. It is a TimeoutError, so code may treat it like any other."""


class Nondeterminism(PerdureError):
    """The code asks for other commands than the log records."""


class NeverWakes(PerdureError):
    """The workflow waits for something that no event of the log can bring, or never comes to rest."""


class Undecodable(PerdureError):
    """The log holds something that this code cannot read."""


class LockError(PerdureError):
    """Something about a lock."""


class LockTaken(LockError):
    """Others kept the lock for as long as one would wait."""


class LockLost(LockError):
    """The lock is no longer ours: its lease ran out, or it was held for longer than its limit."""


class KeyringError(PerdureError):
    """Something encrypted cannot be read, or written."""


class KeyShredded(KeyringError):
    """The keys of the tenant were destroyed: what they encrypted cannot be read by anybody, ever."""


class KeyMissing(KeyringError):
    """The key ring does not have a key that it should have."""


class SealBroken(KeyringError):
    """What the store has was changed there, or belongs elsewhere."""


class AccessError(PerdureError):
    """About who calls, and what they may do. Never says anything of a credential that was not proven to be valid."""


class Unauthenticated(AccessError):
    """There is no credential, or none that is valid."""


class NotAllowed(AccessError):
    """The credential is valid, but does not give the right to do this."""


class AccessUnavailable(AccessError):
    """It cannot be told at present whether a credential is valid; try again."""


class StoreError(PerdureError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store is busy or out of reach; nothing was written, try again."""


class StoreFull(StoreError):
    """No space is left; nothing was written."""


class StoreReadOnly(StoreError):
    """The store cannot be written; nothing was written."""


class StoreOutdated(StoreError):
    """The store's schema is older or newer than this code."""


class StoreRefused(StoreError):
    """The store will never take what one execution wants to write, however often it is tried; nothing was written."""


class OutcomeUnknown(StoreError):
    """The write may or may not have happened; repeat it with the same ids."""


#: What is wrong with one of many that are written together: nothing was written and to try the same again is of no use,
#: but the others can be written without it. All other errors of a store are about the store, or leave it open.
REFUSALS = (InvalidValue, KeyringError, StoreRefused)
