"""Events: submitted, and durable before anything of them is processed."""

from __future__ import annotations

from perdure.errors import EventConflict
from perdure.http import forms
from perdure.http.problems import Refused
from perdure.http.route import Answer, Call, Routes
from perdure.http.verbs import from_idempotency_key, run_of, settled, where

routes = Routes("events")


@routes(
    "POST",
    "/v1/executions/{id}/events",
    "send",
    body=forms.EventIn,
    query=forms.HowToSend,
    answers={202: forms.Accepted, 200: forms.ExecutionOut},
)
async def submit(call: Call[forms.HowToSend, forms.EventIn]) -> Answer:
    """Send an event to an execution.

    202 when it is durable: it will be applied exactly once, whatever happens to this process. With `wait` 200 and where
    the execution stands if it comes to rest in time. With `validate=now` a machine that rests in a state which does not
    take the event refuses it at once. An `Idempotency-Key`, or an `id`, makes sending it again harmless.
    """
    body, run = call.body, run_of(call)
    chosen = body.id or from_idempotency_key(call, f"event {run.id}")
    try:
        sent = await run.send(
            body.name,
            body.payload,
            id=chosen,
            by=call.caller.user,
            roles=call.caller.roles,
            validate=call.query.validate,
        )
    except EventConflict as error:
        if body.id is None:
            detail = "this Idempotency-Key was used before, with another event: give another key"
            raise Refused(422, "Idempotency Key Reused", detail) from error
        raise
    place = {"Location": f"{where(run.id)}/events/{sent}"}
    if await settled(call, run, call.query.wait):
        return Answer(forms.shown(await run.head()), 200, place)
    return Answer(forms.Accepted(sent, run.id), 202, place)
