"""Definitions that are published at run time, over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw

from perdure.client.door import Door, path_of
from perdure.errors import DefinitionNotFound
from perdure.flows.bound import Problem
from perdure.http.definitions import (
    ActionsOut,
    ChangesOut,
    DefinitionIn,
    ListingsOut,
    ProblemsOut,
    SourceIn,
    VersionIn,
)
from perdure.http.drafts import ImportedOut, PublishIn
from perdure.http.forms import Form
from perdure.runtime.definitions import bundles
from perdure.runtime.definitions.definitions import Change, Listing, Version
from perdure.runtime.definitions.published import Definition

_PATH, _BUNDLE = path_of("definitions"), path_of("bundle")


class RemoteDefinitions:
    """`client.definitions`. A definition is a mapping, or a text in JSON or YAML."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def validate(self, definition: dict[str, Any] | str) -> list[Problem]:
        """All that is wrong with a definition."""
        return (
            await self._door.post(path_of("definitions", "validate"), DefinitionIn(definition), ProblemsOut)
        ).problems

    async def publish(
        self, definition: dict[str, Any] | str, *, reason: str = "", note: str = "", new: bool = False
    ) -> Definition:
        """Publish a definition; what was published before keeps its version. DefinitionInvalid has all mistakes."""
        body = DefinitionIn(definition, note, new)
        return await self._door.post(_PATH, body, Definition, repeat=not new, reason=reason)

    async def get(self, name: str, version: int | None = None, *, draft: bool = False) -> Definition:
        """A version with its content: the one that starts take, unless another is asked for."""
        return await self._door.get(path_of("definitions", name), Definition, version=version, draft=draft)

    async def diagram(self, name: str, version: int | None = None, *, draft: bool = False, form: Form = "svg") -> str:
        """A version as a picture, or as a text that others draw; without a number the one that starts take."""
        path = path_of("definitions", name, "diagram")
        return await self._door.text(path, version=version, draft=draft, form=form)

    async def draw(self, definition: dict[str, Any] | str, *, form: Form = "svg") -> str:
        """A definition as a picture, though nobody has published it; DefinitionInvalid if it cannot be drawn."""
        path = path_of("definitions", "diagram")
        return (await self._door.ask("POST", path, SourceIn(definition), form=form)).text

    async def history(self, name: str) -> list[Change]:
        """Who did what to a definition."""
        return (await self._door.get(path_of("definitions", name, "history"), ChangesOut)).changes

    async def draft(self, definition: dict[str, Any] | str, *, reason: str = "") -> Definition:
        """Keep a definition that is not finished: it is not checked, and nothing can be started with it."""
        path = path_of("definitions", "drafts")
        return await self._door.post(path, SourceIn(definition), Definition, reason=reason)

    async def publish_draft(self, name: str, *, reason: str = "", note: str = "") -> Definition:
        """Publish what was kept as a draft. After OutcomeUnknown look: a draft that was published is gone."""
        path = path_of("definitions", name, "draft", "publish")
        return await self._door.post(path, PublishIn(note), Definition, repeat=False, reason=reason)

    async def discard_draft(self, name: str, *, reason: str = "") -> None:
        """Give a draft up; the history keeps it. One that is not there need not be given up."""
        await self._door.ask("DELETE", path_of("definitions", name, "draft"), reason=reason)

    async def deprecate(self, name: str, version: int, reason: str = "") -> None:
        """Let nothing begin with a version any more, unless it is asked for by its number."""
        await self._door.do(path_of("definitions", name, "deprecate"), VersionIn(version, reason))

    async def restore(self, name: str, version: int, *, reason: str = "") -> None:
        """Take a deprecation back."""
        await self._door.do(path_of("definitions", name, "restore"), VersionIn(version), reason=reason)

    async def versions(self, name: str) -> list[Version]:
        """All versions of a definition, the oldest first."""
        for one in await self.list():
            if one.name == name:
                return one.versions
        raise DefinitionNotFound(f"there is no definition {name!r}")

    async def export(self, names: Iterable[str] | None = None) -> str:
        """Every version of these definitions, or of all, as a text that `import_` of another store takes."""
        chosen = None if names is None else ",".join(names)
        return await self._door.text(_BUNDLE, names=chosen)

    async def import_(self, bundle: str | bytes, *, dry_run: bool = False, reason: str = "") -> list[Definition]:
        """Publish what a bundle has, under its versions; gives what is new, or would be with `dry_run`.

        If anything in it cannot be used, or a version is there with another content, nothing is written.
        """
        brought = bundles.read(bundle)
        sent = {"bundle": Raw(bundle), "dry_run": dry_run}
        told = await self._door.post(_BUNDLE, sent, ImportedOut, reason=reason)
        new = {(one.name, one.version) for one in told.definitions if one.was == "new"}
        return [one for one in brought if (one.name, one.version) in new]

    async def actions(self) -> list[dict[str, Any]]:
        """The actions that the server knows, with the schemas of their parameters and results."""
        return (await self._door.get(path_of("actions"), ActionsOut)).actions

    # All of them; last, for below this line `list` is no longer the type.

    async def list(self) -> list[Listing]:
        """What there is under which name."""
        return (await self._door.get(_PATH, ListingsOut)).definitions
