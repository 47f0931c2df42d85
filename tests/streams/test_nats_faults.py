"""What can happen to a NATS and to the way to it: hints may get lost; the stream goes on and says what is wrong."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from perdure.core.records import Hint
from perdure.errors import SettingsError
from perdure.streams.nats import NatsStream, keeping, line, reader, sender, stream as adapter
from perdure.streams.nats.hand import STALLED
from perdure.testing.proxy import Proxy
from perdure.testing.servers.nats import NatsServer
from tests.streams.nats_world import World, got, play, told_to_look, until

ONE = Hint("acme/one", "default")
TWO = Hint("acme/two", "default")
MINE = Hint("acme/mine", to="w1")
END = Hint("acme/one", ended=True)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same behaviour with shorter patience."""
    for module in (line, keeping, reader, adapter):
        monkeypatch.setattr(module, "TIMEOUT", 0.5)
    monkeypatch.setattr(adapter, "PAUSE", 0.1)
    monkeypatch.setattr(line, "QUIET", 60.0)  # what fails is noticed by itself


@pytest.fixture
def own() -> Iterator[NatsServer]:
    """A server that a test may do anything to."""
    with NatsServer() as server:
        yield server


async def all_well(world: World, worker: NatsStream, client: NatsStream) -> None:
    """Every kind of hint gets through."""
    await until(lambda: worker.carries and client.carries)
    assert worker.trouble == client.trouble == ""
    await client.listen("acme/one")
    left = {TWO, MINE, Hint("", news="breaker:charge:open:1")}
    await client.publish(sorted(left, key=str))
    while left:
        left -= {*await got(worker)}  # an older one may have been sent twice
    await worker.publish([END])
    assert await got(client) == [END]


# The server forgets.


