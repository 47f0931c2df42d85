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
from perdure.core.cloudevents import STRUCTURED, CloudEvent, of
from perdure.core.records import tenant_of
from perdure.core.retry import Retry
from perdure.errors import External, OutboundRefused, Permanent, SecretNotFound, Transient, UsageError
from perdure.flows.action import action
from perdure.flows.current import this_attempt
from perdure.flows.secret import Secret
from perdure.ports import Store
from perdure.runtime.clock import Clock
from perdure.runtime.secrets.sources import Secrets
from perdure.runtime.web.outbound import Outbound, Reply
from perdure.runtime.web.sinks import Sink

_RETRY = Retry(attempts=0, first="1s", factor=3, cap="1h", elapsed="24h")
#: Seconds: whoever asks for a longer pause by Retry-After is asked again after this one.
LONGEST_PAUSE = 3600.0
_HEADERS = {"content-type": STRUCTURED, "user-agent": "perdure"}


class House(Protocol):
    """What this needs of the application."""

    store: Store
    clock: Clock
    outbound: Outbound
    secrets: Secrets
    tenant: str


@action(name="perdure.callback", retries=_RETRY, timeout="60s", fatal=(OutboundRefused,))
async def call_back(callback: Callback, ended: Ended) -> int:
    """Tell how an execution ended; the status of the answer."""
    return await this_attempt("call_back()").client.call_back(callback, ended)


def check(house: House, callback: Callback) -> Callback:
    """Refuse a callback that cannot work, before anything is started."""
    house.outbound.check(callback.url)
    Secret(callback.secret)  # refuses what is no reference; whether it leads anywhere is seen at the call
    if not callback.events:
        raise UsageError("a callback without events would never be called: name some, or leave events out")
    return callback


async def tell(house: House, callback: Callback, ended: Ended) -> int:
    """One try. The result is read only now: it lies in the head of the execution, and is not kept a second time."""
    head = await house.store.head(ended.key)
    result = None if head is None or head.result is None else msgspec.json.decode(head.result)
    event = told(ended, result)
    try:
        secret = await house.secrets.resolve(tenant_of(ended.key), callback.secret)
    except SecretNotFound as error:
        # Nobody waits for this action, so it can wait for whoever puts the secret there.
        raise Transient(str(error)) from error
    return await _post(house, callback.url, secret, event.id, event)


def webhook_sink(house: House, url: str, *, secret: str) -> Sink:
    """A sink that posts what workflows emit, signed: `app.sink(webhook_sink(app, url, secret="secret://hook"))`."""
    house.outbound.check(url)
    reference = Secret(secret).reference

    async def post(event: CloudEvent) -> None:
        found = await house.secrets.resolve(house.tenant, reference)
        await _post(house, url, found, message_id("event", event.source, event.id), event)

    return post


async def _post(house: House, url: str, secret: str, id: str, event: CloudEvent) -> int:
    body = msgspec.json.encode(of(event).document())
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
    return min(float(text), LONGEST_PAUSE) if text.isascii() and text.isdecimal() and len(text) < 10 else None
