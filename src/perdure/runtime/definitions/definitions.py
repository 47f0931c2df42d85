"""`app.definitions`: workflows that are data, published at run time.

    await app.definitions.publish(Path("order.yaml").read_text(), by="ada")
    run = await app.start("order", {"item": "tea"})

Rules kept here: a definition is its tenant's own; a version is what it is for ever, and executions stay on theirs; what
is published was checked and bound to the actions of the process that published it. The same content bound to the same
actions is the same version, however often and by however many it is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from perdure.core import events as ev
from perdure.core.moments import moment
from perdure.core.records import Head, Query, id_of
from perdure.errors import DefinitionConflict, DefinitionInvalid, DefinitionNotFound, InvalidValue, UsageError
from perdure.flows import kinds, reading
from perdure.flows.bound import Bound, Problem
from perdure.flows.diagram import Diagram
from perdure.flows.given import Wanted
from perdure.flows.registry import registry
from perdure.runtime.callers.showing import whole
from perdure.runtime.definitions import bundles
from perdure.runtime.definitions.published import (
    DEFINITION,
    Act,
    Definition,
    Index,
    Listed,
    Ref,
    blank,
    bound_hash,
    fold,
    index_of,
    key_of_definition,
    read_act,
    sealed,
)
from perdure.runtime.managing.noting import noted
from perdure.runtime.managing.publishing import Decide, Deed, Desk, Ledger
from perdure.runtime.secrets.vouching import missing

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

#: A definition as people give it: data, or a text in JSON or YAML.
Source: TypeAlias = Mapping[str, Any] | str | bytes
_PAGE = 500
_LEDGER = Ledger(blank, Index(), fold, index_of)


class Version(Struct, frozen=True):
    """A version without its body."""

    version: int
    hash: str
    published_at: datetime
    by: str = ""
    deprecated: str | None = None


class Listing(Struct, frozen=True):
    """What there is under a name. `newest` is what `start` takes: the newest version that is not deprecated."""

    name: str
    kind: str
    newest: int | None
    versions: list[Version]
    draft: bool = False


class Change(Struct, frozen=True):
    """An act in the history of a definition: `what` is drafted, discarded, published, deprecated or restored."""

    at: datetime
    what: str
    version: int
    by: str = ""
    hash: str = ""
    note: str = ""


def _source(_: Definitions, given: Mapping[str, Any]) -> tuple[str, str | None]:
    """What it is called, if that can be read: the mistakes of a definition are told later."""
    try:
        name = kinds.name_of(_read(given["definition"], ""))
    except UsageError:
        name = ""
    return name, given.get("tenant")


def _bundled(_: Definitions, given: Mapping[str, Any]) -> tuple[str, str | None]:
    return bundles.names(given["bundle"]), given.get("tenant")


class Definitions:
    """See the module. Every method takes the `tenant` whose definitions are meant; else the application's."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    # Checking and publishing.

    def validate(self, definition: Source, *, file: str = "definition", tenant: str | None = None) -> list[Problem]:
        """All that is wrong with a definition, seen from this process, which has to have its actions.

        A secret that is not found here is a warning: it may be there where the definition is published.
        """
        try:
            body = _read(definition, file)
        except InvalidValue as error:
            return [Problem(file, str(error))]
        problems = _examine(body)[1]
        return problems + missing(self._app.find_secret, self._home(tenant), _wanted(body, problems), "warning")

    async def examine(
        self, definition: Source, *, file: str = "definition", tenant: str | None = None
    ) -> list[Problem]:
        """What `publish` would say. Secrets are looked for in a thread."""
        try:
            body = _read(definition, file)
        except InvalidValue as error:
            return [Problem(file, str(error))]
        return (await self._examined(body, tenant))[1]

    async def _examined(self, body: Any, tenant: str | None) -> tuple[dict[str, Bound], list[Problem]]:
        bounds, problems = _examine(body)
        if wanted := _wanted(body, problems):
            problems += await asyncio.to_thread(missing, self._app.find_secret, self._home(tenant), wanted, "error")
        return bounds, problems

    @noted("definitions.draft", _source)
    async def draft(
        self, definition: Source, *, reason: str = "", by: str = "", file: str = "definition", tenant: str | None = None
    ) -> Definition:
        """Keep a definition that is not finished: it is not checked, and nothing can be started with it."""
        body = _read(definition, file)
        name = kinds.name_of(body)
        act = sealed(kinds.kind_of(body), body, {})

        def decide(index: Index) -> Deed | None:
            return None if index.drafted == act.hash else Deed("drafted", act)

        await self._write(tenant, name, decide, by)
        return await self.get(name, draft=True, tenant=tenant)

    @noted("definitions.publish", _source)
    async def publish(
        self,
        definition: Source,
        *,
        reason: str = "",
        by: str = "",
        note: str = "",
        new: bool = False,
        file: str = "definition",
        tenant: str | None = None,
    ) -> Definition:
        """Publish a definition, or raise DefinitionInvalid with all that is wrong with it; gives its version.

        What was published before, and is not deprecated, keeps its version: then nothing happens. With `new` only the
        newest version is compared, so the content of an older one becomes the newest.
        """
        body = _read(definition, file)
        bounds, problems = await self._examined(body, tenant)
        if errors := [one for one in problems if one.level == "error"]:
            raise DefinitionInvalid(_called(body, file), errors)
        name, kind = kinds.name_of(body), kinds.kind_of(body)
        act = sealed(kind, body, bounds, note=note)
        kinds.build(body, version=1, hash=act.hash, bounds=bounds)  # what cannot be built is not published

        def decide(index: Index) -> Deed | None:
            if _same(index, act, new) is not None:
                return None
            version = max((one.version for one in index.versions), default=0) + 1
            return Deed("published", msgspec.structs.replace(act, version=version))

        index = await self._write(tenant, name, decide, by)
        # Others may have gone on since: with a newer version, or by deprecating this one.
        listed = _same(index, act, new) or _with(index.versions, act)
        assert listed is not None
        return _definition(name, kind, body, listed, bounds)

    @noted("definitions.publish_draft")
    async def publish_draft(
        self, name: str, *, reason: str = "", by: str = "", note: str = "", tenant: str | None = None
    ) -> Definition:
        """Publish what was kept as a draft."""
        draft = await self.get(name, draft=True, tenant=tenant)
        return await self.publish(draft.body, by=by, note=note, tenant=tenant)

    @noted("definitions.discard_draft")
    async def discard_draft(self, name: str, *, reason: str = "", by: str = "", tenant: str | None = None) -> None:
        """Give a draft up; the history keeps it. One that is not there need not be given up."""
        await self._listing(name, tenant)

        def decide(index: Index) -> Deed | None:
            return None if index.draft is None else Deed("discarded", Act(hash=index.drafted))

        await self._write(tenant, name, decide, by)

    @noted("definitions.deprecate")
    async def deprecate(
        self, name: str, version: int, reason: str = "", *, by: str = "", tenant: str | None = None
    ) -> None:
        """Let no execution begin with this version unless it asks for it by number. Those that run go on."""

        def decide(index: Index) -> Deed | None:
            listed = _listed(index, name, version)
            same = listed.deprecated is not None
            return None if same else Deed("deprecated", Act(version=version, hash=listed.hash, note=reason))

        await self._write(tenant, name, decide, by)

    @noted("definitions.restore")
    async def restore(
        self, name: str, version: int, *, reason: str = "", by: str = "", tenant: str | None = None
    ) -> None:
        """Take a deprecation back."""

        def decide(index: Index) -> Deed | None:
            listed = _listed(index, name, version)
            return None if listed.deprecated is None else Deed("restored", Act(version=version, hash=listed.hash))

        await self._write(tenant, name, decide, by)

    # Asking.

    async def get(
        self, name: str, version: int | None = None, *, draft: bool = False, tenant: str | None = None
    ) -> Definition:
        """A version with its body; the one that `start` takes unless another, or the draft, is asked for."""
        home = self._home(tenant)
        await self._app.open()
        index = await self._app.published.index(home, name)
        if draft:
            if index.draft is None:
                raise DefinitionNotFound(f"there is no draft of a definition {name!r}")
            row, event, act = await self._app.published.act(home, name, index.draft)
            listed = Listed(0, act.hash, row.version, row.at, event.by)
        else:
            listed = _listed(index, name, version)
            _, _, act = await self._app.published.act(home, name, listed.row)
        return _definition(name, act.kind, msgspec.json.decode(act.body), listed, act.bounds)

    async def diagram(
        self, name: str, version: int | None = None, *, draft: bool = False, tenant: str | None = None
    ) -> Diagram:
        """A version as a picture: the one that `start` takes unless another, or the draft, is asked for.

        DefinitionInvalid has all that is wrong with a draft that cannot be drawn yet.
        """
        if draft:
            return await self.draw((await self.get(name, draft=True, tenant=tenant)).body, tenant=tenant)
        home = self._home(tenant)
        await self._app.open()
        listed = _listed(await self._app.published.index(home, name), name, version)
        return (await self._app.published.one(Ref(home, name, listed.version, listed.hash))).diagram()

    async def draw(self, definition: Source, *, file: str = "definition", tenant: str | None = None) -> Diagram:
        """A definition as a picture, though nobody has published it.

        What `publish` would refuse but can be drawn is drawn: actions that are still to be written, secrets that are
        not there yet. Anything else is DefinitionInvalid, with all that `examine` tells.
        """
        body = _read(definition, file)
        try:
            kinds.name_of(body)
            return kinds.build(body, version=1, bounds={name: Bound(name) for name in kinds.actions(body)}).diagram()
        except DefinitionInvalid as error:
            wrong = [one for one in (await self._examined(body, tenant))[1] if one.level == "error"]
            raise DefinitionInvalid(_called(body, file), wrong or error.problems) from None

    async def versions(self, name: str, *, tenant: str | None = None) -> list[Version]:
        """All versions of a definition, the oldest first."""
        return (await self._listing(name, tenant)).versions

    async def history(self, name: str, *, tenant: str | None = None) -> list[Change]:
        """Who did what to a definition, the oldest first."""
        await self._listing(name, tenant)
        key = key_of_definition(self._home(tenant), name)
        changes: list[Change] = []
        after = 0
        while rows := await self._app.store.read(key, after, None, _PAGE):
            after = rows[-1].version
            for row in rows:
                if isinstance(event := ev.read(row), ev.EventReceived):
                    act = read_act(event)
                    changes.append(Change(moment(row.at), event.name, act.version, event.by, act.hash, act.note))
        return changes

    async def _listing(self, name: str, tenant: str | None) -> Listing:
        await self._app.open()
        index = await self._app.published.index(self._home(tenant), name)
        if not index.kind:
            raise DefinitionNotFound(
                f"there is no definition {name!r}; `perdure definitions list` shows those that are"
            )
        return _list(name, index)

    # From one store to another.

    async def export(self, names: Iterable[str] | None = None, *, tenant: str | None = None) -> str:
        """Every version of these definitions, or of all, as a text that does not depend on when it was written."""
        chosen = list(names) if names is not None else [one.name for one in await self.list(tenant=tenant)]
        found = [
            await self.get(name, one.version, tenant=tenant)
            for name in sorted(set(chosen))
            for one in await self.versions(name, tenant=tenant)
        ]
        return bundles.write(found)

    @noted("definitions.import", _bundled)
    async def import_(
        self, bundle: str | bytes, *, dry_run: bool = False, reason: str = "", by: str = "", tenant: str | None = None
    ) -> list[Definition]:
        """Publish what a bundle has, under its versions; gives what is new, or would be with `dry_run`.

        What is there already is left as it is. If a version is there with another content, or anything in the bundle
        cannot be used, nothing is written. If somebody publishes one of them meanwhile with another content, the error
        names what was written before that was found.
        """
        home = self._home(tenant)
        await self._app.open()
        brought = await asyncio.to_thread(bundles.read, bundle)  # each of them is built, to see whether it can be
        indexes = {name: await self._app.published.index(home, name) for name in {one.name for one in brought}}
        if conflicts := [text for one in brought if (text := _conflict(indexes[one.name], one))]:
            raise DefinitionConflict(f"nothing was imported: {'; '.join(conflicts)}")
        if taken := sorted({one.name for one in brought if _in_code(one.name)}):
            raise DefinitionConflict(f"nothing was imported: this process has workflows named {', '.join(taken)}")
        new = [one for one in brought if indexes[one.name].find(one.version) is None]
        done: list[str] = []
        for one in () if dry_run else brought:
            try:
                await self._bring(one, by, tenant)
            except DefinitionConflict as error:
                text = f"{error}; before it were imported: {', '.join(done) or 'none'}; after it nothing"
                raise DefinitionConflict(text) from error
            if one in new:
                done.append(f"{one.name}@{one.version}")
        return new

    async def _bring(self, one: Definition, by: str, tenant: str | None) -> None:
        act = sealed(one.kind, one.body, one.bounds, one.version)

        def decide(index: Index) -> Deed | None:
            if conflict := _conflict(index, one):
                raise DefinitionConflict(conflict)
            return Deed("published", act) if index.find(one.version) is None else None

        index = await self._write(tenant, one.name, decide, by)
        listed = index.find(one.version)
        if one.deprecated is not None and listed is not None and listed.deprecated is None:
            await self.deprecate(one.name, one.version, one.deprecated, by=by, tenant=tenant)

    # All of them; last, for below this line `list` is no longer the type.

    async def list(self, *, tenant: str | None = None) -> list[Listing]:
        """All definitions, by name."""
        home = self._home(tenant)
        await self._app.open()
        found: list[Listing] = []
        cursor: tuple[int, str] | None = None
        while heads := await self._app.store.find(Query(home, workflow=DEFINITION, limit=_PAGE, cursor=cursor)):
            indexes = [(head, index_of(await whole(self._app.store, head))) for head in heads]
            found += [_list(_name(head), index) for head, index in indexes if index.versions or index.draft is not None]
            cursor = heads[-1].started_at, heads[-1].key
        return sorted(found, key=lambda one: one.name)

    # Inside.

    def _home(self, tenant: str | None) -> str:
        return self._app._tenant(tenant)

    async def _write(self, tenant: str | None, name: str, decide: Decide[Index], by: str) -> Index:
        await self._app.open()
        app, key = self._app, key_of_definition(self._home(tenant), name)
        return await Desk(app.store, app.clock, app.me, key, _LEDGER).write(decide, by or app.settings.actor)


