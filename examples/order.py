"""An order: reserve, charge, wait for the warehouse, ship. When that fails, what was done is undone.

To run it: python examples/order.py [sqlite:///orders.db]
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
    patience: float = 2 * 24 * 3600  # seconds that the warehouse has


@dataclass
class Packed:
    parcel: str


class CardDeclined(Exception):
    pass


async def outside(what: str, key: str) -> None:
    """Stands for the warehouse, the bank and the carrier.

    An action runs at least once, so the outside may be asked twice for the same thing: after a crash nobody knows
    whether the first call arrived. The key is the same both times, and whoever gets it can tell.
    """
    print(f"  {what:<36} key {key}")


@action(retries=2, timeout="10s")
async def reserve(order: Order) -> str:
    await outside(f"reserve {order.item}", action.key)
    return f"shelf-{order.id}"


# What takes a reservation back. It gets the arguments of the action, and then its result.
@reserve.undo
async def put_back(order: Order, shelf: str) -> None:
    await outside(f"put {order.item} back to {shelf}", action.key)


# Three tries at most, but a declined card is not worth a second one. Being named in `fatal`, it reaches the workflow
# as CardDeclined; other errors of one's own arrive as ActionFailed.
@action(retries=2, timeout="10s", fatal=(CardDeclined,))
async def charge(order: Order) -> str:
    if order.cents > 100_000:
        raise CardDeclined(f"{order.cents} cents are too much for this card")
    await outside(f"charge {order.cents} cents", action.key)
    return f"receipt-{order.id}"


@charge.undo
async def refund(order: Order, receipt: str) -> None:
    await outside(f"refund {receipt}", action.key)


@action(retries=5, timeout="30s")
async def ship(order: Order, parcel: str) -> str:
    await outside(f"ship {parcel}", action.key)
    return f"tracking-{parcel}"


@action(retries=5)
async def tell(whom: str, text: str) -> None:
    await outside(f"tell the {whom}: {text}", action.key)


# `events` declares what may be sent to this workflow: a payload that does not fit is refused at the sender.
@workflow(events={"packed": Packed})
async def fulfil(order: Order) -> str:
    await reserve(order)
    receipt = await charge(order)
    workflow.publish(stage="paid", receipt=receipt)

    # A durable timer around an external event. Nothing stays in memory while it waits for long.
    async with asyncio.timeout(order.patience):
        packed = await event("packed", Packed)

    tracking = await ship(order, packed.parcel)
    # Plain asyncio: both run at the same time.
    async with asyncio.TaskGroup() as group:
        group.create_task(tell("customer", tracking))
        group.create_task(tell("warehouse", f"{packed.parcel} has left"))
    return tracking

    # When an error leaves this function, the undos of what succeeded run in reverse order; then the run has failed.


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        print("An order that goes well:")
        run = await app.start(fulfil, Order("1", "teapot", 2500), id="order-1")
        # The event's id makes it harmless to send it twice: the second time is recognised.
        await run.send("packed", Packed("parcel-1"), id="warehouse-1")
        print(f"  → {await run.result()}")

        print("An order that nobody packs:")
        run = await app.start(fulfil, Order("2", "kettle", 4000, patience=0.5), id="order-2")
        try:
            await run.result()
        except ExecutionFailed as error:
            print(f"  → failed with {error.type}, and everything was undone")

        print("An order that nobody can pay:")
        run = await app.start(fulfil, Order("3", "samovar", 400_000), id="order-3")
        try:
            await run.result()
        except ExecutionFailed as error:
            print(f"  → {error}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/orders.db"))
