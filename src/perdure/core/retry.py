"""When to try an action again: one policy, a pure decision."""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import Struct, structs

from perdure.core.durations import Duration, micros
from perdure.errors import UsageError


class Retry(Struct, frozen=True):
    """Exponential back-off with a cap and jitter.

    >>> policy = Retry(attempts=4, first="1s", factor=2, cap="3s", jitter=0)
    >>> [policy.delay(attempt, "key") for attempt in (1, 2, 3)]
    [1000000, 2000000, 3000000]
    """

    attempts: int = 1  # in all; 0 means without end
    first: Duration = 1.0
    factor: float = 2.0
    cap: Duration = 60.0
    jitter: float = 0.1  # the delay is lengthened by at most this share
    elapsed: Duration | None = None  # no new attempt later than this after the first was due
    fatal: tuple[type[BaseException], ...] = ()  # errors not worth retrying

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise UsageError(
                f"a retry policy needs attempts >= 0, factor >= 1 and jitter between 0 and 1, not {self!r}"
            )
        for duration in (self.first, self.cap, self.elapsed or 0):
            micros(duration)

    def delay(self, attempt: int, key: str) -> int:
        """Microseconds to wait after failed attempt number `attempt`; the jitter follows from the key."""
        cap = micros(self.cap)
        base = min(micros(self.first) * self.factor ** min(attempt - 1, 1000), float(cap))
        draw = int.from_bytes(hashlib.blake2b(f"{key}\n{attempt}".encode(), digest_size=4).digest()) / 2**32
        return min(int(base * (1 + self.jitter * draw)), cap)

    def again(self, attempt: int, error: BaseException, waited: int, key: str) -> int | None:
        """The delay before the next attempt, or None when `attempt` was the last. `waited` is since the first."""
        if isinstance(error, self.fatal) or getattr(error, "fatal", False) is True:
            return None
        if self.attempts and attempt >= self.attempts:
            return None
        delay = self.delay(attempt, key)
        if self.elapsed is not None and waited + delay > micros(self.elapsed):
            return None
        return delay


def policy(retries: int | Retry, fatal: tuple[type[BaseException], ...] = ()) -> Retry:
    """`retries=5` means one attempt and five more."""
    if isinstance(retries, Retry):
        return structs.replace(retries, fatal=(*retries.fatal, *fatal))
    if isinstance(retries, bool) or retries < 0:
        raise UsageError(f"retries must be a number from 0 on or a Retry, not {retries!r}")
    options: dict[str, Any] = {"attempts": retries + 1, "fatal": fatal}
    return Retry(**options)
