"""An expense that people approve over HTTP: found in a list, claimed, refused where it does not fit, and completed.

Each person calls with a key of their own, which says who they are and which roles they have. A server would be started
with `perdure serve`; here it is called in the same process.

To run it: pip install 'perdure[http]', then python examples/person_approval.py [sqlite:///approvals.db]
"""

import asyncio
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from perdure import Escalate, Perdure, TaskExpired, person, role, workflow
from perdure.http.api import api
from perdure.http.auth import Authenticator
from perdure.http.keys import Keys


@dataclass
class Decision:
    """What the form asks for: its JSON Schema is part of the task, so that a page can draw it."""

    approved: bool
    comment: str = ""


@workflow
async def spend(who: str, cents: int, patience: float) -> str:
    try:
        decision = await person(
            "approve",
            form=Decision,
            title=f"{who} wants to spend {cents / 100:.2f}",
            assign=role("heads"),
            data={"who": who, "cents": cents},
            due=patience,
            escalate=[Escalate(patience / 2, to="dora")],
        )
    except TaskExpired:
        return "nobody decided"
    return f"{'yes' if decision.approved else 'no'}, {decision.comment}"


async def decide(call: httpx.AsyncClient, ann: dict[str, str], bob: dict[str, str]) -> None:
    """Two heads see the same task; one of them gets it."""
    [task] = (await call.get("/v1/tasks?mine=true", headers=ann)).json()["tasks"]
    print(f"  Ann finds {task['id']}: {task['title']}")
    place = f"/v1/tasks/{task['id']}"
    claims = [await call.post(f"{place}/claim", headers=who) for who in (ann, bob)]
    print(f"  Ann claims it: {claims[0].status_code}, Bob: {claims[1].status_code}, {claims[1].json()['detail']}")
    wrong = await call.post(f"{place}/complete", json={"value": {"approved": "perhaps"}}, headers=ann)
    print(f"  Ann is unsure: {wrong.status_code}, {show(wrong.json())}")
    right = await call.post(f"{place}/complete", json={"value": {"approved": True, "comment": "go"}}, headers=ann)
    print(f"  Ann decides: {right.status_code}, {right.json()['status']} by {right.json()['completed_by']}")


def show(problem: dict[str, Any]) -> str:
    return "; ".join(f"{one['where']}: {one['message']}" for one in problem["problems"])


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        keys = Keys(app)
        heads = [await keys.create(name, ["sender", "heads"]) for name in ("ann", "bob")]
        ann, bob = [{"Authorization": f"Bearer {made.secret}"} for made in heads]
        asks = Authenticator(keys=keys)
        transport = httpx.ASGITransport(app=api(app, asks))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as call:
            print("Somebody decides:")
            run = await app.start(spend, "Ada", 4200, 3600.0, id="spend-1")
            while not (await app.tasks.list(status="open")).tasks:
                await asyncio.sleep(0.05)
            await decide(call, ann, bob)
            print(f"  → {await run.result()}")

        print("Nobody does, and it is shown to Dora after a while:")
        run = await app.start(spend, "Bob", 9900, 1.0, id="spend-2")
        print(f"  → {await run.result()}")
        for entry in await app.get("spend-2.1").log():
            if entry.type == "StateChanged":
                print(f"  {entry.text}")
        await asks.close()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/approvals.db"))
