from __future__ import annotations

import copy
import math
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any

import pytest

from perdure.core import jq
from perdure.core.jq.calls import BANNED
from perdure.core.jq.limits import NESTED, Limits
from perdure.errors import ExpressionError, InvalidValue

# --- programs --------------------------------------------------------------------------------------------------------


def test_one_gives_the_one_output() -> None:
    assert jq.compile(".a + 1").one({"a": 1}) == 2


@pytest.mark.parametrize(
    ("text", "said"), [("empty", "no output"), ("1, 2", "more than one output"), (".[]", "no out")]
)
def test_one_refuses_any_other_number_of_outputs_and_advises(text: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said) as raised:
        jq.compile(text).one([])
    assert "`[ ]`" in str(raised.value)


@pytest.mark.parametrize(("value", "truth"), [(None, False), (False, False), (0, True), ("", True), ([], True)])
def test_truth_is_that_of_jq(value: Any, truth: bool) -> None:
    assert jq.compile(".").true(value) is truth


def test_each_gives_outputs_as_they_come() -> None:
    outputs = jq.compile('1, error("late")').each(None)
    assert next(outputs) == 1
    with pytest.raises(ExpressionError, match="late"):
        next(outputs)


def test_variables_are_given_by_name() -> None:
    program = jq.compile("[$b, $a, .]", ["a", "b"])
    assert program.one(0, a=1, b=2) == [2, 1, 0]


@pytest.mark.parametrize("given", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 3}])
def test_variables_must_be_those_it_was_compiled_with(given: dict[str, Any]) -> None:
    with pytest.raises(ExpressionError, match=r"\$a, \$b"):
        jq.compile("$a + $b", ["a", "b"]).one(None, **given)


def test_the_same_text_is_compiled_once() -> None:
    assert jq.compile(".once") is jq.compile(".once")
    assert jq.compile("$v", ["v"]) is not jq.compile("1 as $v | $v")


def test_inputs_are_never_changed() -> None:
    value = {"a": [3, 1, {"b": "x"}], "c": {"d": None}}
    before = copy.deepcopy(value)
    program = jq.compile(".a[2].b = 1 | .a |= sort | del(.c.d) | .c.e += 1 | to_entries | map(.value) | flatten")
    program.one(value)
    assert value == before


def test_literals_of_a_program_are_not_changed_by_what_is_made_of_them() -> None:
    program = jq.compile('[1, 2] | . + [.[0]] | .[0] = 9, {"a": []}')
    assert list(program.each(None)) == list(program.each(None)) == [[9, 2, 1], {"a": []}]


def test_integers_keep_their_digits() -> None:
    big = 12345678901234567890
    assert jq.compile(".").one(big) == big
    assert jq.compile("tojson").one([big]) == "[12345678901234567890]"
    assert jq.compile(". + 1").one(2**53) == 2**53 + 1
    assert jq.compile(". * 1000 / 1000").one(9007199254740993) == 9007199254740993


def test_integers_beyond_64_bits_become_floats() -> None:
    found = jq.compile(". * .").one(2**62)
    assert type(found) is float and found == 2.0**124


def test_outputs_are_numbers_that_json_can_hold() -> None:
    assert jq.compile("[nan, infinite, -infinite]").one(None) == [None, sys.float_info.max, -sys.float_info.max]
    assert jq.compile("{a: {b: (1e308 * 10)}}").one(None) == {"a": {"b": sys.float_info.max}}


@pytest.mark.parametrize("value", [10**400, -(10**400), [10**400, 1, 1.5], {"a": 10**400}])
def test_huge_integers_of_an_input_break_nothing(value: Any) -> None:
    for text in [
        "tojson",
        ". + 1",
        ". * 2.5",
        "sqrt",
        "sort",
        "[.] | tojson",
        "floor",
        "-.",
        ". % 7",
        "todate",
        "has(.)",
    ]:
        try:
            jq.compile(text).one(value)
        except ExpressionError:
            continue


