"""Typed JSON: a codec per annotation, which reads back what `encode` wrote.

Rules kept here: what is read satisfies the annotation or is an InvalidValue with path, expected and got; an annotation
that could not be read back is refused when its codec is made, not when the first value arrives. msgspec does the work.
Where it sees no difference between the members of a union (two dataclasses, a model and a dict) a stand-in type takes
the place of the union and picks the member that fits best; a class with such a field is read field by field.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, overload

import msgspec
from msgspec import Raw, Struct

from perdure.core.encoding import admit, canonical, digest, encode, is_model, is_reference, short
from perdure.errors import InvalidValue

__all__ = ["Codec", "admit", "canonical", "codec_for", "digest", "encode"]

T = TypeVar("T")
Schema = dict[str, Any]

_ANY = (Any, object, inspect.Parameter.empty)
_NOTHING = (None, type(None), typing.NoReturn, typing.Never)
_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]")
_TAG = "tag the Structs, use one class with a Literal field, or declare Any"


class Codec(Generic[T]):
    """Reads and writes the values of one annotation; `codec_for` makes it."""

    __slots__ = ("_decode", "_form", "annotation")

    def __init__(self, annotation: Any, form: Any, decode: Callable[[bytes | Raw], T]) -> None:
        self.annotation = annotation
        self._form = form  # the annotation as msgspec takes it
        self._decode = decode

    def encode(self, value: T) -> bytes:
        return encode(value)

    def decode(self, data: bytes | Raw) -> T:
        try:
            return self._decode(data)
        except Exception as error:
            raise InvalidValue(f"{name_of(self.annotation)}: {_explained(error, data)}") from error

    def schema(self) -> Schema:
        """The JSON Schema of the values; {} where nothing can be said."""
        try:
            return hoisted(msgspec.json.schema(self._form, schema_hook=_describe))
        except TypeError:
            return {}

    def __repr__(self) -> str:
        return f"Codec({name_of(self.annotation)})"


@overload
def codec_for(annotation: type[T]) -> Codec[T]: ...
@overload
def codec_for(annotation: object) -> Codec[Any]: ...
def codec_for(annotation: Any) -> Codec[Any]:
    """The codec of an annotation, made once; InvalidValue if its values could not be read back.

    >>> codec_for(dict[str, int]).decode(b'{"tea":2}')
    {'tea': 2}
    >>> codec_for(list[int]).decode(b'[1, "two"]')
    Traceback (most recent call last):
    perdure.errors.InvalidValue: list[int]: expected `int`, got `str` at $[1]: 'two'
    >>> codec_for(complex)
    Traceback (most recent call last):
    perdure.errors.InvalidValue: complex cannot be read back from JSON: use a dataclass, a msgspec Struct, a pydantic
    model, or plain types such as list and dict
    """
    try:
        # `A | B` equals `B | A`, but the order of declaration counts.
        return _cached(annotation, "" if isinstance(annotation, type) else repr(annotation))
    except TypeError:  # an annotation that cannot be hashed
        return _made(annotation)


def reader_of_all(codecs: Sequence[Codec[Any]]) -> Callable[[bytes | Raw], tuple[Any, ...]] | None:
    """What reads an array with a value for each codec; None where one is a model, which reads in its own way."""
    if any(is_model(codec.annotation) for codec in codecs):
        return None
    forms: Any = tuple[tuple(codec._form for codec in codecs)]  # type: ignore[misc]
    return msgspec.json.Decoder(forms, dec_hook=_read).decode


def name_of(annotation: Any) -> str:
    """An annotation as people write it.

    >>> name_of(int), name_of(list[int]), name_of(None)
    ('int', 'list[int]', 'None')
    """
    if get_origin(annotation) is None and isinstance(annotation, type):
        return "None" if annotation is type(None) else annotation.__qualname__
    return str(annotation).replace("typing.", "")


@functools.lru_cache(maxsize=4096)
def _cached(annotation: Any, text: str) -> Codec[Any]:
    return _made(annotation)


def _made(annotation: Any) -> Codec[Any]:
    if any(annotation is one for one in _NOTHING):
        annotation = type(None)
    if is_model(annotation):
        return Codec(annotation, annotation, lambda data: annotation.model_validate_json(bytes(data)))
    form = Any if any(annotation is one for one in _ANY) else annotation
    try:
        if _refused(form):
            form = _form(form)
        decoder = msgspec.json.Decoder(form, dec_hook=_read)
        odd = next(_odd_types(msgspec.inspect.type_info(form), set()), None)
    except NameError as error:
        raise InvalidValue(
            f"{name_of(annotation)}: {error}; define or import it at module level, not only for type checkers"
        ) from error
    except TypeError as error:
        raise InvalidValue(f"{name_of(annotation)} cannot be read back from JSON: {error}; {_TAG}") from error
    if odd is not None:
        inside = "" if odd is annotation else f"{name_of(annotation)}: "
        raise InvalidValue(
            f"{inside}{name_of(odd)} cannot be read back from JSON: use a dataclass, a msgspec Struct, a pydantic"
            " model, or plain types such as list and dict"
        )
    return Codec(annotation, form, decoder.decode)


def _refused(annotation: Any) -> str:
    """Why msgspec does not take the annotation, or nothing."""
    if isinstance(annotation, str | typing.ForwardRef):
        raise TypeError(f"the annotation {annotation!r} is not resolved")
    try:
        msgspec.json.Decoder(annotation, dec_hook=_read)
    except TypeError as error:
        return str(error)
    return ""


def _odd_types(info: Any, seen: set[int]) -> Iterator[type]:
    """Classes that msgspec would leave to us and that we do not know either."""
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        if info.cls is not object and not isinstance(info.cls, _StandIn) and not is_model(info.cls):
            if not issubclass(info.cls, PurePath) and not is_reference(info.cls):
                yield info.cls
    elif isinstance(info, tuple):
        for item in info:
            yield from _odd_types(item, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in info.__struct_fields__:
            yield from _odd_types(getattr(info, name), seen)


class _Withheld(ValueError):
    """The value is not shown: it may be a secret that should have been a reference."""


def _read(kind: Any, value: Any) -> Any:
    """msgspec's question for a type that it leaves to us."""
    try:
        if isinstance(kind, _StandIn):
            return kind.stands_for.read(value)
        if is_model(kind):
            return codec_for(kind).decode(encode(value))
    except InvalidValue as error:
        raise ValueError(str(error)) from error  # msgspec adds the path
    if kind is object:
        return value
    if not isinstance(value, str):
        raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
    try:
        return kind(value)
    except InvalidValue as error:
        raise _Withheld(str(error)) from error


