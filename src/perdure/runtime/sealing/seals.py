"""Sealing and opening bytes: AES-256-GCM under a key of the tenant's.

Rules kept here:
- Sealed bytes begin with a mark that no JSON can begin with, and the id of their key. What has no mark was written in
  the clear, before there was a key ring or by the store itself, and is read as it is.
- Each execution has a cipher of its own, derived from the tenant's key and its name: bytes of another execution cannot
  be opened in its place, and random nonces stay far from their limit however much a tenant writes.
- What the bytes are for (a row of this version and type, a letter of this id, the result) is authenticated as well.
- Tenants of the engine's own have a colon in their name and are not sealed: API keys, whose secrets are only hashes,
  and the audit, which must outlive the keys of a tenant.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from perdure.core.records import tenant_of
from perdure.errors import SealBroken, UsageError
from perdure.ports import KeyRing

#: 0xF5 is in no UTF-8 text.
MARK = b"\xf5pd1"
ID, NONCE = 8, 12
_HEAD = len(MARK) + ID
_STATE = b'{"$sealed":"'
_KEPT = 10_000
#: What lists of tasks are searched by, beside the flags that say whose they are.
_TASKS = frozenset({"task", "state", "claimed_by", "completed_by", "anyone"})


class Seals:
    """`searchable` names the published fields by which executions can still be found."""

    def __init__(self, ring: KeyRing, searchable: frozenset[str] = frozenset()) -> None:
        self.ring = ring
        self.searchable = searchable
        self._ciphers: dict[tuple[bytes, str], AESGCM] = {}

    def covers(self, key: str) -> bool:
        return ":" not in tenant_of(key)

    def check(self, key: str) -> None:
        """Raise if nothing could be sealed for this execution."""
        if self.covers(key):
            self.ring.current(tenant_of(key))

    def seal(self, key: str, use: bytes, data: bytes) -> bytes:
        """`use` is what the bytes are for; they open only for the same key and use."""
        id, secret = self.ring.current(tenant_of(key))
        nonce = os.urandom(NONCE)
        return b"".join((MARK, id, nonce, self._cipher(id, secret, key).encrypt(nonce, data, use)))

    def open(self, key: str, use: bytes, data: bytes) -> bytes:
        if not data.startswith(MARK):
            return data
        id = data[len(MARK) : _HEAD]
        secret = self.ring.get(tenant_of(key), id)
        try:
            return self._cipher(id, secret, key).decrypt(data[_HEAD : _HEAD + NONCE], data[_HEAD + NONCE :], use)
        except (InvalidTag, ValueError) as error:
            raise SealBroken(
                f"{key}: what the store has as its {use.decode()} was changed, or belongs elsewhere: its seal is broken"
            ) from error

    def _cipher(self, id: bytes, secret: bytes, key: str) -> AESGCM:
        found = self._ciphers.get((id, key))
        if found is None:
            if len(self._ciphers) >= _KEPT:
                self._ciphers.clear()
            own = hmac.digest(secret, b"execution\0" + key.encode(), hashlib.sha256)
            found = self._ciphers[id, key] = AESGCM(own)
        return found

    # Comparing without reading.

    def fingerprint(self, tenant: str, *parts: str) -> str:
        """The same for the same parts of the same tenant, for ever; without the key it tells nothing."""
        data = b"".join(len(one := part.encode()).to_bytes(8, "big") + one for part in parts)
        return hmac.digest(self.ring.index(tenant), data, hashlib.sha256).hex()

    # Published state: JSON, because stores look for fields in it.

    def seal_state(self, key: str, data: bytes) -> bytes:
        told: dict[str, str] = {"$sealed": base64.b64encode(self.seal(key, b"state", data)).decode()}
        looks_like_task = b'"task":' in data
        published = msgspec.json.decode(data) if self.searchable or looks_like_task else None
        if isinstance(published, dict):
            tenant = tenant_of(key)
            for name, value in published.items():
                if name in self.searchable or (looks_like_task and _of_tasks(name)):
                    told[self._name(tenant, name)] = self.field(tenant, name, value)
        return msgspec.json.encode(told)

    def open_state(self, key: str, data: bytes) -> bytes:
        if not data.startswith(_STATE):
            return data
        sealed: str = msgspec.json.decode(data)["$sealed"]
        return self.open(key, b"state", base64.b64decode(sealed))

    def field(self, tenant: str, name: str, value: Any) -> str:
        """What stands in place of the value of a searchable field; 1 and 1.0 are one number, True is none."""
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return self.fingerprint(tenant, "field", name, msgspec.json.encode(whole).decode())

    def _name(self, tenant: str, name: str) -> str:
        """The name of a field, unless it tells of people."""
        return f"${self.fingerprint(tenant, 'name', name)}" if ":" in name else name

    def fields(self, tenant: str | None, wanted: dict[str, Any], tasks: bool = False) -> dict[str, Any]:
        """A search for the values of fields as one for what stands in their place; lists of tasks can always be had."""
        if not wanted or tenant is None or ":" in tenant:
            return wanted
        known = {name for name in wanted if name in self.searchable or (tasks and _of_tasks(name))}
        if hidden := sorted(wanted.keys() - known):
            raise UsageError(
                f"executions cannot be found by {', '.join(hidden)}: published fields are encrypted; name those to be"
                " found by in the setting `searchable`"
            )
        return {self._name(tenant, name): self.field(tenant, name, value) for name, value in wanted.items()}


def _of_tasks(name: str) -> bool:
    """Whether lists of tasks for people are searched by this field."""
    return name in _TASKS or ":" in name
