"""`Secrets`: where the values of secrets are found.

What is written anywhere is a reference, `secret://NAME`; the setting `secrets` says where the value lies. Rules kept
here: a secret belongs to a tenant, so nobody can name that of another, and the environment has those of the
application's own tenant only; whoever names a secret can have things signed with it, so no name leads to anything that
was not put there to be a secret; no error shows a value, nor a text that should have been a reference and may be one.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from perdure.errors import SecretNotFound, SettingsError, UsageError
from perdure.flows.secret import Secret, secret
from perdure.runtime.checks import checked_tenant
from perdure.runtime.secrets.watching import SHORTEST, watch

#: Finds the value of a tenant's secret, or None. Called in a thread; what it raises fails the attempt like any error.
Source: TypeAlias = Callable[[str, str], str | None]
VARIABLE = "PERDURE_SECRET_"
#: Bytes of the longest file.
LONGEST = 10_000


class Secrets:
    """The secrets that one application can find."""

    def __init__(self, setting: str, tenant: str, given: Source | None = None) -> None:
        self._sources = [given] if given is not None else [source_of(one, tenant) for one in setting.split(",")]

    def find(self, tenant: str, name: str) -> str:
        """The value, from the first source that has it. It may block."""
        # Both may be parts of a path: what is no name is refused, and one that is leads out of no directory.
        checked_tenant(tenant)
        secret(name)
        for source in self._sources:
            value = source(tenant, name)
            if value is not None:
                return _usable(value, name)
        raise SecretNotFound(
            f"tenant {tenant!r} has no secret {name!r} where this process looks for it: put it where the setting"
            " `secrets` says, then try again"
        )

    async def resolve(self, tenant: str, reference: str) -> str:
        """The value that a reference stands for, found in a thread and watched from now on."""
        value = await asyncio.to_thread(self.find, tenant, Secret(reference).name)
        watch.add(tenant, value)
        return value


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
        return next((_read(place, name) for place in places if place.is_file()), None)

    return find


def variable_of(name: str) -> str:
    """The environment variable of a secret.

    >>> variable_of("stripe.live-key")
    'PERDURE_SECRET_STRIPE_LIVE_KEY'
    """
    return VARIABLE + re.sub(r"[.-]", "_", name).upper()


def _read(place: Path, name: str) -> str:
    """The text of a file without the newline at its end."""
    with place.open("rb") as file:
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise UsageError(f"the file of the secret {name!r} has more than {LONGEST:,} bytes: that is no secret")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Not as its cause: that one has the bytes.
        raise UsageError(f"the file of the secret {name!r} is not text in UTF-8: encode it, as base64") from None
    return text.removesuffix("\n").removesuffix("\r")


def _usable(value: str, name: str) -> str:
    if len(value) < SHORTEST:
        raise UsageError(
            f"the secret {name!r} has fewer than {SHORTEST} characters: it could not be told from other text, and so"
            " not be kept out of the log"
        )
    return value
