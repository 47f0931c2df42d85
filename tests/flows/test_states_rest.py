"""Functions of type `rest`: operations of an API on the loopback, called by workflows of states."""

from __future__ import annotations

from typing import Any

from tests.flows.stating import body, operation
from tests.http.receiver import Receiver
from tests.runtime.remote import SECRETS, at, calling, said

API = {
    "openapi": "3.0.3",
    "servers": [{"url": "/"}],
    "paths": {
        "/pets/{id}": {
            "get": {
                "operationId": "getPet",
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "x-key", "in": "header", "schema": {"type": "string"}},
                ],
            }
        }
    },
}


def workflow(receiver: Receiver, id: str, **more: Any) -> dict[str, Any]:
    arguments = {"id": "${ .pet }", "x-key": "${ $SECRETS.token }"}
    action = {
        "functionRef": {"refName": "pet", "arguments": arguments},
        "actionDataFilter": {"toStateData": "${ .found }"},
    }
    function = {"name": "pet", "operation": f"{at(receiver, '/openapi.json')}#getPet"}
    state = operation(action, onErrors=[{"errorRef": "gone", "end": True}])
    errors = [{"name": "gone", "code": "404"}]
    return body(state, functions=[function], errors=errors, secrets=["token"], id=id, **more)


def test_an_operation_is_called_with_its_arguments() -> None:
    ran, receiver = calling(lambda to: workflow(to, "stating-rest"), said(API), said({"name": "rex"}), input={"pet": 7})
    assert ran.output == {"pet": 7, "found": {"name": "rex"}}
    assert receiver.got[1].line.startswith("GET /pets/7 ")
    assert receiver.got[1].headers["x-key"] == SECRETS["token"]
    assert SECRETS["token"] not in ran.log


def test_an_answer_that_is_an_error_is_known_by_its_status() -> None:
    ran, _ = calling(lambda to: workflow(to, "stating-gone"), said(API), said({}, 404), input={"pet": 7})
    assert (ran.output, ran.problem) == ({"pet": 7}, None)
    ran, _ = calling(lambda to: workflow(to, "stating-gone"), said(API), said({}, 409), input={"pet": 7})
    assert ran.problem["status"] == 409
