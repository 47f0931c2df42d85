"""Who did what, over HTTP, for administrators. Acts are noted by the server itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from perdure.client.door import Door, path_of
from perdure.runtime.managing.audit import AuditPage, Noted

_PAGE = 500


class RemoteAudit:
    """`client.audit`."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def find(
        self,
        *,
        actor: str | None = None,
        act: str | None = None,
        target: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> AuditPage:
        """Acts, the newest first, page by page."""
        return await self._door.get(
            path_of("audit"),
            AuditPage,
            actor=actor,
            act=act,
            target=target,
            after=after,
            before=before,
            limit=limit,
            cursor=cursor,
        )

    async def all(self, **wanted: Any) -> AsyncIterator[Noted]:
        """All acts that `find` would find, the newest first."""
        cursor: str | None = None
        while True:
            page = await self.find(limit=_PAGE, cursor=cursor, **wanted)
            for one in page.acts:
                yield one
            if (cursor := page.next) is None:
                return
