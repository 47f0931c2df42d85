"""`make demo`: two workers share an order; the one that ships it is killed; the other one goes on where it was.

Everything happens on one SQLite file in a temporary directory. The workers are processes of this same program. What
they do to the outside world goes into a second file, one line per call, so that one can count. Each wait below is a
wait for something to become true; if it does not within seconds, or if the outcome is wrong, the demo exits with 1.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import order
from order import Order, Packed, fulfil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure import ExecutionFailed, Perdure, Run

#: A worker that gives no sign of life for 2 s loses its executions (10 is the default), and the others look for such
#: executions every second even if they have nothing to do (5 is the default).
SETTINGS = {"lease": 2, "probe": 1}
console = Console(highlight=False)


# --- the worker's side -----------------------------------------------------------------------------------------------


async def work(store: str, ledger: Path, name: str) -> None:
    """A worker process: serve the store until told to stop."""

    async def outside(what: str, key: str) -> None:
        """The outside world of this demo: it writes down every call, and is slow to answer the first call to ship."""
        known = key in {call["key"] for call in calls(ledger)}
        with ledger.open("a") as file:
            file.write(json.dumps({"key": key, "what": what, "worker": name}) + "\n")
        if what.startswith("ship") and not known:
            await asyncio.Event().wait()

    order.outside = outside
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Perdure(store, **SETTINGS) as app, app.working():
        ledger.with_name(f"{name}.ready").touch()
        await stop.wait()


def calls(ledger: Path) -> list[dict[str, str]]:
    """The calls so far; a line without its end is still being written."""
    if not ledger.exists():
        return []
    return [json.loads(line) for line in ledger.read_text().splitlines(keepends=True) if line.endswith("\n")]


# --- the demo's side -------------------------------------------------------------------------------------------------


class Workers:
    """The worker processes, by name."""

    def __init__(self, store: str, folder: Path) -> None:
        self.ledger = folder / "calls.jsonl"
        self.noise = (folder / "workers.log").open("w+")
        command = [sys.executable, __file__, "worker", store, str(self.ledger)]
        self.processes = {
            name: subprocess.Popen([*command, name], stdout=self.noise, stderr=self.noise) for name in ("anna", "bert")
        }

    def ready(self) -> bool:
        return all(self.ledger.with_name(f"{name}.ready").exists() for name in self.processes)

    def kill(self, name: str) -> int:
        """SIGKILL: no clean-up, no farewell."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        return process.pid

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
        self.noise.close()


class Wrong(Exception):
    """The demo did not turn out as it should."""


def insist(true: bool, otherwise: str) -> None:
    if not true:
        raise Wrong(otherwise)


async def until(what: str, look: Callable[[], Any], limit: float = 20) -> Any:
    """Look until there is something to see."""
    deadline = time.monotonic() + limit
    with console.status(f"waiting: {what}"):
        while not (found := look()):
            insist(time.monotonic() < deadline, f"waited {limit} s in vain: {what}")
            await asyncio.sleep(0.02)
    return found


def say(text: str, style: str = "") -> None:
    console.print(f"[dim]{time.monotonic() - began:5.2f} s[/]  {text}", style=style)


async def first_act(app: Perdure, workers: Workers) -> None:
    console.rule("[bold]1. A worker dies in the middle of an order", align="left")
    await until("both workers are there", workers.ready)
    for name, process in workers.processes.items():
        say(f"worker [bold]{name}[/] is process {process.pid}")
    run = await app.start(fulfil, Order("42", "teapot", 2500), id="order-42")
    say("started [bold]order-42[/]: reserve, charge, wait for [bold]packed[/], ship, tell")

    def seen(what: str) -> str | None:
        return next((call["worker"] for call in calls(workers.ledger) if call["what"].startswith(what)), None)

    who = await until("reserve and charge", lambda: seen("charge"))
    say(f"{who} has reserved and charged")
    await run.send("packed", Packed("parcel-7"), by="warehouse")
    say("sent the event [bold]packed[/]")
    victim = await until("somebody begins to ship", lambda: seen("ship"))
    say(f"{victim} has asked the carrier to ship; the answer is not in the log yet")
    pid = workers.kill(victim)
    killed = time.monotonic()
    say(f"[bold red]kill -9 {pid}[/]: {victim} is gone")
    with console.status("waiting: the other worker takes over"):
        result = await run.result(timeout="20s")
    heir = next(iter(workers.processes))
    say(f"[bold green]{heir} took over[/] and finished {time.monotonic() - killed:.1f} s after the kill: {result}")
    await show(run)
    await count(run, workers, victim, heir, result)


