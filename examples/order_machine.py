"""An order as a state machine that is data: examples/order_machine.yaml is published, then run by name.

To run it: python examples/order_machine.py [sqlite:///orders.db]
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Perdure, action

DEFINITION = Path(__file__).with_suffix(".yaml")


@action
async def check(items: list[str]) -> None:
    print(f"  check {', '.join(items)}")


@action
async def reserve(items: list[str]) -> str:
    await asyncio.sleep(0.05)
    print(f"  reserve {', '.join(items)}")
    return "shelf 4"


@reserve.undo
async def put_back(items: list[str], shelf: str) -> None:
    print(f"  put {', '.join(items)} back on {shelf}")


class CardDeclined(Exception):
    """The bank said no."""


@action(fatal=(CardDeclined,))
async def charge(cents: int, card: str) -> str:
    if card == "stolen":
        raise CardDeclined("the card was declined")
    print(f"  charge {cents}")
    return f"receipt-{cents}"


@charge.undo
async def refund(cents: int, card: str, receipt: str) -> None:
    print(f"  refund {receipt}")


@action
async def confirm(customer: str, receipt: str) -> None:
    print(f"  tell {customer}: {receipt}")


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        made = await app.definitions.publish(DEFINITION.read_text(), by="example")
        print(f"{made.name}@{made.version} is published")

        print("All goes well:")
        run = await app.start("order", {"customer": "Ada", "items": ["tea"], "cents": 450}, id="order-1")
        await run.send("add", {"item": "milk", "cents": 120})
        await run.send("pay", {"card": "4111"})
        await run.send("ship", "parcel-7", by="walter", roles=["warehouse"])
        await run.send("deliver")
        print(f"  → {await run.result()}")

        print("The bank says no:")
        run = await app.start("order", {"customer": "Bob", "items": ["samovar"], "cents": 9900}, id="order-2")
        await run.send("pay", {"card": "stolen"})
        print(f"  → {await run.result()}")
        print(f"  {(await run.state()).current}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/orders.db"))
