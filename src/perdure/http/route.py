"""Routes as values: what a handler takes and answers is declared once, and checked, served and documented from there.

    @route("POST", "/v1/executions/{id}/events", "send", body=EventIn, query=HowToSend, answers={202: Accepted})
    async def submit(call: Call[HowToSend, EventIn]) -> Answer:
        "Send an event to an execution."

A handler is a few lines over the application's own verbs. It never sees the framework, and what it raises becomes a
problem (`perdure.http.problems`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct, inspect

from perdure.http.caller import Caller, Scope
from perdure.http.leaving import Leaving
from perdure.http.site import Site
from perdure.runtime.app import Perdure

Q = TypeVar("Q")
B = TypeVar("B")
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
_NAMES = re.compile(r"{(\w+)}")


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters, or no body."""


#: The media type of a flow.
FLOW = "text/event-stream"


class Flow:
    """In a declaration: an answer that goes on, event by event."""


class Html:
    """In a declaration: an answer for a browser."""


class Plain:
    """In a declaration: an answer that is plain text."""


class Answer(Struct, frozen=True):
    """What goes back. Data is encoded as JSON unless it is bytes of the given media type, or comes part by part."""

    data: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}
    media: str = "application/json"
    over: Callable[[], None] | None = None  # called when an answer that comes part by part is over
    form: Callable[[Any], Answer] | None = None  # how the data leaves, when what the caller may not see was taken away


class Call(Generic[Q, B]):
    """One request, checked: who calls, what for, with what."""

    def __init__(
        self,
        app: Perdure,
        caller: Caller,
        path: Mapping[str, str],
        query: Q,
        body: B,
        headers: Mapping[str, str],
        site: Site,
        listens: Callable[[], Awaitable[bool]],
    ) -> None:
        self.app = app
        self.caller = caller
        self.path = path
        self.query = query
        self.body = body
        self.headers = headers
        self.site = site
        self.listens = listens  # whether the caller is still there

    @property
    def leaving(self) -> Leaving:
        return self.site.leaving

    @property
    def tenant(self) -> str:
        """Never from the request: the credential says whose things these are."""
        return self.caller.tenant


Handler = Callable[[Any], Awaitable[Answer]]


#: Makes the body of headers and bytes, or raises.
Read = Callable[[Mapping[str, str], bytes], Any]


#: From the data of an answer to the same without what is nobody's business who may only glance.
Glance = Callable[[Any], Any]


class Route(Struct, frozen=True):
    """A declared route. `scope` is what the caller must be allowed to do; None: anybody may.

    A body that is not only JSON has a `read` of its own, and names the further types in `media`. Where there is a
    `glance`, callers that may only glance are answered as well: with what it makes of the answer.
    """

    method: Method
    path: str
    scope: Scope | None
    handler: Handler
    body: Any = Nothing
    query: Any = Nothing
    answers: Mapping[int, Any] = {}
    tag: str = ""
    read: Read | None = None
    media: tuple[str, ...] = ()
    target: Callable[[Any], str] | None = None  # from the call to what it is about, for the audit
    harmless: bool = False  # changes nothing, whatever its scope and method
    glance: Glance | None = None
    keyed: bool = False  # an Idempotency-Key makes a repetition harmless

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def label(self) -> str:
        """For metrics."""
        return f"{self.method} {self.path}"

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().partition("\n")[0]

    @property
    def description(self) -> str:
        return (self.handler.__doc__ or "").strip().partition("\n")[2].strip()

    @property
    def names(self) -> list[str]:
        """The parameters of the path."""
        return _NAMES.findall(self.path)

    @property
    def lists(self) -> frozenset[str]:
        """The parameters of the query that may be repeated."""
        return _lists(self.query)


@cache
def _lists(query: Any) -> frozenset[str]:
    parts = inspect.type_info(query).fields  # type: ignore[attr-defined]  # it is a struct
    return frozenset(part.encode_name for part in parts if isinstance(_plain(part.type), inspect.ListType))


def _plain(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


class Routes:
    """Collects what a module declares."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.all: list[Route] = []

    def __call__(
        self,
        method: Method,
        path: str,
        scope: Scope | None,
        *,
        answers: Mapping[int, Any],
        body: Any = Nothing,
        query: Any = Nothing,
        read: Read | None = None,
        media: Sequence[str] = (),
        target: Callable[[Any], str] | None = None,
        harmless: bool = False,
        glance: Glance | None = None,
        keyed: bool = False,
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            said = body, query, answers, self.tag, read, tuple(media), target, harmless, glance, keyed
            self.all.append(Route(method, path, scope, handler, *said))
            return handler

        return declare