async def second_act(app: Perdure, workers: Workers) -> None:
    console.rule("[bold]2. An order that nobody packs is undone", align="left")
    run = await app.start(fulfil, Order("43", "kettle", 4000, patience=1.2), id="order-43")
    say("started [bold]order-43[/], with 1.2 s for the warehouse")
    try:
        with console.status("waiting: its timer"):
            await run.result(timeout="20s")
        insist(False, "order-43 should have failed")
    except ExecutionFailed as error:
        say(f"it failed with {error.type}, after its undos had run")
    await show(run)
    done = [call["what"] for call in calls(workers.ledger) if "/order-43/" in call["key"]]
    wanted = ["reserve kettle", "charge 4000 cents", "refund receipt-43", "put kettle back to shelf-43"]
    insist(done == wanted, f"order-43 did {done}, not {wanted}")


def clipped(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


async def show(run: Run[Any]) -> None:
    """The log as a timeline."""
    entries = await run.log()
    table = Table(title=f"the log of {run.id}", title_justify="left", box=None, header_style="dim")
    for column, width in (("version", 7), ("after", 7), ("event", 15), ("", None)):
        right = column in ("version", "after")
        table.add_column(column, justify="right" if right else "left", width=width)
    styles = {"TakenOver": "bold yellow", "Completed": "bold green", "Failed": "bold red", "EventReceived": "cyan"}
    for entry in entries:
        after = (entry.at - entries[0].at).total_seconds()
        style = styles.get(entry.type, "")
        table.add_row(str(entry.version), f"{after:.3f} s", Text(entry.type, style), clipped(entry.text, style))
    console.print(table, "")


async def count(run: Run[Any], workers: Workers, victim: str, heir: str, result: str) -> None:
    """How often the outside world was asked, by key; and whether that is as promised."""
    made = calls(workers.ledger)
    table = Table(title="the calls to the outside world", title_justify="left", box=None, header_style="dim")
    for column, width in (("key", 26), ("what", None), ("calls", 5), ("by", 15)):
        right = column == "calls"
        table.add_column(column, justify="right" if right else "left", width=width)
    by_key: dict[str, list[dict[str, str]]] = {}
    for call in made:
        by_key.setdefault(call["key"], []).append(call)
    for key, same in by_key.items():
        style = "yellow" if len(same) > 1 else ""
        who = ", then ".join(call["worker"] for call in same)
        table.add_row(key, clipped(same[0]["what"]), str(len(same)), who, style=style)
    console.print(table)
    console.print(
        f"{len(made)} calls, {len(by_key)} keys. What was in the log was not done again. The call that was under\n"
        "way at the kill was made again, with the same key: the carrier can tell.\n"
    )
    twice = [same for same in by_key.values() if len(same) > 1]
    insist(result == "tracking-parcel-7", f"the result is {result!r}")
    insist([call["what"] for call in made[:2]] == ["reserve teapot", "charge 2500 cents"], f"the calls were {made}")
    insist(len(by_key) == 5, f"there should be 5 keys: {list(by_key)}")
    insist(len(twice) == 1 and [call["worker"] for call in twice[0]] == [victim, heir], f"called twice: {twice}")
    insist(any(entry.type == "TakenOver" for entry in await run.log()), "the log shows no take-over")


async def main() -> int:
    with TemporaryDirectory(prefix="perdure-demo-") as folder:
        store = f"sqlite:///{folder}/orders.db"
        workers = Workers(store, Path(folder))
        try:
            async with Perdure(store, **SETTINGS) as app:
                await first_act(app, workers)
                await second_act(app, workers)
        except (Wrong, TimeoutError) as error:
            workers.noise.seek(0)
            console.print(f"[bold red]It went wrong:[/] {error or 'no result in time'}", workers.noise.read(), sep="\n")
            return 1
        finally:
            workers.stop()
    say("[bold green]done[/]: one file, no server, no lost step")
    return 0


began = time.monotonic()
if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(work(sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
    else:
        sys.exit(asyncio.run(main()))
