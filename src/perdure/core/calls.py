"""Calls over HTTP as documents ask for them, as values: what the log keeps of a call before it is made.

Rules kept here: a secret is a reference, `secret://token`, wherever it stands; only those that the task itself names
are put in the place of their references when the call is made, for data may look like a reference too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

Scheme: TypeAlias = Literal["basic", "bearer", "digest", "oauth2", "oidc"]
#: What the task gets: what was answered, its bytes in base 64, or all that is known of the call.
Output: TypeAlias = Literal["content", "raw", "response"]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
#: Methods that change nothing, so that it does not matter how often they are called.
SAFE = ("GET", "HEAD", "OPTIONS")
#: How a token may be asked for, how the client says who it is, and how the request is written: the first is usual.
GRANTS = ("client_credentials", "password", "urn:ietf:params:oauth:grant-type:token-exchange")
CLIENTS = ("client_secret_post", "client_secret_basic", "none")
ENCODINGS = ("application/x-www-form-urlencoded", "application/json")
TYPES = "https://serverlessworkflow.io/spec/1.0.0/errors/"
#: The kinds of errors that the specification of the DSL names, with their usual status.
KINDS: Mapping[str, int] = {
    "configuration": 400,
    "validation": 400,
    "expression": 400,
    "authentication": 401,
    "authorization": 403,
    "timeout": 408,
    "communication": 500,
    "runtime": 500,
}


class Authentication(Struct, frozen=True, omit_defaults=True):
    """How a call says who calls: the properties of a scheme, or the secret that has them."""

    scheme: Scheme
    given: dict[str, Any] = {}
    secret: str = ""  # its name


class HttpCall(Struct, frozen=True, omit_defaults=True):
    """One request. The query is apart from the address: values in it may be secrets."""

    method: str
    uri: str
    headers: dict[str, str] = {}
    query: list[tuple[str, str]] = []
    body: Any = None
    authentication: Authentication | None = None
    output: Output = "content"
    redirect: bool = False
    secrets: tuple[str, ...] = ()


class OpenApiCall(Struct, frozen=True, omit_defaults=True):
    """One operation that a description of an API has; the description lies elsewhere and is read for the call."""

    document: str
    operation: str
    parameters: dict[str, Any] = {}
    access: Authentication | None = None  # to the description
    authentication: Authentication | None = None  # to the API itself
    output: Output = "content"
    redirect: bool = False
    secrets: tuple[str, ...] = ()


def problem(kind: str, detail: str, *, title: str = "", status: int | None = None) -> dict[str, Any]:
    """An error of one of the kinds, as problem details."""
    return {
        "type": f"{TYPES}{kind}",
        "status": status or KINDS[kind],
        "title": title or f"{kind} error",
        "detail": detail,
    }


def text_of(value: Any) -> str | None:
    """A plain value as a part of an address or a header; None for objects and lists.

    >>> [text_of(one) for one in ("a", 7, 1.5, True, None, [1])]
    ['a', '7', '1.5', 'true', '', None]
    """
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            return None


def is_json(content_type: str) -> bool:
    """
    >>> is_json("application/problem+json; charset=utf-8"), is_json("text/json5")
    (True, False)
    """
    return (
        re.fullmatch(r"(application|text)/([\w.-]+\+)?json", content_type.partition(";")[0].strip().lower()) is not None
    )
