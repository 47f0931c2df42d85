"""Ports for private servers, and why they are not simply any free ones.

The system gives outgoing connections ports from a range of its own (32768 and above on Linux). A server there could
find its port taken by such a connection, while it starts or while it is down for a moment; a client that tries again
and again to reach a server which is down can even end up connected to itself, and then the server cannot come back. So
the ports given here lie below that range.
"""

from __future__ import annotations

import random
import socket

FIRST, LAST = 11_000, 32_000

_random = random.SystemRandom()  # not the one that tests seed: processes side by side would all try the same ports


def free_port(*, below: int = LAST, beside: int = 1) -> int:
    """A port of this host where nobody listens, nor on those that follow it until there are `beside` of them."""
    for _ in range(1000):
        port = _random.randrange(FIRST, below - beside)
        if all(_is_free(one) for one in range(port, port + beside)):
            return port
    raise RuntimeError(f"no port between {FIRST} and {below} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
