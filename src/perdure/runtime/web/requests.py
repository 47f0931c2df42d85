"""What a call of a document looks like on the wire, and what the document gets of the answer. No I/O.

Rules kept here: what is shown of a request has references where secrets were sent, and nothing of its credentials; to
another origin than the one that was named, a redirect takes along no credentials and no secrets.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec
from msgspec import Struct, structs

from perdure.core.calls import SAFE, HttpCall, is_json, problem, text_of
from perdure.errors import InvalidValue, Permanent
from perdure.flows.secret import SCHEME
from perdure.runtime.web.outbound import Method, Reply

_CREDENTIALS = ("authorization", "proxy-authorization", "cookie")
_MOVED = (301, 302, 303, 307, 308)
_FORM = "application/x-www-form-urlencoded"
_USUAL = {"accept": "application/json, */*;q=0.5", "user-agent": "perdure"}


class Known:
    """The secrets that a call may use, by the names under which it refers to them."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        names = "|".join(re.escape(name) for name in sorted(values, key=len, reverse=True))
        self._reference = re.compile(f"{SCHEME}({names})(?![A-Za-z0-9_-])") if values else None

    def text(self, text: str) -> str:
        """The text with the values in the place of the references."""
        if self._reference is None or SCHEME not in text:
            return text
        for name in self.values:
            if re.search(f"{SCHEME}{re.escape(name)}(?=[A-Za-z0-9_-])", self._reference.sub("", text)):
                raise InvalidValue(
                    f"what follows the secret {name!r} reads as a part of its name: put a sign in between"
                )
        return self._reference.sub(lambda found: self.values[found[1]], text)

    def within(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.within(one) for one in value]
            case dict():
                return {name: self.within(one) for name, one in value.items()}
            case _:
                return value

    def has(self, value: Any) -> bool:
        """Whether there is a reference in a value."""
        return self._reference is not None and self.within(value) != value


class Wire(Struct, frozen=True):
    """A request as it is sent. `guarded` are the headers with secrets in them; `sealed` says that the body has some."""

    method: Method
    url: str
    headers: dict[str, str]
    body: bytes
    guarded: tuple[str, ...] = ()
    sealed: bool = False

    def with_headers(self, headers: Mapping[str, str]) -> Wire:
        return structs.replace(self, headers={**self.headers, **headers})

    def moved(self, reply: Reply) -> Wire | None:
        """The request that an answer leads to; None if it leads nowhere."""
        place = reply.header("location")
        if reply.status not in _MOVED or not place:
            return None
        try:
            url = urljoin(self.url, place).partition("#")[0]
            leaves = _origin(url) != _origin(self.url)
        except ValueError:
            raise _lost(f"{shown_address(self.url)} leads to {place[:80]!r}, which is no address") from None
        headers, method, body = dict(self.headers), self.method, self.body
        if (reply.status == 303 and method != "HEAD") or (reply.status in (301, 302) and method == "POST"):
            method, body = "GET", b""
            headers.pop("content-type", None)
            headers.pop("idempotency-key", None)
        if leaves:
            if self.sealed and body:
                raise _lost(f"{shown_address(self.url)} leads to another host, and secrets stay here")
            headers = {name: one for name, one in headers.items() if name not in (*_CREDENTIALS, *self.guarded)}
        return structs.replace(self, method=method, url=url, headers=headers, body=body)


def wire_of(call: HttpCall, known: Known, key: str) -> Wire:
    """`key` is the same whenever the same call is made again."""
    given = {name.lower(): known.text(value) for name, value in call.headers.items()}
    guarded = tuple(name.lower() for name, value in call.headers.items() if known.has(value))
    body, kind = _body(known.within(call.body), given.get("content-type", ""))
    made = dict(_USUAL)
    if kind:
        made["content-type"] = kind
    if call.method not in SAFE:
        made["idempotency-key"] = key
    url = address(call.uri, [(name, known.text(value)) for name, value in call.query])
    return Wire(cast(Method, call.method), url, made | given, body, guarded, known.has(call.body))


