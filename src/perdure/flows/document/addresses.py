"""Addresses in documents: a text, a template, an expression, or an object with one and how it is authenticated.

Rules kept here: what stands in braces, `{petId}`, is a key of the task's input (RFC 6570, simple expansion) and cannot
add parts to an address: it is percent-encoded. So is what an expression gives, unless the address begins with it. Names
of variables in data are data. A secret is no part of an address, for addresses are written in many places.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from perdure.core.calls import Authentication, text_of
from perdure.errors import ExpressionError, InvalidValue
from perdure.flows.document.authentication import Authenticates
from perdure.flows.document.reader import Reader
from perdure.flows.document.terms import Expression, See, pieces

_BRACES = re.compile(r"\{([^{}]*)\}")
_NAMES = re.compile(r"[A-Za-z0-9_.%,-]+")
_SCHEME = re.compile(r"https?://", re.IGNORECASE)


class Address:
    """See the module."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self._parts: list[str | Expression] = []
        if "$secrets" in text:
            raise InvalidValue("a secret cannot be a part of an address: put it into the query, a header or the body")
        for computed, part in pieces(text.strip()):
            if not computed and (wrong := [one for one in _BRACES.findall(part) if not _NAMES.fullmatch(one)]):
                raise InvalidValue(f"{{{wrong[0]}}} is more than a name: only simple templates are known, as {{petId}}")
            self._parts.append(Expression(part, names) if computed else part)
        first = self._parts[0] if self._parts else ""
        if isinstance(first, str) and not _SCHEME.match(first):
            raise InvalidValue(f"{text[:80]!r} is no address: it begins with https://")

    def of(self, data: Any, see: See) -> str:
        made = []
        for place, part in enumerate(self._parts):
            if isinstance(part, str):
                made.append(_BRACES.sub(lambda found: _expanded(found[1], data), part))
            else:
                found = part.of(data, see)
                if not isinstance(found, str) and place == 0:
                    raise ExpressionError(f"an address is a text, and the expression gave {type(found).__name__}")
                made.append(found if place == 0 else _plain(found, "the address"))
        return "".join(made)


class Endpoint:
    """An address, and how one says there who calls."""

    def __init__(self, reader: Reader, body: Any, at: str, names: Sequence[str]) -> None:
        self._authentication: Authenticates | None = None
        if isinstance(body, dict):
            found = reader.object(body, at, ("uri", "authentication"), ("uri",))
            if "authentication" in found:
                self._authentication = Authenticates(reader, found["authentication"], f"{at}/authentication", names)
            body, at = found.get("uri"), f"{at}/uri"
        self._address: Address | None = None
        if text := reader.text(body, at):
            try:
                self._address = Address(text, names)
            except InvalidValue as error:
                reader.wrong(at, str(error))

    def uri(self, data: Any, see: See) -> str:
        assert self._address is not None
        return self._address.of(data, see)

    def authentication(self, data: Any, see: See) -> Authentication | None:
        return None if self._authentication is None else self._authentication.of(data, see)

    @property
    def secrets(self) -> tuple[str, ...]:
        return () if self._authentication is None else self._authentication.secrets


def _expanded(names: str, data: Any) -> str:
    known = data if isinstance(data, dict) else {}
    return ",".join(_plain(known[name], name) for name in names.split(",") if known.get(name) is not None)


def _plain(value: Any, what: str) -> str:
    text = text_of(value)
    if text is None:
        raise ExpressionError(
            f"{what} has an object or a list in it, and only plain values can be a part of an address"
        )
    return quote(text, safe="")
