"""Tokens of an issuer: what is believed, what is not, and where the keys come from."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

from perdure.errors import AccessUnavailable, SettingsError, Unauthenticated
from perdure.http.caller import Caller
from perdure.http.jwks import ALGORITHMS, KEPT, LONGEST, PAUSE, SOON, KeySet
from perdure.http.tokens import Claims, Tokens
from tests.http.issuer import AUDIENCE, ISSUER, Key, body, jwks, raw, serving

EC = Key("ec")
RSA = Key("rsa", "RS256")


def tokens(*keys: Key, **options: Any) -> Tokens:
    return Tokens(ISSUER, AUDIENCE, jwks(*keys or (EC, RSA)), **options)


def caller(token: str, checks: Tokens | None = None) -> Caller:
    return asyncio.run((checks or tokens()).caller(token))


def refused(token: str, checks: Tokens | None = None) -> str:
    with pytest.raises(Unauthenticated) as caught:
        caller(token, checks)
    seen: BaseException | None = caught.value
    while seen is not None:  # neither the error nor what led to it repeats the token
        assert len(token) < 10 or token not in str(seen)
        seen = seen.__cause__ or seen.__context__
    return str(caught.value)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# --- what is believed -------------------------------------------------------------------------------------------------


def test_a_token_says_who_calls_and_what_they_may_do() -> None:
    found = caller(EC.sign(roles=["sender", "manager"], jti="t-1"))
    assert (found.tenant, found.user, found.roles, found.credential) == ("shop", "ada", ("manager",), "token:t-1")
    assert found.scopes == {"read", "send", "start"}


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_every_algorithm_with_a_public_key_is_taken(algorithm: str) -> None:
    key = Key("one", algorithm)
    assert caller(key.sign(), tokens(key)).user == "ada"


def test_the_clocks_of_issuer_and_server_may_differ_a_little() -> None:
    now = int(time.time())
    assert caller(EC.sign(exp=now - 20)).user == "ada"
    assert caller(EC.sign(nbf=now + 20, iat=now + 20)).user == "ada"


def test_one_of_several_audiences_is_enough() -> None:
    assert caller(EC.sign(aud=["other", AUDIENCE])).user == "ada"


def test_a_token_without_the_id_of_a_key_is_good_if_only_one_key_fits() -> None:
    token = jwt.encode(body(), EC.private, algorithm="ES256")
    assert caller(token, tokens(EC, RSA)).user == "ada"
    refused(token, tokens(EC, Key("ec-2")))


# --- what is not ------------------------------------------------------------------------------------------------------


def test_a_token_without_a_signature_is_refused() -> None:
    for name in ("none", "None", "NONE", ""):
        assert refused(raw({"alg": name, "kid": "rsa"}, body())) == "the token is not valid"
    assert refused(raw({"alg": "ES256", "kid": "ec"}, body())) == "the token is not valid"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_public_key_is_never_taken_for_a_shared_secret(algorithm: str) -> None:
    for secret in (RSA.pem, RSA.pem.strip(), json.dumps(RSA.jwk).encode()):
        unsigned = raw({"alg": algorithm, "kid": "rsa"}, body()).rstrip(".")
        signature = hmac.new(secret, unsigned.encode(), getattr(hashlib, algorithm.replace("HS", "sha"))).digest()
        token = f"{unsigned}.{raw({}, {}, signature).rpartition('.')[2]}"
        assert refused(token) == "the token is not valid"


def test_symmetric_algorithms_cannot_be_allowed() -> None:
    for name in ("HS256", "none"):
        with pytest.raises(SettingsError, match=f"cannot be signed with {name}"):
            tokens(algorithms=["ES256", name])
        assert name not in ALGORITHMS


def test_a_symmetric_key_in_the_set_is_no_key() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "kid": "oct"}
    with pytest.raises(SettingsError, match="no key that can check a signature"):
        KeySet({"keys": [secret]})


def test_a_key_is_good_for_its_own_algorithms_alone() -> None:
    # Given a set whose RSA key is for RS256 alone
    wrong = {"keys": [{**RSA.jwk, "alg": "RS256"}]}
    key = Key("rsa", "PS256")
    key.private = RSA.private
    assert caller(RSA.sign(), Tokens(ISSUER, AUDIENCE, wrong)).user == "ada"
    refused(key.sign(), Tokens(ISSUER, AUDIENCE, wrong))
    # And an algorithm that was not asked for is none.
    refused(RSA.sign(), tokens(algorithms=["ES256"]))


@pytest.mark.parametrize("change", [{"use": "enc"}, {"alg": "RSA-OAEP"}])
def test_a_key_for_something_else_is_left_out(change: dict[str, str]) -> None:
    checks = Tokens(ISSUER, AUDIENCE, {"keys": [{**RSA.jwk, **change}, EC.jwk, "nonsense", {"kty": "EC"}]})
    assert caller(EC.sign(), checks).user == "ada"
    refused(RSA.sign(), checks)


def test_a_private_key_that_somebody_has_published_is_no_key() -> None:
    with pytest.raises(SettingsError, match="no key that can check a signature"):
        KeySet({"keys": [{**EC.kind.to_jwk(EC.private, as_dict=True), "kid": "ec"}]})


def test_a_short_key_is_no_key() -> None:
    with pytest.raises(SettingsError, match="2048"):
        KeySet(jwks(Key("short", "RS256", bits=1024)))


def test_the_key_of_somebody_else_is_refused_under_the_same_id() -> None:
    assert refused(Key("ec").sign()) == "the token is not valid"


def test_a_key_that_the_token_brings_along_is_not_used() -> None:
    mine = Key("mine")
    refused(mine.sign({"jwk": mine.jwk}))
    with serving(mine) as server:
        refused(mine.sign({"jku": server.url}))
        assert server.asked == 0


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "other"}, "the token is for another audience"),
        ({"aud": None}, "the token lacks one of the claims exp, iss and aud"),
        ({"iss": "https://evil.example.com/"}, "the token is of another issuer"),
        ({"iss": None}, "the token lacks one of the claims exp, iss and aud"),
        ({"exp": int(time.time()) - 60}, "the token has expired"),
        ({"exp": None}, "the token lacks one of the claims exp, iss and aud"),
        ({"exp": "soon"}, "the token is not valid"),
        ({"exp": 1e400}, "the token is not valid"),
        ({"nbf": int(time.time()) + 86_400}, "the token is not valid yet"),
        ({"iat": int(time.time()) + 86_400}, "the token is not valid yet"),
        ({"tenant": None}, "the token names no tenant in its claim 'tenant'"),
        ({"tenant": "a/b"}, "the token names no tenant in its claim 'tenant'"),
        ({"tenant": "keys:"}, "the token names no tenant in its claim 'tenant'"),
        ({"tenant": ["shop"]}, "the token names no tenant in its claim 'tenant'"),
        ({"sub": None}, "the token names no user in its claim 'sub'"),
        ({"sub": "a\nb"}, "the token names no user in its claim 'sub'"),
        ({"sub": "x" * 201}, "the token names no user in its claim 'sub'"),
    ],
)
def test_what_a_token_must_say(claims: dict[str, Any], why: str) -> None:
    assert refused(EC.sign(**claims)) == why


def test_a_token_that_was_changed_is_refused() -> None:
    token = EC.sign()
    head, claims, signature = token.split(".")
    other = EC.sign(roles=["admin"]).split(".")[1]
    assert refused(f"{head}.{other}.{signature}") == "the token is not valid"
    for broken in ("", ".", "..", head, f"{head}.{claims}", f"{head}.{claims}.", token[:-4], "ü.ü.ü", "\udc80.a.b"):
        assert refused(broken) == "the token is not valid"


@pytest.mark.parametrize("header", [{"kid": 7}, {"alg": 7}, {"b64": False, "crit": ["b64"]}])
def test_a_header_that_makes_no_sense_is_refused(header: dict[str, Any]) -> None:
    assert refused(raw({"alg": "ES256", "kid": "ec", **header}, body(), b"x" * 64)) == "the token is not valid"


def test_what_a_token_calls_critical_is_not_passed_over() -> None:
    assert refused(EC.sign({"crit": ["mill"], "mill": 1})) == "the token is not valid"


def test_an_unknown_key_is_refused() -> None:
    assert "a key that its issuer does not have" in refused(Key("unknown").sign())


# --- claims -----------------------------------------------------------------------------------------------------------


def test_a_token_of_another_tenant_is_of_that_tenant() -> None:
    assert caller(EC.sign(tenant="other")).tenant == "other"


def test_claims_may_have_other_names_and_lie_deeper() -> None:
    checks = tokens(claims=Claims("https://example.com/tenant", "email", "realm_access.roles"))
    token = EC.sign(
        **{"https://example.com/tenant": "mill", "email": "ada@example.com", "realm_access": {"roles": ["viewer"]}}
    )
    found = caller(token, checks)
    assert (found.tenant, found.user, found.scopes) == ("mill", "ada@example.com", {"read"})


def test_all_tokens_may_be_of_one_tenant() -> None:
    assert caller(EC.sign(tenant="other"), tokens(tenant="mill")).tenant == "mill"
    with pytest.raises(SettingsError, match="cannot be a tenant"):
        tokens(tenant="a/b")


@pytest.mark.parametrize(
    ("roles", "scopes", "business"),
    [
        ("viewer manager", {"read"}, ("manager",)),
        ("viewer,manager", {"read"}, ("manager",)),
        (None, set(), ()),
        (["viewer", 7, None, "", "a\nb"], {"read"}, ()),
        ({"admin": True}, set(), ()),
        (["Admin", "ADMIN", "admin "], set(), ("Admin", "ADMIN")),
        (["viewer", "author"], {"read", "define"}, ()),
        ("observer", {"glance"}, ()),
    ],
)
def test_only_words_of_the_api_give_rights(roles: Any, scopes: set[str], business: tuple[str, ...]) -> None:
    found = caller(EC.sign(roles=roles))
    assert (found.scopes, found.roles) == (scopes, business)


def test_tokens_need_an_issuer_and_an_audience() -> None:
    for issuer, audience in (("", AUDIENCE), (ISSUER, ""), (ISSUER, [])):
        with pytest.raises(SettingsError, match="need an issuer and an audience"):
            Tokens(issuer, audience, jwks(EC))


# --- where the keys come from -----------------------------------------------------------------------------------------


def test_keys_are_fetched_once_and_kept() -> None:
    async def main() -> None:
        with serving(EC) as server:
            checks = Tokens(ISSUER, AUDIENCE, server.url)
            await asyncio.gather(*(checks.caller(EC.sign()) for _ in range(20)))
            assert server.asked == 1

    asyncio.run(main())


def test_a_new_key_of_the_issuer_is_found_but_looked_for_at_most_once_a_minute() -> None:
    async def main() -> None:
        with serving(EC) as server:
            now, new = Time(), Key("new")
            checks = Tokens(ISSUER, AUDIENCE, KeySet(server.url, now))
            await checks.caller(EC.sign())
            # When strangers name keys that nobody has, then the issuer is not asked for each of them.
            now.now += PAUSE
            for number in range(10):
                with pytest.raises(Unauthenticated):
                    await checks.caller(Key(f"k{number}").sign())
            assert server.asked == 2
            server.keys.append(new)
            with pytest.raises(Unauthenticated):
                await checks.caller(new.sign())
            now.now += PAUSE
            assert (await checks.caller(new.sign())).user == "ada"
            assert (await checks.caller(EC.sign())).user == "ada"
            assert server.asked == 3

    asyncio.run(main())


def test_a_key_that_the_issuer_has_withdrawn_is_good_no_longer() -> None:
    async def main() -> None:
        with serving(EC, RSA) as server:
            now = Time()
            keys = KeySet(server.url, now)
            checks = Tokens(ISSUER, AUDIENCE, keys)
            await checks.caller(EC.sign())
            server.keys.remove(EC)
            now.now += KEPT
            await checks.caller(EC.sign())  # nobody waits: the look is in the background
            assert keys._renewal is not None
            await keys._renewal
            with pytest.raises(Unauthenticated):
                await checks.caller(EC.sign())
            await checks.caller(RSA.sign())

    asyncio.run(main())


def test_when_the_issuer_is_out_of_reach_its_keys_are_good_for_a_day(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with serving(EC) as server:
            now = Time()
            keys = KeySet(server.url, now)
            checks = Tokens(ISSUER, AUDIENCE, keys)
            await checks.caller(EC.sign())
            server.status = 503
            now.now += LONGEST - 1
            await checks.caller(EC.sign())
            assert keys._renewal is not None
            await keys._renewal
            assert "503" in caplog.text
            now.now += PAUSE
            with pytest.raises(AccessUnavailable, match="try again"):
                await checks.caller(EC.sign())

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "headers", "answer"),
    [
        (500, {}, b""),
        (302, {"Location": "/elsewhere"}, b""),
        (200, {}, b"<html>"),
        (200, {}, b"[]"),
        (200, {}, b'{"keys": []}'),
        (200, {}, json.dumps(jwks(EC)).encode() + b" " * 2_000_000),
    ],
)
def test_a_set_that_cannot_be_had_is_not_the_fault_of_the_caller(
    status: int, headers: dict[str, str], answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        with serving(EC) as server:
            server.status, server.headers, server.answer = status, headers, answer
            now = Time()
            checks = Tokens(ISSUER, AUDIENCE, KeySet(server.url, now))
            for _ in range(3):
                with pytest.raises(AccessUnavailable, match="cannot be read at present"):
                    await checks.caller(EC.sign())
            assert server.asked == 1
            server.status, server.answer = 200, None
            now.now += SOON
            assert (await checks.caller(EC.sign())).user == "ada"
            assert server.url in caplog.text

    asyncio.run(main())


def test_nobody_at_the_address_is_not_the_fault_of_the_caller() -> None:
    with serving(EC) as server:
        address = server.url
    with pytest.raises(AccessUnavailable):
        caller(EC.sign(), Tokens(ISSUER, AUDIENCE, address))


def test_keys_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(jwks(EC)))
    for source in (file, str(file)):
        assert caller(EC.sign(), Tokens(ISSUER, AUDIENCE, source)).user == "ada"
    with pytest.raises(AccessUnavailable):
        caller(EC.sign(), Tokens(ISSUER, AUDIENCE, tmp_path / "missing.json"))


@pytest.mark.parametrize(
    "address", ["http://login.example.com/keys", "file:///etc/passwd", "ftp://a/b", "https:///keys", "http://10.0.0.1/"]
)
def test_keys_come_over_a_line_that_nobody_can_change(address: str) -> None:
    with pytest.raises(SettingsError, match="must be https"):
        KeySet(address)


# --- a token is nowhere -----------------------------------------------------------------------------------------------


def test_no_part_of_a_token_is_in_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bad: list[Callable[[], str]] = [
        lambda: EC.sign(aud="other", tenant="canary-tenant"),
        lambda: Key("ec").sign(sub="canary-user"),
        lambda: Key("canary-kid").sign(),
        lambda: EC.sign(exp=1),
    ]
    with serving(EC) as server:
        checks = Tokens(ISSUER, AUDIENCE, KeySet(server.url))
        for make in bad:
            token = make()
            said = refused(token, checks)
            assert "canary" not in said
            assert not any(part in caplog.text for part in token.split("."))
    assert "canary" not in caplog.text
