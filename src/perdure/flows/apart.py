"""An action that runs apart from the execution that asked for it: on another queue, or where there is room.

It is an execution of its own, with one action in it, so holds, leases, retries, take-over and poison are those of any
execution. Its workflow is named `action:NAME`; its input is the order; its end is a letter to the execution that waits.
The key of the call, and so the action's idempotency key, is that of the execution that asked.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core.durations import seconds
from perdure.core.events import NULL, Error
from perdure.core.failures import Recorded
from perdure.core.records import ACTION
from perdure.core.replay import Replay
from perdure.core.retry import Spent
from perdure.flows.action import DECLARED, Action
from perdure.flows.workflow import Workflow


class Order(Struct, frozen=True, omit_defaults=True):
    """What is to be run, under which key, and with the options of the call."""

    args: Raw
    key: str
    caller: str  # the execution that asked
    attempts: int = 1
    first: float = 1.0  # this and the next durations in seconds
    factor: float = 2.0
    cap: float = 60.0
    jitter: float = 0.1
    elapsed: float | None = None
    timeout: int | None = None
    deadline: int | None = None
    heartbeat: int | None = None
    step: float = 0.0
    version: int = 0  # how far the log of the execution was that asked; 0 is not known
    spent: Spent = "fail"
    own_retry: bool = False  # whoever asked does not know the action: its own policy holds
    own_limits: bool = False  # likewise its own limits of time, where none are given here


_RETRY = ("attempts", "first", "factor", "cap", "jitter", "elapsed", "step", "spent")
_LIMITS = ("timeout", "deadline", "heartbeat")
_decode = msgspec.json.Decoder(Order).decode


def order(action: Action[..., Any], args: Raw, key: str, caller: str, version: int) -> Raw:
    """The input of an execution that runs this one call of an execution whose log is at this version."""
    how, retry = action.how, action.how.retry
    wanted = Order(
        args,
        key,
        caller,
        retry.attempts,
        seconds(retry.first),
        retry.factor,
        seconds(retry.cap),
        retry.jitter,
        None if retry.elapsed is None else seconds(retry.elapsed),
        how.timeout,
        how.deadline,
        how.heartbeat,
        seconds(retry.step),
        version,
        retry.spent,
        retry is DECLARED,
        action.absent,
    )
    return Raw(msgspec.json.encode(wanted))


def args_of(input: Raw) -> Raw:
    """The arguments in an order; null where the code was never begun."""
    return NULL if input == NULL else _decode(input).args


class Apart(Workflow[..., Any]):
    """The definition of executions that run one action."""

    def __init__(self, action: Action[..., Any]) -> None:
        self.action = action
        self.fn = action.fn
        self.name = ACTION + action.name
        self.version = action.version
        self.queue = action.how.queue or "default"
        self.description = action.description
        self.signature = action.signature
        self.events = {}
        self._checked = True  # an action may do anything

    def begin(self, running: Replay, input: Raw) -> Coroutine[Any, Any, Raw]:
        wanted = _decode(input)
        return self._perform(running, _Ordered(self.action, wanted), wanted.args)

    async def _perform(self, running: Replay, action: _Ordered, args: Raw) -> Raw:
        result: Raw = await running.act(action, args)
        return result


class _Ordered(Action[..., Any]):
    """A registered action with the key and the options of one call, whose result and failure stay as they are."""

    def __init__(self, action: Action[..., Any], wanted: Order) -> None:
        self.__dict__.update(action.__dict__)
        how, given = action.how, {} if wanted.own_retry else {name: getattr(wanted, name) for name in _RETRY}
        limits = {name: getattr(wanted, name) for name in _LIMITS}
        if wanted.own_limits:
            limits = {name: getattr(how, name) if limit is None else limit for name, limit in limits.items()}
        self.how = structs.replace(how, retry=structs.replace(how.retry, **given), queue="", **limits)
        self.call_key, self.caller, self.caller_version = wanted.key, wanted.caller, wanted.version
        self.compensation = None

    def decode_result(self, result: Raw, /) -> Any:
        return result

    def failure(self, error: Error, /) -> BaseException:
        return Recorded(error)
