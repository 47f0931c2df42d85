"""Circuit breakers: leave a service alone that fails again and again, and ask carefully whether it is well.

A circuit is closed (attempts run), open (they are put off until its pause is over) or probing (one attempt was let
through, the others wait for what it finds). Rules kept here: no clock and no I/O, the time is a value; only the outcome
of an attempt that began in the present state changes it; a probe that never comes back blocks nobody for longer than a
pause. What other workers say about their circuits is believed if it is newer than what is known here, so news may be
lost, doubled or late.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

from msgspec import Struct

from perdure.core.durations import Duration, micros
from perdure.core.failures import Kind, kind_of_class
from perdure.core.retry import drawn
from perdure.errors import ActionError, External, Transient, UsageError

State: TypeAlias = Literal["closed", "open", "probing"]


class Breaker(Struct, frozen=True):
    """After `failures` failures within `window`, no attempt of the action runs for `pause`.

    >>> Breaker(failures=3, window="10s", pause="1m").pause
    '1m'
    """

    failures: int = 5
    window: Duration = 30.0
    pause: Duration = 30.0
    counts: tuple[type[ActionError], ...] = (External, Transient)  # the kinds of failures that count
    fail_fast: bool = False  # while it is open the action fails at once; otherwise its attempts are put off

    def __post_init__(self) -> None:
        if self.failures < 1 or micros(self.window) <= 0 or micros(self.pause) <= 0 or not self.counts:
            raise UsageError(
                f"a breaker needs failures >= 1, a window, a pause and kinds of failures that count, not {self!r}"
            )
        for kind in self.counts:
            kind_of_class(kind)

    def delay(self, until: int, now: int, put_off: int, key: str) -> int:
        """Microseconds for which to put off an attempt that was put off `put_off` times in a row before.

        Not all come back at the moment when the pause is over, and those that wait for long come less often.
        """
        spread = micros(self.pause) * 2 ** min(put_off, 5)
        return max(until - now, 0) + int(spread * drawn(key, put_off))


class Circuit:
    """The state of one breaker in one worker."""

    def __init__(self, breaker: Breaker) -> None:
        self.state: State = "closed"
        self.opened = 0  # how often, also by news
        self.refused = 0  # attempts that were put off or failed fast
        self._window, self._pause = micros(breaker.window), micros(breaker.pause)
        self._counts: frozenset[Kind] = frozenset(kind_of_class(kind) for kind in breaker.counts)
        self._failures: deque[int] = deque(maxlen=breaker.failures)
        self._until = 0  # nobody is let through before this
        self._opened_at = self._closed_at = 0
        self._epoch = 0  # rises with every change of state

    @property
    def until(self) -> int:
        """When the next probe may go, unless the circuit is closed."""
        return self._until

    def refuses(self, now: int) -> bool:
        """Whether an attempt must not run now."""
        return self.state != "closed" and now < self._until

    def admit(self, now: int) -> int:
        """Let an attempt through that is not refused; the ticket is given back with its outcome."""
        if self.state != "closed":
            self._become("probing")
            self._until = now + self._pause
        return self._epoch

    def ended(self, ticket: int, failure: Kind | None, now: int) -> bool:
        """An attempt has ended; whether that opened or closed the circuit, which others should hear."""
        if ticket != self._epoch:
            return False
        if failure in self._counts:
            self._failures.append(now)
            if self.state == "closed" and not self._too_many(now):
                return False
            self._open(now)
            return True
        if self.state == "closed":
            return False
        self._close(now)
        return True

    def abandoned(self, ticket: int, now: int) -> None:
        """An attempt was called off, or failed before it could ask the service: the next one is the probe."""
        if ticket == self._epoch and self.state == "probing":
            self._become("open")
            self._until = now

    def heard(self, news: News, now: int) -> None:
        """Another worker opened its circuit until some time, or closed it at some time."""
        if news.state == "open":
            newer = news.at - self._pause > self._closed_at and news.at > max(now, self._until)
            if newer and self.state != "probing":  # our own probe knows better
                self._open(min(news.at, now + self._pause) - self._pause)
        elif self.state != "closed" and news.at > self._opened_at:
            self._close(min(news.at, now))

    def _too_many(self, now: int) -> bool:
        return len(self._failures) == self._failures.maxlen and now - self._failures[0] <= self._window

    def _open(self, at: int) -> None:
        if self.state != "open":
            self.opened += 1
        self._become("open")
        self._opened_at, self._until = at, at + self._pause

    def _close(self, at: int) -> None:
        self._become("closed")
        self._closed_at = at

    def _become(self, state: State) -> None:
        self.state = state
        self._epoch += 1
        self._failures.clear()


class News(Struct, frozen=True):
    """What a worker tells the others: the circuit of an action is open until, or closed since."""

    name: str
    state: Literal["open", "closed"]
    at: int

    def __str__(self) -> str:
        return f"breaker:{self.name}:{self.state}:{self.at}"


def news_of(name: str, circuit: Circuit, now: int) -> News:
    return News(name, "closed", now) if circuit.state == "closed" else News(name, "open", circuit.until)


def read(text: str) -> News | None:
    """News as it travels; None if it is about something else, or garbled.

    >>> read("breaker:charge:open:1700000000000000")
    News(name='charge', state='open', at=1700000000000000)
    >>> read("weather:fine") is None
    True
    """
    head, _, rest = text.partition(":")
    parts = rest.rsplit(":", 2)
    if head != "breaker" or len(parts) != 3 or not (parts[2].isdecimal() and len(parts[2]) < 20):
        return None
    name, state, at = parts
    if state == "open":
        return News(name, "open", int(at))
    return News(name, "closed", int(at)) if state == "closed" else None
