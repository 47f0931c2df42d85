"""Events that name no execution: they go to all that listen for them, and start those that begin with them.

Rules kept here:
- Who listens is in the store since the start of each, so there is no moment at which an event is missed; what it would
  be found by is told by the definitions: those of this process, and all that were published for the tenant.
- One event wakes an execution once and starts one execution of a definition, however often it comes: its `source` and
  `id` make the ids of both.
- A definition that cannot take the event does not keep it from the others; the answer names it.
- Many events cost as many writes as few, as long as they fit into one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core import tracing
from perdure.core.cloudevents import Envelope
from perdure.core.codec import digest
from perdure.core.letters import EventLetter, seal
from perdure.core.records import Mail, Start, definition_of, id_of, key_of
from perdure.errors import PerdureError
from perdure.flows.listening import Listen, begins, heard
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow
from perdure.ports import Store
from perdure.runtime.callers.sending import NewEvent, Sends
from perdure.runtime.callers.starting import Starts
from perdure.runtime.callers.writing import Writes
from perdure.runtime.clock import Clock
from perdure.runtime.definitions.catalog import Catalog
from perdure.runtime.definitions.published import Lost, Published, Ref

#: Executions of a topic that are asked for at once.
PAGE = 1000
#: Published versions of which it is known whether they listen for anything.
_KNOWN = 10_000
#: Tenants whose listeners are kept in mind.
_TENANTS = 100


class Refusal(Struct, frozen=True):
    """A definition that does not take the event, and why."""

    workflow: str
    reason: str


class Routed(Struct, frozen=True):
    """What has become of an event: whom it started and whom it woke, by id. `heard` is false if nobody cares."""

    id: str
    heard: bool
    started: list[str]
    woken: list[str]
    refused: list[Refusal] = []


class _Ear(Struct, frozen=True):
    """A definition that listens; only the one that a start by name would take begins with events."""

    workflow: Workflow[..., Any]
    starts: bool

    @property
    def definition(self) -> str:
        return definition_of(self.workflow.name, self.workflow.version, self.workflow.hash)


class _Route(Struct):
    """One event on its way."""

    event: Envelope
    started: dict[str, None] = {}
    woken: dict[str, None] = {}
    refused: list[Refusal] = []

    def refuse(self, workflow: Workflow[..., Any], reason: object) -> None:
        if (one := Refusal(workflow.definition, str(reason))) not in self.refused:
            self.refused.append(one)

    def told(self) -> Routed:
        known = bool(self.started or self.woken or self.refused)
        woken = [id_of(key) for key in self.woken if key not in self.started]
        return Routed(self.event.event_id, known, [id_of(key) for key in self.started], woken, self.refused)


class Router:
    def __init__(
        self,
        store: Store,
        published: Published,
        catalog: Catalog,
        starts: Starts,
        sends: Sends,
        writes: Writes,
        clock: Clock,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._published = published
        self._starts = starts
        self._sends = sends
        self._writes = writes
        self._clock = clock
        self._listens: OrderedDict[Ref, bool] = OrderedDict()
        self._ears: OrderedDict[str, tuple[Mapping[Ref, bool], list[_Ear]]] = OrderedDict()

    async def route(self, tenant: str, events: Sequence[Envelope], by: str, roles: Sequence[str]) -> list[Routed]:
        ears = await self._listeners(tenant)
        routes = [_Route(event, {}, {}, []) for event in events]
        documents = [msgspec.json.decode(msgspec.json.encode(event.document())) for event in events]
        letters = await self._letters(tenant, ears, routes, documents, by, roles)
        await self._start(tenant, ears, routes, documents, by)
        await self._wake(letters)
        return [route.told() for route in routes]

    # Starting.

    async def _start(
        self, tenant: str, ears: Sequence[_Ear], routes: Sequence[_Route], documents: Sequence[Any], by: str
    ) -> None:
        starts: dict[str, Start] = {}
        for route, document in zip(routes, documents, strict=True):
            for ear in ears:
                if ear.starts and (start := self._begun(tenant, ear.workflow, route, document, by)) is not None:
                    starts.setdefault(start.key, start)
                    route.started[start.key] = None
        # One that was there before, also with another input of an older version, is this event's all the same.
        await self._writes.start_all(list(starts.values()))

    def _begun(self, tenant: str, workflow: Workflow[..., Any], route: _Route, document: Any, by: str) -> Start | None:
        """The start that an event asks for: by the first of the declarations that mean it."""
        event = route.event
        key = key_of(tenant, f"on-{digest(workflow.name, event.source, event.id)[:40]}")
        try:
            for on in workflow.starts_on:
                if (input := begins(on, document)) is not None:
                    trace = str(tracing.of_event(event.attributes) or "")
                    return self._starts.made(workflow, input, key, self._clock.now(), by, trace=trace)
        except PerdureError as error:
            route.refuse(workflow, error)
        return None

    # Waking.

    async def _letters(
        self,
        tenant: str,
        ears: Sequence[_Ear],
        routes: Sequence[_Route],
        documents: Sequence[Any],
        by: str,
        roles: Sequence[str],
    ) -> list[tuple[_Route, Mail]]:
        """A letter for everybody who listens now. Who is started by the event itself does not hear of it again."""
        wanted: dict[str, list[tuple[_Route, Workflow[..., Any], Listen]]] = {}
        for route, document in zip(routes, documents, strict=True):
            for ear in ears:
                for listen in ear.workflow.listens:
                    if (topic := heard(ear.definition, listen, document)) is not None:
                        wanted.setdefault(topic, []).append((route, ear.workflow, listen))
        listeners = await self._listening(tenant, list(wanted))
        letters = []
        for topic, keys in listeners.items():
            for route, workflow, listen in wanted[topic]:
                made = self._letter(route, workflow, listen, by, roles)
                if made is not None:
                    id, data, sha = made
                    letters += [(route, Mail(key, id, data, sha)) for key in keys]
        return letters

    def _letter(
        self, route: _Route, workflow: Workflow[..., Any], listen: Listen, by: str, roles: Sequence[str]
    ) -> tuple[str, bytes, str] | None:
        event = route.event
        new = NewEvent(listen.called, event.data, None, event.attributes)
        try:
            letter: EventLetter = self._sends.letter(workflow, workflow.definition, new, by, roles)
        except PerdureError as error:
            route.refuse(workflow, error)
            return None
        # Under another name it is another event: an execution may listen for both.
        id = event.event_id if letter.name == event.type else f"ce-{digest(event.event_id, letter.name)[:40]}"
        return id, seal(letter), digest(letter.name, bytes(letter.payload))

    async def _listening(self, tenant: str, topics: list[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        if topics:
            found = await self._store.listening(tenant, topics, PAGE)
        for topic, keys in found.items():
            while keys and len(keys) % PAGE == 0:
                more = (await self._store.listening(tenant, [topic], PAGE, keys[-1])).get(topic)
                if not more:
                    break
                keys += more
        return found

    async def _wake(self, letters: Sequence[tuple[_Route, Mail]]) -> None:
        meant = [(route, mail) for route, mail in letters if mail.key not in route.started]
        sent = await self._writes.send_all([mail for _, mail in meant])
        for (route, mail), answer in zip(meant, sent, strict=True):
            # Of two that have the same source and id but say different things, the first counts.
            if answer.answer in ("accepted", "duplicate", "conflict"):
                route.woken[mail.key] = None

    # Who listens.

    async def _listeners(self, tenant: str) -> list[_Ear]:
        code = list(_in_code())
        taken = {one.name for one in registry.workflows()}
        ears = [_Ear(ear.workflow, ear.starts and ear.workflow.name not in taken) for ear in await self._known(tenant)]
        return code + [ear for ear in ears if ear.workflow.listens or ear.starts]

    async def _known(self, tenant: str) -> list[_Ear]:
        """What was published and listens; executions of old versions do, too."""
        newest = await self._catalog.of(tenant)
        if (kept := self._ears.get(tenant)) is not None and kept[0] is newest:
            self._ears.move_to_end(tenant)
            return kept[1]
        known = await self._published.load([ref for ref in newest if self._listens.get(ref, True)])
        lost = [ref for ref, one in known.items() if isinstance(one, Lost)]
        for ref, workflow in known.items():
            if ref not in lost:
                self._listens[ref] = bool(workflow.listens or workflow.starts_on)
        while len(self._listens) > _KNOWN:
            self._listens.popitem(last=False)
        ears = [_Ear(one, newest[ref]) for ref, one in known.items() if one.listens or one.starts_on]
        if not lost:  # or else it may be there later
            self._ears[tenant] = newest, ears
        while len(self._ears) > _TENANTS:
            self._ears.popitem(last=False)
        return ears


def _in_code() -> Iterator[_Ear]:
    newest: dict[str, int] = {}
    for one in registry.workflows():
        newest[one.name] = max(newest.get(one.name, 0), one.version)
    for one in registry.workflows():
        starts = bool(one.starts_on) and one.version == newest[one.name]
        if one.listens or starts:
            yield _Ear(one, starts)
