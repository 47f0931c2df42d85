"""`call: openapi`: descriptions of APIs, OpenAPI 3 and Swagger 2.0, and where parameters go."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import given, strategies as st

from perdure.core.calls import Authentication, HttpCall, OpenApiCall
from perdure.errors import InvalidValue, Permanent
from perdure.runtime.web.operations import placed
from tests.http.receiver import Receiver, receiving
from tests.runtime.remote import application, at, calling, document, run_on, said

HERE = "https://api.example/v1/openapi.json"
THREE: dict[str, Any] = {
    "openapi": "3.0.3",
    "servers": [{"url": "https://{region}.api.example/v3/", "variables": {"region": {"default": "eu"}}}],
    "paths": {
        "/pets/{id}": {
            "parameters": [{"$ref": "#/components/parameters/id"}, {"name": "trace", "in": "header"}],
            "get": {
                "operationId": "getPet",
                "parameters": [
                    {"name": "tags", "in": "query", "schema": {"type": "array"}},
                    {"name": "joined", "in": "query", "explode": False, "schema": {"type": "array"}},
                    {"name": "piped", "in": "query", "style": "pipeDelimited", "explode": False, "schema": {}},
                    {"name": "filter", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
                    {"name": "page", "in": "query", "schema": {"type": "object"}},
                    {"name": "session", "in": "cookie", "schema": {}},
                    {"name": "theme", "in": "cookie", "schema": {}},
                ],
            },
            "put": {
                "operationId": "putPet",
                "servers": [{"url": "/elsewhere"}],
                "requestBody": {"$ref": "#/components/requestBodies/pet"},
            },
            "patch": {
                "operationId": "patchPet",
                "requestBody": {"content": {"application/x-www-form-urlencoded": {}}},
            },
        },
        "/strange": {"get": {"operationId": "strange", "parameters": [{"$ref": "other.json#/x"}]}},
        "/circle": {"get": {"operationId": "circle", "parameters": [{"$ref": "#/components/circle"}]}},
    },
    "components": {
        "parameters": {"id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}},
        "requestBodies": {"pet": {"required": True, "content": {"application/merge-patch+json": {}}}},
        "circle": {"$ref": "#/components/circle"},
    },
}
TWO: dict[str, Any] = {
    "swagger": "2.0",
    "host": "two.example",
    "basePath": "/v2",
    "schemes": ["http", "https"],
    "paths": {
        "/pets": {
            "get": {
                "operationId": "find",
                "parameters": [
                    {"name": "status", "in": "query", "required": True, "type": "array", "collectionFormat": "multi"},
                    {"name": "ids", "in": "query", "type": "array"},
                    {"name": "names", "in": "query", "type": "array", "collectionFormat": "pipes"},
                ],
            },
            "post": {"operationId": "add", "parameters": [{"name": "pet", "in": "body", "required": True}]},
            "put": {
                "operationId": "form",
                "parameters": [{"name": "name", "in": "formData"}, {"name": "age", "in": "formData"}],
            },
            "patch": {"operationId": "file", "parameters": [{"name": "it", "in": "formData", "type": "file"}]},
        }
    },
}


def place(description: Any, operation: str, **parameters: Any) -> HttpCall:
    return placed(description, OpenApiCall(HERE, operation, parameters))


def refused(description: Any, operation: str, **parameters: Any) -> tuple[str, str]:
    with pytest.raises(Permanent) as failed:
        place(description, operation, **parameters)
    return failed.value.details["type"].rpartition("/")[2], failed.value.details["detail"]


def test_parameters_of_the_path_the_query_headers_and_cookies() -> None:
    call = place(
        THREE,
        "getPet",
        id="a/b",
        trace=7,
        tags=["x", "y"],
        joined=[1, 2],
        piped=["p", "q"],
        filter={"size": "L", "sold": False},
        page={"from": 1},
        session="s 1",
        theme="dark",
    )
    assert (call.method, call.uri) == ("GET", "https://eu.api.example/v3/pets/a%2Fb")
    assert call.query == [
        ("tags", "x"),
        ("tags", "y"),
        ("joined", "1,2"),
        ("piped", "p|q"),
        ("filter[size]", "L"),
        ("filter[sold]", "false"),
        ("from", "1"),
    ]
    assert call.headers == {"trace": "7", "cookie": "session=s%201; theme=dark"} and call.body is None


def test_what_is_not_a_parameter_is_the_body() -> None:
    whole = place(THREE, "putPet", id=1, body={"name": "Rex"})
    parts = place(THREE, "putPet", id=1, name="Rex")
    assert whole.body == parts.body == {"name": "Rex"}
    assert whole.uri == "https://api.example/elsewhere/pets/1"
    assert whole.headers["content-type"] == "application/merge-patch+json"


def test_a_body_may_be_a_form() -> None:
    call = place(THREE, "patchPet", id=1, name="Rex")
    assert call.headers["content-type"] == "application/x-www-form-urlencoded" and call.body == {"name": "Rex"}


def test_swagger_joins_lists_as_it_says_and_prefers_https() -> None:
    call = place(TWO, "find", status=["a", "b"], ids=[1, 2], names=["x", "y"])
    assert call.uri == "https://two.example/v2/pets"
    assert call.query == [("status", "a"), ("status", "b"), ("ids", "1,2"), ("names", "x|y")]


def test_swagger_without_a_host_is_where_its_description_is() -> None:
    description = {**TWO, "host": None, "schemes": None, "basePath": None}
    assert place(description, "find", status="a").uri == "https://api.example/pets"


def test_swagger_has_a_body_or_a_form() -> None:
    assert place(TWO, "add", pet={"name": "Rex"}).body == {"name": "Rex"}
    form = place(TWO, "form", name="Rex", age=3)
    assert form.body == {"name": "Rex", "age": 3} and form.headers["content-type"].endswith("form-urlencoded")


def test_a_server_that_is_not_named_is_that_of_the_description() -> None:
    description = {key: value for key, value in THREE.items() if key != "servers"}
    assert place(description, "getPet", id=1).uri == "https://api.example/pets/1"


@pytest.mark.parametrize(
    ("description", "operation", "parameters", "kind", "said"),
    [
        (THREE, "getPet", {}, "validation", "needs the parameter 'id'"),
        (THREE, "getPet", {"id": 1, "colour": "red"}, "validation", "has no parameter colour"),
        (THREE, "getPet", {"id": {"a": 1}}, "validation", "only plain values"),
        (THREE, "getPet", {"id": "secret://x"}, "validation", "cannot be a part of the path"),
        (THREE, "putPet", {"id": 1}, "validation", "needs a body"),
        (TWO, "find", {"status": "a", "colour": "red"}, "validation", "has no parameter colour"),
        (TWO, "file", {"it": "x"}, "configuration", "takes a file"),
        (THREE, "nothing", {}, "configuration", "no operation 'nothing'"),
        (THREE, "strange", {}, "configuration", "leads nowhere"),
        (THREE, "circle", {}, "configuration", "lead in circles"),
        ({"openapi": "4.0", "paths": {}}, "x", {}, "configuration", "neither OpenAPI 3 nor Swagger 2.0"),
        ([], "x", {}, "configuration", "no description of an API"),
    ],
)
def test_what_cannot_be_placed_is_refused(
    description: Any, operation: str, parameters: Any, kind: str, said: str
) -> None:
    found, detail = refused(description, operation, **parameters)
    assert found == kind and said in detail


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=3,
)


def spoilt(value: Any, draw: Any) -> Any:
    """A description with one of its parts replaced."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 5)) == 0:
        return draw(JSON)
    changed = copy.copy(value)
    place = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    changed[place] = spoilt(value[place], draw)
    return changed


