"""Definitions on their way: drafts that are not finished, and bundles that go from one store to another."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from perdure.http.definitions import SourceIn, name_in, source_of
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.runtime.definitions.bundles import Bundle
from perdure.runtime.definitions.published import Definition

routes = Routes("definitions")


class PublishIn(Struct, frozen=True, forbid_unknown_fields=True):
    note: str = ""


class BundleQuery(Struct, frozen=True, forbid_unknown_fields=True):
    names: Annotated[str, Meta(description="Of these definitions only, with commas between them.")] | None = None


class ImportIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What another store has exported. With `dry_run` nothing is written."""

    bundle: Bundle
    dry_run: bool = False


class Imported(Struct, frozen=True):
    """A version of a bundle: it is new, or was there already and is left as it is."""

    name: str
    version: int
    hash: str
    was: Literal["new", "there"]


class ImportedOut(Struct, frozen=True):
    definitions: list[Imported]
    dry_run: bool


@routes("POST", "/v1/definitions/drafts", "define", body=SourceIn, answers={201: Definition}, target=name_in)
async def draft(call: Call[Nothing, SourceIn]) -> Answer:
    """Keep a definition that is not finished: it is not checked, and nothing can be started with it.

    There is one draft of a name; a new one takes its place. `GET /v1/definitions/{name}?draft=true` gets it, and the
    list of definitions tells which have one.
    """
    kept = await call.app.definitions.draft(source_of(call.body), by=call.caller.user, tenant=call.tenant)
    return Answer(kept, 201, {"Location": f"/v1/definitions/{kept.name}?draft=true"})


@routes("POST", "/v1/definitions/{name}/draft/publish", "define", body=PublishIn, answers={201: Definition})
async def publish_draft(call: Call[Nothing, PublishIn]) -> Answer:
    """Publish what was kept as a draft; 422 with all that is wrong with it, and then the draft stays."""
    name, note = call.path["name"], call.body.note
    made = await call.app.definitions.publish_draft(name, by=call.caller.user, note=note, tenant=call.tenant)
    return Answer(made, 201, {"Location": f"/v1/definitions/{made.name}?version={made.version}"})


@routes("DELETE", "/v1/definitions/{name}/draft", "define", answers={204: None})
async def discard_draft(call: Call[Nothing, Nothing]) -> Answer:
    """Give a draft up; the history keeps it."""
    await call.app.definitions.discard_draft(call.path["name"], by=call.caller.user, tenant=call.tenant)
    return Answer(status=204)


@routes("GET", "/v1/bundle", "read", query=BundleQuery, answers={200: Bundle})
async def export(call: Call[BundleQuery, Nothing]) -> Answer:
    """Get every version of the definitions, to be kept in version control or imported elsewhere.

    The same definitions give the same bytes, whenever and wherever they are asked for.
    """
    names = None if call.query.names is None else call.query.names.split(",")
    return Answer((await call.app.definitions.export(names, tenant=call.tenant)).encode())


def _names(call: Call[Nothing, ImportIn]) -> str:
    return ", ".join(f"{one.name}@{one.version}" for one in call.body.bundle.definitions)[:1000]


@routes("POST", "/v1/bundle", "define", body=ImportIn, answers={200: ImportedOut}, target=_names)
async def import_definition(call: Call[Nothing, ImportIn]) -> Answer:
    """Publish what a bundle has, under its versions.

    What is there already is left as it is. If anything in it cannot be used, or a version is there with another
    content, nothing is written: 422 with all that is wrong, or 409.
    """
    body = call.body
    bundle = msgspec.json.encode(body.bundle)
    definitions = call.app.definitions
    new = await definitions.import_(bundle, dry_run=body.dry_run, by=call.caller.user, tenant=call.tenant)
    fresh = {(one.name, one.version) for one in new}
    told = [
        Imported(one.name, one.version, one.hash, "new" if (one.name, one.version) in fresh else "there")
        for one in body.bundle.definitions
    ]
    return Answer(ImportedOut(told, body.dry_run))
