"""Traces: what belongs together across processes, as W3C Trace Context names it in a `traceparent`.

    with tracing("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
        await app.start(order, 7, id="order-7")

Rules kept here: what is no valid `traceparent` counts as none, and is never an error; an execution that was started
without one has a trace of its own, which follows from its key and its start, so it is the same wherever it is asked
for, today and on replay. Nothing is drawn here: whoever makes a trace of chance brings the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct, structs

from perdure.core.encoding import digest

#: The header, and the attribute of CloudEvents.
HEADER = "traceparent"
#: A later version may have more behind this; version ff is none.
_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
#: The one flag that all versions have: that somebody keeps a record of this.
_SAMPLED = 1


class Trace(Struct, frozen=True, gc=False):
    """A place in a trace. `made` is one that nobody gave: lines of a log show it, and it is not passed on."""

    id: str
    span: str
    flags: str = "01"  # our lines are such a record; with 00 most receivers would keep none of their own
    made: bool = False

    def __str__(self) -> str:
        """The `traceparent`."""
        return f"00-{self.id}-{self.span}-{self.flags}" if self.id else ""

    def within(self, name: str) -> Trace:
        """A part of the same trace that has this name, such as the key of a call."""
        return structs.replace(self, span=_span(name))


#: Said by who wants no trace to be passed on.
NONE = Trace("", "")


def parse(text: object) -> Trace | None:
    """The place that a `traceparent` names; None if it is none.

    >>> parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").id
    '0af7651916cd43dd8448eb211c80319c'
    >>> parse("00-00000000000000000000000000000000-b7ad6b7169203331-01") is None
    True
    """
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    version, id, span, flags, more = found.groups()
    if version == "00":
        return None if more is not None else Trace(id, span, flags)
    return Trace(id, span, f"{int(flags, 16) & _SAMPLED:02x}")  # what its other flags mean is not known


def of_headers(values: list[bytes]) -> Trace | None:
    """That of a request: two would leave open which one counts, so they count as none."""
    return parse(values[0].decode("latin-1").strip(" \t")) if len(values) == 1 else None


def of_event(attributes: Mapping[str, object]) -> Trace | None:
    """That of a CloudEvent, if it has the attribute."""
    return parse(attributes.get(HEADER))


def of_execution(given: str, key: str, began: int) -> Trace:
    """The trace of an execution: the one that it was started with, or its own."""
    span = _span(key)
    if given and (found := parse(given)) is not None:
        return Trace(found.id, span, found.flags)
    return Trace(digest("trace", key, str(began))[:32], span)


def _span(name: str) -> str:
    return digest("span", name)[:16]


# Which trace the running code belongs to.

_here: ContextVar[Trace | None] = ContextVar("perdure_trace", default=None)
_finding: ContextVar[Callable[[str], Trace | None] | None] = ContextVar("perdure_traces", default=None)


@contextmanager
def tracing(traceparent: str | Trace | None) -> Iterator[None]:
    """What is started and sent in the block belongs to this trace; with None, or what is no `traceparent`, to none."""
    found = traceparent if isinstance(traceparent, Trace) else parse(traceparent)
    token = _here.set(found or NONE)
    try:
        yield
    finally:
        _here.reset(token)


def here() -> Trace | None:
    """What was said of the running code; None if nothing was."""
    return _here.get()


def forget() -> None:
    """For tasks that serve many: whose trace was the present one when they began says nothing of them."""
    _here.set(None)


@contextmanager
def working(find: Callable[[str], Trace | None]) -> Iterator[None]:
    """Tasks that begin in the block belong to a worker, which knows the traces of the executions that it holds."""
    before, token = _finding.set(find), _here.set(None)
    try:
        yield
    finally:
        _here.reset(token)
        _finding.reset(before)


def known(key: str) -> Trace | None:
    """The trace of an execution that the worker around the running code holds."""
    find = _finding.get()
    return None if find is None else find(key)
