"""Telling others: how an execution ended, and what workflows emit; by signed POSTs of CloudEvents.

The end of an execution is told by an execution of the engine's own, which runs the one action below: its retries, its
takeover after a crash and its log are those of any. Rules kept here: the same message has the same id at every try, a
new time and so a new signature; anything but 2xx is a failure; whoever answers 410 wants no more of it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from perdure.core import signing
from perdure.core.callbacks import Callback, Ended, message_id, told
from perdure.core.cloudevents import CloudEvent, structured
from perdure.core.records import tenant_of
from perdure.core.retry import Retry
from perdure.errors import External, OutboundRefused, Permanent, UsageError
from perdure.flows.action import action
from perdure.flows.current import this_attempt
from perdure.ports import Store
from perdure.runtime.clock import Clock
from perdure.runtime.references import Resolves
from perdure.runtime.web.outbound import Outbound, Reply
from perdure.runtime.web.sinks import Sink

_RETRY = Retry(attempts=0, first="1s", factor=3, cap="1h", elapsed="24h")
_HEADERS = {"content-type": "application/cloudevents+json", "user-agent": "perdure"}


class House(Protocol):
    """What this needs of the application."""

    store: Store
    clock: Clock
    outbound: Outbound
    references: Resolves
    tenant: str


@action(name="perdure.callback", retries=_RETRY, timeout="60s", fatal=(OutboundRefused,))
async def call_back(callback: Callback, ended: Ended) -> int:
    """Tell how an execution ended; the status of the answer."""
    return await this_attempt("call_back()").client.call_back(callback, ended)


def check(house: House, callback: Callback, tenant: str) -> Callback:
    """Refuse a callback that cannot work, before anything is started."""
    house.outbound.check(callback.url)
    house.references.check(callback.secret, tenant)
    if not callback.events:
        raise UsageError("a callback without events would never be called: name some, or leave events out")
    return callback


async def tell(house: House, callback: Callback, ended: Ended) -> int:
    """One try. The result is read only now: it lies in the head of the execution, and is not kept a second time."""
    head = await house.store.head(ended.key)
    result = None if head is None or head.result is None else msgspec.json.decode(head.result)
    event = told(ended, result)
    secret = house.references.resolve(callback.secret, tenant_of(ended.key))
    return await _post(house, callback.url, secret, event.id, event)


def webhook_sink(house: House, url: str, *, secret: str) -> Sink:
    """A sink that posts what workflows emit, signed: `app.sink(webhook_sink(app, "https://…", secret="env:HOOK"))`."""
    house.outbound.check(url)
    house.references.check(secret, house.tenant)

    async def post(event: CloudEvent) -> None:
        found = house.references.resolve(secret, house.tenant)
        await _post(house, url, found, message_id("event", event.source, event.id), event)

    return post


async def _post(house: House, url: str, secret: str, id: str, event: CloudEvent) -> int:
    body = structured(event)
    signature = signing.sign([secret], id, house.clock.now() // 1_000_000, body)
    reply = await house.outbound.request("POST", url, _HEADERS, body, signature=signature)
    if 200 <= reply.status < 300:
        return reply.status
    place = url.partition("?")[0]  # what comes behind may be a credential
    if reply.status == 410:
        raise Permanent(f"{place} wants no more calls: it answered 410")
    raise External(f"{place} answered {reply.status}", retry_after=_retry_after(reply))


def _retry_after(reply: Reply) -> float | None:
    text = reply.header("retry-after")
    return min(float(text), 3600.0) if text.isascii() and text.isdecimal() and len(text) < 10 else None
