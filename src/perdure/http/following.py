"""Logs that are followed while they grow, as server-sent events.

The id of each event is its version in the log, so whoever was cut off goes on where it was: browsers send the last id
by themselves. A comment goes out now and then, so that neither side takes silence for death.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from perdure.core.entries import Entry
from perdure.core.records import ENDED
from perdure.http import cloudevents, forms
from perdure.http.leaving import Leaving
from perdure.http.problems import Refused
from perdure.http.route import FLOW, Answer, Call, Flow, Nothing, Routes
from perdure.http.verbs import is_version, run_of
from perdure.runtime.app import Perdure
from perdure.runtime.callers import clouds
from perdure.runtime.run import Run

routes = Routes("executions")
#: Seconds of silence.
SILENCE = 15.0
_encode = msgspec.json.Encoder().encode


class StreamQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0)] | None = None
    form: Literal["entry", "structured"] = "entry"


@routes("GET", "/v1/executions/{id}/stream", "read", query=StreamQuery, answers={200: Flow})
async def stream(call: Call[StreamQuery, Nothing]) -> Answer:
    """Follow the log as it grows, as server-sent events, until the execution has ended.

    It begins after the version that `after` or the header `Last-Event-ID` names. The last event is called `end` and
    tells how the execution has ended; a stream that ends without it was cut off and can be asked for again. With
    `form=structured`, or if `Accept` names `application/cloudevents+json` as well, the data of all others are
    CloudEvents. 429 when the tenant follows too many logs already.
    """
    run, after = run_of(call), _after(call)
    await run.head()
    leave = call.site.seats.take(call.tenant)
    cloud = call.query.form == "structured" or cloudevents.wants(call.headers)
    told = _told(call.app, run, after, call.leaving, cloud)
    return Answer(told, headers={"Cache-Control": "no-store"}, media=FLOW, over=leave)


def _after(call: Call[StreamQuery, Nothing]) -> int:
    if call.query.after is not None:
        return call.query.after
    last = call.headers.get("last-event-id", "0")
    if not is_version(last):
        raise Refused(400, "Bad Event Id", f"Last-Event-ID is a version, not {last!r}")
    return int(last)


async def _told(app: Perdure, run: Run[Any], after: int, leaving: Leaving, cloud: bool) -> AsyncIterator[bytes]:
    last = after
    async with aclosing(_with_silence(run.follow(after), leaving)) as entries:
        async for entry in entries:
            if entry is None:
                yield b": nothing new\n\n"
            else:
                last = entry.version
                yield _event(str(last), entry.type, clouds.of_entry(run.key, entry) if cloud else entry)
    head = await run.head()
    if head.status in ENDED and head.version == last:
        yield _event(str(last), "end", await forms.shown(app, head))


async def _with_silence(entries: AsyncIterator[Entry], leaving: Leaving) -> AsyncGenerator[Entry | None, None]:
    """The entries, and None whenever none has come for a while; until the server ends."""
    following = asyncio.ensure_future(anext(entries, None))
    try:
        while True:
            both: list[asyncio.Future[Any]] = [following, leaving.future()]
            await asyncio.wait(both, timeout=SILENCE, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                if leaving.future().done():
                    return
                yield None
                continue
            entry = following.result()
            if entry is None:
                return
            yield entry
            following = asyncio.ensure_future(anext(entries, None))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _event(id: str, name: str, data: Any) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id.encode(), name.encode(), _encode(data))
