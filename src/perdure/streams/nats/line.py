"""One connection to NATS, with the few verbs that are needed here, and why they failed.

Rules kept here: the driver never connects again by itself, so nothing waits in a buffer of its own and every loss is
known here; whatever fails ends the whole line, and the next one is made from the beginning; a line that is silent is
noticed; nothing keeps us from leaving a line; where TLS is asked for, no password goes out without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

from nats import errors
from nats.aio.client import Client
from nats.js.errors import APIError, ServiceUnavailableError

from perdure.streams.nats.address import Address

#: How long NATS may take to answer, in seconds.
TIMEOUT = 2.0
#: How often a line is tried, in seconds.
QUIET = 10.0
#: How long a line may take to be closed in order, in seconds.
FAREWELL = 0.5
#: What the server says to those whom it does not let in, or not do what they must.
REFUSALS = ("authorization violation", "permissions violation", "authentication expired", "authentication revoked")
#: What JetStream says where a second group of workers asks for what goes to one reader each.
NOT_ALONE = (10099, 10100)
#: What it says where it is not enabled, if it is there to say anything.
NOT_ENABLED = (None, 10039, 10076)

Hear = Callable[[Any], Awaitable[None]]


class Vanished(Exception):
    """What should be there is not: somebody deleted it, or the server has lost its data."""


#: What a line raises when NATS could not do something.
FAILURES = (errors.Error, Vanished, OSError, TimeoutError)


class _Client(Client):
    """Says nothing of ours before the line is encrypted, where `tls://` asks for that: the driver does not mind."""

    def _connect_command(self) -> bytes:
        asked = self._current_server is not None and self._current_server.uri.scheme == "tls"
        if asked and not self._server_info.get("tls_required"):
            raise errors.SecureConnWantedError
        return super()._connect_command()


class Line:
    """A connection that is open until something fails on it. Nobody hears the subject `nobody`."""

    def __init__(self, address: Address, nobody: str) -> None:
        self._address = address
        self._nobody = nobody
        self.client: Any = _Client()  # its own types differ between its versions
        self._ended = asyncio.Event()
        self._reason: BaseException | None = None
        self._connecting = True

    async def connect(self, name: str) -> None:
        async def ended() -> None:
            self.fail(ConnectionError("the connection has ended"))

        async def wrong(error: Exception) -> None:
            if self._connecting or refused(error):
                self.fail(error)

        address = self._address
        try:
            await self.client.connect(
                servers=list(address.servers),
                user=address.user,
                password=address.password,
                token=address.token,
                name=name,
                no_echo=True,
                error_cb=wrong,
                closed_cb=ended,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=TIMEOUT,
                flush_timeout=TIMEOUT,
            )
        except errors.NoServersError:
            pass  # the reason says more
        if not self.client.is_connected:
            raise self._reason or ConnectionError("it hangs up")
        self._connecting, self._reason = False, None
        self._ended.clear()

    async def ask(self, subject: str, payload: bytes) -> bytes:
        """A question and its answer."""
        try:
            answer: bytes = (await self.client.request(subject, payload, timeout=TIMEOUT)).data
        except errors.NoRespondersError as error:
            raise Vanished(f"nobody hears {subject}") from error
        return answer

    async def hear(self, subject: str, hear: Hear) -> Any:
        """From now on, and not only from when the server gets to know of it; gives the driver's subscription."""
        heard = await self.client.subscribe(subject, cb=hear)
        await self._be_answered()
        if self._reason is not None:
            raise self._reason
        return heard

    async def watch(self) -> NoReturn:
        """Wait for the end of the line, and say why it has ended."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET):
                    await self._ended.wait()
            if self._reason is not None:
                raise self._reason
            await self._be_answered()

    async def _be_answered(self) -> None:
        """The server has got everything that was said so far. The driver's own question overtakes what it writes."""
        try:
            with suppress(errors.NoRespondersError):
                await self.client.request(self._nobody, timeout=TIMEOUT)
        except errors.TimeoutError as error:
            self.fail(error)  # whoever asked
            raise

    def fail(self, error: BaseException) -> None:
        self._reason = self._reason or error
        self._ended.set()

    @property
    def reason(self) -> BaseException | None:
        """What is known about why it does not work."""
        return self._reason

    async def close(self) -> None:
        try:
            async with asyncio.timeout(FAREWELL):
                await self.client.close()
        except (TimeoutError, OSError):
            pass
        finally:
            writer = getattr(self.client._transport, "_io_writer", None)
            if writer is not None:
                writer.transport.abort()


@asynccontextmanager
async def connected(address: Address, name: str, nobody: str) -> AsyncIterator[Line]:
    line = Line(address, nobody)
    try:
        await line.connect(name)
        yield line
    except FAILURES as error:
        raise line.reason or error from None
    finally:
        await line.close()


async def end(tasks: Sequence[asyncio.Task[Any]], patience: float = 0.05) -> None:
    """Cancel tasks until they have ended: the driver swallows a cancel that comes while it writes."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=patience)
    await asyncio.gather(*tasks, return_exceptions=True)  # several may have failed for the same reason


def refused(error: BaseException) -> bool:
    """Whether the server does not let us in, or not do what we must."""
    known = isinstance(error, errors.Error) and not isinstance(error, APIError)
    return known and any(said in str(error).lower() for said in REFUSALS)


def set_wrong(error: BaseException) -> bool:
    """Whether only somebody who changes a setting can mend it."""
    bare = isinstance(error, errors.SecureConnWantedError)
    return bare or refused(error) or _without_jetstream(error) or _not_alone(error)


def explain(error: BaseException, place: str) -> str:
    """A sentence on what is wrong, and what to do where something can be done."""
    match error:
        case Vanished():
            return f"the stream of hints in NATS at {place} has vanished ({error}); it is made anew"
        case errors.SecureConnWantedError():
            return f"NATS at {place} has no TLS, which its address asks for: enable it there, or write nats://"
        case _ if refused(error):
            said = str(error).removeprefix("nats: ").replace("'", "").replace('"', "")
            return f"NATS at {place} refuses us ({said}): mend the user, the password, the token or the permissions"
        case _ if _without_jetstream(error):
            return f"NATS at {place} has no JetStream for us: start it with -js, or enable it for the account"
        case _ if _not_alone(error):
            return (
                f"the hints in NATS at {place} are shared by workers of another group: give all processes of a prefix"
                " the same stream_group, or another prefix; or stop them all and delete its stream"
            )
        case APIError():
            return f"NATS at {place} answers with an error ({error.description})"
        case errors.TimeoutError() | TimeoutError():
            return f"NATS at {place} does not answer"
        case _:
            return f"NATS at {place} cannot be reached ({error})"


def _without_jetstream(error: BaseException) -> bool:
    return isinstance(error, ServiceUnavailableError) and error.err_code in NOT_ENABLED  # others pass


def _not_alone(error: BaseException) -> bool:
    return isinstance(error, APIError) and error.err_code in NOT_ALONE
