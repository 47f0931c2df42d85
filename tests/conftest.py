"""What all tests need of their process."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from perdure.testing.servers.valkey import shared_server

# A shell without job control starts its background jobs with Ctrl-C ignored, and their children inherit that: then no
# test could interrupt a process.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A server that the tests share: each uses a prefix of its own."""
    with shared_server() as url:
        yield url
