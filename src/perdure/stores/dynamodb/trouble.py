"""What an error of DynamoDB or of its SDK means to the caller.

Rules kept here: an error that the server answers with has written nothing, except one of its own faults (5xx), which
leaves a write unknown, like a connection that ends or that says nothing any more.
"""

from __future__ import annotations

from socket import gaierror
from typing import Any

from aiohttp import ClientConnectorError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from perdure.errors import (
    InvalidValue,
    OutcomeUnknown,
    PerdureError,
    StoreError,
    StoreOutdated,
    StoreRefused,
    StoreUnavailable,
)

#: What the SDK raises. HTTPClientError is what it makes of most that its HTTP library says.
FAILURES = (ClientError, BotoCoreError, OSError)

#: The server wants to be asked again later; nothing was written.
THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
        "ThrottlingException",
        "ThrottlingError",
        "Throttling",
    }
)
#: Another call on the same items is under way; nothing was written.
IN_THE_WAY = frozenset({"TransactionConflictException", "TransactionConflict", "TransactionInProgressException"})
REFUSED, CANCELLED = "ConditionalCheckFailedException", "TransactionCanceledException"
#: Why one item of a transaction was refused.
CONDITION = "ConditionalCheckFailed"

_MEANINGS: dict[str, tuple[type[PerdureError], str]] = {
    "ResourceNotFoundException": (StoreOutdated, "the table, or an index of it, is not there; run `perdure migrate`"),
    "AccessDeniedException": (
        StoreError,
        "these credentials may not do this; the guide lists the rights that are needed",
    ),
    "UnrecognizedClientException": (StoreError, "DynamoDB does not know these credentials; check them and the region"),
    "InvalidSignatureException": (StoreError, "DynamoDB does not accept these credentials, or this clock is wrong"),
    "MissingAuthenticationTokenException": (StoreError, "the call had no credentials; give the SDK some"),
    "ExpiredTokenException": (StoreError, "the credentials have expired; get new ones"),
    "ItemCollectionSizeLimitExceededException": (
        StoreRefused,
        "one execution has 10 GB, more than DynamoDB keeps of one; nothing was written",
    ),
    "ValidationException": (StoreRefused, "DynamoDB does not take this; nothing was written"),
    "LimitExceededException": (StoreUnavailable, "the account has too many tables or changes under way; try again"),
}


def code_of(error: BaseException) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def reasons_of(error: ClientError) -> list[dict[str, Any]]:
    """Why a transaction was cancelled, for each of its items."""
    response: dict[str, Any] = dict(error.response)
    found: list[dict[str, Any]] = response.get("CancellationReasons") or []
    return found


def later(error: BaseException) -> bool:
    """Whether the same call may do better in a moment, and certainly did nothing now."""
    return code_of(error) in THROTTLED | IN_THE_WAY or _unsent(error)


def _unsent(error: BaseException) -> bool:
    """Whether there was no connection to send it on. The SDK says the same of one that was reset after it was sent."""
    if isinstance(error, EndpointConnectionError):
        return isinstance(error.kwargs.get("error"), (ClientConnectorError, gaierror))
    return isinstance(error, ConnectTimeoutError)


def lost(error: BaseException) -> bool:
    """Whether nobody knows what became of the call."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return int(status) >= 500
    return not _unsent(error) and isinstance(error, (HTTPClientError, EndpointConnectionError, OSError))


def unknown(error: BaseException, place: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{place}: the connection was lost while a write was under way, so it may or may not have happened;"
        f" repeat the call with the same ids ({_detail(error)})"
    )


def meaning(error: BaseException, place: str) -> PerdureError:
    """The error to raise for one after which nothing was written."""
    code, detail = code_of(error), f"({_detail(error)})"
    if code in THROTTLED:
        text = "the table takes no more at present, after many tries; give it more capacity, or try again"
        return StoreUnavailable(f"{place}: {text} {detail}")
    if code in IN_THE_WAY:
        return StoreUnavailable(f"{place}: others were in the way, again and again; nothing was written {detail}")
    if code in _MEANINGS:
        kind, text = _MEANINGS[code]
        return kind(f"{place}: {text} {detail}")
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return StoreError(
            f"{place}: the SDK finds no credentials; set AWS_PROFILE or AWS_ACCESS_KEY_ID, or give a role"
        )
    if lost(error) or _unsent(error):
        return StoreUnavailable(f"{place}: DynamoDB cannot be reached; is the endpoint right, and is it up? {detail}")
    if isinstance(error, UnicodeError):
        return InvalidValue(f"a value cannot be stored; nothing was written {detail}")
    return StoreError(f"{place}: DynamoDB refused; nothing was written {detail}")


def _detail(error: BaseException) -> str:
    if isinstance(error, ClientError):
        return f"{code_of(error)}: {error.response.get('Error', {}).get('Message', '')}"
    return f"{type(error).__name__}: {error}"
