"""An approval: ask, remind every now and then, give up after a while. Hours in real life, seconds here.

To run it: python examples/approval.py [sqlite:///approvals.db]
"""

import asyncio
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Literal

from perdure import Perdure, action, event, workflow


@dataclass
class Expense:
    who: str
    cents: int
    remind: float = 24 * 3600  # seconds between two reminders
    patience: float = 7 * 24 * 3600  # seconds until it is declined by itself


@dataclass
class Decision:
    answer: Literal["yes", "no"]
    comment: str = ""


@action(retries=5)
async def tell(whom: str, text: str) -> None:
    print(f"  to {whom}: {text}")


async def decision(expense: Expense) -> Decision:
    """Wait for the event; each time the inner timeout passes, send a reminder and wait on."""
    while True:
        try:
            async with asyncio.timeout(expense.remind):
                return await event("decision", Decision)
        except TimeoutError:
            await tell("the boss", f"{expense.who} still waits for {expense.cents} cents")


@workflow(events={"decision": Decision})
async def approve(expense: Expense) -> str:
    await tell("the boss", f"{expense.who} asks for {expense.cents} cents")
    # What is published can be searched for: app.find(stage="asked").
    workflow.publish(stage="asked", who=expense.who)
    try:
        # The outer timeout is as durable as the inner one. Both survive a restart of the process.
        async with asyncio.timeout(expense.patience):
            decided = await decision(expense)
    except TimeoutError:
        await tell(expense.who, "nobody answered")
        return "timed out"
    workflow.publish(stage="decided", answer=decided.answer)
    await tell(expense.who, f"{decided.answer} {decided.comment}".strip())
    return decided.answer


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        print("Somebody answers after a reminder or two:")
        run = await app.start(approve, Expense("Ada", 4200, remind=0.4, patience=30), id="expense-1")
        await asyncio.sleep(1)
        print(f"  published: {(await run.state()).published}")
        await run.send("decision", Decision("yes", "well spent"), id="decision-1", by="boss@example.org")
        print(f"  → {await run.result()}")

        print("Nobody answers:")
        run = await app.start(approve, Expense("Bob", 9900, remind=0.4, patience=1), id="expense-2")
        print(f"  → {await run.result()}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/approvals.db"))
