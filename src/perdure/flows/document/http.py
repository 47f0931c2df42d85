"""`call: http` and `call: openapi`: what a document asks for, computed. The engine's own actions make the call.

Rules kept here: the request is complete, and in the log, before anything is sent; secrets in it are references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from perdure.core.calls import METHODS, HttpCall, OpenApiCall, Output, text_of
from perdure.errors import InvalidValue
from perdure.flows.calls import http, openapi
from perdure.flows.document.addresses import Endpoint
from perdure.flows.document.authentication import Authenticates, mentioned
from perdure.flows.document.reader import Reader
from perdure.flows.document.terms import See

_HTTP = ("method", "endpoint", "headers", "body", "query", "output", "redirect")
_OPENAPI = ("document", "operationId", "parameters", "authentication", "output", "redirect")
_OUTPUTS = ("content", "raw", "response")


class Remote(Protocol):
    """What a task calls outside."""

    async def call(self, given: Any, see: See) -> Any: ...


class HttpRemote:
    _output: Output

    def __init__(self, reader: Reader, body: Any, at: str, names: Sequence[str]) -> None:
        body = reader.object(body, at, _HTTP, ("method", "endpoint"))
        self._method = str(body.get("method", "GET")).upper()
        if self._method not in METHODS:
            reader.wrong(f"{at}/method", f"{body['method']!r} is no method", f"there are: {', '.join(METHODS)}")
        self._endpoint = Endpoint(reader, body.get("endpoint"), f"{at}/endpoint", names)
        for name in ("headers", "query"):
            if not isinstance(body.get(name, {}), dict) and "${" not in str(body[name]):
                reader.wrong(f"{at}/{name}", "an object, or an expression that gives one, is expected here")
        self._headers = reader.value(body.get("headers", {}), f"{at}/headers", names)
        self._query = reader.value(body.get("query", {}), f"{at}/query", names)
        self._body = reader.value(body.get("body"), f"{at}/body", names)
        self._output, self._redirect = _answer(reader, body, at)
        self.secrets = tuple(dict.fromkeys([*mentioned(reader, body), *self._endpoint.secrets]))

    async def call(self, given: Any, see: See) -> Any:
        headers = {name: _text(name, value) for name, value in _object(self._headers.of(given, see), "headers")}
        query = [
            (name, _text(name, one))
            for name, value in _object(self._query.of(given, see), "query")
            for one in (value if isinstance(value, list) else [value])
            if one is not None
        ]
        return await http(
            HttpCall(
                self._method,
                self._endpoint.uri(given, see),
                headers,
                query,
                self._body.of(given, see),
                self._endpoint.authentication(given, see),
                self._output,
                self._redirect,
                self.secrets,
            )
        )


class OpenApiRemote:
    _output: Output

    def __init__(self, reader: Reader, body: Any, at: str, names: Sequence[str]) -> None:
        body = reader.object(body, at, _OPENAPI, ("document", "operationId"))
        document = reader.object(body.get("document", {}), f"{at}/document", ("name", "endpoint"), ("endpoint",))
        self._document = Endpoint(reader, document.get("endpoint"), f"{at}/document/endpoint", names)
        self._operation = reader.text(body.get("operationId"), f"{at}/operationId")
        if not isinstance(body.get("parameters", {}), dict):
            reader.wrong(f"{at}/parameters", "an object is expected here")
        self._parameters = reader.value(body.get("parameters", {}), f"{at}/parameters", names)
        self._authentication: Authenticates | None = None
        if "authentication" in body:
            self._authentication = Authenticates(reader, body["authentication"], f"{at}/authentication", names)
        self._output, self._redirect = _answer(reader, body, at)
        own = () if self._authentication is None else self._authentication.secrets
        self.secrets = tuple(dict.fromkeys([*mentioned(reader, body), *self._document.secrets, *own]))

    async def call(self, given: Any, see: See) -> Any:
        own = self._authentication
        return await openapi(
            OpenApiCall(
                self._document.uri(given, see),
                self._operation,
                self._parameters.of(given, see),
                self._document.authentication(given, see),
                None if own is None else own.of(given, see),
                self._output,
                self._redirect,
                self.secrets,
            )
        )


def _answer(reader: Reader, body: dict[str, Any], at: str) -> tuple[Output, bool]:
    output, redirect = body.get("output", "content"), body.get("redirect", False)
    if output not in _OUTPUTS:
        reader.wrong(f"{at}/output", f"one of {', '.join(_OUTPUTS)} is expected here")
    if not isinstance(redirect, bool):
        reader.wrong(f"{at}/redirect", "true or false is expected here")
    return cast(Output, output) if output in _OUTPUTS else "content", redirect is True


def _object(value: Any, what: str) -> list[tuple[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, dict):
        raise InvalidValue(f"{what} must be an object, and the expression gave {type(value).__name__}")
    return [(name, one) for name, one in value.items() if one is not None]


def _text(name: str, value: Any) -> str:
    text = text_of(value)
    if text is None:
        raise InvalidValue(f"{name[:80]!r} is an object or a list, and only plain values can be sent there")
    return text
