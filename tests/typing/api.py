"""What mypy and pyright infer for an author's code. Checked by both, never run.

An ignore comment marks what must be an error: strict checkers complain if it is not one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

from perdure import Do, Document, Graph, Machine, Perdure, Run, State, To, action, event, workflow


@dataclass
class Order:
    id: int


@dataclass
class Receipt:
    amount: float


@dataclass
class Packed:
    tracking: str


@dataclass
class Lost:
    where: str


@action(retries=5, timeout="30s")
async def charge(order: Order, express: bool = False) -> Receipt:
    return Receipt(1.0)


@charge.undo
async def refund(order: Order, express: bool, receipt: Receipt) -> None: ...


@action
def resize(path: str) -> int:
    return len(path)


@workflow
async def typed_child(n: int) -> str:
    return str(n)


@workflow
async def typed_fulfil(order: Order) -> str:
    assert_type(await charge(order), Receipt)
    assert_type(await charge(order, express=True), Receipt)
    assert_type(await resize("a"), int)
    assert_type(await typed_child(1), str)
    assert_type(await asyncio.wait_for(charge(order), 5), Receipt)
    assert_type(await asyncio.gather(charge(order), resize("a")), tuple[Receipt, int])
    task = asyncio.create_task(charge(order))
    assert_type(await asyncio.shield(task), Receipt)
    async with asyncio.TaskGroup() as group:
        grouped = group.create_task(resize("a"))
    assert_type(grouped.result(), int)
    assert_type(await event("packed", Packed), Packed)
    assert_type(await event("anything"), Any)
    assert_type(await event(("packed", Packed), ("lost", Lost)), Packed | Lost)
    assert_type(await charge.options(timeout=5)(order), Receipt)
    assert_type(action.key, str)
    assert_type(workflow.record(lambda: 3), int)
    assert_type(workflow.patched("a"), bool)
    assert_type(await workflow.start(typed_child, 1), str)
    await charge("order")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await typed_child("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return ""


async def client(app: Perdure) -> None:
    run = await app.start(typed_fulfil, Order(1), id="order-1")
    assert_type(run, Run[str])
    assert_type(await run.result(), str)
    await app.start(typed_fulfil, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(app.run(typed_child, 3), str)
    assert_type(await app.start("order", {"item": "tea"}, version=2), Run[Any])
    await app.start(typed_child, 1, version=2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


door = Machine("door", initial="shut", states={"shut": State(on={"push": "open"}), "open": State(final=True)})
typed = Machine(
    "typed",
    data=Order,
    initial="new",
    output=lambda order: order.id,
    states={
        "new": State(on={"pay": To("paid", do=[Do(charge)], when=lambda order, event: order.id > 0)}),
        "paid": State(final=True),
    },
)


async def starts_machines(app: Perdure) -> None:
    assert_type(door, Machine[Any])
    assert_type(typed, Machine[Order])
    await app.start(door)
    await app.start(door, {"color": "red"})
    await app.start(typed, Order(1))
    await app.start(typed, 5)  # type: ignore[arg-type]
    run = app.get("typed-1")
    await run.send("pay", by="ann", roles=["clerk"], validate="now")


async def typed_data(app: Perdure, graph: Graph, document: Document) -> None:
    assert_type(await app.start(graph, {"n": 1}), Run[Any])
    assert_type(await app.start(document, {"n": 1}), Run[Any])