def _describe(kind: Any) -> Schema:
    if isinstance(kind, _StandIn):
        return kind.stands_for.schema()
    if is_model(kind):
        schema: Schema = kind.model_json_schema()
        return schema
    if is_reference(kind):
        return {"type": "string", "format": kind.__name__.lower()}
    return {} if kind is object else {"type": "string", "format": "path"}


def hoisted(schema: Schema) -> Schema:
    """The schema with all definitions at its root, where references look for them."""
    found: Schema = {}

    def lift(node: Any) -> Any:
        if isinstance(node, dict):
            found.update({name: lift(item) for name, item in node.get("$defs", {}).items()})
            return {key: lift(item) for key, item in node.items() if key != "$defs"}
        return [lift(item) for item in node] if isinstance(node, list) else node

    result: Schema = lift(schema)
    return {**result, "$defs": found} if found else result


def _explained(error: Exception, data: bytes | Raw) -> str:
    """What was expected and got where, with the value found there."""
    if errors := getattr(error, "errors", None):  # pydantic's
        first = errors()[0]
        path = "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        return f"{first['msg']} at {path}: {short(first.get('input'))}"
    text, found, path = str(error).rpartition(" - at ")
    text, path = (text, path.replace("`", "")) if found else (str(error), "$")
    if isinstance(error.__cause__, _Withheld):
        return f"{text} at {path}"
    text = text[:1].lower() + text[1:] if text.startswith(("Expected", "Object")) else text
    try:
        value = msgspec.json.decode(data)
    except Exception:
        return f"{text}: {short(bytes(data))}"
    for name, index in _STEP.findall(path):
        try:
            value = value[name] if name else value[int(index)]
        except (LookupError, TypeError):
            break
    return f"{text} at {path}: {short(value)}"


# Stand-ins: types that msgspec hands to us.


class _StandIn(type):
    """The class of the types put where msgspec cannot tell what to do; `stands_for` knows."""

    stands_for: _Fit | _Record

    def __instancecheck__(cls, instance: object) -> bool:
        return True  # msgspec asks; what was read has been checked


def _stand_in(stands_for: _Fit | _Record) -> Any:
    return _StandIn("StandIn", (), {"stands_for": stands_for})


def _union(members: Iterable[Any]) -> Any:
    return Union[tuple(members)]  # noqa: UP007 - of members that are only known here


def _form(annotation: Any) -> Any:
    """The annotation with stand-ins for the parts that msgspec does not take."""
    if type(annotation).__name__ == "TypeAliasType":  # type X = ..., from Python 3.12
        return _form(annotation.__value__)
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is object:
        return Any
    if origin in (Union, types.UnionType):
        members = [member for member in args if member is not type(None)]
        if _refused(_union(members)) and any(_shape(member) for member in members):
            fit = _stand_in(_Fit(members))
            return fit if len(members) == len(args) else fit | None
        return _union(_form(member) for member in args)
    if _shape(annotation) and (origin or annotation) is not dict:
        return _record(origin or annotation) if _refused(annotation) else annotation
    if origin is typing.Annotated:
        return typing.Annotated[(_form(args[0]), *annotation.__metadata__)]
    if origin is None or origin is typing.Literal or not args:
        return annotation
    return origin[tuple(arg if arg is ... else _form(arg) for arg in args)]


