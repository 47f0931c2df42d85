"""How a call of a document says who calls: basic, bearer, digest, and tokens of OAuth 2 and OpenID Connect.

Rules kept here: what is a credential is watched from then on, so that it never appears in errors or logs; a token is
asked for once and kept in this process until shortly before it ends, for the tenant and the client that it is for.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any, Protocol, assert_never
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec
from msgspec import Struct

from perdure.core.calls import CLIENTS, ENCODINGS, GRANTS, Authentication, problem
from perdure.core.encoding import digest as digest_of
from perdure.errors import Permanent
from perdure.flows.current import Attempt
from perdure.runtime.clock import Clock
from perdure.runtime.secrets.watching import watch
from perdure.runtime.web.outbound import Outbound, Reply
from perdure.runtime.web.requests import Known, Wire, shown_address

#: Tokens and other things that are kept at once, and how long before its end a token is no longer used (seconds).
MOST, EARLY = 1000, 30
_FORM, _JSON = ENCODINGS
_HASHES = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256}


class House(Protocol):
    """What this needs of the application."""

    clock: Clock
    outbound: Outbound


class Credentials(Struct, frozen=True):
    """What goes out with a call: a header, or what answers a challenge.

    `guarded` must not come back. `kept` is the key of a token that is kept.
    """

    headers: dict[str, str] = {}
    digest: tuple[str, str] | None = None
    guarded: tuple[str, ...] = ()
    kept: str = ""


class Kept:
    """Things that are worth keeping for a while. What was kept longest goes first."""

    def __init__(self, most: int = MOST) -> None:
        self._found: dict[str, tuple[Any, int]] = {}
        self._most = most

    def get(self, key: str, now: int) -> Any:
        value, until = self._found.get(key, (None, 0))
        return value if now < until else None

    def put(self, key: str, value: Any, until: int) -> None:
        self._found.pop(key, None)
        while len(self._found) >= self._most:
            del self._found[next(iter(self._found))]
        self._found[key] = value, until

    def drop(self, key: str) -> None:
        self._found.pop(key, None)


class Issuing:
    """Makes credentials."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._kept = Kept()

    async def credentials(self, wanted: Authentication | None, known: Known, attempt: Attempt) -> Credentials:
        if wanted is None:
            return Credentials()
        given, secret = await _properties(wanted, known, attempt)
        guarded = _private(given) if secret else ()
        match wanted.scheme:
            case "basic":
                pair = f"{_needed(given, 'username', 'basic')}:{_needed(given, 'password', 'basic')}"
                sent = base64.b64encode(pair.encode()).decode()
                made = Credentials({"authorization": f"Basic {sent}"}, None, (sent, *guarded) if secret else ())
            case "bearer":
                token = _needed(given, "token", "bearer")
                made = Credentials({"authorization": f"Bearer {token}"}, None, guarded)
            case "digest":
                pair_of = _needed(given, "username", "digest"), _needed(given, "password", "digest")
                made = Credentials({}, pair_of, guarded)
            case "oauth2" | "oidc":
                oidc = wanted.scheme == "oidc"
                key = digest_of(attempt.tenant, str(oidc), msgspec.json.encode(given, order="sorted").decode())
                token = await self._token(given, oidc, key)
                made = Credentials({"authorization": f"Bearer {token}"}, None, (token, *guarded), key)
            case _:
                assert_never(wanted.scheme)
        for one in made.guarded:
            watch.add(attempt.tenant, one)
        return made

    def forget(self, credentials: Credentials) -> None:
        """A token that was refused is not used again, however long it was meant to live."""
        self._kept.drop(credentials.kept)

    async def _token(self, given: Mapping[str, Any], oidc: bool, key: str) -> str:
        now = self._house.clock.now()
        if (kept := self._kept.get(key, now)) is not None:
            return str(kept)
        endpoint = await self._endpoint(given, oidc, now)
        headers, body = _request(given)
        reply = await self._house.outbound.request("POST", endpoint, headers, body)
        found = _object(reply) if reply.status < 300 else {}
        token = found.get("access_token")
        if not isinstance(token, str) or not token:
            raise _unauthenticated(f"{shown_address(endpoint)} gave no token: it answered {reply.status}{_why(reply)}")
        lives = found.get("expires_in")
        if isinstance(lives, int | float) and lives > EARLY:
            self._kept.put(key, token, now + int((min(lives, 86_400) - EARLY) * 1e6))
        return token

    async def _endpoint(self, given: Mapping[str, Any], oidc: bool, now: int) -> str:
        authority = _needed(given, "authority", "oidc" if oidc else "oauth2").rstrip("/")
        if not oidc:
            path = str(_part(given, "endpoints").get("token", ""))
            return path if "://" in path else f"{authority}/{(path or '/oauth2/token').lstrip('/')}"
        place = f"{authority}/.well-known/openid-configuration"
        if (kept := self._kept.get(place, now)) is not None:
            return str(kept)
        reply = await self._house.outbound.request("GET", place, {"accept": _JSON})
        endpoint = _object(reply).get("token_endpoint") if reply.status == 200 else None
        if not isinstance(endpoint, str):
            raise _unauthenticated(f"{place} does not say where tokens are given: it answered {reply.status}")
        self._kept.put(place, endpoint, now + 3_600_000_000)
        return endpoint


