"""Failures as data and back."""

from __future__ import annotations

import builtins

import msgspec
import pytest

from perdure import ActionFailed, Contention, External, Permanent, Transient
from perdure.core.events import Error
from perdure.core.failures import Classes, action_failed, checked, describe, kind_of
from perdure.errors import ActionError, InvalidValue, LimitReached, UsageError


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


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it says nothing")

    __repr__ = __str__

    @property
    def details(self) -> object:
        raise RuntimeError("they are not there")


def test_an_error_that_breaks_when_it_is_asked_is_described_all_the_same() -> None:
    mute = Mute()
    mute.__notes__ = [Mute()]  # type: ignore[list-item]
    told = describe(mute)
    assert (told.type, told.message, bytes(told.details)) == ("Mute", "Mute ()", b"null")
    assert describe(ExceptionGroup("two", [Mute()])).message == "two (1 sub-exception): Mute: "
    assert bytes(describe(Declined(mute, "no funds")).details) == b'""'  # type: ignore[arg-type]


def test_causes_without_end_are_cut_off() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    told: Error | None = describe(one)
    for message in ("one", "two"):
        assert told is not None and told.message == message
        told = told.cause
    msgspec.json.encode(told)


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


class Busy(Contention): ...


class Sold(Busy): ...


class Marked(Exception):
    fatal = True


@pytest.mark.parametrize(
    ("error", "classes", "kind"),
    [
        (Transient("x"), {}, "transient"),
        (Permanent("x"), {}, "permanent"),
        (Contention("x"), {}, "contention"),
        (External("x"), {}, "external"),
        (ActionError("x"), {}, "transient"),
        (OSError("x"), {}, "transient"),
        (Sold("x"), {}, "contention"),
        (Sold("x"), {Busy: Permanent}, "permanent"),
        (Busy("x"), {Sold: Permanent}, "contention"),
        (Busy("x"), {Exception: Permanent}, "contention"),
        (KeyError("x"), {LookupError: External, Exception: Permanent}, "external"),
        (KeyError("x"), {Exception: Permanent, KeyError: Busy, LookupError: External}, "contention"),
        (InvalidValue("x"), {InvalidValue: External}, "permanent"),
        (LimitReached("x"), {}, "permanent"),
        (Marked("x"), {}, "permanent"),
    ],
)
def test_the_most_specific_class_says_which_kind_of_failure_it_is(
    error: Exception, classes: Classes, kind: str
) -> None:
    assert kind_of(error, classes) == kind


def test_the_text_of_an_error_says_nothing_about_its_kind() -> None:
    assert kind_of(RuntimeError("permanent: contention, not found, 503"), {}) == "transient"


@pytest.mark.parametrize("base", [Exception, OSError, Transient, Permanent, Contention, External])
def test_the_text_of_an_error_is_not_even_read(base: type[Exception]) -> None:
    class Mute(base):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            raise AssertionError("its text was read")

        __repr__ = __str__

    assert kind_of(Mute("timeout"), {}) == (base.__name__.lower() if issubclass(base, ActionError) else "transient")


def test_a_fatal_class_is_permanent_whatever_else_is_said() -> None:
    assert kind_of(KeyError("x"), {KeyError: External}, (LookupError,)) == "permanent"


@pytest.mark.parametrize("wrong", [{KeyError: ValueError}, {KeyError: ActionError}, {int: Permanent}, {"x": Permanent}])
def test_a_mapping_that_cannot_be_one_is_refused(wrong: Classes) -> None:
    with pytest.raises(UsageError):
        checked(wrong)


def test_the_kind_stays_with_the_failure() -> None:
    failure = action_failed(describe(Busy("x"), 2, "contention"), "act", [Busy])
    assert (failure.kind, action_failed(describe(OSError("x"), 1, "external"), "act").kind) == (
        "contention",
        "external",
    )
    assert describe(failure).kind == "contention"


def test_errors_of_the_family_come_back_as_themselves() -> None:
    failure = action_failed(describe(External("ill", {"code": 503}, retry_after=3), 1, "external"), "act")
    assert isinstance(failure, External)
    assert (str(failure), failure.details, failure.retry_after) == ("ill", {"code": 503}, None)


def test_an_error_of_an_older_release_has_no_kind() -> None:
    assert msgspec.json.decode(b'{"type":"OSError","message":"x"}', type=Error).kind == ""
