"""What stores compare here, rather than in their server, they compare by the same code."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import perdure.stores
from perdure.core.records import Query
from perdure.stores.memory import MemoryStore
from perdure.testing.contract import GRACE, ONE, TWO, begin

SOURCES = sorted(Path(perdure.stores.__path__[0]).rglob("*.py"))


@pytest.mark.parametrize("name", ["fits(head", "publishes("])
def test_a_search_is_compared_in_one_place(name: str) -> None:
    found = [
        path.name for path in SOURCES for word in (f"def {name}", f"def _{name}") if word in path.read_text("utf-8")
    ]
    assert found == ["fitting.py"]


def test_a_state_that_is_no_json_fails_no_search() -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.start([begin(ONE, state=b"?"), begin(TWO, state=b'{"step":1}')], GRACE)
        assert [head.key for head in await store.find(Query("acme", fields={"step": 1}))] == [TWO]

    asyncio.run(main())
