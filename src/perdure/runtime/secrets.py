"""Secrets: where they are found, and how they are kept out of everything that is written.

Rules kept here: a secret belongs to a tenant, so an execution can never name that of another; the environment has those
of the application's own tenant only; who has revealed a value is watched from then on: it becomes *** in errors,
heartbeats and log lines, and a result that has it verbatim is refused. Nothing here keeps a value out of places that
the engine does not write: what an action prints or sends is its own affair.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, quote_plus

import msgspec
from msgspec import Raw, structs

from perdure.core.events import NULL, Error
from perdure.errors import SecretExposed, SecretNotFound, SettingsError, UsageError

#: Finds the value of a tenant's secret, or None. Called in a thread; what it raises fails the attempt like any error.
Source: TypeAlias = Callable[[str, str], str | None]
VARIABLE = "PERDURE_SECRET_"
HIDDEN = "***"
#: A shorter value could not be told from other text.
SHORTEST = 4
#: Values that a process has in mind for one tenant; tokens that live for an hour should not pile up.
KEPT = 100


class Secrets:
    """The secrets that one application can find."""

    def __init__(self, setting: str, tenant: str, given: Source | None = None) -> None:
        self._sources = [given] if given is not None else [source_of(one, tenant) for one in setting.split(",")]

    def find(self, tenant: str, name: str) -> str:
        """The value, from the first source that has it."""
        for source in self._sources:
            value = source(tenant, name)
            if value is not None:
                return _usable(value, name)
        raise SecretNotFound(
            f"tenant {tenant!r} has no secret {name!r} where this worker looks for it: put it there, then retry the"
            " execution; the setting `secrets` says where"
        )


def source_of(said: str, tenant: str, environ: Mapping[str, str] | None = None) -> Source:
    """The source that a setting names; `tenant` is the application's own."""
    said = said.strip()
    if said == "env:":
        return from_environment(tenant, os.environ if environ is None else environ)
    if not said or ":" in said:
        raise SettingsError(f"secrets cannot be found at {said!r}: write env:, or the path of a directory")
    return from_directory(tenant, Path(said))


def from_environment(own: str, environ: Mapping[str, str]) -> Source:
    """`stripe-key` is PERDURE_SECRET_STRIPE_KEY; only for the application's own tenant."""

    def find(tenant: str, name: str) -> str | None:
        return environ.get(variable_of(name)) if tenant == own else None

    return find


def from_directory(own: str, directory: Path) -> Source:
    """One file for each, as Kubernetes mounts them; those of another tenant are in a directory of its name."""

    def find(tenant: str, name: str) -> str | None:
        places = [directory / tenant / name, *([directory / name] if tenant == own else [])]
        for place in places:
            if place.is_file():
                return place.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        return None

    return find


def variable_of(name: str) -> str:
    """The environment variable of a secret.

    >>> variable_of("stripe.live-key")
    'PERDURE_SECRET_STRIPE_LIVE_KEY'
    """
    return VARIABLE + re.sub(r"[.-]", "_", name).upper()


def _usable(value: str, name: str) -> str:
    if len(value) < SHORTEST:
        raise UsageError(
            f"the secret {name!r} has fewer than {SHORTEST} characters: it could not be told from other text, and so"
            " not be kept out of the log"
        )
    return value


class Revealed:
    """The values that one attempt has asked for, by name."""

    __slots__ = ("_find", "_tenant", "values")

    def __init__(self, find: Callable[[str, str], str], tenant: str) -> None:
        self._find = find
        self._tenant = tenant
        self.values: dict[str, str] = {}

    def reveal(self, name: str) -> str:
        """Perhaps in a thread. From now on it is watched."""
        value = self.values.get(name)
        if value is None:
            value = self.values[name] = self._find(self._tenant, name)
            watch.add(self._tenant, value)
        return value

    def check(self, data: bytes, what: str) -> None:
        """Raise if one of the values is in data that is about to be written."""
        for name, value in self.values.items():
            if any(form.encode() in data for form in forms_of([value])):
                raise SecretExposed(
                    f"{what} contains the secret {name!r} and was not written: return something that does not"
                )


class Watch:
    """All values that were revealed in this process. A client that was made with one may tell it much later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, OrderedDict[str, None]] = {}
        self._forms: dict[str | None, Sequence[str]] = {}

    def add(self, tenant: str, value: str) -> None:
        if len(value) < SHORTEST:
            return
        with self._lock:
            values = self._values.setdefault(tenant, OrderedDict())
            if value in values:
                values.move_to_end(value)
                return
            values[value] = None
            while len(values) > KEPT:
                values.popitem(last=False)
            self._forms[tenant] = forms_of(values)
            self._forms[None] = forms_of(one for values in self._values.values() for one in values)

    def hide(self, text: str, tenant: str | None = None) -> str:
        """The text without the values of a tenant, or of all of them."""
        for form in self._forms.get(tenant, ()):
            if form in text:
                text = text.replace(form, HIDDEN)
        return text

    def hide_in(self, data: Raw, tenant: str) -> Raw:
        """The same in JSON."""
        if tenant not in self._forms or data == NULL:
            return data
        return Raw(msgspec.json.encode(self._hidden(msgspec.json.decode(data), tenant)))

    def hide_in_error(self, error: Error, tenant: str) -> Error:
        if tenant not in self._forms:
            return error
        return structs.replace(
            error,
            message=self.hide(error.message, tenant),
            details=self.hide_in(error.details, tenant),
            cause=None if error.cause is None else self.hide_in_error(error.cause, tenant),
        )

    def _hidden(self, value: object, tenant: str) -> object:
        match value:
            case str():
                return self.hide(value, tenant)
            case list():
                return [self._hidden(one, tenant) for one in value]
            case dict():
                return {self.hide(name, tenant): self._hidden(one, tenant) for name, one in value.items()}
            case _:
                return value


watch = Watch()


def forms_of(values: Iterable[str]) -> Sequence[str]:
    """How values may look inside of other text: as they are, escaped, quoted in an address.

    >>> forms_of(['p"w/1'])
    ['p%22w%2F1', 'p\\\\"w/1', 'p"w/1']
    """
    return _longest_first(
        form
        for value in values
        for form in (
            value,
            msgspec.json.encode(value).decode()[1:-1],
            repr(value)[1:-1],
            quote(value, safe=""),
            quote_plus(value),
        )
    )


def _longest_first(forms: Iterable[str]) -> Sequence[str]:
    """One value may be part of another; then what is left of the longer one should not remain."""
    return sorted(set(forms), key=lambda form: (-len(form), form))
