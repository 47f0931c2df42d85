"""The screenshots of the documentation, taken of a real server: python -m tests.dashboard.screenshots"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, expect

from tests.cli.asking import ask
from tests.dashboard.chromium import browsing
from tests.dashboard.serving import Served

FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"
MACHINE = """
# Money back: small sums by a clerk, others by the boss.
machine: refund
initial: asked
states:
  asked:
    after: {P2D: escalate}
    on:
      approve:
        to: paid
        roles: [clerk]
        when: "${ .data.cents < 10000 }"
      escalate: boss
  boss:
    on:
      approve: {to: paid, roles: [boss]}
      refuse: {to: refused, roles: [boss]}
  paid: {final: true}
  refused: {final: true}
"""
SHOP = """
import asyncio
from dataclasses import dataclass

from perdure import Retry, action, event, workflow


@dataclass
class Order:
    item: str
    cents: int


tries = 0


@action(retries=Retry(attempts=5, first="0.4s", factor=2))
async def charge(order: Order) -> str:
    global tries
    tries += 1
    await asyncio.sleep(0.4)
    if tries < 3:
        raise ConnectionError("the bank does not answer")
    return f"receipt for {order.cents} cents"


@action
async def reserve(order: Order) -> str:
    await asyncio.sleep(1.1)
    return "shelf 4"


@action
async def thank(order: Order) -> str:
    await asyncio.sleep(0.6)
    return "mail-1"


@workflow
async def fulfil(order: Order) -> str:
    async with asyncio.TaskGroup() as group:
        receipt = group.create_task(charge(order))
        shelf = group.create_task(reserve(order))
    workflow.publish(stage="paid", receipt=receipt.result(), shelf=shelf.result())
    await thank(order)
    async with asyncio.timeout(2 * 24 * 3600):
        return await event("packed", str)
"""


def take(page: Page, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    page.screenshot(path=FOLDER / f"{name}.png")
    print(FOLDER / f"{name}.png")


def main() -> None:
    with TemporaryDirectory() as folder, Served(Path(folder), SHOP, "dev") as served, browsing() as browser:
        order = {"workflow": "fulfil", "args": [{"item": "teapot", "cents": 2500}], "id": "order-42", "tags": ["eu"]}
        status, told = ask(served.address, "/v1/executions?wait=30s", order)
        assert status == 200, told
        page = browser.new_page(viewport={"width": 1180, "height": 620})
        page.goto(f"{served.address}/dashboard/#/executions/order-42")
        expect(page.get_by_text("waits for the event packed")).to_be_visible()
        expect(page.locator(".gantt .name")).to_have_count(4)
        take(page, "execution")
        page.goto(f"{served.address}/dashboard/#/definitions/:new")
        image = page.locator("img.diagram")
        expect(image).to_have_attribute("src", re.compile("^blob:"))
        before = image.get_attribute("src") or ""
        page.locator("textarea").fill(MACHINE.strip())
        expect(image).not_to_have_attribute("src", before)
        image.evaluate("image => image.decode()")
        take(page, "designer")


if __name__ == "__main__":
    main()
