"""Heads of ended executions are kept warm in Redis; those of open ones never are, and the store decides."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from perdure import DirectoryRing, ExecutionNotFound, Perdure, event, workflow
from perdure.core.records import Head
from perdure.errors import KeyShredded
from perdure.runtime.callers import heads
from perdure.streams.redis import warm
from perdure.testing.servers.valkey import ValkeyServer


@workflow(name="heads-answers")
async def answers(word: str) -> str:
    workflow.publish(word=word)
    return await event("end", str)


class Shelf:
    """A cache in a dict."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.items.get(key) for key in keys]

    async def put(self, items: Mapping[str, bytes], ttl: float) -> None:
        self.items |= items

    async def close(self) -> None:
        pass


class Counting:
    """A store that is asked for heads alone, and counts."""

    def __init__(self, head: Head | None) -> None:
        self.head_now = head
        self.asked = 0

    async def head(self, key: str) -> Head | None:
        self.asked += 1
        return self.head_now


def head_of(status: str, changed: int = 0, **fields: object) -> Head:
    first = {"key": "t/one", "workflow": "w", "definition": "w@1", "queue": "q", "version": 7, "sha": "s"}
    nothing = dict.fromkeys(("parent", "parent_ref", "state", "waits", "result"))
    given = {**first, **nothing, "status": status, "started_at": 0, "changed_at": changed, **fields}
    return msgspec.convert(given, Head)


def ask(
    shelf: Shelf, store: Counting, times: int = 2, ttl: float = 60, now: int = 10 * heads.AGED
) -> list[Head | None]:
    async def body() -> list[Head | None]:
        kept = heads.Heads(store, shelf, ttl, lambda: now)  # type: ignore[arg-type]
        return [await kept.of("t/one") for _ in range(times)]

    return asyncio.run(body())


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_the_head_of_what_has_ended_is_read_once(status: str) -> None:
    head = head_of(status, result=b"\x00sealed\xff", tags=("a", "b"), correlation="c")
    store, shelf = Counting(head), Shelf()
    assert ask(shelf, store, 3) == [head] * 3
    assert store.asked == 1


@pytest.mark.parametrize("status", ["open", "paused", "stuck"])
def test_the_head_of_what_is_open_is_never_kept(status: str) -> None:
    store, shelf = Counting(head_of(status)), Shelf()
    assert ask(shelf, store, 3) == [store.head_now] * 3
    assert (store.asked, shelf.items) == (3, {})


def test_an_end_that_is_seen_at_once_is_not_kept() -> None:
    store, shelf = Counting(head_of("completed", changed=5)), Shelf()
    ask(shelf, store, now=4 + heads.AGED)
    assert (store.asked, shelf.items) == (2, {})
    ask(shelf, store, now=5 + heads.AGED)
    assert store.asked == 3


def test_what_is_damaged_or_of_another_or_not_of_an_end_is_a_miss() -> None:
    head = head_of("completed")
    for data in (b"{", head_of("completed", key="t/two"), head_of("open")):
        store, shelf = Counting(head), Shelf()
        shelf.items[heads._name("t/one")] = data if isinstance(data, bytes) else msgspec.json.encode(data)
        assert ask(shelf, store, 1) == [head]
        assert store.asked == 1


def test_without_a_time_to_live_nothing_is_kept() -> None:
    store, shelf = Counting(head_of("completed")), Shelf()
    ask(shelf, store, ttl=0)
    assert (store.asked, shelf.items) == (2, {})


def test_nothing_is_said_of_what_does_not_exist() -> None:
    store, shelf = Counting(None), Shelf()
    assert ask(shelf, store) == [None, None]
    assert shelf.items == {}


def test_another_process_reads_an_end_from_redis_and_from_the_store_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "AGED", 0)
    monkeypatch.setattr(warm, "PATIENCE", 20)
    DirectoryRing.create(str(tmp_path / "ring"))
    ring = DirectoryRing(str(tmp_path / "ring"))

    async def body(server: ValkeyServer) -> None:
        def app() -> Perdure:
            url = f"sqlite:///{tmp_path}/s.db"
            return Perdure(url, stream=server.url, stream_prefix=f"heads-{os.getpid()}", warm=70, keyring=ring)

        async with app() as here, here.working():
            run = await here.start(answers, "plainly", id="one")
            await run.until("waiting", timeout=20)
            await run.head()
            assert server.do("KEYS", "*:head*") == b"*0\r\n"
            await run.send("end", "so it is")
            assert await run.result(timeout=20) == "so it is"
            head = await run.head()
        names = server.do("KEYS", "*:head*").decode().split()[2::2]
        assert len(names) == 1
        assert 0 < int(server.do("PTTL", names[0])[1:]) <= 70_000
        stored = server.do("GET", names[0])
        assert b"plainly" not in stored and b"so it is" not in stored
        async with app() as there:
            again = there.get("one")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(there.store, "head", None)  # nobody can ask it
                assert await again.head() == head
                assert (await again.status(), await again.result()) == ("completed", "so it is")
            server.do("FLUSHALL")
            assert await again.head() == head  # and so it is kept once more
            with pytest.raises(ExecutionNotFound):
                await there.get("two").head()
            ring.shred("default")
            with pytest.raises(KeyShredded):
                await again.head()

    with ValkeyServer() as server:
        asyncio.run(body(server))
