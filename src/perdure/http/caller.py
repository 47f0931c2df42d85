"""Who calls, and what they may do. Filled by whatever checks credentials; nothing here trusts a request.

Rules kept here: the roles of the API are words with a fixed meaning, and give scopes; any other role is a word of the
business, gives nothing, and only goes along with events. So no credential gets more rights by a new word in it.
Whoever may read sees everything, whatever other roles there are beside; whoever may only glance sees no data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from perdure.core.records import TENANT
from perdure.errors import NotAllowed

#: glance: look, without the data; read: look; send: events; start: executions; control: pause, cancel, retry and the
#: like; define: publish and deprecate; admin: API keys, purge; work: ask for external tasks and answer for them.
Scope: TypeAlias = Literal["glance", "read", "send", "start", "control", "define", "admin", "work"]
#: Not to glance: whoever may read does not need it.
_ALL: frozenset[Scope] = frozenset({"read", "send", "start", "control", "define", "admin", "work"})
#: What the roles of the API may do.
ROLES: Mapping[str, frozenset[Scope]] = {
    "observer": frozenset({"glance"}),
    "viewer": frozenset({"read"}),
    "sender": frozenset({"read", "send", "start"}),
    "operator": frozenset({"read", "send", "start", "control"}),
    "author": frozenset({"read", "define"}),
    "admin": _ALL,
    "worker": frozenset({"work"}),
}
_TENANT = re.compile(TENANT)
#: The longest name of a user or a role.
LONGEST = 200


class Caller(Struct, frozen=True):
    """A credential, understood."""

    tenant: str
    user: str = ""
    roles: tuple[str, ...] = ()  # those of the business; they go along with events
    scopes: frozenset[Scope] = frozenset()
    credential: str = ""  # what it was, for audits: key:ID, token:ID or open; never the credential itself
    named: tuple[str, ...] = ()  # all roles in it, for audits

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise NotAllowed unless the caller may."""
        if not self.may(scope):
            having = ", ".join(role for role, scopes in ROLES.items() if scope in scopes)
            raise NotAllowed(f"{self.user or 'this caller'} may not {scope}: that takes one of the roles {having}")


#: For what needs no credential.
ANYBODY = Caller("")


def caller_of(tenant: str, user: str, named: Iterable[str], credential: str) -> Caller:
    """Whom a valid credential stands for; `named` are the roles in it, of both sorts."""
    roles = dict.fromkeys(named)
    scopes = frozenset[Scope]().union(*(ROLES[role] for role in roles if role in ROLES))
    own = tuple(role for role in roles if role not in ROLES)
    return Caller(tenant, user, own, scopes, credential, tuple(role for role in roles if role))


def is_tenant(name: str) -> bool:
    return _TENANT.fullmatch(name) is not None


def is_name(name: str) -> bool:
    """Whether it can be the name of a user or a role: it ends up in logs and on terminals."""
    return 0 < len(name) <= LONGEST and name.isprintable() and name == name.strip()
