"""An approval as a state machine: roles, a reminder, an escalation. Days in real life, seconds here.

To run it: python examples/approval_machine.py [sqlite:///approvals.db]
"""

import asyncio
import sys
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

from perdure import Do, EventRefused, Machine, Perdure, State, To, action


@dataclass
class Expense:
    who: str
    cents: int
    comments: list[str] = field(default_factory=list)
    decided_by: str = ""


@action(retries=5)
async def tell(whom: str, text: str) -> None:
    print(f"  to {whom}: {text}")


def ask(whom: str) -> Do:
    return Do(tell, lambda expense, event: (whom, f"{expense.who} asks for {expense.cents} cents"))


def decided(expense: Expense, event: object) -> None:
    expense.decided_by = getattr(event, "by", "")


def commented(expense: Expense, event: object) -> None:
    expense.comments.append(getattr(event, "payload", ""))


approval = Machine(
    "approval",
    data=Expense,
    events={"comment": str},
    initial="draft",
    publish=["who"],
    on={"withdraw": To("withdrawn", roles=["clerk"])},
    states={
        "draft": State(on={"submit": To("asked", when=lambda expense, event: expense.cents > 0)}),
        "asked": State(
            initial="manager",
            on={
                "comment": To(set=commented),
                "reject": To("rejected", roles=["manager", "director"], set=decided),
            },
            states={
                "manager": State(
                    entry=[ask("the manager")],
                    after={"2s": "escalate"},
                    on={
                        "approve": To("approved", roles=["manager"], set=decided),
                        "escalate": "director",
                    },
                ),
                "director": State(
                    entry=[ask("the director")],
                    on={"approve": To("approved", roles=["director"], set=decided)},
                ),
            },
        ),
        "approved": State(final=True, entry=[Do(tell, lambda expense, event: (expense.who, "approved"))]),
        "rejected": State(final=True, entry=[Do(tell, lambda expense, event: (expense.who, "rejected"))]),
        "withdrawn": State(final=True),
    },
)


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        print("The manager answers:")
        run = await app.start(approval, Expense("Ada", 4200), id="expense-1")
        await run.send("submit", by="ada", roles=["clerk"])
        try:
            await run.send("approve", by="ada", roles=["clerk"])
        except EventRefused as error:
            print(f"  {error}")
        await run.send("approve", by="max", roles=["manager"])
        print(f"  → {await run.result()}")

        print("The manager does not answer, so the director is asked:")
        run = await app.start(approval, Expense("Bob", 9900), id="expense-2")
        await run.send("submit", by="bob", roles=["clerk"])
        await run.send("comment", "it is urgent", by="bob")
        while (await run.state()).current != "asked.director":
            await asyncio.sleep(0.1)
        await run.send("approve", by="max", roles=["manager"])  # too late: the log says so
        await run.send("approve", by="dora", roles=["director"])
        print(f"  → {await run.result()}")
        for entry in await run.log():
            if entry.type in ("StateChanged", "EventRejected"):
                print(f"  {entry.type:14} {entry.text}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/approvals.db"))