def test_half_a_character_breaks_nothing() -> None:
    for text in [
        "@uri",
        "@base64",
        "tojson",
        "utf8bytelength",
        "explode",
        'test("a")',
        "error",
        "ascii_upcase",
        "@html",
    ]:
        try:
            jq.compile(text).one("\ud800")
        except ExpressionError:
            continue


def test_a_simple_expression_takes_microseconds() -> None:
    program = jq.compile(".data.amount > 100")
    value = {"data": {"amount": 150}}
    best = min(timeit.repeat(lambda: program.one(value), number=1000, repeat=20)) / 1000
    assert best < 5e-6


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("", 0, "empty"),
        (".a +", 4, "missing before the end"),
        (".a | foo(1)", 5, "no function `foo` with 1 argument"),
        ("map(.; .)", 0, "no function `map` with 2 arguments (it takes 1)"),
        ("$nope", 0, "`$nope` is not defined"),
        ("break $out", 0, "no `label $out`"),
        ('"abc', 0, "not closed"),
        ('"\\x"', 1, "no such escape"),
        (".a ^ 2", 3, "no expression has '^' here"),
        ("1 == 2 == 3", 7, "put parentheses"),
        ("{1: 2}", 1, "a key is missing"),
        ("if . then 1", 11, "`end` is missing"),
        ("(1", 2, "`)` is missing"),
        (". as 1 | 2", 5, "a pattern is missing"),
        ("_match(1; 2)", 0, "no function `_match`"),
    ],
)
def test_an_error_in_the_text_names_its_place(text: str, position: int, said: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        jq.compile(text)
    assert said in str(raised.value)
    assert raised.value.position == position


def test_an_error_in_the_text_shows_the_line_with_a_caret() -> None:
    with pytest.raises(ExpressionError) as raised:
        jq.compile(".a\n| .b +\n| .c")
    assert str(raised.value).splitlines() == [
        "an expression is missing before `|`, at line 3, column 1:",
        "  | .c",
        "  ^",
    ]


def test_a_long_line_is_shown_around_the_place() -> None:
    with pytest.raises(ExpressionError) as raised:
        jq.compile(" " * 500 + "foo" + " " * 500)
    _, line, caret = str(raised.value).splitlines()
    assert len(line) < 110
    assert line[caret.index("^") :].startswith("foo")


def test_an_error_while_running_shows_the_expression() -> None:
    with pytest.raises(ExpressionError, match=r"the expression `\.a \+ 1` failed: string \(\"x\"\) and number \(1\)"):
        jq.compile(".a + 1").one({"a": "x"})


def test_an_expression_error_is_an_invalid_value() -> None:
    assert issubclass(ExpressionError, InvalidValue)


@pytest.mark.parametrize("name", sorted(BANNED))
def test_what_would_reach_out_is_refused_when_it_is_compiled(name: str) -> None:
    with pytest.raises(ExpressionError, match=f"`{name}` is not allowed: ") as raised:
        jq.compile(f"1 | {name}")
    assert raised.value.position == 4


@pytest.mark.parametrize(
    "text", ["$ENV", "$__prog_args", 'import "a" as a; .', 'include "a"; .', "debug(1)", "halt_error(1)"]
)
def test_other_ways_out_are_refused_too(text: str) -> None:
    with pytest.raises(ExpressionError, match="is not allowed: "):
        jq.compile(text)


def test_a_name_that_is_refused_can_be_defined() -> None:
    assert jq.compile("def now: 5; now").one(None) == 5
    assert jq.compile("$ENV", ["ENV"]).one(None, ENV={}) == {}


# --- limits ----------------------------------------------------------------------------------------------------------

RUNAWAYS = [
    "[range(1e9)]",
    "last(range(1e9))",
    "[recurse(.)]",
    "last(recurse([.]))",
    '"x" * 2147483647',
    "[limit(1e9; repeat(1))]",
    "[repeat(empty)]",
    "until(false; .)",
    "[while(true; .)]",
    "def f: f; f",
    "def f: 1 + f; f",
    "def f: [f]; f",
    "def f: def g: f; g; f",
    "def f(g): f(g | g); f(.)",
    "def f(g): g | f(g); f([.])",
    "def f: (1, 2) | f; f",
    "try (def f: f; f) catch 1",
    "(def f: f; f)?",
    "(def f: f; f) // 1",
    "label $out | def f: f; f",
    "[limit(1e6; def f: 1, f; f)]",
    "reduce range(1e9) as $i (0; . + $i)",
    "reduce range(90000) as $i ([]; . + [$i])",
    "reduce range(60) as $i ([1]; . + .)",
    'reduce range(60) as $i ("a"; . + .)',
    "reduce range(60) as $i ([1]; [., .])",
    "reduce range(60) as $i ([1]; [., .]) | tojson",
    "reduce range(60) as $i ([1]; [., .]) | flatten",
    "reduce range(60) as $i ([1]; [., .]) | [.] == [.]",
    "reduce range(60) as $i ([1]; [., .]) | [., .] | sort",
    "reduce range(60) as $i ([nan]; [., .])",
    "reduce range(60) as $i ({}; {a: ., b: .}) | [..] | length",
    "reduce range(60) as $i ({}; {a: ., b: .}) | walk(.)",
    "reduce range(60) as $i ({}; {a: ., b: .}) | . * .",
    "reduce range(60) as $i ([1]; [., .]) as $x | error($x)",
    "reduce range(5000) as $i (0; [.])",
    "[foreach range(1e9) as $i (0; . + 1)]",
    "(1, 2) | " * 40 + "1",
    "[range(50000)] as $a | [range(50000)] as $b | [range(50000) | $a == $b]",
    "null | setpath([500000000]; 1)",
    "[.[1e8] = 1]",
    "[range(300)] | [combinations(3)]",
    "[range(1000)] | [range(1000) as $i | .] | flatten | length",
    '("a" * 4000) as $a | [range(1000) | $a | test("[a-z]+1")]',
    '[range(3000)] | map("\\(.)" * 500) | add | length | [range(.)] | map(tostring) | add',
    "def f($n): if $n == 0 then 0 else 1 + f($n - 1) end; f(1000)",
    "[paths(def f: f; f)]",
    "path(def f: f; f)",
    "def f: .a | f; path(f)",
    "def f: (.a |= f); f",
    '[splits("")] | map(.) | length | [range(.; 1e9)]',
]


@pytest.mark.parametrize("text", RUNAWAYS)
def test_what_runs_away_is_stopped_soon(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ExpressionError) as raised:
        list(jq.compile(text).each("x"))
    assert time.process_time() - began < 1  # of this process: others may be busy
    assert "more than" in str(raised.value) or "deeper than" in str(raised.value) or "failed" in str(raised.value)


DEEP_TEXTS: list[Callable[[int], str]] = [
    lambda n: "(" * n + "1" + ")" * n,
    lambda n: "[" * n + "1" + "]" * n,
    lambda n: "[" * n,
    lambda n: "-" * n + "1",
    lambda n: "1" + "+1" * n,
    lambda n: "1" + " // 1" * n,
    lambda n: "." + "a." * n + "a",
    lambda n: "." + "[0]" * n,
    lambda n: ".[0" * n + "]" * n,
    lambda n: "." + "?" * n,
    lambda n: "if 1 then " * n + "1" + " end" * n,
    lambda n: "if 1 then 1 " + "elif 1 then 1 " * n + "end",
    lambda n: "1 as $x | " * n + "1",
    lambda n: "def f: 1; " * n + "1",
    lambda n: "def f: " * n + "1" + "; 1" * n,
    lambda n: '"\\(' * n + "1" + ')"' * n,
    lambda n: "try " * n + "1",
    lambda n: "{a: " * n + "1" + "}" * n,
    lambda n: ". as " + "[" * n + "$a" + "]" * n + " | 1",
    lambda n: "reduce . as $x (1; " * n + "1" + ")" * n,
    lambda n: "map(" * n + "1" + ")" * n,
    lambda n: "label $x | " * n + "1",
    lambda n: "1 | " * n + "1",
    lambda n: "1, " * n + "1",
]


@pytest.mark.parametrize("text", DEEP_TEXTS)
@pytest.mark.parametrize("depth", [50, 99, 400, 3000])
def test_a_text_of_any_depth_is_compiled_or_refused(text: Callable[[int], str], depth: int) -> None:
    said = ""
    try:
        list(jq.compile(text(depth)).each(None))
    except ExpressionError as error:
        said = str(error)
    assert "no room" not in said


def test_no_text_may_be_longer_than_the_limit() -> None:
    with pytest.raises(ExpressionError, match="more than 20,000"):
        jq.compile("1" + " " * 20_000)


@pytest.mark.parametrize(
    "text",
    [
        "def f: 1 + f; f",
        "def f: [f | f]; f",
        "def f: {a: f}; f",
        "def f: if f then f else f end; f",
        'def f: "\\(f)"; f',
        "def f: try f catch f; f",
        "def f: .a |= f; f",
        "def f: path(f); f",
        "def f: reduce f as $x (f; f); f",
        "def f: foreach f as [$x, {a: $y}] (f; f; f); f",
        "def f: f as [$x] ?// $x | f; f",
        "def f: label $x | f, break $x; f",
        "def f: first(f), limit(1; f), isempty(f); f",
        "def f: [1] | map(f), any(f), sort_by(f), add(f); f",
        "def f: [1] | sort_by(f); f",
        "def f: any(1; f); f",
        "def f: recurse(f), while(f; f), until(f; f); f",
        "def f(g): g | f(g | g); f(.)",
        "def f: def g: f; [g, f]; f",
        "def f: (f, f) + (f, f); f",
        "def f: .[f:f]; f",
        "def f: {a: 1} | with_entries(f); f",
        'def f: "a" | gsub("a"; f); f',
        "def f: walk([f]); f",
        "def f: [[f]] | walk(f); f",
        "def f: f // f and f or f; f",
        'def f: @base64 "\\(f)\\(f)"; f',
    ],
)
def test_depth_is_counted_well_below_what_python_has(text: str) -> None:
    """Frames are counted from the shape of the program; if they were undercounted, Python's own limit would show."""
    limit = sys.getrecursionlimit()
    frame, used = sys._getframe(), 0
    while frame:
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    program = jq.compile(text)
    sys.setrecursionlimit(used + 620)
    try:
        with pytest.raises(ExpressionError) as raised:
            list(program.each(None))
    finally:
        sys.setrecursionlimit(limit)
    assert "deeper than 500 frames" in str(raised.value) or "more than 100,000 steps" in str(raised.value)


def test_functions_may_call_themselves_a_hundred_times() -> None:
    assert jq.compile("def f: if . == 0 then 0 else 1 + (. - 1 | f) end; f").one(100) == 100


def test_depth_is_given_back_after_an_error_and_after_a_break() -> None:
    text = '[range(2000) | try (def f: if . > 5 then error("x") else . + 1 | f end; 0 | f) catch .] | length'
    assert jq.compile(text).one(None) == 2000
    text = "[range(2000) | label $out | def f: if . > 5 then ., break $out else . + 1 | f end; 0 | f] | length"
    assert jq.compile(text).one(None) == 2000
    assert jq.compile("[range(2000) | first(def f: ., f; f)] | length").one(None) == 2000


def test_where_there_is_no_room_at_all_it_is_still_an_expression_error() -> None:
    program = jq.compile("def f: if . == 0 then 0 else 1 + (. - 1 | f) end; f")

    def sink(depth: int) -> Any:
        return program.one(100) if depth == 0 else sink(depth - 1)

    frame, used = sys._getframe(), 0
    while frame:
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    with pytest.raises(ExpressionError, match="no room"):
        sink(sys.getrecursionlimit() - used - 30)


def test_limits_can_be_set() -> None:
    with pytest.raises(ExpressionError, match="more than 10 steps"):
        jq.compile("[range(20)]", limits=Limits(steps=10)).one(None)
    with pytest.raises(ExpressionError, match="more than 10 elements"):
        jq.compile('"x" * 20', limits=Limits(size=10)).one(None)
    with pytest.raises(ExpressionError, match="deeper than 30 frames"):
        jq.compile("def f: 1 + f; f", limits=Limits(depth=30)).one(None)


def test_an_expression_stops_at_the_same_step_every_time() -> None:
    def steps() -> list[int]:
        seen: list[int] = []
        with pytest.raises(ExpressionError):
            seen.extend(jq.compile("range(1e9) | select(. % 3 == 0)").each(None))
        return seen

    assert steps() == steps()
    assert len(steps()) > 1000


def test_values_nested_too_deep_are_refused_not_walked_through() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    assert jq.compile("type").one(value) == "array"
    assert jq.compile(".[0][0] | length").one(value) == 1
    for text in ["tojson", ". == [.]", "[., .] | sort", "flatten", "walk(.)", "contains(.)", "@json", "error"]:
        with pytest.raises(ExpressionError, match="nested"):
            jq.compile(text).one(value)


def test_outputs_are_never_nested_deeper_than_what_can_be_kept() -> None:
    assert jq.compile(f"reduce range({NESTED - 1}) as $i ([]; [.])").one(None)
    with pytest.raises(ExpressionError, match="cannot be kept"):
        jq.compile(f"reduce range({NESTED + 1}) as $i ([]; [.])").one(None)


# --- regular expressions ---------------------------------------------------------------------------------------------

EVIL = [
    "(a+)+$",
    "(a*)*b",
    "(a|a)*b",
    "(a|aa)+$",
    "(.*)*x",
    "(a?){30}a{30}",
    "(\\w+\\s?)+$",
    "([a-z]+)*\\d",
    "(a+|b)*c",
    "((a)|(a))*b",
    "(x+x+)+y",
    "(a{1,5})+b",
    "(?:a.?)*b",
    "(.)\\1",
    "(?<q>['\"]).*\\k<q>",
    "(?=(a+)+b)a",
]


@pytest.mark.parametrize("pattern", EVIL)
def test_a_pattern_that_may_take_for_ever_is_refused_at_once(pattern: str) -> None:
    began = time.process_time()
    with pytest.raises(ExpressionError):
        jq.compile("test($p)", ["p"]).one("a" * 30 + "!", p=pattern)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("pattern", ["a*a*a*b", ".*.*.*x", "\\s*a*\\s*a*\\s*b", "(a?)(a?)(a?)(a?)a*a*b", "^a*a*a*$b"])
def test_a_pattern_with_a_costly_worst_case_takes_only_short_texts(pattern: str) -> None:
    program = jq.compile("test($p)", ["p"])
    began = time.process_time()
    with pytest.raises(ExpressionError, match="may take too long"):
        program.one("a" * 3000, p=pattern)
    program.one("a" * 20, p=pattern)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "pattern",
    [
        "^[^@\\s]+@[^@\\s]+\\.[^@\\s]+$",
        "^[a-z]+(-[a-z]+)*$",
        "^\\d{1,3}(,\\d{3})*(\\.\\d+)?$",
        "^(\\w+)\\s*=\\s*(\\d+)$",
        "^\\d{4}-\\d{2}-\\d{2}(T\\d{2}:\\d{2}(:\\d{2})?)?Z?$",
        "(foo|bar)+baz",
        "^/[a-z]+(/[a-z0-9]+)*/?$",
        "a.*b",
        "[a-z]+[0-9]",
        "\\b\\w+\\b",
        "(?<year>\\d+)-(?<month>\\d+)",
    ],
)
@pytest.mark.parametrize("text", ["a" * 3000, "a-" * 1500, "1," * 1500, "/a" * 1500, "foo" * 1000])
def test_patterns_of_practice_pass_and_are_quick(pattern: str, text: str) -> None:
    began = time.process_time()
    jq.compile("test($p)", ["p"]).one(text, p=pattern)
    assert time.process_time() - began < 2


