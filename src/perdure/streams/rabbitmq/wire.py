"""One connection to RabbitMQ with one channel: frames go out and come in; what they look like the package pamqp knows.

Rules kept here: nothing is repeated behind the caller's back; every call ends, by its answer, by the end of the
connection or by its time limit; a broker that says nothing for a heartbeat counts as gone; whatever closes the channel
or takes a queue away from us ends the whole connection, because its owner makes everything anew with the next one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from struct import Struct as Layout
from typing import Any, NamedTuple, Protocol, cast

from pamqp import commands, frame as frames
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.common import FieldTable
from pamqp.header import ContentHeader, ProtocolHeader
from pamqp.heartbeat import Heartbeat

from perdure.streams.rabbitmq.address import Address

#: How long a connection may take to be made, and a call to be answered, in seconds.
TIMEOUT = 2.0
CHANNEL = 1
#: Bytes of a frame: what we take, and what every broker takes.
LARGE, SMALL = 131_072, 4_096
_ABLE: FieldTable = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}
_HEAD = Layout(">BHI")  # kind, channel and size of a frame; a byte follows its content
#: The frame that says how long a message is, at this place; the rest of it is the sender's, and nothing to us.
_HEADER, _SIZE = 2, Layout(">11xQ")
_TRANSIENT = commands.Basic.Properties(content_type="application/json", delivery_mode=1)


class Refused(Exception):
    """The broker has closed the channel or the connection, and said why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Vanished(ConnectionError):
    """What we read from is not there any more."""


#: What a call raises when RabbitMQ could not do it; a time limit is one of them.
FAILURES = (OSError, Refused)


class Letter(NamedTuple):
    """A message on its way out; one for a queue must arrive there."""

    word: str  # the routing key
    body: bytes
    queue: str | None = None


class Owner(Protocol):
    """Who is told what comes in."""

    def arrived(self, consumer: str, tag: int, body: bytes) -> None: ...

    def blocked(self, reason: str) -> None:
        """The broker takes nothing at present, or again if there is no reason."""


