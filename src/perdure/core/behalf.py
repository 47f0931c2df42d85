"""On whose behalf the present task asks: the tenant and the roles of a caller from outside, whose credential said so.

    with on_behalf_of("acme"):
        await app.get("order-1").head()

Rules kept here: it narrows and never widens. A store that can keep tenants apart by itself shows, within the block, no
rows but the caller's, whatever key or query it is given. What the engine keeps under a tenant of its own (those have a
colon, which no caller's tenant can have) is no tenant's data, and stays readable. The roles allow nothing: they are
written down with what the caller does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context

from perdure.core import tracing

_caller: ContextVar[str | None] = ContextVar("perdure_behalf", default=None)
_roles: ContextVar[tuple[str, ...]] = ContextVar("perdure_roles", default=())
_noted: ContextVar[bool] = ContextVar("perdure_noted", default=False)


@contextmanager
def on_behalf_of(tenant: str | None, roles: tuple[str, ...] = ()) -> Iterator[None]:
    """For the time of the block; None is nobody in particular, and undoes what is set inside."""
    token, before = _caller.set(tenant), _roles.set(roles)
    try:
        yield
    finally:
        _caller.reset(token)
        _roles.reset(before)


def answer_to(tenant: str, roles: tuple[str, ...] = ()) -> None:
    """From now on, until the block around it ends: for those who learn in the middle of it who asks."""
    _caller.set(tenant)
    _roles.set(roles)


def acting_as() -> tuple[str, ...]:
    """The roles of the caller, as the credential named them."""
    return _roles.get()


@contextmanager
def noted_already(noted: bool = True) -> Iterator[None]:
    """What is done within the block is in the audit, as a whole."""
    token = _noted.set(noted)
    try:
        yield
    finally:
        _noted.reset(token)


def is_noted() -> bool:
    return _noted.get()


def for_everybody() -> Context:
    """The present context but for that and its trace: for tasks that serve all who ask, whoever made them begin."""
    context = copy_context()
    context.run(_caller.set, None)
    context.run(_roles.set, ())
    context.run(_noted.set, False)
    context.run(tracing.forget)
    return context


def seen_by(home: str | None) -> str | None:
    """The tenant whose rows may be looked at to find something of `home`; None for those of all tenants."""
    caller = _caller.get()
    if caller is None or (home is not None and ":" in home):
        return home
    return caller
