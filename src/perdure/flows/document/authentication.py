"""How a document says who calls: one of the schemes, its properties here or in a secret, or the name of one in `use`.

Rules kept here: what cannot be done is refused when the document is read; a password in the document itself is a
warning, because a document is read by many.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from perdure.core.calls import CLIENTS, ENCODINGS, GRANTS, Authentication, Scheme
from perdure.flows.document.reader import Reader, escaped
from perdure.flows.document.terms import See
from perdure.flows.secret import SCHEME

_TOKENS = (
    *("authority", "grant", "client", "request", "issuers", "scopes", "audiences"),
    *("username", "password", "subject", "actor"),
)
#: What a scheme may have, and what it needs.
_SCHEMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "basic": (("username", "password"), ("username", "password")),
    "bearer": (("token",), ("token",)),
    "digest": (("username", "password"), ("username", "password")),
    "oauth2": ((*_TOKENS, "endpoints"), ("authority", "grant")),
    "oidc": (_TOKENS, ("authority", "grant")),
}
_NAMED = re.compile(re.escape(SCHEME) + r"([A-Za-z0-9][A-Za-z0-9_.-]{0,127})")


class Authenticates:
    """See the module."""

    def __init__(self, reader: Reader, body: Any, at: str, names: Sequence[str]) -> None:
        self._scheme: str = ""
        self._secret = ""
        body, at = _found(reader, body, at)
        found = reader.object(body, at, tuple(_SCHEMES))
        if len(found) != 1 or next(iter(found)) not in _SCHEMES:
            if not (found.keys() - _SCHEMES.keys()):
                reader.wrong(at, f"exactly one of {', '.join(_SCHEMES)} is expected here")
            found = {}
        self._given = reader.value({}, at, ())
        self.secrets: tuple[str, ...] = ()
        for scheme, given in found.items():
            self._make(reader, scheme, given, f"{at}/{scheme}", names)

    def _make(self, reader: Reader, scheme: str, given: Any, at: str, names: Sequence[str]) -> None:
        self._scheme = scheme
        if isinstance(given, dict) and "use" in given:
            self._secret = reader.text(reader.object(given, at, ("use",))["use"], f"{at}/use")
            if self._secret not in _declared(reader):
                reader.wrong(f"{at}/use", f"use.secrets has no {self._secret!r}", "name it there as well")
            self.secrets = (self._secret,)
            return
        keys, needs = _SCHEMES[scheme]
        given = reader.object(given, at, keys, needs)
        if scheme in ("oauth2", "oidc"):
            _check_tokens(reader, given, at)
        for place, value in _private(given):
            if isinstance(value, str) and "${" not in value and not value.startswith(SCHEME):
                reader.warn(f"{at}/{place}", "this is written in the document itself", "put it into a secret")
        self._given = reader.value(given, at, names)
        self.secrets = mentioned(reader, given)

    def of(self, data: Any, see: See) -> Authentication:
        return Authentication(cast(Scheme, self._scheme), self._given.of(data, see) or {}, self._secret)


def mentioned(reader: Reader, body: Any) -> tuple[str, ...]:
    """The secrets that a part of a document names: these alone may be put in the place of their references."""
    text = json.dumps(body)
    named = [name for name in _declared(reader) if "$secrets" in text and name in text]
    return tuple(dict.fromkeys([*named, *_NAMED.findall(text)]))


def check_all(reader: Reader, names: Sequence[str]) -> None:
    """Look at those under `use` that no task uses: mistakes in them should not wait for the first one that does."""
    for name in _known(reader):
        if name not in reader.authenticated:
            Authenticates(reader, {"use": name}, "/use/authentications", names)


def _declared(reader: Reader) -> list[str]:
    found = reader.use.get("secrets")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _known(reader: Reader) -> dict[str, Any]:
    found = reader.use.get("authentications")
    return found if isinstance(found, dict) else {}


def _found(reader: Reader, body: Any, at: str) -> tuple[Any, str]:
    if not isinstance(body, dict) or "use" not in body:
        return body, at
    name = reader.text(reader.object(body, at, ("use",))["use"], f"{at}/use")
    known = _known(reader)
    if name not in known:
        reader.wrong(f"{at}/use", f"use.authentications has no {name!r}", f"it has: {', '.join(known) or 'nothing'}")
        return {"bearer": {"token": "-"}}, at
    reader.authenticated.add(name)
    return known[name], f"/use/authentications/{escaped(name)}"


def _check_tokens(reader: Reader, given: dict[str, Any], at: str) -> None:
    grant = given.get("grant", GRANTS[0])
    if grant not in GRANTS:
        reader.wrong(f"{at}/grant", f"no token is asked for by {str(grant)[:80]!r} here", f"use {' or '.join(GRANTS)}")
    client = reader.object(given.get("client", {}), f"{at}/client", ("id", "secret", "authentication"))
    if (how := client.get("authentication", CLIENTS[0])) not in CLIENTS:
        reader.wrong(f"{at}/client/authentication", f"{how!r} is not known here", f"use {' or '.join(CLIENTS)}")
    request = reader.object(given.get("request", {}), f"{at}/request", ("encoding",))
    if (kind := request.get("encoding", ENCODINGS[0])) not in ENCODINGS:
        reader.wrong(f"{at}/request/encoding", f"{kind!r} is not known here", f"use {' or '.join(ENCODINGS)}")
    if "issuers" in given:
        reader.wrong(f"{at}/issuers", "tokens are not looked into here", "leave it out")
    reader.object(given.get("endpoints", {}), f"{at}/endpoints", ("token", "revocation", "introspection"))


def _private(given: dict[str, Any]) -> list[tuple[str, Any]]:
    client = given.get("client")
    found = [(name, given.get(name)) for name in ("password", "token")]
    return [*found, ("client/secret", client.get("secret") if isinstance(client, dict) else None)]
