"""`Authenticator`: from the headers of a request to its caller.

Rules kept here: there is one way to give a credential, `Authorization: Bearer …`; the tenant, the user and the roles
come from the credential and from nowhere else; without a credential nobody calls, except in open mode, which is for one
person at one machine: it is refused on any address that others can reach, and it answers no page of another site that
the person's browser has open.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from perdure.errors import NotAllowed, SettingsError, Unauthenticated, UsageError
from perdure.http.caller import Caller, caller_of, is_tenant
from perdure.http.keys import Keys
from perdure.http.tokens import Claims, Tokens
from perdure.runtime.app import Perdure

#: The longest credential in characters: tokens with many roles are long, but none is as long as this.
LONGEST = 16_384
_HOW = "send `Authorization: Bearer` and an API key"


class Verifier(Protocol):
    """Understands one sort of credentials, as `perdure.http.tokens.Tokens` does."""

    async def caller(self, credential: str) -> Caller: ...


class Open(Struct, frozen=True):
    """Open mode: everybody who can reach the API is this user. For development on a machine of one's own."""

    tenant: str
    user: str = "dev"
    roles: tuple[str, ...] = ("admin",)


class Authenticator:
    """Who calls: by API keys, by tokens, by both; or open."""

    def __init__(self, *, keys: Keys | None = None, tokens: Verifier | None = None, open: Open | None = None) -> None:
        if open is None and keys is None and tokens is None:
            raise UsageError("nobody could call: give an Authenticator keys, tokens, or both")
        if open is not None and (keys is not None or tokens is not None):
            raise UsageError(
                "an open API asks for no credentials: give an Authenticator either open, or keys and tokens"
            )
        if open is not None and not is_tenant(open.tenant):
            raise UsageError(f"{open.tenant[:80]!r} cannot be a tenant: it takes letters, digits, _ and -, at most 64")
        self._keys = keys
        self._tokens = tokens
        self.open = open

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who sends a request with these headers; Unauthenticated, NotAllowed or AccessUnavailable otherwise."""
        if self.open is not None:
            _refuse_strangers(headers)
            return caller_of(self.open.tenant, self.open.user, self.open.roles, "open")
        credential = _bearer(headers, _HOW if self._tokens is None else f"{_HOW} or a token")
        if credential.startswith("pdk_"):
            verifier: Verifier | None = self._keys
        else:
            verifier = self._tokens
        if verifier is None:
            raise Unauthenticated(
                f"credentials of this sort are not taken here: {_HOW if self._keys else 'send a token'}"
            )
        return await verifier.caller(credential)

    async def close(self) -> None:
        """Wait for what is still being written."""
        if self._keys is not None:
            await self._keys.close()


def configured(app: Perdure) -> Authenticator:
    """By API keys, and by tokens if the settings name their issuer."""
    settings = app.settings
    if not settings.token_issuer:
        return Authenticator(keys=Keys(app))
    claims = [name.strip() for name in settings.token_claims.split(",")]
    if len(claims) != 3 or not all(claims):
        raise SettingsError(f"token_claims names three claims, as tenant,sub,roles, not {settings.token_claims!r}")
    if not settings.token_keys:
        raise SettingsError(f"token_keys has to say where the public keys of {settings.token_issuer} are")
    tokens = Tokens(settings.token_issuer, settings.token_audience, settings.token_keys, claims=Claims(*claims))
    return Authenticator(keys=Keys(app), tokens=tokens)


def check_bind(host: str, authenticator: Authenticator) -> None:
    """Refuse to serve an open API where others can reach it."""
    if authenticator.open is not None and not is_loopback(host):
        raise SettingsError(
            f"an open API cannot be served on {host or 'all addresses'}, where others can reach it: serve it on"
            " 127.0.0.1, or ask for API keys or tokens"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. An empty host stands for all addresses."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bearer(headers: Mapping[str, str], how: str) -> str:
    given = _all(headers, "authorization")
    if not given:
        raise Unauthenticated(f"the request has no credential: {how}")
    scheme, _, credential = given[0].partition(" ")
    credential = credential.strip()
    if len(given) > 1 or scheme.lower() != "bearer" or not credential or len(credential) > LONGEST:
        raise Unauthenticated(f"the header Authorization cannot be used: {how}, once")
    return credential


def _refuse_strangers(headers: Mapping[str, str]) -> None:
    """A browser at this machine can be told by any page to call, also under a name that leads here. It says so."""
    named = [f"//{host}" for host in _all(headers, "host")] + _all(headers, "origin")
    if not all(is_loopback(_host(one)) for one in named):
        raise NotAllowed(
            "an open API answers only to this machine: call it as localhost, and not from a page elsewhere"
        )


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _all(headers: Mapping[str, str], name: str) -> list[str]:
    return [value for key, value in headers.items() if key.lower() == name]
