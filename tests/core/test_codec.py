"""What goes in comes out, or is refused with the place."""

from __future__ import annotations

import enum
import math
import re
import subprocess
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec import Raw, Struct
from pydantic import BaseModel, Field

from perdure.core.codec import Codec, admit, canonical, codec_for, digest, encode
from perdure.core.encoding import DEPTH
from perdure.errors import InvalidValue

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Line:
    sku: str
    count: int = 1
    price: Decimal = Decimal("1.00")


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    tags: set[str] = field(default_factory=set)
    at: datetime | None = None
    patience: timedelta = timedelta(0)
    raw: bytes = b""
    color: Color = Color.RED
    by_day: dict[date, Level] = field(default_factory=dict)
    where: Path = Path("/tmp")
    pair: tuple[int, str] = (0, "")


class Card(Struct, frozen=True):
    number: str
    limit: int | None = None


class Cash(Struct, tag="cash"):
    amount: int


class Cheque(Struct, tag="cheque"):
    amount: int
    bank: str


class Point(NamedTuple):
    x: int
    y: int = 0


class Address(TypedDict):
    street: str
    city: NotRequired[str]


class Person(BaseModel):
    name: str = Field(alias="fullName")
    born: date
    tags: set[str] = set()
    nested: dict[str, frozenset[str]] = {}


class Pet(BaseModel):
    name: str
    legs: int = 4


@dataclass
class Box(Generic[T]):
    item: T


@dataclass
class Paid:
    amount: int
    note: str = ""


@dataclass
class Lost:
    reason: str


@dataclass
class Mailed:
    amount: int
    street: str = ""
    city: str = ""


@dataclass
class Parcel:
    id: str
    outcome: Paid | Lost
    history: list[Paid | Lost | None] = field(default_factory=list)


@dataclass
class Tree:
    name: str
    children: list[Tree | Lost] = field(default_factory=list)


class Envelope(Struct, rename="camel"):
    the_outcome: Paid | Lost
    seen_by: set[str] = set()


class Bag(TypedDict):
    outcome: Paid | Lost
    extra: NotRequired[int]


@dataclass
class Hidden:
    field: Nowhere  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Odd:
    names: list[str]
    size: complex = 0j


ORDER = Order(
    UUID(int=7),
    [Line("tea", 2, Decimal("4.50")), Line("pot")],
    {"b", "a"},
    datetime(2024, 2, 29, 12, 30, 1, 5, UTC),
    timedelta(days=2, microseconds=3),
    b"\x00\xff",
    Color.BLUE,
    {date(2024, 1, 1): Level.HIGH},
    Path("/a/b"),
    (1, "x"),
)