def address(uri: str, query: list[tuple[str, str]]) -> str:
    """
    >>> address("https://example.com/in?a=1#top", [("b", "x y")])
    'https://example.com/in?a=1&b=x%20y'
    """
    uri = uri.partition("#")[0]
    if not query:
        return uri
    sign = "" if uri.endswith(("?", "&")) else "&" if "?" in uri else "?"
    return uri + sign + urlencode(query, quote_via=quote, safe="")


def shown_address(uri: str) -> str:
    """An address for messages: what comes behind the path may be a credential."""
    return uri.partition("?")[0][:500]


def output_of(call: HttpCall, wire: Wire, reply: Reply) -> Any:
    """What the document gets; Permanent with problem details if the status is not a good one."""
    if not 200 <= reply.status < (400 if call.redirect else 300):
        raise _failed(call, reply)
    if call.output == "raw":
        return base64.b64encode(reply.body).decode()
    if call.output == "content":
        return _content(reply)
    sent = {name: call.headers.get(_known_as(call, name), value) for name, value in wire.headers.items()}
    return {
        "request": {
            "method": call.method,
            "uri": address(call.uri, call.query),
            "headers": {name: value for name, value in sent.items() if name not in _CREDENTIALS},
        },
        "statusCode": reply.status,
        "headers": _headers(reply),
        "content": _content(reply),
    }


def _known_as(call: HttpCall, name: str) -> str:
    return next((one for one in call.headers if one.lower() == name), name)


def _headers(reply: Reply) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in reply.headers:
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _content(reply: Reply) -> Any:
    """What was answered: JSON as it is, text as text, anything else in base 64."""
    if not reply.body:
        return None
    kind = reply.header("content-type")
    if reply.header("content-encoding") in ("", "identity"):
        if is_json(kind):
            try:
                return msgspec.json.decode(reply.body)
            except msgspec.DecodeError as error:
                raise _lost(f"the answer says that it is JSON, and cannot be read: {error}") from None
        if (text_here := _text(reply)) is not None:
            return text_here
    return base64.b64encode(reply.body).decode()


def _text(reply: Reply) -> str | None:
    kind, _, more = reply.header("content-type").partition(";")
    if not kind.strip().lower().startswith("text/") and not kind.strip().lower().endswith(("xml", "yaml", "json")):
        return None
    named = re.search(r"charset=\"?([\w.:-]+)", more)
    try:
        return reply.body.decode(named[1] if named else "utf-8")
    except (ValueError, LookupError):  # some codecs know more ways to fail
        return None


def _failed(call: HttpCall, reply: Reply) -> Permanent:
    said = (_text(reply) or "").strip()
    detail = f"{call.method} {shown_address(call.uri)} answered {reply.status}" + (f": {said[:300]}" if said else "")
    title = HTTPStatus(reply.status).phrase if reply.status in set(HTTPStatus) else "communication error"
    return Permanent(detail, problem("communication", detail, title=title, status=reply.status))


def _lost(text: str) -> Permanent:
    return Permanent(text, problem("communication", text))


def _body(body: Any, kind: str) -> tuple[bytes, str]:
    """The body, and its kind if none was given. A text is sent as it is, everything else as JSON or as a form."""
    if body is None:
        return b"", ""
    if isinstance(body, str):
        return body.encode(), kind or "text/plain; charset=utf-8"
    if kind.partition(";")[0].strip().lower() == _FORM:
        if not isinstance(body, dict):
            raise InvalidValue("a form is an object, and this body is not")
        return urlencode([(name, text) for name, value in body.items() for text in texts_of(name, value)]).encode(), ""
    if kind and not is_json(kind):
        raise InvalidValue(f"a body of the kind {kind[:80]!r} is not made here: give it as a text, or as JSON")
    return msgspec.json.encode(body), kind or "application/json"


def texts_of(name: str, value: Any) -> list[str]:
    """The texts of a value in a query or a form: a list is given as often as it has parts, null not at all.

    >>> texts_of("tag", ["a", 1, None]), texts_of("tag", None)
    (['a', '1'], [])
    """
    found = []
    for one in value if isinstance(value, list) else [value]:
        if one is None:
            continue
        if (text := text_of(one)) is None:
            raise InvalidValue(f"{name[:80]!r} has an object or a list in it, and only plain values can be sent there")
        found.append(text)
    return found


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"https": 443, "http": 80}.get(parts.scheme)
