"""The stream of many machines: hints through NATS.

Work for a queue is kept by JetStream until somebody has acked it; what is for one worker, ends and other news are plain
messages, heard by whoever is there. Rules kept here: a hint is a reference and may get lost, so nothing here raises but
a wrong setting at the beginning; work that this process serves itself stays here as long as it has little in hand and
gets on with it; after every gap our own worker is told to look, because nobody knows what was missed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

from perdure.core.behalf import for_everybody
from perdure.core.records import Hint
from perdure.errors import SettingsError, UsageError
from perdure.streams.inbox import Inbox
from perdure.streams.nats import notes
from perdure.streams.nats.address import read_address
from perdure.streams.nats.hand import Hand, Message
from perdure.streams.nats.keeping import make
from perdure.streams.nats.line import FAILURES, FAREWELL, TIMEOUT, Line, connected, end, explain, set_wrong
from perdure.streams.nats.names import Names
from perdure.streams.nats.notes import Parcel, Unreadable
from perdure.streams.nats.reader import Pace, Reader
from perdure.streams.nats.sender import Sender

#: Work for our own queues stays here while we have less than this in hand.
NEAR = 100
#: The longest pause between two tries to connect, in seconds.
PAUSE = 1.0
#: A trouble that lasts is logged once in so many seconds.
SILENCE = 30.0

ACK, AGAIN, DROP = b"+ACK", b"-NAK", b"+TERM"

log = logging.getLogger("perdure.streams")


class NatsStream:
    """A Stream through the NATS at `url`: nats:// or tls://, with further hosts behind commas.

    Up to `batch` hints are asked for at once, twice as many may be in the worker's hands; a request is open for `block`
    seconds. A hint that a worker was given and did not ack goes to another one after `idle` seconds, or two leases;
    never where that is infinite.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "perdure",
        group: str = "workers",
        batch: int = 200,
        block: float = 5.0,
        lease: float = 10.0,
        idle: float | None = None,
    ) -> None:
        self._address = read_address(url)
        self._names = Names(prefix, group)
        if batch < 1 or block <= 0 or lease <= 0:
            raise SettingsError("batch, block and lease of a NATS stream must be above zero")
        self._pace = Pace(batch, block, lease, 2 * lease if idle is None else idle)
        self._inbox: Inbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._line: Line | None = None
        self._trouble = ""
        self._said = -math.inf
        self._begin()

    def _begin(self) -> None:
        """All that belongs to one opening of the stream."""
        self._sender = Sender()
        self._hand = Hand(2 * self._pace.batch, 2 * self._pace.lease)
        self._channels: dict[str, asyncio.Event] = {}  # of ends; set once they are heard
        self._asking: set[asyncio.Task[None]] = set()  # to hear some of them
        self._readers: list[Reader] = []
        self._nudged: set[str] = set()  # queues whose nudge waits in the inbox
        self._born: Any = None  # when the stream of JetStream was made that we know

    async def open(self, me: str, queues: Sequence[str]) -> None:
        """Only a wrong setting is an error. A server that is down is a trouble, and comes back some day."""
        self._begin()
        self._inbox = Inbox(me, queues)
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._carry(self._inbox, tried), name="perdure-nats", context=for_everybody())
        try:
            await tried
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Send what is to be sent, if it can be sent, and let others have what is in hand."""
        task, self._task = self._task, None
        try:
            if task is not None:
                with suppress(*FAILURES):
                    async with asyncio.timeout(TIMEOUT):
                        await self._leave()
        finally:
            if task is not None:
                await end([task, *self._asking], patience=2 * FAREWELL)  # it has tasks to end and a line to close
            inbox, self._inbox, self._trouble = self._inbox, None, ""
            if inbox is not None:
                inbox.close()

    async def _leave(self) -> None:
        if self._line is not None:
            # First nothing more is asked for, or what is given back would come to us once more.
            for reader in self._readers:
                await reader.leave()
            self._sender.send(Parcel(reply, AGAIN) for reply in self._hand.left())
            await self._sender.calm()

    @property
    def carries(self) -> bool:
        return self._inbox is not None and not self._trouble

    @property
    def trouble(self) -> str:
        return self._trouble

    @property
    def lost(self) -> int:
        """Hints that could not be sent since the stream was opened."""
        return self._sender.lost

    async def listen(self, key: str) -> None:
        channel = self._names.ends(key)
        heard = self._channels.get(channel)
        if heard is None:
            heard = self._channels[channel] = asyncio.Event()
            if self._line is not None:
                # Others wait for it as well, so it goes on if this one is cancelled.
                asking = self._ask_for(self._line, channel)
                task = asyncio.create_task(asking, name="perdure-nats", context=for_everybody())
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
        if not heard.is_set() and not self._trouble:
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT):
                    await heard.wait()

    async def publish(self, hints: Sequence[Hint]) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        free: list[Hint] = []  # for whoever is free
        away: list[Hint] = []  # for whoever is free elsewhere
        to: list[Hint] = []
        ended: list[Hint] = []
        words: list[str] = []
        for hint in filter(notes.can_be_written, hints):
            if hint.news:
                words.append(hint.news)
                if inbox.queues:
                    inbox.put(hint)
            elif hint.ended:
                ended.append(hint)
                if self._names.ends(hint.key) in self._channels:
                    inbox.put(hint)
            elif hint.to == inbox.me:
                inbox.put(hint)
            elif hint.to is not None:
                to.append(hint)
            elif hint.away and hint.queue:
                away.append(hint)
            elif hint.queue in inbox.queues and self._hand.count < NEAR and self._hand.moves:
                self._hand.take(hint, None)
                inbox.put(hint)
            elif hint.queue:
                free.append(hint)
        names = self._names
        self._sender.send(notes.to_queues(names, free))
        self._sender.send(notes.to_queues(names, away, not_for=inbox.me))
        self._sender.send(notes.to_workers(names, to))
        self._sender.send(notes.of_ends(names, ended))
        self._sender.send(notes.of_words(names, words))

    async def receive(self, limit: int) -> Sequence[Hint]:
        if self._inbox is None:
            raise UsageError("the stream is not open: nothing can be received")
        hints = await self._inbox.take(limit)
        for hint in hints:
            if not hint.key and not hint.news:
                self._nudged.discard(hint.queue)
        return hints

    async def ack(self, hints: Sequence[Hint]) -> None:
        self._sender.send(Parcel(reply, ACK) for reply in self._hand.give(hints))

    # The line

    async def _carry(self, inbox: Inbox, tried: asyncio.Future[None]) -> None:
        """Hear and send for as long as the stream is open, over one line after the other."""
        pause = 0.05
        while True:
            since = math.inf
            try:
                async with self._prepared(inbox) as line:
                    since = time.monotonic()
                    self._well(inbox, tried)
                    await self._serve(line, inbox)
            except (SettingsError, *FAILURES) as error:
                wrong = isinstance(error, SettingsError)
                self._ill(str(error) if wrong else explain(error, self._address.place))
                if not tried.done() and (wrong or set_wrong(error)):
                    tried.set_exception(SettingsError(self._trouble))
            except Exception:
                log.exception("carrying hints broke; going on")
                self._ill("carrying hints broke; the log has the error")
            finally:
                self._line = None
                for heard in self._channels.values():
                    heard.clear()
            if not tried.done():
                tried.set_result(None)
            elif since == math.inf:
                self._look(inbox)  # as long as nothing comes in, the store is asked
            if time.monotonic() - since > PAUSE:
                pause = 0.05
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, PAUSE)

    @asynccontextmanager
    async def _prepared(self, inbox: Inbox) -> AsyncIterator[Line]:
        """A line on which everything is heard that is for us, after all was made that was missing."""
        async with connected(self._address, f"perdure {inbox.me}", self._names.nobody) as line:
            born = await make(line, self._names, sorted(inbox.queues), self._pace.idle, self._address.place)
            if self._born not in {None, born}:
                self._hand.forget()
            self._born = born
            await line.hear(self._names.worker(inbox.me), self._hear_own)
            if inbox.queues:
                await line.hear(self._names.words, self._hear_words)
            self._line = line  # from now on whoever listens for another end does so by himself
            for channel in list(self._channels):
                await self._hear_ends(line, channel)
            yield line

    async def _serve(self, line: Line, inbox: Inbox) -> NoReturn:
        queues = sorted(inbox.queues)
        shared = (self._hand, self._pace, len(queues))
        self._readers = [Reader(line, self._names, queue, *shared) for queue in queues]
        loops = [line.watch(), self._sender.run(line), *(reader.run(self._come) for reader in self._readers)]
        tasks = [asyncio.create_task(loop, name="perdure-nats", context=for_everybody()) for loop in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise ConnectionError("the connection has ended")
        finally:
            await end(tasks)

    # What comes in

    def _come(self, queue: str, payload: bytes, reply: str) -> None:
        """Work of a queue."""
        inbox = self._inbox
        if inbox is None:
            return
        try:
            work = notes.read_work(payload)
        except Unreadable as error:
            log.warning("a message for queue %r cannot be read and is dropped: %s", queue, error)
            self._sender.send([Parcel(reply, DROP)])
            return
        hints = [Hint(key, queue) for key in work.keys]
        if not hints or work.not_for == inbox.me:
            # Back once, for whoever has waited longer for something to do; if that is nobody, it is for us.
            self._sender.send([*notes.to_queues(self._names, hints), Parcel(reply, ACK)])
            return
        message = Message(reply, len(hints))
        for hint in hints:
            self._hand.take(hint, message)
            inbox.put(hint)

    async def _hear_own(self, message: Any) -> None:
        self._put(message, lambda payload, inbox: notes.read_own(payload, inbox.me))

    async def _hear_words(self, message: Any) -> None:
        self._put(message, lambda payload, _: [Hint("", news=word) for word in notes.read_words(payload)])

    async def _hear_ended(self, message: Any) -> None:
        self._put(message, lambda payload, _: notes.read_ended(payload))

    def _put(self, message: Any, read: Any) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        try:
            for hint in read(message.data, inbox):
                inbox.put(hint)
        except Unreadable as error:
            log.warning("a message on %s cannot be read: %s", message.subject, error)

    async def _hear_ends(self, line: Line, channel: str) -> None:
        await line.hear(channel, self._hear_ended)
        self._channels[channel].set()

    async def _ask_for(self, line: Line, channel: str) -> None:
        with suppress(*FAILURES):  # then the next line hears it
            await self._hear_ends(line, channel)

    def _look(self, inbox: Inbox) -> None:
        """Tell our own worker to look at its queues, unless it is told already."""
        for queue in sorted(inbox.queues - self._nudged):
            self._nudged.add(queue)
            inbox.put(Hint("", queue))

    # Whether hints get through

    def _well(self, inbox: Inbox, tried: asyncio.Future[None]) -> None:
        if tried.done():
            log.info("hints get through again")
            self._look(inbox)
        else:
            tried.set_result(None)
        self._trouble = ""

    def _ill(self, trouble: str) -> None:
        self._trouble = trouble
        self._sender.wait()
        if time.monotonic() - self._said > SILENCE:
            self._said = time.monotonic()
            log.warning("hints do not get through, work is found a little later: %s", trouble)
