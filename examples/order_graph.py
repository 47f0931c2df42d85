"""An order as a node graph: a delay, two branches at once, a loop over the lines, and a person who has the last word.

To run it: python examples/order_graph.py [sqlite:///orders.db]
"""

import asyncio
import sys
from tempfile import TemporaryDirectory
from typing import Any

from perdure import ExecutionFailed, Graph, Perdure, action


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
    return f"{line} packed"


def node(id: str, kind: str, x: int, y: int, **data: Any) -> dict[str, Any]:
    """A node as an editor saves it; where it stands on the screen is the editor's own business."""
    return {"id": id, "type": kind, "position": {"x": x, "y": y}, "data": data}


def edge(source: str, target: str, handle: str | None = None) -> dict[str, Any]:
    return {"source": source, "target": target, "sourceHandle": handle}


ORDER: dict[str, Any] = {
    "graph": "order",
    "metadata": {"owner": "shop"},
    "nodes": [
        node("placed", "trigger", 0, 0, schema={"type": "object", "required": ["id", "cents", "lines"]}),
        # In real life a day in which a customer may change their mind.
        node("think", "delay", 0, 100, duration=300, unit="milliseconds"),
        node("both", "parallel", 0, 200),
        node("reserve", "action", -100, 300, action="reserve", **{"with": {"order": "${ .trigger.id }"}}),
        node(
            "charge",
            "action",
            100,
            300,
            action="charge",
            **{"with": {"order": "${ .trigger.id }", "cents": "${ .trigger.cents }"}},
        ),
        node("ready", "join", 0, 400),
        node("lines", "loop", 0, 500, items="${ .trigger.lines }", mode="parallel", **{"as": "line"}),
        node("pack", "action", 100, 500, action="pack", **{"with": {"line": "${ .line }"}}),
        node(
            "inspect",
            "person",
            0,
            600,
            task='${ "Inspect the parcel of " + .trigger.id }',
            form={"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
            timeout="3 days",
        ),
        node("fine", "condition", 0, 700, when=".outputs.inspect.ok"),
        node("shipped", "end", -100, 800, result="${ [.outputs.charge, .outputs.lines] }"),
        # A failed order undoes what it did: the money goes back, and so do the goods.
        node(
            "rejected", "end", 100, 800, status="failed", message='${ "the parcel of " + .trigger.id + " is damaged" }'
        ),
    ],
    "edges": [
        edge("placed", "think"),
        edge("think", "both"),
        edge("both", "reserve"),
        edge("both", "charge"),
        edge("reserve", "ready"),
        edge("charge", "ready"),
        edge("ready", "lines"),
        edge("lines", "pack", "each"),
        edge("pack", "lines"),
        edge("lines", "inspect", "done"),
        edge("inspect", "fine"),
        edge("inspect", "rejected", "timeout"),
        edge("fine", "shipped", "true"),
        edge("fine", "rejected", "false"),
    ],
}
order = Graph(ORDER)


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        print("A good parcel:")
        run = await app.start(order, {"id": "o-1", "cents": 4200, "lines": ["tea", "cups"]}, id="order-1")
        while not (tasks := (await run.state()).published.get("tasks")):
            await asyncio.sleep(0.1)
        print(f"  to do: {tasks[0]['task']}")
        await run.send("inspect", {"ok": True}, by="ada")
        print(f"  → {await run.result()}")

        print("A damaged one:")
        run = await app.start(order, {"id": "o-2", "cents": 900, "lines": ["glass"]}, id="order-2")
        await run.send("inspect", {"ok": False}, by="ada")  # early, and kept until somebody asks
        try:
            await run.result()
        except ExecutionFailed as error:
            print(f"  → {error}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/orders.db"))
