"""An order as a document of the Serverless Workflow DSL: a wait, two branches, a loop with retries, an event.

To run it: python examples/order_document.py [sqlite:///orders.db]
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import ExecutionFailed, Perdure, action

ORDER = Path(__file__).with_suffix(".yaml")


@action(retries=3)
async def reserve(order: str) -> str:
    print(f"  reserve {order}")
    return f"shelf-{order}"


@reserve.undo
async def release(order: str, shelf: str) -> None:
    print(f"  release {shelf}")


@action(retries=3)
async def charge(order: str, cents: int) -> str:
    print(f"  charge {cents} cents for {order}")
    return f"receipt-{order}"


@charge.undo
async def refund(order: str, cents: int, receipt: str) -> None:
    print(f"  refund {receipt}")


@action
async def pack(line: str) -> str:
    if line == "samovar":
        raise LookupError("there is none left")
    return f"{line} packed"


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        published = await app.definitions.publish(ORDER.read_text())
        print(f"{published.name}@{published.version} is published")

        print("A good parcel:")
        run = await app.start("shop.order", {"id": "o-1", "cents": 4200, "lines": ["tea", "samovar"]}, id="order-1")
        await run.send("shop.inspected", {"order": "o-1", "ok": True})  # early, and kept until it is asked for
        print(f"  → {await run.result()}")

        print("A damaged one:")
        run = await app.start("shop.order", {"id": "o-2", "cents": 900, "lines": ["glass"]}, id="order-2")
        while "/do/3/inspect" not in (await run.state()).nodes:
            await asyncio.sleep(0.1)
        await run.send("shop.inspected", {"order": "o-7", "ok": True})  # of another order: not meant here
        await run.send("shop.inspected", {"order": "o-2", "ok": False})
        try:
            await run.result()
        except ExecutionFailed as error:
            print(f"  → {error.type}: {error}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/orders.db"))
