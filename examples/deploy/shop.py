"""The program that every process of the deployment runs: which part of it, its queues decide."""

import asyncio

from perdure import action, workflow


@action(retries=5, timeout="30s")
async def charge(order: str) -> str:
    return f"receipt of {order}, {action.key}"


@action(queue="video", retries=3, timeout="10m", heartbeat="1m")
async def render_thanks(order: str) -> str:
    await asyncio.sleep(1)
    return f"thanks-{order}.mp4"


@workflow
async def fulfil(order: str) -> str:
    receipt, video = await asyncio.gather(charge(order), render_thanks(order))
    return f"{receipt}; {video}"
