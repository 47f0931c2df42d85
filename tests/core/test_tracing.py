"""What is a `traceparent` and what is none, and the traces that executions have by themselves."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from perdure.core import behalf
from perdure.core.tracing import (
    NONE,
    Trace,
    forget,
    here,
    known,
    of_event,
    of_execution,
    of_headers,
    parse,
    tracing,
    working,
)

ID, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{ID}-{SPAN}-01"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (GOOD, "01"),
        (f"00-{ID}-{SPAN}-00", "00"),
        (f"00-{ID}-{SPAN}-03", "03"),
        (f"01-{ID}-{SPAN}-01", "01"),  # a version of the future: what all of them have is read
        (f"cc-{ID}-{SPAN}-ff-what-the-future-is-like", "01"),
        (f"cc-{ID}-{SPAN}-02-", "00"),
    ],
)
def test_what_is_a_traceparent_is_read(text: str, flags: str) -> None:
    assert parse(text) == Trace(ID, SPAN, flags)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        ID,
        f"00-{ID}-{SPAN}",
        f"00-{ID}-{SPAN}-1",
        f"00-{ID}-{SPAN}-01-",
        f"00-{ID}-{SPAN}-01-more",
        f"01-{ID}-{SPAN}-01more",
        f"00-{ID.upper()}-{SPAN}-01",
        f"00-{ID}-{SPAN.upper()}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{ID}-{'0' * 16}-01",
        f"ff-{ID}-{SPAN}-01",
        f"00-{ID[:-1]}-{SPAN}-01",
        f"00-{ID}0-{SPAN}-01",
        f"00-{ID[:-1]}g-{SPAN}-01",
        f"00-{ID}-{SPAN}-0g",
        f" {GOOD}",
        f"{GOOD}\n",
        f"cc-{ID}-{SPAN}-01-\n",
        f"٠0-{ID}-{SPAN}-01",  # a digit, but not one of ours
        None,
        7,
    ],
)
def test_what_is_none_counts_as_none(text: object) -> None:
    assert parse(text) is None


@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{31,33}-[0-9a-f]{15,17}-[0-9a-f]{2}(-.*)?", fullmatch=True))
def test_whatever_is_read_is_written_as_what_would_be_read_again(text: str) -> None:
    found = parse(text)
    if found is not None:
        assert parse(str(found)) == found
        assert text[3:35] == found.id and text[36:52] == found.span
        assert set(found.id) != {"0"} and set(found.span) != {"0"}


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 255))
def test_every_traceparent_of_the_known_version_is_kept_as_it_is(id: int, span: int, flags: int) -> None:
    text = f"00-{id:032x}-{span:016x}-{flags:02x}"
    assert str(parse(text)) == text


def test_of_two_headers_none_counts() -> None:
    good = GOOD.encode()
    assert of_headers([good]) == of_headers([b" " + good + b"\t"]) == parse(GOOD)
    assert of_headers([]) is of_headers([good, good]) is of_headers([b"\xff\xfe"]) is None


def test_a_cloudevent_may_name_its_trace() -> None:
    assert of_event({"traceparent": GOOD}) == parse(GOOD)
    assert of_event({"id": "1"}) is of_event({"traceparent": 7}) is None


def test_an_execution_has_the_trace_that_it_was_given_and_a_place_of_its_own_in_it() -> None:
    one, other = of_execution(GOOD, "acme/a", 1), of_execution(GOOD, "acme/b", 2)
    assert one.id == other.id == ID and one.flags == "01"
    assert len({SPAN, one.span, other.span}) == 3
    assert one.within("acme/a/1/pay").id == ID and one.within("acme/a/1/pay").span != one.span


@pytest.mark.parametrize("given", ["", "rubbish", f"00-{'0' * 32}-{SPAN}-01"])
def test_without_one_it_follows_from_key_and_start(given: str) -> None:
    trace = of_execution(given, "acme/a", 1)
    assert parse(str(trace)) == trace
    assert trace == of_execution("", "acme/a", 1)
    assert len({trace.id, of_execution("", "acme/b", 1).id, of_execution("", "acme/a", 2).id}) == 3


def test_it_stays_what_it_is_from_release_to_release() -> None:
    """Lines of two releases about one execution have the same id."""
    assert (
        str(of_execution("", "acme/order-7", 1_700_000_000_000_000))
        == "00-0e195beeefebfd5929697b954717c307-0d8ded2df31d70af-01"
    )


def test_a_block_says_which_trace_it_belongs_to() -> None:
    assert here() is None
    with tracing(GOOD):
        assert str(here()) == GOOD
        with tracing(None):
            assert here() == NONE and str(here()) == ""
        with tracing("rubbish"):
            assert here() == NONE
        assert str(here()) == GOOD
    assert here() is None


def test_tasks_that_serve_many_have_no_trace_of_who_began_them() -> None:
    async def main() -> None:
        async def look() -> Trace | None:
            return here()

        with tracing(GOOD):
            assert await asyncio.create_task(look()) == parse(GOOD)
            assert await asyncio.create_task(look(), context=behalf.for_everybody()) is None
            forget()
            assert here() is None
        assert here() is None

    asyncio.run(main())


def test_a_worker_knows_the_traces_of_what_it_holds() -> None:
    assert known("a/b") is None
    with tracing(GOOD), working({"a/b": Trace(ID, SPAN)}.get):
        assert known("a/b") == Trace(ID, SPAN) and known("a/c") is None
        assert here() is None  # what the worker does is not part of the story of who began it
    assert known("a/b") is None
