"""The table itself: made if it is not there, asked whether it can keep what it promises, and never used by a release
that is older than what is in it.

Many may open it at once: one makes it and the others wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError

from perdure.errors import SettingsError, StoreError, StoreOutdated
from perdure.stores.dynamodb import trouble
from perdure.stores.dynamodb.items import DUE, MAIL, STATE, put
from perdure.stores.dynamodb.table import Table
from perdure.stores.dynamodb.wire import Refused

#: What this release writes. A table of a higher number is refused.
LAYOUT = 1
#: Seconds that a new table may take.
PATIENCE = 120.0

log = logging.getLogger("perdure.stores")

_KINDS = {"pk": "S", "sk": "S", "dp": "S", "due": "N", "sp": "S", "ss": "S", "seq": "N"}
_INDEXES = {DUE: ("dp", "due"), STATE: ("sp", "ss")}


async def prepare(table: Table) -> None:
    found = await _described(table)
    if found is None:
        if not table.address.create:
            raise StoreOutdated(
                f"{table.address.shown}: the table is not there; run `perdure migrate` with an address that does not"
                " say create=no"
            )
        await _create(table)
    if found is None or found["TableStatus"] == "CREATING":  # by us, or by somebody who was sooner
        found = await _made(table)
    _refuse_others(table, found)
    doubt(table, [*doubts(found), *await _expiry(table)])
    await _number(table)


async def number(table: Table) -> int:
    """The number of the layout that the table has; 0 for none."""
    described = await _described(table)
    if described is None or described["TableStatus"] == "CREATING":
        return 0
    found = await table.wire.get("R#layout", "layout")
    return 0 if found is None else int(found["number"])


async def _described(table: Table) -> dict[str, Any] | None:
    try:
        answer = await table.wire.read("describe_table", TableName=table.name)
    except StoreOutdated as error:
        if isinstance(error.__cause__, ClientError):
            return None
        raise
    found: dict[str, Any] = answer["Table"]
    return found


def _keys(hash: str, range: str) -> list[dict[str, str]]:
    return [{"AttributeName": hash, "KeyType": "HASH"}, {"AttributeName": range, "KeyType": "RANGE"}]


async def _create(table: Table) -> None:
    only_keys = {"ProjectionType": "KEYS_ONLY"}
    try:
        await table.wire.write(
            "create_table",
            TableName=table.name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": n, "AttributeType": kind} for n, kind in _KINDS.items()],
            KeySchema=_keys("pk", "sk"),
            LocalSecondaryIndexes=[
                {"IndexName": MAIL, "KeySchema": _keys("pk", "seq"), "Projection": {"ProjectionType": "ALL"}}
            ],
            GlobalSecondaryIndexes=[
                {"IndexName": name, "KeySchema": _keys(*keys), "Projection": only_keys}
                for name, keys in _INDEXES.items()
            ],
        )
    except StoreError as error:
        if trouble.code_of(error.__cause__ or error) != "ResourceInUseException":
            raise


async def _made(table: Table) -> dict[str, Any]:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while asyncio.get_running_loop().time() < deadline:
        found = await _described(table)
        if found is not None and found["TableStatus"] != "CREATING":
            return found
        await asyncio.sleep(random.uniform(0.05, 0.5))
    raise StoreError(f"{table.address.shown}: the table was not ready after {PATIENCE:.0f} s; try again")


def _refuse_others(table: Table, found: dict[str, Any]) -> None:
    schema = {one["AttributeName"]: one["KeyType"] for one in found["KeySchema"]}
    indexes = {one["IndexName"] for kind in ("Global", "Local") for one in found.get(f"{kind}SecondaryIndexes", ())}
    if schema != {"pk": "HASH", "sk": "RANGE"} or not {DUE, STATE, MAIL} <= indexes:
        text = "this table is of something else; name another, it is made if need be"
        raise SettingsError(f"{table.address.shown}: {text}")


def doubts(found: dict[str, Any]) -> list[str]:
    """Why a table cannot keep what it promises."""
    told = []
    if found.get("Replicas"):
        told.append(
            "it is a global table: regions write without asking each other and the last one wins, so two workers could"
            " hold one execution and accepted work could be lost"
        )
    if ":ddblocal:" in found.get("TableArn", ""):
        told.append("it is in DynamoDB Local, which may forget what it has confirmed when it ends: that is for tests")
    return told


async def _expiry(table: Table) -> list[str]:
    try:
        answer = await table.wire.read("describe_time_to_live", TableName=table.name)
    except StoreError:
        return []  # it may not be asked
    if answer.get("TimeToLiveDescription", {}).get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return ["a time to live is set on it: DynamoDB would delete what must stay for ever"]
    return []


def doubt(table: Table, why: Sequence[str]) -> None:
    """Refuse the table, or say loudly that somebody insists on it."""
    text = "; ".join(why)
    if why and not table.address.unsafe:
        raise SettingsError(f"{table.address.shown}: {text}; use another table, or add unsafe=yes to the address")
    if why:
        log.warning("%s: %s", table.address.shown, text)


async def _number(table: Table) -> None:
    item = {"pk": "R#layout", "sk": "layout", "number": LAYOUT, "shards": table.address.shards}
    try:
        await table.wire.write("put_item", **put(table.name, item)["Put"])
    except Refused:
        there = await table.wire.get("R#layout", "layout")
        assert there is not None
        if there["number"] > LAYOUT:
            raise StoreOutdated(
                f"{table.address.shown}: the table has layout {there['number']} and this release knows {LAYOUT};"
                " use the newer release"
            ) from None
        table.shards = there["shards"]
