"""How the verbs of the application get into the audit, by whomever they are called.

    @noted("hooks.revoke")
    async def revoke(self, name: str, *, reason: str = "", by: str = "", tenant: str | None = None) -> Hook: ...

Rules kept here: an act is noted once, before it is done, by whoever knows most about it: the HTTP API and the command
line know the credential and say so (`noted_already`), and a verb that another verb calls is a part of that one. What is
only rehearsed (`dry_run`) is no act. Who did it, why, and to what is what the verb was given under these names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from perdure.core.behalf import acting_as, is_noted, noted_already
from perdure.runtime.managing.audit import Act

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
#: From the owner of a verb and what it was given to what it is done to, and whose that is; None is the application's.
About: TypeAlias = Callable[[Any, Mapping[str, Any]], tuple[str, str | None]]
#: By what right: it is code of the process that has the store.
CREDENTIAL = "app"
#: What says which things are meant, where none is named.
_WHICH = ("act", "id", "cause", "status", "workflow", "correlation", "tag", "all")


def noted(act: str, about: About | None = None) -> Callable[[F], F]:
    """Decorates a verb that administers."""

    def decorate(verb: F) -> F:
        signature = inspect.signature(verb)

        @functools.wraps(verb)
        async def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = signature.bind(self, *args, **kwargs).arguments
            if is_noted() or given.get("dry_run"):
                return await verb(self, *args, **kwargs)
            app: Perdure = getattr(self, "_app", self)
            target, tenant = (about or _named)(self, given)
            by, why = given.get("by") or app.settings.actor, given.get("reason", "")
            await app.audit.note(Act(by, act, target, why, CREDENTIAL, roles=acting_as()), tenant=tenant)
            with noted_already():
                return await verb(self, *args, **kwargs)

        return cast(F, noting)

    return decorate


def _named(_: Any, given: Mapping[str, Any]) -> tuple[str, str | None]:
    named = given.get("name") or ("act" not in given and given.get("id")) or given.get("ids")
    if not named:
        named = (f"{name}={given[name]}" for name in _WHICH if given.get(name))
    return named if isinstance(named, str) else ", ".join(named), given.get("tenant")
