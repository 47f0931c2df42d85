"""The engine's own actions that call others over HTTP, for documents that are data.

Rules kept here: a call that may have reached the other side is made once, for only the document knows whether it may be
repeated; what certainly never left is tried again a few times. After a crash of the worker a call is made again: with
the same Idempotency-Key, unless its method changes nothing.
"""

from __future__ import annotations

from typing import Any

from perdure.core.calls import HttpCall, OpenApiCall
from perdure.core.retry import Retry
from perdure.errors import Permanent
from perdure.flows.action import action
from perdure.flows.current import this_attempt

#: Only what is External is tried again, and only what never left is External here.
_RETRY = Retry(attempts=3, first="0.2s", factor=4, cap="2s")


@action(name="perdure.http", retries=_RETRY, errors={Exception: Permanent})
async def http(call: HttpCall) -> Any:
    """Call an address over HTTP."""
    current = this_attempt("call: http")
    return await current.client.call_http(call, current)


@action(name="perdure.openapi", retries=_RETRY, errors={Exception: Permanent})
async def openapi(call: OpenApiCall) -> Any:
    """Call an operation of an API that is described by OpenAPI."""
    current = this_attempt("call: openapi")
    return await current.client.call_openapi(call, current)
