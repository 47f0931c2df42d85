"""Every route against every role: allowed exactly as its scope says, and refused in one way."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Send

from perdure.http.api import ALL, api
from perdure.http.auth import Authenticator
from perdure.http.caller import ROLES
from perdure.http.keys import Keys
from perdure.http.route import Nothing
from tests.http.every import BODIES, GLANCES, QUERIES, SCOPES, body_of, path_of, place_of
from tests.http.test_api import Door, People, problem, served

#: Written out, so that a role that may more than before is noticed.
MAY: dict[str, set[str]] = {
    "observer": {"glance"},
    "viewer": {"read"},
    "sender": {"read", "send", "start"},
    "operator": {"read", "send", "start", "control"},
    "author": {"read", "define"},
    "admin": {"read", "send", "start", "control", "define", "admin", "work"},
    "worker": {"work"},
    "": set(),
    "approver": set(),  # a word of some business
    "Admin": set(),
    "admin ": set(),
}
CLOSED = [one for one in ALL if one.scope is not None]
NAMES = [f"{one.method} {one.path}" for one in ALL]


def test_every_route_has_the_scope_that_was_agreed_on() -> None:
    assert {place_of(one): one.scope for one in ALL} == SCOPES
    assert len(SCOPES) == len(ALL)  # no two routes are at one place
    assert BODIES.keys() == {place_of(one) for one in ALL if one.body is not Nothing}
    assert QUERIES.keys() <= SCOPES.keys()


def test_the_routes_for_a_glance_and_their_parameters_are_those_that_were_agreed_on() -> None:
    """A parameter can be a question about the data: a new one has to be looked at."""
    found = {place_of(one): set(getattr(one.query, "__struct_fields__", ())) for one in ALL if one.glance is not None}
    assert found == GLANCES
    assert all(SCOPES[place] == "read" for place in GLANCES)


def test_the_roles_are_those_of_this_test() -> None:
    assert {role: set(scopes) for role, scopes in ROLES.items()} == {role: MAY[role] for role in ROLES}


@pytest.mark.parametrize("role", MAY)
def test_a_role_may_what_its_scopes_say_and_nothing_else(role: str) -> None:
    async def main(door: Door) -> None:
        door.who = f"acme:eve:{role}"
        for one in CLOSED:
            answer = await door(one.method, path_of(one), body_of(one))
            where = (one.method, one.path, answer.text)
            if one.scope in MAY[role] or ("glance" in MAY[role] and place_of(one) in GLANCES):
                assert answer.status_code not in (401, 403) and answer.status_code < 500, where
            else:
                assert answer.status_code == 403, where
                told = problem(answer, 403, "not-allowed")
                assert told["detail"].startswith(f"eve may not {one.scope}: that takes one of the roles "), where

    served(main, working=False)


def test_who_may_not_is_refused_before_the_request_is_looked_at() -> None:
    async def main(door: Door) -> None:
        door.who = "acme:eve:"
        said = {"authorization": f"Bearer {door.who}"}
        for one in CLOSED:
            path = path_of(one).partition("?")[0] + "?nonsense=1"
            answer = await door.client.request(one.method, path, content=b"{", headers=said)
            problem(answer, 403, "not-allowed")

    served(main, working=False)


@pytest.mark.parametrize("one", [one for one in ALL if one.scope is None], ids=lambda one: one.path)
def test_an_open_route_asks_for_no_credential(one: Any) -> None:
    async def main(door: Door) -> None:
        answer = await door.client.request(one.method, path_of(one), json=body_of(one))
        if one.path == "/v1/hooks/{tenant}/{name}":
            problem(answer, 401, "unauthenticated")  # of the signature
        else:
            assert answer.status_code == 200

    served(main, working=False)


def from_anywhere(served: ASGIApp) -> ASGIApp:
    """Each request comes from another address: no address may try as many credentials as this test does."""
    numbers = itertools.count()

    async def moved(scope: Any, receive: Receive, send: Send) -> None:
        high, low = divmod(next(numbers), 250)
        await served({**scope, "client": (f"10.0.{high}.{low}", 1)}, receive, send)

    return moved


async def refused(client: httpx.AsyncClient, one: Any, said: dict[str, str]) -> dict[str, Any]:
    answer = await client.request(one.method, path_of(one), json=body_of(one), headers=said)
    assert answer.headers["www-authenticate"] == "Bearer"
    told = problem(answer, 401, "unauthenticated")
    assert set(told) == {"type", "title", "status", "detail", "instance"}
    assert told.pop("instance") == path_of(one).partition("?")[0]
    return told


def test_whoever_is_not_known_is_told_the_same_on_every_route() -> None:
    """A key that is wrong, one that never was and one of nobody's making cannot be told apart."""

    async def main(door: Door) -> None:
        keys = Keys(door.app)
        secret = (await keys.create("ci", ["admin"], tenant="acme")).secret
        transport = httpx.ASGITransport(app=from_anywhere(api(door.app, Authenticator(keys=keys))))
        wrong = [secret[:-1] + ("a" if secret[-1] != "a" else "b"), "pdk_nobody_x", "pdk_", "pdk_%00"]
        said: list[dict[str, str]] = [{"authorization": f"Bearer {one}"} for one in wrong]
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = [await refused(client, one, header) for one in CLOSED for header in said]
            assert all(answer == answers[0] for answer in answers)
            without = [await refused(client, one, {}) for one in CLOSED]
            assert all(answer == without[0] for answer in without)
            unusable = [
                await refused(client, one, {"authorization": text})
                for one in CLOSED
                for text in ("Basic YTpi", "Bearer", "bearer ", secret, f"Bearer {'x' * 20_000}")
            ]
            assert all(answer == unusable[0] for answer in unusable)
        await keys.close()

    served(main, working=False)


