"""Where the broker is and who we are there: amqp://USER:PASSWORD@HOST:PORT/VHOST, amqps:// for TLS.

Rules kept here: what an address does not say is what RabbitMQ has at first (guest, 5672, the virtual host /); a word
that nobody understands is refused; no text made here has the password in it.
"""

from __future__ import annotations

import ssl
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from perdure.errors import SettingsError

_PORTS = {"amqp": 5672, "amqps": 5671}
_OPTIONS = {"cafile", "certfile", "keyfile"}


class Address(Struct, frozen=True):
    """An address that has been read."""

    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool = False
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"

    def context(self) -> ssl.SSLContext | None:
        """How the server's certificate is checked, and which one we show."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile)
        except OSError as error:  # also what is wrong with the content
            files = ", ".join(file for file in (self.cafile, self.certfile, self.keyfile) if file)
            raise SettingsError(f"the certificates for RabbitMQ cannot be read ({files}): {error}") from error
        return context


def read_address(url: str) -> Address:
    """Take an address apart.

    >>> read_address("amqp://ada@mq.example/shop").place
    'mq.example:5672'
    >>> read_address("amqps://mq.example/%2Fshop").vhost
    '/shop'
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        raise SettingsError("the address of RabbitMQ is amqp://USER:PASSWORD@HOST:5672/VHOST, or amqps://…") from None
    given = parse_qs(parts.query, keep_blank_values=True)
    options = {name: values[-1] for name, values in given.items()}
    if unknown := options.keys() - _OPTIONS:
        there = ", ".join(sorted(_OPTIONS))
        raise SettingsError(f"the address of RabbitMQ has an unknown option {', '.join(sorted(unknown))}; use {there}")
    if options and parts.scheme != "amqps":
        raise SettingsError("certificates in the address of RabbitMQ need TLS: write amqps:// rather than amqp://")
    return Address(
        host=parts.hostname or "localhost",
        port=port,
        user=unquote(parts.username or "guest"),
        password=unquote(parts.password if parts.password is not None else "guest" if not parts.username else ""),
        vhost=unquote(parts.path.removeprefix("/")) or "/",
        tls=parts.scheme == "amqps",
        **options,
    )
