"""What an error of PostgreSQL or of its driver means to the caller.

Rules kept here: an error that the server reports inside a statement has rolled it back, so nothing was written; a
connection that ends, or that says nothing any more, leaves a write unknown.
"""

from __future__ import annotations

import asyncpg

from perdure.errors import (
    InvalidValue,
    OutcomeUnknown,
    PerdureError,
    SettingsError,
    StoreError,
    StoreFull,
    StoreOutdated,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)

#: What the driver raises; TimeoutError is an OSError. The last but one it says of a connection that has just ended.
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

#: Serialization failure, deadlock, lock timeout: the whole call is repeated.
REPEAT = frozenset({"40001", "40P01", "55P03"})

_MEANINGS: list[tuple[str, type[PerdureError], str]] = [
    ("40", StoreUnavailable, "others were in the way, again and again; nothing was written; try again"),
    ("55P03", StoreUnavailable, "another transaction kept a lock for longer than lock_timeout; nothing was written"),
    ("57014", StoreUnavailable, "the statement took longer than statement_timeout; nothing was written; try again"),
    ("53100", StoreFull, "the disk of the database is full; nothing was written; make room, then try again"),
    ("53", StoreUnavailable, "the database is short of resources; nothing was written; try again"),
    ("25006", StoreReadOnly, "the database takes no writes (a replica, or read-only); nothing was written"),
    ("22", InvalidValue, "a value cannot be stored; nothing was written"),
    ("23505", StoreError, "something of this was there already, by somebody else; nothing was written"),
    ("23", StoreRefused, "a rule of the table does not let this in; nothing was written"),
    ("54", StoreRefused, "this is more than PostgreSQL takes at once; nothing was written"),
    (
        "42501",
        StoreError,
        "the role lacks a right; `perdure migrate --grant ROLE`, run as the owner, gives all of them",
    ),
    ("3F000", StoreOutdated, "the schema is not there; run `perdure migrate`"),
    ("42P01", StoreOutdated, "a table is not there; run `perdure migrate`"),
    ("42883", StoreOutdated, "a function is not there; run `perdure migrate`"),
    ("28", StoreError, "the database does not let this role in; check the user, the password and pg_hba.conf"),
    ("3D000", StoreError, "there is no such database; create it first"),
]

#: What a session begins with: a setting that is none, that cannot be set or cannot have this value, or no right to it.
_ASKED_WRONGLY = frozenset({"42704", "55P02", "22023", "42501"})


def state_of(error: BaseException) -> str:
    """The five characters by which PostgreSQL names an error; empty for errors of others."""
    return getattr(error, "sqlstate", None) or ""


def lost(error: BaseException) -> bool:
    """Whether the connection is of no use any more."""
    if isinstance(error, asyncpg.PostgresError):
        return _fatal(error)
    return isinstance(error, (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError))


def _fatal(error: asyncpg.PostgresError) -> bool:
    severity = getattr(error, "severity_en", None) or getattr(error, "severity", None)
    return state_of(error).startswith(("08", "57P")) or severity in ("FATAL", "PANIC")


def meaning(error: BaseException, place: str, writes: bool) -> PerdureError:
    """The error to raise for one that came while a call was under way."""
    detail = f"({type(error).__name__}: {error})"
    if lost(error):
        if writes:
            return OutcomeUnknown(
                f"{place}: the connection was lost while a write was under way, so it may or may not have happened;"
                f" repeat the call with the same ids {detail}"
            )
        return StoreUnavailable(f"{place}: the connection was lost; try again {detail}")
    state = "22" if isinstance(error, (UnicodeError, OverflowError)) else state_of(error)
    for prefix, kind, text in _MEANINGS:
        if state.startswith(prefix):
            # What is wrong with a value is told to whoever gave it, and the place of the store is none of theirs.
            return kind(f"{text} {detail}" if kind is InvalidValue else f"{place}: {text} {detail}")
    return StoreError(f"{place}: PostgreSQL refused; nothing was written {detail}")


def unreachable(error: BaseException, place: str) -> PerdureError:
    """The error to raise for a connection that could not be made: nothing was sent."""
    detail = f"({type(error).__name__}: {error})"
    state = state_of(error)
    for prefix, kind, text in _MEANINGS:
        if state.startswith(prefix) and prefix[:2] in ("28", "3D"):
            return kind(f"{place}: {text} {detail}")
    if state in _ASKED_WRONGLY or isinstance(error, asyncpg.ClientConfigurationError):
        return StoreError(
            f"{place}: the address asks for what cannot be had; look at its options and its user {detail}"
        )
    if isinstance(error, ValueError):
        # Its text has parts of the address, and with them the password.
        return SettingsError(
            f"{place}: the driver cannot read this address; in a user or a password what is no letter or digit is"
            " written as %40 for @, %3A for : and so on"
        )
    return StoreUnavailable(f"{place}: the database cannot be reached; is it running? {detail}")
