"""Health over HTTP: what it answers, and when that changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, action, workflow
from perdure.core.records import Head
from perdure.errors import SettingsError, StoreUnavailable
from perdure.ports import Store, Stream
from perdure.runtime.telemetry import health
from perdure.runtime.telemetry.health import shifted
from perdure.runtime.work.worker import Worker
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.streams.local import LocalStream
from perdure.streams.memory import MemoryStream

began = asyncio.Event()
gate = asyncio.Event()


@action
async def health_gated() -> None:
    began.set()
    await gate.wait()


@workflow
async def health_flow() -> None:
    await health_gated()


class Unplugged(SqliteStore):
    """A store that is out of reach while its file of that name is there."""

    def twin(self) -> SqliteStore:
        return Unplugged(self.path)

    async def head(self, key: str) -> Head | None:
        if Path(f"{self.path}.hangs").exists():
            await asyncio.sleep(60)
        if Path(f"{self.path}.unplugged").exists():
            raise StoreUnavailable("no route to it")
        return await super().head(key)


class Troubled(LocalStream):
    saying = ""

    @property
    def trouble(self) -> str:
        return self.saying


def scenario(
    body: Callable[[Perdure, Worker, int], Coroutine[Any, Any, None]], store: Store, stream: Stream, **settings: Any
) -> None:
    async def main() -> None:
        global began, gate
        began, gate = asyncio.Event(), asyncio.Event()
        app = Perdure(store, stream=stream, health="127.0.0.1:0", **settings)
        async with asyncio.timeout(20), app, app.working() as worker:
            assert worker._leases is not None
            await body(app, worker, worker._leases.port or 0)

    asyncio.run(main())


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    return await raw(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def raw(port: int, request: bytes) -> tuple[int, str]:
    """Status and body; 0 when the connection is closed without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        answer = await reader.read()
    except ConnectionResetError:
        return 0, ""
    finally:
        writer.close()
    if not answer:
        return 0, ""
    head, _, text = answer.decode().partition("\r\n\r\n")
    assert f"Content-Length: {len(text.encode())}" in head
    return int(head.split()[1]), text


def sqlite(folder: Path) -> tuple[Unplugged, Troubled]:
    path = str(folder / "health.db")
    return Unplugged(path), Troubled(path)


def test_a_worker_that_works_is_ready(tmp_path: Path) -> None:
    async def body(app: Perdure, worker: Worker, port: int) -> None:
        assert await ask(port, "/live") == (200, "live\n")
        assert await ask(port, "/ready") == (200, "ready\n")
        code, text = await ask(port, "/health?verbose=1")
        assert code == 200
        assert json.loads(text) == {
            "status": "ready",
            "reasons": [],
            "worker": worker.me,
            "holds": 0,
            "attempts": 0,
            "encrypted": False,
        }

    scenario(body, *sqlite(tmp_path))


def test_a_store_out_of_reach_is_noticed_and_so_is_its_return(tmp_path: Path) -> None:
    async def body(app: Perdure, worker: Worker, port: int) -> None:
        assert (await ask(port, "/ready"))[0] == 200
        (tmp_path / "health.db.unplugged").touch()
        code, text = await changed(port, "/health", 200)
        assert code == 503
        assert json.loads(text)["status"] == "live"
        assert json.loads(text)["reasons"] == ["store: no route to it"]
        assert (await ask(port, "/live"))[0] == 200  # a restart would not help
        (tmp_path / "health.db.unplugged").unlink()
        assert (await changed(port, "/ready", 503))[0] == 200

    scenario(body, *sqlite(tmp_path))


def test_a_store_that_does_not_answer_is_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LIMIT", 0.1)

    async def body(app: Perdure, worker: Worker, port: int) -> None:
        (tmp_path / "health.db.hangs").touch()
        assert await ask(port, "/ready") == (503, "live\nstore: no answer within 0.1 s\n")

    scenario(body, *sqlite(tmp_path))


def test_the_store_is_asked_once_a_second_however_often_we_are(tmp_path: Path) -> None:
    store, stream = sqlite(tmp_path)
    asked = 0

    class Counting(Unplugged):
        async def head(self, key: str) -> Head | None:
            nonlocal asked
            asked += 1
            return await super().head(key)

    store.twin = lambda: Counting(store.path)  # type: ignore[method-assign]

    async def body(app: Perdure, worker: Worker, port: int) -> None:
        since = time.monotonic()
        await asyncio.gather(*(ask(port, "/ready") for _ in range(20)))
        assert 1 <= asked <= 1 + (time.monotonic() - since)

    scenario(body, store, stream)


