"""What an address says: dynamodb://REGION/TABLE, and options behind a question mark.

Credentials are never part of it: the SDK finds them in its usual places (environment, profile, role of the machine).
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from perdure.errors import SettingsError

_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_OPTIONS = {"endpoint", "items", "shards", "create", "timeout", "unsafe"}


class Address(Struct, frozen=True):
    """Where the table is, and how it is used."""

    region: str
    table: str
    endpoint: str | None = None
    items: int = 100  # of one transaction, at most: what DynamoDB takes
    shards: int = 4  # partitions over which one list is spread; fixed when the table is made
    create: bool = True  # make the table if it is not there
    timeout: float = 10.0  # seconds of silence after which a call counts as lost
    unsafe: bool = False  # use a table that cannot keep what it promises

    @property
    def shown(self) -> str:
        at = "" if self.endpoint is None else f" at {self.endpoint}"
        return f"dynamodb://{self.region}/{self.table}{at}"


def read_address(url: str) -> Address:
    """Take an address apart.

    >>> read_address("dynamodb://eu-central-1/perdure?endpoint=http://127.0.0.1:8000").table
    'perdure'
    """
    parts = urlsplit(url)
    region, table = parts.netloc, parts.path.removeprefix("/")
    form = "write dynamodb://REGION/TABLE, such as dynamodb://eu-central-1/perdure"
    if "@" in region:
        raise SettingsError(f"the address of a store in DynamoDB has no credentials in it: {form}; the SDK finds them")
    if not _REGION.fullmatch(region):
        raise SettingsError(f"{region!r} is no region: {form}")
    if not _TABLE.fullmatch(table):
        raise SettingsError(f"{table!r} is no name of a table (3 to 255 letters, digits, _ . -): {form}")
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    if unknown := options.keys() - _OPTIONS:
        there = ", ".join(sorted(_OPTIONS))
        raise SettingsError(
            f"dynamodb://{region}/{table}: unknown option {', '.join(sorted(unknown))}; there are {there}"
        )
    return Address(
        region,
        table,
        _endpoint(options),
        _number(options, "items", 100, 8, 100),
        _number(options, "shards", 4, 1, 64),
        _choice(options, "create", "yes"),
        _seconds(options),
        _choice(options, "unsafe", "no"),
    )


def _endpoint(options: dict[str, str]) -> str | None:
    given = options.get("endpoint")
    if given is None:
        return None
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise SettingsError("endpoint: write it as http://HOST:PORT or https://HOST, without credentials")
    return given


def _number(options: dict[str, str], name: str, usual: int, least: int, most: int) -> int:
    given = options.get(name, str(usual))
    if not given.isdecimal() or not least <= int(given) <= most:
        raise SettingsError(f"{name}={given}: it is a number from {least} to {most}")
    return int(given)


def _choice(options: dict[str, str], name: str, usual: str) -> bool:
    given = options.get(name, usual)
    if given not in ("yes", "no"):
        raise SettingsError(f"{name}={given}: it is yes or no")
    return given == "yes"


def _seconds(options: dict[str, str]) -> float:
    given = options.get("timeout", "10")
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 3600:
        raise SettingsError(f"timeout={given}: it is a number of seconds, such as 10 or 0.5")
    return seconds
