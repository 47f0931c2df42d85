"""`Tokens`: bearer tokens of an issuer (JWT, as OpenID Connect gives them), checked here without asking anybody.

    Tokens("https://login.example.com/", "perdure", "https://login.example.com/.well-known/jwks.json")

Rules kept here: a token is believed only if one of the issuer's public keys has signed it, with an algorithm of that
key, for this audience, and within its time; it needs an end. The token may say which key that is, but not which
algorithms there are. Nothing of a token is repeated in an error or a log line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jwt
from msgspec import Struct

from perdure.core.durations import Duration, seconds
from perdure.errors import SettingsError, Unauthenticated
from perdure.http.caller import Caller, caller_of, is_name, is_tenant
from perdure.http.jwks import ALGORITHMS, KeySet

#: What a token is refused for, in words of our own: those of the library may quote it.
_REASONS: list[tuple[type[Exception], str]] = [
    (jwt.ExpiredSignatureError, "the token has expired"),
    (jwt.ImmatureSignatureError, "the token is not valid yet"),
    (jwt.InvalidAudienceError, "the token is for another audience"),
    (jwt.InvalidIssuerError, "the token is of another issuer"),
    (jwt.MissingRequiredClaimError, "the token lacks one of the claims exp, iss and aud"),
]
_INVALID = "the token is not valid"


class Claims(Struct, frozen=True):
    """Which claims say who calls. A name with dots may lead into objects, as `realm_access.roles` does."""

    tenant: str = "tenant"
    user: str = "sub"
    roles: str = "roles"


class Tokens:
    """Checks the tokens of one issuer.

    `keys` is where its JWK set is: an address, a file, or the set itself. With `tenant` all tokens are of that tenant,
    whatever they say.
    """

    def __init__(
        self,
        issuer: str,
        audience: str | Sequence[str],
        keys: str | Path | Mapping[str, Any] | KeySet,
        *,
        claims: Claims | None = None,
        tenant: str | None = None,
        algorithms: Sequence[str] = ALGORITHMS,
        leeway: Duration = "30s",
    ) -> None:
        self._issuer = issuer
        self._audience = [audience] if isinstance(audience, str) else list(audience)
        self._keys = keys if isinstance(keys, KeySet) else KeySet(keys)
        self._claims = claims or Claims()
        self._tenant = tenant
        self._algorithms = tuple(algorithms)
        self._leeway = seconds(leeway)
        if not issuer or not self._audience or not all(self._audience):
            raise SettingsError(
                "tokens need an issuer and an audience: else those for other services are good here, too"
            )
        if wrong := [name for name in algorithms if name not in ALGORITHMS]:
            raise SettingsError(f"tokens cannot be signed with {', '.join(wrong)}; there are {', '.join(ALGORITHMS)}")
        if tenant is not None and not is_tenant(tenant):
            raise SettingsError(f"{tenant[:80]!r} cannot be a tenant: it takes letters, digits, _ and -, at most 64")

    async def caller(self, credential: str) -> Caller:
        """Whom a token stands for, or Unauthenticated."""
        algorithm, id = _header(credential)
        if algorithm not in self._algorithms:
            raise Unauthenticated(_INVALID)
        key = await self._keys.find(id, algorithm)
        if key is None:
            raise Unauthenticated("the token was signed with a key that its issuer does not have")
        return self._caller(self._verified(credential, key.key, algorithm))

    def _verified(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            reason = next((text for kind, text in _REASONS if isinstance(error, kind)), _INVALID)
        raise Unauthenticated(reason)  # outside, so that the error above, which may quote the token, is not its context

    def _caller(self, found: Mapping[str, Any]) -> Caller:
        names = self._claims
        tenant = self._tenant if self._tenant is not None else _claim(found, names.tenant)
        user, id = _claim(found, names.user), found.get("jti")
        if not isinstance(tenant, str) or not is_tenant(tenant):
            raise Unauthenticated(f"the token names no tenant in its claim {names.tenant!r}")
        if not isinstance(user, str) or not is_name(user):
            raise Unauthenticated(f"the token names no user in its claim {names.user!r}")
        credential = f"token:{id}" if isinstance(id, str) and is_name(id) else "token"
        return caller_of(tenant, user, _roles(_claim(found, names.roles)), credential)


def _header(token: str) -> tuple[str, str | None]:
    """The algorithm and the id of the key that a token names: to look for the key, not to be believed."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        header = {}
    algorithm, id = header.get("alg"), header.get("kid")
    # What a token calls critical has to be understood, and there is nothing of that sort here. Not every release of the
    # library looks at it.
    if not isinstance(algorithm, str) or not isinstance(id, str | None) or "crit" in header:
        raise Unauthenticated(_INVALID)
    return algorithm, id


def _claim(found: Mapping[str, Any], name: str) -> Any:
    """By its whole name, for that may be an address with dots in it; else along the dots."""
    if name in found:
        return found[name]
    value: Any = found
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _roles(value: Any) -> list[str]:
    """A list of names, or names in one string; what is no name gives no right."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    return [one for one in value if isinstance(one, str) and is_name(one)] if isinstance(value, list) else []