def _read(definition: Source, file: str) -> Any:
    if isinstance(definition, str | bytes):
        return reading.read(definition, file)
    return reading.plain(definition, file)


def _examine(body: Any) -> tuple[dict[str, Bound], list[Problem]]:
    """What its actions are bound to, and all that is wrong. A kind looks for the actions itself, as far as it gets."""
    problems = kinds.check(body)
    if any(one.level == "error" for one in problems):
        return {}, problems
    bounds, unbound = kinds.bind(body)
    name = kinds.name_of(body)
    if _in_code(name):
        fix = "give the definition another name, or take the workflow out of the code"
        unbound.append(Problem(kinds.kind_of(body), f"the code of this process has a workflow {name}", fix))
    return bounds, problems + unbound


def _wanted(body: Any, problems: Sequence[Problem]) -> list[Wanted]:
    """The secrets that it names. What cannot be used for other reasons is not looked through."""
    return [] if any(one.level == "error" for one in problems) else kinds.secrets(body)


def _in_code(name: str) -> bool:
    return any(one.name == name for one in registry.workflows())


def _called(body: Any, file: str) -> str:
    try:
        return f"{kinds.kind_of(body)} {kinds.name_of(body)}"
    except DefinitionInvalid:
        return file


def _same(index: Index, act: Act, new: bool) -> Listed | None:
    """The version that has this content, if it can still be started."""
    candidates = [one for one in index.versions if one.deprecated is None]
    return _with(candidates[-1:] if new else candidates, act)


