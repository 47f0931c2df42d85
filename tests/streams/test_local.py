from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from perdure.core.records import Hint
from perdure.errors import UsageError
from perdure.ports import Stream
from perdure.streams import local
from perdure.streams.local import LocalStream
from perdure.testing.contract import StreamContract

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The place of the sockets; short, because the path of a socket is."""
    tmp_path_factory.getbasetemp()  # made before we move: it must not end up in a folder that we remove
    place = Path(tempfile.mkdtemp(prefix="p-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    yield place
    shutil.rmtree(place)


class TestLocalStream(StreamContract):
    async def make_streams(self, count: int) -> Sequence[Stream]:
        return [LocalStream("/data/store.db") for _ in range(count)]


def run(body: Callable[[LocalStream, LocalStream], Awaitable[None]]) -> None:
    """Play a scenario with a worker and a client on one file."""

    async def scenario() -> None:
        worker, client = LocalStream("/data/store.db"), LocalStream("/data/store.db")
        await worker.open("w1", ["default"])
        await client.open("client", [])
        try:
            await asyncio.wait_for(body(worker, client), 60)
        finally:
            await worker.close()
            await client.close()

    asyncio.run(scenario())


def sockets(folder: Path) -> list[Path]:
    return sorted(folder.glob("perdure-*/*.sock"))


SPEAK = """
import asyncio, sys
from perdure.core.records import Hint
from perdure.streams.local import LocalStream

async def main():
    stream = LocalStream(sys.argv[1])
    await stream.open("other", ["slow"])
    await stream.publish([Hint("acme/one", "default"), Hint("acme/two", to="w1"), Hint("acme/three", ended=True)])
    assert [hint.key for hint in await stream.receive(1)] == ["acme/three"]
    assert [hint.key for hint in await stream.receive(1)] == ["acme/answer"]
    await stream.close()

