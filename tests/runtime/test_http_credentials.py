"""How calls of documents say who calls: every scheme, with its properties in the document, in data and in secrets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from typing import Any
from urllib.parse import parse_qs

import pytest

from perdure import Perdure
from perdure.runtime.web.credentials import Kept
from tests.http.receiver import Got, Receiver, receiving
from tests.runtime.remote import SECRETS, application, at, calling, document, http, run_on, said

PAIR = "Basic " + base64.b64encode(b"ada:pass-0123456789").decode()


def guarded(it: Receiver, authentication: Any, use: Any = None, **more: Any) -> dict[str, Any]:
    call = http("get", {"uri": at(it, "/guarded"), "authentication": authentication}, **more)
    return document(call, use={"secrets": list(SECRETS), **(use or {})})


@pytest.mark.parametrize(
    "properties",
    [
        {"username": "${ .user }", "password": "${ .password }"},
        {"username": "ada", "password": "${ $secrets.password }"},
        {"use": "pair"},
        {"use": "whole"},
    ],
    ids=["data", "references", "secret as text", "secret as object"],
)
def test_basic(properties: Any) -> None:
    data = {"user": "ada", "password": "pass-0123456789"}
    ran, receiver = calling(lambda it: guarded(it, {"basic": properties}), said({"in": True}), input=data)
    assert receiver.got[0].headers["authorization"] == PAIR
    assert ran.output == {"in": True}


@pytest.mark.parametrize(
    "properties", [{"token": "${ $secrets.token }"}, {"use": "token"}], ids=["reference", "secret"]
)
def test_bearer(properties: Any) -> None:
    ran, receiver = calling(lambda it: guarded(it, {"bearer": properties}, output="response"), said(1))
    assert receiver.got[0].headers["authorization"] == "Bearer tok-0123456789"
    assert "0123456789" not in ran.log and "authorization" not in ran.output["request"]["headers"]


def test_an_authentication_is_used_by_its_name() -> None:
    use = {"authentications": {"mine": {"bearer": {"token": "${ .token }"}}}}
    _, receiver = calling(lambda it: guarded(it, {"use": "mine"}, use), said(1), input={"token": "of-the-data"})
    assert receiver.got[0].headers["authorization"] == "Bearer of-the-data"


def test_an_answer_that_repeats_the_credentials_as_they_were_sent_is_not_written() -> None:
    ran, _ = calling(lambda it: guarded(it, {"basic": {"use": "pair"}}), said({"you sent": PAIR}))
    assert ran.problem["title"] == "SecretExposed" and PAIR.split()[1] not in ran.log


@pytest.mark.parametrize("scheme", ["basic", "digest"])
def test_an_answer_that_repeats_a_part_of_a_secret_is_not_written(scheme: str) -> None:
    ran, _ = calling(lambda it: guarded(it, {scheme: {"use": "whole"}}), said({"password": "pass-0123456789"}))
    assert ran.problem["title"] == "SecretExposed" and "pass-0123456789" not in ran.log


def test_an_error_that_repeats_the_credentials_as_they_were_sent_shows_stars() -> None:
    ran, _ = calling(lambda it: guarded(it, {"basic": {"use": "pair"}}), said({"you sent": PAIR}, 403))
    assert ran.problem is not None and PAIR.split()[1] not in ran.log


@pytest.mark.parametrize("scheme", ["basic", "bearer", "digest", "oauth2"])
def test_properties_that_are_not_there_when_the_call_is_made_are_an_authentication_error(scheme: str) -> None:
    given = {
        "basic": {"username": "${ .none }", "password": "${ .none }"},
        "bearer": {"token": "${ .none }"},
        "digest": {"username": "${ .none }", "password": "${ .none }"},
        "oauth2": {"use": "pair"},
    }
    ran, receiver = calling(lambda it: guarded(it, {scheme: given[scheme]}), said(1))
    assert ran.kind == "authentication" and ran.problem["status"] == 401 and not receiver.got


# --- digest ----------------------------------------------------------------------------------------------------------


def challenge(*more: str) -> bytes:
    text = ", ".join(('realm="pets"', 'nonce="n0"', *more))
    return said(b"", 401, f"www-authenticate: Digest {text}")


def verified(got: Got, algorithm: str, qop: bool) -> bool:
    """Whether an answer to the challenge is that of who knows the password, computed as RFC 7616 says."""
    fields = {
        name: quoted or plain
        for name, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|([^\s,]+))', got.headers["authorization"])
    }

    def hashed(*texts: str) -> str:
        return hashlib.new(algorithm, ":".join(texts).encode()).hexdigest()

    who = hashed("ada", "pets", "pass-0123456789")
    method, uri, _ = got.line.split()
    what = hashed(method, uri)
    middle = [fields["nc"], fields["cnonce"], "auth"] if qop else []
    return fields["uri"] == uri and fields["response"] == hashed(who, "n0", *middle, what)


@pytest.mark.parametrize(
    ("more", "algorithm", "qop"),
    [
        (('qop="auth,auth-int"', 'opaque="o"'), "md5", True),
        (('qop="auth"', "algorithm=SHA-256"), "sha256", True),
        ((), "md5", False),
    ],
    ids=["md5", "sha-256", "without qop"],
)
def test_digest_answers_the_challenge(more: tuple[str, ...], algorithm: str, qop: bool) -> None:
    ran, receiver = calling(
        lambda it: guarded(it, {"digest": {"use": "pair"}}, query={"a": 1}), challenge(*more), said({"in": True})
    )
    first, second = receiver.got
    assert ran.output == {"in": True}
    assert "authorization" not in first.headers and verified(second, algorithm, qop)


@pytest.mark.parametrize("more", [("algorithm=SHA-512-256",), ('qop="auth-int"',)], ids=["hash", "qop"])
def test_a_challenge_that_cannot_be_answered_is_the_answer(more: tuple[str, ...]) -> None:
    ran, receiver = calling(lambda it: guarded(it, {"digest": {"use": "pair"}}), challenge(*more))
    assert ran.problem["status"] == 401 and len(receiver.got) == 1


# --- tokens ----------------------------------------------------------------------------------------------------------

TOKEN = {"access_token": "at-0123456789", "token_type": "Bearer", "expires_in": 3600}
CLIENT = {"id": "me", "secret": "secret://password"}


def granted(it: Receiver, **more: Any) -> dict[str, Any]:
    return {"authority": at(it, "/realm/"), "grant": "client_credentials", "client": CLIENT, **more}


def test_a_token_is_asked_for_and_sent() -> None:
    ran, receiver = calling(
        lambda it: guarded(
            it, {"oauth2": granted(it, scopes=["read", "write"], audiences=["pets"])}, output="response"
        ),
        said(TOKEN),
        said({"in": True}),
    )
    asked, called = receiver.got
    assert asked.line == "POST /realm/oauth2/token HTTP/1.1"
    assert {name: one for name, [one] in parse_qs(asked.body.decode()).items()} == {
        "grant_type": "client_credentials",
        "client_id": "me",
        "client_secret": "pass-0123456789",
        "scope": "read write",
        "audience": "pets",
    }
    assert called.headers["authorization"] == "Bearer at-0123456789"
    assert ran.output["content"] == {"in": True} and "0123456789" not in ran.log


@pytest.mark.parametrize(
    ("more", "sent", "header"),
    [
        (
            {"client": {**CLIENT, "authentication": "client_secret_basic"}},
            {},
            "Basic " + base64.b64encode(b"me:pass-0123456789").decode(),
        ),
        ({"client": {"id": "me", "authentication": "none"}}, {"client_id": "me"}, None),
        (
            {"grant": "password", "username": "ada", "password": "secret://password"},
            {"username": "ada", "password": "pass-0123456789"},
            None,
        ),
        (
            {
                "grant": "urn:ietf:params:oauth:grant-type:token-exchange",
                "subject": {"token": "secret://token", "type": "jwt"},
                "actor": {"token": "a", "type": "b"},
            },
            {
                "subject_token": "tok-0123456789",
                "subject_token_type": "jwt",
                "actor_token": "a",
                "actor_token_type": "b",
            },
            None,
        ),
        ({"scopes": "${ .scopes }"}, {"scope": "one two"}, None),
    ],
    ids=["basic", "none", "password", "exchange", "scopes as text"],
)
def test_grants_and_ways_to_say_who_the_client_is(more: Any, sent: dict[str, str], header: str | None) -> None:
    _, receiver = calling(
        lambda it: guarded(it, {"oauth2": granted(it, **more)}), said(TOKEN), said(1), input={"scopes": "one two"}
    )
    asked = receiver.got[0]
    fields = {name: one for name, [one] in parse_qs(asked.body.decode()).items()}
    assert sent.items() <= fields.items() and asked.headers.get("authorization") == header


def test_a_token_may_be_asked_for_in_json_and_at_another_place() -> None:
    _, receiver = calling(
        lambda it: guarded(
            it, {"oauth2": granted(it, endpoints={"token": "/auth/token"}, request={"encoding": "application/json"})}
        ),
        said(TOKEN),
        said(1),
    )
    asked = receiver.got[0]
    assert asked.line == "POST /realm/auth/token HTTP/1.1" and asked.json["client_id"] == "me"


def test_open_id_says_where_tokens_are_given_and_all_of_it_may_be_in_a_secret() -> None:
    async def go() -> None:
        known: dict[str, str] = {}
        async with receiving() as receiver:
            known["oidc"] = json.dumps(
                {
                    "authority": at(receiver, "/realm"),
                    "grant": "client_credentials",
                    "client": {"id": "me", "secret": "s"},
                }
            )
            receiver.answers = [said({"token_endpoint": at(receiver, "/tokens")}), said(TOKEN), said({"in": True})]
            app = Perdure("memory://", secrets=lambda tenant, name: known.get(name), outbound_private=True)
            call = http("get", {"uri": at(receiver, "/guarded"), "authentication": {"oidc": {"use": "oidc"}}})
            ran = await run_on(app, document(call, use={"secrets": ["oidc"]}))
            assert ran.output == {"in": True}
            lines = [one.line.split()[1] for one in receiver.got]
            assert lines == ["/realm/.well-known/openid-configuration", "/tokens", "/guarded"]

    asyncio.run(go())


@pytest.mark.parametrize(("lives", "asked"), [(3600, 1), (10, 2), (None, 2)], ids=["long", "short", "not said"])
def test_a_token_is_kept_until_shortly_before_its_end(lives: int | None, asked: int) -> None:
    token = said({**TOKEN, "expires_in": lives})
    answers = [token, said(1), *([token] if asked == 2 else []), said(2)]

    def make(it: Receiver) -> dict[str, Any]:
        call = http("get", {"uri": at(it, "/guarded"), "authentication": {"oauth2": granted(it)}})
        return document(call, call, use={"secrets": list(SECRETS)})

    ran, receiver = calling(make, *answers)
    assert ran.output == 2
    assert sum(one.line.startswith("POST") for one in receiver.got) == asked


def test_a_token_that_is_refused_is_not_used_again() -> None:
    def make(it: Receiver) -> dict[str, Any]:
        call = http("get", {"uri": at(it, "/guarded"), "authentication": {"oauth2": granted(it)}})
        again = {"try": [{"call": call}], "catch": {"retry": {"limit": {"attempt": {"count": 2}}}}}
        return document(again, use={"secrets": list(SECRETS)})

    fresh = said({**TOKEN, "access_token": "at-fresh-one"})
    ran, receiver = calling(make, said(TOKEN), said({}, 401), fresh, said({"in": True}))
    assert ran.output == {"in": True} and receiver.got[3].headers["authorization"] == "Bearer at-fresh-one"


@pytest.mark.parametrize(
    "answer", [said({"error": "invalid_client"}, 401), said({"token": "x"}), said(b"hello", kind="text/plain")]
)
def test_who_gets_no_token_gets_an_authentication_error(answer: bytes) -> None:
    ran, receiver = calling(lambda it: guarded(it, {"oauth2": granted(it)}), answer)
    assert ran.kind == "authentication" and "gave no token" in ran.problem["detail"] and len(receiver.got) == 1


def test_an_authority_that_is_no_open_id_provider_is_an_authentication_error() -> None:
    ran, _ = calling(lambda it: guarded(it, {"oidc": granted(it)}), said({}, 404))
    assert ran.kind == "authentication" and "openid-configuration" in ran.problem["detail"]


def test_a_grant_that_only_a_secret_names_and_that_is_not_known_is_a_configuration_error() -> None:
    async def go() -> None:
        secret = json.dumps({"authority": "https://example.com", "grant": "authorization_code"})
        app = Perdure("memory://", secrets=lambda tenant, name: secret, outbound_private=True)
        call = http("get", {"uri": "https://example.com", "authentication": {"oauth2": {"use": "x"}}})
        ran = await run_on(app, document(call, use={"secrets": ["x"]}))
        assert ran.kind == "configuration" and "authorization_code" in ran.problem["detail"]

    asyncio.run(go())


def test_what_is_kept_is_bounded_and_ends() -> None:
    kept = Kept(most=2)
    for number in range(3):
        kept.put(str(number), number, until=10)
    assert [kept.get(str(number), 9) for number in range(3)] == [None, 1, 2]
    assert kept.get("2", 10) is None


def test_tokens_of_one_tenant_are_not_used_for_another() -> None:
    async def go() -> None:
        async with receiving(said(TOKEN), said(1), said(TOKEN), said(2)) as receiver:
            app = application()
            body = guarded(receiver, {"oauth2": granted(receiver)})
            async with app, app.working():
                for tenant in ("one", "two"):
                    await app.definitions.publish(body, tenant=tenant)
                    run = await app.start("remote.calls", {}, tenant=tenant)
                    await run.result(timeout=20)
            assert [one.line.split()[0] for one in receiver.got] == ["POST", "GET", "POST", "GET"]

    asyncio.run(go())
