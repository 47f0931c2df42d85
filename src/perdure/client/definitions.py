"""Definitions that are published at run time, over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from perdure.client.door import Door
from perdure.flows.bound import Problem
from perdure.http.definitions import ChangesOut, ListingsOut, ProblemsOut
from perdure.runtime.definitions import Change, Listing
from perdure.runtime.published import Definition

_PATH = "/v1/definitions"


class RemoteDefinitions:
    """`client.definitions`. A definition is a mapping, or a text in JSON or YAML."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def validate(self, definition: dict[str, Any] | str) -> list[Problem]:
        """All that is wrong with a definition."""
        return (await self._door.post(f"{_PATH}/validate", {"definition": definition}, ProblemsOut)).problems

    async def publish(self, definition: dict[str, Any] | str, *, note: str = "", new: bool = False) -> Definition:
        """Publish a definition; what was published before keeps its version. DefinitionInvalid has all mistakes."""
        body = {"definition": definition, "note": note, "new": new}
        return await self._door.post(_PATH, body, Definition, repeat=not new)

    async def get(self, name: str, version: int | None = None, *, draft: bool = False) -> Definition:
        """A version with its content: the one that starts take, unless another is asked for."""
        return await self._door.get(_path(name), Definition, version=version, draft=draft)

    async def history(self, name: str) -> list[Change]:
        """Who did what to a definition."""
        return (await self._door.get(f"{_path(name)}/history", ChangesOut)).changes

    async def deprecate(self, name: str, version: int, reason: str = "") -> None:
        """Let nothing begin with a version any more, unless it is asked for by its number."""
        await self._door.do(f"{_path(name)}/deprecate", {"version": version, "reason": reason})

    async def restore(self, name: str, version: int) -> None:
        """Take a deprecation back."""
        await self._door.do(f"{_path(name)}/restore", {"version": version})

    async def list(self) -> list[Listing]:
        """What there is under which name."""
        return (await self._door.get(_PATH, ListingsOut)).definitions


def _path(name: str) -> str:
    return f"{_PATH}/{quote(name, safe='')}"