class Wire(asyncio.Protocol):
    """See the module. `ended` is done when the connection is gone, with the reason as its result."""

    def __init__(self, address: Address, owner: Owner, heartbeat: int) -> None:
        self._address = address
        self._owner = owner
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._replies: deque[asyncio.Future[Any]] = deque()
        self._content: tuple[Frame, list[bytes], int] | None = None  # what it belongs to, its parts and what is missing
        self._tag = 0
        self._flight: dict[int, Letter] = {}
        self._back: list[Letter] = []
        self._landed: asyncio.Future[None] | None = None
        self._heard = self._loop.time()
        self._beat: asyncio.TimerHandle | None = None
        self._frame = SMALL
        self.stopped = False  # the broker takes nothing
        self.ended: asyncio.Future[BaseException] = self._loop.create_future()

    # What the owner calls

    async def open(self) -> None:
        """Connect, log in, and open the channel."""
        address = self._address
        async with asyncio.timeout(TIMEOUT):
            await self._loop.create_connection(lambda: self, address.host, address.port, ssl=address.context())
            await self._call(ProtocolHeader())
            tune = await self._call(
                commands.Connection.StartOk(
                    client_properties={"product": "perdure", "connection_name": "perdure hints", "capabilities": _ABLE},
                    mechanism="PLAIN",
                    response=f"\0{address.user}\0{address.password}",
                )
            )
            self._frame = max(SMALL, min(tune.frame_max or LARGE, LARGE))
            self._heartbeat = min(self._heartbeat, tune.heartbeat or self._heartbeat)
            self._write(commands.Connection.TuneOk(tune.channel_max, self._frame, self._heartbeat), channel=0)
            await self._call(commands.Connection.Open(virtual_host=address.vhost))
        self._watch()
        await self.ask(commands.Channel.Open())

    async def ask(self, *calls: Frame) -> list[Any]:
        """Make these calls, all at once, and wait for the answers."""
        waiting = [self._expect() for _ in calls]
        self._write(*calls)
        async with asyncio.timeout(TIMEOUT):
            return [await answer for answer in waiting]

    def tell(self, *calls: Frame) -> None:
        """Calls that are not answered."""
        self._write(*calls)

    async def fly(self, exchange: str, letters: Sequence[Letter]) -> list[Letter]:
        """Publish these and wait until the broker has confirmed all; those that reached no queue come back.

        While the broker takes nothing there is no limit to the wait but the end of the connection.
        """
        self._back = []
        self._landed = self._loop.create_future()
        data: list[bytes] = []
        for letter in letters:
            self._tag += 1
            self._flight[self._tag] = letter
            data += self._packed(exchange, letter)
        self._send(b"".join(data))
        try:
            while not self._landed.done():
                await asyncio.wait([self._landed], timeout=None if self.stopped else TIMEOUT)
                if not self._landed.done() and not self.stopped:
                    raise TimeoutError
            self._landed.result()
            return self._back
        finally:
            self._landed = None

    async def close(self) -> None:
        """Say goodbye, so that everything sent before is read, but do not wait for long."""
        if not self.ended.done():
            try:
                async with asyncio.timeout(TIMEOUT):
                    await self._call(commands.Connection.Close(200, "goodbye", 0, 0))
            except FAILURES:
                pass
        self.end(ConnectionError("it was closed"))

    def end(self, reason: BaseException) -> None:
        """Cut it."""
        if self._transport is not None:
            self._transport.abort()
        if self._beat is not None:
            self._beat.cancel()
        if self.ended.done():
            return
        self.ended.set_result(reason)
        for waiting in (*self._replies, self._landed):
            if waiting is not None and not waiting.done():
                waiting.set_exception(reason)
                waiting.exception()  # whoever waited may have gone
        self._replies.clear()

    # What goes out

    async def _call(self, call: Frame | ProtocolHeader) -> Any:
        answer = self._expect()
        self._write(call, channel=0)
        return await answer

    def _expect(self) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.ended.done():
            answer.set_exception(self.ended.result())
        else:
            self._replies.append(answer)
        return answer

    def _write(self, *calls: Frame | ProtocolHeader | Heartbeat, channel: int = CHANNEL) -> None:
        self._send(b"".join(frames.marshal(call, channel) for call in calls))

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self.ended.done():
            self._transport.write(data)

    def _packed(self, exchange: str, letter: Letter) -> list[bytes]:
        call = commands.Basic.Publish(exchange=exchange, routing_key=letter.word, mandatory=letter.queue is not None)
        header = ContentHeader(body_size=len(letter.body), properties=_TRANSIENT)
        size = self._frame - 8
        parts = [ContentBody(letter.body[at : at + size]) for at in range(0, len(letter.body), size)]
        whole = [frames.marshal(call, CHANNEL), frames.marshal(header, CHANNEL)]
        return whole + [frames.marshal(part, CHANNEL) for part in parts]

    def _watch(self) -> None:
        """Tell the broker now and then that we are there, and see that it is."""
        if self._loop.time() - self._heard > self._heartbeat:
            self.end(TimeoutError("it says nothing"))
            return
        self._write(Heartbeat(), channel=0)
        self._beat = self._loop.call_later(self._heartbeat / 2, self._watch)

    # What comes in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its manners only

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc if isinstance(exc, OSError) else ConnectionError("the connection has ended"))

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._buffer += data
        at, there = 0, len(self._buffer)
        while there - at >= _HEAD.size and not self.ended.done():
            stop = at + _HEAD.size + _HEAD.unpack_from(self._buffer, at)[2] + 1
            if self._buffer[at : at + 4] == b"AMQP":
                self.end(ConnectionError("it does not speak AMQP 0-9-1"))
            elif stop - at > LARGE + _HEAD.size + 1:
                self.end(ConnectionError("it does not speak AMQP"))
            elif stop > there:
                break
            else:
                self._read(bytes(self._buffer[at:stop]))
                at = stop
        del self._buffer[:at]

    def _read(self, data: bytes) -> None:
        if data[0] == _HEADER and len(data) > _SIZE.size:
            self._gather(b"", _SIZE.unpack_from(data)[0])
            return
        try:
            _, _, frame = frames.unmarshal(data)
        except Exception as error:  # the codec stumbles in many ways
            self.end(ConnectionError(f"it sent what cannot be read ({error})"))
            return
        match frame:
            case ContentBody():
                self._gather(frame.value)
            case commands.Basic.Deliver() | commands.Basic.Return():
                self._content = frame, [], -1
            case commands.Basic.Ack() | commands.Basic.Nack():
                self._confirm(frame)
            case commands.Connection.Blocked():
                self.stopped = True
                self._owner.blocked(frame.reason or "no reason given")
            case commands.Connection.Unblocked():
                self.stopped = False
                self._owner.blocked("")
            case commands.Basic.Cancel():
                self.end(Vanished("a queue was taken away"))
            case commands.Channel.Close() | commands.Connection.Close():
                self.end(Refused(frame.reply_code or 0, frame.reply_text))
            case Heartbeat():
                pass
            case _ if self._replies:
                answer = self._replies.popleft()
                if not answer.done():
                    answer.set_result(frame)
            case _:
                pass

    def _gather(self, part: bytes, size: int | None = None) -> None:
        """The next part of a message, which has this size if it begins."""
        if self._content is None:
            return
        about, parts, missing = self._content
        parts.append(part)
        missing = (missing if size is None else size) - len(part)
        self._content = (about, parts, missing) if missing > 0 else None
        if missing > 0:
            return
        body = b"".join(parts)
        if isinstance(about, commands.Basic.Deliver):
            self._owner.arrived(about.consumer_tag or "", about.delivery_tag or 0, body)
        elif isinstance(about, commands.Basic.Return):
            same = (one for one in self._flight.values() if one.word == about.routing_key and one.body == body)
            self._back += [one for one in (next(same, None),) if one is not None]

    def _confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None:
        tags = [frame.delivery_tag]
        if frame.multiple:
            tags = [tag for tag in self._flight if tag <= frame.delivery_tag]
        for tag in tags:
            letter = self._flight.pop(tag, None)
            if letter is not None and isinstance(frame, commands.Basic.Nack):
                self._back.append(letter)
        if not self._flight and self._landed is not None and not self._landed.done():
            self._landed.set_result(None)


