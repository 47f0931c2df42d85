"""The kinds of tasks, by the key that tells them."""

from __future__ import annotations

from perdure.flows.document.calling import CallStep, RunStep
from perdure.flows.document.events import EmitStep, ListenStep
from perdure.flows.document.plain import RaiseStep, SetStep, SwitchStep, WaitStep
from perdure.flows.document.step import Step
from perdure.flows.document.tasks import DoStep, ForkStep, ForStep
from perdure.flows.document.trying import TryStep

KINDS: dict[str, type[Step]] = {
    "call": CallStep,
    "do": DoStep,
    "emit": EmitStep,
    "for": ForStep,
    "fork": ForkStep,
    "listen": ListenStep,
    "raise": RaiseStep,
    "run": RunStep,
    "set": SetStep,
    "switch": SwitchStep,
    "try": TryStep,
    "wait": WaitStep,
}
