"""Where settings are said: a TOML file, the environment with its older names, the caller.

Rules kept here: the keys of a file are the names of the settings, a variable is PERDURE_ and that name; a word that is
no setting is a problem that names its place and the nearest word that is one; values are handed on as they were found
and read elsewhere, by one set of rules. The file is the one that PERDURE_CONFIG names, or `perdure.toml` in the working
directory, or the table `[tool.perdure]` of `pyproject.toml` there.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from perdure.runtime.urls import redacted

Source: TypeAlias = Literal["default", "file", "environment", "given"]

PREFIX = "PERDURE_"
#: Names the file; not a setting itself, for a file cannot name itself.
CONFIG = "PERDURE_CONFIG"
#: Variables with our prefix that are not settings of the engine.
_FOREIGN = ("PERDURE_TEST_", "PERDURE_SECRET_")


class Said(Struct, frozen=True):
    """A value for a setting, as it was found, and where."""

    name: str
    value: Any
    source: Source
    place: str
    per: int = 1  # of a duration that is a plain number: so many make a second

    @property
    def label(self) -> str:
        """What an error says it is about."""
        return f"{self.place}: {self.name}" if self.source == "file" else self.place


class Older(Struct, frozen=True):
    """A variable by which a setting is known elsewhere."""

    name: str
    per: int = 1
    strip: str = ""  # what its values end with there and not here


#: Variables of older deployments and the settings that they stand for.
OLDER: dict[str, Older] = {
    "WORKFLOW_WORKER_COUNT": Older("processes"),
    "WORKFLOW_REDIS_STREAM_PREFIX": Older("stream_prefix", strip=":"),
    "WORKFLOW_REDIS_CONSUMER_GROUP": Older("stream_group"),
    "WORKER_CONSUMER_GROUP": Older("stream_group"),
    "WORKFLOW_REDIS_BATCH_SIZE": Older("stream_batch"),
    "WORKER_STREAM_BATCH": Older("stream_batch"),
    "WORKFLOW_REDIS_IDLE_TIMEOUT_MS": Older("stream_idle", per=1000),
    "WORKER_STREAM_BLOCK": Older("stream_block", per=1000),
    "WORKER_CONCURRENCY": Older("concurrency"),
    "WORKER_RECLAIM_ENABLED": Older("stream_reclaim"),
}
#: Variables that name only the kind of store.
KINDS = ("EVENTSTORE_TYPE", "DB_TYPE")
#: The schemes of a kind, and its address where it has one without a server.
_KNOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "sqlite": (("sqlite",), "sqlite:///perdure.db"),
    "memory": (("memory",), "memory://"),
    "postgres": (("postgresql", "postgres"), ""),
    "mongodb": (("mongodb", "mongodb+srv"), ""),
    "redis": (("redis", "rediss", "redis+cluster"), ""),
}
_EXAMPLES = {
    "mongodb": "PERDURE_STORE=mongodb://user:password@host/database?replicaSet=name",
    "postgres": "PERDURE_STORE=postgresql://user:password@host/database",
    "redis": "PERDURE_STREAM=redis://host:6379 for the hints and PERDURE_STORE for the store",
}


def variable(name: str) -> str:
    return PREFIX + name.upper()


def older(name: str) -> tuple[str, ...]:
    """The older names of a setting."""
    found = [alias for alias, meant in OLDER.items() if meant.name == name]
    return (*found, *KINDS) if name == "store" else tuple(found)


# The caller.


def from_caller(chosen: Mapping[str, Any], known: Collection[str]) -> tuple[list[Said], list[str]]:
    """What was given as an argument; None stands for nothing."""
    said = [Said(name, value, "given", name) for name, value in chosen.items() if name in known and value is not None]
    return said, [_unknown(name, name, known) for name in chosen if name not in known]


# The environment.


def from_environment(environ: Mapping[str, str], known: Collection[str]) -> tuple[list[Said], list[str]]:
    """Our own variables, then the older ones, so that ours are what a value is said to come from."""
    names = {variable(name): name for name in known}
    said = [Said(names[word], text, "environment", word) for word, text in environ.items() if word in names]
    for word, meant in OLDER.items():
        if word in environ and meant.name in known:
            text = environ[word].rstrip(meant.strip) if meant.strip else environ[word]
            said.append(Said(meant.name, text, "environment", word, meant.per))
    strange = sorted(
        word
        for word in environ
        if word.startswith(PREFIX) and word not in names and word != CONFIG and not word.startswith(_FOREIGN)
    )
    return said, [_unknown(word, word.removeprefix(PREFIX).lower(), known, PREFIX) for word in strange]


def kinds(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables that name a kind of store, and the kind."""
    for word in KINDS:
        if kind := environ.get(word, "").strip().lower():
            yield word, {"postgresql": "postgres"}.get(kind, kind)


