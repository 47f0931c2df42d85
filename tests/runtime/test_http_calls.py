"""`call: http`: what is sent, what the document gets, and what goes wrong. The server is a real one on the loopback."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from perdure import Perdure
from perdure.errors import ExecutionFailed
from perdure.flows.document import Document, build
from perdure.flows.rehearsal import rehearse
from perdure.runtime.web.outbound import Outbound, Reply
from perdure.testing import World, run
from tests.http.receiver import receiving
from tests.runtime.remote import application, at, calling, document, http, run_on, said


def test_the_content_of_an_answer_in_json_is_the_output() -> None:
    ran, receiver = calling(lambda it: document(http("get", at(it, "/pets"))), said({"pets": [1]}))
    assert ran.output == {"pets": [1]}
    assert receiver.got[0].line == "GET /pets HTTP/1.1"


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (said(b"caf\xe9", kind="text/plain; charset=latin-1"), "café"),
        (said(b"<a/>", kind="application/xml"), "<a/>"),
        (said(b"\x00\xff", kind="application/octet-stream"), "AP8="),
        (said({"title": "x"}, kind="application/problem+json"), {"title": "x"}),
        (said(b"", 204), None),
        (said(b"\xff\xfe", kind="text/plain; charset=utf-8"), "//4="),
        (said(b"{}", 200, "content-encoding: gzip"), "e30="),
    ],
    ids=["text", "xml", "bytes", "problem", "nothing", "no text", "packed"],
)
def test_content_is_json_text_or_base_64(answer: bytes, content: Any) -> None:
    ran, _ = calling(lambda it: document(http("get", at(it, "/"))), answer)
    assert ran.output == content and ran.problem is None


def test_raw_output_is_base_64_whatever_was_answered() -> None:
    ran, _ = calling(lambda it: document(http("get", at(it, "/"), output="raw")), said({"a": 1}))
    assert base64.b64decode(ran.output) == b'{"a": 1}'


def test_the_response_output_tells_of_the_call_and_hides_its_credentials() -> None:
    ran, receiver = calling(
        lambda it: document(
            http(
                "post",
                at(it, "/pets?a=1"),
                query={"b": [1, True], "none": None},
                headers={"X-Who": "${ .who }", "Authorization": "Bearer secret://token", "X-Key": "secret://token"},
                body={"name": "Rex"},
                output="response",
            )
        ),
        said({"id": 7}, 201, "x-rate: 5", "x-rate: 6"),
        input={"who": "ada"},
    )
    got = receiver.got[0]
    assert got.line == "POST /pets?a=1&b=1&b=true HTTP/1.1"
    assert got.headers["authorization"] == "Bearer tok-0123456789" and got.headers["x-key"] == "tok-0123456789"
    assert ran.output["statusCode"] == 201 and ran.output["content"] == {"id": 7}
    assert ran.output["headers"]["x-rate"] == "5, 6"
    request = ran.output["request"]
    assert request["method"] == "POST" and request["uri"] == at(receiver, "/pets?a=1&b=1&b=true")
    assert request["headers"]["x-who"] == "ada" and request["headers"]["x-key"] == "secret://token"
    assert "authorization" not in request["headers"]
    assert "tok-0123456789" not in ran.log


def test_keys_of_the_input_are_put_into_the_address_and_cannot_add_parts_to_it() -> None:
    _, receiver = calling(
        lambda it: document(http("get", at(it, "/pets/{pet.id}/{none}?q={a,b}"))),
        said(1),
        input={"pet.id": "../x?y=1#z", "a": "1&2", "b": True},
    )
    assert receiver.got[0].line == "GET /pets/..%2Fx%3Fy%3D1%23z/?q=1%262,true HTTP/1.1"


def test_what_an_expression_gives_is_a_part_of_the_address_unless_the_address_begins_with_it() -> None:
    _, receiver = calling(
        lambda it: document(
            http("get", f'${{ "{at(it, "")}" }}/a/${{ .id }}'), http("get", {"uri": f'${{ "{at(it, "/b?c=1")}" }}'})
        ),
        said({"id": "x/y"}),
        input={"id": "1/2"},
    )
    assert [one.line for one in receiver.got] == ["GET /a/1%2F2 HTTP/1.1", "GET /b?c=1 HTTP/1.1"]


def test_a_name_in_braces_that_comes_with_the_data_is_data() -> None:
    _, receiver = calling(
        lambda it: document(http("get", f'${{ "{at(it, "/")}" + .path }}')),
        said(1),
        input={"path": "%7Bid%7D", "id": 7},
    )
    assert receiver.got[0].line == "GET /%7Bid%7D HTTP/1.1"


def test_an_object_cannot_be_a_part_of_an_address() -> None:
    ran, receiver = calling(lambda it: document(http("get", at(it, "/{id}"))), said(1), input={"id": [1]})
    assert ran.kind == "expression" and not receiver.got


def test_headers_and_query_may_come_from_an_expression_as_a_whole() -> None:
    _, receiver = calling(
        lambda it: document(http("get", at(it, "/"), headers="${ .headers }", query="${ .query }")),
        said(1),
        input={"headers": {"accept": "text/plain"}, "query": {"q": "a b"}},
    )
    assert receiver.got[0].line == "GET /?q=a%20b HTTP/1.1" and receiver.got[0].headers["accept"] == "text/plain"


@pytest.mark.parametrize("part", ["headers", "query"])
@pytest.mark.parametrize("value", [[1], {"a": {"b": 1}}], ids=["list", "object inside"])
def test_headers_and_query_that_are_no_plain_values_are_refused(part: str, value: Any) -> None:
    ran, receiver = calling(
        lambda it: document(http("get", at(it, "/"), **{part: "${ .it }"})), said(1), input={"it": value}
    )
    assert ran.kind == "validation" and not receiver.got


@pytest.mark.parametrize(
    ("body", "headers", "kind", "sent"),
    [
        ({"a": 1}, {}, "application/json", b'{"a":1}'),
        ([1], {"Content-Type": "application/vnd.x+json"}, "application/vnd.x+json", b"[1]"),
        ("plain", {}, "text/plain; charset=utf-8", b"plain"),
        ('{"a": 1}', {"content-type": "application/json"}, "application/json", b'{"a": 1}'),
        ({"a": "1 2", "b": [3, 4]}, {"content-type": "application/x-www-form-urlencoded"}, None, b"a=1+2&b=3&b=4"),
        (0, {}, "application/json", b"0"),
    ],
    ids=["json", "other json", "text", "text that is json", "form", "number"],
)
def test_a_body_is_sent_as_json_as_text_or_as_a_form(body: Any, headers: Any, kind: str | None, sent: bytes) -> None:
    _, receiver = calling(lambda it: document(http("post", at(it, "/"), body=body, headers=headers)), said(1))
    assert receiver.got[0].body == sent
    assert receiver.got[0].headers["content-type"] == (kind or "application/x-www-form-urlencoded")


def test_a_body_of_a_kind_that_is_not_known_is_refused() -> None:
    ran, receiver = calling(
        lambda it: document(http("post", at(it, "/"), body={"a": 1}, headers={"content-type": "multipart/form-data"})),
        said(1),
    )
    assert ran.kind == "validation" and "multipart" in ran.problem["detail"] and not receiver.got


def test_a_call_that_changes_something_has_an_idempotency_key_unless_it_was_given() -> None:
    _, receiver = calling(
        lambda it: document(
            http("post", at(it, "/")),
            http("delete", at(it, "/"), headers={"Idempotency-Key": "mine"}),
            http("get", at(it, "/")),
        ),
        said(1),
    )
    first, second, third = (one.headers for one in receiver.got)
    assert first["idempotency-key"].endswith("/perdure.http")
    assert second["idempotency-key"] == "mine"
    assert "idempotency-key" not in third


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_bad_status_is_a_communication_error_with_that_status() -> None:
    ran, receiver = calling(
        lambda it: document(http("get", at(it, "/pets?key=1"))), said(b"no such pet", 404, kind="text/plain")
    )
    assert ran.kind == "communication" and ran.problem["status"] == 404
    assert ran.problem["title"] == "Not Found" and ran.problem["instance"] == "/do/0/task0"
    assert ran.problem["detail"] == f"GET {at(receiver, '/pets')} answered 404: no such pet"


def test_a_call_that_was_answered_is_not_made_again() -> None:
    ran, receiver = calling(lambda it: document(http("post", at(it, "/"))), 503, 200)
    assert ran.problem["status"] == 503 and len(receiver.got) == 1


def test_a_call_that_broke_off_is_not_made_again() -> None:
    ran, receiver = calling(lambda it: document(http("post", at(it, "/"))), b"HTTP/1.1 200", 200)
    assert ran.kind == "communication" and ran.problem["status"] == 500 and len(receiver.got) == 1


def test_a_call_that_found_nobody_is_made_again() -> None:
    async def go() -> None:
        async with receiving(said({"ok": True})) as receiver:

            class Late(Outbound):
                calls = 0

                async def request(self, method: Any, url: str, *args: Any, **more: Any) -> Reply:
                    self.calls += 1
                    return await super().request(
                        method, url if self.calls > 1 else "http://127.0.0.1:1/", *args, **more
                    )

            app = application()
            app.outbound = late = Late(private=True)
            ran = await run_on(app, document(http("post", at(receiver, "/"))))
            assert ran.output == {"ok": True} and late.calls == 2

    asyncio.run(go())


def test_who_is_not_there_at_all_is_a_communication_error_after_three_tries() -> None:
    ran, _ = calling(lambda it: document(http("get", "http://127.0.0.1:1/")))
    assert ran.kind == "communication" and ran.problem["status"] == 500
    settled = [line for line in ran.log.splitlines() if '"perdure.http"' in line and '"error"' in line]
    assert json.loads(settled[-1])["error"]["attempts"] == 3


def test_an_answer_that_comes_too_late_is_a_timeout() -> None:
    async def go() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            ran = await run_on(application(outbound_timeout=0.2), document(http("get", url)))
            assert ran.kind == "timeout" and ran.problem["status"] == 408

    asyncio.run(go())


def test_an_answer_that_is_too_large_is_a_communication_error() -> None:
    ran, _ = calling(
        lambda it: document(http("get", at(it, "/"))),
        said(b"x" * 2000, kind="text/plain"),
        app=application(outbound_bytes=1000),
    )
    assert ran.kind == "communication" and "more than 1,000 bytes" in ran.problem["detail"]


def test_an_answer_that_only_says_that_it_is_json_is_a_communication_error() -> None:
    ran, _ = calling(lambda it: document(http("get", at(it, "/"))), said(b"{"))
    assert ran.kind == "communication" and "cannot be read" in ran.problem["detail"]


@pytest.mark.parametrize(
    "settings", [{"outbound_private": False}, {"outbound_hosts": "*.example.com"}], ids=["private", "hosts"]
)
def test_addresses_are_looked_at_as_those_of_callbacks_are(settings: dict[str, Any]) -> None:
    ran, receiver = calling(lambda it: document(http("get", at(it, "/"))), 200, app=application(**settings))
    assert ran.kind == "configuration" and not receiver.got


def test_headers_that_frame_a_request_cannot_be_set() -> None:
    ran, receiver = calling(lambda it: document(http("get", at(it, "/"), headers={"Host": "other"})), 200)
    assert ran.kind == "configuration" and not receiver.got


def test_an_error_can_be_caught_and_tried_again_by_the_document() -> None:
    def make(it: Any) -> dict[str, Any]:
        retry = {"delay": {"milliseconds": 1}, "limit": {"attempt": {"count": 3}}}
        catch = {
            "errors": {"with": {"type": "https://serverlessworkflow.io/dsl/errors/types/communication", "status": 503}}
        }
        return document({"try": [{"get": http("get", at(it, "/"))}], "catch": {**catch, "retry": retry}})

    ran, receiver = calling(make, 503, 503, said("at last"))
    assert ran.output == "at last" and len(receiver.got) == 3


# --- redirects -------------------------------------------------------------------------------------------------------


def test_a_redirect_is_an_error_unless_redirects_are_wanted() -> None:
    ran, receiver = calling(lambda it: document(http("get", at(it, "/"))), said(b"", 302, "location: /there"))
    assert ran.kind == "communication" and ran.problem["status"] == 302 and len(receiver.got) == 1


def test_a_redirect_that_is_wanted_is_followed_and_the_request_that_is_shown_is_the_first() -> None:
    ran, receiver = calling(
        lambda it: document(http("get", at(it, "/here"), redirect=True, output="response")),
        said(b"", 302, "location: there?a=1"),
        said({"ok": 1}),
    )
    assert [one.line for one in receiver.got] == ["GET /here HTTP/1.1", "GET /there?a=1 HTTP/1.1"]
    assert ran.output["request"]["uri"] == at(receiver, "/here") and ran.output["content"] == {"ok": 1}


@pytest.mark.parametrize(("status", "method"), [(301, "GET"), (302, "GET"), (303, "GET"), (307, "POST"), (308, "POST")])
def test_what_becomes_of_a_post_follows_from_the_status(status: int, method: str) -> None:
    _, receiver = calling(
        lambda it: document(http("post", at(it, "/"), body={"a": 1}, redirect=True)),
        said(b"", status, "location: /there"),
        said(1),
    )
    assert receiver.got[1].line == f"{method} /there HTTP/1.1"
    assert bool(receiver.got[1].body) == (method == "POST")


def test_an_answer_below_400_is_a_good_one_where_redirects_are_wanted() -> None:
    ran, _ = calling(lambda it: document(http("get", at(it, "/"), redirect=True, output="response")), said(b"", 304))
    assert ran.output["statusCode"] == 304


def test_redirects_in_a_circle_end() -> None:
    ran, receiver = calling(
        lambda it: document(http("get", at(it, "/"), redirect=True)), said(b"", 302, "location: /again")
    )
    assert ran.kind == "communication" and "on and on" in ran.problem["detail"] and len(receiver.got) == 6


def test_a_redirect_to_another_origin_takes_no_credentials_along() -> None:
    async def go() -> None:
        async with receiving(said({"ok": 1})) as other:
            place = f"location: {at(other, '/there')}"
            async with receiving(said(b"", 307, place)) as receiver:
                endpoint = {"uri": at(receiver, "/"), "authentication": {"bearer": {"token": "secret://token"}}}
                headers = {"x-key": "secret://token", "cookie": "a=1", "x-plain": "yes"}
                ran = await run_on(application(), document(http("get", endpoint, headers=headers, redirect=True)))
                assert ran.output == {"ok": 1}
                assert receiver.got[0].headers["authorization"] == "Bearer tok-0123456789"
                there = other.got[0].headers
                assert there["x-plain"] == "yes" and not {"authorization", "x-key", "cookie"} & there.keys()

    asyncio.run(go())


def test_a_body_with_secrets_does_not_follow_to_another_origin() -> None:
    async def go() -> None:
        async with receiving(said(1)) as other:
            async with receiving(said(b"", 307, f"location: {at(other, '/')}")) as receiver:
                call = http("post", at(receiver, "/"), body={"key": "secret://token"}, redirect=True)
                ran = await run_on(application(), document(call))
                assert receiver.got[0].json == {"key": "tok-0123456789"}
                assert ran.kind == "communication" and "secrets stay here" in ran.problem["detail"] and not other.got

    asyncio.run(go())


def test_every_address_that_a_redirect_leads_to_is_looked_at() -> None:
    ran, _ = calling(
        lambda it: document(http("get", at(it, "/"), redirect=True)),
        said(b"", 302, "location: http://169.254.169.254/latest/meta-data"),
    )
    assert ran.kind == "configuration" and "169.254.169.254" in ran.problem["detail"]


@pytest.mark.parametrize("place", ["http://[", "http://example.com:99999999/"])
def test_a_redirect_to_what_is_no_address_is_a_communication_error(place: str) -> None:
    ran, _ = calling(lambda it: document(http("get", at(it, "/"), redirect=True)), said(b"", 302, f"location: {place}"))
    assert ran.kind == "communication" and "no address" in ran.problem["detail"]


def test_a_call_whose_redirect_found_nobody_is_not_made_again() -> None:
    ran, receiver = calling(
        lambda it: document(http("post", at(it, "/"), redirect=True)), said(b"", 303, "location: http://127.0.0.1:1/")
    )
    assert ran.kind == "communication" and len(receiver.got) == 1


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_are_put_in_where_the_call_is_made_and_the_log_has_references() -> None:
    ran, receiver = calling(
        lambda it: document(
            http(
                "post",
                at(it, "/"),
                headers={"x-key": "Key ${ $secrets.token }!"},
                query={"key": "${ $secrets.token }"},
                body={"deep": ["${ $secrets.password }"]},
            ),
            use={"secrets": ["token", "password"]},
        ),
        said(1),
    )
    got = receiver.got[0]
    assert got.headers["x-key"] == "Key tok-0123456789!" and got.line == "POST /?key=tok-0123456789 HTTP/1.1"
    assert got.json == {"deep": ["pass-0123456789"]}
    assert "0123456789" not in ran.log and "secret://token" in ran.log


def test_data_that_looks_like_a_reference_stays_data() -> None:
    _, receiver = calling(
        lambda it: document(http("post", at(it, "/"), body="${ . }"), use={"secrets": ["token"]}),
        said(1),
        input={"a": "secret://token"},
    )
    assert receiver.got[0].json == {"a": "secret://token"}


def test_a_reference_that_runs_into_other_text_is_refused_and_not_sent() -> None:
    ran, receiver = calling(
        lambda it: document(
            http("get", at(it, "/"), headers={"x": "${ $secrets.token }s"}), use={"secrets": ["token"]}
        ),
        said(1),
    )
    assert ran.kind == "validation" and "put a sign in between" in ran.problem["detail"] and not receiver.got


def test_of_two_secrets_the_one_that_is_meant_is_sent() -> None:
    async def go() -> None:
        known = {"key": "value-of-key", "key-2": "value-of-key-2"}
        async with receiving(said(1)) as receiver:
            app = Perdure("memory://", secrets=lambda tenant, name: known.get(name), outbound_private=True)
            headers = {"x": '${ $secrets.key },${ $secrets["key-2"] }.'}
            await run_on(app, document(http("get", at(receiver, "/"), headers=headers), use={"secrets": list(known)}))
            assert receiver.got[0].headers["x"] == "value-of-key,value-of-key-2."

    asyncio.run(go())


def test_an_answer_that_repeats_a_secret_is_not_written() -> None:
    ran, _ = calling(
        lambda it: document(http("get", at(it, "/"), headers={"x-key": "secret://token"}, output="raw")),
        said({"you said": "tok-0123456789"}),
    )
    assert ran.kind == "runtime" and ran.problem["title"] == "SecretExposed" and "0123456789" not in ran.log


def test_an_error_that_repeats_a_secret_shows_stars() -> None:
    ran, _ = calling(
        lambda it: document(http("get", at(it, "/"), query={"k": "secret://token"})),
        said(b"bad key tok-0123456789", 403, kind="text/plain"),
    )
    assert "0123456789" not in ran.log


def test_a_secret_that_is_not_there_is_found_out_when_the_document_is_published() -> None:
    async def go() -> None:
        body = document(http("get", "https://example.com", headers={"x": "secret://nobody"}))
        async with application() as app:
            problems = await app.definitions.examine(body)
            assert [(one.level, "no secret 'nobody'" in one.message) for one in problems] == [("error", True)]

    asyncio.run(go())


def test_a_secret_that_has_gone_is_an_authorization_error() -> None:
    async def go() -> None:
        known = {"gone": "value-of-it"}
        app = Perdure("memory://", secrets=lambda tenant, name: known.get(name), outbound_private=True)
        async with receiving(said(1)) as receiver, app:
            body = document(http("get", at(receiver, "/"), headers={"x": "secret://gone"}))
            await app.definitions.publish(body)
            known.clear()
            async with app.working():
                execution = await app.start("remote.calls", {})
                with pytest.raises(ExecutionFailed) as failed:
                    await execution.result()
            assert failed.value.details["type"].endswith("authorization")
            assert not receiver.got

    asyncio.run(go())


# --- crashes and rehearsals ------------------------------------------------------------------------------------------


def test_a_call_that_is_made_again_after_a_crash_has_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    async def request(self: Outbound, method: str, url: str, headers: Any, body: bytes) -> Reply:
        keys.append(headers["idempotency-key"])
        return Reply(200, (("content-type", "application/json"),), b"7")

    monkeypatch.setattr(Outbound, "request", request)
    body = document(http("post", "https://example.com/orders"))
    body["document"]["name"] = "crashing"
    posting = Document(body)

    async def crash() -> None:
        async with World() as world:
            report = await world.crash_everywhere(posting, {})
            assert len(keys) > report.runs  # some were made twice
            assert set(keys) == {"default/crashing/1/perdure.http"}

    run(crash())


def test_a_document_is_rehearsed_without_calling_anybody() -> None:
    body = document(http("get", "https://example.com/{id}"), {"set": {"name": "${ .name }"}})
    rehearsal = rehearse(build(body, version=1), {"id": 7}, results={"perdure.http": {"name": "Rex"}})
    assert rehearsal.status == "completed" and rehearsal.result == {"name": "Rex"}
