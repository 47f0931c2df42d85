"""A key ring for tests, in memory."""

from __future__ import annotations

import hashlib

from perdure.errors import KeyMissing, KeyShredded


class Ring:
    """Keys that follow from the tenant's name and a number, which `rotate` raises."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.shredded: set[str] = set()

    def current(self, tenant: str) -> tuple[bytes, bytes]:
        number = self.numbers.setdefault(tenant, 1)
        id = number.to_bytes(8, "big")
        return id, self.get(tenant, id)

    def get(self, tenant: str, id: bytes) -> bytes:
        self._check(tenant)
        if not 1 <= int.from_bytes(id, "big") <= self.numbers.get(tenant, 0):
            raise KeyMissing(f"no key {id.hex()} of {tenant}")
        return hashlib.sha256(tenant.encode() + id).digest()

    def index(self, tenant: str) -> bytes:
        self._check(tenant)
        return hashlib.sha256(b"index" + tenant.encode()).digest()

    def rotate(self, tenant: str) -> None:
        self.numbers[tenant] = self.numbers.get(tenant, 0) + 1

    def _check(self, tenant: str) -> None:
        if tenant in self.shredded:
            raise KeyShredded(f"the keys of {tenant} were destroyed")