def fitted(word: str, kind: str, store: str | None, stream: str) -> tuple[Said | None, str]:
    """The address that a kind chooses, if any, and what is wrong with it, if anything is.

    A kind that nobody here knows is somebody else's affair, as long as the store has an address. Redis may carry the
    hints rather than keep the log.
    """
    if kind not in _KNOWN:
        known = ", ".join(_KNOWN)
        return None, "" if store else f"{word} is {kind!r}, but there is no such store; there are: {known}"
    schemes, address = _KNOWN[kind]
    there = [store] if store else []
    if kind == "redis":
        there += [stream] if stream else []
    if any(_scheme(one) in schemes for one in there):
        return None, ""
    if store:
        return None, f"{word} is {kind!r}, but the store is {redacted(store)}: unset {word}, or name another store"
    if not address:
        return None, f"{word} is {kind!r}, but no address is given: set {_EXAMPLES[kind]}"
    return Said("store", address, "environment", word), ""


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


# The file.


def from_file(environ: Mapping[str, str], known: Collection[str], look_around: bool) -> tuple[list[Said], list[str]]:
    """The settings of the file that is named, or of the one that lies in the working directory."""
    path = _path(environ, look_around)
    if path is None:
        return [], []
    table = "tool.perdure" if path.name == "pyproject.toml" else ""
    try:
        text = path.read_text(encoding="utf-8")
        keys: Any = tomllib.loads(text)
    except OSError as error:
        return [], [f"{path} cannot be read: {error.strerror or error}; {CONFIG} and --config name another"]
    except ValueError as error:  # not TOML, or not even text
        return [], [f"{path} is not TOML: {error}"]
    for part in table.split(".") if table else ():
        keys = keys.get(part, {}) if isinstance(keys, dict) else {}
    if not isinstance(keys, dict):
        return [], [f"{path}: {table} is a table of settings, not {keys!r}"]
    said: list[Said] = []
    problems: list[str] = []
    for name, value in keys.items():
        line = _line(text, table, name)
        place = f"{path}:{line}" if line else str(path)
        if name in known:
            said.append(Said(name, value, "file", place))
        else:
            problems.append(_unknown(f"{place}: {name}", name, known))
    return said, problems


def _path(environ: Mapping[str, str], look_around: bool) -> Path | None:
    if named := environ.get(CONFIG):
        return Path(named)
    here = [Path("perdure.toml"), Path("pyproject.toml")] if look_around else []
    return next((path for path in here if path.is_file()), None)


_HEADER = re.compile(r"""\s*\[+\s*([\w."' -]+?)\s*\]+\s*(?:#.*)?""")


def _line(text: str, table: str, name: str) -> int | None:
    """The line of a key or a table; a guess by its looks, for the parser does not tell."""
    key = re.compile(rf"""\s*["']?{re.escape(name)}["']?\s*[=.]""")
    inside = not table
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            title = re.sub(r"""["' ]""", "", header[1])
            if title == f"{table}.{name}".lstrip("."):
                return number
            inside = title == table
        elif inside and key.match(line):
            return number
    return None


def _unknown(place: str, word: str, known: Collection[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(word.replace("-", "_"), known, 1)
    meant = f": did you mean {variable(near[0]) if prefix else near[0]}?" if near else ";"
    return f"{place} is not a setting of Perdure{meant} `perdure config` lists them all"
