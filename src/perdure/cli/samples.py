"""Requests to try an API with, made for the workflows that there are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from perdure.flows.samples import arguments
from perdure.flows.workflow import Workflow

_ID = "try-1"


def curls(address: str, workflows: Iterable[Workflow[..., Any]]) -> list[str]:
    """Three lines for a shell: start something, get its result, list what there is."""
    listing = f"curl -s {address}/v1/executions"
    for one in workflows:
        args = arguments(one)
        if args is not None:
            body = shlex.quote(json.dumps({"workflow": one.name, "args": args, "id": _ID}))
            return [
                f"curl -s {address}/v1/executions -H 'content-type: application/json' -d {body}",
                f"curl -s '{address}/v1/executions/{_ID}/result?wait=5s'",
                listing,
            ]
    return [listing, f"curl -s {address}/v1/definitions", f"curl -s {address}/health/ready"]
