"""Signatures of webhooks: right ones of every kind are taken, and whatever is changed in them is not."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from perdure.core.signing import KINDS, Kind, sign, signed_at, verify

SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
NOW, WINDOW = 1_700_000_000, 300
BODY = b'{"id": 7}'


def signed(kind: Kind, secret: str = SECRET, body: bytes = BODY, at: int = NOW, id: str = "msg_1") -> dict[str, str]:
    match kind:
        case "standard":
            return sign([secret], id, at, body)
        case "github":
            return {"x-hub-signature-256": "sha256=" + hmac.digest(secret.encode(), body, "sha256").hex()}
        case "stripe":
            right = hmac.digest(secret.encode(), f"{at}.".encode() + body, "sha256").hex()
            return {"stripe-signature": f"t={at},v1={right},v0=old"}


def check(kind: Kind, headers: Mapping[str, str], body: bytes = BODY, *secrets: str) -> str | None:
    return verify(kind, secrets or (SECRET,), headers, body, NOW, WINDOW)


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_signature_is_taken(kind: Kind) -> None:
    assert check(kind, signed(kind)) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_one_is_not(kind: Kind) -> None:
    assert check(kind, signed(kind, OTHER)) is None
    assert check(kind, signed(kind), BODY + b" ") is None
    assert check(kind, {}) is None
    assert check(kind, dict.fromkeys(signed(kind), "")) is None
    assert check(kind, dict.fromkeys(signed(kind), "ü€")) is None


@pytest.mark.parametrize("kind", KINDS)
def test_both_secrets_are_good_while_they_are_rotated(kind: Kind) -> None:
    assert check(kind, signed(kind, OTHER), BODY, SECRET, OTHER)
    assert check(kind, signed(kind, SECRET), BODY, SECRET, OTHER)


def test_a_sender_that_rotates_may_sign_with_both() -> None:
    headers = sign([OTHER, SECRET], "msg_1", NOW, BODY)
    assert check("standard", headers) == check("standard", headers, BODY, OTHER) == "msg_1"
    of_both = signed("stripe")["stripe-signature"] + "," + signed("stripe", OTHER)["stripe-signature"].split(",")[1]
    assert check("stripe", {"stripe-signature": of_both}, BODY, OTHER)


@pytest.mark.parametrize("kind", ["standard", "stripe"])
@pytest.mark.parametrize("late", [-WINDOW - 1, WINDOW + 1, -NOW])
def test_a_call_is_refused_outside_of_the_window(kind: Kind, late: int) -> None:
    assert check(kind, signed(kind, at=NOW + late)) is None
    assert check(kind, signed(kind, at=NOW + WINDOW)) and check(kind, signed(kind, at=NOW - WINDOW))


def test_a_time_that_was_moved_into_the_window_is_not_the_one_that_was_signed() -> None:
    old = signed("standard", at=NOW - 1000)
    assert check("standard", {**old, "webhook-timestamp": str(NOW)}) is None
    text = signed("stripe", at=NOW - 1000)["stripe-signature"]
    assert check("stripe", {"stripe-signature": text.replace(str(NOW - 1000), str(NOW))}) is None
    assert check("stripe", {"stripe-signature": f"t={NOW},{text}"}) is None


def test_the_time_that_was_signed_is_told_where_the_kind_has_one() -> None:
    told = {kind: signed_at(kind, signed(kind)) for kind in KINDS}
    assert told == {"standard": str(NOW), "github": "", "stripe": str(NOW)}


def test_a_time_that_is_none_is_refused_though_it_is_signed() -> None:
    def at(text: str) -> str | None:
        right = base64.b64encode(hmac.digest(b"plain", f"msg_1.{text}.".encode() + BODY, "sha256")).decode()
        headers = {"webhook-id": "msg_1", "webhook-timestamp": text, "webhook-signature": f"v1,{right}"}
        return check("standard", headers, BODY, "plain")

    assert at(str(NOW)) == "msg_1"
    for text in ("", "soon", "1.7e9", "-5", f" {NOW}", f"+{NOW}", f"{NOW}.0", "１７００００００００", "9" * 400):
        assert at(text) is None, text


def test_an_id_with_a_dot_could_be_read_in_two_ways_and_is_refused() -> None:
    assert check("standard", signed("standard", id="a.b")) is None
    assert check("standard", signed("standard", id="")) is None
    assert check("standard", signed("standard", id="x" * 500)) is None


def test_the_id_of_a_call_is_signed_or_follows_from_what_is() -> None:
    assert check("standard", signed("standard", id="msg_7")) == "msg_7"
    for kind in ("github", "stripe"):
        more = {"x-github-delivery": "other", "webhook-id": "other"}
        assert check(kind, {**signed(kind), **more}) == check(kind, signed(kind))
        other = b'{"id": 8}'
        assert check(kind, signed(kind, body=other), other) != check(kind, signed(kind))


@given(place=st.integers(0, 10_000), kind=st.sampled_from(KINDS))
def test_whatever_character_of_a_signature_is_changed_it_is_refused(place: int, kind: Kind) -> None:
    headers = signed(kind)
    name = {"standard": "webhook-signature", "github": "x-hub-signature-256", "stripe": "stripe-signature"}[kind]
    text = headers[name].removesuffix(",v0=old")
    at = place % len(text)
    changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
    assert check(kind, {**headers, name: changed}) is None
