"""What code does through the application's own verbs is in the audit as well: once, with who, when, why and where."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import HookStart, Perdure, action, event, person, workflow
from perdure.core.records import Start, Started
from perdure.errors import ExecutionNotFound, PerdureError, StoreFull
from perdure.http.api import ALL
from perdure.http.audit import NOTED, act_of
from perdure.http.keys import Keys
from perdure.stores.memory import MemoryStore
from perdure.streams.memory import MemoryStream

MACHINE = {"machine": "noting-door", "initial": "shut", "states": {"shut": {"on": {"go": "open"}}, "open": {}}}
WHY: dict[str, Any] = {"reason": "stock is counted", "by": "ann"}


@workflow(name="noting-waits")
async def waits() -> Any:
    return await event("go")


@workflow(name="noting-asks")
async def asks() -> Any:
    return await person("noting-look", assign="bob")


@action(name="noting.cancels")
async def cancels(id: str) -> None:
    await action.app.get(id).cancel("no longer wanted")


@workflow(name="noting-cancelling")
async def cancelling(id: str) -> None:
    await cancels(id)


async def told(app: Perdure, **wanted: Any) -> list[tuple[str, str, str, str, str, str]]:
    """All acts, the oldest first."""
    acts = [one async for one in app.audit.all(**wanted)]
    now = datetime.now(UTC)
    assert all(now - timedelta(minutes=1) < one.at <= now + timedelta(seconds=1) for one in acts)
    return [(one.act, one.target, one.actor, one.reason, one.credential, one.node) for one in reversed(acts)]


def verbs(app: Perdure, bundle: str, key: str) -> dict[str, tuple[Callable[[], Awaitable[Any]], str]]:
    """Each verb that administers, by its act, and what it is done to. Not all of them succeed, and need not."""
    run, keys = app.get("w-1"), Keys(app)
    definitions, schedules, hooks = app.definitions, app.schedules, app.hooks
    return {
        "executions.pause": (lambda: run.pause(**WHY), "w-1"),
        "executions.resume": (lambda: run.resume(**WHY), "w-1"),
        "executions.fork": (lambda: run.fork(at=1, id="w-2", **WHY), "w-1"),
        "executions.migrate": (lambda: run.migrate(2, **WHY), "w-1"),
        "executions.cancel": (lambda: run.cancel(**WHY), "w-1"),
        "executions.retry": (lambda: run.retry(**WHY), "w-1"),
        "executions.import": (lambda: app.adopt([], "w-3", **WHY), "w-3"),
        "definitions.draft": (lambda: definitions.draft(MACHINE, **WHY), "noting-door"),
        "definitions.publish_draft": (lambda: definitions.publish_draft("noting-door", **WHY), "noting-door"),
        "definitions.discard_draft": (lambda: definitions.discard_draft("noting-door", **WHY), "noting-door"),
        "definitions.publish": (lambda: definitions.publish(MACHINE, **WHY), "noting-door"),
        "definitions.deprecate": (lambda: definitions.deprecate("noting-door", 1, **WHY), "noting-door"),
        "definitions.restore": (lambda: definitions.restore("noting-door", 1, **WHY), "noting-door"),
        "definitions.import": (lambda: definitions.import_(bundle, **WHY), "noting-door@1"),
        "tasks.assign": (lambda: app.tasks.assign("a-1.1", "eve", **WHY), "a-1.1"),
        "system.redrive": (lambda: app.redrive("x", "y", **WHY), "x, y"),
        "system.purge": (lambda: app.purge(cause="limit", **WHY), "cause=limit"),
        "hooks.create": (lambda: hooks.create("in", HookStart("noting-waits"), secret="secret://x", **WHY), "in"),
        "hooks.rotate": (lambda: hooks.rotate("in", "secret://y", **WHY), "in"),
        "hooks.revoke": (lambda: hooks.revoke("in", **WHY), "in"),
        "schedules.create": (lambda: schedules.create("daily", waits, cron="0 3 * * *", **WHY), "daily"),
        "schedules.update": (lambda: schedules.update("daily", cron="0 4 * * *", **WHY), "daily"),
        "schedules.pause": (lambda: schedules.pause("daily", **WHY), "daily"),
        "schedules.resume": (lambda: schedules.resume("daily", **WHY), "daily"),
        "schedules.trigger": (lambda: schedules.trigger("daily", id="t", **WHY), "daily"),
        "schedules.delete": (lambda: schedules.delete("daily", **WHY), "daily"),
        "bulk.start": (lambda: app.bulk.start("cancel", workflow="none", **WHY), "act=cancel, workflow=none"),
        "keys.create": (lambda: keys.create("ci", ["viewer"], **WHY), "ci"),
        "keys.rotate": (lambda: keys.rotate(key, **WHY), key),
        "keys.revoke": (lambda: keys.revoke(key, **WHY), key),
        "tenants.suspend": (lambda: app.tenants.suspend("default", **WHY), "default"),
        "tenants.resume": (lambda: app.tenants.resume("default", **WHY), "default"),
        "tenants.limit": (lambda: app.tenants.limit("default", running=7, **WHY), "default"),
    }


def test_every_verb_that_administers_is_noted_once_with_who_why_and_where() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app, app.working():
            await app.start(waits, id="w-1")
            await app.start(asks, id="a-1")
            async with Perdure("memory://") as other:
                await other.definitions.publish(MACHINE)
                bundle = await other.definitions.export()
            key = (await Keys(app).create("x", ["viewer"], by="setup")).key.id
            table = verbs(app, bundle, key)
            for verb, _ in table.values():
                with suppress(PerdureError):
                    await verb()
            wanted = [(act, at, "ann", WHY["reason"], "app", app.me) for act, (_, at) in table.items()]
            assert [one for one in await told(app) if one[2] != "setup"] == wanted
            over_http = {act_of(one) for one in ALL if one.method != "GET" and one.scope in NOTED and not one.harmless}
            assert over_http <= table.keys()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_act_of_another_tenant_is_in_its_audit_and_nobody_named_is_the_application() -> None:
    async def main() -> None:
        async with Perdure("memory://", actor="till-3") as app:
            await app.start(waits, id="w-1", tenant="acme")
            await app.get("w-1", "acme").pause()
            await app.schedules.create("daily", waits, cron="0 3 * * *", tenant="acme")
            await app.tenants.suspend("acme", "unpaid")
            assert await told(app) == []
            assert [one[:4] for one in await told(app, tenant="acme")] == [
                ("executions.pause", "w-1", "till-3", ""),
                ("schedules.create", "daily", "till-3", ""),
                ("tenants.suspend", "acme", "till-3", "unpaid"),
            ]

    asyncio.run(main())


def test_starting_sending_looking_and_rehearsing_are_no_acts() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            run = await app.start(waits, id="w-1")
            await run.send("go")
            await run.log()
            await app.purge(all=True, dry_run=True)
            await app.bulk.start("cancel", all=True, dry_run=True)
            assert await told(app) == []

    asyncio.run(main())


class Full(MemoryStore):
    """A store without room for the audit."""

    async def start(self, starts: Sequence[Start], grace: int) -> list[Started]:
        if any(one.workflow == "audit:" for one in starts):
            raise StoreFull("no space is left")
        return await super().start(starts, grace)


def test_an_act_that_cannot_be_noted_is_not_done() -> None:
    async def main() -> None:
        async with Perdure(Full(), stream=MemoryStream()) as app:
            run = await app.start(waits, id="w-1")
            with pytest.raises(StoreFull):
                await run.cancel()
            assert (await run.head()).mail == 0

    asyncio.run(main())


def test_a_bulk_operation_is_one_act_however_many_it_changes() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app, app.working():
            runs = [await app.start(waits, id=f"w-{number}") for number in range(3)]
            for run in runs:
                await run.cancel()
                await run.until("cancelled", timeout="10s")
            before = len(await told(app))
            operation = await app.bulk.start("retry", workflow="noting-waits", by="ann")
            await operation.result("10s")
            assert (await app.bulk.get(operation.id)).done == 3
            assert [one[0] for one in (await told(app))[before:]] == ["bulk.start"]

    asyncio.run(main())


def test_what_an_action_does_through_its_application_is_noted() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app, app.working():
            await app.start(waits, id="w-1")
            await (await app.start(cancelling, "w-1")).result("10s")
            assert [one[:2] for one in await told(app)] == [("executions.cancel", "w-1")]

    asyncio.run(main())


def test_what_fails_was_asked_for_all_the_same() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            with pytest.raises(ExecutionNotFound):
                await app.get("nobody").cancel("gone")
            assert [one[:2] for one in await told(app)] == [("executions.cancel", "nobody")]

    asyncio.run(main())
