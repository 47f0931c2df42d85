"""Every setting and every limit, with its environment variable, type and default.

`Settings()` has the defaults; `load` reads PERDURE_* variables and refuses what it does not know or cannot read.
Durations are seconds, or text such as "30s" and "PT5M".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from perdure.core.commands import Limits
from perdure.core.durations import seconds
from perdure.errors import InvalidValue, SettingsError

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class Settings(Struct, frozen=True, kw_only=True):
    """See `explain` for what each one means."""

    store: str = "sqlite:///perdure.db"
    tenant: str = "default"
    queues: str = "default"
    lease: Seconds = 10.0
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
    group: Count = 400
    group_bytes: Count = 1_000_000
    payload_bytes: Count = 1_000_000
    commands_per_turn: Count = 10_000
    steps_per_turn: Count = 1_000_000
    events_per_replay: Count = 100_000
    lapses: Count = 4
    replay_always: bool = False
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def limits(self) -> Limits:
        return Limits(self.commands_per_turn, self.steps_per_turn, self.events_per_replay, self.payload_bytes)

    @property
    def queue_names(self) -> list[str]:
        return [name.strip() for name in self.queues.split(",") if name.strip()]


MEANING = {
    "store": "where everything is kept: sqlite:///FILE, postgresql://USER@HOST/DATABASE or memory://",
    "tenant": "the tenant of calls that name none",
    "queues": "the queues that a worker serves, separated by commas",
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
    "group": "executions in one commit",
    "group_bytes": "bytes of events in one commit",
    "payload_bytes": "bytes of one input, event, result or published state",
    "commands_per_turn": "commands that a workflow may give without waiting",
    "steps_per_turn": "steps of the event loop in one turn",
    "events_per_replay": "events since the last restart_with that are still replayed",
    "lapses": "times that an execution may take its worker down before it is stuck",
    "replay_always": "throw away and replay after every turn: finds nondeterminism at once (on in dev and tests)",
    "log_format": "console or json",
    "log_level": "debug, info, warning or error",
}
_PREFIX = "PERDURE_"
#: Variables with our prefix that are not settings of the engine.
_FOREIGN = ("PERDURE_TEST_",)


def load(environ: Mapping[str, str] | None = None, **chosen: Any) -> Settings:
    """Defaults, then the environment, then what the caller chose."""
    environ = os.environ if environ is None else environ
    fields = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(_PREFIX) or variable.startswith(_FOREIGN):
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name not in fields:
            raise SettingsError(f"{variable} is not a setting of Perdure; `perdure config` lists them all")
        values[name] = _read(variable, text, fields[name])
    for name, value in chosen.items():
        if name not in fields:
            raise SettingsError(f"{name} is not a setting of Perdure; `perdure config` lists them all")
        if value is not None:
            values[name] = _read(name, value, fields[name])
    return Settings(**values)


def explain(environ: Mapping[str, str] | None = None, **chosen: Any) -> list[tuple[str, str, Any, str, str]]:
    """(name, variable, value, where it came from, meaning) of every setting."""
    environ = os.environ if environ is None else environ
    settings = load(environ, **chosen)
    table = []
    for name, meaning in MEANING.items():
        variable = _PREFIX + name.upper()
        given = chosen.get(name) is not None
        source = "given" if given else "environment" if variable in environ else "default"
        table.append((name, variable, getattr(settings, name), source, meaning))
    return table


def _read(name: str, value: Any, kind: Any) -> Any:
    try:
        if kind is Seconds or Seconds in get_args(kind):
            text = isinstance(value, str) and not value.replace(".", "", 1).isdecimal()
            return seconds(value if text or not isinstance(value, str) else float(value))
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except (InvalidValue, msgspec.ValidationError) as error:
        raise SettingsError(f"{name} cannot be {value!r}: {error}") from error
