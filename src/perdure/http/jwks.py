"""The public keys of an issuer of tokens: a JWK set at an address, in a file, or given as it is.

Rules kept here: only keys that can do nothing but check a signature are taken, each for the algorithms that its type
allows, so a public key is never used as a shared secret; what was read is kept, and read again when it is an hour old
or when a token names a key that is not in it, but for that at most once a minute, whatever strangers send; when the
issuer is out of reach, what is known of its keys is good for a day.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt
from msgspec import Struct

from perdure.errors import AccessUnavailable, SettingsError

log = logging.getLogger("perdure.http")
#: In seconds: how long a set is used without a look, how long at most, and the pause between two looks for a key that
#: is missing, or for a set where there is none at all.
KEPT, LONGEST, PAUSE, SOON = 3600.0, 86_400.0, 60.0, 5.0
#: For one request, and the most that is read of its answer.
TIMEOUT, SIZE = 5.0, 1_000_000
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_FITTING: dict[tuple[str, str], tuple[str, ...]] = {
    ("RSA", ""): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
#: All that may sign a token here. Missing on purpose are `none`, and HS…, where whoever can check can also sign.
ALGORITHMS = tuple(dict.fromkeys(name for names in _FITTING.values() for name in names))
_SHORTEST = 2048


class PublicKey(Struct, frozen=True):
    """A key that checks signatures of these algorithms."""

    id: str | None
    algorithms: tuple[str, ...]
    key: Any


class KeySet:
    """See the module. A string with :// in it is an address, any other one a file; a mapping is the set itself."""

    def __init__(self, source: str | Path | Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._source: str | Path | None = None
        self._keys: list[PublicKey] | None = None
        self._read_at = 0.0
        self._tried_at: float | None = None
        self._lock = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        if isinstance(source, Mapping):
            self._keys = _given(source)
        elif isinstance(source, str) and "://" in source:
            self._source = _checked(source)
        else:
            self._source = Path(source)

    async def find(self, id: str | None, algorithm: str) -> PublicKey | None:
        """The key of this id; without an id, the only one that it can be."""
        if self._keys is None or self._age() >= LONGEST:
            await self._renew()
        elif self._age() >= KEPT and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.create_task(self._renew(), name="perdure-jwks")
        found = self._pick(id, algorithm)
        if found is None and self._source is not None:
            await self._renew()
            found = self._pick(id, algorithm)
        return found

    def _pick(self, id: str | None, algorithm: str) -> PublicKey | None:
        if self._keys is None or self._age() >= LONGEST:
            raise AccessUnavailable("the keys of the issuer of tokens cannot be read at present: try again")
        fitting = [one for one in self._keys if algorithm in one.algorithms and (id is None or one.id == id)]
        return fitting[0] if len(fitting) == 1 else None

    def _age(self) -> float:
        return self._clock() - self._read_at if self._source is not None else 0.0

    async def _renew(self) -> None:
        """Read the set, unless that was tried a short time ago. What cannot be read leaves what is known as it is."""
        assert self._source is not None
        async with self._lock:  # who comes while somebody reads waits for what that brings
            pause = SOON if self._keys is None else PAUSE
            if self._tried_at is not None and self._clock() - self._tried_at < pause:
                return
            self._tried_at = began = self._clock()
            try:
                self._keys = _read(await asyncio.to_thread(_fetch, self._source))
                self._read_at = began
            except (OSError, HTTPException, ValueError) as error:
                log.warning("the keys of the issuer of tokens cannot be read from %s: %s", self._source, error)


class _NoRedirect(HTTPRedirectHandler):
    """The keys come from the address that was configured, or not at all."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _fetch(source: str | Path) -> bytes:
    if isinstance(source, Path):
        with source.open("rb") as file:
            data = file.read(SIZE + 1)
    else:
        request = Request(source, headers={"Accept": "application/json", "User-Agent": "perdure"})
        try:
            with build_opener(_NoRedirect).open(request, timeout=TIMEOUT) as answer:
                data = answer.read(SIZE + 1)
        except HTTPError as error:
            with error:  # it is the answer, too, and has a connection
                raise OSError(f"the answer was {error.code} {error.reason}") from None
    if len(data) > SIZE:
        raise ValueError(f"it is longer than {SIZE:,} bytes")
    return bytes(data)


def _checked(address: str) -> str:
    parts = urlsplit(address)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise SettingsError(
            f"{address!r} cannot be the address of an issuer's keys: it must be https://…, for whoever can change them"
            " on their way can call as anybody"
        )
    return address


def _given(source: Mapping[str, Any]) -> list[PublicKey]:
    try:
        return _read(json.dumps(source).encode())
    except ValueError as error:
        raise SettingsError(f"the keys for tokens cannot be used: {error}") from error


def _read(data: bytes) -> list[PublicKey]:
    found = json.loads(data)
    if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
        raise ValueError("it is no JWK set: an object with a list of keys is expected")
    keys = [key for one in found["keys"] if isinstance(one, dict) and (key := _key(one)) is not None]
    if not keys:
        raise ValueError("it has no key that can check a signature: RSA of at least 2048 bits, P-256 to P-521, Ed25519")
    return keys


def _key(one: dict[str, Any]) -> PublicKey | None:
    """None for a key that is for something else, or that this release cannot use: others of the set may do."""
    kind = str(one.get("kty")), "" if one.get("kty") == "RSA" else str(one.get("crv"))
    algorithms = tuple(name for name in _FITTING.get(kind, ()) if one.get("alg") in (None, name))
    if not algorithms or one.get("use", "sig") != "sig" or "d" in one:  # d: somebody has published a private key
        return None
    try:
        key = jwt.PyJWK(one, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if kind[0] == "RSA" and key.key_size < _SHORTEST:
        return None
    id = one.get("kid")
    return PublicKey(id if isinstance(id, str) else None, algorithms, key)
