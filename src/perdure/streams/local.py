"""The stream of several processes on one host that share a SQLite file: datagrams between Unix sockets.

Rules kept here: nothing blocks and nothing is polled; whatever goes wrong with a datagram is a lost hint, which the
store's due times make up for; sockets live in a directory that nobody else can enter. Where there are no Unix sockets
(or no such directory) hints stay inside the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import stat
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from perdure.core.records import Hint
from perdure.errors import UsageError
from perdure.streams.inbox import Inbox

#: A datagram stays below what every platform takes in one piece.
DATAGRAM = 60_000
BUFFER = 1 << 20
#: Datagrams read in one turn of the event loop, so that a flood of hints does not stop everything else.
AT_ONCE = 64
#: A directory that changed this recently may change again within one tick of its time stamp.
TICK_NS = 100_000_000

log = logging.getLogger("perdure.streams")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Hint]).decode


class LocalStream:
    """A Stream for the processes that share the database file at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inbox: Inbox | None = None
        self._line: _Line | None = None

    async def open(self, me: str, queues: Sequence[str]) -> None:
        self._inbox = Inbox(me, queues)
        self._line = _Line.open(self._path, me)
        if self._line is not None:
            asyncio.get_running_loop().add_reader(self._line.socket, self._arrived)

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            asyncio.get_running_loop().remove_reader(line.socket)
            line.close()
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.close()

    @property
    def carries(self) -> bool:
        return True

    @property
    def trouble(self) -> str:
        return ""

    async def listen(self, key: str) -> None:
        pass  # every datagram of news goes to everybody

    async def publish(self, hints: Sequence[Hint]) -> None:
        inbox, line = self._inbox, self._line
        if inbox is None:
            return
        everybody: list[Hint] = []
        letters: dict[str, list[Hint]] = {}
        for hint in hints:
            here = inbox.wants(hint) and not hint.away
            if here:
                inbox.put(hint)
            if hint.ended or hint.news or (hint.to is None and not here):
                everybody.append(hint)
            elif hint.to is not None and not here:
                letters.setdefault(hint.to, []).append(hint)
        if line is None:
            return
        with suppress(UnicodeError):  # a name that cannot be encoded cannot have been stored either
            for worker, theirs in letters.items():
                line.send(theirs, worker)
            if everybody:
                line.broadcast(everybody)

    async def receive(self, limit: int) -> Sequence[Hint]:
        if self._inbox is None:
            raise UsageError("the stream is not open: nothing can be received")
        return await self._inbox.take(limit)

    async def ack(self, hints: Sequence[Hint]) -> None:
        pass

    def _arrived(self) -> None:
        if self._line is None or self._inbox is None:
            return
        for hint in self._line.receive():
            if self._inbox.wants(hint):
                self._inbox.put(hint)


class _Line:
    """One worker's socket, and the way to those of the others."""

    def __init__(self, directory: Path, me: str) -> None:
        self._directory = directory
        self._place = directory / _socket_name(me)
        self._others: list[str] = []
        self._stamp = 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                self.socket.setsockopt(socket.SOL_SOCKET, option, BUFFER)
            self._place.unlink(missing_ok=True)
            self.socket.bind(str(self._place))
        except BaseException:
            self.socket.close()
            raise

    @classmethod
    def open(cls, path: str, me: str) -> _Line | None:
        if not hasattr(socket, "AF_UNIX") or not hasattr(os, "geteuid"):
            return None
        try:
            try:
                return cls(_private_directory(path), me)
            except FileNotFoundError:
                # The last one to leave has just removed the directory.
                return cls(_private_directory(path), me)
        except OSError as error:
            text = "hints for %s stay inside this process, others see its work a little later: %s"
            log.warning(text, path, error, extra={"worker": me})
            return None

    def close(self) -> None:
        self.socket.close()
        with suppress(OSError):
            self._place.unlink()
            self._directory.rmdir()  # if nobody else is there

    def send(self, hints: Sequence[Hint], worker: str) -> None:
        for datagram in _datagrams(hints):
            self._send(datagram, str(self._directory / _socket_name(worker)))

    def broadcast(self, hints: Sequence[Hint]) -> None:
        datagrams = _datagrams(hints)
        for place in self._places():
            for datagram in datagrams:
                self._send(datagram, place)

    def receive(self) -> list[Hint]:
        hints: list[Hint] = []
        for _ in range(AT_ONCE):
            try:
                hints += _decode(self.socket.recv(BUFFER))
            except OSError:
                break
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
        return hints

    def _send(self, datagram: bytes, place: str) -> None:
        try:
            self.socket.sendto(datagram, place)
        except ConnectionRefusedError:
            # Its process died without closing; nobody will ever read from this file.
            with suppress(OSError):
                Path(place).unlink()
        except OSError:
            pass

    def _places(self) -> list[str]:
        """The sockets of all others; listed again only when the directory has changed."""
        try:
            stamp = self._directory.stat().st_mtime_ns
            if stamp != self._stamp:
                self._others = [str(p) for p in self._directory.iterdir() if p.suffix == ".sock" and p != self._place]
                self._stamp = stamp if time.time_ns() - stamp > TICK_NS else 0
        except OSError:
            pass
        return self._others


def _socket_name(worker: str) -> str:
    # Hashed, because a worker's name may be long or contain anything and a socket's path is at most 104 bytes.
    return hashlib.sha256(worker.encode()).hexdigest()[:16] + ".sock"


def _private_directory(path: str) -> Path:
    """The directory of all that share this database file; it belongs to this user and nobody else can enter it."""
    user = os.geteuid()
    name = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:12]
    directory = Path(tempfile.gettempdir()) / f"perdure-{user}-{name}"
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise PermissionError(f"{directory} is not a private directory of this user; remove it")
    return directory


def _datagrams(hints: Sequence[Hint]) -> list[bytes]:
    """As few as hold all hints; one that is too long by itself is lost."""
    encoded = _encode(hints)
    if len(encoded) <= DATAGRAM:
        return [encoded]
    if len(hints) == 1:
        return []
    half = len(hints) // 2
    return _datagrams(hints[:half]) + _datagrams(hints[half:])
