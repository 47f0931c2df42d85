"""What a process counts, above all a worker, and the text in which Prometheus reads it (format 0.0.4).

Rules kept here: every label has a fixed set of values, so the number of series is bounded and no dictionary grows; to
count is one integer addition on the loop's thread, with no text made; whoever reads does so from another thread and may
see a number that is a moment old, never a broken one. Numbers begin at zero with the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

from perdure.core import events as ev
from perdure.core.records import ENDED, Backlog, Row, queue_of_all

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Queues of which the backlog is shown, at most.
QUEUES = 100
#: Where a value belongs that nobody foresaw.
OTHER = "other"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 400.0)

#: A line of the answer: suffix of the name, labels, value.
Sample: TypeAlias = tuple[str, Mapping[str, str], float]


class Counter:
    """Counts upwards, by the values of one label or without any.

    >>> served = Counter("served_total", "What was served.", "kind", {"tea": "tea", "coffee": "coffee"})
    >>> served.add("tea")
    >>> served.add("lemonade")
    >>> [(labels["kind"], value) for _, labels, value in served.samples()]
    [('tea', 1), ('coffee', 0), ('other', 1)]
    """

    kind = "counter"

    def __init__(
        self, name: str, meaning: str, label: str = "", values: Mapping[Hashable, str] | Iterable[str] = ()
    ) -> None:
        self.name, self.meaning, self.label = name, meaning, label
        self._texts: dict[Hashable, str] = {} if label else {"": ""}
        self._texts.update(values if isinstance(values, Mapping) else {one: one for one in values})
        if label:
            self._texts[OTHER] = OTHER
        #: By the value itself, for those who add often.
        self.counts: dict[Hashable, int] = dict.fromkeys(self._texts, 0)

    def add(self, value: Hashable = "", amount: int = 1) -> None:
        self.counts[value if value in self.counts else OTHER] += amount

    def samples(self) -> list[Sample]:
        if not self.label:
            return [("", {}, self.counts[""])]
        return [("", {self.label: text}, self.counts[value]) for value, text in self._texts.items()]


class Pairs:
    """Counts upwards, by the values of two labels; those that never came are not shown.

    >>> sold = Pairs("sold_total", "What was sold.", ("kind", "size"), (("tea", "coffee"), ("small", "large")))
    >>> sold.add("tea", "large")
    >>> sold.add("soup", "small")
    >>> sold.samples()
    [('', {'kind': 'tea', 'size': 'large'}, 1), ('', {'kind': 'other', 'size': 'small'}, 1)]
    """

    kind = "counter"

    def __init__(
        self, name: str, meaning: str, labels: tuple[str, str], values: tuple[Iterable[str], Iterable[str]]
    ) -> None:
        self.name, self.meaning, self.label = name, meaning, ", ".join(labels)
        self._labels = labels
        self._values = frozenset(values[0]), frozenset(values[1])
        self.counts: dict[tuple[str, str], int] = {}

    def add(self, first: str, second: str) -> None:
        known, also = self._values
        pair = first if first in known else OTHER, second if second in also else OTHER
        self.counts[pair] = self.counts.get(pair, 0) + 1

    def samples(self) -> list[Sample]:
        return [("", dict(zip(self._labels, pair, strict=True)), count) for pair, count in list(self.counts.items())]


class Gauge:
    """A number that is read when somebody asks."""

    kind = "gauge"

    def __init__(self, name: str, meaning: str, read: Callable[[], float] = lambda: 0) -> None:
        self.name, self.meaning, self.label = name, meaning, ""
        self.read = read

    def samples(self) -> list[Sample]:
        return [("", {}, self.read())]


class QueueGauge:
    """A number for each queue, as the store last told it."""

    kind = "gauge"

    def __init__(self, name: str, meaning: str) -> None:
        self.name, self.meaning, self.label = name, meaning, "queue"
        self.values: Mapping[str, float] = {}

    def samples(self) -> list[Sample]:
        return [("", {"queue": queue}, value) for queue, value in list(self.values.items())[:QUEUES]]


class Histogram:
    """How often values fell below each bound, their sum and their number.

    >>> waits = Histogram("wait_seconds", "How long.", (0.1, 1.0))
    >>> for seconds in (0.05, 0.1, 7.0):
    ...     waits.observe(seconds)
    >>> [(suffix, labels.get("le"), value) for suffix, labels, value in waits.samples()]
    [('_bucket', '0.1', 2), ('_bucket', '1', 2), ('_bucket', '+Inf', 3), ('_sum', None, 7.15), ('_count', None, 3)]
    """

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float] = SECONDS) -> None:
        self.name, self.meaning, self.label = name, meaning, ""
        self._bounds = bounds
        self._buckets = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._buckets[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._buckets)

    def samples(self) -> list[Sample]:
        lines: list[Sample] = []
        below = 0
        for bound, count in zip((*map(_number, self._bounds), "+Inf"), list(self._buckets), strict=True):
            below += count
            lines.append(("_bucket", {"le": bound}, below))
        return [*lines, ("_sum", {}, self.total), ("_count", {}, below)]


Metric: TypeAlias = Counter | Pairs | Gauge | QueueGauge | Histogram

_STUCK = ev.NUMBERS[ev.Stuck]
#: Why executions wait for a person: the causes of Stuck events.
CAUSES = ("nondeterminism", "never-wakes", "undecodable", "limit", "lapses", "attempts", "refused", "engine")
#: What goes wrong on the way of an event into its log.
TROUBLES = (
    "store",  # it refused or was out of reach; tried again
    "unknown",  # nobody knows whether the write happened; held again
    "stale",  # another worker had gone on with it; the write was refused
    "lost",  # the lease was over before it could be renewed
    "engine",  # a mistake of Perdure's own
)
OUTCOMES = ("ok", "failed", "retried", "cancelled")


class Metrics:
    """All that a worker counts; the worker and its parts add to the attributes."""

    def __init__(self) -> None:
        types: dict[Hashable, str] = {number: kind.__name__ for number, kind in sorted(ev.TYPES.items())}
        self.events = Counter(
            "workflow_events_processed_total", "events that this worker wrote into logs, by their type", "type", types
        )
        self.duration = Histogram(
            "workflow_event_processing_duration_seconds",
            "from the moment something was ready to be written until its group was committed, per group",
        )
        self.errors = Counter(
            "workflow_event_processing_errors_total",
            "what went wrong on the way into a log; nothing is lost by it",
            "kind",
            TROUBLES,
        )
        self.subscription_errors = Counter(
            "workflow_subscription_errors_total",
            "times that hints ceased to arrive; the store's due times make up for them",
        )
        self.stuck = Counter(
            "workflow_event_dlq_total", "executions that became stuck and wait for a person", "cause", CAUSES
        )
        self.holds = Gauge("perdure_holds", "executions that this worker holds")
        self.residents = Gauge("perdure_residents", "executions in memory: those held, and those kept for later")
        self.over_quota = Gauge(
            "perdure_over_quota", "new executions that this worker has seen waiting for the quota of their tenant"
        )
        self.attempts = Gauge("perdure_attempts_running", "actions that run now")
        self.actions = Counter("perdure_actions_total", "attempts of actions that are over", "outcome", OUTCOMES)
        self.batch = Histogram("perdure_commit_batch_size", "executions in one commit", SIZES)
        self.commit = Histogram("perdure_commit_duration_seconds", "how long the store took for a commit")
        self.replay = Histogram("perdure_replay_duration_seconds", "how long the replay of a log took")
        self.lateness = Histogram(
            "perdure_timer_lateness_seconds", "from the due time of a timer until it was written, per commit"
        )
        self.backlog = QueueGauge("perdure_backlog", "what is due and held by nobody, by queue")
        self.backlog_age = QueueGauge("perdure_backlog_oldest_seconds", "since when the oldest of these is due")
        self.hints = Counter("perdure_hints_received_total", "hints that came in")
        self.takeovers = Counter(
            "perdure_takeovers_total", "executions taken over from a worker that died or lost them"
        )
        self.given_back = Counter(
            "perdure_given_back_total", "actions that ran apart, waited here too long for a place and were given back"
        )
        self.ended = Counter("perdure_executions_ended_total", "executions that ended here", "status", sorted(ENDED))
        self.late = Counter(
            "perdure_external_late_total",
            "what external workers said about tasks that were no longer theirs; it was dropped",
            "said",
            ("heartbeat", "complete", "fail"),
        )
        self.stalls = Counter("perdure_loop_stalls_total", "times that the event loop did not run for too long")

    def all(self) -> list[Metric]:
        """Every metric, in the order in which they are shown."""
        return [one for one in vars(self).values() if isinstance(one, Counter | Gauge | QueueGauge | Histogram)]

    def wrote(self, rows: Iterable[Row]) -> None:
        """These are in a log now."""
        counts = self.events.counts
        for row in rows:
            counts[row.type % 1000] += 1
            if row.type == _STUCK and isinstance(stuck := ev.read(row), ev.Stuck):
                self.stuck.add(stuck.cause)

    def attempted(self, event: ev.Event | None) -> None:
        """An attempt is over: with this event, or cancelled."""
        match event:
            case None:
                outcome = "cancelled"
            case ev.ActionSettled():
                outcome = "ok" if event.error is None else "failed"
            case ev.ActionAttempted():
                outcome = "failed" if event.spent else "retried"
            case _:
                return  # there was no room for it: it runs elsewhere, and is counted there
        self.actions.counts[outcome] += 1

    def waiting(self, backlogs: Iterable[Backlog], now: int) -> None:
        """What the store says about the queues. Those that each tenant has for itself count together: whoever may see
        the numbers of a process need not know its tenants, and there may be more of them than anybody can look at."""
        due: dict[str, float] = {}
        age: dict[str, float] = {}
        for one in backlogs:
            name = queue_of_all(one.queue)
            due[name] = due.get(name, 0) + one.due
            age[name] = max(age.get(name, 0.0), (now - one.oldest) / 1e6)
        self.backlog.values, self.backlog_age.values = due, age

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        return text_of(self.all())


def text_of(metrics: Iterable[Metric]) -> str:
    """Metrics, as Prometheus reads them."""
    lines = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {metric.meaning}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for suffix, labels, value in metric.samples():
            inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{suffix}{f'{{{inside}}}' if inside else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
