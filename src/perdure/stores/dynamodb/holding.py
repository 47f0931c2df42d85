"""Who has an execution: holds, leases, barriers against former holders, and what is read with a hold.

Rules kept here: every change of a hold compares the token that was read; a hold of what was not released cleanly takes
the next version of the log with it, so a former holder finds it occupied, whatever is still on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from perdure.core import events
from perdure.core.events import TakenOver
from perdure.core.records import Busy, Gone, Held, HoldAnswer, Mail, Queued
from perdure.errors import StoreError, StoreUnavailable
from perdure.stores.dynamodb.items import (
    HEAD,
    MAIL,
    Condition,
    Facts,
    Item,
    begun,
    change,
    check,
    facts_of,
    home,
    live_holder,
    put,
    version_key,
    written_rows,
)
from perdure.stores.dynamodb.starting import seat
from perdure.stores.dynamodb.table import Table
from perdure.stores.dynamodb.writing import ROUNDS, Unit


async def hold(
    table: Table, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]]
) -> list[HoldAnswer]:
    # A key named twice is held once: a second hold by the same worker would write a barrier.
    once = list(dict.fromkeys(keys))
    heads = await table.heads(once)
    tries = [_Hold(table, key, me, lease, known.get(key)).take(heads.get(key)) for key in once]
    found = await asyncio.gather(*tries, return_exceptions=True)
    answers: dict[str, HoldAnswer] = {}
    trouble: BaseException | None = None
    for key, answer in zip(once, found, strict=True):
        if isinstance(answer, StoreError):
            trouble = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[key] = answer
    if trouble is not None and not any(isinstance(answer, Held) for answer in answers.values()):
        raise trouble
    # What is held already must be told; the rest will be due again.
    return [answers.get(key) or Gone(key) for key in keys]


class _Hold:
    """One execution that somebody wants to hold."""

    def __init__(self, table: Table, key: str, me: str, lease: int, known: tuple[int, int] | None) -> None:
        self._table = table
        self._key = key
        self._me = me
        self._lease = lease
        self._known = known

    async def take(self, head: Item | None) -> HoldAnswer:
        for _ in range(ROUNDS):
            if head is None or "tok" not in head:
                return Gone(self._key)
            now = self._table.clock.now()
            holder = live_holder(head, now)
            if holder is not None and holder != self._me:
                return Busy(self._key, holder)
            facts = facts_of(head)
            before = await self._before(facts)
            if before is not None:
                if await self._queue(head, facts, before):
                    return Queued(self._key)
            elif (answer := await self._take(head, facts, now)) is not None:
                return answer
            head = (await self._table.heads([self._key])).get(self._key)
        raise StoreUnavailable(f"{self._table.address.shown}: {self._key} changes all the time; try again")

    async def _before(self, facts: Facts) -> Item | None:
        """The execution that is the first of its lane, if that is another one."""
        if facts.lane is None:
            return None
        first = await self._table.wire.some(f"Q#{facts.lane}", 1, low="#", high=seat(facts))
        return first[0] if first and first[0]["key"] != self._key else None

    async def _queue(self, head: Item, facts: Facts, before: Item) -> bool:
        """Sleep until the one before has ended, unless it just has."""
        table = self._table
        mail = await table.wire.all(home(self._key), IndexName=MAIL, by="seq")
        ops = [
            change(table.name, head["pk"], HEAD, {"due": None, "dp": None, "hints": 0}, when=_unchanged(head)),
            check(table.name, before["pk"], before["sk"], [("pk", "there")]),
        ]
        unit = Unit(self._key, ops)
        await table.write([unit])
        if unit.refusals:
            return False
        # What was there before is read by the hold that comes: it need not wake anybody by itself.
        quiet = [
            change(table.name, one["pk"], one["sk"], {"due": None, "dp": None}, when=[("seq", "there")]) for one in mail
        ]
        await asyncio.gather(*map(table.update, quiet))
        return True

    async def _take(self, head: Item, facts: Facts, now: int) -> Held | None:
        table, token, version = self._table, head["tok"] + 1, head["v"]
        former, lapses = head.get("holder"), head["lapses"]
        clean = former is None and lapses == 0
        if former is not None and former != self._me:
            lapses += 1
        values = {
            "tok": token,
            "holder": self._me,
            "due": now + self._lease,
            "dp": facts.partition(table.shards),
            "hints": 0,
            "sp": facts.mark(head["status"], begun=True),
        }
        if clean:
            if not await table.update(change(table.name, head["pk"], HEAD, values, when=_unchanged(head))):
                return None
        else:
            if head.get("progress"):
                lapses = min(lapses, 1)
            version += 1
            row = events.row(TakenOver(holder=self._me, lapses=lapses), version, at=now, fence=token)
            values |= {"v": version, "lapses": lapses, "progress": None}
            when = _unchanged(head)
            barrier = {"pk": head["pk"], "sk": version_key(version), "rows": written_rows([row])}
            unit = Unit(self._key, [change(table.name, head["pk"], HEAD, values, when=when), put(table.name, barrier)])
            await table.write([unit])
            if unit.refusals:
                return None
        return await self._read(head, facts, version, token, lapses)

    async def _read(self, before: Item, facts: Facts, version: int, token: int, lapses: int) -> Held:
        """After the hold: what was written until then is in the log, and nobody else can write any more."""
        known, table = self._known, self._table
        after = known[0] if known is not None and known[1] == before["tok"] else before["base"] - 1
        rows = await table.rows(self._key, after) if version > after else []
        mail = await unread(table, self._key) if before["waiting"] else []
        return Held(
            self._key,
            token,
            facts.definition,
            facts.queue,
            lapses,
            before["status"],
            rows=rows,
            mail=mail,
            parent=facts.parent,
            parent_ref=facts.parent_ref,
            lane=facts.lane is not None,
        )


def _unchanged(head: Item) -> list[Condition]:
    """That nobody has touched hold, lease or log since this was read."""
    holder: Condition = ("holder", "=", head["holder"]) if "holder" in head else ("holder", "absent")
    due: Condition = ("due", "=", head["due"]) if "due" in head else ("due", "absent")
    return [("tok", "=", head["tok"]), ("v", "=", head["v"]), holder, due]


async def unread(table: Table, key: str) -> list[Mail]:
    """The first mail of the mailbox, in order, without what is in the log already."""
    found: list[Mail] = []
    async for page in table.wire.pages(home(key), IndexName=MAIL, by="seq"):
        for item in page:
            if "v" not in item:
                data = await table.values.read(item["data"])
                assert data is not None
                found.append(Mail(key, item["sk"][2:], data, item.get("sha", "")))
                if len(found) == table.mailbox_page:
                    return found
    return found


async def mail(table: Table, keys: Sequence[str]) -> dict[str, list[Mail]]:
    once = list(dict.fromkeys(keys))
    return dict(zip(once, await asyncio.gather(*(unread(table, key) for key in once)), strict=True))


async def renew(table: Table, holds: Sequence[tuple[str, int]], lease: int) -> set[str]:
    due = table.clock.now() + lease
    ops = [
        change(table.name, home(key), HEAD, {"due": due}, when=[("tok", "=", token), ("holder", "there")])
        for key, token in holds
    ]
    kept = await asyncio.gather(*map(table.update, ops))
    return {key for (key, _), is_kept in zip(holds, kept, strict=True) if is_kept}


async def release(table: Table, holds: Sequence[tuple[str, int]]) -> None:
    now = table.clock.now()
    heads = await table.heads(key for key, _ in holds)
    ops = []
    for key, token in holds:
        head = heads.get(key)
        if head is not None and head.get("tok") == token and "holder" in head:
            free = {name: value for name, value in head.items() if name != "holder"}
            values = {"holder": None, "due": now, "sp": facts_of(head).mark(head["status"], begun(free))}
            ops.append(change(table.name, head["pk"], HEAD, values, when=[("tok", "=", token), ("holder", "there")]))
    await asyncio.gather(*map(table.update, ops))
