"""A report every working day at seven in Berlin, over the weekend on which the clocks change, in virtual time.

To run it: python examples/nightly_report.py
"""

from datetime import datetime

from perdure import action, workflow
from perdure.testing import World, run


@action(retries=3)
async def sum_up(shop: str) -> int:
    return 12 * len(shop)


@workflow
async def report(shop: str) -> str:
    orders = await sum_up(shop)
    return f"{orders} orders in {shop}"


async def main() -> None:
    # In your program this is `async with Perdure("sqlite:///shop.db") as app, app.working():`, and it takes its time.
    async with World() as world:
        schedules = world.app.schedules
        # The same schedule created again is the same, so a program can do this whenever it begins.
        await schedules.create(
            "daily-report",
            report,
            ["Berlin"],
            cron="0 7 * * mon-fri",
            timezone="Europe/Berlin",
            start=datetime(2030, 3, 28),
            end=datetime(2030, 4, 3),
            overlap="skip",
            catch_up="last",
        )
        for at in await schedules.next("daily-report", 3):
            print(f"  will run at {at:%a %d %B %H:%M %z}")
        await world.advance("88d")
        # Nobody is there on the first of April: the worker dies, and the next one comes in the evening.
        world.workers[0].process.kill()
        await world.advance("2d12h")
        world.add_worker()
        await world.advance("1h")
        told = await schedules.get("daily-report")
        for fire in told.recent:
            print(f"  {fire.id}: {await world.app.get(fire.id).result()}")
        triggered = await schedules.trigger("daily-report", by="ada")
        await world.advance("1s")
        print(f"  by hand: {await world.app.get(triggered).result()}")
        print(f"  {told.started} reports, and the next is at {told.next:%a %d %B %H:%M %z}")


if __name__ == "__main__":
    run(main())
