"""Our evaluator beside the reference: the same outputs for the same programs and inputs, or an error from both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from perdure.core import jq
from perdure.errors import ExpressionError

reference = pytest.importorskip("jq")

#: program, input, ours, jq's: where we differ on purpose. The same list, in words, is in `perdure.core.jq`.
DIFFERENCES: list[tuple[str, Any, Any, Any]] = [
    # Integers keep their digits.
    ("9007199254740993", None, [9007199254740993], [9007199254740992]),
    (". + 1", 9007199254740993, [9007199254740994], [9007199254740992]),
    ("0 * -1 | tostring", None, ["0"], ["-0"]),
    # Numbers are shown in their shortest form, not as they were written.
    ("1e3 | tostring", None, ["1000"], ["1E+3"]),
    ("1.50 | tostring", None, ["1.5"], ["1.50"]),
    # Empty matches move on by characters; in jq by bytes.
    ('[match(""; "g").offset]', "aéb", [[0, 1, 2, 3]], [[0, 1, 2, 2, 3]]),
    # What is made anew is no path, even if it happens to be the same as the input.
    ("[path(. = .)]", {"a": 1}, "error", [[[]]]),
    # In addition.
    ("[leaf_paths]", {"a": [1]}, [[["a", 0]]], "error"),
    ("toarray", 1, [[1]], "error"),
    ("@base32", "a", ["ME======"], "error"),
    # Refused.
    ("now | type", None, "error", ["number"]),
    ("env | type", None, "error", ["object"]),
    ("$ENV | type", None, "error", ["object"]),
    ("try input catch .", None, "error", ["break"]),
    ("builtins | type", None, "error", ["array"]),
    ('test("(a+)+$")', "a", "error", [True]),
    ('test("(.)\\\\1")', "aa", "error", [True]),
    ('test("\\\\p{L}")', "a", "error", [True]),
    ("[range(200000)] | length", None, "error", [200000]),
    ("reduce range(1000) as $i (0; [.]) | tojson | length", None, "error", [2001]),
    ("100000000000 * 1000 | todate", None, "error", ["3170843-11-07T09:46:40Z"]),
]


def corpus() -> Iterator[tuple[str, Any]]:
    value: Any = None
    for line in Path(__file__).with_name("jq_corpus.txt").read_text().splitlines():
        if line.startswith("= "):
            value = json.loads(line[2:])
        elif line and not line.startswith("#"):
            yield line, value


def ours(program: str, value: Any) -> Any:
    try:
        return list(jq.compile(program).each(value))
    except ExpressionError:
        return "error"


def theirs(program: str, value: Any) -> Any:
    try:
        return reference.compile(program).input_value(value).all()
    except ValueError:
        return "error"


def shown(value: Any) -> str:
    """Text that two values share if they are the same: the order of keys counts, how a number is held does not."""
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {shown(item)}' for name, item in value.items())}}}"
    return repr(value)


@pytest.mark.parametrize(("program", "value"), list(corpus()))
def test_a_program_gives_what_it_gives_in_jq(program: str, value: Any) -> None:
    assert shown(ours(program, value)) == shown(theirs(program, value))


def test_the_corpus_is_large() -> None:
    assert sum(1 for _ in corpus()) >= 400


@pytest.mark.parametrize(("program", "value", "our", "their"), DIFFERENCES)
def test_what_differs_on_purpose_differs_as_documented(program: str, value: Any, our: Any, their: Any) -> None:
    assert (shown(ours(program, value)), shown(theirs(program, value))) == (shown(our), shown(their))


# --- programs that nobody thought of ---------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 20),
    st.sampled_from([0.5, -1.25, 2.75]),
    st.sampled_from(["", "a", "b", "ab", "a b", "é", "10", "A"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
TERMS = st.sampled_from(
    [
        ".", ".a", ".b", ".[0]", ".[-1]", ".[]", ".[]?", ".a?", ".[1:]", ".[:1]", "..", "0", "1", "-2", "0.5",
        '"a"', "null", "true", "false", "[]", "{}", "empty", "length", "type", "keys", "add", "any", "all",
        "not", "sort", "unique", "reverse", "min", "max", "tojson", "to_entries", "first", "last", "flatten",
        "values", "scalars", "floor", "tostring", "explode", "ascii_upcase", "[paths]", "transpose",
        "from_entries", "numbers", "iterables", "isnan", "utf8bytelength", "trim", "$x", "tonumber", "error",
        "[.[]?]", "[..]", "to_entries", "@json", "@text", "@csv", "abs", "[tostream]", "implode",
    ]
)  # fmt: skip
ONE = [
    "({})?", "[{}]", "(try ({}) catch .)", "map({})", "select({})", "[limit(2; {})]", "first({})", "path({})",
    "[path({})]", "map_values({})", "sort_by({})", "group_by({})", "has({})", "contains({})", "del({})",
    "with_entries({})", "any({})", "all({})", "isempty({})", "-({})", '"<\\({})>"', "{{a: {}}}", "{{({}): 1}}",
    ".[{}]", "last({})", "add({})", "walk({})", "getpath({})", "index({})", "indices({})", "split({})",
    "join({})", "min_by({})", "max_by({})", "unique_by({})", "startswith({})", "ltrimstr({})",
    "[recurse({}; false)]", "pick({})", "in({})", "inside({})", "flatten({})", "IN({})",
    "(label $f | {}, break $f)", "(def f: {}; f)", "(def f(g): g, g; f({}))", "[range({})]", "delpaths({})",
    "bsearch({})", "(if {} then 1 end)", "[.[]? | {}]", "tojson", "skip(1; {})", "nth(1; {})", "INDEX({})",
    "[splits({})]?", "[.[:{}]]",
]  # fmt: skip
TWO = [
    "({} | {})", "({}, {})", "({} + {})", "({} - {})", "({} * {})", "({} / {})", "({} % {})", "({} == {})",
    "({} != {})", "({} < {})", "({} <= {})", "({} and {})", "({} or {})", "({} // {})", "({} = {})",
    "({} |= {})", "({} += {})", "({} //= {})", "(if {} then {} else . end)", "({} as $x | {})",
    "(reduce {} as $x (0; {}))", "[foreach {} as $x (.; {})]", "({} as [$x] | {})", "({} as {{a: $x}} | {})",
    "[limit(3; {} | {})]", "setpath({}; {})", "(try ({}) catch ({}))", "{{a: {}, b: {}}}", ".[{}:{}]",
    "(def f($x): {}; f({}))", "any({}; {})", "all({}; {})", "[({}) -= ({})]", "({} *= {})", "test({}; {})?",
    "[range({}; {})]", "IN({}; {})", "[.[]? | {} | {}]",
]  # fmt: skip


def _wrapped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    one = st.builds(lambda form, a: form.format(a), st.sampled_from(ONE), inner)
    two = st.builds(lambda form, a, b: form.format(a, b), st.sampled_from(TWO), inner, inner)
    return one | two


PROGRAMS = st.recursive(TERMS, _wrapped, max_leaves=6)


@settings(
    max_examples=300, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(PROGRAMS, VALUES)
def test_random_programs_agree_with_jq(program: str, value: Any) -> None:
    program = f"(1, .a?) as $x | {program}"
    # Integers have no minus zero here; all else must be the same.
    assert shown(ours(program, value)).replace("-0", "0") == shown(theirs(program, value)).replace("-0", "0")
