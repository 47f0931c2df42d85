"""The inside of one process of the pool: runs the actions that it is sent, one after the other.

What crosses is JSON: where the function is found, its arguments, what the attempt knows; back come heartbeats and then
a result or an error. No value of a user is pickled. Rules kept here: what the function prints goes to stderr, because
stdout belongs to the answers; when the worker is gone, so is this process, whatever it is doing; signals are left to
the worker, which ends this process when it is no longer wanted.
"""

from __future__ import annotations

import contextvars
import importlib
import importlib.util
import io
import os
import queue
import signal
import sys
import threading
from functools import reduce
from types import ModuleType
from typing import IO, Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from perdure.core.codec import encode
from perdure.core.events import Error
from perdure.core.failures import describe, kind_of
from perdure.core.retry import left_alone
from perdure.core.tracing import NONE, parse
from perdure.errors import InvalidValue, UsageError
from perdure.flows.action import Action, Options
from perdure.flows.current import Client, attempt
from perdure.runtime.secrets.watching import watch
from perdure.runtime.telemetry import logs


class Place(Struct, frozen=True):
    """Where a function is found: by import or, where its module has no name of its own, in a file."""

    module: str
    qualname: str
    file: str | None = None


class Task(Struct, frozen=True):
    """One attempt, as it is sent; also what the action sees of it."""

    place: Place
    args: Raw
    key: str
    fence: int
    tenant: str
    execution: str
    number: int
    asked_at: int
    progress: Raw
    trace: str
    version: int | None = None
    secrets: dict[str, str] = {}


class Beat(Struct, frozen=True, tag=True):
    """The function is alive."""

    details: Raw


class Result(Struct, frozen=True, tag=True):
    """The function returned."""

    data: Raw


class Failure(Struct, frozen=True, tag=True):
    """The function raised. Which kind of failure that is was decided here, where the classes are known."""

    error: Error
    retry_after: float


Answer: TypeAlias = Beat | Result | Failure
MAIN = "__perdure_main__"
_task = msgspec.json.Decoder(Task).decode


def put(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(8, "big") + message)
    stream.flush()


def get(stream: IO[bytes]) -> bytes | None:
    """The next message, or None at the end."""
    head = stream.read(8)
    message = stream.read(int.from_bytes(head, "big")) if len(head) == 8 else b""
    return message if len(head) == 8 and len(message) == int.from_bytes(head, "big") else None


class Inside:
    """The attempt as `action.key`, `action.heartbeat()` and the others see it. Who is cancelled here is killed."""

    def __init__(self, task: Task, answers: Answers) -> None:
        self.key = task.key
        self.fence = task.fence
        self.tenant = task.tenant
        self.execution = task.execution
        self.number = task.number
        self.asked_at = task.asked_at
        self.progress: Any = msgspec.json.decode(task.progress)
        self.connection: Any = None  # a transaction cannot cross over
        self.version = task.version
        self.trace = parse(task.trace) or NONE
        self._answers = answers
        self._secrets = task.secrets

    @property
    def client(self) -> Client:
        raise UsageError("an action in a process of its own cannot reach other executions: do it in the workflow")

    def unwanted(self) -> bool:
        return False

    def reveal(self, name: str) -> str:
        try:
            return self._secrets[name]
        except KeyError:
            raise UsageError(
                f"an action in a process of its own cannot look for the secret {name!r}: pass it as an argument"
            ) from None

    def beat(self, details: Any) -> None:
        self._answers.send(Beat(Raw(encode(details))))


class Answers:
    """The way back; heartbeats may come from any thread of the function."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, answer: Answer) -> None:
        with self._lock:
            put(self._stream, msgspec.json.encode(answer))


def perform(task: Task, answers: Answers) -> Result | Failure:
    """Run one attempt."""
    how = Options()
    for value in task.secrets.values():
        watch.add(task.tenant, value)
    try:
        action = found(task.place)
        how = action.how
        args, kwargs = action.signature.decode(task.args)
        context = contextvars.copy_context()
        context.run(attempt.set, Inside(task, answers))
        data = action.signature.returns.encode(context.run(action.fn, *args, **kwargs))
        try:
            action.signature.returns.decode(data)
        except InvalidValue as error:
            raise InvalidValue(f"{action.name} returned something else than it declares: {error}") from error
        return Result(Raw(data))
    except (Exception, SystemExit) as error:
        kind = kind_of(error, how.errors, how.retry.fatal)
        return Failure(describe(error, task.number, kind), left_alone(error) / 1e6)


def found(place: Place) -> Action[..., Any]:
    thing = reduce(getattr, place.qualname.split("."), _module(place))
    return thing if isinstance(thing, Action) else Action(thing, Options())


def _module(place: Place) -> Any:
    known = sys.modules.get(place.module)
    if known is not None:
        return known
    try:
        return importlib.import_module(place.module)
    except ModuleNotFoundError as error:
        if error.name != place.module or place.file is None:
            raise
    return _load(place.module, place.file)


def _load(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def main() -> None:
    requests, answers = _streams()
    logs.go(sys.argv.pop())
    # Handlers rather than SIG_IGN, which the children of the function would inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, frame: None)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests, tasks), daemon=True).start()
    way_back = Answers(answers)
    while True:
        way_back.send(perform(_task(tasks.get()), way_back))


def _receive(requests: IO[bytes], tasks: queue.SimpleQueue[bytes]) -> None:
    while (message := get(requests)) is not None:
        tasks.put(message)
    os._exit(0)  # the worker is gone


def _streams() -> tuple[IO[bytes], IO[bytes]]:
    """The two pipes, out of the reach of what the function reads and prints."""
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what waits in a buffer is lost when this process is killed
    if hasattr(os, "register_at_fork"):
        # As long as a fork has the pipe, its end does not tell that this process is gone.
        os.register_at_fork(after_in_child=lambda: os.dup2(nothing, answers, inheritable=False))
    return os.fdopen(requests, "rb"), os.fdopen(answers, "wb")
