"""The numbers in the table of docs/reference/limits.md, as the code has them.

A limit that is a setting is compared with its default. One that is fixed is named here by its row: by where it is in
the code, or, where a pattern decides, by what the pattern takes. Every constant that is called like a limit is in the
table, or among those that no user meets.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from perdure.core.durations import LONGEST, SECOND
from perdure.core.jq.limits import Limits
from perdure.core.records import TENANT
from perdure.runtime.web.callbacks import _RETRY

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/limits.md"
Source: TypeAlias = "str | Per | Callable[[], float]"


def takes(pattern: str) -> Callable[[], int]:
    """The longest text that a pattern takes: of so many characters, and not of one more."""

    def longest() -> int:
        module, _, name = pattern.rpartition(".")
        found: re.Pattern[str] = getattr(importlib.import_module(f"perdure.{module}"), name)
        lengths = [size for size in range(10_000) if found.fullmatch("a" * size)]
        return max(lengths)

    return longest


class Per(NamedTuple):
    """A constant in another unit than the table has."""

    place: str
    unit: float


def value(source: Source) -> Any:
    """What the code says."""
    if isinstance(source, Per):
        return value(source.place) / source.unit
    if callable(source):
        return source()
    module, _, name = source.rpartition(".")
    return getattr(importlib.import_module(f"perdure.{module}"), name)


#: By the row of the table, what is behind each of its numbers.
FIXED: dict[str, list[Source]] = {
    "characters of the id of an execution or an event": [takes("runtime.checks._ID")],
    "characters of the name of a lock or a lane": [takes("runtime.checks._NAME")],
    "characters of the name of a tenant": [lambda: max(n for n in range(999) if re.fullmatch(TENANT, "a" * n))],
    "characters of a correlation id or a tag": ["runtime.checks.LONGEST_LABEL"],
    "tags of an execution": ["runtime.checks.MOST_TAGS"],
    "characters of the name of an event, over HTTP": ["http.forms.LONGEST_NAME"],
    "characters of the name of a definition": [takes("flows.kinds._NAME")],
    "characters of the name, or the namespace, of a document": [takes("flows.document.plan._NAME")],
    "characters of the name of a schedule": [takes("runtime.managing.schedules._NAME")],
    "characters of the name of a webhook": [takes("runtime.web.hooks._NAME")],
    "characters of the name of a secret": [takes("flows.secret.NAME")],
    "characters of the name of a user, a role or an API key": ["http.caller.LONGEST"],
    "roles of an API key": ["http.key_routes.MOST"],
    "users and roles that a task is for": ["flows.person.MOST"],
    "characters of the name or a text of a task for a person": ["flows.person.LONGEST"],
    "characters of the name of an external worker": ["runtime.external.external.LONGEST_WORKER"],
    "characters of an idempotency key": ["http.verbs.LONGEST_KEY"],
    "characters of a credential": ["http.auth.LONGEST"],
    "characters of a database's name in MongoDB": [takes("stores.mongodb.address._DATABASE")],
    "bytes of a row, or of a head, in MongoDB": ["stores.mongodb.documents.LARGEST"],
    "characters of a schema's name in PostgreSQL": [takes("stores.postgres.address._SCHEMA")],
    "characters of `stream_prefix`": [takes("streams.redis.keys._PREFIX")],
    "hints of a queue that NATS keeps, and for how many hours": [
        "streams.nats.keeping.MOST",
        Per("streams.nats.keeping.OLD", 3600),
    ],
    "characters of the prefix of a store in Redis": [takes("stores.redis.address._PREFIX")],
    "bytes of one value in a store in Redis": ["stores.redis.packing.LARGEST"],
    "levels of nesting in a value": ["core.encoding.DEPTH"],
    "levels of nesting in the body of a request": ["http.strict.DEPTH"],
    "headers of a request, and their bytes": ["http.edge.MOST_HEADERS", "http.edge.HEADER_BYTES"],
    "events in one request": ["http.cloudevents.MOST"],
    "ids of dead letters in one request": ["http.system.MOST"],
    "entries of a page that are asked for": ["runtime.cursors.LONGEST_PAGE"],
    "seconds that an answer is kept waiting (`wait`)": [Per("http.verbs.LONGEST", 1e6)],
    "tasks that an external worker is given at once": ["runtime.external.external.MOST"],
    "seconds of the lease of an external task, from and to": [
        Per("runtime.external.external.SHORTEST", 1e6),
        Per("runtime.external.external.LONGEST", 1e6),
    ],
    "attributes of a CloudEvent, and their bytes": ["core.cloudevents.MOST", "core.cloudevents.MOST_BYTES"],
    "times in the list of a schedule": ["runtime.managing.timetables.MOST"],
    "times of a schedule that are foreseen": ["runtime.managing.timetables.FORESEEN"],
    "seconds between two times of a schedule, at least": [Per("runtime.managing.timetables.SHORTEST", 1e6)],
    "hours of the jitter of a schedule": [Per("runtime.managing.schedules._DAY", 3.6e9)],
    "characters of a cron line": ["flows.cron._LONGEST"],
    "years of a duration": [lambda: LONGEST / SECOND / 31_556_952],
    "characters of a duration": ["core.durations.LONGEST_TEXT"],
    "bytes, levels and values of a definition": [
        "flows.reading.LENGTH",
        "flows.reading.DEPTH",
        "flows.reading.VALUES",
    ],
    "nodes and edges of a graph": ["flows.graph.model.MOST_NODES", "flows.graph.model.MOST_EDGES"],
    "bytes of the metadata of a graph": ["flows.graph.model.MOST_METADATA"],
    "characters of the id of a node": ["flows.graph.model.LONGEST_ID"],
    "loops of a graph inside one another": ["flows.graph.shape.MOST_LOOPS"],
    "rounds of a loop that are open at once": ["flows.graph.model.MOST_ROUNDS"],
    "tasks of a document inside one another": ["flows.document.step.MOST_NESTED"],
    "kinds of events that a definition listens for": ["flows.listening.MOST"],
    "characters of the type of an event that is listened for": ["flows.listening.LONGEST"],
    "nodes or tasks that settle in one turn": ["flows.described.MOST_AT_ONCE"],
    "hours of a pause between two tries of a document": [Per("flows.document.trying.LONGEST", 3.6e9)],
    "failures by contention that do not count as attempts": ["core.retry.FREE"],
    "steps of an expression": [lambda: Limits().steps],
    "elements and characters that an expression makes": [lambda: Limits().size],
    "nested frames of an expression": [lambda: Limits().depth],
    "levels of a value that an expression walks through": ["core.jq.limits.NESTED"],
    "characters of an expression, and its levels": ["core.jq.limits.LONGEST", "core.jq.limits.DEEPEST"],
    "operators, or fields, of an expression in a row": ["core.jq.limits.LONGEST_CHAIN"],
    "characters of a pattern, and of the text that it meets": [
        "core.jq.regex.LONGEST_PATTERN",
        "core.jq.regex.LONGEST_TEXT",
    ],
    "the worst case of a pattern": ["core.jq.regex.COSTLIEST"],
    "characters of the message of an error": ["core.failures.LONGEST"],
    "characters of a reason, or a target, in the audit": ["runtime.managing.audit.LONGEST"],
    "mistakes of a bundle that are told": ["runtime.definitions.bundles.MOST"],
    "open nodes of a graph that are published": ["flows.graph.showing.MOST_SHOWN"],
    "last times of a schedule that are shown": ["flows.schedule.RECENT"],
    "first ids, and errors, of a bulk operation that are shown": ["flows.bulk.SHOWN"],
    "characters of a secret, at least": ["runtime.secrets.watching.SHORTEST"],
    "bytes of the file of a secret": ["runtime.secrets.sources.LONGEST"],
    "redirects that a call of a document follows": ["runtime.web.calls.HOPS"],
    "characters of an address that is called": ["runtime.web.addresses._LONGEST"],
    "characters of the name and the value of a header that is sent": [
        takes("runtime.web.outbound._TOKEN"),
        takes("runtime.web.outbound._VALUE"),
    ],
    "addresses of a host that are tried": ["runtime.web.outbound._TRIES"],
    "hours for which a callback is tried": [lambda: float(str(_RETRY.elapsed).removesuffix("h"))],
    "seconds that a callback waits because of `Retry-After`": ["runtime.web.callbacks.LONGEST_PAUSE"],
    "signatures of a webhook that are looked at": ["core.signing._MOST"],
    "bytes of the keys of a token issuer": ["http.jwks.SIZE"],
    "bits of an RSA key of a token issuer, at least": ["http.jwks._SHORTEST"],
    "bytes of a request to the health port, and connections at once": [
        "runtime.telemetry.health.HEAD",
        "runtime.telemetry.health.CONNECTIONS",
    ],
    "queues in the metrics of a worker": ["runtime.telemetry.metrics.QUEUES"],
    "inputs of a rehearsal": ["flows.rehearsal._MOST"],
}

#: Settings with a number that are no limits: how work is shared, how often somebody looks, how long things are kept.
TUNING = {
    *("stream_shards", "stream_batch", "stream_block", "stream_idle", "warm", "processes", "lease", "grace", "linger"),
    *("drain", "probe", "probe_idle", "resident", "cache", "concurrency", "threads", "spill", "pool", "stall"),
    *("stall_limit", "api_wait", "group", "group_bytes"),
}

#: Constants that are called like limits, and that no user meets: they bound what a process keeps, or part its work.
INSIDE = {
    "core.jq.access._LONGEST_ARRAY",  # what jq itself refuses; the size of an expression is reached long before
    "core.jq.text.LARGEST",  # the largest number there is
    "core.durations.LONGEST",  # in the table by its years
    "flows.document.plan.LARGEST",  # a larger state is replayed, not written down
    "flows.document.tasks._DEEPEST",  # keeps the check itself from nesting too deep
    "flows.graph.rest.LARGEST",
    "flows.samples._DEEPEST",  # of an example that is made up
    "flows.samples._MOST",
    "http.audit._MOST",  # ids in the text of a note, which is cut anyway
    "http.jwks.LONGEST",  # for how long keys are good without their issuer
    "http.strict.MOST",  # integers of 64 bits
    "runtime.callers.writing.MOST",  # parts of one caller's writes
    "runtime.cursors._LONGEST",  # no cursor of ours is so long
    "runtime.external.ticket._LONGEST",  # nor any token
    "runtime.managing.tasks._LONGEST_PAUSE",
    "streams.nats.names.LONGEST",  # longer names are told from each other by their hash
    "runtime.supervisor.LONGEST",
    "runtime.web.operations._DEPTH",  # references of a description that are followed in a row: more are a circle
    "runtime.web.calls._SHORTEST",  # like the secrets that it is about
    "runtime.web.credentials.MOST",  # tokens that are kept
    "runtime.web.outbound.MOST",  # without settings
    "streams.kafka.names.LONGEST",  # a longer name has a hash in place of its end
    "streams.kafka.reader.LONGEST",  # within these a group's patience is as long as `stream_idle`
    "streams.kafka.reader.SHORTEST",
    "client.door._LONGEST",
    "streams.mongodb.LONGEST",  # a longer hint is dropped, and its execution is due all the same
}
_LIMIT = re.compile(r"_?(MOST|LARGEST|LONGEST|SHORTEST|DEEPEST|DEPTH|LENGTH|VALUES|NESTED|COSTLIEST)(_[A-Z_]+)?")
_ROW = re.compile(r"^\| (?P<what>.+?) \| (?P<most>[\d,. ]+) \| (?P<by>.+?) \| (?P<then>.+?) \|$", re.MULTILINE)
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+|\d+")


class Row:
    """A row of the table."""

    def __init__(self, found: re.Match[str]) -> None:
        self.what = found["what"]
        self.numbers = [int(number.replace(",", "")) for number in _NUMBER.findall(found["most"])]
        self.setting = found["by"].strip("`") if found["by"].startswith("`") else ""
        self.reason = found["by"].removeprefix("fixed: ") if found["by"].startswith("fixed: ") else ""


def rows() -> list[Row]:
    return [Row(found) for found in _ROW.finditer(PAGE.read_text())]


def lines() -> int:
    """How many lines of the page are rows, whether they can be read or not."""
    return len(re.findall(r"^\|", PAGE.read_text(), re.MULTILINE)) - 2


def places() -> set[str]:
    """The constants that are in the table."""
    several = [source for sources in FIXED.values() for source in sources]
    return {one.place if isinstance(one, Per) else one for one in several if isinstance(one, str | Per)}


def called_like_limits() -> Iterator[str]:
    """Numbers at the top of modules whose names say that they are limits."""
    package = ROOT / "src/perdure"
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        if module.startswith(("testing.", "flows.diagram.", "cli.")):
            continue
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name) and _LIMIT.fullmatch(name.id):
                            if isinstance(value(f"{module}.{name.id}"), int | float):
                                yield f"{module}.{name.id}"
