"""What was published, as it lies in the store and as executions need it.

A definition is an execution without code: its log has one event for each act (`drafted`, `published`, `deprecated`,
`restored`), and its head shows the index of it. Rules kept here: the index is a function of the log; a version never
changes, so what was built from one is kept for as long as it is used; what is not what it should be is never run.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core import events as ev
from perdure.core.events import Owed
from perdure.core.records import PUBLISHED, Head, Row, Start, key_of, tenant_of
from perdure.core.replay import Replay
from perdure.errors import DefinitionConflict, DefinitionNotFound, InvalidValue, Undecodable
from perdure.flows import kinds
from perdure.flows.action import Action
from perdure.flows.bound import Bound
from perdure.flows.described import Described
from perdure.flows.diagram import Diagram, Mark
from perdure.flows.reading import canonical, content_hash
from perdure.ports import Store

#: The workflow of such an execution.
DEFINITION = "definition:"
#: Definitions that a process keeps built.
KEPT = 500
#: Definitions that are read at once.
_AT_ONCE = 16
_BEGINS = (ev.NUMBERS[ev.Started], ev.NUMBERS[ev.Restarted])
_RECEIVED = ev.NUMBERS[ev.EventReceived]


class Act(Struct, frozen=True, omit_defaults=True):
    """What the log of a definition says of one act."""

    kind: str = ""
    version: int = 0
    hash: str = ""
    body: Raw = ev.NULL
    bounds: dict[str, Bound] = {}
    note: str = ""
    label: str = ""  # the version that it gives itself


class Definition(Struct, frozen=True):
    """One version of a definition; a draft has the version 0."""

    name: str
    version: int
    hash: str
    kind: str
    body: dict[str, Any]
    published_at: datetime
    by: str = ""
    deprecated: str | None = None  # why
    bounds: dict[str, Bound] = {}  # what it knows of its actions


class Listed(Struct, frozen=True, omit_defaults=True):
    """A version in the index. `row` is where its body is; `bound` tells the same content from the same content bound
    to other actions."""

    version: int
    hash: str
    row: int
    at: int
    by: str = ""
    bound: str = ""
    deprecated: str | None = None  # why
    label: str = ""  # the version that it gives itself


class Index(Struct, frozen=True, omit_defaults=True):
    """All of a definition but the bodies. Versions are in their order."""

    kind: str = ""
    draft: int | None = None  # its row
    drafted: str = ""  # the hash of the draft
    versions: tuple[Listed, ...] = ()

    def find(self, version: int) -> Listed | None:
        return next((one for one in self.versions if one.version == version), None)

    @property
    def newest(self) -> Listed | None:
        """The newest that is not deprecated."""
        return next((one for one in reversed(self.versions) if one.deprecated is None), None)

    def labelled(self, label: str) -> Listed | None:
        """The newest that gives itself this version."""
        return next((one for one in reversed(self.versions) if one.label == label), None)


class Ref(Struct, frozen=True):
    """A version as an execution names it; without a hash, whatever was published."""

    tenant: str
    name: str
    version: int
    hash: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def key_of_definition(tenant: str, name: str) -> str:
    return key_of(tenant, f"definition/{name}")  # no execution's id has a slash


def blank(key: str) -> Start:
    """A definition without versions: on no queue, so no worker ever claims it."""
    first = ev.Started(DEFINITION, 1, Raw(b"[]"))
    return Start(key, DEFINITION, f"{DEFINITION}@1", "", "definition", (ev.row(first, 1, 0),))


def bound_hash(bounds: dict[str, Bound]) -> str:
    return content_hash(msgspec.to_builtins(bounds))[:16] if bounds else ""


def fold(index: Index, rows: Iterable[Row]) -> Index:
    """The index after these rows of the log."""
    for row in rows:
        if row.type % 1000 == _RECEIVED and isinstance(event := ev.read(row), ev.EventReceived):
            index = _after(index, event, row)
    return index


def _after(index: Index, event: ev.EventReceived, row: Row) -> Index:
    act = read_act(event)
    match event.name:
        case "drafted":
            return structs.replace(index, kind=act.kind, draft=row.version, drafted=act.hash)
        case "published":
            bound = bound_hash(act.bounds)
            one = Listed(act.version, act.hash, row.version, row.at, event.by, bound, label=act.label)
            versions = tuple(sorted((*index.versions, one), key=lambda listed: listed.version))
            if index.drafted == act.hash:
                index = structs.replace(index, draft=None, drafted="")
            return structs.replace(index, kind=act.kind, versions=versions)
        case "discarded":
            return structs.replace(index, draft=None, drafted="")
        case "deprecated" | "restored":
            why = act.note if event.name == "deprecated" else None
            versions = tuple(
                structs.replace(one, deprecated=why) if one.version == act.version else one for one in index.versions
            )
            return structs.replace(index, versions=versions)
        case _:
            return index


def read_act(event: ev.EventReceived) -> Act:
    try:
        return msgspec.json.decode(event.payload, type=Act)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"an act of a definition cannot be read: {error}") from error


def index_of(head: Head | None) -> Index:
    return Index() if head is None or head.state is None else msgspec.json.decode(head.state, type=Index)


def ref_in(key: str, rows: Sequence[Row]) -> Ref | None:
    """What the newest beginning among these rows names; None if there is none that can be read."""
    for row in reversed(rows):
        if row.type % 1000 in _BEGINS:
            try:
                event = ev.read(row)
            except Undecodable:
                return None
            if isinstance(event, ev.Started | ev.Restarted):
                return Ref(tenant_of(key), event.workflow, event.version, event.hash)
    return None


def ref_of(key: str, definition: str) -> Ref:
    """What a head names."""
    name, _, version = definition.removeprefix(PUBLISHED).rpartition("@")
    return Ref(tenant_of(key), name, int(version))


class Lost(Described):
    """Stands for a definition that cannot be had: an execution of it is stuck and says why."""

    kind = "lost"

    def __init__(self, ref: Ref, why: InvalidValue | DefinitionNotFound | DefinitionConflict) -> None:
        super().__init__(ref.name, ref.version, "default", "", None, {}, ref.hash or "lost")
        self.why = why

    def begin(self, running: Replay, input: Raw) -> Coroutine[Any, Any, Raw]:
        self._refuse()

    def resume(self, running: Replay, input: Raw) -> Coroutine[Any, Any, Raw]:
        self._refuse()

    def undo_of(self, owed: Owed) -> Action[..., Any]:
        self._refuse()

    def diagram(self, current: Mapping[str, Mark] | None = None) -> Diagram:
        self._refuse()

    def _refuse(self) -> NoReturn:
        if isinstance(self.why, DefinitionNotFound):
            raise DefinitionNotFound(str(self.why))
        raise DefinitionConflict(str(self.why))


class Published:
    """Definitions of a store, read and built once."""

    def __init__(self, store: Store, size: int = KEPT) -> None:
        self._store = store
        self._size = size
        self._built: OrderedDict[tuple[str, str, int], Described] = OrderedDict()

    async def index(self, tenant: str, name: str) -> Index:
        return index_of(await self._store.head(key_of_definition(tenant, name)))

    async def act(self, tenant: str, name: str, row: int) -> tuple[Row, ev.EventReceived, Act]:
        """What the log says at a version of it that the index names."""
        key = key_of_definition(tenant, name)
        [found] = await self._store.read(key, row - 1, row, 1)
        event = ev.read(found)
        if not isinstance(event, ev.EventReceived):
            raise Undecodable(f"{key}: version {row} of the log is no act of a definition")
        return found, event, read_act(event)

    async def named(self, tenant: str, name: str, version: int | str | None) -> Described | None:
        """What an execution begins with: this version, or the newest that is not deprecated; None if there is none."""
        if isinstance(version, str):
            listed = (await self.index(tenant, name)).labelled(version)
            version = None if listed is None else listed.version
        elif version is None:
            index = await self.index(tenant, name)
            if index.newest is None and index.versions:
                raise DefinitionNotFound(
                    f"every version of the definition {name!r} is deprecated: ask for one by number, or restore it"
                )
            version = index.newest.version if index.newest is not None else None
        found = None if version is None else await self.one(Ref(tenant, name, version))
        if isinstance(found, Lost):
            if isinstance(found.why, DefinitionNotFound):
                return None
            raise found.why
        return found

    async def one(self, ref: Ref) -> Described:
        return (await self.load([ref]))[ref]

    async def load(self, wanted: Iterable[Ref]) -> dict[Ref, Described]:
        """Each of these, from memory or read now; Lost for what is not there or is something else."""
        refs = list(dict.fromkeys(wanted))
        found: dict[Ref, Described] = {}
        missing: dict[tuple[str, str, int], Ref] = {}
        for ref in refs:
            if self.kept(ref) is None:
                missing[ref.tenant, ref.name, ref.version] = ref
        fresh: dict[tuple[str, str, int], Described] = {}
        todo = list(missing.values())
        for start in range(0, len(todo), _AT_ONCE):
            some = todo[start : start + _AT_ONCE]
            for ref, built in zip(some, await asyncio.gather(*map(self._read, some)), strict=True):
                fresh[ref.tenant, ref.name, ref.version] = built
        for ref in refs:
            there = fresh.get((ref.tenant, ref.name, ref.version)) or self.kept(ref)
            found[ref] = _checked(ref, there or await self._read(ref))
        for place, built in fresh.items():
            self._keep(place, built)
        return found

    def kept(self, ref: Ref) -> Described | None:
        """If it is at hand."""
        place = ref.tenant, ref.name, ref.version
        if (built := self._built.get(place)) is not None:
            self._built.move_to_end(place)
        return built

    def _keep(self, place: tuple[str, str, int], built: Described) -> None:
        if isinstance(built, Lost):
            return  # it may be published yet
        self._built[place] = built
        while len(self._built) > self._size:
            self._built.popitem(last=False)

    async def _read(self, ref: Ref) -> Described:
        listed = (await self.index(ref.tenant, ref.name)).find(ref.version)
        if listed is None:
            return Lost(ref, missing(ref))
        _, _, act = await self.act(ref.tenant, ref.name, listed.row)
        return build(ref, listed, act)


def missing(ref: Ref) -> DefinitionNotFound:
    return DefinitionNotFound(
        f"version {ref.version} of the definition {ref.name!r} was not published for tenant {ref.tenant!r};"
        f" `perdure definition {ref.name}` tells what was"
    )


def build(ref: Ref, listed: Listed, act: Act) -> Described:
    """The workflow of a version, if its content is still that which was published."""
    try:
        body = msgspec.json.decode(act.body)
        if (act.version, act.hash) != (listed.version, listed.hash) or content_hash(body) != listed.hash:
            raise DefinitionConflict(
                f"the content of {ref} is not what was published: its hash is {content_hash(body)[:12]}…, not"
                f" {listed.hash[:12]}…; somebody has changed the store"
            )
        return kinds.build(body, version=listed.version, hash=listed.hash, bounds=act.bounds)
    except (DefinitionConflict, InvalidValue) as error:
        return Lost(ref, error)
    except Exception as error:  # another release may have checked it otherwise; then a person has to look
        why = InvalidValue(f"{ref} cannot be built by this release: {type(error).__name__}: {error}")
        why.__cause__ = error
        return Lost(ref, why)


def _checked(ref: Ref, built: Described) -> Described:
    """An execution is run with the very content that it was started with."""
    if not ref.hash or isinstance(built, Lost) or built.hash == ref.hash:
        return built
    return Lost(
        ref,
        DefinitionConflict(
            f"the execution was started with another content of {ref}: {ref.hash[:12]}…, and the store has"
            f" {built.hash[:12]}…; import the definitions of the store that it comes from"
        ),
    )


def sealed(kind: str, body: Any, bounds: dict[str, Bound], version: int = 0, note: str = "") -> Act:
    return Act(kind, version, content_hash(body), Raw(canonical(body)), bounds, note, kinds.label_of(body))
