"""Every setting and every limit, with its type, default and meaning.

A setting is one field of `Settings` and one line of MEANING; its variable, its key in a file, `perdure config` and the
pages follow from these. `Settings()` has the defaults; `load` takes a file, the environment and what the caller chose,
each above the one before, and refuses what it does not know or cannot read. Durations are seconds, or text such as
"30s" and "PT5M". No error and no repr shows a password.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from perdure.core.commands import Limits
from perdure.core.durations import seconds
from perdure.errors import InvalidValue, SettingsError
from perdure.runtime import sources
from perdure.runtime.cursors import LONGEST_PAGE
from perdure.runtime.sources import Said, Source
from perdure.runtime.urls import redacted

Seconds = Annotated[float, Meta(ge=0)]
Length = Annotated[float, Meta(gt=0)]  # a duration of nothing makes no sense
Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0, description="per second")]


class Settings(Struct, frozen=True, kw_only=True):
    """See MEANING for what each one means."""

    store: str = "sqlite:///perdure.db"
    stream: str = ""
    stream_prefix: str = "perdure"
    stream_group: str = "workers"
    stream_shards: Count = 1
    stream_batch: Count = 200
    stream_block: Seconds = 5.0
    stream_idle: Seconds | None = None
    stream_reclaim: bool = True
    warm: Seconds = 300.0
    locks: Literal["store", "stream"] = "store"
    tenant: str = "default"
    actor: Annotated[str, Meta(min_length=1)] = "app"
    secrets: str = "env:"
    keyring: str = ""
    keyring_masters: str = ""
    searchable: str = ""
    queues: Annotated[str, Meta(pattern=r"[^\s,]")] = "default"
    processes: Count = 1
    lease: Length = 10.0
    grace: Seconds = 2.0
    linger: Seconds = 1.0
    drain: Seconds = 30.0
    cancel_timeout: Seconds = 300.0
    probe: Seconds = 5.0
    probe_idle: Seconds | None = None
    resident: Count = 1000
    cache: Annotated[int, Meta(ge=0)] = 1000
    concurrency: Count = 1000
    threads: Count = 32
    spill: Seconds | None = None
    pool: Annotated[int, Meta(ge=0)] = 0
    loop: Literal["auto", "uvloop", "asyncio"] = "auto"
    stall: Seconds = 5.0
    stall_limit: Seconds = 60.0
    health: str = ""
    api_wait: Seconds = 0.0
    token_issuer: str = ""
    token_audience: str = "perdure"
    token_keys: str = ""
    token_claims: str = "tenant,sub,roles"
    group: Count = 400
    group_bytes: Count = 1_000_000
    payload_bytes: Count = 1_000_000
    standing_bytes: Count = 100_000
    commands_per_turn: Count = 10_000
    steps_per_turn: Count = 1_000_000
    transitions_per_event: Count = 100
    events_per_replay: Count = 100_000
    lapses: Count = 4
    page: Annotated[int, Meta(ge=1, le=LONGEST_PAGE)] = LONGEST_PAGE
    counted: Count = 50_000
    replay_always: bool = False
    outbound_hosts: str = ""
    outbound_private: bool = False
    outbound_connect: Seconds = 3.0
    outbound_timeout: Seconds = 30.0
    outbound_bytes: Count = 2_000_000
    description_bytes: Count = 256 * 1024
    webhook_window: Seconds = 300.0
    api_rate: Rate = 1000.0
    api_burst: Count = 2000
    api_rates: str = ""
    api_strangers: Rate = 50.0
    api_strangers_burst: Count = 200
    api_requests: Count = 1000
    api_streams: Count = 100
    api_deadline: Seconds = 15.0
    api_bytes: Count = 2_000_000
    api_writes: Count = 10_000
    api_patience: Seconds = 5.0
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __repr__(self) -> str:
        """For logs and tracebacks: without passwords."""
        names = (field.name for field in msgspec.structs.fields(self))
        return f"Settings({', '.join(f'{name}={shown(getattr(self, name))!r}' for name in names)})"

    @property
    def limits(self) -> Limits:
        return Limits(
            self.commands_per_turn,
            self.steps_per_turn,
            self.events_per_replay,
            self.payload_bytes,
            self.transitions_per_event,
        )

    @property
    def queue_names(self) -> list[str]:
        return _names(self.queues)

    @property
    def outbound_host_names(self) -> list[str]:
        return _names(self.outbound_hosts)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


MEANING = {
    "store": "where everything is kept: sqlite:///FILE, postgresql://USER@HOST/DATABASE, mongodb://HOST/DATABASE,"
    " redis://HOST, dynamodb://REGION/TABLE or memory://",
    "stream": "redis://…, nats://…, amqp://… or kafka://…: hints travel over Redis Streams, NATS JetStream, RabbitMQ or"
    " Kafka; empty: in the store's own way",
    "stream_prefix": "what the names of all streams begin with; two deployments on one server need two",
    "stream_group": "the name under which all workers of a deployment share the streams",
    "stream_shards": "streams per queue, in Redis; with Kafka, partitions of a new topic, which at most so many workers"
    " share",
    "stream_batch": "hints read at once; for RabbitMQ, messages of each queue that a worker may have in hand",
    "stream_block": "how long one read waits for a hint; not for RabbitMQ, which reads nothing but is told",
    "stream_idle": "how long a hint lies with another worker, unconfirmed, until it is claimed; two leases unless set",
    "stream_reclaim": "whether a worker claims such hints, or gives them back to RabbitMQ",
    "warm": "how long the shared cache keeps a folded state, and the head of an execution that has ended",
    "locks": "where locks are kept: store, or stream for Redis (quicker, but Redis may forget them)",
    "tenant": "the tenant of calls that name none",
    "actor": "the name under which this application starts, sends and manages when a call names nobody",
    "secrets": "where secrets are found, separated by commas: env: for PERDURE_SECRET_NAME, or a directory of files",
    "keyring": "the directory of the key ring: what is stored is encrypted with its keys; empty: it is not",
    "keyring_masters": "the file of the master keys, where that is not masters.json of the key ring",
    "searchable": "published fields by which encrypted executions can be found, separated by commas",
    "queues": "the queues that a worker serves, separated by commas",
    "processes": "worker processes that one `perdure worker` starts and keeps alive",
    "lease": "how long a worker that gives no sign of life keeps its executions",
    "grace": "how long a hint may take before the store's own due time makes up for it",
    "linger": "an execution that has to wait no longer than this stays in memory",
    "drain": "how long a worker that was told to stop waits for running actions",
    "cancel_timeout": "how long the clean-up of a cancelled execution may take",
    "probe": "longest sleep of a worker between two looks at what is due",
    "probe_idle": "the same after a quiet minute; as long as the lease unless it is set",
    "resident": "executions that a worker holds at once",
    "cache": "waiting executions that a worker keeps in memory to spare itself their replay",
    "concurrency": "actions that a worker runs at once",
    "threads": "threads for actions that are plain functions",
    "spill": "how long an action waits for a place before any worker may run it; 1 s on PostgreSQL, else never",
    "pool": "processes for actions that are declared with process=True; 0 is one for each core",
    "loop": "auto (uvloop where it is installed), uvloop or asyncio",
    "stall": "how long the event loop may stand still before that is logged and reported",
    "stall_limit": "how long the leases of a worker whose event loop stands still are renewed all the same",
    "health": "HOST:PORT for health checks and metrics; none unless it is set",
    "api_wait": "how long the API waits for an execution to come to rest before it answers, unless the request says",
    "token_issuer": "the issuer of tokens (OpenID Connect) that the API takes beside API keys; empty: it takes none",
    "token_audience": "the audience that such tokens must be for",
    "token_keys": "where the issuer's public keys are: an address, or a file",
    "token_claims": "the claims of a token that say tenant, user and roles; dots lead into objects",
    "group": "executions in one commit",
    "group_bytes": "bytes of events in one commit",
    "payload_bytes": "bytes of one input, event, result or published state",
    "standing_bytes": "bytes of one schedule or bulk operation, which is in its log again and again",
    "commands_per_turn": "commands that a workflow may give without waiting",
    "steps_per_turn": "steps of the event loop in one turn",
    "transitions_per_event": "transitions of a state machine that may follow by themselves from one event",
    "events_per_replay": "events since the last restart_with that are still replayed",
    "lapses": "times that an execution may take its worker down before it is stuck",
    "page": "entries on one page of a list or a log; whoever asks for more gets so many, and a cursor",
    "counted": "executions that are counted for statistics and for the use of a quota",
    "replay_always": "throw away and replay after every turn: finds nondeterminism at once (on in dev and tests)",
    "outbound_hosts": "hosts that callbacks and calls of documents may lead to, as *.example.com; all unless set",
    "outbound_private": "whether they may lead to addresses that are not public, and without TLS",
    "outbound_connect": "how long one of them may take until there is a connection",
    "outbound_timeout": "how long one of them may take, from the connection to the end of the answer",
    "outbound_bytes": "bytes of an answer to one of them",
    "description_bytes": "bytes of the description of an API that a document calls",
    "webhook_window": "how far the time of a webhook may be from now; one that is older is refused",
    "api_rate": "requests per second of one tenant to one API process, reads and writes each; 0 is any number",
    "api_burst": "requests that a tenant may send at once, before the rate counts",
    "api_rates": "the same for single tenants, as acme=50, mill=200/400 (a rate, or a rate and a burst)",
    "api_strangers": "requests per second from one address with credentials that nobody knows; 0 is any number",
    "api_strangers_burst": "requests of that sort that may come at once",
    "api_requests": "requests that an API process serves at once, reads and writes each",
    "api_streams": "logs that one tenant may follow at once at an API process",
    "api_deadline": "how long a request may take to arrive at the API",
    "api_bytes": "bytes of the body of a request to the API",
    "api_writes": "starts and events that may wait for the store before the API takes no more",
    "api_patience": "how long one of them may wait before the API takes no more",
    "log_format": "console or json",
    "log_level": "debug, info, warning or error",
}


class Explained(Struct, frozen=True):
    """One setting as it stands. `place` is a file and its line, or the name of a variable."""

    name: str
    variable: str
    older: tuple[str, ...]
    type: str
    value: Any
    default: Any
    source: Source
    place: str
    meaning: str


class Found(Struct):
    """What was said about settings, and what is wrong with it."""

    values: dict[str, Any] = {}
    origins: dict[str, Said] = {}
    problems: list[str] = []


def load(environ: Mapping[str, str] | None = None, **chosen: Any) -> Settings:
    """Defaults, then a file, then the environment, then what the caller chose.

    With an environment of your own only that one counts: no file is looked for, unless it names one.
    """
    found = look(environ, **chosen)
    if found.problems:
        raise SettingsError("; ".join(found.problems))
    return Settings(**found.values)


def explain(found: Found) -> list[Explained]:
    """Every setting with its value and where that came from."""
    defaults, settings = Settings(), Settings(**found.values)
    return [
        Explained(
            name=name,
            variable=sources.variable(name),
            older=sources.older(name),
            type=type_of(name),
            value=shown(getattr(settings, name)),
            default=shown(getattr(defaults, name)),
            source=said.source if (said := found.origins.get(name)) is not None else "default",
            place=said.place if said is not None else "",
            meaning=meaning,
        )
        for name, meaning in MEANING.items()
    ]


def shown(value: Any) -> Any:
    """A value as people may see it."""
    return redacted(value) if isinstance(value, str) else value


def look(environ: Mapping[str, str] | None = None, **chosen: Any) -> Found:
    """Gather what the sources say, the later above the earlier; mistakes are collected, not raised."""
    surroundings = os.environ if environ is None else environ
    found = Found()
    layers: list[tuple[Iterable[Said], list[str]]] = [
        sources.from_file(surroundings, MEANING, look_around=environ is None),
        sources.from_environment(surroundings, MEANING),
        sources.from_caller(chosen, MEANING),
    ]
    for said, problems in layers:
        found.problems += problems
        _take(found, said)
    _check_kinds(found, surroundings)
    return found


@cache
def _kinds() -> dict[str, Any]:
    """The type of every setting. To find them takes milliseconds, and tests make very many applications."""
    return {field.name: field.type for field in msgspec.structs.fields(Settings)}


_TYPES: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def type_of(name: str) -> str:
    """What values a setting takes, for people.

    >>> type_of("lease"), type_of("resident"), type_of("log_format")
    ('duration', 'whole number', 'console or json')
    """
    kind = _kinds()[name]
    if _is_duration(kind):
        return "duration"
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    return _TYPES[get_args(kind)[0] if get_origin(kind) is Annotated else kind]


def wanted(name: str) -> str:
    """What a value has to be, for whoever gave another.

    >>> wanted("lapses"), wanted("loop")
    ('it is a whole number, 1 or more', 'it is auto or uvloop or asyncio')
    """
    kind, words = _kinds()[name], type_of(name)
    if get_origin(kind) is Literal or kind is bool:
        return f"it is {words}"
    limits = next((part for one in (kind, *get_args(kind)) for part in get_args(one) if isinstance(part, Meta)), Meta())
    bounds = [f"{limits.ge} or more"] if limits.ge is not None else []
    bounds += ["more than 0"] if limits.gt is not None else []
    bounds += [f"{limits.le} at most"] if limits.le is not None else []
    bounds += ["not empty"] if limits.min_length else []
    bounds += ["with a name in it"] if limits.pattern else []
    return ", ".join([f"it is a {words}", *bounds])


def _is_duration(kind: Any) -> bool:
    return kind in (Seconds, Length) or Seconds in get_args(kind)


def _take(found: Found, layer: Iterable[Said]) -> None:
    """One layer above those before. Within it, a setting that is named twice must be the same both times."""
    kinds = _kinds()
    here: dict[str, Said] = {}
    for said in layer:
        try:
            value = _read(said, kinds[said.name])
        except (InvalidValue, msgspec.ValidationError) as error:
            why = wanted(said.name) if isinstance(error, msgspec.ValidationError) else redacted(str(error))
            found.problems.append(f"{said.label} cannot be {shown(said.value)!r}: {why}")
            continue
        if (other := here.get(said.name)) is None:
            here[said.name] = found.origins[said.name] = said
            found.values[said.name] = value
        elif found.values[said.name] != value:
            found.problems.append(
                f"{other.label} is {shown(other.value)!r} and {said.label} is {shown(said.value)!r}, but both mean"
                f" {said.name}: unset one"
            )


def _read(said: Said, kind: Any) -> Any:
    value = said.value
    if _is_duration(kind):
        plain = isinstance(value, str) and value.replace(".", "", 1).isdecimal()
        length = seconds(float(value) / said.per if plain else value)
        return msgspec.convert(length, kind)
    # A variable is always text; a file has types of its own.
    lax = isinstance(value, str) and said.source != "file"
    return msgspec.convert(value, kind, strict=not lax)


def _check_kinds(found: Found, environ: Mapping[str, str]) -> None:
    """Older variables name only the kind of store: it must fit the address, or choose it where there is none."""
    origin = found.origins.get("store")
    if origin is not None and origin.source == "given":
        return  # the caller chose, whatever the environment says
    for variable, kind in sources.kinds(environ):
        address = found.values.get("store") if origin is not None else None
        said, problem = sources.fitted(variable, kind, address, found.values.get("stream") or "")
        if said is not None:
            found.values["store"], found.origins["store"] = said.value, said
            origin = said
        if problem:
            found.problems.append(problem)
