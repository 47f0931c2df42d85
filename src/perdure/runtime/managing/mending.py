"""Stuck executions whose workflow has other code now than when they got stuck are tried again.

A worker looks for them once, when it begins: new code comes with a new process. Each is tried once for each time that
it got stuck, however many workers begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from perdure.core import letters as mail
from perdure.core.records import Query
from perdure.errors import StoreError
from perdure.flows.registry import registry
from perdure.ports import Store
from perdure.runtime.managing.dead import redrive_id

log = logging.getLogger("perdure.app")


async def redrive_mended(store: Store, post: Callable[..., Awaitable[Any]], me: str, pause: float) -> None:
    """Look until the store lets itself be looked at; `post` puts a letter into a mailbox."""
    while True:
        try:
            return await _redrive_each(store, post, me)
        except StoreError as error:
            log.warning("cannot look for stuck executions: %s; trying again", error, extra={"worker": me})
            await asyncio.sleep(pause)


async def _redrive_each(store: Store, post: Callable[..., Awaitable[Any]], me: str) -> None:
    cursor: tuple[int, str] | None = None
    while heads := await store.find(Query(tenant=None, status="stuck", limit=100, cursor=cursor)):
        for head in heads:
            stuck = msgspec.json.decode(head.waits or b"{}").get("stuck") or {}
            found = registry.find(head.definition)
            if found is not None and stuck.get("code") not in (None, "", found.fingerprint):
                letter = mail.RedriveLetter("the workflow's code has changed", f"worker {me}")
                await post(head.key, redrive_id(head), letter)
        cursor = (heads[-1].started_at, heads[-1].key)
