"""The arguments of a function as JSON, typed by its parameters.

Rules kept here: the wire form is an array of the positional arguments, or {"args": [...], "kwargs": {...}} where some
can only go by name; keywords become positional where Python allows it, so one call has one form; defaults are not
filled in, the code that runs fills in its own; wrong arguments are a TypeError at the call, as Python's would be.
Annotations are resolved when they are first needed, because they may name what is defined further down.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

import msgspec
from msgspec import Raw

from perdure.core.codec import Codec, Schema, codec_for, encode, hoisted, reader_of_all
from perdure.core.encoding import is_reference, short
from perdure.errors import InvalidValue

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_array = msgspec.json.Decoder(list[Raw]).decode


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    args: list[Raw] = []
    kwargs: dict[str, Raw] = {}


_call = msgspec.json.Decoder(_Call).decode


class Signature:
    """Encodes and decodes the calls of one function.

    >>> def pay(order: str, cents: int, *, note: str = "") -> bool: ...
    >>> signature = Signature(pay)
    >>> signature.encode(("o-1",), {"cents": 250})
    b'["o-1",250]'
    >>> signature.decode(b'{"args":["o-1",250],"kwargs":{"note":"tea"}}')
    (('o-1', 250), {'note': 'tea'})
    >>> signature.decode(b'["o-1","250"]')
    Traceback (most recent call last):
    perdure.errors.InvalidValue: argument cents of pay: int: expected `int`, got `str` at $: '250'
    >>> signature.returns
    Codec(bool)
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.name: str = getattr(fn, "__qualname__", type(fn).__qualname__)
        self._signature = inspect.signature(fn)
        self._parameters = list(self._signature.parameters.values())
        self._positional = [one.name for one in self._parameters if one.kind in _POSITIONAL]
        kinds = {one.kind: one.name for one in self._parameters}
        self._rest = kinds.get(Parameter.VAR_POSITIONAL)
        self._others = kinds.get(Parameter.VAR_KEYWORD)
        required = [one.kind for one in self._parameters if _required(one)]
        self._least = len(required)
        self._most = sys.maxsize if self._rest else len(self._positional)
        if Parameter.KEYWORD_ONLY in required:
            self._most = -1  # no call is complete without keywords: always bind

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> bytes:
        if kwargs or not self._least <= len(args) <= self._most:
            bound = self._bound(args, kwargs or {})
            args, kwargs = bound.args, bound.kwargs
        try:
            return encode({"args": args, "kwargs": kwargs} if kwargs else args)
        except InvalidValue:
            self._blame(args, kwargs or {})
            raise

    def decode(self, data: bytes | Raw) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._whole is not None:
            try:
                return self._whole(data), {}
            except Exception:  # whatever it is: one by one they tell which it is about
                pass
        call = self._parsed(data)
        args: list[Any] = []
        try:
            for codec, raw in zip(self._by_position, call.args, strict=False):
                args.append(codec.decode(raw))
            for raw in call.args[len(args) :]:
                args.append(self._codecs[self._rest or ""].decode(raw))
        except InvalidValue as error:
            raise InvalidValue(f"argument {self._name_at(len(args))} of {self.name}: {error}") from error
        kwargs = {name: self._read(name, raw) for name, raw in call.kwargs.items()} if call.kwargs else {}
        return tuple(args), kwargs

    def same(self, recorded: bytes | Raw, asked: bytes | Raw) -> bool:
        """Whether two encodings mean the same call today: one may come from before a field got a default."""
        try:
            return self.encode(*self.decode(recorded)) == self.encode(*self.decode(asked))
        except (InvalidValue, TypeError):
            return False

    def schema(self) -> Schema:
        """The JSON Schema of the arguments by name; *args are an array, **kwargs any further properties."""
        properties = {name: codec.schema() for name, codec in (self._codecs | self._keywords).items()}
        more: Schema | bool = False
        if self._rest:
            properties[self._rest] = {"type": "array", "items": properties[self._rest]}
        if self._others:
            more = properties.pop(self._others)
        required = [one.name for one in self._parameters if _required(one)]
        return hoisted({"type": "object", "properties": properties, "required": required, "additionalProperties": more})

    @functools.cached_property
    def references(self) -> dict[str, type]:
        """The parameters that take a reference, by name, and of which class."""
        kinds = {one.name: self._hints.get(one.name) for one in self._parameters}
        return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and is_reference(kind)}

    def check_references(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise if a value stands where only a reference may, before it is written anywhere."""
        given = {**{self._name_at(index): one for index, one in enumerate(args)}, **kwargs}
        for name, kind in self.references.items():
            if name in given and not isinstance(given[name], kind):
                kind(given[name] if isinstance(given[name], str) else "")

    def fits(self, name: str, data: bytes) -> bool:
        """Whether an argument of this name can be read; one of a name that is not known is no matter of this."""
        codec = self._keywords.get(name) or self._codecs.get(name)
        try:
            if codec is not None:
                codec.decode(data)
        except InvalidValue:
            return False
        return True

    @functools.cached_property
    def returns(self) -> Codec[Any]:
        return self._codec("the result", self._hints.get("return", Any))

    @functools.cached_property
    def _codecs(self) -> dict[str, Codec[Any]]:
        return {
            one.name: self._codec(f"argument {one.name}", self._hints.get(one.name, Any)) for one in self._parameters
        }

    @functools.cached_property
    def _by_position(self) -> list[Codec[Any]]:
        return [self._codecs[name] for name in self._positional]

    @functools.cached_property
    def _whole(self) -> Callable[[bytes | Raw], tuple[Any, ...]] | None:
        """Reads all arguments at once, where each call has all of them by position."""
        if self._rest or not self._least == self._most == len(self._parameters):
            return None
        return reader_of_all(self._by_position)

    @functools.cached_property
    def _keywords(self) -> dict[str, Codec[Any]]:
        """The codecs of what may be given by name, apart from any other **kwargs."""
        codecs = {one.name: self._codecs[one.name] for one in self._parameters if one.kind in _NAMED}
        if typing.get_origin(more := self._hints.get(self._others or "")) is typing.Unpack:
            fields = typing.get_type_hints(typing.get_args(more)[0])
            codecs |= {name: self._codec(f"argument {name}", hint) for name, hint in fields.items()}
        return codecs

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        target: Any = inspect.unwrap(self.fn)
        while isinstance(target, functools.partial):
            target = inspect.unwrap(target.func)
        if not inspect.isroutine(target) and not inspect.isclass(target):
            target = type(target).__call__
        closure = inspect.getclosurevars(target).nonlocals if inspect.isfunction(target) else {}
        try:
            return typing.get_type_hints(target, localns=dict(closure) or None, include_extras=True)
        except Exception as error:  # whatever evaluating the text of an annotation raises
            raise InvalidValue(
                f"an annotation of {self.name} cannot be resolved: {error}; define or import what it names at module"
                " level, not inside a function and not only for type checkers"
            ) from error

    def _codec(self, what: str, hint: Any) -> Codec[Any]:
        try:
            return codec_for(Any if typing.get_origin(hint) is typing.Unpack else hint)
        except InvalidValue as error:
            raise InvalidValue(f"{what} of {self.name}: {error}") from error

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None

    def _parsed(self, data: bytes | Raw) -> _Call:
        try:
            try:
                call = _Call(_array(data))
            except msgspec.ValidationError:
                call = _call(data)
            if call.kwargs or not self._least <= len(call.args) <= self._most:
                self._bound(tuple(call.args), call.kwargs)
        except Exception as error:
            raise InvalidValue(f"not the arguments of {self.name}: {error}: {short(bytes(data))}") from error
        return call

    def _name_at(self, index: int) -> str:
        return self._positional[index] if index < len(self._positional) else self._rest or ""

    def _read(self, name: str, raw: Raw) -> Any:
        try:
            return (self._keywords.get(name) or self._codecs[self._others or ""]).decode(raw)
        except InvalidValue as error:
            raise InvalidValue(f"argument {name} of {self.name}: {error}") from error

    def _blame(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises for the first argument that cannot be encoded, by its name."""
        for name, value in [*((self._name_at(index), one) for index, one in enumerate(args)), *kwargs.items()]:
            try:
                encode(value)
            except InvalidValue as error:
                raise InvalidValue(f"argument {name} of {self.name}: {error}") from error


def _required(parameter: Parameter) -> bool:
    variadic = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return not variadic and parameter.default is Parameter.empty
