from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from perdure.ports import Stream
from perdure.streams.redis import RedisStream
from perdure.testing.contract import StreamContract


def new_prefix() -> str:
    """Nobody else's."""
    return f"test-{uuid.uuid4().hex[:12]}"


class TestRedisStream(StreamContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_url: str) -> None:
        self.url = redis_url

    async def make_streams(self, count: int) -> Sequence[Stream]:
        prefix = new_prefix()
        return [RedisStream(self.url, prefix=prefix, block=1) for _ in range(count)]
