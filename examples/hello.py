import asyncio

from perdure import Perdure, action, workflow


@action(retries=5)
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow
async def hello(name: str) -> str:
    await asyncio.sleep(5)  # durable: press Ctrl-C, run it again, and only the rest of it is left
    return await greet(name)


print(Perdure("sqlite:///hello.db").run(hello, "Ada", id="hello-1"))