def test_long_texts_and_patterns_are_refused() -> None:
    with pytest.raises(ExpressionError, match="more than 10,000 characters"):
        jq.compile('test("a")').one("a" * 10_001)
    with pytest.raises(ExpressionError, match="more than 1,000 characters"):
        jq.compile("test($p)", ["p"]).one("a", p="a" * 1_001)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("\\h+", "xyzfe12", ["fe12"]),
        ("[\\h]+", "xyzfe12", ["fe12"]),
        ("[[:digit:]x]+", "a1x2b", ["1x2"]),
        ("[|&~]+", "a||b&&c", ["||"]),
        ("[]]", "a]", ["]"]),
        ("a\\z", "ba", ["a"]),
        ("a\\Z", "ba\n", ["a"]),
        ("(?<=a)b", "ab", ["b"]),
        ("(?<!a)b", "abb", ["b"]),
        ("\\(x\\)", "(x)", ["(x)"]),
    ],
)
def test_the_dialect_is_that_of_jq(pattern: str, text: str, found: list[str]) -> None:
    assert jq.compile("[match($p).string]", ["p"]).one(text, p=pattern) == found


# --- templates -------------------------------------------------------------------------------------------------------


def test_a_template_is_filled_with_what_its_expressions_give() -> None:
    template = jq.Template({"a": "${ .x }", "b": ["${ .y + $n }", "plain", 5, None], "c": "not ${ .x }"}, ["n"])
    assert not template.constant
    assert template.fill({"x": {"deep": 1}, "y": 2}, n=3) == {
        "a": {"deep": 1},
        "b": [5, "plain", 5, None],
        "c": "not ${ .x }",
    }


