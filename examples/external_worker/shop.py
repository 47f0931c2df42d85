"""A workflow whose letters are printed by a worker in another language.

    perdure serve shop.py --open --work       # the API, and a worker for the workflow itself
    node worker.mjs http://127.0.0.1:8470     # prints the letters; or: sh worker.sh http://127.0.0.1:8470
    perdure start shop.py greet_all '["Ada", "Bob"]' --wait

The declaration of `print_letter` says what goes to that worker and what must come back. Its body never runs.
"""

import asyncio

from msgspec import Struct

from perdure import Perdure, action, workflow


class Printed(Struct):
    pages: int
    by: str


@action(external=True, queue="printers", retries=3, timeout="5m")
async def print_letter(name: str, text: str) -> Printed: ...  # type: ignore[empty-body]


@workflow
async def greet_all(names: list[str]) -> str:
    printed = await asyncio.gather(*(print_letter(name, f"Dear {name}!") for name in names))
    return f"{sum(one.pages for one in printed)} pages by {printed[0].by}"


app = Perdure("sqlite:///letters.db")
