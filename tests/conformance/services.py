"""The services that the scenarios call, on the loopback: a pet store, and one that asks for a password.

`Elsewhere` leads calls of the real hosts to them, below everything that the engine knows of a call, so that addresses
in documents and outputs stay as they are. `Here` answers without any network, for runs in virtual time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from perdure.runtime.web.outbound import Method, Outbound, Reply

HOSTS = ("https://petstore.swagger.io", "https://httpbin.org")
SWAGGER = {
    "swagger": "2.0",
    "info": {"title": "A pet store, cut down", "version": "1"},
    "host": "petstore.swagger.io",
    "basePath": "/v2",
    "schemes": ["https", "http"],
    "paths": {
        "/pet/findByStatus": {
            "get": {
                "operationId": "findPetsByStatus",
                "parameters": [
                    {
                        "name": "status",
                        "in": "query",
                        "required": True,
                        "type": "array",
                        "items": {"type": "string"},
                        "collectionFormat": "multi",
                    }
                ],
            }
        },
        "/pet/{petId}": {
            "get": {
                "operationId": "getPetById",
                "parameters": [{"name": "petId", "in": "path", "required": True, "type": "integer"}],
            }
        },
    },
}


def answer(method: str, target: str, headers: Mapping[str, str]) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
    if method != "GET":
        return 405, {"message": "only GET is played here"}
    if path == "/v2/swagger.json":
        return 200, SWAGGER
    if path == "/v2/pet/findByStatus":
        return 200, [{"id": number, "name": f"pet {number}", "status": query["status"][0]} for number in (1, 2, 3)]
    if found := re.fullmatch(r"/v2/pet/(\d+)", path):
        return 200, {"id": int(found[1]), "name": f"pet {found[1]}", "status": "available"}
    if found := re.fullmatch(r"/basic-auth/([^/]+)/([^/]+)", path):
        wanted = "Basic " + base64.b64encode(f"{found[1]}:{found[2]}".encode()).decode()
        right = headers.get("authorization") == wanted
        return (200, {"authenticated": True, "user": found[1]}) if right else (401, {"authenticated": False})
    return 404, {"message": "not found"}


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
    status, body = answer(line.split()[0], line.split()[1], headers)
    data = json.dumps(body).encode()
    kind = "content-type: application/json"
    writer.write(f"HTTP/1.1 {status} Said\r\n{kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


class Elsewhere(Outbound):
    """Calls of the hosts that the scenarios name go to a server on the loopback; nothing else can be called."""

    def __init__(self, origin: str) -> None:
        super().__init__(["127.0.0.1"], private=True)
        self._origin = origin

    async def request(
        self,
        method: Method,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        signature: Mapping[str, str] | None = None,
    ) -> Reply:
        for host in HOSTS:
            url = url.replace(host, self._origin)
        return await super().request(method, url, headers, body, signature=signature)


class Here(Outbound):
    """The same services, without a network."""

    async def request(
        self,
        method: Method,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        signature: Mapping[str, str] | None = None,
    ) -> Reply:
        status, said = answer(method, url, headers or {})
        return Reply(status, (("content-type", "application/json"),), json.dumps(said).encode())


@asynccontextmanager
async def services() -> AsyncIterator[Elsewhere]:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    async with server:
        yield Elsewhere(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
