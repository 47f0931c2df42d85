"""Errors as RFC 9457 problem details: a stable type, what happened, and what to do.

The classes of errors decide, not their words. A failure that nobody foresaw says nothing of itself but an id, under
which the log of the process has the rest; a failure of the store says what it means for the caller, for its own words
name addresses and files. Whoever reads a request says that it has the wrong shape, for the same error of the decoder
is a failure of ours where we read what we have written.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from perdure import errors
from perdure.core.trouble import URN, name_of

log = logging.getLogger("perdure.http")
MEDIA = "application/problem+json"


class Problem(Struct, frozen=True, omit_defaults=True):
    """A problem as it is sent."""

    type: str
    title: str
    status: int
    detail: str
    instance: str = ""
    execution: str = ""
    problems: list[dict[str, Any]] = []


class Refused(Exception):
    """What the API itself refuses, before any verb of the application."""

    def __init__(self, status: int, title: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.headers = dict(headers or {})


def misshapen(error: msgspec.ValidationError) -> Refused:
    """A request that is no request of this route: the words of the decoder name the place."""
    return Refused(422, "Invalid Request", str(error))


#: The first class that fits decides.
STATUS: list[tuple[type[BaseException], int]] = [
    (errors.Unauthenticated, 401),
    (errors.NotAllowed, 403),
    (errors.AccessUnavailable, 503),
    (errors.ExecutionNotFound, 404),
    (errors.EventNotFound, 404),
    (errors.DefinitionNotFound, 404),
    (errors.NotRegistered, 404),
    (errors.KeyNotFound, 404),
    (errors.TaskNotFound, 404),
    (errors.HookNotFound, 404),
    (errors.SecretNotFound, 422),
    (errors.OutboundRefused, 422),
    (errors.ExecutionError, 409),
    (errors.DefinitionConflict, 409),
    (errors.CallTaken, 409),
    (errors.LimitReached, 413),
    (errors.InvalidValue, 422),
    (errors.UsageError, 400),
    (errors.KeyShredded, 410),
    (errors.KeyringError, 503),
    (errors.StoreError, 503),
]
#: What the caller is told of these, instead of what they say themselves. The first class that fits decides.
_INSIDE: list[tuple[type[BaseException], str]] = [
    (errors.OutcomeUnknown, "the store did not say whether it was done: repeat it with the same ids"),
    (errors.StoreFull, "the store has no space left; nothing was written"),
    (errors.StoreReadOnly, "the store takes no writes at present; nothing was written"),
    (errors.StoreOutdated, "the store is of another version than this server; nothing was written"),
    (errors.StoreRefused, "the store does not take this; nothing was written"),
    (errors.StoreUnavailable, "the store does not answer in time; nothing was written: try again"),
    (errors.StoreError, "the store could not do it; nothing was written"),
    (errors.KeyShredded, "the keys of this data were destroyed, and it can never be read again"),
    (errors.KeyringError, "the keys of this data cannot be had at present: try again"),
]
_RETRY = {"Retry-After": "1"}


def problem_of(error: BaseException, instance: str) -> tuple[Problem, Mapping[str, str]]:
    """The problem that an error is, and the headers that go with it."""
    if isinstance(error, Refused):
        name = f"{URN}{error.title.lower().replace(' ', '-')}"
        return Problem(name, error.title, error.status, str(error), instance), error.headers
    for kind, status in STATUS:
        if isinstance(error, kind):
            return _known(error, status, instance), _headers(error, status)
    number = _number()
    log.error("%s: a request failed", number, exc_info=error)
    detail = f"something went wrong here, not with the request; the log of the server has it under {number}"
    return Problem(name_of("Internal"), "Internal", 500, detail, instance), {}


def _known(error: BaseException, status: int, instance: str) -> Problem:
    name = type(error).__name__
    found = [msgspec.to_builtins(one) for one in getattr(error, "problems", ())]
    execution = str(getattr(error, "key", "") or "").partition("/")[2]
    return Problem(name_of(name), name, status, _words(error), instance, execution, found)


def _words(error: BaseException) -> str:
    for kind, text in _INSIDE:
        if isinstance(error, kind):
            number = _number()
            log.warning("%s: %s", number, error)
            return f"{text} (the log of the server has more under {number})"
    return str(error)


def _number() -> str:
    return uuid.uuid4().hex[:12]


def _headers(error: BaseException, status: int) -> Mapping[str, str]:
    if status == 503:
        return _RETRY
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}