@dataclasses.dataclass(frozen=True)
class _Shape:
    """The keys of the JSON objects of a type: whether each is required; `open` for any other key too."""

    keys: dict[str, bool]
    names: dict[str, str]  # key -> name of the parameter or field
    open: bool = False

    def misfit(self, keys: set[str]) -> str:
        missing = [key for key, required in self.keys.items() if required and key not in keys]
        unknown = [] if self.open else sorted(keys - self.keys.keys())
        return "; ".join(
            text.format(", ".join(found)) for text, found in (("{} missing", missing), ("{} unknown", unknown)) if found
        )


def _shape(annotation: Any) -> _Shape | None:
    """The shape of a type whose values are JSON objects; of any other none."""
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type):
        return None
    keys: dict[str, bool]
    if is_model(kind):
        fields: dict[str, Any] = kind.model_fields  # type: ignore[attr-defined]
        keys = {field.alias or name: field.is_required() for name, field in fields.items()}
        return _Shape(keys, {}, kind.model_config.get("extra") == "allow")  # type: ignore[attr-defined]
    if issubclass(kind, Struct):
        infos = msgspec.structs.fields(kind)
        keys, config = {info.encode_name: info.required for info in infos}, kind.__struct_config__
        keys |= {config.tag_field: True} if config.tag_field else {}
        return None if config.array_like else _Shape(keys, {info.encode_name: info.name for info in infos})
    if dataclasses.is_dataclass(kind):
        keys = {
            field.name: field.default is field.default_factory is dataclasses.MISSING
            for field in dataclasses.fields(kind)
            if field.init
        }
    elif typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        marks, required = {typing.Required: True, typing.NotRequired: False}, vars(kind)["__required_keys__"]
        keys = {name: marks.get(get_origin(hint), name in required) for name, hint in hints.items()}
    elif issubclass(kind, dict):
        return _Shape({}, {}, open=True)
    else:
        return None
    return _Shape(keys, {key: key for key in keys})


class _Fit:
    """A union whose members have no tags: the member that fits best, the first one declared among equals."""

    def __init__(self, members: list[Any]) -> None:
        self.annotation = _union(members)
        self.members = [(codec_for(member), shape) for member in members if (shape := _shape(member))]
        others = [member for member in members if not _shape(member)]
        self.others = codec_for(_union(others)) if others else None

    def read(self, value: Any) -> Any:
        if not isinstance(value, dict):
            if self.others is None:
                raise ValueError(f"Expected `{name_of(self.annotation)}`, got `{type(value).__name__}`")
            return self.others.decode(encode(value))
        reasons = {codec: shape.misfit(set(value)) for codec, shape in self.members}
        fitting = [(codec, shape) for codec, shape in self.members if not reasons[codec]]
        for codec, _ in sorted(fitting, key=lambda member: -len(member[1].keys.keys() & value.keys())):
            try:
                return codec.decode(encode(value))
            except InvalidValue as error:
                reasons[codec] = str(error)
        why = ", ".join(f"not {name_of(codec.annotation)} ({reason})" for codec, reason in reasons.items())
        raise ValueError(f"Expected `{name_of(self.annotation)}`, got an object that fits none: {why}")

    def schema(self) -> Schema:
        codecs = [codec for codec, _ in self.members] + ([self.others] if self.others else [])
        return {"anyOf": [codec.schema() for codec in codecs]}


class _Record:
    """A class with a field that msgspec does not take: read field by field."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.codecs: dict[str, Codec[Any]] = {}
        self.shape = _shape(kind) or _Shape({}, {})
        self.shown = False

    def resolve(self) -> None:
        hints = typing.get_type_hints(self.kind, include_extras=True)
        for key, name in self.shape.names.items():
            hint = hints[name]
            if get_origin(hint) in (typing.Required, typing.NotRequired, typing.Final):
                hint = get_args(hint)[0]
            try:
                self.codecs[key] = codec_for(hint)
            except InvalidValue as error:
                raise InvalidValue(f"field {name} of {self.kind.__qualname__}: {error}") from error

    def read(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"Expected `{self.kind.__qualname__}`, got `{type(value).__name__}`")
        if missing := [key for key, required in self.shape.keys.items() if required and key not in value]:
            raise ValueError(f"Object missing required field `{missing[0]}`")
        found: dict[str, Any] = {}
        for key, codec in self.codecs.items():
            if key in value:
                try:
                    found[self.shape.names[key]] = codec.decode(encode(value[key]))
                except InvalidValue as error:
                    raise ValueError(f"{key} of {self.kind.__qualname__}: {error}") from error
        return self.kind(**found)

    def schema(self) -> Schema:
        if self.shown:  # a class that contains itself
            return {"type": "object", "title": self.kind.__qualname__}
        self.shown = True
        try:
            properties = {key: codec.schema() for key, codec in self.codecs.items()}
        finally:
            self.shown = False
        required = [key for key, needed in self.shape.keys.items() if needed]
        return {"type": "object", "title": self.kind.__qualname__, "properties": properties, "required": required}


_records: dict[type, Any] = {}


def _record(kind: type) -> Any:
    if kind not in _records:
        record = _Record(kind)
        _records[kind] = _stand_in(record)  # before its fields: the class may contain itself
        try:
            record.resolve()
        except BaseException:
            del _records[kind]
            raise
    return _records[kind]
