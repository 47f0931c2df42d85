"""Definitions: workflows that are data, published at run time; and what the code of this process offers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from perdure.errors import UsageError
from perdure.flows import kinds, reading
from perdure.flows.bound import Problem
from perdure.flows.registry import registry
from perdure.http import glance
from perdure.http.problems import Refused
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.runtime.definitions.definitions import Change, Listing
from perdure.runtime.definitions.published import Definition

routes = Routes("definitions")


class SourceIn(Struct, frozen=True, forbid_unknown_fields=True):
    """A definition: an object, or a text in JSON or YAML."""

    definition: Any


class DefinitionIn(SourceIn, frozen=True, forbid_unknown_fields=True):
    """A definition that is to be published."""

    note: str = ""
    new: bool = False


class ProblemsOut(Struct, frozen=True):
    problems: list[Problem]


class VersionQuery(Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1)] | None = None
    draft: bool = False


class VersionIn(Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1)]
    reason: str = ""


class ListingsOut(Struct, frozen=True):
    definitions: list[Listing]


class ChangesOut(Struct, frozen=True):
    changes: list[Change]


class ActionsOut(Struct, frozen=True):
    actions: list[dict[str, Any]]


def _glance(found: ListingsOut) -> ListingsOut:
    return ListingsOut([glance.listing(one) for one in found.definitions])


def source_of(body: SourceIn) -> Any:
    if not isinstance(body.definition, dict | str):
        raise Refused(422, "Invalid Request", "`definition` is an object, or a text in JSON or YAML")
    return body.definition


@routes("GET", "/v1/definitions", "read", answers={200: ListingsOut}, glance=_glance)
async def list_definitions(call: Call[Nothing, Nothing]) -> Answer:
    """List the definitions with their versions."""
    return Answer(ListingsOut(await call.app.definitions.list(tenant=call.tenant)))


def name_in(call: Call[Nothing, SourceIn]) -> str:
    """What it is called, if that can be read: the mistakes of a definition are told later."""
    try:
        return kinds.name_of(
            reading.plain(body) if isinstance(body := source_of(call.body), dict) else reading.read(body)
        )
    except UsageError:
        return ""


@routes("POST", "/v1/definitions", "define", body=DefinitionIn, answers={201: Definition}, target=name_in)
async def publish(call: Call[Nothing, DefinitionIn]) -> Answer:
    """Publish a definition; what was published before keeps its version."""
    body = call.body
    made = await call.app.definitions.publish(
        source_of(body), by=call.caller.user, note=body.note, new=body.new, tenant=call.tenant
    )
    return Answer(made, 201, {"Location": f"/v1/definitions/{made.name}?version={made.version}"})


@routes("POST", "/v1/definitions/validate", "define", body=DefinitionIn, answers={200: ProblemsOut}, harmless=True)
async def validate(call: Call[Nothing, DefinitionIn]) -> Answer:
    """Tell all that is wrong with a definition, without publishing it."""
    return Answer(ProblemsOut(await call.app.definitions.examine(source_of(call.body), tenant=call.tenant)))


@routes("GET", "/v1/definitions/{name}", "read", query=VersionQuery, answers={200: Definition})
async def get_definition(call: Call[VersionQuery, Nothing]) -> Answer:
    """Get a version with its content: the one that starts take, unless another is asked for."""
    query = call.query
    found = await call.app.definitions.get(call.path["name"], query.version, draft=query.draft, tenant=call.tenant)
    return Answer(found)


@routes("GET", "/v1/definitions/{name}/history", "read", answers={200: ChangesOut})
async def history(call: Call[Nothing, Nothing]) -> Answer:
    """Tell who did what to a definition."""
    return Answer(ChangesOut(await call.app.definitions.history(call.path["name"], tenant=call.tenant)))


@routes("POST", "/v1/definitions/{name}/deprecate", "define", body=VersionIn, answers={204: None})
async def deprecate(call: Call[Nothing, VersionIn]) -> Answer:
    """Let nothing begin with a version any more, unless it is asked for by its number."""
    name, body = call.path["name"], call.body
    await call.app.definitions.deprecate(name, body.version, body.reason, by=call.caller.user, tenant=call.tenant)
    return Answer(status=204)


@routes("POST", "/v1/definitions/{name}/restore", "define", body=VersionIn, answers={204: None})
async def restore(call: Call[Nothing, VersionIn]) -> Answer:
    """Take a deprecation back."""
    await call.app.definitions.restore(call.path["name"], call.body.version, by=call.caller.user, tenant=call.tenant)
    return Answer(status=204)


@routes("GET", "/v1/actions", "read", answers={200: ActionsOut})
async def list_actions(call: Call[Nothing, Nothing]) -> Answer:
    """List the actions of this process, with the schemas of their parameters and results."""
    known = [one.schema() for one in registry.actions() if not one.name.startswith("perdure.")]
    return Answer(ActionsOut(sorted(known, key=lambda one: str(one["name"]))))
