"""The circuits of one worker, by action, and what it tells the others about them.

Each worker finds out by itself which service is ill; news only makes it sooner, so a lost word does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from perdure.core import breaker
from perdure.core.breaker import Breaker, Circuit
from perdure.core.failures import Kind
from perdure.flows.action import Action

log = logging.getLogger("perdure.worker")


class Circuits:
    def __init__(self, tell: Callable[[str], None], find: Callable[[str], Breaker | None]) -> None:
        #: By the name of the action; their state and counters are there to be measured.
        self.known: dict[str, Circuit] = {}
        self._tell = tell
        self._find = find

    def of(self, action: Action[..., Any]) -> Circuit | None:
        """The circuit of an action, if it has a breaker."""
        made = action.how.breaker
        return None if made is None else self._circuit(action.name, made)

    def ended(self, action: Action[..., Any], ticket: int, failure: Kind | None, now: int) -> None:
        """An attempt has ended; if that changes the circuit, everybody hears of it."""
        circuit = self.of(action)
        if circuit is not None and circuit.ended(ticket, failure, now):
            log.warning("the circuit of %s is %s", action.name, circuit.state, extra={"action": action.name})
            self._tell(str(breaker.news_of(action.name, circuit, now)))

    def heard(self, text: str, now: int) -> None:
        """News from another worker, or our own coming back."""
        news = breaker.read(text)
        if news is None:
            return
        made = self._find(news.name)
        if made is not None:
            self._circuit(news.name, made).heard(news, now)

    def _circuit(self, name: str, made: Breaker) -> Circuit:
        circuit = self.known.get(name)
        if circuit is None:
            circuit = self.known[name] = Circuit(made)
        return circuit
