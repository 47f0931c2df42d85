"""What holders write: the commit of each execution is one unit, and groups are packed into few transactions.

Rules kept here: the version in the head is the only check of a step; a hold that gives back or ends compares its token;
the number of letters that wait decides in the same transaction whether an execution may rest or end. Children and mail
for others are written down in that transaction, too, and delivered before the commit is answered; if that cannot be
done, they are due like everything else and a claim delivers them, each once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from perdure.core.records import Commit, End, Mail, Outcome, Park, Start
from perdure.errors import InvalidValue, StoreError, StoreUnavailable
from perdure.stores.dynamodb.items import (
    HEAD,
    IN_HEAD,
    IN_ROWS,
    Condition,
    Facts,
    Item,
    Value,
    begun,
    change,
    checked,
    delete,
    facts_of,
    home,
    put,
    shard,
    version_key,
    written_rows,
)
from perdure.stores.dynamodb.sending import send
from perdure.stores.dynamodb.starting import lists_of, progressed, seat, start, takes
from perdure.stores.dynamodb.table import Table
from perdure.stores.dynamodb.writing import ROUNDS, Unit, Writing
from perdure.stores.ticker import RESTARTED

#: The list of what commits have for others.
PARCELS = "parcels"

log = logging.getLogger("perdure.stores")


class Parcel(Struct):
    """What a commit has for other executions, until it is delivered."""

    children: list[Start] = []
    mail: list[Mail] = []
    lane: str | None = None  # of an execution that has ended: the next one has its turn


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Parcel).decode


async def commit(table: Table, group: Sequence[Commit], grace: int) -> list[Outcome]:
    now = table.clock.now()
    drafts = [_Draft(table, one, now, grace) for one in group]
    assert len({draft.key for draft in drafts}) == len(drafts), "an execution has one commit in flight"
    known = await table.facts(one.key for one in group)
    for draft in drafts:
        draft.begin(known.get(draft.key))
    writing = Writing(table.wire)
    with writing.told():
        await _write(table, drafts, writing)
    await _deliver_now(table, [draft for draft in drafts if draft.parcel_key is not None and draft.written], grace)
    return [draft.answer or "stale" for draft in drafts]


async def _write(table: Table, drafts: Sequence[_Draft], writing: Writing) -> None:
    """Until each has its answer."""
    for _ in range(ROUNDS):
        rest = [draft for draft in drafts if draft.answer is None]
        if not rest:
            return
        units = [await draft.unit() for draft in rest]
        await table.write(units, writing, apart=True)
        for draft, unit in zip(rest, units, strict=True):
            if unit.broken is not None and not writing.wrote:
                raise unit.broken
            draft.land(unit)
    text = "others wrote in the same logs, again and again; nothing was written; try again"
    raise StoreUnavailable(f"{table.address.shown}: {text}")


class _Draft:
    """The commit of one execution on its way to an answer."""

    def __init__(self, table: Table, commit: Commit, now: int, grace: int) -> None:
        self.key = commit.key
        self.answer: Outcome | None = None
        self.parcel = Parcel(list(commit.children), list(commit.mail))
        self.parcel_key: str | None = None
        self.parcel_pieces: list[str] = []
        self._table = table
        self._commit = commit
        self._now = now
        self._grace = grace
        self._folded: dict[str, int] = {}
        self._refused_park = False
        self._odd: dict[str, Item] | None = None  # messages that are done without a row, or the other way round
        self._head: Item | None = None

    @property
    def written(self) -> bool:
        """Whether the answer stands for something that was written."""
        return self.answer == "ok" or (self.answer == "mail" and self._refused_park)

    @property
    def ends(self) -> bool:
        return isinstance(self._commit.settle, End)

    def begin(self, facts: Facts | None) -> None:
        """What can be said without asking anybody."""
        commit = self._commit
        if commit.fired is not None and commit.fired > self._now:
            self.answer = "early"
        if facts is None:
            self.answer = self.answer or "stale"
            return
        self._facts = facts
        ids = [row.message_id for row in commit.rows if row.message_id is not None]
        if len(ids) != len(set(ids)):
            self.answer = self.answer or "stale"
        self._folded = {row.message_id: row.version for row in commit.rows if row.message_id is not None}
        if self.ends:
            self.parcel.lane = facts.lane

    async def unit(self) -> Unit:
        table, commit = self._table, self._commit
        await self._look()
        pieces: list[str] = []
        ops = [await self._head_change(pieces)]
        if commit.rows:
            rows = await table.values.stored(written_rows(commit.rows), IN_ROWS, pieces)
            item = {"pk": home(self.key), "sk": version_key(commit.rows[-1].version), "rows": rows}
            ops.append(put(table.name, item))
        ops += self._messages()
        if self.ends:
            if self._facts.lane is not None:
                ops.append(delete(table.name, f"Q#{self._facts.lane}", seat(self._facts)))
            ops += [delete(table.name, f"T#{topic}", self.key) for topic in self._facts.topics]
        if self.parcel != Parcel():
            ops.append(await self._parcel(pieces))
        return Unit(self.key, ops, pieces)

    async def _look(self) -> None:
        """Most commits need not look at anything: their conditions say it all."""
        commit = self._commit
        odd = self._folded.keys() ^ set(commit.done)
        if odd:
            places = [(home(self.key), f"m#{checked(self.key, id) and id}") for id in odd]
            found = await self._table.wire.get_many(places)
            self._odd = {sk[2:]: item for (_, sk), item in found.items()}
        if isinstance(commit.settle, Park) and commit.settle.status == "open" and not commit.rows:
            self._head = (await self._table.heads([self.key])).get(self.key)

    def _settles(self) -> int:
        """How many letters stop waiting with this commit."""
        there = self._odd or {}
        both = self._folded.keys() & set(self._commit.done)
        return len(both) + sum("seq" in item and "v" not in item for item in there.values())

    async def _head_change(self, pieces: list[str]) -> dict[str, Value]:
        commit, table = self._commit, self._table
        read = self._settles()
        when: list[Condition] = [("tok", "there")]
        values: dict[str, Value] = {}
        if commit.rows:
            when.append(("v", "=", commit.rows[0].version - 1))
            values["v"] = commit.rows[-1].version
            values |= _told_by_rows(commit)
        match commit.settle:
            case None:
                if commit.status is not None:
                    values |= {"status": commit.status, "sp": self._facts.mark(commit.status, begun=True)}
            case Park() | End() as settle:
                when += [("tok", "=", commit.token), ("holder", "there")]
                if not self._refused_park:
                    when.append(("waiting", "=", read))
                values |= {"status": settle.status, "changed": self._now}
                if settle.state is not None:
                    values["state"] = await table.values.stored(settle.state, IN_HEAD, pieces)
                values["base"] = max(values.get("base", 1), settle.base)
                if values["base"] == 1:
                    del values["base"]
                values |= await self._settled(settle, pieces)
        if self.parcel != Parcel() and not self.ends:
            values["owes"] = True  # whoever holds it next looks whether that is delivered
        if len(when) > 1 and ("tok", "=", commit.token) in when:
            when.remove(("tok", "there"))
        return change(table.name, home(self.key), HEAD, values, add={"waiting": -read}, when=when)

    async def _settled(self, settle: Park | End, pieces: list[str]) -> dict[str, Value]:
        """What becomes of hold and wake row."""
        table, facts = self._table, self._facts
        if isinstance(settle, End):
            result = await table.values.stored(settle.result, IN_HEAD, pieces)
            gone = dict.fromkeys(("waits", "tok", "holder", "due", "dp", "lapses", "hints"))
            return {**gone, "result": result, "sp": facts.mark(settle.status, begun=True)}
        values: dict[str, Value] = {"waits": await table.values.stored(settle.waits, IN_HEAD, pieces)}
        if self._refused_park:
            return {**values, "sp": facts.mark(settle.status, begun=True)}
        due = settle.due
        values |= {"holder": None, "lapses": 0, "hints": 0, "due": due}
        values["dp"] = None if due is None else facts.partition(table.shards)
        has_begun = bool(self._commit.rows) or settle.waits is not None
        if not has_begun and self._head is not None:
            has_begun = begun({"v": self._head["v"]})
        return {**values, "sp": facts.mark(settle.status, has_begun)}

    def _messages(self) -> list[dict[str, Value]]:
        """A message has one item: it waits as long as that has `seq`, and is in the log once it has `v`."""
        table, pk, done = self._table.name, home(self.key), set(self._commit.done)
        ops = []
        emptied: dict[str, Value] = dict.fromkeys(("seq", "data", "sha", "dp", "due"))
        for id, version in self._folded.items():
            values: dict[str, Value] = {"v": version}
            when: list[Condition] = [("v", "absent")]
            if id in done:
                values |= emptied
            # If it comes just now, it would be counted as mail that waits, and in the log, for ever.
            when.append(("seq", "there") if id in done or id in (self._odd or {}) else ("pk", "absent"))
            ops.append(change(table, pk, f"m#{id}", values, when=when))
        for id in dict.fromkeys(self._commit.done):
            if id not in self._folded:
                if "v" in (self._odd or {}).get(id, {}):
                    ops.append(change(table, pk, f"m#{id}", emptied, when=[("seq", "there")]))
                else:
                    ops.append(delete(table, pk, f"m#{id}", when=[("seq", "there"), ("v", "absent")]))
        return ops

    async def _parcel(self, pieces: list[str]) -> dict[str, Value]:
        table = self._table
        for child in self.parcel.children:
            takes(table, child)  # once it is written down it has to be delivered
        await table.enlist(lists_of(self.parcel.children))
        # In the order of commits: tokens rise with every hold, and the clock of one process never runs backwards.
        order = f"{self._commit.token:020d}#{self._now:020d}"
        self.parcel_key = self.parcel_key or f"o#{order}#{uuid.uuid4().hex}"
        self.parcel_pieces = []
        data = await table.values.stored(_pack(self.parcel), IN_ROWS, self.parcel_pieces)
        pieces += self.parcel_pieces
        # In a list of its own, which every claim looks at: nobody may serve the queue of an execution that has ended.
        where = f"{PARCELS}{shard(self.key, table.shards)}"
        item = {"pk": home(self.key), "sk": self.parcel_key, "data": data, "dp": where, "due": self._now + self._grace}
        return put(table.name, item)

    def land(self, unit: Unit) -> None:
        if unit.broken is not None:
            self.answer = "refused"
            return
        if not unit.refusals:
            self.answer = "mail" if self._refused_park else "ok"
            return
        head = unit.refusals.get(0)
        if len(unit.refusals) > 1 or head is None:
            self.answer = "stale"  # a message is not where it should be, or a version is occupied
        elif not self._ours(head):
            self.answer = "stale"
        elif self.ends:
            self.answer = "mail"
        else:
            self._refused_park = True  # its rows are written all the same

    def _ours(self, head: Item) -> bool:
        """Whether the log is where we left it and, if that matters, the hold is still ours."""
        commit = self._commit
        if "tok" not in head or (commit.rows and head["v"] != commit.rows[0].version - 1):
            return False
        return commit.settle is None or (head["tok"] == commit.token and "holder" in head)


def _told_by_rows(commit: Commit) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for row in commit.rows:
        if row.type % 1000 == RESTARTED:
            values["base"] = row.version
    if (got_somewhere := progressed(commit.rows)) is not None:
        values["progress"] = got_somewhere or None
    return values


# Parcels


async def _deliver_now(table: Table, drafts: Sequence[_Draft], grace: int) -> None:
    """All parcels of a group together. Their commits stand whatever happens here: what is not delivered now is due."""
    drafts = [one for one in drafts if one.key not in table.owing or await settle_debts(table, one.key, one.parcel_key)]
    if not drafts:
        return
    children = [child for draft in drafts for child in draft.parcel.children]
    mail = [letter for draft in drafts for letter in draft.parcel.mail]
    lanes = [draft.parcel.lane for draft in drafts if draft.parcel.lane is not None]
    try:
        await _deliver(table, children, mail, lanes, grace)
        ops = [delete(table.name, home(draft.key), draft.parcel_key or "") for draft in drafts]
        await asyncio.gather(*map(table.update, ops))
        await table.values.drop([name for draft in drafts for name in draft.parcel_pieces])
    except (StoreError, InvalidValue) as error:
        table.owing.update(draft.key for draft in drafts if not draft.ends)
        keys = ", ".join(draft.key for draft in drafts)
        log.warning("what these commits have for others is delivered later: %s: %s", keys, error)


async def settle_debts(table: Table, key: str, before: str | None = None) -> bool:
    """What earlier commits of an execution have for others comes before what a later one has: a child has to be there
    before it is cancelled. Whether nothing is left; what is left is delivered by claims, in order."""
    try:
        for item in await table.wire.all(home(key), low="o#", high=before or "o#~"):
            if item["sk"] != before:
                await deliver(table, item, 0)
    except (StoreError, InvalidValue) as error:
        table.owing.add(key)
        log.warning("%s: what its commits have for others is delivered later: %s", key, error)
        return False
    table.owing.discard(key)
    return True


async def deliver(table: Table, item: Item, grace: int) -> None:
    """What a claim has found: whoever wrote it did not come to deliver it. Starts and sends are done once by nature."""
    data = await table.values.read(item["data"])
    assert data is not None
    parcel = _unpack(data)
    await _deliver(table, parcel.children, parcel.mail, [] if parcel.lane is None else [parcel.lane], grace)
    await table.update(delete(table.name, item["pk"], item["sk"]))
    if isinstance(item["data"], list):
        await table.values.drop([item["data"][0]])


async def _deliver(
    table: Table, children: Sequence[Start], mail: Sequence[Mail], lanes: Sequence[str], grace: int
) -> None:
    await start(table, children, grace)
    await send(table, mail, grace)
    await asyncio.gather(*(_wake_next(table, lane) for lane in lanes))


async def _wake_next(table: Table, lane: str) -> None:
    """Let the first of a lane come at once, unless somebody has it."""
    for first in await table.wire.some(f"Q#{lane}", 1, low="#", high="#~"):
        heads = await table.heads([first["key"]])
        head = heads.get(first["key"])
        if head is not None and "tok" in head and "holder" not in head:
            values = {"due": table.clock.now(), "dp": facts_of(head).partition(table.shards)}
            await table.update(
                change(table.name, head["pk"], HEAD, values, when=[("tok", "=", head["tok"]), ("holder", "absent")])
            )
