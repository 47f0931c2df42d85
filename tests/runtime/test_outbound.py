"""Outgoing calls: hostile URLs, addresses that change, answers without end; on real sockets of the loopback."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from perdure.errors import External, OutboundRefused
from perdure.runtime.web.addresses import allowed
from perdure.runtime.web.outbound import Outbound
from tests.http.receiver import closed, receiving


async def nowhere(host: str, port: int) -> list[str]:
    raise AssertionError(f"{host} was resolved")


async def loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def leads_to(*addresses: str) -> Callable[[str, int], Awaitable[list[str]]]:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


def refused(url: str, out: Outbound, **more: object) -> str:
    async def main() -> str:
        async with asyncio.timeout(20):
            with pytest.raises(OutboundRefused) as caught:
                await out.request("POST", url, **more)  # type: ignore[arg-type]
        return str(caught.value)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "file:///etc/passwd",
        "gopher://example.com:70/_x",
        "ftp://example.com/",
        "unix:///var/run/docker.sock",
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
        "javascript:alert(1)",
        "//example.com/",
        "https:///path",
        "https://user@example.com/",
        "https://user:pass@example.com/",
        "https://example.com@127.0.0.1/",
        "https://@example.com/",
        "https://127.1/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://0x7f.0.0.1/",
        "https://0x7f000001/",
        "https://127.0.0.1.:0x1/",
        "https://1.2.3.0x7f/",
        "https://127.0.0.1/",
        "https://127.8.8.8/",
        "https://0.0.0.0/",
        "https://10.0.0.1/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://100.64.0.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://224.0.0.1/",
        "https://255.255.255.255/",
        "https://192.0.2.1/",
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[::127.0.0.1]/",
        "https://[64:ff9b::10.0.0.1]/",
        "https://[2002:7f00:1::]/",
        "https://[2001:0:7f00:1::]/",
        "https://[fe80::1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fc00::1]/",
        "https://[fd00:ec2::254]/",
        "https://[ff02::1]/",
        "https://[::1",
        "https://exa mple.com/",
        "https://example.com/\r\nX-Evil: 1",
        "https://example.com\\@127.0.0.1/",
        "https://exämple.com/",
        "https://ⅼocalhost/",
        "https://127。0。0。1/",
        "https://-example.com/",
        "https://a..b/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:80x/",
        "https://" + "a" * 3000 + "/",
        "",
    ],
)
def test_a_hostile_url_is_refused_before_anything_is_resolved_or_sent(url: str) -> None:
    assert refused(url, Outbound(resolve=nowhere))


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["169.254.169.254"],
        ["::ffff:10.0.0.1"],
        ["93.184.215.14", "10.0.0.1"],  # one bad address among good ones is enough
        ["fe80::1%lo"],
        ["not an address"],
    ],
)
def test_a_name_that_leads_to_an_inner_address_is_refused(addresses: list[str]) -> None:
    assert "not a public address" in refused("https://localtest.me/", Outbound(resolve=leads_to(*addresses)))


def test_localhost_is_refused_by_what_this_machine_says_it_is() -> None:
    assert "not a public address" in refused("https://localhost/", Outbound())


def test_a_name_is_resolved_once_and_the_address_that_was_looked_at_is_the_one_that_is_called() -> None:
    """Rebinding: the second answer would be another one."""

    async def main() -> None:
        answers = iter(["127.0.0.1", "127.0.0.2"])
        asked: list[str] = []

        async def resolve(host: str, port: int) -> list[str]:
            asked.append(host)
            return [next(answers)]

        async with receiving() as receiver:
            out = Outbound(private=True, resolve=resolve)
            reply = await out.request("POST", f"http://rebind.example:{receiver.port}/in", body=b"x")
            assert (reply.status, asked) == (200, ["rebind.example"])
            assert receiver.got[0].headers["host"] == f"rebind.example:{receiver.port}"

    asyncio.run(main())


def test_even_where_inner_addresses_are_allowed_those_of_the_link_are_not() -> None:
    out = Outbound(private=True, resolve=leads_to("169.254.169.254"))
    assert refused("http://metadata.google.internal/", out)
    assert refused("http://169.254.169.254/", out)
    assert refused("http://0.0.0.0/", out)


def test_only_hosts_of_the_list_are_called_when_there_is_one() -> None:
    out = Outbound(["hooks.example.com", "*.partner.example"], resolve=leads_to("10.0.0.1"))
    for url in ("https://example.com/", "https://evilhooks.example.com/", "https://partner.example/"):
        assert "outbound_hosts" in refused(url, out)
    for url in ("https://hooks.example.com/", "https://HOOKS.example.com./", "https://a.partner.example/"):
        assert "not a public address" in refused(url, out)


def test_public_addresses_are_allowed() -> None:
    for one in ("1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"):
        assert allowed(one, False), one


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "inner"},
        {"content-length": "1"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "keep-alive"},
        {"Proxy-Authorization": "x"},
        {"TE": "trailers"},
        {"Upgrade": "h2c"},
        {"Accept-Encoding": "gzip"},
        {"webhook-id": "mine"},
        {"Webhook-Signature": "v1,mine"},
        {"X-A": "b\r\nHost: inner"},
        {"X-A": "b\nc"},
        {"X-A": "b\x00"},
        {"X-A\r\nHost": "inner"},
        {"X A": "b"},
        {"": "b"},
    ],
)
def test_headers_that_are_ours_or_that_end_a_line_are_refused(headers: dict[str, str]) -> None:
    assert "header" in refused("https://example.com/", Outbound(resolve=nowhere), headers=headers)


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async def main() -> None:
        async with receiving() as inner:
            away = f"HTTP/1.1 302 Found\r\nlocation: {inner.url}\r\ncontent-length: 0\r\n\r\n".encode()
            async with receiving(away) as receiver:
                reply = await Outbound(private=True).request("GET", receiver.url)
                assert (reply.status, reply.header("location")) == (302, inner.url)
                assert inner.got == []

    asyncio.run(main())


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with receiving() as proxy, receiving() as receiver:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            await Outbound(private=True).request("GET", receiver.url)
            assert (len(receiver.got), len(proxy.got)) == (1, 0)

    asyncio.run(main())


def failing(out: Outbound, *answers: int | bytes) -> str:
    async def main() -> str:
        async with asyncio.timeout(20), receiving(*answers) as receiver:
            with pytest.raises(External) as caught:
                await out.request("GET", receiver.url)
            return str(caught.value)

    return asyncio.run(main())


def test_an_answer_that_is_too_large_is_not_read_to_its_end() -> None:
    large = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 3_000_000
    assert "more than 2,000,000 bytes" in failing(Outbound(private=True), large)


def test_what_is_packed_stays_packed() -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb)}\r\n\r\n".encode()

    async def main() -> None:
        async with receiving(head + bomb) as receiver:
            reply = await Outbound(private=True).request("GET", receiver.url)
            assert reply.body == bomb
            assert receiver.got[0].headers["accept-encoding"] == "identity"

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_an_answer_that_is_none_is_a_failure_worth_another_try(answer: bytes) -> None:
    assert failing(Outbound(private=True), answer)


def test_whoever_does_not_answer_in_time_is_given_up() -> None:
    async def main() -> None:
        gone = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            await closed(writer)
            gone.set()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(External, match=r"longer than 0\.2 s"):
                await Outbound(private=True, total=0.2).request("GET", f"http://127.0.0.1:{port}/")
            await gone.wait()

    asyncio.run(main())


def test_a_resolver_that_does_not_answer_counts_as_part_of_the_connection() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def main() -> None:
        with pytest.raises(External, match=r"within 0\.1 s"):
            await Outbound(resolve=never, connect=0.1).request("GET", "https://example.com/")

    asyncio.run(main())


def test_a_host_that_nobody_knows_or_that_listens_to_nobody_is_worth_another_try() -> None:
    async def main() -> None:
        with pytest.raises(External, match="cannot be found"):
            await Outbound().request("GET", "https://nobody.invalid/")
        with pytest.raises(External, match="cannot be reached"):
            await Outbound(private=True).request("GET", "http://127.0.0.1:1/")

    asyncio.run(main())


# --- TLS --------------------------------------------------------------------------------------------------------------


def certificate(path: Path, name: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    day = timedelta(days=1)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = path / f"{name}.pem"
    file.write_bytes(secret + made.public_bytes(pem))
    return file


def test_tls_asks_for_the_name_and_checks_it_though_an_address_is_called(tmp_path: Path) -> None:
    async def main() -> None:
        file = certificate(tmp_path, "hooks.example")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(file)
        out = Outbound(private=True, resolve=loopback, tls=ssl.create_default_context(cafile=str(file)))
        async with receiving(tls=server) as receiver:
            reply = await out.request("GET", f"https://hooks.example:{receiver.port}/")
            assert (reply.status, receiver.asked_for) == (200, ["hooks.example"])
            with pytest.raises(External, match="certificate"):
                await out.request("GET", f"https://other.example:{receiver.port}/")

    asyncio.run(main())


def test_a_certificate_that_nobody_vouches_for_is_not_taken(tmp_path: Path) -> None:
    async def main() -> None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate(tmp_path, "hooks.example"))
        async with receiving(tls=server) as receiver:
            with pytest.raises(External, match="certificate"):
                await Outbound(private=True, resolve=loopback).request("GET", f"https://hooks.example:{receiver.port}/")

    asyncio.run(main())
