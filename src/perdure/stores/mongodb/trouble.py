"""What an error of the driver or of the server means to the caller."""

from __future__ import annotations

from bson.errors import BSONError
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
)

from perdure.errors import (
    InvalidValue,
    OutcomeUnknown,
    PerdureError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)

FAILURES = (PyMongoError, BSONError, OverflowError, UnicodeError, OSError)
#: By the codes of the server's errors.
_MEANINGS: dict[int, tuple[type[PerdureError], str]] = {
    13: (StoreError, "the user lacks a right; give it the role readWrite on this database"),
    18: (StoreError, "the server does not let this user in; check the user, the password and authSource"),
    8000: (StoreError, "the server does not let this user in; check the user, the password and authSource"),
    50: (StoreUnavailable, "the server gave the call up because it took too long; nothing was written; try again"),
    22: (StoreRefused, "the server does not take this; nothing was written"),
    121: (StoreRefused, "a rule of the collection does not let this in; nothing was written"),
    257: (StoreRefused, "this is more than a transaction takes; nothing was written"),
    112: (StoreUnavailable, "others were in the way, again and again; nothing was written; try again"),
    14031: (StoreFull, "the disk of the server is full; nothing was written; make room, then try again"),
    10107: (StoreReadOnly, "the server takes no writes at present; nothing was written; try again"),
}
_TOO_LARGE = frozenset({10334, 17280, 17419, 17420})


def transient(error: BaseException) -> bool:
    """Whether a transaction was rolled back for a reason that may be gone next time."""
    return isinstance(error, PyMongoError) and error.has_error_label("TransientTransactionError")


def uncertain(error: BaseException) -> bool:
    """Whether a transaction may have been committed."""
    return isinstance(error, PyMongoError) and error.has_error_label("UnknownTransactionCommitResult")


def occupied(error: BaseException) -> bool:
    """Whether a unique index has refused a document."""
    if isinstance(error, BulkWriteError):
        refusals = error.details.get("writeErrors", [])
        return bool(refusals) and all(one.get("code") == 11000 for one in refusals)
    return isinstance(error, DuplicateKeyError)


def meaning(error: BaseException, place: str, writes: bool) -> PerdureError:
    """The error to raise for one that came while a call was under way; `writes` if it may have taken effect."""
    detail = f"({type(error).__name__}: {told(error)})"
    if isinstance(error, (BSONError, OverflowError, UnicodeError, DocumentTooLarge)) or code_of(error) in _TOO_LARGE:
        # What is wrong with a value is told to whoever gave it, and the place of the store is none of theirs.
        return InvalidValue(f"a value cannot be stored; nothing was written {detail}")
    if isinstance(error, ConfigurationError):
        return StoreError(f"{place}: the address cannot be used {detail}")
    if unreachable(error) and not writes:
        return StoreUnavailable(
            f"{place}: the replica set cannot be reached, or has no primary; nothing was written; is it"
            f" running? {detail}"
        )
    if lost(error):
        if writes:
            return OutcomeUnknown(
                f"{place}: the connection was lost while a write was under way, or a majority did not confirm it, so it"
                f" may or may not have happened; repeat the call with the same ids {detail}"
            )
        return StoreUnavailable(f"{place}: the connection was lost; nothing was written; try again {detail}")
    if isinstance(error, InvalidOperation):
        return StoreError(f"{place}: the store is not open {detail}")
    kind, text = _MEANINGS.get(code_of(error), (StoreError, "MongoDB refused; nothing was written"))
    return kind(f"{place}: {text} {detail}")


def told(error: BaseException) -> str:
    """What the server said, without the command: that may hold what somebody wants to store.

    >>> told(OperationFailure("not authorized on shop to execute command { insert: 'events', … }", 13))
    'not authorized on shop'
    """
    text = str(error)
    if isinstance(error, BulkWriteError):
        refusals = [*error.details.get("writeErrors", ()), *error.details.get("writeConcernErrors", ())]
        text = "; ".join(str(one.get("errmsg", "")) for one in refusals[:1])
    elif isinstance(error, OperationFailure) and error.details is not None:
        text = str(error.details.get("errmsg", error))
    return text.partition(" to execute command")[0][:300]


def unreachable(error: BaseException) -> bool:
    """Whether nobody was found to send the call to; what was sent before, in the same verb, may have taken effect."""
    return isinstance(error, (ServerSelectionTimeoutError, WaitQueueTimeoutError))


def lost(error: BaseException) -> bool:
    """Whether nobody said what became of the call."""
    if isinstance(error, BulkWriteError):
        return bool(error.details.get("writeConcernErrors"))
    return isinstance(error, (ConnectionFailure, WriteConcernError, OSError)) or uncertain(error)


def code_of(error: BaseException) -> int:
    if isinstance(error, BulkWriteError):
        refusals = error.details.get("writeErrors", [])
        return int(refusals[0].get("code", 0)) if refusals else 0
    return (error.code or 0) if isinstance(error, OperationFailure) else 0
