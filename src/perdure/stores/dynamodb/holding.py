"""Who has an execution: holds, leases, barriers against former holders, and what is read with a hold.

Rules kept here: every change of a hold compares the token that was read; a hold of what was not released cleanly takes
the next version of the log with it, so a former holder finds it occupied, whatever is still on its way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core import events
from perdure.core.events import TakenOver
from perdure.core.records import Busy, Gone, Held, HoldAnswer, Mail, Queued
from perdure.errors import StoreError
from perdure.stores.dynamodb.committing import settle_debts
from perdure.stores.dynamodb.items import (
    HEAD,
    MAIL,
    Condition,
    Facts,
    Item,
    Value,
    begun,
    change,
    check,
    facts_of,
    home,
    key_at,
    live_holder,
    put,
    version_key,
    written_rows,
)
from perdure.stores.dynamodb.starting import seat
from perdure.stores.dynamodb.table import Table
from perdure.stores.dynamodb.writing import ROUNDS, Unit, Writing

log = logging.getLogger("perdure.stores")


async def hold(
    table: Table, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]]
) -> list[HoldAnswer]:
    # A key named twice is held once: a second hold by the same worker would write a barrier.
    rest = list(dict.fromkeys(keys))
    answers: dict[str, HoldAnswer] = {}
    for _ in range(ROUNDS):
        try:
            answers |= await _round(table, rest, me, lease, known)
        except StoreError:
            if not any(isinstance(answer, Held) for answer in answers.values()):
                raise
            break  # what is held already must be told; the rest will be due again
        rest = [key for key in rest if key not in answers]
        if not rest:
            break
    return [answers.get(key) or Gone(key) for key in keys]


async def _round(
    table: Table, keys: Sequence[str], me: str, lease: int, known: Mapping[str, tuple[int, int]]
) -> dict[str, HoldAnswer]:
    """Take those that are free; what changes meanwhile has no answer yet."""
    heads = await table.heads(keys)
    now = table.clock.now()
    answers: dict[str, HoldAnswer] = {}
    free: list[_Hold] = []
    for key in keys:
        head = heads.get(key)
        if head is None or "tok" not in head:
            answers[key] = Gone(key)
        elif (holder := live_holder(head, now)) is not None and holder != me:
            answers[key] = Busy(key, holder)
        elif (before := await _before(table, facts := facts_of(head))) is None:
            free.append(_Hold(table, head, facts, me, now, lease))
        elif await _queue(table, head, before):
            answers[key] = Queued(key)
    await asyncio.gather(*(settle_debts(table, one.key) for one in free if "owes" in heads[one.key]))
    units = [one.unit() for one in free]
    writing = Writing(table.wire)
    with writing.told():
        await table.write(units, writing, apart=True)
        ours = []
        for one, unit in zip(free, units, strict=True):
            if unit.broken is not None:  # whoever comes with it is held all the same
                log.error("%s cannot be held: %s", one.key, unit.broken)
                answers[one.key] = Gone(one.key)
            elif not unit.refusals:
                ours.append(one)
        # Now that they are held: what was written until then is in the logs, and nobody else can write any more.
        for held in await asyncio.gather(*(one.read(known.get(one.key)) for one in ours)):
            answers[held.key] = held
    return answers


async def _before(table: Table, facts: Facts) -> Item | None:
    """The execution that is the first of its lane, if that is another one."""
    if facts.lane is None:
        return None
    first = await table.wire.some(f"Q#{facts.lane}", 1, low="#", high=seat(facts))
    return first[0] if first and first[0]["key"] != facts.key else None


async def _queue(table: Table, head: Item, before: Item) -> bool:
    """Sleep until the one before has ended, unless it just has."""
    mail = await table.wire.all(head["pk"], IndexName=MAIL, by="seq")
    ops = [
        change(table.name, head["pk"], HEAD, {"due": None, "dp": None, "hints": 0}, when=_unchanged(head)),
        check(table.name, before["pk"], before["sk"], [("pk", "there")]),
    ]
    unit = Unit(key_at(head["pk"]), ops)
    await table.write([unit])
    if unit.refusals:
        return False
    # What was there before is read by the hold that comes: it need not wake anybody by itself.
    silent = {"due": None, "dp": None}
    quiet = [change(table.name, one["pk"], one["sk"], silent, when=[("seq", "there")]) for one in mail]
    await table.update_each(quiet)
    return True


class _Hold:
    """An execution that is free, as it was read, and somebody who wants it."""

    def __init__(self, table: Table, head: Item, facts: Facts, me: str, now: int, lease: int) -> None:
        self.key = facts.key
        self._table = table
        self._head = head
        self._facts = facts
        self._me = me
        self._now = now
        self._until = now + lease
        self._token: int = head["tok"] + 1
        self._version: int = head["v"]
        self._lapses: int = head["lapses"]

    def unit(self) -> Unit:
        table, head, former = self._table, self._head, self._head.get("holder")
        clean = former is None and self._lapses == 0
        if former is not None and former != self._me:
            self._lapses += 1
        values: dict[str, Value] = {
            "tok": self._token,
            "holder": self._me,
            "due": self._until,
            "dp": self._facts.partition(table.shards),
            "hints": 0,
            "sp": self._facts.mark(head["status"], begun=True),
        }
        if "owes" in head and self.key not in table.owing:
            values["owes"] = None
        barrier = [] if clean else [self._barrier(values)]
        return Unit(self.key, [change(table.name, head["pk"], HEAD, values, when=_unchanged(head)), *barrier])

    def _barrier(self, values: dict[str, Value]) -> dict[str, Any]:
        """Occupy the next version of a former holder, who may still be writing."""
        if self._head.get("progress"):
            self._lapses = min(self._lapses, 1)
        self._version += 1
        event = TakenOver(holder=self._me, lapses=self._lapses)
        row = events.row(event, self._version, at=self._now, fence=self._token)
        values |= {"v": self._version, "lapses": self._lapses, "progress": None}
        item = {"pk": self._head["pk"], "sk": version_key(self._version), "rows": written_rows([row])}
        return put(self._table.name, item)

    async def read(self, known: tuple[int, int] | None) -> Held:
        table, head, facts = self._table, self._head, self._facts
        after = known[0] if known is not None and known[1] == head["tok"] else head["base"] - 1
        return Held(
            self.key,
            self._token,
            facts.definition,
            facts.queue,
            self._lapses,
            head["status"],
            rows=await table.rows(self.key, after) if self._version > after else [],
            mail=await unread(table, self.key) if head["waiting"] else [],
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
    once = list(dict(holds).items())  # an item is in a transaction once
    ops = [
        change(table.name, home(key), HEAD, {"due": due}, when=[("tok", "=", token), ("holder", "there")])
        for key, token in once
    ]
    kept = await table.update_each(ops)
    return {key for (key, _), is_kept in zip(once, kept, strict=True) if is_kept}


async def release(table: Table, holds: Sequence[tuple[str, int]]) -> None:
    now = table.clock.now()
    heads = await table.heads(key for key, _ in holds)
    ops = []
    for key, token in dict(holds).items():
        head = heads.get(key)
        if head is not None and head.get("tok") == token and "holder" in head:
            free = {name: value for name, value in head.items() if name != "holder"}
            values = {"holder": None, "due": now, "sp": facts_of(head).mark(head["status"], begun(free))}
            ops.append(change(table.name, head["pk"], HEAD, values, when=[("tok", "=", token), ("holder", "there")]))
    await table.update_each(ops)
