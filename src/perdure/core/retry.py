"""When to try an action again: one policy and the kind of the failure, a pure decision.

transient     as the policy says
permanent     never
contention    soon, at a random moment; the first FREE times do not count as attempts
external      as the policy says, but not before the service wants to be asked again

When the policy allows no more, the action fails, or (`spent="stuck"`) its execution waits for a person. A permanent
failure always fails the action: to repeat it cannot help, so there is nothing to wait for.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct, structs

from perdure.core.durations import LONGEST, Duration, micros
from perdure.core.failures import Kind
from perdure.errors import UsageError

#: So many failures by contention do not count against the attempts of a policy: somebody else's turn is not our fault,
#: but whoever never gets a turn should hear of it.
FREE = 100
#: The time within which contention is tried again: at first, and at most (microseconds).
_SOON, _NOT_SO_SOON = 100_000, 5_000_000
#: What follows when the policy allows no more attempts.
Spent: TypeAlias = Literal["fail", "stuck"]


class Again(Struct, frozen=True, gc=False):
    """Another attempt: after how many microseconds, and how many of those so far do not count."""

    delay: int
    free: int = 0


class Retry(Struct, frozen=True):
    """Exponential back-off with a cap and jitter; with factor=1 it is constant, or linear by `step`.

    >>> policy = Retry(attempts=4, first="1s", factor=2, cap="3s", jitter=0)
    >>> [policy.delay(attempt, "key") for attempt in (1, 2, 3)]
    [1000000, 2000000, 3000000]
    >>> policy = Retry(attempts=4, first="1s", factor=1, step="5s", jitter=0)
    >>> [policy.delay(attempt, "key") for attempt in (1, 2, 3)]
    [1000000, 6000000, 11000000]
    """

    attempts: int = 1  # in all; 0 means without end
    first: Duration = 1.0
    factor: float = 2.0
    cap: Duration = 60.0
    jitter: float = 0.1  # the delay is lengthened by at most this share
    elapsed: Duration | None = None  # no new attempt later than this after the first was due
    fatal: tuple[type[BaseException], ...] = ()  # errors not worth retrying
    step: Duration = 0.0  # added to the delay after each attempt, before the factor
    spent: Spent = "fail"  # when no attempt is left: the action fails, or its execution is stuck

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise UsageError(
                f"a retry policy needs attempts >= 0, factor >= 1 and jitter between 0 and 1, not {self!r}"
            )
        if self.spent not in get_args(Spent):
            raise UsageError(f"spent is 'fail' or 'stuck', not {self.spent!r}")
        for duration in (self.first, self.cap, self.elapsed or 0, self.step):
            micros(duration)

    def delay(self, attempt: int, key: str) -> int:
        """Microseconds to wait after failed attempt number `attempt`; the jitter follows from the key."""
        cap = micros(self.cap)
        stepped = micros(self.first) + micros(self.step) * (attempt - 1)
        try:
            base = min(stepped * float(self.factor) ** (attempt - 1), float(cap))
        except OverflowError:  # so many attempts that no number is large enough
            base = float(cap)
        return min(int(base * (1 + self.jitter * drawn(key, attempt))), cap)

    def again(self, attempt: int, kind: Kind, waited: int, key: str, free: int = 0, least: int = 0) -> Again | None:
        """What follows failed attempt number `attempt`, or None when it was the last.

        `waited` is since the action was asked for, `free` says how many attempts so far do not count, and `least` is
        how long the other side wants to be left alone.
        """
        if kind == "permanent":
            return None
        if kind == "contention" and free < FREE:
            # Full jitter: those who collided once come back at different moments.
            span = min(_SOON * 2 ** min(free, 10), _NOT_SO_SOON)
            return self._in_time(Again(int(span * drawn(key, attempt)), free + 1), waited)
        counted = attempt - free
        if self.attempts and counted >= self.attempts:
            return None
        return self._in_time(Again(max(self.delay(counted, key), least), free), waited)

    def _in_time(self, again: Again, waited: int) -> Again | None:
        return None if self.too_late(waited + again.delay) else again

    def too_late(self, waited: int) -> bool:
        """Whether an attempt so long after the action was asked for is later than `elapsed` allows."""
        return self.elapsed is not None and waited > micros(self.elapsed)


def drawn(key: str, number: int) -> float:
    """A number from 0 to 1 that follows from the key: other keys get others, a replay gets the same."""
    return int.from_bytes(hashlib.blake2b(f"{key}\n{number}".encode(), digest_size=4).digest()) / 2**32


def left_alone(error: BaseException) -> int:
    """For how many microseconds the service wants to be left alone, as far as its error says so."""
    seconds: object = getattr(error, "retry_after", None)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        return 0
    return int(min(seconds, LONGEST / 1e6) * 1e6)


def policy(retries: int | Retry, fatal: tuple[type[BaseException], ...] = (), spent: Spent = "fail") -> Retry:
    """`retries=5` means one attempt and five more; what follows when they are `spent` a number does not say."""
    if isinstance(retries, Retry):
        return structs.replace(retries, fatal=(*retries.fatal, *fatal))
    if isinstance(retries, bool) or retries < 0:
        raise UsageError(f"retries must be a number from 0 on or a Retry, not {retries!r}")
    options: dict[str, Any] = {"attempts": retries + 1, "fatal": fatal, "spent": spent}
    return Retry(**options)
