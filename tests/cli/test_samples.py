"""Samples of arguments: whatever a workflow takes, the lines to try it with are taken."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from perdure import workflow
from perdure.cli.samples import curls


class Colour(Enum):
    RED = "red"


class Tree(msgspec.Struct):
    name: str
    children: list[Tree]
    other: Tree | None = None


@pytest.mark.parametrize(
    "kind",
    [
        str,
        int,
        float,
        bool,
        None,
        timedelta,
        Decimal,
        UUID,
        Colour,
        Tree,
        list[int],
        tuple[int, str],
        dict[str, int],
        int | None,
        Literal["a", "b"],
        Annotated[int, Meta(ge=5)],
        Any,
    ],
)
def test_a_sample_is_taken(kind: Any) -> None:
    async def fn(given: Any) -> None: ...

    fn.__annotations__["given"] = kind
    sampled = workflow(name="cli-sampled")(fn)
    start, *_ = curls("http://x", [sampled])
    body = json.loads(shlex.split(start)[-1])
    assert body["workflow"] == "cli-sampled"
    sampled.signature.decode(msgspec.json.encode(body["args"]))


def test_where_no_sample_comes_to_mind_it_is_shown_what_there_is() -> None:
    @workflow(name="cli-picky")
    async def picky(given: Annotated[str, Meta(pattern="^[0-9]{17}$")]) -> None: ...

    lines = curls("http://x", [picky])
    assert len(lines) == 3 and "cli-picky" not in lines[0]
