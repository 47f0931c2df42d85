"""Events for an execution: submitted, and durable before anything of them is processed; and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from perdure.core.cloudevents import BATCH, STRUCTURED, Envelope
from perdure.errors import PerdureError
from perdure.http import cloudevents, forms
from perdure.http.cloudevents import MOST, Clouds
from perdure.http.problems import Problem, problem_of
from perdure.http.route import Answer, Call, Nothing, Routes
from perdure.http.verbs import from_idempotency_key, key_is_for, run_of, settled, where
from perdure.runtime.callers.sending import NewEvent
from perdure.runtime.callers.whereabouts import EventStatus
from perdure.runtime.run import Run

routes = Routes("events")
Several = Annotated[list[forms.EventIn], Meta(min_length=1, max_length=MOST)]


class Receipt(Struct, frozen=True, omit_defaults=True):
    """The id of an event that is durable, or why it was not accepted."""

    id: str | None = None
    problem: Problem | None = None


@routes(
    "POST",
    "/v1/executions/{id}/events",
    "send",
    body=forms.EventIn,
    query=forms.HowToSend,
    answers={202: forms.Accepted | list[Receipt], 200: forms.ExecutionOut},
    read=cloudevents.or_json(forms.EventIn),
    media=[STRUCTURED, BATCH],
    keyed=True,
)
async def submit(call: Call[forms.HowToSend, forms.EventIn | Clouds]) -> Answer:
    """Send an event to an execution.

    202 when it is durable: it will be applied exactly once, whatever happens to this process. With `wait` 200 and where
    the execution stands if it comes to rest in time. With `validate=now` a machine that rests in a state which does not
    take the event refuses it at once. An `Idempotency-Key`, or an `id`, makes sending it again harmless. A CloudEvent,
    structured or binary, is known by its `source` and `id`; a batch of them is answered like the route for batches.
    """
    body, run = call.body, run_of(call)
    if isinstance(body, Clouds):
        if body.batch:
            news = [_new(one) if isinstance(one, Envelope) else one for one in body.events]
            return await _send_all(call, run, news)
        new = _new(body.one)
    else:
        new = NewEvent(body.name, body.payload, body.id)
    sent = await _send(call, run, new)
    place = {"Location": f"{where(run.id)}/events/{sent}"}
    if (head := await settled(call, run, call.query.wait)) is not None:
        return Answer(await forms.shown(call.app, head), 200, place)
    return Answer(forms.Accepted(sent, run.id), 202, place)


async def _send(call: Call[forms.HowToSend, Any], run: Run[Any], new: NewEvent) -> str:
    with key_is_for(call, "event", new.id):
        return await run.send(
            new.name,
            new.payload,
            id=new.id or from_idempotency_key(call, f"event {run.id}"),
            by=call.caller.user,
            roles=call.caller.roles,
            validate=call.query.validate,
            attributes=new.attributes,
        )


def _new(event: Envelope) -> NewEvent:
    return NewEvent(event.type, event.data, event.event_id, event.attributes)


@routes("POST", "/v1/executions/{id}/events/batch", "send", body=Several, answers={202: list[Receipt]}, keyed=True)
async def submit_batch(call: Call[Nothing, list[forms.EventIn]]) -> Answer:
    """Send up to 1,000 events to an execution, in their order and in one write.

    Each has its own answer: its id once it is durable, or the problem that kept it out. With an `Idempotency-Key` those
    without an `id` are known by the key and their place, so the same batch can be sent again.
    """
    run = run_of(call)
    key = from_idempotency_key(call, f"batch {run.id}")
    ids = [one.id or (None if key is None else f"{key}-{place}") for place, one in enumerate(call.body)]
    news = [NewEvent(one.name, one.payload, id) for one, id in zip(call.body, ids, strict=True)]
    return await _send_all(call, run, news)


async def _send_all(call: Call[Any, Any], run: Run[Any], events: Sequence[NewEvent | PerdureError]) -> Answer:
    sound = [one for one in events if isinstance(one, NewEvent)]
    answers = iter(await run.send_all(sound, by=call.caller.user, roles=call.caller.roles))
    return Answer([_receipt(next(answers) if isinstance(one, NewEvent) else one, run) for one in events], 202)


def _receipt(answer: str | PerdureError, run: Run[Any]) -> Receipt:
    if isinstance(answer, str):
        return Receipt(answer)
    return Receipt(problem=problem_of(answer, f"{where(run.id)}/events")[0])


class EventQuery(Struct, frozen=True, forbid_unknown_fields=True):
    form: Literal["status", "structured", "binary"] = "status"


@routes("GET", "/v1/executions/{id}/events/{event_id}", "read", query=EventQuery, answers={200: EventStatus})
async def event_status(call: Call[EventQuery, Nothing]) -> Answer:
    """Tell what has become of an event: pending, processing, completed or failed.

    With `form=structured`, or `Accept: application/cloudevents+json`, it is the event itself, as a CloudEvent: one that
    came as such leaves with the attributes that it came with. With `form=binary` they are in the headers.
    """
    run, id, form = run_of(call), call.path["event_id"], call.query.form
    if form == "binary":
        return cloudevents.binary(await run.cloudevent(id))
    if form == "structured" or cloudevents.wants(call.headers):
        return Answer(await run.cloudevent(id), media=STRUCTURED)
    return Answer(await run.event(id))