def _with(versions: Sequence[Listed], act: Act) -> Listed | None:
    wanted = act.hash, bound_hash(act.bounds)
    return next((one for one in reversed(versions) if (one.hash, one.bound) == wanted), None)


def _conflict(index: Index, one: Definition) -> str:
    listed = index.find(one.version)
    if listed is None or (listed.hash, listed.bound) == (one.hash, bound_hash(one.bounds)):
        return ""
    what = "another content" if listed.hash != one.hash else "actions of other versions, queues or parameters"
    return f"{one.name}@{one.version} is there already, with {what}"


def _listed(index: Index, name: str, version: int | None) -> Listed:
    """A version; without a number the one that `start` takes, or the newest if all are deprecated."""
    if version is None:
        found = index.newest or (index.versions[-1] if index.versions else None)
    else:
        found = index.find(version)
    if found is None:
        have = ", ".join(str(one.version) for one in index.versions)
        there = f"its versions are {have}" if have else "no version of it was published"
        wanted = name if version is None else f"{name}@{version}"
        raise DefinitionNotFound(f"there is no definition {wanted}: {there}")
    return found


def _definition(name: str, kind: str, body: Any, listed: Listed, bounds: dict[str, Bound]) -> Definition:
    at = moment(listed.at)
    return Definition(name, listed.version, listed.hash, kind, body, at, listed.by, listed.deprecated, bounds)


def _list(name: str, index: Index) -> Listing:
    versions = [Version(one.version, one.hash, moment(one.at), one.by, one.deprecated) for one in index.versions]
    newest = index.newest
    return Listing(name, index.kind, None if newest is None else newest.version, versions, index.draft is not None)


def _name(head: Head) -> str:
    return id_of(head.key).removeprefix("definition/")
