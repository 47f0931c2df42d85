"""What it takes to accept an event: one write, and nothing that would grow with the log of the execution."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Perdure
from perdure.core.records import Head, Mail, Row, Sent
from perdure.http.api import api
from perdure.stores.sqlite import SqliteStore
from perdure.streams.memory import MemoryStream
from tests.http.test_api import Door, People
from tests.http.test_overview import machine
from tests.runtime.test_cursors import long_log


class Watched(SqliteStore):
    """Tells what it was asked for, and how many steps that took its virtual machine."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked: list[str] = []
        self.steps = 0

    async def open(self) -> None:
        await super().open()
        for desk in (self._writer, self._reader):
            await desk.run(lambda db: db.set_progress_handler(self._step, 1))

    def _step(self) -> int:
        self.steps += 1
        return 0

    async def head(self, key: str) -> Head | None:
        self.asked.append("head")
        return await super().head(key)

    async def read(self, key: str, after: int = 0, until: int | None = None, limit: int = 1000) -> list[Row]:
        rows = await super().read(key, after, until, limit)
        self.asked.append(f"read {len(rows)} of {key}")
        return rows

    async def send(self, mail: Sequence[Mail], grace: int) -> list[Sent]:
        self.asked.append("send")
        return await super().send(mail, grace)

    def told(self) -> list[str]:
        """What it was asked for since it was last asked for this."""
        told, self.asked = self.asked, []
        return told


@asynccontextmanager
async def process(path: Path) -> AsyncIterator[tuple[Door, Watched]]:
    store = Watched(str(path / "accepting.db"))
    app = Perdure(store, stream=MemoryStream())
    transport = httpx.ASGITransport(app=api(app, People()))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Door(app, client), store


def served(path: Path, test: Callable[[Door, Watched], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), process(path) as (door, store):
            await test(door, store)

    asyncio.run(main())


async def send(door: Door, id: str, event: Any, tail: str = "") -> None:
    answer = await door("POST", f"/v1/executions/{id}/events{tail}", event)
    assert answer.status_code == 202, answer.text


GO = {"name": "go", "payload": 7}
CLOUD = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "go", "data": 7}


def test_an_event_is_accepted_by_one_write_and_without_a_look_at_the_log(tmp_path: Path) -> None:
    async def main(door: Door, store: Watched) -> None:
        await door.app.adopt(long_log(100)[:-1], "h1", tenant="acme")
        store.told()
        await send(door, "h1", GO)
        assert store.told() == ["head", "send"]
        await send(door, "h1", GO)
        await send(door, "h1", [GO, GO, GO], "/batch")
        assert store.told() == ["send", "send"]
        clouds = {"content-type": "application/cloudevents+json", "authorization": f"Bearer {door.who}"}
        answer = await door.client.post("/v1/executions/h1/events", json=CLOUD, headers=clouds)
        assert answer.status_code == 202 and store.told() == ["send"]

    served(tmp_path, main)


def test_events_of_a_published_machine_take_no_look_at_its_log_either(tmp_path: Path) -> None:
    async def main(door: Door, store: Watched) -> None:
        await door("POST", "/v1/definitions", {"definition": machine("one", "two", "three")})
        async with door.app.working():
            await door("POST", "/v1/executions?wait=10s", {"workflow": "http-line", "id": "m1"})
        await send(door, "m1", {"name": "on"})  # the definition is in mind from here on
        store.told()
        await send(door, "m1", {"name": "on"})
        await send(door, "m1", {"name": "on"}, "?validate=now")
        assert store.told() == ["send", "head", "send"]

    served(tmp_path, main)


@pytest.mark.parametrize("how", ["", "?validate=now"])
def test_of_a_machine_that_changed_its_version_one_row_is_looked_at_and_once(tmp_path: Path, how: str) -> None:
    ring = {"one": {"on": {"on": "two"}}, "two": {"on": {"on": "one"}}}
    more = {**ring, "two": {"on": {"on": "one", "off": "off"}}, "off": {"final": True}}

    async def main(door: Door, store: Watched) -> None:
        made = {"machine": "accepting-ring", "initial": "one"}
        await door("POST", "/v1/definitions", {"definition": {**made, "states": ring}})
        async with door.app.working():
            await door("POST", "/v1/executions?wait=10s", {"workflow": "accepting-ring", "id": "m1"})
            for _ in range(20):
                await door("POST", "/v1/executions/m1/events", {"name": "on"})
            await door("POST", "/v1/executions/m1/events?wait=10s", {"name": "on"})
            await door("POST", "/v1/definitions", {"definition": {**made, "states": more}})
            assert (await door("POST", "/v1/executions/m1/migrate", {"version": 2})).status_code == 200
            await door.app.get("m1", "acme").until("waiting")
        assert (await door.app.get("m1", "acme").head()).version > 40
        async with process(tmp_path) as (other, watched):
            await send(other, "m1", {"name": "off"}, how)
            await send(other, "m1", {"name": "off"}, how)
            assert [one for one in watched.told() if one.endswith(" of acme/m1")] == ["read 1 of acme/m1"]

    served(tmp_path, main)


def test_the_work_of_accepting_an_event_does_not_grow_with_the_log(tmp_path: Path) -> None:
    async def main(door: Door, store: Watched) -> None:
        for name, length in (("short", 100), ("long", 20_000)):
            await door.app.adopt(long_log(length)[:-1], name, tenant="acme")

        async def steps(id: str, event: Any, tail: str = "") -> int:
            before = store.steps
            await send(door, id, event, tail)
            return store.steps - before

        same = {**GO, "id": "same"}
        for event, tail in ((GO, ""), (same, ""), (same, ""), ([GO] * 10, "/batch"), (GO, "?validate=now")):
            short, long = await steps("short", event, tail), await steps("long", event, tail)
            assert 0 < long <= short + 50, (event, tail)

    served(tmp_path, main)