@given(st.data())
def test_a_description_with_anything_in_it_is_called_or_refused(data: st.DataObject) -> None:
    description, operation = data.draw(
        st.sampled_from([(THREE, "getPet"), (THREE, "putPet"), (TWO, "find"), (TWO, "form")])
    )
    given = {
        "getPet": {"id": 1, "tags": ["a"]},
        "putPet": {"id": 1, "a": 2},
        "find": {"status": "a"},
        "form": {"age": 1},
    }
    try:
        place(spoilt(description, data.draw), operation, **given[operation])
    except (Permanent, InvalidValue):
        pass


# --- with a server ---------------------------------------------------------------------------------------------------


def asking(it: Receiver, operation: str, parameters: Any, endpoint: Any = None, **more: Any) -> dict[str, Any]:
    place = {"endpoint": endpoint or at(it, "/openapi.json")}
    given = {"document": place, "operationId": operation, "parameters": parameters, **more}
    return document({"call": "openapi", "with": given}, use={"secrets": ["token", "pair"]})


def described() -> dict[str, Any]:
    found = copy.deepcopy(THREE)
    del found["servers"]
    return found


def test_an_operation_is_called() -> None:
    ran, receiver = calling(
        lambda it: asking(it, "getPet", {"id": "${ .id }", "tags": ["a", "b"]}, output="response"),
        said(described()),
        said({"id": 7}),
        input={"id": 7},
    )
    assert [one.line for one in receiver.got] == ["GET /openapi.json HTTP/1.1", "GET /pets/7?tags=a&tags=b HTTP/1.1"]
    assert ran.output["content"] == {"id": 7} and ran.output["request"]["uri"] == at(receiver, "/pets/7?tags=a&tags=b")


