"""From the headers of a request to its caller: which credential, whose tenant, which rights, and the open mode."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from perdure import Perdure
from perdure.errors import NotAllowed, SettingsError, Unauthenticated, UsageError
from perdure.http.auth import LONGEST, Authenticator, Open, check_bind, is_loopback
from perdure.http.caller import ANYBODY, ROLES, Caller, Scope, caller_of
from perdure.http.keys import Keys
from perdure.http.tokens import Tokens
from tests.http.issuer import AUDIENCE, ISSUER, Key, jwks

KEY = Key("one")
TOKENS = Tokens(ISSUER, AUDIENCE, jwks(KEY))
OPEN = Authenticator(open=Open("shop"))


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


def ask(authenticator: Authenticator, headers: Mapping[str, str]) -> Caller:
    return asyncio.run(authenticator.caller(headers))


# --- which credential -------------------------------------------------------------------------------------------------


def test_keys_and_tokens_are_taken_side_by_side() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            keys = Keys(app)
            authenticator = Authenticator(keys=keys, tokens=TOKENS)
            made = await keys.create("ci", ["viewer"], tenant="mill")
            by_key = await authenticator.caller(bearer(made.secret))
            by_token = await authenticator.caller(bearer(KEY.sign()))
            assert (by_key.tenant, by_key.user) == ("mill", "ci")
            assert (by_token.tenant, by_token.user) == ("shop", "ada")
            await authenticator.close()
            assert (await keys.get(made.key.id, tenant="mill")).used_at is not None

    asyncio.run(main())


def test_the_tenant_comes_from_the_credential_whatever_else_the_request_says() -> None:
    said = {"X-Tenant": "other", "Tenant": "other", "X-Perdure-Tenant": "other", "X-Forwarded-User": "eve"}
    found = ask(Authenticator(tokens=TOKENS), bearer(KEY.sign()) | said)
    assert (found.tenant, found.user) == ("shop", "ada")


@pytest.mark.parametrize("name", ["authorization", "Authorization", "AUTHORIZATION"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_names_of_headers_and_schemes_have_no_case(name: str, scheme: str) -> None:
    assert ask(Authenticator(tokens=TOKENS), {name: f"{scheme} {KEY.sign()}"}).user == "ada"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Api-Key": "pdk_x"},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer   "},
        {"Authorization": "Basic YWRhOmxvdmVsYWNl"},
        {"Authorization": "pdk_aaaaaaaaaaaa_x"},
        {"Authorization": "Bearer " + "x" * (LONGEST + 1)},
    ],
)
def test_without_a_credential_nobody_calls(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated, match="send `Authorization: Bearer`") as caught:
        ask(Authenticator(tokens=TOKENS), headers)
    assert "YWRh" not in str(caught.value)


def test_two_credentials_are_none() -> None:
    one, two = (("authorization", f"Bearer {KEY.sign(sub=name)}") for name in ("ada", "eve"))
    headers = Headers(raw=[(name.encode(), value.encode()) for name, value in (one, two)])
    with pytest.raises(Unauthenticated, match="once"):
        ask(Authenticator(tokens=TOKENS), headers)


def test_what_is_not_configured_is_not_taken() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            keys = Keys(app)
            secret = (await keys.create("ci", ["viewer"])).secret
            with pytest.raises(Unauthenticated, match="not taken here: send a token"):
                await Authenticator(tokens=TOKENS).caller(bearer(secret))
            with pytest.raises(Unauthenticated, match="not taken here: send `Authorization: Bearer` and an API key"):
                await Authenticator(keys=keys).caller(bearer(KEY.sign()))

    asyncio.run(main())


def test_an_authenticator_that_would_let_nobody_or_everybody_in_by_mistake_is_not_made() -> None:
    with pytest.raises(UsageError, match="nobody could call"):
        Authenticator()
    with pytest.raises(UsageError, match="either open, or keys and tokens"):
        Authenticator(tokens=TOKENS, open=Open("shop"))
    with pytest.raises(UsageError, match="cannot be a tenant"):
        Authenticator(open=Open("a/b"))


# --- what they may do -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "scopes"),
    [
        ("observer", "glance"),
        ("viewer", "read"),
        ("sender", "read send start"),
        ("operator", "read send start control"),
        ("author", "read define"),
        ("admin", "read send start control define admin work"),
        ("worker", "work"),
    ],
)
def test_what_each_role_may_do(role: str, scopes: str) -> None:
    found = caller_of("shop", "ada", [role, "manager"], "key:x")
    assert found.scopes == set(scopes.split())
    assert found.roles == ("manager",)


def test_every_role_is_in_the_table_above() -> None:
    assert list(ROLES) == ["observer", "viewer", "sender", "operator", "author", "admin", "worker"]


def test_the_guide_has_the_table_of_roles() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/access.md").read_text()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    start = next(number for number, cells in enumerate(table) if cells[0] == "role")
    scopes = table[start][1:]
    said = {
        cells[0].strip("`"): {scope for scope, cell in zip(scopes, cells[1:], strict=True) if cell == "yes"}
        for cells in table[start + 1 : start + 1 + len(ROLES)]
    }
    assert said == ROLES


def test_whoever_may_not_is_told_which_roles_may() -> None:
    found = caller_of("shop", "ada", ["viewer"], "key:x")
    found.require("read")
    with pytest.raises(NotAllowed, match="ada may not control: that takes one of the roles operator, admin"):
        found.require("control")


def test_anybody_may_do_nothing() -> None:
    scopes: list[Scope] = ["glance", "read", "send", "start", "control", "define", "admin"]
    assert not any(ANYBODY.may(scope) for scope in scopes)


# --- open mode --------------------------------------------------------------------------------------------------------


def test_in_open_mode_everybody_is_the_same_user() -> None:
    found = ask(OPEN, bearer("whatever"))
    assert (found.tenant, found.user, found.credential) == ("shop", "dev", "open")
    assert found.may("admin")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.3.4.5", "::1", "[::1]"])
def test_open_mode_may_be_bound_to_this_machine(host: str) -> None:
    check_bind(host, OPEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.7", "192.168.1.2", "example.com", "localhost.evil.com"])
def test_open_mode_is_refused_where_others_can_reach_it(host: str) -> None:
    with pytest.raises(SettingsError, match="serve it on 127.0.0.1, or ask for API keys or tokens"):
        check_bind(host, OPEN)
    check_bind(host, Authenticator(tokens=TOKENS))


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:8000"},
        {"Host": "127.0.0.1:8000", "Origin": "http://localhost:3000"},
        {"Host": "[::1]:8000"},
        {},
    ],
)
def test_open_mode_answers_to_this_machine(headers: dict[str, str]) -> None:
    assert ask(OPEN, headers).user == "dev"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.evil.com:8000"},
        {"Host": "localhost:8000", "Origin": "https://evil.com"},
        {"Host": "localhost:8000", "Origin": "null"},
        {"Host": "[::1"},
        {"Host": "evil.com@localhost.evil.com"},
        {"Host": ""},
    ],
)
def test_open_mode_answers_no_page_of_another_site(headers: dict[str, str]) -> None:
    with pytest.raises(NotAllowed, match="only to this machine"):
        ask(OPEN, headers)


def test_a_name_is_not_looked_up_to_see_where_it_leads() -> None:
    assert not is_loopback("lvh.me")


# --- nothing leaks ----------------------------------------------------------------------------------------------------


def test_no_credential_is_in_an_error_or_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with Perdure("memory://") as app:
            authenticator = Authenticator(keys=Keys(app), tokens=TOKENS)
            for credential in ("pdk_canary", "canary", "canary.canary.canary", "canary " * 3, "canary" * 10_000):
                for value in (credential, f"Bearer {credential}", f"Basic {credential}"):
                    with pytest.raises(Unauthenticated) as caught:
                        await authenticator.caller({"Authorization": value})
                    assert "canary" not in str(caught.value)

    asyncio.run(main())
    assert "canary" not in caplog.text
