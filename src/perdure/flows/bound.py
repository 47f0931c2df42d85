"""Actions as definitions name them, and what a worker must know of those whose code it does not have.

A workflow that is data names its actions. When it is made, or published, each name is bound: to a version, a
queue, the order of the parameters, an undo. A worker that has the code runs it; any other lets the action run apart,
where it is known, and can still undo it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from perdure.core.codec import encode
from perdure.core.durations import Duration, micros
from perdure.core.events import Error, Owed
from perdure.core.failures import action_failed
from perdure.core.replay import Replay
from perdure.core.retry import Retry, policy
from perdure.errors import NotRegistered
from perdure.flows.action import DECLARED, Action, Options
from perdure.flows.registry import registry

_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
#: Arguments as a definition gives them: by name, or in their order.
Given: TypeAlias = Mapping[str, Any] | Sequence[Any]


class Bound(Struct, frozen=True, omit_defaults=True):
    """What a definition knows of an action. `undo` is the action that compensates it."""

    name: str
    version: int = 1
    queue: str = ""
    parameters: tuple[str, ...] = ()
    needs: bool = False  # at least one argument
    undo: Bound | None = None
    external: bool = False


class Problem(Struct, frozen=True, omit_defaults=True):
    """What is wrong with a definition: where, what, and how to mend it. A warning does not forbid it."""

    where: str  # the state or node, and what of it: `states.review.on.approve`, `nodes.pack`
    message: str
    fix: str = ""
    level: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f"; {self.fix}" if self.fix else "")


def bind(action: Action[..., Any]) -> Bound:
    undo = action.compensation
    named = [one for one in inspect.signature(action.fn).parameters.values() if one.kind in _NAMED]
    return Bound(
        action.name,
        action.version,
        action.how.queue,
        tuple(one.name for one in named),
        any(one.default is one.empty for one in named),
        None if undo is None else bind(undo),
        action.how.external,
    )


def bind_name(name: str) -> Bound:
    """The action of this name in this process; NotRegistered or UsageError if there is none, or more than one."""
    return bind(registry.action(name))


def arguments(bound: Bound, given: Given, action: Action[..., Any] | None = None) -> Raw:
    """The wire form of a call; named arguments go by position as far as their order allows it.

    A value where the action takes a secret is refused, before it is written anywhere.
    """
    if action is not None and not action.absent and action.signature.references:
        in_order, by_name = ((), given) if isinstance(given, Mapping) else (tuple(given), {})
        action.signature.check_references(in_order, by_name)
    if not isinstance(given, Mapping):
        return Raw(encode(list(given)))
    left = dict(given)
    args = []
    for name in bound.parameters:
        if name not in left:
            break
        args.append(left.pop(name))
    return Raw(encode({"args": args, "kwargs": left} if left else args))


def check_arguments(action: Action[..., Any], given: Given, where: str) -> list[Problem]:
    """What is wrong with the arguments of a call, as far as the names tell."""
    named = given if isinstance(given, Mapping) else {}
    try:
        signature = inspect.signature(action.fn)
        if isinstance(given, Mapping):
            signature.bind(**given)
        else:
            signature.bind(*given)
    except TypeError as error:
        wants = ", ".join(action.schema()["parameters"]["properties"]) or "nothing"
        return [Problem(where, f"{action.name}() {error}", f"it takes: {wants}")]
    if action.compensation is not None:
        order = bind(action).parameters
        given_until = next((index for index, name in enumerate(order) if name not in named), len(order))
        for name in order[given_until:]:
            if name in named:
                missing = order[given_until]
                fix = f"give {missing} as well: the undo of {action.name} gets the arguments in their order"
                return [Problem(where, f"{name} is given, but {missing} before it is not", fix)]
    return []


class Call(Struct, frozen=True):
    """How to call an action: the options of one call."""

    bound: Bound
    retries: int | Retry | None = None
    timeout: Duration | None = None

    def spec(self) -> Action[..., Any]:
        """The action itself if this process has its code, or what stands for it. Its results are plain JSON."""
        try:
            known = registry.action(self.bound.name)
        except NotRegistered:
            known = None
        return self._plain(known if known is not None and known.version == self.bound.version else Absent(self.bound))

    def _plain(self, action: Action[..., Any]) -> Action[..., Any]:
        changes: dict[str, Any] = {}
        if self.retries is not None:
            changes["retry"] = _policy(self.retries, action.how.retry)
        if self.timeout is not None:
            changes["timeout"] = micros(self.timeout)
        return _Plain(action, structs.replace(action.how, **changes) if changes else action.how)


def _policy(retries: int | Retry, own: Retry) -> Retry:
    """That of one call. Definitions that are data have no word for `spent`: what the action says of it stands."""
    wanted = policy(retries, own.fatal)
    return wanted if own.spent == "fail" else structs.replace(wanted, spent=own.spent)


class _Plain(Action[..., Any]):
    """An action whose results stay plain JSON, for definitions that are data."""

    def __init__(self, action: Action[..., Any], how: Options) -> None:
        self.__dict__.update(action.__dict__)
        self.how = how
        self.absent = action.absent
        self._action = action

    def same_args(self, recorded: Raw, asked: Raw, /) -> bool:
        return self._action.same_args(recorded, asked)

    def decode_result(self, result: Raw, /) -> Any:
        return msgspec.json.decode(result)

    def failure(self, error: Error, /) -> BaseException:
        return action_failed(error, self.name, ())


class Absent(Action[..., Any]):
    """An action whose code is not in this process: it always runs apart."""

    absent = True

    def __init__(self, bound: Bound) -> None:
        self.fn = _absent
        self.name = bound.name
        self.version = bound.version
        self.description = ""
        self.is_async = True
        self.how = Options(DECLARED, queue=bound.queue, external=bound.external)
        self.compensation = None if bound.undo is None else Absent(bound.undo)
        self.call_key = self.caller = ""

    def same_args(self, recorded: Raw, asked: Raw, /) -> bool:
        return bool(msgspec.json.decode(recorded) == msgspec.json.decode(asked))

    def decode_result(self, result: Raw, /) -> Any:
        return msgspec.json.decode(result)

    def failure(self, error: Error, /) -> BaseException:
        return action_failed(error, self.name, ())


async def _absent() -> None:
    raise NotRegistered("this process does not have the code of the action")


def owed(running: Replay) -> list[Owed]:
    """What a checkpoint has to keep of the undos."""
    return [Owed(undo.spec.name, undo.args, undo.result, undo.version) for undo in running.undos]


def undo_named(name: str, bounds: Mapping[str, Bound]) -> Action[..., Any]:
    """The undo of this name: what compensates one of these actions. Others may have an undo of the same name."""
    for bound in bounds.values():
        if bound.undo is not None and bound.undo.name == name:
            undo = Call(bound).spec().compensation
            return undo if undo is not None else Call(bound.undo).spec()
    return Call(bind_name(name)).spec()
