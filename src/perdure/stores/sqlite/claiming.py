"""What is due, for hinting: the earliest rows and, where more is due than those, the earliest of each tenant.

Rules kept here: each look goes by an index, so it stays short however much of others is due; tenants take turns, also
from one claim to the next, so a flood of one makes nobody else wait for its end.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from perdure.core.fairness import VISITS, WINDOW, share_out
from perdure.core.records import Due, tenant_of
from perdure.stores.ticker import DOUBLINGS

_TENANT = "substr({0}key, 1, instr({0}key, '/') - 1)"

_WAKES = "from wakes where queue = :queue and definition = :definition"
_EARLY_WAKES = f"select due, key {_WAKES} and due <= :now order by due limit :limit"
_AT_REST = _WAKES.replace("wakes", "wakes indexed by wakes_turns", 1) + " and due is not null and holder is null"
_WAKES_OF = f"select due, key {_AT_REST} and {_TENANT.format('')} = :tenant and due <= :now order by due limit :limit"
_NEXT_OF_WAKES = f"select {_TENANT.format('')} as tenant {_AT_REST} and tenant > :tenant order by tenant limit 1"

_EARLY_MAIL = (
    "select m.due, m.key, w.key is null from messages m left join wakes w on w.key = m.key"
    " where m.queue = :queue and m.due <= :now"
    " and (w.key is null or w.definition in (select value from json_each(:definitions))) order by m.due limit :limit"
)
_MAIL_OF = (
    "select m.due, m.key from messages m indexed by messages_turns join wakes w on w.key = m.key"
    f" where m.queue = :queue and {_TENANT.format('m.')} = :tenant and m.due <= :now"
    " and w.definition in (select value from json_each(:definitions)) order by m.due limit :limit"
)
_NEXT_OF_MAIL = (
    f"select {_TENANT.format('')} as tenant from messages indexed by messages_turns"
    " where queue = :queue and tenant > :tenant order by tenant limit 1"
)


class Turns:
    """Which tenant was served last, and which was visited last, for the next claim of this process."""

    def __init__(self) -> None:
        self.served = self.visited = ""


class Claiming:
    """One claim, inside a transaction that holds the write lock."""

    def __init__(self, db: sqlite3.Connection, now: int, turns: Turns, limit: int) -> None:
        self._db = db
        self._now = now
        self._turns = turns
        self._limit = limit
        self._near = limit * WINDOW

    def claim(self, queues: Sequence[str], definitions: Sequence[str], grace: int) -> list[Due]:
        due = [(at, key, "wake") for at, key in self._wakes(queues, definitions)]
        due += [(at, key, "mail") for at, key in self._mail(queues, definitions)]
        kinds: dict[str, set[str]] = {}
        for _, key, kind in sorted(due):
            kinds.setdefault(key, set()).add(kind)
        chosen = share_out(kinds, self._limit, self._turns.served)
        for key in chosen:
            if "wake" in kinds[key]:
                self._hint(key, grace)
            if "mail" in kinds[key]:
                again = "update messages set due = ? where key = ? and due <= ?"
                self._db.execute(again, (self._now + grace, key, self._now))
        if chosen:
            self._turns.served = tenant_of(chosen[-1])
        live = "select key, queue, iif(due > ?, holder, null) from wakes where key = ?"
        return [Due(*self._db.execute(live, (self._now, key)).fetchone()) for key in chosen]

    def _wakes(self, queues: Sequence[str], definitions: Sequence[str]) -> Iterator[tuple[int, str]]:
        for queue, definition in product(queues, definitions):
            pair = {"queue": queue, "definition": definition}
            early = self._rows(_EARLY_WAKES, pair, self._near)
            yield from early
            if len(early) == self._near:
                yield from self._of_each(_NEXT_OF_WAKES, _WAKES_OF, pair)

    def _mail(self, queues: Sequence[str], definitions: Sequence[str]) -> Iterator[tuple[int, str]]:
        for queue in queues:
            served = {"queue": queue, "definitions": json.dumps(definitions)}
            early = self._rows(_EARLY_MAIL, served, self._near)
            for due, key, orphan in early:
                if orphan:
                    # Nobody will ever fold it: its execution has ended.
                    self._db.execute("delete from messages where key = ?", (key,))
                else:
                    yield due, key
            if len(early) == self._near:
                yield from self._of_each(_NEXT_OF_MAIL, _MAIL_OF, served)

    def _of_each(self, following: str, of_tenant: str, served: dict[str, str]) -> Iterator[tuple[int, str]]:
        tenants = list(self._tenants(following, served))
        for tenant in tenants:
            yield from self._rows(of_tenant, served, max(1, self._near // len(tenants)), tenant)
            self._turns.visited = tenant

    def _tenants(self, following: str, served: dict[str, str]) -> Iterator[str]:
        """From the one that was visited last on, round until that one comes again; not more than a few hundred."""
        begin = at = self._turns.visited
        came_round = False
        for _ in range(VISITS):
            found = self._db.execute(following, {**served, "tenant": at}).fetchone()
            if found is None and not came_round:
                came_round = True
                found = self._db.execute(following, {**served, "tenant": ""}).fetchone()
            if found is None or (came_round and found[0] > begin):
                return
            [at] = found
            yield at

    def _rows(self, sql: str, served: dict[str, str], limit: int, tenant: str = "") -> list[Any]:
        values = {**served, "now": self._now, "limit": limit, "tenant": tenant}
        return self._db.execute(sql, values).fetchall()

    def _hint(self, key: str, grace: int) -> None:
        """Free a lapsed hold and count it; hint again later and later while nobody answers."""
        self._db.execute(
            "update wakes set lapses = lapses + (holder is not null), token = token + (holder is not null),"
            " holder = null, due = ? + ? * (1 << min(hints, ?)), hints = hints + 1 where key = ?",
            (self._now, grace, DOUBLINGS, key),
        )
