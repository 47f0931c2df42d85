"""A webhook: a signed call of a shop starts a workflow; the same call again is refused; the shop is told of the end.

To run it: python examples/webhook_start.py [sqlite:///hooks.db]
"""

import asyncio
import os
import sys
from tempfile import TemporaryDirectory

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure import Callback, HookSend, HookStart, Perdure, action, event, workflow
from perdure.core import signing
from perdure.http.api import api
from perdure.http.auth import Authenticator, Open

# In real life a secret comes from whatever runs the process. What the store keeps of it is its name, `secret://shop`.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
os.environ["PERDURE_SECRET_SHOP"] = SECRET


@action
async def pack(item: str) -> str:
    print(f"  packing {item}")
    return f"parcel-{item}"


@workflow(events={"paid": int})
async def order(order: dict[str, str]) -> str:
    await event("paid", int)
    return await pack(order["item"])


class Shop:
    """The other side: it calls our webhooks, and has one of its own."""

    def __init__(self, app: Perdure, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client
        self.told = asyncio.Event()

    async def call(self, hook: str, id: str, body: bytes, secret: str = SECRET) -> None:
        await self.post(hook, signing.sign([secret], id, self.app.clock.now() // 1_000_000, body), body)

    async def post(self, hook: str, headers: dict[str, str], body: bytes) -> None:
        id = headers["webhook-id"]
        answer = await self.client.post(f"/v1/hooks/default/{hook}", content=body, headers=headers)
        print(f"  {hook} {id}: {answer.status_code} {answer.json().get('execution', answer.json().get('title'))}")

    async def receive(self, request: Request) -> Response:
        body = await request.body()
        id = signing.verify("standard", [SECRET], request.headers, body, self.app.clock.now() / 1e6, 300)
        print(f"  the shop is told: {(await request.json())['type']}, {'signed' if id else 'forged'}")
        self.told.set()
        return Response(status_code=204)


async def main(store: str) -> None:
    # The shop of this example is on this machine, where callbacks may not lead unless they are allowed to.
    app = Perdure(store, outbound_private=True)
    transport = httpx.ASGITransport(app=api(app, Authenticator(open=Open("default"))))
    async with app, app.working(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await app.hooks.create("orders", HookStart("order", id=".id"), secret="secret://shop")
        await app.hooks.create("payments", HookSend("paid", ".order", ".amount"), secret="secret://shop")
        shop = Shop(app, client)

        body = b'{"id": "o-1", "item": "tea"}'
        headers = signing.sign([SECRET], "msg_1", app.clock.now() // 1_000_000, body)
        await shop.post("orders", headers, body)
        await shop.post("orders", headers, body)  # somebody has recorded it, and plays it again
        await shop.call("orders", "msg_2", b'{"id": "o-2", "item": "gold"}', secret="guessed")
        await shop.call("payments", "msg_3", b'{"order": "o-1", "amount": 30}')
        print(f"  o-1 → {await app.get('o-1').result(10)}")

        door = Starlette(routes=[Route("/ended", shop.receive, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(door, port=0, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        wish = Callback(f"http://127.0.0.1:{port}/ended", secret="secret://shop", events=("completed", "failed"))
        run = await app.start(order, {"item": "samovar"}, id="o-3", callback=wish)
        await run.send("paid", 300)
        await shop.told.wait()
        server.should_exit = True
        await serving


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/hooks.db"))
