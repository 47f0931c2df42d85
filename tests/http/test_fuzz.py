"""The served description against the server itself: requests that fit it and requests that do not.

Whatever comes, nothing is a failure of the server, and every answer is one that the description names.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from perdure import Perdure, event, workflow
from perdure.http.api import ALL, VERSION
from perdure.http.auth import Authenticator, Open
from perdure.http.openapi import describe
from perdure.http.serving import listening


@workflow(name="fuzzed")
async def fuzzed(first: str = "", second: int = 0) -> str:
    return await event("go", str)


class Served:
    """A server with a worker on a thread of its own."""

    def __init__(self) -> None:
        self.address = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        everybody = Authenticator(open=Open("default"))
        async with Perdure("memory://") as app, app.working(), listening(app, everybody, "127.0.0.1", 0) as address:
            await app.start(fuzzed, "a", 1, id="e-1")
            self.address = address
            self._ready.set()
            await self._end.wait()

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Served() as served:
        yield served.address


schema = schemathesis.openapi.from_dict(describe(ALL, VERSION))


@schema.exclude(path_regex="/stream$").parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_makes_the_server_fail(case: schemathesis.Case, address: str) -> None:
    named = case.path_parameters
    if len(str(named.get("id", ""))) % 2:
        named["id"] = "e-1"  # there is one of this name, so that half of them get further than that
    answer = case.call(base_url=address, timeout=20)
    case.validate_response(
        answer,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_headers_conformance,
            response_schema_conformance,
        ],
    )