UserId = NewType("UserId", int)

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (list[Order], [ORDER]),
    (Card, Card("1", None)),
    (Cash | Cheque, Cheque(3, "b")),
    (list[Cash | Cheque], [Cash(1), Cheque(3, "b")]),
    (Point, Point(1, 2)),
    (Address, {"street": "s"}),
    (Person, Person(fullName="Ann", born=date(2000, 1, 1), tags={"x", "y"}, nested={"a": frozenset({"p", "q"})})),
    (list[Person], [Person(fullName="Ann", born=date(2000, 1, 1))]),
    (Pet | None, Pet(name="Rex")),
    (Pet | None, None),
    (Box[int], Box(3)),
    (Box[list[Line]], Box([Line("a")])),
    (dict[int, str], {2: "b", 1: "a"}),
    (dict[Color, int], {Color.RED: 1}),
    (dict[UUID, int], {UUID(int=1): 2}),
    (dict[Decimal, int], {Decimal("1.50"): 2}),
    (frozenset[int], frozenset({10, 2, 1})),
    (set[tuple[int, str]], {(1, "a"), (0, "b")}),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[Line, int], (Line("a"), 1)),
    (Literal["a", 1], "a"),
    (UserId, 5),
    (Annotated[int, msgspec.Meta(ge=0)], 5),
    (int | str | None, "x"),
    (Optional[int], None),  # noqa: UP045
    (Union[int, list[str]], ["a"]),  # noqa: UP007
    (time, time(1, 2, 3, tzinfo=UTC)),
    (datetime, datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
    (bytes, b"\x00"),
    (Path, Path("x/y")),
    (Mapping[str, int], {"b": 1, "a": 2}),
    (Sequence[Line], [Line("a")]),
    (int, 2**200),
    (Any, 10**300),
    (float, -0.0),
    (Any, {"b": [1, 2.0, None, True], "a": "\\u0000 \u2028 \U0001f600"}),
    (object, {"x": [1]}),
    (dict[str, object], {"x": [1], "y": None}),
    (list[Raw], [Raw(b"[1]"), Raw(b"null")]),
    (None, None),
    (type(None), None),
    (bool, True),
    # unions without tags
    (Paid | Lost, Paid(3)),
    (Paid | Lost, Lost("rain")),
    (Paid | Lost | None, None),
    (Paid | Lost | int, 7),
    (Paid | dict[str, int], {"x": 1}),
    (Paid | Lost | list[str], ["a"]),
    (Paid | Card | Pet | Address, Card("12", 5)),
    (Paid | Card | Pet | Address, Pet(name="Rex")),
    (Paid | Card | Pet | Address, {"street": "s", "city": "c"}),
    (list[Paid | Lost], [Paid(1), Lost("x")]),
    (dict[str, Paid | Lost | None], {"a": Paid(1), "b": Lost("x"), "c": None}),
    (tuple[Paid | Lost, ...], (Paid(1), Lost("x"))),
    (Annotated[list[Paid | Lost], msgspec.Meta(max_length=3)], [Lost("x")]),
    (Pet | Paid, Paid(1)),
    (Parcel, Parcel("p", Lost("rain"), [Paid(1), None])),
    (list[Parcel] | None, [Parcel("p", Paid(1))]),
    (Envelope, Envelope(Lost("x"), {"b", "a"})),
    (Bag, {"outcome": Paid(4), "extra": 1}),
    (Tree, Tree("a", [Tree("b", [Lost("c")]), Lost("d")])),
]


