"""External events: what a workflow waits for from the outside."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, final, overload

import msgspec
from msgspec import Raw, Struct

from perdure.core.codec import codec_for, encode
from perdure.errors import UsageError
from perdure.flows.current import inside

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class Received(Struct, frozen=True):
    """An event with its name, for code that waits for several."""

    name: str
    payload: Any
    id: str
    by: str


@final
class EventFunction:
    """`await event("packed", Packed)`. Events that come early are kept, in order, until somebody asks for them."""

    @overload
    def __call__(self, name: str, /, *, match: Mapping[str, Any] = ...) -> Coroutine[Any, Any, Any]: ...
    @overload
    def __call__(self, name: str, kind: type[A], /, *, match: Mapping[str, Any] = ...) -> Coroutine[Any, Any, A]: ...
    @overload
    def __call__(
        self, a: tuple[str, type[A]], b: tuple[str, type[B]], /, *, match: Mapping[str, Any] = ...
    ) -> Coroutine[Any, Any, A | B]: ...
    @overload
    def __call__(
        self,
        a: tuple[str, type[A]],
        b: tuple[str, type[B]],
        c: tuple[str, type[C]],
        /,
        *,
        match: Mapping[str, Any] = ...,
    ) -> Coroutine[Any, Any, A | B | C]: ...
    def __call__(self, *wanted: Any, match: Mapping[str, Any] | None = None) -> Coroutine[Any, Any, Any]:
        """Wait for the next event of this name (or of one of these names) whose payload has the fields of `match`.

        A payload that does not fit the type is recorded as rejected, and the wait goes on.
        """
        return _payload(_wanted(wanted), match or {})

    def received(self, *names: str, match: Mapping[str, Any] | None = None) -> Coroutine[Any, Any, Received]:
        """Wait for one of several names and learn which one came."""
        return _named(_wanted(tuple((name, Any) for name in names)), match or {})


def _wanted(args: tuple[Any, ...]) -> dict[str, Callable[[Raw], Any]]:
    if args and isinstance(args[0], str):
        args = ((args[0], args[1] if len(args) > 1 else Any),)
    if not args or not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in args):
        raise UsageError('event() takes a name, a name and a type, or pairs: event(("packed", Packed), ("lost", Lost))')
    return {name: codec_for(kind).decode for name, kind in args}


async def _payload(wanted: Mapping[str, Callable[[Raw], Any]], match: Mapping[str, Any]) -> Any:
    return (await inside("event()").receive(wanted, msgspec.json.decode(encode(match))))[1]


async def _named(wanted: Mapping[str, Callable[[Raw], Any]], match: Mapping[str, Any]) -> Received:
    event, value = await inside("event.received()").receive(wanted, msgspec.json.decode(encode(match)))
    return Received(event.name, value, event.id, event.by)


event = EventFunction()
