"""An endless poller: it begins again with new arguments every few rounds, so its replay stays short for ever.

To run it: python examples/poller.py [sqlite:///poller.db]
"""

import asyncio
import sys
from tempfile import TemporaryDirectory

from perdure import Perdure, action, event, workflow

ROUNDS = 5  # between two restarts; some hundreds in real life


@action(retries=3)
async def temperature(city: str) -> float:
    print(f"  a look at {city}")
    return 20.5


@workflow
async def watch(city: str, interval: float, looks: int = 0) -> int:
    """Look every `interval` seconds until somebody sends "stop"; gives the number of looks."""
    for _ in range(ROUNDS):
        degrees = await temperature(city)
        looks += 1
        workflow.publish(city=city, degrees=degrees, looks=looks)
        try:
            async with asyncio.timeout(interval):
                await event("stop")
            return looks
        except TimeoutError:
            pass
    # The same execution goes on with these arguments. Its id, its published state and events that nobody took stay;
    # a replay begins here from now on. Without this the log to replay would grow until `events_per_replay` stops it.
    return workflow.restart_with(city, interval, looks)


async def main(store: str) -> None:
    async with Perdure(store) as app, app.working():
        run = await app.start(watch, "Oslo", 0.1, id="watch-oslo")
        while (await run.state()).published.get("looks", 0) < 12:
            await asyncio.sleep(0.1)
        await run.send("stop", id="stop-1")
        looks = await run.result()
        state = await run.state()
        replayed = state.version - state.base + 1
        print(f"  {looks} looks, {state.version} events in the log, the last {replayed} of them are replayed")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/poller.db"))
