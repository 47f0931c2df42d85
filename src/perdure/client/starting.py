"""What is to be started, as the API is told: the name of a workflow and its arguments as plain JSON.

Rules kept here: whoever has the code of a workflow at hand gives that, and its arguments are checked before they are
sent; a name may stand for anything that the server knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.codec import Codec
from perdure.errors import UsageError
from perdure.flows.workflow import Workflow


class Named(Struct, frozen=True):
    """A workflow of the server. Version and type of the result are known where its code is."""

    name: str
    args: list[Any]
    version: int | None = None
    returns: Codec[Any] | None = None


def named(workflow: Any, args: Sequence[Any]) -> Named:
    if isinstance(workflow, str):
        return Named(workflow, list(args))
    if not isinstance(workflow, Workflow):
        raise UsageError(f"{workflow!r} is no workflow: give a function with @workflow, or the name of a workflow")
    given = msgspec.json.decode(workflow.signature.encode(tuple(args), {}))
    return Named(workflow.name, given, workflow.version, workflow.signature.returns)
