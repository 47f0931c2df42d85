"""Logs: page by page, or one event; as people read them, or as CloudEvents.

Rules kept here: whatever the form, a caller who may only glance sees the same without its data.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from perdure.core.cloudevents import BATCH, STRUCTURED
from perdure.core.entries import Entry
from perdure.errors import EventNotFound
from perdure.http import cloudevents, forms, glance
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.http.verbs import is_version, run_of, where
from perdure.runtime.callers import clouds
from perdure.runtime.callers.paging import LogPage

routes = Routes("executions")


class LogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, description="The version before the first one; 0 unless given.")] | None = None
    until: Annotated[int, Meta(ge=1, description="The last version; that of the log unless given.")] | None = None
    sent: Annotated[bool, Meta(description="Only the events that were sent to the execution.")] = False
    limit: forms.Limit = 100
    cursor: str | None = None


@routes("GET", "/v1/executions/{id}/log", "read", query=LogQuery, answers={200: LogPage}, glance=glance.log)
async def log(call: Call[LogQuery, Nothing]) -> Answer:
    """Read the log, page by page.

    A page that is not the last has `next`: given as `cursor`, it goes on there, up to the same `until`. With `sent` a
    page has those of its events that were sent to the execution. With `Accept: application/cloudevents-batch+json` they
    are CloudEvents; the header `Link` leads to the next page, if there is one.
    """
    query, run = call.query, run_of(call)
    page = await run.log_page(query.after, query.until, limit=query.limit, cursor=query.cursor)
    if query.sent:
        page = LogPage([one for one in page.events if one.type == clouds.SENT], page.next)
    if not cloudevents.wants(call.headers):
        return Answer(page)
    more = "&sent=true" if query.sent else ""
    ahead = f'<{where(run.id)}/log?limit={query.limit}{more}&cursor={page.next}>; rel="next"'
    headers = {} if page.next is None else {"Link": ahead}
    return Answer(page, form=lambda seen: _batch(run.key, seen, headers))


def _batch(key: str, page: LogPage, headers: dict[str, str]) -> Answer:
    return Answer([clouds.of_entry(key, one) for one in page.events], headers=headers, media=BATCH)


class LogEventQuery(Struct, frozen=True, forbid_unknown_fields=True):
    form: Literal["entry", "structured", "binary"] = "entry"


@routes(
    "GET",
    "/v1/executions/{id}/log/{version}",
    "read",
    query=LogEventQuery,
    answers={200: Entry},
    glance=glance.entry,
)
async def log_event(call: Call[LogEventQuery, Nothing]) -> Answer:
    """Get one event of the log.

    With `form=structured`, or `Accept: application/cloudevents+json`, as a CloudEvent: one that was sent as such leaves
    as it came, one of the engine's own is of the type `perdure.log.NAME`. With `form=binary` the attributes are in the
    headers.
    """
    run, version, form = run_of(call), call.path["version"], call.query.form
    if not is_version(version):
        await run.head()
        raise EventNotFound(f"{version[:80]!r} is no version: the versions of a log are 1, 2, 3, …", run.key)
    entry = await run.entry(int(version))
    if form == "binary":
        return Answer(entry, form=lambda seen: cloudevents.binary(clouds.of_entry(run.key, seen)))
    if form == "structured" or cloudevents.wants(call.headers):
        return Answer(entry, form=lambda seen: Answer(clouds.of_entry(run.key, seen), media=STRUCTURED))
    return Answer(entry)
