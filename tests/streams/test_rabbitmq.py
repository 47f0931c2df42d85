"""The port's contract over a real RabbitMQ, and what the adapter promises beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from perdure.core.records import Hint
from perdure.ports import Stream
from perdure.streams.rabbitmq import RabbitStream
from perdure.testing.contract.streams import StreamContract
from perdure.testing.servers.rabbitmq import new_prefix


class TestContract(StreamContract):
    """Every sentence of the port."""

    @pytest.fixture(autouse=True)
    def _at(self, rabbit_url: str) -> Iterator[None]:
        self.url = rabbit_url
        yield

    async def make_streams(self, count: int) -> Sequence[Stream]:
        prefix = new_prefix()
        return [RabbitStream(self.url, prefix=prefix) for _ in range(count)]
