"""Calls as JSON: one form per call, typed by the parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import pytest
from hypothesis import given, strategies as st

from perdure.core.signature import Signature
from perdure.errors import InvalidValue

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


@dataclass
class Item:
    sku: str
    count: int = 1


class Options(TypedDict, total=False):
    note: str
    on: date


def plain(item: Item, day: date, /, how: str = "fast", *, urgent: bool = False) -> Later: ...  # type: ignore[empty-body]
def open_ended(first: int, *rest: Item, **more: date) -> None: ...
def optioned(first: int, **options: Unpack[Options]) -> None: ...
def needs_key(first: int, *, key: str) -> None: ...
def untyped(a, b=2): ...  # type: ignore[no-untyped-def]
def unresolved(a: OnlyForCheckers) -> None: ...
def nothing() -> int: ...  # type: ignore[empty-body]
def keyword_like(a: int, /, **a_: int) -> None: ...
def bad_type(a: complex) -> None: ...


class Shop:
    def sell(self, item: Item, count: int = 1) -> bool: ...  # type: ignore[empty-body]

    def __call__(self, item: Item) -> int: ...  # type: ignore[empty-body]


@dataclass
class Later:
    name: str


DAY = date(2024, 2, 29)


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "data"),
    [
        (plain, (Item("a"), DAY), {}, b'[{"sku":"a","count":1},"2024-02-29"]'),
        (plain, (Item("a"), DAY), {"how": "slow"}, b'[{"sku":"a","count":1},"2024-02-29","slow"]'),
        (
            plain,
            (Item("a"), DAY),
            {"urgent": True},
            b'{"args":[{"sku":"a","count":1},"2024-02-29"],"kwargs":{"urgent":true}}',
        ),
        (open_ended, (1, Item("a"), Item("b", 2)), {}, b'[1,{"sku":"a","count":1},{"sku":"b","count":2}]'),
        (open_ended, (), {"first": 1}, b"[1]"),
        (open_ended, (1,), {"when": DAY}, b'{"args":[1],"kwargs":{"when":"2024-02-29"}}'),
        (optioned, (1,), {"on": DAY, "note": "x"}, b'{"args":[1],"kwargs":{"on":"2024-02-29","note":"x"}}'),
        (needs_key, (1,), {"key": "k"}, b'{"args":[1],"kwargs":{"key":"k"}}'),
        (untyped, (1,), {"b": [2]}, b"[1,[2]]"),
        (untyped, ([1],), {}, b"[[1]]"),
        (nothing, (), {}, b"[]"),
        (keyword_like, (1,), {"a": 2}, b'{"args":[1],"kwargs":{"a":2}}'),
        (Shop().sell, (), {"count": 2, "item": Item("a")}, b'[{"sku":"a","count":1},2]'),
        (Shop(), (Item("a"),), {}, b'[{"sku":"a","count":1}]'),
        (functools.partial(plain, Item("a")), (DAY,), {}, b'["2024-02-29"]'),
    ],
)
def test_round_trip(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], data: bytes) -> None:
    signature = Signature(fn)
    assert signature.encode(args, kwargs) == data
    back = signature.decode(data)
    bound = signature._signature.bind(*args, **kwargs)
    assert back == (bound.args, bound.kwargs)
    assert signature.encode(*back) == data


def test_a_skipped_default_stays_a_keyword() -> None:
    def three(a: int, b: int = 2, c: int = 3) -> None: ...

    signature = Signature(three)
    assert signature.encode((1,), {"c": 5}) == b'{"args":[1],"kwargs":{"c":5}}'
    assert signature.decode(b'{"args":[1],"kwargs":{"c":5}}') == ((1,), {"c": 5})


def test_wrapped_functions_keep_their_signature() -> None:
    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    assert Signature(wrapper).decode(b'[{"sku":"a"},"2024-02-29"]') == ((Item("a"), DAY), {})


def test_closures_resolve_local_classes() -> None:
    @dataclass
    class Local:
        x: int

    def local(a: Local) -> Local:
        return Local(a.x)

    assert Signature(local).decode(b'[{"x":1}]') == ((Local(1),), {})
    assert Signature(local).returns.decode(b'{"x":1}') == Local(1)


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "message"),
    [
        (plain, (), {}, r"plain\(\): missing a required"),
        (plain, (1, 2, 3, 4), {}, "too many positional"),
        (plain, (1, 2), {"nope": 1}, "unexpected keyword"),
        (plain, (1,), {"day": 1}, "required|positional"),
        (plain, (1, 2, 3), {"how": 4}, "multiple values"),
        (needs_key, (1,), {}, "key"),
        (nothing, (1,), {}, "too many"),
    ],
)
def test_wrong_arguments_are_a_type_error(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        Signature(fn).encode(args, kwargs)


@pytest.mark.parametrize(
    ("fn", "data", "message"),
    [
        (plain, b'[{"sku":1},"2024-02-29"]', r"argument item of plain: Item: expected `str`, got `int` at \$\.sku: 1"),
        (plain, b'[{"sku":"a"},"2024-02-30"]', "argument day of plain: date: Invalid RFC3339 encoded date"),
        (plain, b"[]", r"not the arguments of plain: plain\(\): missing"),
        (plain, b"[1,2,3,4]", "too many positional"),
        (plain, b'{"args":[1,2],"kwargs":{"x":1}}', "unexpected keyword"),
        (plain, b'{"args":[1,2],"kw":{}}', "unknown field `kw`"),
        (plain, b"7", "not the arguments of plain: Expected `object`, got `int`: 7"),
        (plain, b"", "truncated"),
        (open_ended, b'[1,{"sku":"a"},{}]', "argument rest of open_ended: Item: object missing"),
        (open_ended, b'{"args":[1],"kwargs":{"x":"y"}}', "argument x of open_ended: date"),
        (optioned, b'{"args":[1],"kwargs":{"note":1}}', "argument note of optioned"),
    ],
)
def test_what_does_not_fit_names_the_parameter(fn: Callable[..., Any], data: bytes, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Signature(fn).decode(data)


def test_an_argument_that_cannot_be_stored_is_named() -> None:
    with pytest.raises(InvalidValue, match=r"argument b of untyped: JSON cannot hold nan, at \$\[0\]"):
        Signature(untyped).encode((1, [float("nan")]))
    with pytest.raises(InvalidValue, match="argument rest of open_ended: objects of type object"):
        Signature(open_ended).encode((1, 2, object()))


def test_annotations_are_resolved_late_and_errors_are_clear() -> None:
    assert Signature(plain).returns.decode(b'{"name":"x"}') == Later("x")
    signature = Signature(unresolved)
    assert signature.encode((1,)) == b"[1]"
    with pytest.raises(InvalidValue, match="annotation of unresolved cannot be resolved: name 'OnlyForCheckers'"):
        signature.decode(b"[1]")
    with pytest.raises(InvalidValue, match="argument a of bad_type: complex cannot be read back"):
        Signature(bad_type).decode(b"[1]")


def test_defaults_are_not_filled_in() -> None:
    assert Signature(untyped).decode(b"[1]") == ((1,), {})


def test_schema() -> None:
    schema = Signature(plain).schema()
    assert list(schema["properties"]) == ["item", "day", "how", "urgent"]
    assert schema["required"] == ["item", "day"]
    assert schema["additionalProperties"] is False
    assert "Item" in schema["$defs"]
    assert Signature(open_ended).schema()["properties"]["rest"]["type"] == "array"
    assert Signature(open_ended).schema()["additionalProperties"] == {"type": "string", "format": "date"}
    assert Signature(untyped).returns.schema() == {}


@given(st.lists(st.integers()), st.dictionaries(st.from_regex("[a-z]{1,5}", fullmatch=True), st.integers()))
def test_any_call_comes_back(args: list[int], kwargs: dict[str, int]) -> None:
    def anything(*numbers: int, **named: int) -> None: ...

    signature = Signature(anything)
    assert signature.decode(signature.encode(tuple(args), kwargs)) == (tuple(args), kwargs)
