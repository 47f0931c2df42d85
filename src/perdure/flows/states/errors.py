"""Errors by the names that a workflow gives them, and the policies by which actions are tried again.

An error is known by its `code`, or without one by its name: the type of the exception, its status, the type of the
problem or the last word of that. The name `*` means every error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.flows.document.faults import Fault
from perdure.flows.document.trying import LONGEST
from perdure.flows.states.reader import StatesReader
from perdure.flows.workflow import workflow

ANY = "*"


class Errors:
    """Some of the errors that a workflow knows, by the places where they are named."""

    def __init__(self, reader: StatesReader, names: Mapping[str, Any]) -> None:
        self.wanted: set[str] = set()
        for at, name in names.items():
            if name == ANY:
                self.wanted.add(ANY)
            elif (found := reader.refer(name, at, "errors")) is not None:
                self.wanted.add(str(found[1].get("code") or name))

    def mean(self, fault: Fault) -> bool:
        problem = fault.problem
        type = str(problem["type"])
        told = {type, type.rpartition("/")[2], str(problem["status"]), str(problem.get("title", ""))}
        return ANY in self.wanted or not told.isdisjoint(self.wanted)


class Policy:
    """How long to wait before an action is tried again, and how often."""

    def __init__(self, reader: StatesReader, body: dict[str, Any], at: str) -> None:
        self.most = reader.number(body.get("maxAttempts"), f"{at}/maxAttempts") if "maxAttempts" in body else None
        self.delay = reader.micros(body.get("delay", "PT0S"), f"{at}/delay")
        self.longest = reader.micros(body["maxDelay"], f"{at}/maxDelay") if "maxDelay" in body else LONGEST
        self.increment = reader.micros(body.get("increment", "PT0S"), f"{at}/increment")
        self.factor = reader.number(body.get("multiplier", 1), f"{at}/multiplier")
        jitter = body.get("jitter", 0)
        self.spread, self.share = 0, 0.0
        if isinstance(jitter, str) and jitter.startswith("P"):
            self.spread = reader.micros(jitter, f"{at}/jitter")
        elif (share := reader.number(jitter, f"{at}/jitter")) <= 1:
            self.share = share
        else:
            reader.wrong(f"{at}/jitter", "a share of the delay from 0 to 1, or a duration, is expected here")

    def pause(self, tries: int) -> int | None:
        """Microseconds to wait after so many tries; None if there is no other."""
        if self.most is not None and tries > self.most:
            return None
        pause = float(self.delay)
        for _ in range(tries - 1):
            pause = pause * self.factor + self.increment
            if pause > LONGEST:
                break
        spread = self.spread + self.share * pause
        if spread:
            pause += workflow.random().uniform(-spread, spread)
        return max(0, round(min(pause, self.longest, LONGEST)))


class Retries:
    """Whether and when one action is tried again: for the errors that it names, or for all but those."""

    def __init__(self, reader: StatesReader, body: dict[str, Any], at: str) -> None:
        self.auto = reader.auto_retries
        self.policy: Policy | None = None
        found = reader.refer(body["retryRef"], f"{at}/retryRef", "retries") if "retryRef" in body else None
        if found is not None:
            if "maxAttempts" not in found[1]:
                reader.wrong(found[0], "maxAttempts is missing")
            self.policy = Policy(reader, found[1], found[0])
        elif self.auto:
            self.policy = Policy(reader, {"delay": "PT1S", "multiplier": 2}, at)
        key, other = (
            ("nonRetryableErrors", "retryableErrors") if self.auto else ("retryableErrors", "nonRetryableErrors")
        )
        if other in body:
            reader.wrong(f"{at}/{other}", f"with autoRetries: {str(self.auto).lower()} actions have {key}")
        names = reader.list(body.get(key), f"{at}/{key}")
        if not self.auto and key not in body:
            names = list(reader.defined["errors"])
            if found is not None and not names:
                fix = "define errors, or set autoRetries"
                reader.warn(f"{at}/retryRef", "only errors that are defined are tried again, and there are none", fix)
        self.named = Errors(reader, {f"{at}/{key}/{number}": name for number, name in enumerate(names)})

    def pause(self, fault: Fault, tries: int) -> int | None:
        if self.policy is None or self.named.mean(fault) is self.auto:
            return None
        return self.policy.pause(tries)
