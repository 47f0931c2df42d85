"""`perdure serve`: the HTTP API in a process of its own."""

from __future__ import annotations

import json

import pytest

from tests.cli.asking import ask
from tests.cli.conftest import Shop
from tests.http import issuer


def test_the_api_is_served_with_a_worker_until_it_is_told_to_stop(shop: Shop) -> None:
    with shop.process("serve", "shop.py", "--open", "--work", "--port", "0", "--json") as served:
        address = json.loads(served.line('"ready"'))["address"]
        start = {"workflow": "fulfil", "args": [{"item": "tea"}], "id": "order-1"}
        assert ask(address, "/v1/executions", start) == (202, {"id": "order-1"})
        event = {"name": "packed", "payload": {"tracking": "T1"}}
        assert ask(address, "/v1/executions/order-1/events", event)[0] == 202
        status, done = ask(address, "/v1/executions/order-1/result?wait=15s")
        assert (status, done) == (200, {"status": "completed", "result": "shipped T1"})
        assert served.stop() == 0
    assert "completed" in shop.out("show", "order-1")


def test_callers_show_an_api_key(shop: Shop) -> None:
    made = shop.json("keys", "create", "ci", "--role", "sender")
    with shop.process("serve", "shop.py", "--port", "0", "--json") as served:
        address = json.loads(served.line('"ready"'))["address"]
        assert ask(address, "/v1/executions")[0] == 401
        assert ask(address, "/v1/executions", key=made["secret"]) == (200, {"executions": [], "next": None})
        body = {"definition": {"machine": "m", "initial": "a", "states": {"a": {"final": True}}}}
        assert ask(address, "/v1/definitions", body, made["secret"])[0] == 403
        assert served.stop() == 0


def test_an_open_api_is_refused_where_others_can_reach_it(shop: Shop) -> None:
    assert "cannot be served on 0.0.0.0" in shop.error("serve", "shop.py", "--open", "--host", "0.0.0.0")


def test_tokens_of_the_issuer_in_the_settings_are_taken_beside_keys(shop: Shop) -> None:
    key = issuer.Key("k1")
    (shop.folder / "keys.json").write_text(json.dumps(issuer.jwks(key)))
    said = {
        "PERDURE_TOKEN_ISSUER": issuer.ISSUER,
        "PERDURE_TOKEN_AUDIENCE": issuer.AUDIENCE,
        "PERDURE_TOKEN_KEYS": "keys.json",
        "PERDURE_TOKEN_CLAIMS": "org, sub, realm.roles",
    }
    token = key.sign(org="default", realm={"roles": ["viewer"]}, tenant=None, roles=None)
    made = shop.json("keys", "create", "ci", "--role", "viewer")
    with shop.process("serve", "shop.py", "--port", "0", "--json", **said) as served:
        address = json.loads(served.line('"ready"'))["address"]
        assert ask(address, "/v1/executions", key=token)[0] == 200
        assert ask(address, "/v1/executions", key=made["secret"])[0] == 200
        assert ask(address, "/v1/executions", {"workflow": "echo", "args": ["a"]}, token)[0] == 403
        assert ask(address, "/v1/executions", key=key.sign(org="default", aud="others"))[0] == 401
        assert served.stop() == 0


def test_settings_of_tokens_that_cannot_work_are_said_at_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_TOKEN_ISSUER", issuer.ISSUER)
    assert "token_keys has to say" in shop.error("serve", "shop.py", "--port", "0")
    monkeypatch.setenv("PERDURE_TOKEN_KEYS", "keys.json")
    monkeypatch.setenv("PERDURE_TOKEN_CLAIMS", "tenant,sub")
    assert "three claims" in shop.error("serve", "shop.py", "--port", "0")


def test_a_deployment_that_waits_answers_like_a_function_call_unless_a_request_says_otherwise(shop: Shop) -> None:
    with shop.process(
        "serve", "shop.py", "--open", "--work", "--port", "0", "--json", PERDURE_API_WAIT="20s"
    ) as served:
        address = json.loads(served.line('"ready"'))["address"]
        status, done = ask(address, "/v1/executions", {"workflow": "echo", "args": ["a"], "id": "e1"})
        assert (status, done["status"], done["result"]) == (200, "completed", "a")
        start = {"workflow": "fulfil", "args": [{"item": "tea"}], "id": "o1"}
        assert ask(address, "/v1/executions?wait=0s", start) == (202, {"id": "o1"})
        status, done = ask(address, "/v1/executions/o1/events", {"name": "packed", "payload": {"tracking": "T1"}})
        assert (status, done["status"], done["result"]) == (200, "completed", "shipped T1")
        assert served.stop() == 0