def explain(error: BaseException, place: str) -> str:
    """A sentence on what is wrong, and what to do where something can be done."""
    match error:
        case Refused(code=406):
            return (
                f"RabbitMQ at {place} has something else under a name of ours ({error}): use the same stream_group"
                " everywhere, or delete it, or use another stream_prefix"
            )
        case ssl.SSLCertVerificationError():
            wrong = f"the certificate of RabbitMQ at {place} is not trusted ({error.verify_message})"
            return f"{wrong}: name its authority with ?cafile=FILE"
        case Refused() if refused(error):
            return (
                f"RabbitMQ at {place} refuses us ({error}): mend the name, the password, the virtual host or the rights"
            )
        case Refused():
            return f"RabbitMQ at {place} answers with an error ({error})"
        case Vanished():
            return f"queues in RabbitMQ at {place} have vanished; they are made anew"
        case TimeoutError():
            return f"RabbitMQ at {place} does not answer"
        case _:
            return f"RabbitMQ at {place} cannot be reached ({error})"


def refused(error: BaseException) -> bool:
    """Whether no waiting mends it: we are not let in, or something of ours is somebody else's."""
    if isinstance(error, Refused):
        return error.code in {403, 406, 530} and "limit" not in str(error)
    return isinstance(error, ssl.SSLCertVerificationError)
