"""Failures as data and back."""

from __future__ import annotations

import builtins

import pytest

from perdure import ActionFailed
from perdure.core.events import Error
from perdure.core.failures import action_failed, describe


class Declined(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.details = {"code": code}


@pytest.mark.parametrize(
    "name", sorted(n for n, k in vars(builtins).items() if isinstance(k, type) and issubclass(k, BaseException))
)
def test_every_builtin_error_comes_back_as_something_that_can_be_raised(name: str) -> None:
    failure = action_failed(Error(name, "it broke"), "act")
    assert "it broke" in str(failure)
    with pytest.raises(ActionFailed):
        raise failure


def test_declared_errors_come_back_as_themselves_with_their_details() -> None:
    failure = action_failed(describe(Declined(51, "no funds")), "pay", [Declined])
    assert isinstance(failure, Declined)
    assert (str(failure), failure.details, failure.action) == ("no funds", {"code": 51}, "pay")


def test_others_are_named() -> None:
    failure = action_failed(describe(Declined(51, "no funds")), "pay")
    assert not isinstance(failure, Declined)
    assert (failure.type, str(failure)) == ("Declined", "pay failed: Declined: no funds")


def test_what_cannot_be_stored_is_made_storable() -> None:
    error = describe(ValueError("a\x00b\ud800" + "x" * 20_000))
    assert "\x00" not in error.message
    assert len(error.message) < 11_000
    error.message.encode()


def test_causes_notes_and_groups_are_kept() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as outer:
        outer.add_note("a note")
        error = describe(outer)
    assert error.cause is not None
    assert error.cause.type == "KeyError"
    assert "a note" in error.message
    assert "test_failures.py" in error.where
    group = describe(ExceptionGroup("several", [OSError("a"), ValueError("b")]))
    assert "OSError: a; ValueError: b" in group.message
