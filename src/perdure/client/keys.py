"""API keys, over HTTP: those of the tenant of the credential, for administrators."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.client.door import Door, path_of, span
from perdure.core.durations import Duration
from perdure.http.key_routes import KeyIn, KeyOut, KeysOut, RotateIn
from perdure.http.keys import ApiKey, NewKey
from perdure.runtime.managing.registers import Change


class RemoteKeys:
    """`client.keys`. A secret is seen once, so what makes one is not repeated: OutcomeUnknown says so."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def create(
        self, name: str, roles: Sequence[str], *, expires: Duration | None = None, reason: str = ""
    ) -> NewKey:
        """Make a key, with at least one role of the API; `expires` is how long it is good."""
        body = KeyIn(name, list(roles), span(expires))
        return await self._door.post(path_of("keys"), body, NewKey, repeat=False, reason=reason)

    async def rotate(
        self, id: str, *, overlap: Duration = "24h", expires: Duration | None = None, reason: str = ""
    ) -> NewKey:
        """Give a key a new secret. The one before is good for the time of the overlap."""
        body = RotateIn(span(overlap), span(expires))
        return await self._door.post(path_of("keys", id, "rotate"), body, NewKey, repeat=False, reason=reason)

    async def revoke(self, id: str, *, reason: str = "") -> ApiKey:
        """Let a key be good no longer, in every server within seconds."""
        return await self._door.post(path_of("keys", id, "revoke"), None, ApiKey, reason=reason)

    async def get(self, id: str) -> ApiKey:
        """What is known of a key; KeyNotFound if there is none."""
        return (await self._door.get(path_of("keys", id), KeyOut)).key

    async def history(self, id: str) -> list[Change]:
        """Who did what to a key, the oldest first."""
        return (await self._door.get(path_of("keys", id), KeyOut)).history

    async def list(self) -> list[ApiKey]:
        """All keys, the oldest first."""
        return (await self._door.get(path_of("keys"), KeysOut)).keys