def answered(challenge: Reply, pair: tuple[str, str], wire: Wire) -> dict[str, str] | None:
    """The header that answers a challenge (RFC 7616), if it is one that can be answered."""
    said = challenge.header("www-authenticate")
    scheme, _, rest = said.partition(" ")
    if challenge.status != 401 or scheme.lower() != "digest":
        return None
    parts = {
        name.lower(): quoted or plain for name, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|([^\s,]+))', rest)
    }
    algorithm = parts.get("algorithm", "MD5").upper()
    qop = "auth" if "auth" in re.split(r"[,\s]+", parts.get("qop", "")) else ""
    if algorithm not in _HASHES or (parts.get("qop") and not qop) or "nonce" not in parts:
        return None

    def hashed(*texts: str) -> str:
        return _HASHES[algorithm](":".join(texts).encode(), usedforsecurity=False).hexdigest()

    target = urlsplit(wire.url)
    uri = (target.path or "/") + (f"?{target.query}" if target.query else "")
    once, count, nonce, realm = secrets.token_hex(16), "00000001", parts["nonce"], parts.get("realm", "")
    who, what = hashed(pair[0], realm, pair[1]), hashed(wire.method, uri)
    answer = hashed(who, nonce, count, once, qop, what) if qop else hashed(who, nonce, what)
    fields = {"username": pair[0], "realm": realm, "nonce": nonce, "uri": uri, "response": answer}
    if "opaque" in parts:
        fields["opaque"] = parts["opaque"]
    text = ", ".join(f'{name}="{value}"' for name, value in fields.items()) + f", algorithm={algorithm}"
    return {"authorization": f"Digest {text}" + (f', qop={qop}, nc={count}, cnonce="{once}"' if qop else "")}


async def _properties(wanted: Authentication, known: Known, attempt: Attempt) -> tuple[dict[str, Any], bool]:
    """What a scheme is given, and whether there are secrets in it."""
    if not wanted.secret:
        return known.within(wanted.given), known.has(wanted.given)
    value = await asyncio.to_thread(attempt.reveal, wanted.secret)
    try:
        found = msgspec.json.decode(value)
    except msgspec.DecodeError:
        found = None
    if isinstance(found, dict):
        return found, True
    if wanted.scheme == "bearer":
        return {"token": value.strip()}, True
    user, colon, password = value.strip().partition(":")
    if wanted.scheme in ("basic", "digest") and colon:
        return {"username": user, "password": password}, True
    raise _unauthenticated(f"the secret {wanted.secret!r} is not an object with the properties of {wanted.scheme}")


def _request(given: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
    """What a token is asked for with."""
    grant, client = str(given.get("grant", GRANTS[0])), _part(given, "client")
    how = str(client.get("authentication", CLIENTS[0]))
    if grant not in GRANTS or how not in CLIENTS:
        raise Permanent(
            f"a token is not asked for by {grant} with {how} from here",
            problem("configuration", f"a token is not asked for by {grant[:80]} with {how[:80]} from here"),
        )
    fields: dict[str, str] = {"grant_type": grant}
    headers = {"accept": _JSON}
    if how == "client_secret_basic":
        pair = f"{quote_plus(str(client.get('id', '')))}:{quote_plus(str(client.get('secret', '')))}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        fields |= {"client_id": str(client.get("id", ""))}
        fields |= {"client_secret": str(client["secret"])} if how != "none" and "secret" in client else {}
    for name, plural in (("scope", "scopes"), ("audience", "audiences")):
        if given.get(plural):
            fields[name] = " ".join(map(str, given[plural])) if isinstance(given[plural], list) else str(given[plural])
    if grant == "password":
        fields |= {name: str(given.get(name, "")) for name in ("username", "password")}
    for who in ("subject", "actor"):
        if grant == GRANTS[2] and _part(given, who):
            fields |= {
                f"{who}_token": str(given[who].get("token", "")),
                f"{who}_token_type": str(given[who].get("type", "")),
            }
    encoding = str(_part(given, "request").get("encoding", _FORM))
    headers["content-type"] = encoding
    return headers, msgspec.json.encode(fields) if encoding == _JSON else urlencode(fields).encode()


def _part(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = given.get(name)
    return found if isinstance(found, dict) else {}


def _private(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The properties that nobody may see."""
    found = [given.get("password"), given.get("token"), _part(given, "client").get("secret")]
    found += [_part(given, who).get("token") for who in ("subject", "actor")]
    return tuple(one for one in found if isinstance(one, str))


def _object(reply: Reply) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _why(reply: Reply) -> str:
    said = _object(reply).get("error")
    return f" ({said[:80]})" if isinstance(said, str) else ""


def _needed(given: Mapping[str, Any], name: str, scheme: str) -> str:
    found = given.get(name)
    if not isinstance(found, str) or not found:
        raise _unauthenticated(f"{scheme} needs a {name}, and there is none")
    return found


def _unauthenticated(text: str) -> Permanent:
    return Permanent(text, problem("authentication", text))
