"""Calls to DynamoDB, each until it has an answer.

Rules kept here: what is throttled or meets another call on the same items is repeated after a random, growing pause; a
read that gets lost is repeated as it is. A transaction that gets lost is sent again with the token that makes it happen
once; if that does not end in a success, nobody knows, and so it is said. Every answer tells the time.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError

from perdure.errors import StoreError
from perdure.stores.dynamodb import trouble
from perdure.stores.dynamodb.address import Address
from perdure.stores.dynamodb.clock import Clock
from perdure.stores.dynamodb.items import Item, at, plain
from perdure.stores.ticker import host_clock

#: How often a call is made again before it is given up, and the first pause in seconds; the pauses double.
TRIES, PAUSE, SLOWEST = 9, 0.02, 1.0
#: How often a call that got lost is made again.
LOST_TRIES = 2
#: Calls under way at once.
AT_ONCE = 64
#: Items that are read in one call, at most.
PAGE = 100

_session = AioSession()  # reads the description of the service once for all


class Refused(Exception):
    """A condition did not hold; for a transaction, `reasons` says of which items."""

    def __init__(self, reasons: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__("a condition did not hold")
        self.reasons = reasons


class Wire:
    """The connection to one table, of one event loop."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self.clock = clock
        self._client: Any = None
        self._stack = AsyncExitStack()
        self._room = asyncio.Semaphore(AT_ONCE)

    async def open(self) -> None:
        config = AioConfig(
            retries={"total_max_attempts": 1},  # ours know which calls may be repeated
            connect_timeout=min(5.0, self.address.timeout),
            read_timeout=self.address.timeout,
            max_pool_connections=AT_ONCE,
            parameter_validation=False,
            tcp_keepalive=True,
        )
        made = _session.create_client(
            "dynamodb", region_name=self.address.region, endpoint_url=self.address.endpoint, config=config
        )
        try:
            self._client = await self._stack.enter_async_context(made)
        except trouble.FAILURES as error:
            raise trouble.meaning(error, self.address.shown) from error

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()

    async def read(self, verb: str, **parameters: Any) -> Any:
        return await self._call(verb, parameters, writes=False)

    async def write(self, verb: str, **parameters: Any) -> Any:
        """One item, or a table. Refused if its condition does not hold."""
        return await self._call(verb, parameters, writes=True)

    async def transact(self, ops: Sequence[dict[str, Any]]) -> None:
        """All of these, or none: then Refused says why."""
        parameters = {"TransactItems": list(ops), "ClientRequestToken": uuid.uuid4().hex}
        await self._call("transact_write_items", parameters, writes=True)

    async def _call(self, verb: str, parameters: dict[str, Any], writes: bool) -> Any:
        tries, losses, pause = 0, 0, PAUSE
        vanished: BaseException | None = None  # a try of which nobody knows what became
        while True:
            try:
                return await self._once(verb, parameters)
            except trouble.FAILURES as error:
                code = trouble.code_of(error)
                if isinstance(error, ClientError) and code in (trouble.REFUSED, trouble.CANCELLED):
                    if vanished is not None:
                        # It may be our own lost try that is in the way now.
                        raise trouble.unknown(vanished, self.address.shown) from error
                    raise Refused(trouble.reasons_of(error)) from error
                if trouble.lost(error):
                    losses += 1
                    vanished = error if writes else None
                    if losses <= LOST_TRIES:
                        await asyncio.sleep(random.uniform(0, pause))
                        continue
                tries += 1
                if not trouble.later(error) or tries >= TRIES:
                    if vanished is not None:
                        raise trouble.unknown(vanished, self.address.shown) from error
                    raise trouble.meaning(error, self.address.shown) from error
            except UnicodeError as error:
                raise trouble.meaning(error, self.address.shown) from error
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, SLOWEST)

    async def _once(self, verb: str, parameters: dict[str, Any]) -> Any:
        if self._client is None:
            raise StoreError("the store is not open: await store.open() first, and do not use it after close()")
        async with self._room:
            sent = host_clock()
            try:
                answer = await getattr(self._client, verb)(**parameters)
            except ClientError as error:
                self._observe(error.response, sent)
                raise
            self._observe(answer, sent)
            return answer

    def _observe(self, answer: Any, sent: int) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.clock.observe(headers.get("date"), sent, host_clock())

    # Reading items, always as they are at this moment

    async def get(self, pk: str, sk: str) -> Item | None:
        found = await self.read("get_item", TableName=self.address.table, Key=at(pk, sk), ConsistentRead=True)
        return plain(found["Item"]) if found.get("Item") else None

    async def get_many(self, places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Item]:
        """Those of these items that are there."""
        wanted = list(dict.fromkeys(places))
        if len(wanted) == 1:
            only = await self.get(*wanted[0])
            return {} if only is None else {wanted[0]: only}
        pages = [wanted[begin : begin + PAGE] for begin in range(0, len(wanted), PAGE)]
        found: dict[tuple[str, str], Item] = {}
        for items in await asyncio.gather(*map(self._get_page, pages)):
            found.update(((item["pk"], item["sk"]), item) for item in items)
        return found

    async def _get_page(self, places: Sequence[tuple[str, str]]) -> list[Item]:
        table = self.address.table
        rest: Any = {table: {"Keys": [at(*place) for place in places], "ConsistentRead": True}}
        found: list[Item] = []
        pause = PAUSE
        while rest:
            answer = await self.read("batch_get_item", RequestItems=rest)
            found += map(plain, answer["Responses"].get(table, ()))
            rest = answer.get("UnprocessedKeys")
            if rest:
                await asyncio.sleep(random.uniform(pause / 2, pause))
                pause = min(pause * 2, SLOWEST)
        return found

    async def pages(self, pk: str, name: str = "pk", **parts: Any) -> AsyncIterator[list[Item]]:
        """A partition, or a part of it, page by page; `low` and `high` are the ends of its sort key `by`."""
        by, low, high = parts.pop("by", "sk"), parts.pop("low", None), parts.pop("high", None)
        text, values = "#p = :p", {":p": {"S": pk}}
        names = {"#p": name}
        kind = "S" if by in ("sk", "ss") else "N"
        if low is not None or high is not None:
            names["#s"] = by
            for sign, value in ((":low", low), (":high", high)):
                if value is not None:
                    values[sign] = {kind: str(value)}
            if low is not None and high is not None:
                text += " AND #s BETWEEN :low AND :high"
            else:
                text += " AND #s >= :low" if high is None else " AND #s <= :high"
        parts.setdefault("ConsistentRead", "IndexName" not in parts or parts["IndexName"] == "mail")
        begin: dict[str, Any] = {}
        while True:
            answer = await self.read(
                "query",
                TableName=self.address.table,
                KeyConditionExpression=text,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=values,
                **parts,
                **begin,
            )
            yield list(map(plain, answer["Items"]))
            if not answer.get("LastEvaluatedKey"):
                return
            begin = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    async def all(self, pk: str, **parts: Any) -> list[Item]:
        return [item async for page in self.pages(pk, **parts) for item in page]

    async def some(self, pk: str, limit: int, **parts: Any) -> list[Item]:
        """At most so many."""
        found: list[Item] = []
        async for page in self.pages(pk, Limit=limit, **parts):
            found += page
            if len(found) >= limit:
                break
        return found[:limit]