def test_a_credential_in_the_query_or_in_a_cookie_is_none() -> None:
    tries: list[tuple[str, dict[str, str]]] = [
        ("access_token=acme:ann:admin", {}),
        ("", {"cookie": "authorization=Bearer acme:ann:admin"}),
        ("", {"x-tenant": "acme", "x-user": "ann", "x-forwarded-user": "ann"}),
    ]

    async def main(door: Door) -> None:
        transport = httpx.ASGITransport(app=from_anywhere(api(door.app, People())))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for one, (query, said) in itertools.product(CLOSED, tries):
                path = path_of(one).partition("?")[0]
                answer = await client.request(one.method, f"{path}?{query}", json=body_of(one), headers=said)
                problem(answer, 401, "unauthenticated")

    served(main, working=False)


def test_no_header_and_no_parameter_names_another_tenant() -> None:
    async def main(door: Door) -> None:
        await door.start()
        door.who = "evil:eve:admin"
        for header in ("x-tenant", "tenant", "x-perdure-tenant"):
            answer = await door("GET", "/v1/executions", **{header.replace("-", "_"): "acme"})
            assert answer.json()["executions"] == []
        problem(await door("GET", "/v1/executions?tenant=acme"), 422, "invalid-request")
        body = {"workflow": "http-hello", "args": ["x"], "tenant": "acme"}
        problem(await door("POST", "/v1/executions", body), 422, "invalid-request")

    served(main, working=False)


def test_a_revoked_key_is_refused_on_every_route() -> None:
    async def main(door: Door) -> None:
        keys = Keys(door.app)
        made = await keys.create("ci", ["admin"], tenant="acme")
        await keys.revoke(made.key.id, tenant="acme")
        transport = httpx.ASGITransport(app=from_anywhere(api(door.app, Authenticator(keys=keys))))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for one in CLOSED:
                await refused(client, one, {"authorization": f"Bearer {made.secret}"})
        await keys.close()

    served(main, working=False)


def test_two_roles_give_what_both_give() -> None:
    async def main(door: Door) -> None:
        door.who = "acme:eve:author,worker"
        found = {one.scope for one in CLOSED if (await door(one.method, path_of(one), body_of(one))).status_code != 403}
        assert found == MAY["author"] | MAY["worker"]

    served(main, working=False)
