"""References to secrets: what is kept and shown is where a secret lies, never the secret.

`env:NAME` is the variable PERDURE_SECRET_NAME of this process; `file:NAME` the file NAME in the folder of the tenant,
below the one that the setting `secret_files` names, as mounted by whatever runs the process. Rules kept here: whoever
names a secret can have things signed with it, so no reference leads to anything that was not put there for that, and
none to what belongs to another tenant: variables are for the application's own tenant alone. No error shows a secret,
and a secret that was found is kept out of log lines. Where the application has a finder of secrets, `secret://NAME`
asks that for the tenant's secret of this name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from perdure.errors import SecretMissing
from perdure.runtime.secrets import watch

PREFIX = "PERDURE_SECRET_"
#: Bytes of the longest secret.
_LONGEST = 10_000
_FORM = re.compile(r"(env:|file:|secret://)([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})")


class Resolves(Protocol):
    """Finds secrets."""

    def check(self, reference: str, tenant: str) -> None:
        """Raise SecretMissing unless the tenant may name this; whether it is there is another question."""

    def resolve(self, reference: str, tenant: str) -> str:
        """The secret, or SecretMissing."""
        ...


class References:
    """`folder` is where the files of tenants lie, `home` the tenant that may name variables.

    `find` takes a tenant and a name, and gives the secret or raises.
    """

    def __init__(
        self,
        folder: str,
        home: str,
        environ: Mapping[str, str] = os.environ,
        find: Callable[[str, str], str] | None = None,
    ) -> None:
        self._folder = folder
        self._home = home
        self._environ = environ
        self._find = find

    def check(self, reference: str, tenant: str) -> None:
        self._parts(reference, tenant)

    def resolve(self, reference: str, tenant: str) -> str:
        kind, name = self._parts(reference, tenant)
        if self._find is not None and kind == "secret://":
            found = self._find(tenant, name)
            watch.add(tenant, found)
            return found
        found = self._environ.get(PREFIX + name, "") if kind == "env:" else self._read(name, tenant)
        if not found:
            where = f"set {PREFIX}{name}" if kind == "env:" else f"put it into {tenant}/{name} below secret_files"
            raise SecretMissing(f"there is no secret {reference} in this process: {where}")
        watch.add(tenant, found)
        return found

    def _parts(self, reference: str, tenant: str) -> tuple[str, str]:
        form = _FORM.fullmatch(reference)
        if form is None or (form[1] == "secret://" and self._find is None):
            raise SecretMissing("a secret is named as env:NAME or file:NAME; the secret itself does not belong here")
        if form[1] == "env:" and tenant != self._home:
            raise SecretMissing(f"tenant {tenant!r} cannot name variables of this process: use file:NAME")
        return form[1], form[2]

    def _read(self, name: str, tenant: str) -> str:
        if not self._folder:
            return ""
        try:
            with (Path(self._folder) / tenant / name).open("rb") as file:
                data = file.read(_LONGEST + 1)
            return data.decode().strip() if len(data) <= _LONGEST else ""
        except (OSError, UnicodeDecodeError):
            return ""
