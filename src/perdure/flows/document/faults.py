"""Errors of documents: problem details, raised by tasks and caught by `try`.

Rules kept here: what is raised or reported keeps the type that it was given; only where a filter is compared, the
several ways in which the specification has written its own types count as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from perdure.core.calls import KINDS, TYPES, problem
from perdure.core.trouble import is_problem
from perdure.errors import (
    ActionFailed,
    ChildFailed,
    ExecutionFailed,
    ExpressionError,
    InvalidValue,
    NotRegistered,
    UsageError,
)

T = TypeVar("T")
_HOSTS = ("https://serverlessworkflow.io/", "https://open-workflow-specification.org/")
_PATHS = ("spec/1.0.0/errors/", "dsl/errors/types/", "errors/types/")
_KEYS = ("type", "status", "title", "detail", "instance")


class Fault(ExecutionFailed):
    """An error of a document: `details` are its problem details, `tries` how often the task was tried that gives up."""

    tries = 1

    def __init__(self, details: Mapping[str, Any]) -> None:
        found = {key: details[key] for key in _KEYS if details.get(key) is not None}
        text = str(found.get("detail") or found.get("title") or found["type"])
        super().__init__(text, type=str(found["type"]), details=found)

    @property
    def problem(self) -> dict[str, Any]:
        found: dict[str, Any] = self.details
        return found


class End(Exception):
    """`then: end`: the whole execution is over, with this output."""

    def __init__(self, output: Any) -> None:
        super().__init__("the end of the workflow")
        self.output = output


def fault(kind: str, detail: str, at: str, *, title: str = "", status: int | None = None) -> Fault:
    """An error of one of the kinds that the specification names."""
    return Fault({**problem(kind, detail, title=title, status=status), "instance": at})


def fault_of(error: Exception, at: str) -> Fault:
    """What an exception of a task is to the document."""
    match error:
        case Fault():
            found = error
        case ExpressionError():
            found = fault("expression", str(error), at)
        case ActionFailed() if is_problem(error.details):
            found = Fault({"instance": at, **error.details})
        case ChildFailed() if is_problem(error.details):
            found = Fault({**error.details, "instance": at})  # its own place is one of another document
        case ActionFailed(type="TimeoutError"):
            found = fault("timeout", str(error), at)
        case ActionFailed(type="NotRegistered" | "DefinitionNotFound"):
            found = fault("configuration", str(error), at)
        case ActionFailed(type="SecretNotFound"):
            found = fault("authorization", str(error), at)
        case ActionFailed() | ChildFailed():
            found = fault("runtime", str(error), at, title=error.type)
        case InvalidValue():
            found = fault("validation", str(error), at)
        case NotRegistered() | UsageError():
            found = fault("configuration", str(error), at)
        case _:
            found = fault("runtime", str(error) or type(error).__name__, at, title=type(error).__name__)
    if found is not error:
        found.__cause__ = error
        found.__dict__.update({key: value for key, value in error.__dict__.items() if key == "perdure_version"})
    return found


async def within(after: float | None, what: str, at: str, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; a Fault if it takes longer than this many seconds."""
    limit = asyncio.timeout(after)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise fault("timeout", f"{what} took longer than {after:g} s", at) from None


def canonical(type: str) -> str:
    """The type as it is compared.

    >>> canonical("https://serverlessworkflow.io/dsl/errors/types/communication") == TYPES + "communication"
    True
    """
    for host in _HOSTS:
        for path in _PATHS:
            if type.startswith(host + path) and (name := type.removeprefix(host + path)) in KINDS:
                return TYPES + name
    return type


def matches(wanted: Mapping[str, Any], problem: Mapping[str, Any]) -> bool:
    """Whether a filter of `catch` means an error."""
    for key, value in wanted.items():
        found = problem.get("detail" if key == "details" else key)
        if key == "type" and isinstance(found, str) and isinstance(value, str):
            found, value = canonical(found), canonical(value)
        if found != value:
            return False
    return True
