"""How mail comes in: once for each message id, in order, and never after the end.

Rules kept here: the head counts what was sent, so arrivals have an order whatever clocks say, and the end of an
execution, which is a change of the same item, comes before a letter or after it. A message id has one item for ever: it
says whether the message waits or where it is in the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from perdure.core.records import Mail, Sent
from perdure.errors import StoreUnavailable
from perdure.stores.dynamodb.items import HEAD, IN_LETTER, Item, change, checked, facts_of, home, live_holder, put
from perdure.stores.dynamodb.table import Table
from perdure.stores.dynamodb.wire import PAUSE
from perdure.stores.dynamodb.writing import ROUNDS, Unit, Writing


async def send(table: Table, mail: Sequence[Mail], grace: int) -> list[Sent]:
    writing = Writing(table.wire)
    with writing.told():
        return await _send(table, mail, grace, writing)


async def _send(table: Table, mail: Sequence[Mail], grace: int, writing: Writing) -> list[Sent]:
    answers: dict[int, Sent] = {}
    pause = PAUSE
    for number in range(ROUNDS):
        open_ = {place: one for place, one in enumerate(mail) if place not in answers}
        if not open_:
            return [answers[place] for place in range(len(mail))]
        before = len(answers)
        answers |= await _round(table, open_, grace, writing)
        if len(answers) == before and number:
            await asyncio.sleep(random.uniform(0, pause))  # others write to the same mailboxes
            pause = min(pause * 2, 0.5)
    text = "very many write to the same mailbox; nothing was written; try again"
    raise StoreUnavailable(f"{table.address.shown}: {text}")


async def _round(table: Table, mail: dict[int, Mail], grace: int, writing: Writing) -> dict[int, Sent]:
    """Put what fits into one transaction of each mailbox; the rest, and what is doubled in this call, comes next."""
    heads = await table.heads(checked(one.key, one.id) for one in mail.values())
    now = table.clock.now()
    answers: dict[int, Sent] = {}
    boxes: dict[str, dict[str, int]] = {}
    for place, one in mail.items():
        if one.key not in heads:
            answers[place] = Sent("missing")
            continue
        box = boxes.setdefault(one.key, {})
        if len(box) < table.address.items - 1:
            box.setdefault(one.id, place)
    closed = {key: box for key, box in boxes.items() if "tok" not in heads[key]}
    for key, box in closed.items():
        del boxes[key]
        found = await table.wire.get_many((home(key), f"m#{id}") for id in box)
        for id, place in box.items():
            there = found.get((home(key), f"m#{id}"))
            ended = Sent("ended", heads[key].get("queue", ""))
            answers[place] = ended if there is None else _known(mail[place], there, heads[key], now)
    units = [
        await _unit(table, heads[key], [mail[place] for place in box.values()], now + grace)
        for key, box in boxes.items()
    ]
    await table.write(units, writing)
    for unit in units:
        head, places = heads[unit.key], list(boxes[unit.key].values())
        if not unit.refusals:
            accepted = Sent("accepted", head.get("queue", ""), live_holder(head, now))
            answers |= dict.fromkeys(places, accepted)
        for number, there in unit.refusals.items():
            if number:
                place = places[number - 1]
                answers[place] = _known(mail[place], there, head, now)
    return answers


def _known(mail: Mail, there: Item, head: Item, now: int) -> Sent:
    """The answer for a message whose id is taken."""
    holder = live_holder(head, now) if "tok" in head else None
    if "v" in there:
        return Sent("duplicate", head.get("queue", ""), holder, there["v"])
    return Sent("duplicate" if there.get("sha", "") == mail.sha else "conflict", head.get("queue", ""), holder)


async def _unit(table: Table, head: Item, mail: Sequence[Mail], due: int) -> Unit:
    pk, sent = head["pk"], head["sent"]
    pieces: list[str] = []
    values = {"sent": sent + len(mail)}
    ops = [
        change(table.name, pk, HEAD, values, add={"waiting": len(mail)}, when=[("sent", "=", sent), ("tok", "there")])
    ]
    where = facts_of(head).partition(table.shards)
    for number, one in enumerate(mail, 1):
        data = await table.values.stored(one.data, IN_LETTER, pieces)
        item = {
            "pk": pk,
            "sk": f"m#{one.id}",
            "seq": sent + number,
            "data": data,
            "sha": one.sha,
            "dp": where,
            "due": due,
        }
        ops.append(put(table.name, item))
    return Unit(mail[0].key, ops, pieces)
