"""An operation of an API that OpenAPI 3 or Swagger 2.0 describes, and what it is given, as one request. No I/O.

Rules kept here: a parameter that the operation does not have, and one that it needs and does not get, is an error; what
the document gives under other names than those of parameters is the body, if the operation takes one. References lead
inside of the description only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from msgspec import Struct

from perdure.core.calls import METHODS, HttpCall, OpenApiCall, problem, text_of
from perdure.errors import Permanent
from perdure.flows.secret import SCHEME
from perdure.runtime.web.requests import texts_of

_SEPARATORS = {
    "csv": ",", "ssv": " ", "tsv": "\t", "pipes": "|", "form": ",", "simple": ",", "spaceDelimited": " ",
    "pipeDelimited": "|",
}  # fmt: skip
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"
#: References that lead to references.
_DEPTH = 20


class Operation(Struct, frozen=True):
    """Where it was found: its parameters are those of its path, and its own before them."""

    method: str
    path: str
    body: dict[str, Any]
    item: dict[str, Any]


def placed(description: Any, call: OpenApiCall) -> HttpCall:
    """The request of a call; Permanent with problem details if it cannot be made."""
    if not isinstance(description, dict) or not isinstance(description.get("paths"), dict):
        raise _misconfigured(f"{call.document} is no description of an API: it has no paths")
    swagger = str(description.get("swagger", "")).startswith("2.")
    if not swagger and not str(description.get("openapi", "")).startswith("3."):
        raise _misconfigured(f"{call.document} is neither OpenAPI 3 nor Swagger 2.0")
    found = _find(description, call.operation)
    placing = _Placing(description, found, dict(call.parameters), call.operation)
    for parameter in _parameters(description, found):
        placing.place(parameter)
    body = placing.form if swagger else placing.rest()
    if placing.left:
        raise _invalid(f"{call.operation} has no parameter {', '.join(sorted(placing.left))[:200]}")
    base = _base_2(description, call.document) if swagger else _base_3(description, found, call.document)
    return HttpCall(
        found.method,
        base.rstrip("/") + "/" + placing.path.lstrip("/"),
        placing.headers,
        placing.query,
        body,
        call.authentication,
        call.output,
        call.redirect,
        call.secrets,
    )


class _Placing:
    """The parts of a request, filled one parameter after the other; `left` is what was given and not yet placed."""

    def __init__(self, description: dict[str, Any], found: Operation, left: dict[str, Any], name: str) -> None:
        self.path = found.path
        self.left = left
        self.headers: dict[str, str] = {}
        self.query: list[tuple[str, str]] = []
        self.form: Any = None
        self._description = description
        self._found = found
        self._name = name

    def place(self, parameter: dict[str, Any]) -> None:
        name, where = str(parameter.get("name", "")), parameter.get("in")
        value = self.left.pop(name, None)
        if value is None:
            if parameter.get("required"):
                raise _invalid(f"{self._name} needs the parameter {name!r}")
            return
        match where:
            case "path":
                text = _joined(name, value, ",")
                if SCHEME in text:
                    raise _invalid(f"a secret cannot be a part of the path, as {name!r} of {self._name} is")
                self.path = self.path.replace(f"{{{name}}}", quote(text, safe=""))
            case "query":
                self.query += _query(parameter, name, value)
            case "header":
                self.headers[name] = _joined(name, value, ",")
            case "cookie":
                said = f"{name}={quote(_joined(name, value, ','), safe='')}"
                self.headers["cookie"] = f"{self.headers['cookie']}; {said}" if "cookie" in self.headers else said
            case "body":
                self.form = value
            case "formData":
                if parameter.get("type") == "file":
                    raise _misconfigured(f"{self._name} takes a file, and files are not sent from here")
                self.headers["content-type"] = _FORM
                self.form = {**(self.form or {}), name: value}
            case _:
                raise _misconfigured(f"the parameter {name!r} of {self._name} is in {where!r}, which is not known here")

    def rest(self) -> Any:
        """What is left is the body: as a whole under the name `body`, or its properties."""
        wanted = _followed(self._description, self._found.body.get("requestBody"))
        if not isinstance(wanted, dict):
            return None
        if not self.left:
            if wanted.get("required"):
                raise _invalid(f"{self._name} needs a body: give it as the parameter `body`, or its properties")
            return None
        body = self.left["body"] if set(self.left) == {"body"} else dict(self.left)
        self.left.clear()
        kinds = list(_object(wanted.get("content")))
        json = next((kind for kind in kinds if kind.partition(";")[0].endswith("json") or kind == "*/*"), None)
        if json is None and kinds:
            self.headers["content-type"] = _FORM if _FORM in kinds else kinds[0]
        elif json not in (None, "*/*", _JSON):
            self.headers["content-type"] = str(json)
        return body


def _find(description: dict[str, Any], operation: str) -> Operation:
    for path, item in description["paths"].items():
        item = _followed(description, item)
        for method, body in item.items() if isinstance(item, dict) else ():
            if method.upper() in METHODS and isinstance(body, dict) and body.get("operationId") == operation:
                return Operation(method.upper(), str(path), body, item)
    raise _misconfigured(f"the description of the API has no operation {operation!r}")


def _parameters(description: dict[str, Any], found: Operation) -> Iterator[dict[str, Any]]:
    seen: set[tuple[str, str]] = set()
    for one in (*_list(found.body.get("parameters")), *_list(found.item.get("parameters"))):
        parameter = _followed(description, one)
        if not isinstance(parameter, dict):
            raise _misconfigured("the description of the API has a parameter that is not an object")
        which = str(parameter.get("name")), str(parameter.get("in"))
        if which not in seen:
            seen.add(which)
            yield parameter


def _query(parameter: Mapping[str, Any], name: str, value: Any) -> list[tuple[str, str]]:
    """A parameter of the query; a list is repeated unless the description says how it is joined."""
    style = parameter.get("collectionFormat") or parameter.get("style")
    if parameter.get("style") == "deepObject" and isinstance(value, dict):
        return [(f"{name}[{key}]", text) for key, one in value.items() for text in texts_of(key, one)]
    if isinstance(value, dict):
        return [(key, text) for key, one in value.items() for text in texts_of(key, one)]
    swagger = "schema" not in parameter and "content" not in parameter
    if style == "multi" or (not swagger and parameter.get("explode", style in (None, "form"))):
        return [(name, text) for text in texts_of(name, value)]
    return [(name, _joined(name, value, _SEPARATORS.get(str(style or "csv"), ",")))]


def _joined(name: str, value: Any, separator: str) -> str:
    if isinstance(value, list):
        return separator.join(texts_of(name, value))
    text = text_of(value)
    if text is None:
        raise _invalid(f"the parameter {name!r} is an object, and only plain values and lists can be sent there")
    return text


def _base_2(description: Mapping[str, Any], document: str) -> str:
    here = urlsplit(document)
    schemes = _list(description.get("schemes")) or [here.scheme]
    scheme = "https" if "https" in schemes else str(schemes[0])
    return f"{scheme}://{description.get('host') or here.netloc}{description.get('basePath') or ''}"


def _base_3(description: Mapping[str, Any], found: Operation, document: str) -> str:
    servers = found.body.get("servers") or found.item.get("servers") or description.get("servers")
    server = _object(servers[0] if isinstance(servers, list) and servers else {})
    url = str(server.get("url", "/"))
    for name, variable in _object(server.get("variables")).items():
        url = url.replace(f"{{{name}}}", str(_object(variable).get("default", "")))
    try:
        return urljoin(document, url)
    except ValueError:
        raise _misconfigured(f"{url[:80]!r}, a server of the API, is no address") from None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _followed(description: Any, value: Any) -> Any:
    """What a reference leads to."""
    for _ in range(_DEPTH):
        if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
            return value
        reference, found = value["$ref"], description
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not reference.startswith("#/") or found is None:
            raise _misconfigured(f"{reference[:200]!r} leads nowhere inside of the description of the API")
        value = found
    raise _misconfigured("references in the description of the API lead in circles")


def _misconfigured(text: str) -> Permanent:
    return Permanent(text, problem("configuration", text))


def _invalid(text: str) -> Permanent:
    return Permanent(text, problem("validation", text))
