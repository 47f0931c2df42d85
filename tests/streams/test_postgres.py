from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure.ports import Stream
from perdure.stores.postgres.address import read_address
from perdure.streams.postgres import PostgresStream
from perdure.testing.contract import StreamContract


class TestPostgresStream(StreamContract):
    carries = False

    @pytest.fixture(autouse=True)
    def _address(self, postgres: str) -> None:
        self.address = read_address(postgres)

    async def make_streams(self, count: int) -> Sequence[Stream]:
        return [PostgresStream(self.address.dsn, self.address.channel) for _ in range(count)]
