"""Documents that call a server on the loopback: how tests of HTTP calls make, run and look at them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from perdure import Perdure
from perdure.core.records import Row
from perdure.errors import ExecutionFailed
from tests.http.receiver import Receiver, receiving

TYPES = "https://serverlessworkflow.io/spec/1.0.0/errors/"
SECRETS = {
    "token": "tok-0123456789",
    "password": "pass-0123456789",
    "pair": "ada:pass-0123456789",
    "whole": json.dumps({"username": "ada", "password": "pass-0123456789"}),
}


class Ran(Struct, frozen=True):
    """How an execution ended, and its log as it is stored."""

    output: Any
    problem: Any
    log: str

    @property
    def kind(self) -> str:
        return str(self.problem["type"]).removeprefix(TYPES)


def document(*tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"dsl": "1.0.3", "namespace": "remote", "name": "calls", "version": "1.0.0"}
    return {"document": about, "do": [{f"task{place}": task} for place, task in enumerate(tasks)], **more}


def http(method: str, endpoint: Any, **more: Any) -> dict[str, Any]:
    return {"call": "http", "with": {"method": method, "endpoint": endpoint, **more}}


def said(body: Any, status: int = 200, *headers: str, kind: str = "application/json") -> bytes:
    """An answer on the wire."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(data)}", f"content-type: {kind}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def application(**settings: Any) -> Perdure:
    options: dict[str, Any] = {"outbound_private": True, **settings}
    return Perdure("memory://", secrets=lambda tenant, name: SECRETS.get(name), **options)


async def run_on(app: Perdure, body: dict[str, Any], input: Any = None) -> Ran:
    async with app, asyncio.timeout(30):
        published = await app.definitions.publish(body)
        async with app.working():
            execution = await app.start(published.name, {} if input is None else input)
            output, problem = None, None
            try:
                output = await execution.result()
            except ExecutionFailed as error:
                problem = error.details
        rows: list[Row] = [row async for row in execution.rows()]
        return Ran(output, problem, "\n".join(bytes(row.data).decode() for row in rows))


def calling(
    make: Callable[[Receiver], dict[str, Any]], *answers: int | bytes, input: Any = None, app: Perdure | None = None
) -> tuple[Ran, Receiver]:
    """Run the document that is made for a server which gives these answers."""

    async def go() -> tuple[Ran, Receiver]:
        async with receiving(*answers) as receiver:
            return await run_on(app or application(), make(receiver), input), receiver

    return asyncio.run(go())


def at(receiver: Receiver, path: str) -> str:
    return f"http://127.0.0.1:{receiver.port}{path}"
