"""Whether the secrets that a definition names are there, before it is published.

Rules kept here: a value is looked for and forgotten; only what is certain is told. A source that fails at the moment
may have the secret, and does not keep anybody from publishing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from perdure.errors import SecretNotFound, UsageError
from perdure.flows.bound import Problem
from perdure.flows.given import Wanted

Level: TypeAlias = Literal["error", "warning"]
log = logging.getLogger("perdure.definitions")
_FIX = "put it where the setting `secrets` says, or mend the name"


def missing(find: Callable[[str, str], str], tenant: str, wanted: Sequence[Wanted], level: Level) -> list[Problem]:
    """The secrets that a tenant does not have, each with the places that name it. What it asks may block."""
    found = {name: _sought(find, tenant, name) for name in {one.name for one in wanted}}
    return [Problem(one.where, found[one.name], _FIX, level) for one in wanted if found[one.name]]


def _sought(find: Callable[[str, str], str], tenant: str, name: str) -> str:
    """Why a secret cannot be used."""
    try:
        find(tenant, name)
    except SecretNotFound:
        return f"tenant {tenant!r} has no secret {name!r}"
    except UsageError as error:
        return str(error)
    except Exception as error:
        log.warning("it is not known whether tenant %s has the secret %s: %s", tenant, name, error)
    return ""
