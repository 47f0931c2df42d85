"""What all requests to one server share: its end, the seats of those who stay, what is counted, and whether the store
answers.

Rules kept here: a seat is taken before the answer begins and given back when it is over, however it ends; what is
remembered of a tenant is gone with its last seat. Every label has a fixed set of values.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from perdure.http.leaving import Leaving
from perdure.http.problems import Refused
from perdure.runtime.telemetry.health import Answering, Probe
from perdure.runtime.telemetry.metrics import Counter, Gauge, Metric, Pairs

CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
#: By what a problem is called, else by its status.
_REASONS = {
    "too-many-requests": "rate",
    "too-many-streams": "streams",
    "busy": "busy",
    "leaving": "leaving",
    "store-unavailable": "store",
    "outcome-unknown": "unknown",
    400: "invalid",
    401: "credential",
    403: "scope",
    404: "missing",
    405: "invalid",
    408: "slow",
    409: "conflict",
    413: "large",
    415: "invalid",
    422: "invalid",
    431: "large",
    500: "internal",
}
REASONS = tuple(dict.fromkeys(_REASONS.values()))


class Seats:
    """How many answers that go on each tenant has, `most` at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Tally[str] = Tally()

    @property
    def taken(self) -> int:
        return self._taken.total()

    def take(self, tenant: str) -> Callable[[], None]:
        """Gives what gives it back; to be called once."""
        if self._taken[tenant] >= self._most:
            detail = f"{tenant} follows {self._most} logs already at this server: end one, then try again"
            raise Refused(429, "Too Many Streams", detail, {"Retry-After": "5"})
        self._taken[tenant] += 1

        def leave() -> None:
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]

        return leave


class Counts:
    """What a server counts."""

    def __init__(self, routes: Iterable[str]) -> None:
        self.requests = Pairs(
            "perdure_api_requests_total",
            "requests that were answered, by their route and the class of the status",
            ("route", "status"),
            (routes, CLASSES),
        )
        self.refused = Counter(
            "perdure_api_refused_total",
            "those that were answered with a problem, by the reason",
            "reason",
            REASONS,
        )
        self.streams = Gauge("perdure_api_streams", "logs that are being followed")
        self.waiting = Gauge("perdure_api_writes_waiting", "starts and messages that wait for the store")

    def answered(self, route: str, status: int, problem: str) -> None:
        self.requests.add(route, f"{status // 100}xx")
        if problem:
            self.refused.add(_REASONS.get(problem) or _REASONS.get(status, ""))

    def all(self) -> list[Metric]:
        return [self.requests, self.refused, self.streams, self.waiting]


class Site:
    def __init__(self, streams: int, routes: Iterable[str], waiting: Callable[[], int], store: Answering) -> None:
        self.leaving = Leaving()
        self.probe = Probe(store)
        self.seats = Seats(streams)
        self.counts = Counts(routes)
        self.counts.streams.read = lambda: self.seats.taken
        self.counts.waiting.read = waiting
