"""How executions begin: head, first rows, and a place in every list that it is found by, in one transaction.

Rules kept here: the head decides whether it is new; places in a lane are given out one by one, whatever clocks say, so
that the first one of a lane stays the first until it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.events import PROGRESS
from perdure.core.records import ENDED, Row, Start, Started, labels_of, lane_of, served_as, tenant_of, topics_of
from perdure.errors import InvalidValue, StoreUnavailable
from perdure.stores.dynamodb.items import (
    HEAD,
    IN_HEAD,
    IN_ROWS,
    Condition,
    Facts,
    agenda,
    change,
    checked,
    facts_of_start,
    home,
    listing,
    place,
    put,
    shard,
    version_key,
    written_rows,
)
from perdure.stores.dynamodb.table import AGENDAS, LISTINGS, Table
from perdure.stores.dynamodb.writing import ROUNDS, Unit, Writing
from perdure.stores.ticker import TAKEN_OVER


async def start(table: Table, starts: Sequence[Start], grace: int) -> list[Started]:
    first: dict[str, int] = {}
    for number, one in enumerate(starts):
        first.setdefault(takes(table, one).key, number)
    fresh = [starts[number] for number in first.values()]
    await table.enlist(lists_of(fresh))
    writing = Writing(table.wire)
    with writing.told():
        shas = await _start(table, [one for one in fresh if lane_of(one) is None], grace, writing)
        for one in fresh:  # one after the other: they stand in line in this order
            if lane_of(one) is not None:
                shas |= await _start(table, [one], grace, writing)
    answers: list[Started] = []
    for number, one in enumerate(starts):
        there = shas.get(one.key)
        if there is None and first[one.key] == number:
            answers.append("created")
        else:
            answers.append("same" if (there or starts[first[one.key]].sha) == one.sha else "conflict")
    return answers


def takes(table: Table, start: Start) -> Start:
    """A start that fits, or an error that says why it does not: the end of an execution deletes all of its topics, in
    the same transaction."""
    checked(start.key)
    count = len(topics_of(start)) if start.status not in ENDED else 0
    if count > table.mailbox_page:
        raise InvalidValue(
            f"{start.key}: it listens for {count} topics, and this store takes {table.mailbox_page} of one execution;"
            " nothing was written"
        )
    return start


def lists_of(starts: Sequence[Start]) -> set[tuple[str, str]]:
    found = set()
    for one in starts:
        tenant = tenant_of(one.key)
        found.add((AGENDAS, agenda(one.queue, served_as(one.definition), tenant)))
        found.add((LISTINGS, listing(tenant, one.workflow)))
    return found


async def _start(table: Table, starts: Sequence[Start], grace: int, writing: Writing) -> dict[str, str]:
    """The sha of each that was there before."""
    shas: dict[str, str] = {}
    rest = list(starts)
    for _ in range(ROUNDS):
        if not rest:
            return shas
        now = table.clock.now()
        units = [await _unit(table, one, now, now + grace) for one in rest]
        await table.write(units, writing)
        again = []
        for one, unit in zip(rest, units, strict=True):
            if 0 in unit.refusals:
                shas[one.key] = unit.refusals[0].get("sha", "")
            elif unit.refusals:
                again.append(one)  # somebody else has taken this place in the lane
        rest = again
    raise StoreUnavailable(f"{table.address.shown}: very many start in one lane; nothing was written; try again")


async def _unit(table: Table, start: Start, now: int, due: int) -> Unit:
    lane, open_ = lane_of(start), start.status not in ENDED
    taken = 0
    if lane is not None and open_:
        line = await table.wire.get(f"Q#{lane}", "n")
        taken = 0 if line is None else line["n"]
    facts = facts_of_start(start, now, taken + 1)
    pieces: list[str] = []
    rows = await table.values.stored(written_rows(start.rows), IN_ROWS, pieces)
    where = place(now, start.key)
    ops = [
        put(table.name, await _head(table, start, facts, due, pieces)),
        put(table.name, {"pk": home(start.key), "sk": version_key(start.rows[-1].version), "rows": rows}, new=False),
    ]
    pks = [f"W#{listing(facts.tenant, start.workflow)}{shard(start.key, table.shards)}"]
    pks += [f"L#{label}" for label in labels_of(start.key, start.correlation, start.tags)]
    if start.parent is not None:
        pks.append(f"P#{start.parent}")
    ops += [put(table.name, {"pk": pk, "sk": where}, new=False) for pk in pks]
    ops += [put(table.name, {"pk": f"T#{topic}", "sk": start.key}, new=False) for topic in facts.topics]
    for row in start.rows:
        if row.message_id is not None:
            checked(start.key, row.message_id)
            item = {"pk": home(start.key), "sk": f"m#{row.message_id}", "v": row.version}
            ops.append(put(table.name, item, new=False))
    if facts.lane is not None:
        free: Condition = ("n", "=", taken) if taken else ("n", "absent")
        ops.append(change(table.name, f"Q#{facts.lane}", "n", {"n": taken + 1}, when=[free]))
        ops.append(put(table.name, {"pk": f"Q#{facts.lane}", "sk": seat(facts), "key": start.key}))
    return Unit(start.key, ops, pieces)


def seat(facts: Facts) -> str:
    return f"#{facts.seat:016d}"


async def _head(table: Table, start: Start, facts: Facts, due: int, pieces: list[str]) -> dict[str, object]:
    now = facts.started_at
    item: dict[str, object] = {
        "pk": home(start.key),
        "sk": HEAD,
        "ss": place(now, start.key),
        "workflow": start.workflow,
        "definition": start.definition,
        "queue": start.queue,
        "status": start.status,
        "v": start.rows[-1].version,
        "base": start.base,
        "sha": start.sha,
        "parent": start.parent,
        "ref": start.parent_ref,
        "state": await table.values.stored(start.state, IN_HEAD, pieces),
        "result": await table.values.stored(start.result, IN_HEAD, pieces),
        "at": now,
        "changed": now,
        "lane": facts.lane,
        "seat": facts.seat if facts.lane is not None else None,
        "topics": list(facts.topics) or None,
        "correlation": start.correlation,
        "tags": list(start.tags) or None,
        "progress": progressed(start.rows) or None,
        "sp": facts.mark(start.status, begun=len(start.rows) > 1),
        "sent": 0,
        "waiting": 0,
    }
    if start.status not in ENDED:
        # The first token is the time, so it exceeds every token of an execution that had this key long ago, and every
        # fence that a fork or an import brings along.
        item |= {"tok": max([now, *(row.fence for row in start.rows)]), "lapses": 0, "hints": 0}
        item |= {"due": due, "dp": facts.partition(table.shards)}
    return item


def progressed(rows: Sequence[Row]) -> bool | None:
    """Whether these rows got somewhere since the last take-over among them; None if they say nothing about it."""
    for row in reversed(rows):
        number = row.type % 1000
        if number in PROGRESS or number == TAKEN_OVER:
            return number in PROGRESS
    return None