@pytest.mark.parametrize(
    ("annotation", "value"),
    ROUND_TRIPS,
    ids=[f"{number}-{annotation}" for number, (annotation, _) in enumerate(ROUND_TRIPS)],
)
def test_round_trip(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    data = codec.encode(value)
    back = codec.decode(data)
    assert back == value
    assert type(back) is type(value)
    assert codec.decode(Raw(data)) == value
    assert encode(back) == data
    assert canonical(canonical(data)) == canonical(data)
    assert isinstance(codec.schema(), dict)
    msgspec.json.encode(codec.schema())


def test_codecs_are_made_once_and_order_counts() -> None:
    assert codec_for(list[Line]) is codec_for(list[Line])
    both = b'{"amount": 1}'
    assert codec_for(Paid | Mailed).decode(both) == Paid(1)
    assert codec_for(Mailed | Paid).decode(both) == Mailed(1)


def test_annotations_that_cannot_be_hashed_work() -> None:
    codec = codec_for(Annotated[int, {"unhashable": []}])
    assert codec.decode(b"1") == 1


def test_dicts_keep_their_order() -> None:
    value = {"b": [1], "a": {"d": [{"z": 1, "y": 2}], "c": 1}}
    assert encode(value) == b'{"b":[1],"a":{"d":[{"z":1,"y":2}],"c":1}}'
    assert list(codec_for(dict).decode(encode(value))) == ["b", "a"]


def test_sets_are_sorted_wherever_they_are() -> None:
    assert encode({"b": {10, 9, 2}, "a": [{"y", "x"}]}) == b'{"b":[2,9,10],"a":[["x","y"]]}'
    assert encode({2, "a", None}) == b'["a",2,null]'
    assert encode({frozenset({2, 1}), frozenset({3})}) == b"[[1,2],[3]]"
    assert encode({1: {"b", "a"}}) == b'{"1":["a","b"]}'
    assert encode(Envelope(Lost("x"), {"b", "a", "c"})) == b'{"theOutcome":{"reason":"x"},"seenBy":["a","b","c"]}'
    assert encode(Box((Box({"q", "p", "r"}), {"z": 0, "k": 1}))) == b'{"item":[{"item":["p","q","r"]},{"z":0,"k":1}]}'


def test_settling_leaves_the_value_alone() -> None:
    value = Envelope(Lost("x"), {"b", "a", "c"})
    encode([value, {"z": 1, "a": 2}])
    assert value.seen_by == {"a", "b", "c"}


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "from tests.core.test_codec import *;"
        "p = Person(fullName='A', born=date(2000,1,1), tags=set('qwertyuiop'), nested={'n': frozenset('asdfgh')});"
        "print(encode([set('qwertyuiop'), p, {'z': set('abcdef')}, ORDER]))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(["src", ".", *sys.path])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


deep: list[Any] = []
for _ in range(DEPTH):
    deep = [deep]
very_deep: list[Any] = []
for _ in range(100_000):
    very_deep = [very_deep]
circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, r"JSON cannot hold nan, at \$: nan"),
        ([None, -math.inf], r"JSON cannot hold -inf, at \$\[1\]"),
        ({"a": [Line("x"), {"b": math.nan}]}, r"at \$\.a\[1\]\.b"),
        (Box(math.inf), r"at \$\.item: inf"),
        ({math.nan: 1}, "JSON cannot hold the key nan"),
        ("a\0b", r"NUL character cannot be stored, at \$: 'a"),
        ([Card("x\0")], r"NUL .* at \$\[0\]\.number"),
        ({"\0": 1}, "in a key, a NUL"),
        (Pet(name="\0"), r"NUL .* at \$\.name"),
        ("\ud800", r"lone surrogate cannot be stored, at \$"),
        ({"a": ["\udfff"]}, r"lone surrogate .* at \$\.a\[0\]"),
        ({"\udfff": 1}, "in a key, a lone surrogate"),
        (10**5000, "4300 digits"),
        ({"a": object()}, r"objects of type object cannot be stored.* at \$\.a: <object"),
        (Box([1, 2j]), r"complex cannot be stored.* at \$\.item\[1\]: 2j"),
        (deque([1]), "deque"),
        (ValueError("x"), "ValueError cannot be stored"),
        (print, "cannot be stored"),
        ({None: 1}, "a key of type NoneType cannot be stored: use str, int or an enum"),
        ([{"a": 1, (1, 2): 1}], r"a key of type tuple cannot be stored: use str, int or an enum, at \$\[0\]"),
        ({True: 1}, "a key of type bool"),
        ({1: "a", "1": "b"}, "the keys 1 and '1' are the same in JSON"),
        ({"x": [{Level.LOW: 1, "1": 2}]}, "the same in JSON"),
        (datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=1, seconds=30))), "offset with seconds"),
        ([time(1, 2, 3, 4, tzinfo=timezone(-timedelta(hours=1, seconds=30)))], r"offset with seconds .* at \$\[0\]"),
        (deep, "deeper than 200"),
        (very_deep, "nested deeper than 200|recursion"),
        (circle, "deeper than 200 levels, or holds itself"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_what_cannot_be_stored_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message) as caught:
        encode(value)
    assert len(str(caught.value)) < 500


def test_depth_at_the_limit_is_fine_and_brackets_in_strings_do_not_count() -> None:
    assert codec_for(Any).decode(encode(deep[0])) == deep[0]
    text = "[{" * 300 + "]" * 7
    assert codec_for(str).decode(encode(text)) == text
    assert codec_for(list[str]).decode(encode([text] * 300)) == [text] * 300


def test_a_copy_of_a_class_with_its_own_ways_is_not_needed() -> None:
    assert encode(OrderedDict(b=1, a=2)) == b'{"b":1,"a":2}'
    assert encode(Counter("aab")) == b'{"a":2,"b":1}'


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "shown"


class Size(int):
    pass


class Rate(float):
    pass