asyncio.run(main())
"""


def test_two_processes_hint_each_other() -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        other = await asyncio.create_subprocess_exec(sys.executable, "-W", "error", "-c", SPEAK, "/data/store.db")
        received: set[str] = set()
        while len(received) < 3:
            received.update(hint.key for hint in await worker.receive(10))
        assert received == {"acme/one", "acme/two", "acme/three"}
        await worker.publish([Hint("acme/answer", "slow")])
        assert await other.wait() == 0

    run(body)


def test_other_files_are_other_streams() -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        stranger = LocalStream("/data/else.db")
        await stranger.open("w9", ["default"])
        await stranger.publish([Hint("acme/one", to="w1"), Hint("acme/one", ended=True)])
        await client.publish([Hint("acme/two", "default")])
        assert await worker.receive(10) == [Hint("acme/two", "default")]
        await stranger.close()

    run(body)


def test_one_file_by_two_names_is_one_stream(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    (tmp_path / "alias.db").symlink_to(tmp_path / "store.db")

    async def scenario() -> None:
        one, two = LocalStream(str(tmp_path / "store.db")), LocalStream(str(tmp_path / "alias.db"))
        await one.open("w1", ["default"])
        await two.open("w2", [])
        await two.publish([Hint("acme/one", "default")])
        assert await asyncio.wait_for(one.receive(1), 20) == [Hint("acme/one", "default")]
        await one.close()
        await two.close()

    asyncio.run(scenario())


def test_a_worker_that_comes_later_is_found() -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        for number in range(5):
            late = LocalStream("/data/store.db")
            await late.open(f"late-{number}", [f"queue-{number}"])
            await client.publish([Hint("acme/one", f"queue-{number}")])
            assert await late.receive(1) == [Hint("acme/one", f"queue-{number}")]
            await late.close()

    run(body)


def test_any_name_of_a_worker_will_do() -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        for name in ("host/42:../..", "x" * 500, "ü\N{GRINNING FACE}"):
            odd = LocalStream("/data/store.db")
            await odd.open(name, [])
            await client.publish([Hint("acme/one", to=name)])
            assert await odd.receive(1) == [Hint("acme/one", to=name)]
            await odd.close()

    run(body)


def test_many_hints_travel_in_several_datagrams() -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        hints = [Hint(f"acme/{number:0100}", "default") for number in range(1500)]
        await client.publish(hints)
        received: list[Hint] = []
        while len(received) < len(hints):
            received += await worker.receive(10_000)
        assert received == hints

    run(body)


def test_a_hint_too_long_for_a_datagram_is_lost() -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        await client.publish([Hint("acme/" + "x" * 100_000, "default"), Hint("acme/two", "default")])
        assert await worker.receive(10) == [Hint("acme/two", "default")]

    run(body)


def test_a_flood_that_nobody_reads_is_lost_without_a_word() -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        for number in range(2000):
            await client.publish([Hint(f"acme/{number}", "default")])
        received = await worker.receive(10_000)
        assert received[0] == Hint("acme/0", "default")

    run(body)


@pytest.mark.parametrize(
    "datagram", [b"", b"not json", b'{"key":"x"}', b"[1,2]", b'[{"queue":"default"}]', b"\xff\xfe"]
)
def test_a_malformed_datagram_is_ignored(folder: Path, datagram: bytes) -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            for place in sockets(folder):
                stranger.sendto(datagram, str(place))
        await client.publish([Hint("acme/one", "default")])
        assert await worker.receive(10) == [Hint("acme/one", "default")]

    run(body)


def test_the_socket_of_a_dead_process_is_removed(folder: Path) -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        dead = sockets(folder)[0].parent / "dead.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(str(dead))
        assert dead.exists()
        await client.publish([Hint("acme/one", "default")])
        assert not dead.exists()
        assert await worker.receive(10) == [Hint("acme/one", "default")]

    run(body)


def test_the_socket_of_a_former_life_is_replaced(folder: Path) -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        again = LocalStream("/data/store.db")
        await again.open("w1", ["default"])  # the same name, as after a crash
        await client.publish([Hint("acme/one", to="w1")])
        assert await again.receive(1) == [Hint("acme/one", to="w1")]
        await again.close()

    run(body)


def test_closing_removes_the_socket(folder: Path) -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        assert len(sockets(folder)) == 2
        await client.close()
        assert len(sockets(folder)) == 1

    run(body)


def test_the_last_one_removes_the_directory(folder: Path) -> None:
    run(nothing)
    assert list(folder.iterdir()) == []


def test_a_directory_that_vanishes_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = local._private_directory

    def vanishing(path: str) -> Path:
        monkeypatch.setattr(local, "_private_directory", made)
        directory = made(path)
        directory.rmdir()
        return directory

    monkeypatch.setattr(local, "_private_directory", vanishing)

    async def body(worker: LocalStream, client: LocalStream) -> None:
        assert len(sockets(folder)) == 2

    run(body)


def test_nobody_else_can_enter_the_directory(folder: Path) -> None:
    async def body(worker: LocalStream, client: LocalStream) -> None:
        [directory] = folder.iterdir()
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700

    run(body)


def test_a_directory_that_others_can_enter_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    local._private_directory("/data/store.db").chmod(0o755)
    with caplog.at_level(logging.WARNING, "perdure"):
        run(hints_stay_inside)
    assert "is not a private directory of this user" in caplog.text
    assert sockets(folder) == []


def test_a_symbolic_link_is_not_used(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = local._private_directory("/data/store.db")
    directory.rmdir()
    tmp_path.chmod(0o700)
    directory.symlink_to(tmp_path)
    with caplog.at_level(logging.WARNING, "perdure"):
        run(hints_stay_inside)
    assert list(tmp_path.iterdir()) == []


def test_without_unix_sockets_hints_stay_inside_the_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        stream = LocalStream("/data/store.db")
        await stream.open("w1", ["default"])
        await hints_stay_inside(stream, stream)
        await stream.close()

    with asyncio.Runner() as runner:
        runner.get_loop()  # it may need Unix sockets for itself, so it is made before they go
        monkeypatch.delattr("perdure.streams.local.socket.AF_UNIX")
        runner.run(scenario())
    assert list(folder.iterdir()) == []


def test_a_stream_that_is_not_open_says_so() -> None:
    with pytest.raises(UsageError, match="not open"):
        asyncio.run(LocalStream("/data/store.db").receive(1))


async def nothing(worker: LocalStream, client: LocalStream) -> None:
    pass


async def hints_stay_inside(worker: LocalStream, client: LocalStream) -> None:
    await client.publish([Hint("acme/one", to="nobody"), Hint("acme/one", "slow")])
    await worker.publish([Hint("acme/one", "default"), Hint("acme/two", "slow"), Hint("acme/three", ended=True)])
    assert await worker.receive(10) == [Hint("acme/one", "default"), Hint("acme/three", ended=True)]