def test_a_restart_without_its_data_is_survived(own: NatsServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.listen("acme/one")
        await client.publish([ONE])
        assert await got(worker) == [ONE]
        own.restart(forget=True)
        await told_to_look(worker)
        await all_well(world, worker, client)

    play(own.url, body)


def test_a_restart_with_its_data_loses_nothing_that_it_kept(own: NatsServer) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await client.publish([ONE, TWO])
        await until(lambda: kept(world))
        own.restart()
        worker = await world.open("w1", "default")
        assert set(await got(worker, 2)) == {ONE, TWO}

    async def kept(world: World) -> bool:
        return await world.kept() == 2

    play(own.url, body)


@pytest.mark.parametrize("what", ["stream", "consumer"])
def test_what_somebody_deleted_is_made_anew(own: NatsServer, what: str) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await until(lambda: asks(world))
        manager, names = await world.manager(), world.names
        if what == "stream":
            await manager.delete_stream(names.stream)
        else:
            await manager.delete_consumer(names.stream, names.consumer("default"))
        await told_to_look(worker)
        await all_well(world, worker, client)

    async def asks(world: World) -> bool:
        return await world.asking() == 1

    play(own.url, body)


def test_a_client_notices_that_the_stream_was_deleted_when_it_sends(own: NatsServer) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        await (await world.manager()).delete_stream(world.names.stream)
        await client.publish([ONE])
        worker = await world.open("w1", "default")
        assert await got(worker) == [ONE], "it was sent again"
        await all_well(world, worker, client)

    play(own.url, body)


def test_what_was_taken_before_the_data_was_lost_does_not_ack_what_came_after(own: NatsServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.publish([ONE])
        assert await worker.receive(10) == [ONE]
        await asyncio.sleep(STALLED)  # from now on it asks for nothing, since it gets on with nothing
        own.restart(forget=True)
        await told_to_look(worker)
        await until(lambda: client.carries)
        # When another message stands where the first one stood
        other = await world.open("w2", "default")
        await client.publish([TWO])
        async with asyncio.timeout(10):
            while TWO not in await other.receive(10):
                pass
        await worker.ack([ONE])
        await worker.publish([Hint("acme/any", to="client")])
        assert await got(client) == [Hint("acme/any", to="client")]
        # Then it stays until it is acked itself
        assert await world.pending() == 1
        await other.ack([TWO])
        await until(lambda: empty(world))

    async def empty(world: World) -> bool:
        return await world.kept() == 0

    play(own.url, body)


# The server is away.


def test_a_server_that_is_down_at_the_beginning_is_waited_for() -> None:
    with NatsServer() as own:
        own.kill()

        async def body(world: World) -> None:
            worker, client = await world.open("w1", "default"), await world.open("client")
            assert not worker.carries
            assert f"NATS at 127.0.0.1:{own.port} cannot be reached" in worker.trouble
            await client.listen("acme/one")
            await client.publish([ONE, END])
            assert await got(client) == [END]
            await worker.publish([TWO])
            assert await got(worker) == [TWO]  # what stays in the process needs no server
            await told_to_look(worker)
            own.start()
            assert await got(worker) == [ONE]
            await all_well(world, worker, client)

        play(own.url, body)


def test_a_worker_is_told_to_look_while_the_server_is_away(own: NatsServer) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        own.kill()
        for _ in range(3):
            await told_to_look(worker)
            assert not worker.carries
        own.start()
        await until(lambda: worker.carries)
        await told_to_look(worker)

    play(own.url, body)


def test_calls_to_look_do_not_pile_up_in_front_of_a_busy_worker(own: NatsServer) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default", "slow")
        own.kill()
        await until(lambda: worker.trouble)
        await asyncio.sleep(0.5)
        assert sorted(hint.queue for hint in await worker.receive(100)) == ["default", "slow"]

    play(own.url, body)


def test_what_could_not_be_sent_is_sent_later_but_not_all_of_it(
    own: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "KEPT", 10)

    async def body(world: World) -> None:
        client = await world.open("client")
        own.kill()
        for number in range(25):
            await client.publish([Hint(f"acme/{number}", "default")])
        await until(lambda: client.lost == 15)
        for number in range(25, 50):
            await client.publish([Hint(f"acme/{number}", "default")])
        assert client.lost == 40
        own.start()
        worker = await world.open("w1", "default")
        assert {hint.key for hint in await got(worker, 10)} == {f"acme/{number}" for number in range(40, 50)}
        assert client.lost == 40

    play(own.url, body)


def test_a_server_that_does_not_answer_keeps_nobody_waiting(own: NatsServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default", block=0.2), await world.open("client")
        own.pause()
        began = time.monotonic()
        await client.publish([ONE])
        await worker.ack([TWO])
        await client.listen("acme/two")
        await until(lambda: not worker.carries and not client.carries)
        assert "does not answer" in worker.trouble
        assert time.monotonic() - began < 15
        own.go_on()
        await until(lambda: worker.carries and client.carries)
        await client.publish([TWO])
        while TWO not in await got(worker):
            pass  # the first one may have been sent several times

    play(own.url, body)


def test_whoever_listens_in_vain_notices_that_nobody_answers(own: NatsServer) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        own.pause()
        await client.listen("acme/one")
        await until(lambda: "does not answer" in client.trouble)
        own.go_on()
        await until(lambda: client.carries)

    play(own.url, body)


def test_a_server_that_does_not_answer_does_not_keep_us_from_closing(own: NatsServer) -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.publish([ONE])
        assert await worker.receive(10) == [ONE]
        own.pause()
        began = time.monotonic()
        # More than the system takes for a server that reads nothing
        await client.publish([Hint(f"acme/{'x' * 50_000}{number}", "default") for number in range(200)])
        await asyncio.sleep(0.05)
        await client.close()
        await worker.close()
        assert time.monotonic() - began < 15
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "perdure-nats"], "all have ended"
        own.go_on()

    play(own.url, body)


def test_a_connection_that_says_nothing_is_noticed(own: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "QUIET", 0.2)

    async def body(world: World) -> None:
        async with Proxy("127.0.0.1", own.port) as wire:
            client = await world.open("client", url=f"nats://127.0.0.1:{wire.port}")
            worker = await world.open("w1", "default")
            await asyncio.sleep(0.5)
            assert client.carries, "somebody answered"
            wire.swallow()
            await until(lambda: "does not answer" in client.trouble)
            wire.heal()
            await all_well(world, worker, client)
            await client.close()

    play(own.url, body)


def test_after_a_lost_connection_the_worker_looks_and_goes_on(own: NatsServer) -> None:
    async def body(world: World) -> None:
        async with Proxy("127.0.0.1", own.port) as wire:
            worker = await world.open("w1", "default", url=f"nats://127.0.0.1:{wire.port}", block=60)
            client = await world.open("client")
            for _ in range(3):
                wire.sever()
                await told_to_look(worker)  # sooner than a request is over, or the line is tried
                await all_well(world, worker, client)
            await worker.close()

    play(own.url, body)


def test_lost_connections_lose_nothing_that_was_kept(own: NatsServer) -> None:
    async def body(world: World) -> None:
        async with Proxy("127.0.0.1", own.port) as wire:
            url = f"nats://127.0.0.1:{wire.port}"
            worker = await world.open("w1", "default", url=url, idle=0.5)
            client = await world.open("client", url=url)
            received: set[str] = set()

            async def receive() -> None:
                while len(received) < 300:
                    received.update(hint.key for hint in await got(worker))

            receiving = asyncio.create_task(receive())
            for number in range(300):
                await client.publish([Hint(f"acme/{number}", "default")])
                if number % 100 == 50:
                    wire.sever()
                    await until(lambda: client.trouble)
                    await until(lambda: client.carries)
                await asyncio.sleep(0)
            await asyncio.wait_for(receiving, 10)
            await worker.close()
            await client.close()

    play(own.url, body)


def test_one_of_several_hosts_will_do(own: NatsServer) -> None:
    async def body(world: World) -> None:
        with NatsServer() as gone:
            port = gone.port
        for _ in range(4):  # they are tried in any order
            worker = await world.open("w1", "default", url=f"nats://127.0.0.1:{port},127.0.0.1:{own.port}")
            assert worker.carries
            await worker.close()

    play(own.url, body)


def test_a_trouble_that_lasts_is_logged_once(own: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default")
        own.kill()
        for _ in range(4):
            await told_to_look(worker)
        own.start()
        await until(lambda: worker.carries)

    with caplog.at_level(logging.INFO, "perdure"):
        play(own.url, body)
    assert caplog.text.count("hints do not get through") == 1
    assert caplog.text.count("hints get through again") == 1


# The server refuses.


def test_a_wrong_password_is_refused_at_once_and_told_to_nobody() -> None:
    async def scenario(server: NatsServer) -> None:
        for login in ("", "ada:s3cret@", "ada@"):
            with pytest.raises(SettingsError, match="refuses us .*: mend the user, the password") as raised:
                await NatsStream(f"nats://{login}127.0.0.1:{server.port}").open("w1", ["default"])
            assert "s3cret" not in str(raised.value)
        stream = NatsStream(f"nats://ada:p%40ss@127.0.0.1:{server.port}")
        await stream.open("w1", ["default"])
        assert stream.carries
        await stream.close()

    with NatsServer("--user", "ada", "--pass", "p@ss") as server:
        asyncio.run(scenario(server))


def test_a_token_lets_us_in() -> None:
    async def scenario(server: NatsServer) -> None:
        stream = NatsStream(f"nats://t0ken@127.0.0.1:{server.port}")
        await stream.open("w1", ["default"])
        assert stream.carries
        await stream.close()

    with NatsServer("--auth", "t0ken") as server:
        asyncio.run(scenario(server))


LIMITED = """
authorization { users = [
  {user: ada, password: one, permissions: {publish: ["%s.>", "$JS.API.>", "$JS.ACK.>"], subscribe: ["_INBOX.>"]}}
  {user: bob, password: two, permissions: {publish: ["x"], subscribe: ["_INBOX.>"]}}
] }
"""


@pytest.mark.parametrize(("login", "what"), [("ada:one", "subscription"), ("bob:two", "publish")])
def test_permissions_that_do_not_suffice_are_named(login: str, what: str) -> None:
    async def scenario(server: NatsServer) -> None:
        with pytest.raises(SettingsError, match=f"permissions violation for {what} to .*mend the user"):
            await NatsStream(f"nats://{login}@127.0.0.1:{server.port}").open("w1", ["default"])

    with NatsServer(config=LIMITED % "perdure") as server:
        asyncio.run(scenario(server))


def test_the_permissions_that_the_page_names_suffice() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/brokers.md").read_text()
    found = re.search(r"```text\n(publish: .*?)```", page, re.DOTALL)
    assert found is not None
    config = f"authorization {{ users = [{{user: ada, password: one, permissions: {{{found[1]}}}}}] }}"

    async def body(world: World) -> None:
        options = {"url": f"nats://ada:one@127.0.0.1:{own.port}", "prefix": "shop"}
        worker, client = await world.open("w1", "default", **options), await world.open("client", **options)
        await all_well(world, worker, client)
        assert worker._line is not None  # with a stream that somebody has changed its facts are asked for
        assert (await worker._line.client.jsm().stream_info("shop_hints")).config.retention == "workqueue"

    with NatsServer(config=config) as own:
        play(own.url, body)


def test_a_server_that_comes_back_with_another_password_is_a_trouble() -> None:
    async def body(world: World) -> None:
        worker = await world.open("w1", "default", url=f"nats://ada:one@127.0.0.1:{own.port}")
        own.kill()
        own._options = ("--user", "ada", "--pass", "two")
        own.start()
        await until(lambda: "refuses us" in worker.trouble)
        own.kill()
        own._options = ("--user", "ada", "--pass", "one")
        own.start()
        await until(lambda: worker.carries)

    with NatsServer("--user", "ada", "--pass", "one") as own:
        play(own.url, body)


def test_a_server_without_jetstream_is_refused() -> None:
    async def scenario(server: NatsServer) -> None:
        with pytest.raises(SettingsError, match="has no JetStream for us: start it with -js"):
            await NatsStream(server.url).open("w1", ["default"])

    with NatsServer(jetstream=False) as server:
        asyncio.run(scenario(server))


def test_a_stream_that_takes_no_more_is_a_trouble_and_hints_wait(own: NatsServer) -> None:
    async def body(world: World) -> None:
        client = await world.open("client")
        manager = await world.manager()
        config = (await manager.stream_info(world.names.stream)).config
        await manager.update_stream(config.evolve(max_msgs=1, discard="new"))
        await client.publish([ONE])
        await client.publish([TWO])
        await until(lambda: "answers with an error (maximum messages exceeded)" in client.trouble)
        await manager.update_stream(config)
        worker, left = await world.open("w1", "default"), {ONE, TWO}
        while left:
            left -= {*await got(worker)}  # the first one was sent with the second, again and again
        await until(lambda: client.carries)

    play(own.url, body)


def test_a_line_that_never_holds_is_not_made_at_once_each_time(
    own: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "PAUSE", 1.0)
    made: list[float] = []
    connect = line.Line.connect

    async def counted(self: line.Line, name: str) -> None:
        made.append(time.monotonic())
        await connect(self, name)

    async def body(world: World) -> None:
        client = await world.open("client")
        manager = await world.manager()
        config = (await manager.stream_info(world.names.stream)).config
        await manager.update_stream(config.evolve(max_msgs=1, discard="new"))
        monkeypatch.setattr(line.Line, "connect", counted)
        await client.publish([ONE])
        await client.publish([TWO])  # it is refused on each line
        await asyncio.sleep(2)
        assert 2 < len(made) < 12
        await manager.update_stream(config)
        await until(lambda: client.carries)

    play(own.url, body)


def test_what_is_too_large_for_the_server_is_lost_alone() -> None:
    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await client.publish([Hint("acme/" + "x" * 3000, "default"), ONE])
        assert await got(worker) == [ONE]
        assert (client.lost, client.trouble) == (1, "")

    with NatsServer(config="max_payload: 2048") as own:
        play(own.url, body)


# Messages that nobody wants.


def test_what_cannot_be_read_is_dropped_and_does_not_spoil_the_rest(
    own: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    bad: list[bytes] = [b"", b"hello", b"\xff", b"{}", b"[1]", b"[[1]]", b'[[["acme"]]]']

    async def body(world: World) -> None:
        worker, client = await world.open("w1", "default"), await world.open("client")
        await worker.listen("acme/one")
        outside: Any = await world.client()
        names = world.names
        for content in bad:
            await outside.request(names.queue("default"), content)
            for subject in (names.worker("w1"), names.words, names.ends("acme/one")):
                await outside.publish(subject, content)
        await outside.flush()
        await client.publish([ONE, MINE, END])
        assert set(await got(worker, 3)) == {ONE, MINE, END}
        await until(lambda: empty(world))
        assert worker.carries

    async def empty(world: World) -> bool:
        return await world.kept() == 0

    with caplog.at_level(logging.WARNING, "perdure"):
        play(own.url, body)
    assert "cannot be read" in caplog.text


# The way is encrypted.


def certificate(folder: Path) -> tuple[Path, Path]:
    """One for this host that nobody else trusts, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "perdure test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(hours=1), now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key").write_bytes(key.private_bytes(*form))
    return folder / "cert", folder / "key"


def test_over_tls_only_a_server_that_is_trusted_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path)

    async def body(world: World) -> None:
        with pytest.MonkeyPatch.context() as bare:
            bare.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
            stranger = await world.open("client")
            assert "cannot be reached" in stranger.trouble and "certificate verify failed" in stranger.trouble
            await stranger.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        worker, client = await world.open("w1", "default"), await world.open("client")
        await all_well(world, worker, client)

    with NatsServer("--tls", "--tlscert", str(cert), "--tlskey", str(key)) as own:
        play(own.url.replace("nats://", "tls://"), body)


def test_where_tls_is_asked_for_nothing_is_said_without_it() -> None:
    heard: list[bytes] = []

    async def scenario() -> None:
        async def bare(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id": "x", "version": "2.15.1", "max_payload": 1048576, "headers": true}\r\n')
            heard.append(await reader.read(1000))
            writer.close()

        async with await asyncio.start_server(bare, "127.0.0.1", 0) as server:
            url = f"tls://ada:s3cret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(SettingsError, match="has no TLS, which its address asks for"):
                await NatsStream(url).open("w1", ["default"])

    asyncio.run(scenario())
    assert heard == [b""]
