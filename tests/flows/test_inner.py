"""Workflows of the engine's own: run by every worker, started by nobody's name."""

from __future__ import annotations

import asyncio

import pytest

from perdure.errors import NotRegistered
from perdure.flows.inner import inner
from perdure.flows.registry import registry
from perdure.runtime.app import Perdure


@inner("sample:")
async def sample(number: int) -> int:
    return number


def test_a_worker_serves_it_and_finds_it_by_its_definition() -> None:
    assert "sample:@1" in registry.served()
    assert registry.find("sample:@1") is sample


def test_nobody_is_shown_it() -> None:
    assert "sample:@1" not in registry.definitions()
    assert sample not in list(registry.workflows())


def test_nobody_starts_it_by_its_name() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            with pytest.raises(NotRegistered):
                await app.start_by_name("sample:", [1])

    asyncio.run(main())
