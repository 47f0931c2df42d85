from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pymongo import MongoClient

from perdure.core.records import Hint
from perdure.ports import Stream
from perdure.stores.mongodb.address import read_address
from perdure.streams import mongodb as module
from perdure.streams.mongodb import MongoStream, notes_of
from perdure.testing.contract import StreamContract
from perdure.testing.proxy import Proxy


class TestMongoStream(StreamContract):
    carries = False

    @pytest.fixture(autouse=True)
    def _address(self, emptied_mongodb: str) -> None:
        self.address = read_address(emptied_mongodb)

    async def make_streams(self, count: int) -> Sequence[Stream]:
        return [MongoStream(self.address.dsn, self.address.database) for _ in range(count)]
