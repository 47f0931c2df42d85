"""Values that were revealed, and how they are kept out of everything that is written.

Rules kept here: a value that was revealed is watched from then on: it becomes *** in errors, heartbeats and log lines,
and a result that has it verbatim is refused. Nothing here keeps a value out of places that the engine does not write:
what an action prints or sends is its own affair.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote, quote_plus

import msgspec
from msgspec import Raw, structs

from perdure.core.events import NULL, Error
from perdure.errors import SecretExposed

HIDDEN = "***"
#: A shorter value could not be told from other text.
SHORTEST = 4
#: Values that a process has in mind for one tenant; tokens that live for an hour should not pile up.
KEPT = 100


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
