"""Actions that run in processes of their own, for the tests: such a process has to import them."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure import Retry, action, workflow


@dataclass
class Point:
    x: int
    y: int


class TooFar(Exception):
    def __init__(self, message: str, details: Any = None) -> None:
        super().__init__(message)
        self.details = details


@action(process=True)
def mirrored(point: Point) -> Point:
    assert isinstance(point, Point)
    return Point(point.y, point.x)


@action(process=True, retries=Retry(attempts=2, first="1ms", spent="stuck"))
def spends() -> int:
    if action.attempt < 3:
        raise ConnectionError(f"try {action.attempt}")
    return action.attempt


@action(process=True)
def process_number() -> int:
    return os.getpid()


@action(process=True)
def prints() -> str:
    print("on stdout, which carries the answers")
    os.system("echo from a child process")
    return sys.stdin.read()


@action(process=True, retries=2)
def forks(file: str) -> int:
    """The fork outlives it: it waits for the end of a pipe that the test has."""
    if action.attempt == 1:
        if os.fork() == 0:
            Path(file).read_text()
            os._exit(0)
        os._exit(3)
    return action.attempt


@action(process=True, raises=(TooFar,), retries=3, fatal=(TooFar,))
def goes(distance: int) -> int:
    if distance > 9:
        raise TooFar(f"{distance} is too far", {"distance": distance})
    return distance


@action(process=True, retries=2)
def dies(file: str, how: str) -> int:
    """The first time only."""
    with Path(file).open("a") as out:
        out.write(f"{os.getpid()}\n")
    if action.attempt == 1:
        if how == "segfault":
            ctypes.string_at(0)
        if how == "exit":
            os._exit(3)
    return action.attempt


@action(process=True)
def lies() -> int:
    return "not a number"  # type: ignore[return-value]


@action(process=True, timeout=0.5)
def never_ends(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        pass


@action(process=True)
def waits_to_be_cancelled(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        pass


@action(process=True, retries=1, heartbeat=1.0)
def counts() -> list[Any]:
    if action.attempt == 1:
        for n in range(3):
            action.heartbeat({"n": n})
            time.sleep(0.6)  # longer than the silence, all of them together
        raise ValueError("once more")
    return [action.key, action.attempt, action.fence > 0, action.execution, action.progress, action.cancelled]


@workflow
async def calls(name: str, *args: Any) -> Any:
    return await globals()[name](*args)


@action(process=True)
def traced_in_a_process() -> str:
    return action.traceparent


def until_told(folder: str, name: str) -> str:
    """Says that it has begun, and waits to be told to end."""
    (Path(folder) / f"{name} began").touch()
    while not (Path(folder) / "end").exists():
        time.sleep(0.01)
    return name


in_a_thread = action(until_told, name="computing.in_a_thread")
in_a_process = action(until_told, name="computing.in_a_process", process=True)
