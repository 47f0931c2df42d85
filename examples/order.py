"""An order: charge and reserve side by side, wait for the warehouse, ship; undo what was done when that fails.

    python examples/order.py [sqlite:///orders.db]
"""

import asyncio
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from perdure import ExecutionFailed, Perdure, action, event, workflow


@dataclass
class Order:
    id: str
    item: str
    cents: int


@dataclass
class Packed:
    parcel: str


class CardDeclined(Exception):
    pass


async def outside(what: str, key: str) -> None:
    """Stands for the bank, the warehouse and the carrier.

    An action runs at least once, so the outside world may be asked twice for the same thing: after a crash nobody
    knows whether the first call arrived. The key is the same both times; whoever gets it can tell.
    """
    print(f"  {what:<40} key {key}")


# Three tries at most. A declined card is not worth a second one (fatal), and the workflow may catch it as itself.
@action(retries=2, timeout="10s", fatal=(CardDeclined,))
async def charge(order: Order) -> str:
    if order.cents > 100_000:
        raise CardDeclined(f"{order.cents} cents are too much for this card")
    await outside(f"charge {order.cents} cents", action.key)
    return f"receipt-{order.id}"


# What takes a charge back. It gets the arguments of the action, and then its result.
@charge.undo
async def refund(order: Order, receipt: str) -> None:
    await outside(f"refund {receipt}", action.key)


@action(retries=2, timeout="10s")
async def reserve(order: Order) -> str:
    await outside(f"reserve {order.item}", action.key)
    return f"shelf-{len(order.item)}"


@reserve.undo
async def put_back(order: Order, shelf: str) -> None:
    await outside(f"put {order.item} back to {shelf}", action.key)


@action(retries=5, timeout="30s")
async def ship(order: Order, parcel: str) -> str:
    await outside(f"ship {parcel}", action.key)
    return f"tracking-{parcel}"


# `events` declares what may be sent to this workflow: a payload that does not fit is refused at the sender.
@workflow(events={"packed": Packed})
async def fulfil(order: Order, patience: float = 2 * 24 * 3600) -> str:
    # Plain asyncio. Each result is in the log before anything that depends on it begins.
    async with asyncio.TaskGroup() as group:
        receipt = group.create_task(charge(order))
        group.create_task(reserve(order))
    workflow.publish(stage="paid", receipt=receipt.result())

    # A durable timer around an external event. Nothing is in memory while it waits, if it waits long.
    async with asyncio.timeout(patience):
        packed = await event("packed", Packed)

    return await ship(order, packed.parcel)

    # When an error leaves this function, the undos of what succeeded run in reverse order; then the run has failed.


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        print("An order that goes well:")
        run = await app.start(fulfil, Order("1", "teapot", 2500), id="order-1")
        # The event's id makes sending it twice harmless: the second time is recognised.
        await run.send("packed", Packed("parcel-1"), id="warehouse-1")
        print(f"  → {await run.result()}")

        print("An order that nobody packs:")
        run = await app.start(fulfil, Order("2", "kettle", 4000), 0.5, id="order-2")
        try:
            await run.result()
        except ExecutionFailed as error:
            print(f"  → {error.type}: everything was undone")

        print("An order that nobody can pay:")
        run = await app.start(fulfil, Order("3", "samovar", 400_000), id="order-3")
        try:
            await run.result()
        except ExecutionFailed as error:
            print(f"  → {error}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/orders.db"))
