"""Webhooks, over HTTP: made, rotated and revoked by administrators."""

from __future__ import annotations

from perdure.client.door import Door, path_of, span
from perdure.core.durations import Duration
from perdure.core.signing import Kind
from perdure.http.hooks import HookIn, HookOut, HooksOut, RotateIn
from perdure.runtime.managing.registers import Change
from perdure.runtime.web.hook_log import Does
from perdure.runtime.web.hooks import Hook


class RemoteHooks:
    """`client.hooks`."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def create(self, name: str, does: Does, *, secret: str, kind: Kind = "standard", reason: str = "") -> Hook:
        """Make a webhook; `secret` is a reference to what its calls are signed with. OutcomeUnknown: look at `list`."""
        body = HookIn(name, does, secret, kind)
        return await self._door.post(path_of("hooks"), body, Hook, repeat=False, reason=reason)

    async def rotate(self, name: str, secret: str, *, overlap: Duration = "24h", reason: str = "") -> Hook:
        """Let calls be signed with another secret; the one before is good for the time of the overlap."""
        body = RotateIn(secret, span(overlap))
        return await self._door.put(path_of("hooks", name, "secret"), body, Hook, reason=reason)

    async def revoke(self, name: str, *, reason: str = "") -> Hook:
        """Take no more calls, in every process within a few seconds."""
        return await self._door.delete(path_of("hooks", name), Hook, reason=reason)

    async def get(self, name: str) -> Hook:
        """What is known of a webhook; HookNotFound if there is none."""
        return (await self._door.get(path_of("hooks", name), HookOut)).hook

    async def history(self, name: str) -> list[Change]:
        """Who did what to a webhook, the oldest first."""
        return (await self._door.get(path_of("hooks", name), HookOut)).history

    async def list(self) -> list[Hook]:
        """All webhooks, by name."""
        return (await self._door.get(path_of("hooks"), HooksOut)).hooks