def test_a_template_without_expressions_is_constant() -> None:
    value = {"a": ["x", 1], "b": "$$ and ${"}
    template = jq.Template(value)
    assert template.constant
    assert template.fill(None) is value


def test_a_whole_template_may_be_one_expression() -> None:
    assert jq.Template("  ${ .a }\n").fill({"a": 1}) == 1


def test_an_error_of_a_template_names_the_place() -> None:
    with pytest.raises(ExpressionError, match=r"^at /steps/1/to~1from: an expression is missing"):
        jq.Template({"steps": [0, {"to/from": "${ .a + }"}]})
    template = jq.Template({"steps": [0, {"to": "${ .a + 1 }"}]})
    with pytest.raises(ExpressionError, match=r"^at /steps/1/to: the expression `\.a \+ 1` failed"):
        template.fill({"a": "x"})


def test_a_template_nested_too_deep_is_refused() -> None:
    value: Any = "${ . }"
    for _ in range(5000):
        value = [value]
    with pytest.raises(InvalidValue, match="nested deeper"):
        jq.Template(value)


@pytest.mark.parametrize(
    ("text", "is_one", "inner"),
    [
        ("${ .a }", True, ".a"),
        ("${.a}", True, ".a"),
        (" ${ .a }\n", True, ".a"),
        ("${ {a: 1} }", True, "{a: 1}"),
        ("${}", False, "${}"),
        ("${ }", False, "${ }"),
        (".a", False, ".a"),
        ("x ${ .a }", False, "x ${ .a }"),
        ("", False, ""),
    ],
)
def test_what_is_wholly_in_braces_is_an_expression(text: str, is_one: bool, inner: str) -> None:
    assert jq.is_expression(text) is is_one
    assert jq.expression(text) == inner


def test_numbers_are_not_nan_by_accident() -> None:
    assert not math.isnan(jq.compile("[1, 2.5] | add").one(None))
