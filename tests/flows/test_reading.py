"""Definitions as text: what is read, and what is refused, where and how quickly."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from perdure.errors import InvalidValue
from perdure.flows import reading
from perdure.flows.reading import DEPTH, LENGTH, VALUES, canonical, content_hash, plain, read

YAML = """
machine: order          # a comment
on: {yes: no, off: "on"}
at: 2026-01-02
time: 12:30:45
hex: 0x1F
octal: 0o17
text: |
  two
  lines
list:
- 1
- -2.5e3
- ~
- true
-
"""


def refused(text: str | bytes, name: str = "a.yaml") -> str:
    began = time.process_time()
    with pytest.raises(InvalidValue) as caught:
        read(text, name)
    assert time.process_time() - began < 3, "what is too much is refused while it is being read"
    return str(caught.value)


def test_yaml_is_read_as_its_version_1_2_means_it() -> None:
    assert read(YAML, "a.yaml") == {
        "machine": "order",
        "on": {"yes": "no", "off": "on"},
        "at": "2026-01-02",
        "time": "12:30:45",
        "hex": 31,
        "octal": 15,
        "text": "two\nlines\n",
        "list": [1, -2500.0, None, True, None],
    }


@pytest.mark.parametrize(
    "word", ["on", "On", "yes", "NO", "off", "y", "n", "1_000", "2001-12-14t21:59:43", "0b11", "="]
)
def test_a_word_of_older_yaml_is_a_string(word: str) -> None:
    assert read(f"a: {word}", "a.yaml") == {"a": word}
    assert read(f"{word}: 1", "a.yaml") == {word: 1}


@pytest.mark.parametrize(
    "value", [True, None, 1, -7, 2.5, 1e300, 'ß 𝄞 \\ " \n', [], {}, [[{"a": [1]}]], 2**64 - 1, -(2**63)]
)
def test_json_is_read_as_it_is_written(value: Any) -> None:
    assert read(json.dumps({"a": value}), "a.json") == {"a": value}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_what_json_writes_is_read_back(value: Any) -> None:
    assert read(json.dumps([value]), "a.json") == [value]
    assert read(canonical({"a": value}), "a.json") == {"a": value}


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for name in ("a.json", "a.yaml", "definition"):
        with suppress(InvalidValue):
            read(text, name)


def test_the_name_says_what_a_text_is_and_else_its_first_character() -> None:
    assert read('{"a": 1}') == read("a: 1") == read("{a: 1}", "a.yml") == {"a": 1}
    assert "a.json:1:1" in refused("a: 1", "a.json")


def test_a_mark_at_the_beginning_is_no_content() -> None:
    assert read(b"\xef\xbb\xbfa: 1", "a.yaml") == read("\ufeff" + '{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("a: 1\nb: *c", "2:4", "aliases"),
        ("a: &b 1", "1:4", "anchors"),
        ("a: !!python/object:os.system x", "1:4", "tags"),
        ("a: !b {}", "1:4", "tags"),
        ("a: !!str 1", "1:4", "tags"),
        ("<<: {a: 1}", "1:1", "merge"),
        ("a: 1\n b: 2", "2:3", "not YAML"),
        ("a: {b: 1, b: 2}", "1:11", "'b' is given twice"),
        ("1: a", "1:1", "a key is a string"),
        ("true: a", "1:1", "a key is a string"),
        ("~: a", "1:1", "a key is a string"),
        ("? [a]\n: b", "1:3", "a key is a string"),
        ("a: .nan", "1:4", "JSON does not have"),
        ("a: -.inf", "1:4", "JSON does not have"),
        ("a: 1e999", "1:4", "too large"),
        ("a: 18446744073709551616", "1:4", "too large"),
        ("a: " + "9" * 100_000, "1:4", "too large"),
        ("a: 010", "1:4", "begin with 0"),
        ("a: 1\n---\nb: 2", "2:1", "second document"),
        ("a: ]", "1:4", "not YAML"),
        ("\tx: 1", "1:1", "not YAML"),
    ],
)
def test_yaml_that_is_not_plain_is_refused_at_its_place(text: str, place: str, why: str) -> None:
    message = refused(text)
    assert message.startswith(f"a.yaml:{place}: ")
    assert why in message


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ('{"a": 1,\n "a": 2}', "2:2", "'a' is given twice"),
        ('{"a": NaN}', "1:7", "'NaN' is no value of JSON"),
        ('{"a": -Infinity}', "1:7", "'-Infinity' is no value of JSON"),
        ('{"a": 1e999}', "1:7", "too large"),
        ('{"a": 010}', "1:8", "a comma or }"),
        ('{"a": 1', "1:8", "a comma or }"),
        ('{"a" 1}', "1:6", "a colon"),
        ("{a: 1}", "1:2", "a key in double quotes"),
        ("[1,]", "1:4", "a value is expected"),
        ("[", "1:2", "too early"),
        ('["a\nb"]', "1:4", "control character"),
        ('["a', "1:2", "Unterminated"),
        ("[1] 2", "1:5", "more after the end"),
        ("", "1:1", "too early"),
    ],
)
def test_json_that_is_not_plain_is_refused_at_its_place(text: str, place: str, why: str) -> None:
    message = refused(text, "a.json")
    assert message.startswith(f"a.json:{place}: ")
    assert why in message


def test_half_a_character_is_refused() -> None:
    assert "surrogate" in refused('{"a": "\\ud800"}', "a.json")
    assert "surrogate" in refused('{"\\ud800": 1}', "a.json")


@pytest.mark.parametrize(("open", "close"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_what_is_nested_too_deep_is_refused_at_once(open: str, close: str, name: str) -> None:
    count = min(100_000, LENGTH // (len(open) + 2))
    assert "nested deeper" in refused(open * count, name)
    assert "nested deeper" in refused(open * count + "1" + close * count, name)


def test_yaml_that_is_indented_too_deep_is_refused() -> None:
    assert "nested deeper" in refused("\n".join("  " * depth + "a:" for depth in range(400)))


def test_what_is_as_deep_as_allowed_is_read() -> None:
    for name in ("a.json", "a.yaml"):
        read("[" * DEPTH + "]" * DEPTH, name)
        refused("[" * (DEPTH + 1) + "]" * (DEPTH + 1), name)


def test_too_many_values_are_refused() -> None:
    for name in ("a.json", "a.yaml"):
        read("[" + "1," * (VALUES - 2) + "1]", name)
        assert "values" in refused("[" + "1," * (VALUES - 1) + "1]", name)


def test_a_long_text_is_refused_before_it_is_looked_at() -> None:
    assert "bytes" in refused("a" * (LENGTH + 1))
    assert "bytes" in refused("ß" * (LENGTH // 2 + 1))
    assert "bytes" in refused(b"a" * 100_000_000)
    assert "bytes or more" in refused("{}" + " " * LENGTH), "it is not read, though it says little"


def test_a_bomb_of_aliases_is_refused() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    assert "anchors" in refused(bomb)


def test_bytes_that_are_not_text_are_refused() -> None:
    assert "UTF-8" in refused(b"\xff\xfe\x00")
    assert refused("a: \x00").startswith("a.yaml")


def test_it_is_read_without_the_parser_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(reading.yaml, "CSafeLoader", raising=False)
    assert read("on: [1, 'x']", "a.yaml") == {"on": [1, "x"]}
    assert "nested deeper" in refused("[" * 100_000)


def test_data_of_python_has_the_same_limits() -> None:
    deep: Any = 1
    for _ in range(DEPTH):
        deep = [deep]
    for value in (
        deep,
        [0] * VALUES,
        {"a": "x" * LENGTH},
        {1: 2},
        math.nan,
        [math.inf],
        2**64,
        b"",
        {"a": {1, 2}},
        "\ud800",
    ):
        with pytest.raises(InvalidValue):
            plain(value)
    assert plain({"b": (1, 2), "a": None}) == {"a": None, "b": [1, 2]}


def test_the_hash_depends_on_content_and_not_on_form() -> None:
    one = read('{"b": [1, 2], "a": {"y": 1, "x": "ß"}}')
    two = read("a: {x: ß, y: 1}\nb:\n- 1\n- 2\n", "a.yaml")
    assert canonical(one) == canonical(two) == '{"a":{"x":"ß","y":1},"b":[1,2]}'.encode()
    assert content_hash(one) == content_hash(two)
    assert content_hash(one) != content_hash(read("a: {x: ß, y: 2}\nb:\n- 1\n- 2\n", "a.yaml"))
    assert len(content_hash(one)) == 64
