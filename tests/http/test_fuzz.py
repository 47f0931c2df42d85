"""The served description against the server itself: requests that fit it and requests that do not.

Whatever comes, nothing is a failure of the server, and every answer is one that the description names. That such a
failure would be found is shown with routes that have one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from msgspec import Struct
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.failures import FailureGroup

from perdure import Perdure, event, workflow
from perdure.http.api import ALL, VERSION
from perdure.http.auth import Authenticator, Open
from perdure.http.openapi import describe
from perdure.http.route import Answer, Call, Nothing, Route, Routes
from perdure.http.server import serve
from perdure.http.serving import Server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
HOW = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@workflow(name="fuzzed")
async def fuzzed(first: str = "", second: int = 0) -> str:
    return await event("go", str)


@workflow(name="fuzzed-over")
async def over() -> str:
    return "over"


class Served:
    """A server of these routes with a worker, on a thread of its own."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.address = ""
        self._routes = routes
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with Perdure("memory://") as app, app.working():
            await app.start(fuzzed, "a", 1, id="e-1")
            await (await app.start(over, id="e-2")).result(20)
            served = serve(app, Authenticator(open=Open("default")), self._routes)
            server = Server(uvicorn.Config(served, port=0, log_config=None, access_log=False, loop="none"))
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            self.address = f"http://{host}:{port}"
            self._ready.set()
            await self._end.wait()
            served.leaving.say()
            app.external.close()
            server.should_exit = True
            await serving

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Served(ALL) as served:
        yield served.address


def judge(case: schemathesis.Case, address: str) -> None:
    """Send it, and raise what is wrong with the answer."""
    named = case.path_parameters
    if len(str(named.get("id", ""))) % 2:
        # There is one of this name, so that half of them get further than that; what is followed must come to an end.
        named["id"] = "e-2" if case.path.endswith("/stream") else "e-1"
    case.validate_response(case.call(base_url=address, timeout=20), checks=CHECKS)


schema = schemathesis.openapi.from_dict(describe(ALL, VERSION))


@schema.parametrize()
@HOW
def test_no_request_makes_the_server_fail(case: schemathesis.Case, address: str) -> None:
    judge(case, address)


# Routes that have a fault.

planted = Routes("planted")


class Number(Struct, frozen=True, forbid_unknown_fields=True):
    n: int = 0


class Words(Struct, frozen=True, forbid_unknown_fields=True):
    words: list[str]


class Count(Struct, frozen=True):
    count: int


@planted("GET", "/v1/sound", None, query=Number, answers={200: Count})
async def sound(call: Call[Number, Nothing]) -> Answer:
    """Has no fault."""
    return Answer(Count(call.query.n))


@planted("GET", "/v1/fails", None, query=Number, answers={200: Count})
async def fails(call: Call[Number, Nothing]) -> Answer:
    """Fails for some input."""
    return Answer(Count(1000 // max(0, 1000 - abs(call.query.n))))


@planted("POST", "/v1/lies", None, body=Words, answers={200: Count})
async def lies(call: Call[Nothing, Words]) -> Answer:
    """Answers something else than it declares, for some input."""
    words = call.body.words
    return Answer({"count": words[0]} if words else Count(0))


@planted("POST", "/v1/surprises", None, body=Words, answers={200: Count})
async def surprises(call: Call[Nothing, Words]) -> Answer:
    """Answers with a status that is left to problems, and with none, for some input."""
    return Answer(Count(len(call.body.words)), 418 if call.body.words else 200)


def found(path: str) -> str:
    """What is found wrong with a route."""
    described = schemathesis.openapi.from_dict(describe(planted.all, VERSION))
    [operation] = [one.ok() for one in described.get_all_operations() if one.ok().path == path]
    with Served(planted.all) as served:

        @HOW
        @given(case=operation.as_strategy())
        def send(case: schemathesis.Case) -> None:
            judge(case, served.address)

        try:
            send()
        except FailureGroup as group:
            return " ".join(type(one).__name__ for one in group.exceptions)
    return ""


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/v1/sound", ""),
        ("/v1/fails", "ServerError"),
        ("/v1/lies", "JsonSchemaError"),
        ("/v1/surprises", "UndefinedContentType"),
    ],
)
def test_a_fault_of_a_route_is_found(path: str, fault: str) -> None:
    assert found(path) == fault
