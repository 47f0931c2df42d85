"""Failures as data: an exception becomes an Error in the log and an exception again in the code that waits for it.

An error comes back as ActionFailed that is *also* an instance of its original class when that class is a built-in one,
one of the ActionErrors, or was declared (`raises=`), so `except CardDeclined:` works. Nothing is imported because a log
names it. Which kind of failure an exception is follows from its type alone, never from its text.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from types import TracebackType
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Raw

from perdure.core.codec import encode
from perdure.core.events import NULL, Error
from perdure.errors import (
    ActionError,
    ActionFailed,
    AnswerLate,
    ChildFailed,
    CircuitOpen,
    Contention,
    ExecutionFailed,
    External,
    InvalidValue,
    LimitReached,
    Permanent,
    Transient,
    Unreachable,
    UsageError,
)

#: Characters of a message that are kept.
LONGEST = 10_000
#: Causes that are kept, each that of the one before: there may be very many, or it goes round in a circle.
CAUSES = 50
Kind: TypeAlias = Literal["transient", "permanent", "contention", "external"]
_KINDS: dict[type[BaseException], Kind] = {
    Transient: "transient",
    Permanent: "permanent",
    Contention: "contention",
    External: "external",
}
Classes: TypeAlias = Mapping[type[BaseException], type[ActionError]]

#: These would be misread as the end of a coroutine, or cannot be made from a message.
_NEVER = (StopIteration, StopAsyncIteration, BaseExceptionGroup, MemoryError)
_BUILTIN = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NEVER)
} | {kind.__name__: kind for kind in (Transient, Permanent, Contention, External, CircuitOpen, Unreachable, AnswerLate)}


class Recorded(Exception):
    """A failure on its way from one log to another, unchanged."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


def kind_of(error: BaseException, classes: Classes, fatal: tuple[type[BaseException], ...] = ()) -> Kind:
    """Which kind of failure an exception is; the most specific class that says something decides.

    >>> kind_of(KeyError("x"), {LookupError: Permanent, Exception: External})
    'permanent'
    >>> kind_of(OSError("x"), {})
    'transient'
    """
    if isinstance(error, Recorded) and error.error.kind in _KINDS.values():
        return cast(Kind, error.error.kind)  # decided where it was raised
    if isinstance(error, (*fatal, InvalidValue, LimitReached)) or getattr(error, "fatal", False) is True:
        return "permanent"
    for kind in type(error).__mro__:
        if (listed := classes.get(kind)) is not None:
            return kind_of_class(listed)
        if kind in _KINDS:
            return _KINDS[kind]
    return "transient"


def kind_of_class(kind: type[ActionError]) -> Kind:
    """The kind that an ActionError stands for."""
    for one in getattr(kind, "__mro__", ()):
        if one in _KINDS:
            return _KINDS[one]
    raise UsageError(f"{kind!r} is no kind of failure: give Transient, Permanent, Contention, External or a subclass")


def checked(classes: Classes) -> Classes:
    """A mapping from classes of errors to kinds, refused if it cannot be one."""
    for error, kind in classes.items():
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise UsageError(f"errors= maps classes of exceptions, and {error!r} is none")
        kind_of_class(kind)
    return dict(classes)


def describe(error: BaseException, attempts: int = 1, kind: Kind | Literal[""] = "", causes: int = CAUSES) -> Error:
    """What the log keeps of an exception, and of so many that caused it; also of one that breaks when it is asked."""
    if isinstance(error, Recorded):
        return error.error
    if isinstance(error, ActionFailed | ChildFailed | ExecutionFailed) and error.type:
        name, message = error.type, str(error)
    else:
        name, message = type(error).__name__, _said(error) or type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        message += ": " + "; ".join(f"{type(inner).__name__}: {_said(inner)}" for inner in error.exceptions[:10])
    for note in getattr(error, "__notes__", ()):
        message += f" ({_said(note)})"
    cause = error.__cause__ if causes and not isinstance(error, ActionFailed | ChildFailed) else None
    return Error(
        name,
        storable_text(message),
        _where(error.__traceback__),
        _details(error),
        attempts,
        None if cause is None else describe(cause, causes=causes - 1),
        kind or (error.kind if isinstance(error, ActionFailed) else ""),
    )


def action_failed(error: Error, action: str, raises: Iterable[type[BaseException]] = ()) -> ActionFailed:
    """A new exception for code that awaits an action; never a shared one, because tracebacks grow."""
    kind = _known(error.type, raises)
    details = msgspec.json.decode(error.details)
    if kind is None:
        return ActionFailed(
            f"{action} failed: {error.type}: {error.message}", action, error.type, details, error.attempts, error.kind
        )
    failure: ActionFailed = _both(kind).__new__(_both(kind), error.message)
    failure.args = (error.message,)
    failure.action, failure.type, failure.details, failure.attempts = action, error.type, details, error.attempts
    failure.kind = error.kind
    return failure


def child_failed(error: Error, child: str) -> ChildFailed:
    return ChildFailed(f"{child}: {error.message}", child, error.type, msgspec.json.decode(error.details))


_mixed: dict[type[BaseException], type[ActionFailed]] = {}


def _both(kind: type[BaseException]) -> type[ActionFailed]:
    mixed = _mixed.get(kind)
    if mixed is None:
        try:
            mixed = type(kind.__name__, (ActionFailed, kind), {"__module__": kind.__module__, "__str__": _text})
        except TypeError:  # the layouts of the two do not go together
            mixed = ActionFailed
        _mixed[kind] = mixed
    return mixed


def _text(self: BaseException) -> str:
    return str(self.args[0]) if self.args else ""


def _known(name: str, raises: Iterable[type[BaseException]]) -> type[BaseException] | None:
    for kind in raises:
        if kind.__name__ == name:
            return kind
    return _BUILTIN.get(name)


def _details(error: BaseException) -> Raw:
    try:
        details: Any = getattr(error, "details", None)
    except Exception:  # it is computed, and that breaks
        return NULL
    if details is None or isinstance(error, OSError):
        return NULL
    try:
        return Raw(encode(details))
    except InvalidValue:
        return Raw(encode(storable_text(_said(details, repr)[:1000])))


def _said(thing: object, say: Callable[[object], str] = str) -> str:
    """What it says of itself; nothing where it breaks over that."""
    try:
        return say(thing)
    except Exception:
        return ""


def _where(tb: TracebackType | None) -> str:
    """The innermost line that is neither Perdure's nor asyncio's."""
    found = ""
    while tb is not None:
        module = tb.tb_frame.f_globals.get("__name__", "")
        if not module.startswith(("perdure.core", "perdure.flows", "perdure.runtime", "asyncio", "concurrent.")):
            code = tb.tb_frame.f_code
            found = f"{PurePath(code.co_filename).name}:{tb.tb_lineno} in {code.co_qualname}"
        tb = tb.tb_next
    return found


def storable_text(text: str) -> str:
    """Text that any store can hold: no NUL, no lone surrogates, not endless."""
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"
