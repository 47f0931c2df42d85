"""What is said of calls over HTTP when a document is read: each mistake with its place, and none is let through."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.flows.document import actions, calls, check

ADDRESS = "https://example.com/pets"
GOOD: dict[str, Any] = {"method": "get", "endpoint": ADDRESS}
TOKENS = {
    "authority": "https://id.example",
    "grant": "client_credentials",
    "client": {"id": "a", "secret": "secret://b"},
}


def document(given: Any, kind: str = "http", **use: Any) -> dict[str, Any]:
    about = {"dsl": "1.0.3", "namespace": "read", "name": "calls", "version": "1.0.0"}
    return {"document": about, "use": {"secrets": ["mine"], **use}, "do": [{"it": {"call": kind, "with": given}}]}


def authenticated(authentication: Any, **use: Any) -> dict[str, Any]:
    return document({**GOOD, "endpoint": {"uri": ADDRESS, "authentication": authentication}}, **use)


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"method": "fetch"}, "/method", "no method"),
        ({"endpoint": "ftp://example.com"}, "/endpoint", "begins with https://"),
        ({"endpoint": "example.com/{id}"}, "/endpoint", "begins with https://"),
        ({"endpoint": "{base}/pets"}, "/endpoint", "begins with https://"),
        ({"endpoint": {"url": ADDRESS}}, "/endpoint/url", "not known here"),
        ({"endpoint": 7}, "/endpoint", "should be a text"),
        ({"endpoint": ADDRESS + "{?q*}"}, "/endpoint", "only simple templates"),
        ({"endpoint": ADDRESS + "/${ $secrets.mine }"}, "/endpoint", "cannot be a part of an address"),
        ({"endpoint": ADDRESS + "/${ .a"}, "/endpoint", "closing brace"),
        ({"headers": "plain"}, "/headers", "an object"),
        ({"query": [1]}, "/query", "an object"),
        ({"output": "everything"}, "/output", "one of content, raw, response"),
        ({"redirect": "yes"}, "/redirect", "true or false"),
        ({"timeout": 5}, "/timeout", "not known here"),
        ({"body": "${ .a | }"}, "/body", ""),
    ],
)
def test_a_mistake_in_a_call_is_found(change: dict[str, Any], where: str, what: str) -> None:
    problems = check(document({**GOOD, **change}))
    assert any(one.where == f"/do/0/it/with{where}" and what in one.message for one in problems), problems


@pytest.mark.parametrize("missing", ["method", "endpoint"])
def test_what_a_call_needs_must_be_there(missing: str) -> None:
    given = {key: value for key, value in GOOD.items() if key != missing}
    assert any(f"{missing} is missing" in one.message for one in check(document(given)))


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"document": {}}, "/document", "endpoint is missing"),
        ({"operationId": 7}, "/operationId", "should be a text"),
        ({"parameters": []}, "/parameters", "an object"),
        (
            {"document": {"endpoint": {"uri": ADDRESS, "authentication": {}}}},
            "/document/endpoint/authentication",
            "exactly one",
        ),
        ({"authentication": {"basic": {}}}, "/authentication/basic", "username is missing"),
    ],
)
def test_a_mistake_in_a_call_of_an_operation_is_found(change: dict[str, Any], where: str, what: str) -> None:
    good = {"document": {"endpoint": ADDRESS}, "operationId": "x"}
    assert not check(document(good, "openapi"))
    problems = check(document({**good, **change}, "openapi"))
    assert any(one.where == f"/do/0/it/with{where}" and what in one.message for one in problems), problems


@pytest.mark.parametrize(
    ("authentication", "where", "what"),
    [
        ({}, "", "exactly one of"),
        ({"basic": {"use": "mine"}, "bearer": {"use": "mine"}}, "", "exactly one of"),
        ({"certificate": {}}, "/certificate", "not known here"),
        ({"basic": {"username": "a"}}, "/basic", "password is missing"),
        ({"bearer": {"use": "other"}}, "/bearer/use", "use.secrets has no 'other'"),
        ({"bearer": {"use": "mine", "token": "x"}}, "/bearer/token", "not known here"),
        ({"use": "nobody"}, "/use", "use.authentications has no 'nobody'"),
        ({"oauth2": {**TOKENS, "grant": "authorization_code"}}, "/oauth2/grant", "no token is asked for"),
        (
            {"oauth2": {**TOKENS, "client": {"authentication": "private_key_jwt"}}},
            "/oauth2/client/authentication",
            "not known",
        ),
        ({"oauth2": {**TOKENS, "client": {"assertion": "x"}}}, "/oauth2/client/assertion", "not known"),
        ({"oauth2": {**TOKENS, "request": {"encoding": "text/xml"}}}, "/oauth2/request/encoding", "not known"),
        ({"oauth2": {**TOKENS, "issuers": ["x"]}}, "/oauth2/issuers", "not looked into"),
        ({"oidc": {**TOKENS, "endpoints": {}}}, "/oidc/endpoints", "not known here"),
        ({"oidc": {"grant": "password"}}, "/oidc", "authority is missing"),
    ],
)
def test_what_cannot_be_done_to_authenticate_is_refused(authentication: Any, where: str, what: str) -> None:
    problems = check(authenticated(authentication))
    at = f"/do/0/it/with/endpoint/authentication{where}"
    assert any(one.where == at and what in one.message and one.level == "error" for one in problems), problems


def test_a_password_in_the_document_is_a_warning() -> None:
    problems = check(authenticated({"basic": {"username": "ada", "password": "hunter2"}}))
    assert [(one.level, one.where.rpartition("/")[2]) for one in problems] == [("warning", "password")]
    assert "hunter2" not in str(problems)


def test_an_authentication_under_use_is_looked_at_whether_it_is_used_or_not() -> None:
    bad = {"mine": {"basic": {}}}
    unused = check(document(GOOD, authentications=bad))
    used = check(authenticated({"use": "mine"}, authentications=bad))
    for problems in (unused, used):
        assert {one.where for one in problems} == {"/use/authentications/mine/basic"}


def test_expressions_under_use_see_the_variables_of_the_task_that_uses_them() -> None:
    call = {"call": "http", "with": {**GOOD, "endpoint": {"uri": ADDRESS, "authentication": {"use": "each"}}}}
    body = document(GOOD, authentications={"each": {"bearer": {"token": "${ $item.token }"}}})
    body["do"] = [{"loop": {"for": {"in": ".items"}, "do": [{"it": call}]}}]
    assert not check(body)


def test_secrets_of_calls_are_named_and_the_engines_own_actions_are_not() -> None:
    body = authenticated({"bearer": {"use": "mine"}})
    body["do"].append({"charge": {"call": "http-test-charge", "with": {}}})
    assert actions(body) == ["http-test-charge"]
    assert calls(body)[0].given == ["secret://mine"]


@pytest.mark.parametrize("value", [None, 7, "x", [], [1], {"a": 1}, {"x": None}, {"": {}}])
@pytest.mark.parametrize("kind", ["http", "openapi"])
def test_nothing_that_can_be_written_breaks_the_reader(kind: str, value: Any) -> None:
    keys = ("method", "endpoint", "headers", "body", "query", "output", "redirect", "document", "operationId")
    for key in (*keys, "parameters", "authentication"):
        check(document({**GOOD, key: value}, kind))
    for authentication in (value, {"use": value}, {"basic": value}, {"oauth2": {"client": value, "grant": value}}):
        check(authenticated(authentication))
        check(document(GOOD, authentications=value))
        check(document(GOOD, authentications={"x": authentication}))
    check(document(value, kind))
