"""Changing code while runs are in flight: a patch, a mistake that is found, and a new version.

To run it: python examples/deploy.py [sqlite:///deploy.db]

Each `release_…` function stands for a deployment: it defines the workflow `onboard` anew, as another process with
other code would.
"""

import asyncio
import sys
from tempfile import TemporaryDirectory

from perdure import ExecutionStuck, Perdure, action, event, workflow


@action
async def create_account(name: str) -> None:
    print(f"    account for {name}")


@action
async def send_mail(name: str, text: str) -> None:
    print(f"    mail to {name}: {text}")


@action
async def give_voucher(name: str) -> None:
    print(f"    voucher for {name}")


def release_1():
    @workflow
    async def onboard(name: str) -> str:
        await create_account(name)
        await event("confirmed")
        await send_mail(name, "welcome")
        return "release 1"

    return onboard


def release_broken():
    """A step in front of what the log of a running execution already has: its replay cannot fit any more."""

    @workflow
    async def onboard(name: str) -> str:
        await give_voucher(name)
        await create_account(name)
        await event("confirmed")
        await send_mail(name, "welcome")
        return "broken"

    return onboard


def release_2():
    """The same change, guarded. Runs that passed this point before keep the old path, new runs take the new one."""

    @workflow
    async def onboard(name: str) -> str:
        if workflow.patched("voucher"):
            await give_voucher(name)
        await create_account(name)
        await event("confirmed")
        await send_mail(name, "welcome")
        return "release 2"

    return onboard


def release_3():
    """Too much has changed for a patch: a new version. Runs stay with the version that they began with."""

    @workflow(version=2)
    async def onboard(name: str) -> str:
        await asyncio.gather(create_account(name), give_voucher(name))
        await send_mail(name, "welcome, all in one")
        return "version 2"

    return onboard


async def main(store: str) -> None:
    print("Release 1 starts a run, which waits for an event.")
    onboard = release_1()
    async with Perdure(store) as app, app.working():
        ada = await app.start(onboard, "Ada", id="onboard-ada")
        while "waits for the event confirmed" not in str(await ada.why()) and await ada.status() != "completed":
            await asyncio.sleep(0.01)

    print("A broken release: the run does not fail, it gets stuck, and nothing is lost.")
    release_broken()
    async with Perdure(store) as app, app.working():
        ada = app.get("onboard-ada")
        if await ada.status() not in ("completed", "stuck"):
            await ada.send("confirmed", id="confirmed-1")
        try:
            print(f"    {await ada.result(timeout='10s')}")
        except ExecutionStuck as error:
            print(f"    {error}")

    print("Release 2 repairs it. A worker with other code tries what was stuck again, by itself.")
    onboard = release_2()
    async with Perdure(store) as app, app.working():
        ada = app.get("onboard-ada")
        await ada.until("completed", timeout="10s")
        print(f"    Ada: {await ada.result()}")
        bob = await app.start(onboard, "Bob", id="onboard-bob")
        await bob.send("confirmed", id="confirmed-1")
        print(f"    Bob: {await bob.result(timeout='10s')}")

    print("Release 3 brings version 2; version 1 stays for the runs that have it.")
    onboard = release_3()
    async with Perdure(store) as app, app.working():
        eve = await app.start(onboard, "Eve", id="onboard-eve")
        print(f"    Eve: {await eve.result(timeout='10s')}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/deploy.db"))
