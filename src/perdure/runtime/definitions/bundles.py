"""Definitions as one text, to be kept in version control and brought to another store.

The same definitions give the same bytes, wherever and whenever they are written: keys are sorted, one item is on a
line, and nothing depends on a store. A bundle is checked as a whole before anything of it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.records import is_external
from perdure.errors import DefinitionInvalid, InvalidValue
from perdure.flows import kinds, reading
from perdure.flows.bound import Bound, Problem
from perdure.runtime.definitions.published import Definition

FORMAT = "perdure-definitions/1"
#: Mistakes that are told at once.
MOST = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BundleEntry(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    kind: str
    version: int
    hash: str
    body: dict[str, Any]
    bounds: dict[str, Bound] = {}
    deprecated: str | None = None


class Bundle(Struct, frozen=True, forbid_unknown_fields=True):
    """Definitions with all their versions, as one document."""

    format: str
    definitions: list[BundleEntry]


def write(definitions: Iterable[Definition]) -> str:
    entries = [
        BundleEntry(one.name, one.kind, one.version, one.hash, one.body, one.bounds, one.deprecated)
        for one in sorted(definitions, key=lambda one: (one.name, one.version))
    ]
    bundle = msgspec.to_builtins(Bundle(FORMAT, entries))
    return json.dumps(bundle, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


class _Named(Struct):
    name: str
    version: int


class _Names(Struct):
    definitions: list[_Named]


def names(bundle: str | bytes) -> str:
    """What a bundle seems to have, without a check."""
    try:
        return ", ".join(f"{one.name}@{one.version}" for one in msgspec.json.decode(bundle, type=_Names).definitions)
    except (msgspec.MsgspecError, RecursionError):
        return ""


def read(bundle: str | bytes) -> list[Definition]:
    """What a bundle has, checked; InvalidValue or DefinitionInvalid for one that cannot be used."""
    try:
        found = msgspec.json.decode(bundle, type=Bundle)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidValue(f"this is not a bundle of definitions: {error}") from error
    if found.format != FORMAT:
        raise InvalidValue(f"this is not a bundle of definitions: its format is {found.format!r}, not {FORMAT!r}")
    problems: list[Problem] = []
    seen: set[tuple[str, int]] = set()
    for entry in found.definitions:
        where = f"{entry.name}@{entry.version}"
        problems += [Problem(where, text) for text in _problems(entry)]
        if (entry.name, entry.version) in seen:
            problems.append(Problem(where, "it is there twice"))
        seen.add((entry.name, entry.version))
        if len(problems) >= MOST:
            break
    if problems:
        raise DefinitionInvalid("the bundle", problems[:MOST])
    return [_definition(entry) for entry in found.definitions]


def _problems(entry: BundleEntry) -> list[str]:
    try:
        body = reading.plain(entry.body, "body")
        if reading.content_hash(body) != entry.hash:
            return ["its hash is not that of its body: somebody has changed one of them"]
        if (kinds.kind_of(body), kinds.name_of(body)) != (entry.kind, entry.name):
            return ["its body has another kind or name"]
        if entry.version < 1:
            return ["versions begin at 1"]
        kinds.build(body, version=entry.version, hash=entry.hash, bounds=entry.bounds)
        if unbound := [name for name in kinds.actions(body) if name not in entry.bounds]:
            return [f"it does not say what its actions {', '.join(unbound)} are bound to"]
        return [text for name, bound in entry.bounds.items() if (text := _misbound(name, bound))]
    except DefinitionInvalid as error:
        return [str(one) for one in error.problems]
    except InvalidValue as error:
        return [str(error)]


def _misbound(name: str, bound: Bound) -> str:
    """What no code binds an action to: another action, or a queue of external tasks, which is some tenant's own."""
    if bound.name != name:
        return f"its action {name} is bound to {bound.name}, which is another"
    own = [bound]
    while (last := own[-1].undo) is not None:
        own.append(last)
    queues = [one.queue for one in own if is_external(one.queue)]
    return f"its action {name} is bound to {queues[0]!r}, which cannot be a queue" if queues else ""


def _definition(entry: BundleEntry) -> Definition:
    body = reading.plain(entry.body)
    return Definition(
        entry.name, entry.version, entry.hash, entry.kind, body, _EPOCH, "", entry.deprecated, entry.bounds
    )
