"""Pictures of definitions: as they were published, as drafts, and of what somebody is still writing."""

from __future__ import annotations

import asyncio

from perdure.flows.diagram import Diagram, mermaid, svg
from perdure.http.definitions import SourceIn, VersionQuery, source_of
from perdure.http.forms import DiagramQuery, Form
from perdure.http.route import Answer, Call, Nothing, Routes

routes = Routes("definitions")


class PictureQuery(VersionQuery, frozen=True, forbid_unknown_fields=True):
    form: Form = "svg"


@routes("GET", "/v1/definitions/{name}/diagram", "read", query=PictureQuery, answers={200: bytes})
async def draw_version(call: Call[PictureQuery, Nothing]) -> Answer:
    """Draw a version, as SVG or in the language of Mermaid: the one that starts take, unless another is asked for.

    A draft that cannot be drawn yet is 422 with all that is wrong with it.
    """
    query = call.query
    found = await call.app.definitions.diagram(call.path["name"], query.version, draft=query.draft, tenant=call.tenant)
    return await drawn(found, query.form)


@routes(
    "POST",
    "/v1/definitions/diagram",
    "define",
    body=SourceIn,
    query=DiagramQuery,
    answers={200: bytes},
    harmless=True,
)
async def draw(call: Call[DiagramQuery, SourceIn]) -> Answer:
    """Draw a definition without publishing it.

    Actions that this process does not have, and secrets that are not there, do no harm to a picture; of what cannot be
    drawn for other reasons all that is wrong is told, with 422.
    """
    found = await call.app.definitions.draw(source_of(call.body), tenant=call.tenant)
    return await drawn(found, call.query.form)


async def drawn(diagram: Diagram, form: Form) -> Answer:
    """Drawn in a thread: large ones take a while."""
    if form == "mermaid":
        text = await asyncio.to_thread(mermaid, diagram)
        return Answer(text.encode(), media="text/plain; charset=utf-8")
    return Answer((await asyncio.to_thread(svg, diagram)).encode(), media="image/svg+xml")