def test_without_its_stream_a_worker_is_degraded_but_ready(tmp_path: Path) -> None:
    store, stream = sqlite(tmp_path)

    async def body(app: Perdure, worker: Worker, port: int) -> None:
        stream.saying = "connection refused"
        assert await ask(port, "/ready") == (200, "degraded\nstream: connection refused\n")
        while worker.metrics.subscription_errors.counts[""] == 0:
            await asyncio.sleep(0.01)
        stream.saying = "still refused"
        await asyncio.sleep(0.1)
        assert worker.metrics.subscription_errors.counts[""] == 1  # it is the same trouble

    scenario(body, store, stream, lease=0.12)


def test_a_worker_that_drains_is_not_ready(tmp_path: Path) -> None:
    async def body(app: Perdure, worker: Worker, port: int) -> None:
        await app.start(health_flow)
        await began.wait()
        stopping = asyncio.create_task(worker.stop())
        assert (await changed(port, "/ready", 200)) == (503, "live\ndraining\n")
        assert (await ask(port, "/live"))[0] == 200
        assert json.loads((await ask(port, "/health"))[1])["attempts"] == 1
        gate.set()
        await stopping

    scenario(body, *sqlite(tmp_path))


def test_a_blocked_loop_is_not_live_and_says_so_while_it_is_blocked(tmp_path: Path) -> None:
    async def body(app: Perdure, worker: Worker, port: int) -> None:
        watching = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(changed(port, "/live", 200))))
        told = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(changed(port, "/health", 200))))
        await asyncio.sleep(0.1)
        time.sleep(1.5)
        assert await watching == (503, "stalled\n")
        code, text = await told
        assert code == 503
        assert json.loads(text)["status"] == "stalled"
        assert (await changed(port, "/live", 503))[0] == 200

    scenario(body, *sqlite(tmp_path), stall=0.2)


def test_a_store_without_a_twin_has_health_all_the_same() -> None:
    async def body(app: Perdure, worker: Worker, port: int) -> None:
        assert await ask(port, "/ready") == (200, "ready\n")
        assert "perdure_holds 0" in (await ask(port, "/metrics"))[1]

    scenario(body, MemoryStore(), MemoryStream())


def test_what_is_not_a_small_get_is_refused(tmp_path: Path) -> None:
    async def body(app: Perdure, worker: Worker, port: int) -> None:
        assert (await ask(port, "/ready", "POST"))[0] == 405
        assert (await ask(port, "/etc/passwd"))[0] == 404
        assert (await raw(port, b"hello\r\n\r\n"))[0] == 400
        assert (await raw(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"))[0] == 0
        assert (await ask(port, "/live"))[0] == 200

    scenario(body, *sqlite(tmp_path))


def test_a_connection_that_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE", 0.05)

    async def body(app: Perdure, worker: Worker, port: int) -> None:
        assert await raw(port, b"GET /li") == (0, "")

    scenario(body, *sqlite(tmp_path))


def test_an_address_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    async def body(app: Perdure, worker: Worker, port: int) -> None:
        other = Perdure(f"sqlite:///{tmp_path / 'other.db'}", health=f"127.0.0.1:{port}")
        async with other:
            with pytest.raises(SettingsError, match=f"cannot be answered on 127.0.0.1:{port}"):
                async with other.working():
                    pass

    scenario(body, *sqlite(tmp_path))


@pytest.mark.parametrize("address", ["9464", "localhost", "localhost:http", "x:99999"])
def test_an_address_has_a_port(tmp_path: Path, address: str) -> None:
    async def main() -> None:
        async with Perdure(f"sqlite:///{tmp_path / 'x.db'}", health=address) as app:
            with pytest.raises(SettingsError, match="health is an address such as"):
                async with app.working():
                    pass

    asyncio.run(main())


def test_ports_count_upwards() -> None:
    assert [shifted("[::1]:9464", n) for n in range(2)] == ["[::1]:9464", "[::1]:9465"]
    assert shifted("127.0.0.1:0", 3) == "127.0.0.1:0"
    with pytest.raises(SettingsError, match="no port 65535 \\+ 1"):
        shifted(":65535", 1)


async def changed(port: int, path: str, before: int) -> tuple[int, str]:
    """The first answer with another status."""
    deadline = time.monotonic() + 5
    while True:
        answer = await ask(port, path)
        if answer[0] != before:
            return answer
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.02)
