"""What can be started: the workflows of the code, and what each of them, or of those that were published, takes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from perdure.errors import InvalidValue, NotRegistered
from perdure.flows.described import Described
from perdure.flows.registry import registry, wanted
from perdure.flows.samples import arguments
from perdure.flows.workflow import Workflow
from perdure.http.route import Answer, Call, Nothing, Routes

routes = Routes("definitions")


class WorkflowListed(Struct, frozen=True):
    """The newest version of a workflow. Its kind is code, or what its data is."""

    name: str
    version: int
    kind: str
    queue: str
    description: str


class WorkflowOut(WorkflowListed, frozen=True):
    """A workflow, with the JSON Schema of what it takes and a body that would start it.

    Code takes `args`, whose schema has them by name in their order; a machine, a graph or a document takes one `input`.
    Where no example comes to mind there is none.
    """

    input: dict[str, Any]
    example: dict[str, Any] | None


class WorkflowsOut(Struct, frozen=True):
    workflows: list[WorkflowListed]


class WorkflowQuery(Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1, description="The newest unless given.")] | None = None


@routes("GET", "/v1/workflows", "read", answers={200: WorkflowsOut})
async def list_workflows(call: Call[Nothing, Nothing]) -> Answer:
    """List the workflows of the code of this process; those that were published are among the definitions."""
    newest: dict[str, Workflow[..., Any]] = {}
    for one in sorted(registry.workflows(), key=lambda one: one.version):
        newest[one.name] = one
    return Answer(WorkflowsOut([WorkflowListed(*_about(newest[name])) for name in sorted(newest)]))


@routes("GET", "/v1/workflows/{name}", "read", query=WorkflowQuery, answers={200: WorkflowOut})
async def get_workflow(call: Call[WorkflowQuery, Nothing]) -> Answer:
    """Tell what a workflow takes, be it code or published: the one that a start by this name would begin with."""
    name, version = call.path["name"], call.query.version
    try:
        found = await call.app.workflow(name, version, tenant=call.tenant)
    except NotRegistered:
        lists = "/v1/workflows lists those of the code, /v1/definitions those that were published"
        raise NotRegistered(f"there is no workflow {wanted(name, version)}: {lists}") from None
    return Answer(WorkflowOut(*_about(found), _schema(found), _example(found)))


def _about(one: Workflow[..., Any]) -> tuple[str, int, str, str, str]:
    return one.name, one.version, one.kind if isinstance(one, Described) else "code", one.queue, one.description


def _schema(one: Workflow[..., Any]) -> dict[str, Any]:
    try:
        return one.input_schema()
    except InvalidValue:  # a type that cannot be told; its values are checked all the same
        return {}


def _example(one: Workflow[..., Any]) -> dict[str, Any] | None:
    given = arguments(one)
    if given is None:
        return None
    takes = {"input": given[0]} if isinstance(one, Described) else {"args": given}
    return {"workflow": one.name, **takes}