def test_subclasses_of_plain_types_are_stored_as_those() -> None:
    assert encode([Name("x"), Size(3), Rate(2.5)]) == b'["x",3,2.5]'
    with pytest.raises(InvalidValue, match="nan"):
        encode([Rate("nan")])


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), inner)
    ),
)


@given(json_values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    data = encode(value)
    back = codec_for(Any).decode(data)
    assert back == value
    assert repr(back) == repr(value)  # order, -0.0 and the difference between 1 and 1.0 too
    assert admit(data) == data


@given(
    st.builds(
        Order,
        lines=st.lists(
            st.builds(
                Line,
                st.text(st.characters(codec="utf-8", exclude_characters="\0")),
                st.integers(),
                st.decimals(allow_nan=False, allow_infinity=False),
            )
        ),
        tags=st.sets(st.text(st.characters(codec="utf-8", exclude_characters="\0"))),
        at=st.none() | st.datetimes(timezones=st.just(UTC)) | st.datetimes(),
        where=st.just(Path("/x")),
        pair=st.tuples(st.integers(), st.just("x")),
    )
)
def test_typed_values_come_back_as_they_were(order: Order) -> None:
    codec = codec_for(Order)
    data = codec.encode(order)
    assert codec.decode(data) == order
    assert codec.encode(codec.decode(data)) == data


@given(st.sets(st.text(max_size=3) | st.integers() | st.none() | st.frozensets(st.integers())))
def test_equal_sets_give_equal_bytes(items: set[Any]) -> None:
    if any("\0" in item or re.search("[\ud800-\udfff]", item) for item in items if isinstance(item, str)):
        return
    other: set[Any] = set()
    for item in sorted(items, key=repr):
        other.add(item)
    assert encode(items) == encode(other)


@pytest.mark.parametrize(
    ("annotation", "data", "message"),
    [
        (int, b'"x"', r"int: expected `int`, got `str` at \$: 'x'"),
        (int, b"1.5", "expected `int`, got `float`"),
        (int, b"1" * 5000, "out of range"),
        (float, b"1e400", "out of range"),
        (Line, b'{"sku":1}', r"Line: expected `str`, got `int` at \$\.sku: 1"),
        (Line, b"{}", r"object missing required field `sku` at \$: {}"),
        (list[Line], b'[{"sku":"a"},{"sku":"b","count":"n"}]', r"at \$\[1\]\.count: 'n'"),
        (dict[str, int], b'{"a":"b"}', r"expected `int`, got `str` at \$\[\.\.\.\]: {'a': 'b'}"),
        (Color, b'"green"', "Invalid enum value 'green'"),
        (Path, b"1", "expected `Path`, got `int`"),
        (Person, b'{"fullName":"x","born":"no"}', r"Person: Input should be a valid date.* at \$\.born: 'no'"),
        (list[Pet], b'[{"name":1}]', r"Pet: Input should be a valid string at \$\.name: 1 at \$\[0\]: {'name': 1}"),
        (Any, b"{", "truncated"),
        (Any, b"NaN", "malformed"),
        (Any, b'"\xff"', "utf-8"),
        (Any, b"", "truncated"),
        (None, b"1", "None: expected `null`, got `int`"),
        (Paid | Lost, b'{"x":1}', r"not Paid \(amount missing; x unknown\), not Lost \(reason missing; x unknown\)"),
        (Paid | Lost, b'{"reason":1}', r"not Lost \(Lost: expected `str`, got `int` at \$\.reason: 1\)"),
        (Paid | Lost, b"[1]", "got `list`"),
        (list[Paid | Lost], b'[{"amount":1},{}]', r"fits none: .* at \$\[1\]"),
        (Parcel, b'{"id":"x"}', "missing required field `outcome`"),
        (Parcel, b'{"id":"x","outcome":{"amount":"much"}}', "outcome of Parcel: .*got `str`"),
        (Parcel, b"[]", "expected `Parcel`, got `list`"),
    ],
)
def test_what_does_not_fit_is_refused(annotation: Any, data: bytes, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        codec_for(annotation).decode(data)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (complex, "complex cannot be read back from JSON: use a dataclass"),
        (Odd, "Odd: complex cannot be read back"),
        (Iterator[int], "Iterator cannot be read back"),
        (datetime | str, "more than one str-like type"),
        (list[int] | set[int], "more than one array-like"),
        (Path | str, "tag the Structs"),
        ("Line", "'Line' is not resolved"),
        (Hidden, "name 'Nowhere' is not defined; define or import it at module level"),
        (list[Hidden | Line], "'Nowhere' is not defined"),
        (Exception, "Exception cannot be read back"),
        (3, "cannot be read back"),
    ],
)
def test_an_annotation_that_cannot_be_read_back_is_refused_at_once(annotation: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        codec_for(annotation)


def test_a_field_that_cannot_be_read_back_is_named() -> None:
    @dataclass
    class Bad:
        fine: int
        broken: datetime | str

    Bad.__annotations__["broken"] = datetime | str
    with pytest.raises(InvalidValue, match="field broken of .*Bad: .*more than one str-like type"):
        codec_for(Bad)


def test_best_fit_takes_most_fields_then_the_first() -> None:
    codec: Codec[Any] = codec_for(Paid | Mailed)
    assert codec.decode(b'{"amount":1,"city":"x"}') == Mailed(1, city="x")
    assert codec.decode(b'{"amount":1,"note":"x"}') == Paid(1, "x")
    assert codec.decode(b'{"amount":1}') == Paid(1)
    assert codec_for(dict[str, int] | Paid).decode(b'{"amount":1}') == Paid(1)


def test_missing_annotation_gives_plain_types() -> None:
    plain: Any = codec_for(object).decode(encode(ORDER))
    assert plain["color"] == "blue"


def test_schemas() -> None:
    assert codec_for(Any).schema() == {}
    assert codec_for(int).schema() == {"type": "integer"}
    assert codec_for(Path).schema() == {"type": "string", "format": "path"}
    assert codec_for(Pet).schema()["properties"]["legs"]["default"] == 4
    mixed = codec_for(list[Pet | Line]).schema()
    assert mixed["items"]["anyOf"][0]["title"] == "Pet"
    assert "Line" in mixed["$defs"]
    assert codec_for(Tree).schema()["required"] == ["name"]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"nul", b"NaN", b"Infinity", b"1e400", b'"\\u0000"', b'{"\\u0000":1}', b'"\\ud800"', b'"\xff"',
        b"9" * 5000, b'{"a":1,"a":1}', b'{"x":{"\\u0061":1, "a":2}}', b"[" * 10_000 + b"]" * 10_000,
        b"[" * 202 + b"]" * 202,
        b'["]",' * 250 + b"1" + b',"["]' * 250, b"[1,]", b"{1:2}", b"\x00", b'"a\x00b"', b"1 2",
    ],
)  # fmt: skip
def test_poison_stays_outside(data: bytes) -> None:
    with pytest.raises(InvalidValue) as caught:
        admit(data)
    assert len(str(caught.value)) < 500


def test_good_foreign_json_is_made_compact() -> None:
    assert (
        admit(b' {"a" : "\\u00e9 \\\\u0000 \\":", "b": {"a": 1}} ') == '{"a":"é \\\\u0000 \\":","b":{"a":1}}'.encode()
    )


def test_canonical_and_digest() -> None:
    assert canonical(b'{"b":{"d":1,"c":2},"a":[{"z":1,"y":2}]}') == b'{"a":[{"y":2,"z":1}],"b":{"c":2,"d":1}}'
    assert canonical(b"[1, 1.0, 100000000000000000000000]") == b"[1,1.0,100000000000000000000000]"
    with pytest.raises(InvalidValue):
        canonical(b"{")
    assert digest("a", b"b") == digest(b"a", "b") != digest("ab")


def test_pydantic_is_not_imported_for_others() -> None:
    script = (
        "import sys; from perdure.core.codec import codec_for, encode; encode({'a': {1, 2}});"
        "codec_for(dict[str, int]); assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": ":".join(["src", *sys.path])}, check=True)
