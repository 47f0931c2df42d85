"""`perdure serve`: the HTTP API in a process of its own."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from tests.cli.conftest import Shop


def ask(address: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, data, headers), timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


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
