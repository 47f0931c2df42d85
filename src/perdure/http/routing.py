"""Events that name no execution: CloudEvents, for whoever listens."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from perdure.core.cloudevents import BATCH, STRUCTURED, Envelope
from perdure.errors import PerdureError
from perdure.http.cloudevents import Clouds, only
from perdure.http.problems import Problem, problem_of
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.runtime.callers.routing import Routed

routes = Routes("events")


class OneRouted(Struct, frozen=True, omit_defaults=True):
    """What has become of one event of a batch, or why it was none."""

    routed: Routed | None = None
    problem: Problem | None = None


@routes(
    "POST",
    "/v1/events",
    "send",
    body=dict[str, Any],
    answers={202: Routed | list[OneRouted]},
    read=only,
    media=[STRUCTURED, BATCH],
)
async def route(call: Call[Nothing, Clouds]) -> Answer:
    """Bring a CloudEvent to all executions that listen for it, and start those that begin with it.

    202 when it is durable with all of them; they are named. `heard` is false if no definition listens for such an event
    or no execution does now: then nothing was kept of it. A batch of up to 1,000 has such an answer for each. The same
    `source` and `id` again is the same event.
    """
    body = call.body
    if not body.batch:
        return Answer((await _routed(call, [body.one]))[0], 202)
    answers = iter(await _routed(call, [one for one in body.events if isinstance(one, Envelope)]))
    told = [OneRouted(next(answers)) if isinstance(one, Envelope) else _refused(one) for one in body.events]
    return Answer(told, 202)


async def _routed(call: Call[Nothing, Clouds], events: list[Envelope]) -> list[Routed]:
    return await call.app.route_all(events, by=call.caller.user, roles=call.caller.roles, tenant=call.tenant)


def _refused(error: PerdureError) -> OneRouted:
    return OneRouted(problem=problem_of(error, "/v1/events")[0])