def test_a_description_may_be_in_yaml() -> None:
    text = b"openapi: 3.1.0\npaths:\n  /on:\n    get:\n      operationId: turn\n"
    ran, receiver = calling(lambda it: asking(it, "turn", {}), said(text, kind="application/yaml"), said("on"))
    assert ran.output == "on" and receiver.got[1].line == "GET /on HTTP/1.1"


def test_credentials_go_where_they_are_meant_to() -> None:
    async def go() -> None:
        async with receiving(said({**described(), "servers": [{"url": "/"}]}), said({"ok": 1})) as receiver:
            endpoint = {"uri": at(receiver, "/openapi.json"), "authentication": {"bearer": {"use": "token"}}}
            body = asking(
                receiver,
                "getPet",
                {"id": 1, "trace": "${ $secrets.token }"},
                endpoint,
                authentication={"basic": {"use": "pair"}},
            )
            ran = await run_on(application(), body)
            first, second = receiver.got
            assert first.headers["authorization"] == "Bearer tok-0123456789"
            assert second.headers["authorization"].startswith("Basic ")
            assert second.headers["trace"] == "tok-0123456789"
            assert ran.output == {"ok": 1} and "0123456789" not in ran.log

    asyncio.run(go())


def test_a_description_is_kept_for_a_while() -> None:
    def make(it: Receiver) -> dict[str, Any]:
        body = asking(it, "getPet", {"id": 1})
        body["do"].append({"again": body["do"][0]["task0"]})
        return body

    ran, receiver = calling(make, said(described()), said(1), said(2))
    assert ran.output == 2 and len(receiver.got) == 3


@pytest.mark.parametrize(
    ("answer", "kind", "status"),
    [
        (said({}, 404), "communication", 404),
        (said(b"{", kind="text/plain"), "validation", 400),
        (said([]), "configuration", 400),
    ],
    ids=["not there", "not readable", "something else"],
)
def test_a_description_that_cannot_be_had_is_an_error(answer: bytes, kind: str, status: int) -> None:
    ran, receiver = calling(lambda it: asking(it, "getPet", {"id": 1}), answer)
    assert (ran.kind, ran.problem["status"]) == (kind, status) and len(receiver.got) == 1


def test_a_bad_status_of_an_operation_is_a_communication_error() -> None:
    ran, _ = calling(lambda it: asking(it, "getPet", {"id": 1}), said(described()), 418)
    assert (ran.kind, ran.problem["status"]) == ("communication", 418)


def test_a_placed_call_keeps_what_was_asked_for() -> None:
    who = Authentication("bearer", {"token": "t"})
    call = placed(THREE, OpenApiCall(HERE, "getPet", {"id": 1}, None, who, "raw", True, ("x",)))
    assert (call.authentication, call.output, call.redirect, call.secrets) == (who, "raw", True, ("x",))
