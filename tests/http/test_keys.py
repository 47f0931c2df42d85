"""API keys on every store: made once, rotated, revoked, expired; what is kept of them, and for how long."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure
from perdure.core import events as ev
from perdure.core.records import Head, Query
from perdure.errors import InvalidValue, KeyNotFound, StoreUnavailable, Unauthenticated, UsageError
from perdure.http.key_log import HOME, KEY, fold, key_of_key, record_of
from perdure.http.keys import Keys, NewKey
from perdure.runtime.managing import registers as module
from perdure.runtime.managing.registers import FRESH
from perdure.testing import run as virtually

DAY = 24 * 3600


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path / 'keys.db'}"
        case _:
            return str(request.getfixturevalue("postgres"))


class Time:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Reads:
    """Counts how often a store is asked for a head."""

    def __init__(self, app: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._head = app.store.head
        monkeypatch.setattr(app.store, "head", self)

    async def __call__(self, key: str) -> Head | None:
        self.count += 1
        return await self._head(key)


async def refused(keys: Keys, secret: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await keys.caller(secret)
    return str(caught.value)


# --- making, listing, rotating, revoking: on every store --------------------------------------------------------------


def test_a_key_says_who_calls_and_what_they_may_do(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            keys = Keys(app)
            made = await keys.create("ci", ["sender", "manager"], by="ada")
            caller = await keys.caller(made.secret)
            assert (caller.tenant, caller.user, caller.roles) == ("default", "ci", ("manager",))
            assert caller.scopes == {"read", "send", "start"}
            assert caller.credential == f"key:{made.key.id}"
            await keys.close()

    asyncio.run(main())


def test_the_life_of_a_key_is_its_log(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            keys = Keys(app)
            made = await keys.create("ci", ["viewer"], by="ada")
            await keys.rotate(made.key.id, by="ben")
            await keys.revoke(made.key.id, by="cem")
            await keys.revoke(made.key.id, by="dan")
            history = [(one.what, one.by) for one in await keys.history(made.key.id)]
            assert history == [("created", "ada"), ("rotated", "ben"), ("revoked", "cem")]
            # The head is what the log says, and one read of it is enough.
            rows = await app.store.read(key_of_key(made.key.id))
            head = await app.store.head(key_of_key(made.key.id))
            assert head is not None and head.workflow == KEY
            assert fold(record_of(None), rows) == record_of(head)

    asyncio.run(main())


def test_keys_are_listed_for_their_tenant_alone(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            keys = Keys(app)
            for name, tenant in (("a", "one"), ("b", "two"), ("c", "one")):
                await keys.create(name, ["viewer"], tenant=tenant)
            assert [key.name for key in await keys.list(tenant="one")] == ["a", "c"]
            assert [key.name for key in await keys.list(tenant="two")] == ["b"]
            assert await keys.list() == []

    asyncio.run(main())


def test_a_key_of_another_tenant_cannot_be_seen_or_changed(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            keys = Keys(app)
            id = (await keys.create("ci", ["admin"], tenant="one")).key.id
            for ask in (keys.get, keys.rotate, keys.revoke, keys.history):
                with pytest.raises(KeyNotFound, match="tenant 'two' has no API key"):
                    await ask(id, tenant="two")  # type: ignore[operator]
            assert [one.what for one in await keys.history(id, tenant="one")] == ["created"]

    asyncio.run(main())


def test_an_id_that_nobody_has_leaves_nothing_in_the_store(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            with pytest.raises(KeyNotFound):
                await Keys(app).revoke("aaaaaaaaaaaa")
            assert [head.workflow for head in await app.store.find(Query(None))] == ["audit:"]

    asyncio.run(main())


def test_keys_are_not_among_the_executions_of_anybody(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            await Keys(app).create("ci", ["viewer"])
            assert (await app.find()).heads == []
            with pytest.raises(UsageError):
                Perdure("memory://", tenant=HOME)

    asyncio.run(main())


def test_two_processes_that_rotate_at_once_take_turns(url: str) -> None:
    async def main() -> None:
        async with Perdure(url) as app:
            one, two = Keys(app), Keys(app)
            id = (await one.create("ci", ["viewer"])).key.id
            made = await asyncio.gather(one.rotate(id, overlap="1h"), two.rotate(id, overlap="1h"))
            # The secret of the second is the key's, that of the first is good for its overlap.
            assert {(await one.caller(new.secret)).user for new in made} == {"ci"}
            await one.close()
            assert [change.what for change in await one.history(id)] == ["created", "rotated", "rotated", "used"]

    asyncio.run(main())


# --- what is good, and until when: in virtual time -------------------------------------------------------------------


def in_time(test: Callable[[Perdure, Keys], Any]) -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            keys = Keys(app, asyncio.get_running_loop().time)
            await test(app, keys)
            await keys.close()

    virtually(main())


def test_a_key_expires() -> None:
    async def test(app: Perdure, keys: Keys) -> None:
        made = await keys.create("ci", ["viewer"], expires="90d")
        await asyncio.sleep(90 * DAY - 2)
        await keys.caller(made.secret)
        await asyncio.sleep(3)  # what the process has in mind is fresh still, and does not matter
        assert await refused(keys, made.secret) == f"the API key {made.key.id} has expired"
        assert (await keys.get(made.key.id)).status == "expired"
        with pytest.raises(UsageError, match="has expired: create another"):
            await keys.rotate(made.key.id)

    in_time(test)


def test_after_a_rotation_both_secrets_are_good_until_the_overlap_ends() -> None:
    async def test(app: Perdure, keys: Keys) -> None:
        first = await keys.create("ci", ["viewer"])
        second = await keys.rotate(first.key.id, overlap="24h")
        assert second.key.overlap_until is not None
        await asyncio.sleep(DAY - 2)
        assert (await keys.caller(first.secret)).user == (await keys.caller(second.secret)).user == "ci"
        await asyncio.sleep(3)
        assert await refused(keys, first.secret) == "the API key is not valid"
        assert (await keys.caller(second.secret)).user == "ci"
        assert (await keys.get(first.key.id)).overlap_until is None

    in_time(test)


def test_a_second_rotation_ends_the_overlap_of_the_first() -> None:
    async def test(app: Perdure, keys: Keys) -> None:
        first = await keys.create("ci", ["viewer"])
        second = await keys.rotate(first.key.id)
        third = await keys.rotate(first.key.id)
        await refused(keys, first.secret)
        await keys.caller(second.secret)
        await keys.caller(third.secret)

    in_time(test)


def test_without_an_overlap_the_secret_before_is_good_no_longer() -> None:
    async def test(app: Perdure, keys: Keys) -> None:
        first = await keys.create("ci", ["viewer"])
        await keys.caller(first.secret)
        await keys.rotate(first.key.id, overlap=0)
        await refused(keys, first.secret)

    in_time(test)


def test_a_rotation_keeps_the_end_of_a_key_unless_it_gets_another() -> None:
    async def test(app: Perdure, keys: Keys) -> None:
        made = await keys.create("ci", ["viewer"], expires="10d")
        await asyncio.sleep(DAY)
        assert (await keys.rotate(made.key.id)).key.expires_at == made.key.expires_at
        again = (await keys.rotate(made.key.id, expires="10d")).key.expires_at
        assert again is not None and made.key.expires_at is not None
        assert DAY <= (again - made.key.expires_at).total_seconds() < DAY + 60

    in_time(test)


def test_a_use_is_noted_at_most_once_a_day() -> None:
    async def test(app: Perdure, keys: Keys) -> None:
        made = await keys.create("ci", ["viewer"])
        assert (await keys.get(made.key.id)).used_at is None
        for _ in range(3):
            await asyncio.gather(*(keys.caller(made.secret) for _ in range(5)))
            await asyncio.sleep(3600)
        assert [one.what for one in await keys.history(made.key.id)] == ["created", "used"]
        await asyncio.sleep(DAY)
        await keys.caller(made.secret)
        await keys.close()
        assert [one.what for one in await keys.history(made.key.id)] == ["created", "used", "used"]
        assert (await keys.get(made.key.id)).used_at is not None

    in_time(test)


def test_a_use_that_is_being_noted_is_not_noted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(app: Perdure, keys: Keys) -> None:
        made = await keys.create("ci", ["viewer"])
        hold, gate, asked = app.store.hold, asyncio.Event(), []

        async def slow(*args: Any) -> Any:
            asked.append(args)
            await gate.wait()
            return await hold(*args)

        monkeypatch.setattr(app.store, "hold", slow)
        for _ in range(5):
            await keys.caller(made.secret)
            await asyncio.sleep(1)
        gate.set()
        await keys.close()
        assert len(asked) == 1
        assert (await keys.get(made.key.id)).used_at is not None

    in_time(test)


def test_a_use_is_noted_once_by_all_processes_together() -> None:
    async def test(app: Perdure, keys: Keys) -> None:
        made = await keys.create("ci", ["viewer"])
        others = [Keys(app) for _ in range(3)]
        await asyncio.gather(*(one.caller(made.secret) for one in others))
        await asyncio.gather(*(one.close() for one in others))
        assert [one.what for one in await keys.history(made.key.id)] == ["created", "used"]

    in_time(test)


# --- what a process has in mind ---------------------------------------------------------------------------------------


def test_a_good_key_does_not_cost_a_read_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            now = Time()
            keys = Keys(app, now)
            made = await keys.create("ci", ["viewer"])
            await keys.caller(made.secret)
            await keys.close()  # its use is noted
            reads = Reads(app, monkeypatch)
            for _ in range(100):
                await keys.caller(made.secret)
            assert reads.count == 0
            now.now += FRESH
            await keys.caller(made.secret)
            assert reads.count == 1

    asyncio.run(main())


def test_revocation_reaches_another_process_when_what_it_knows_is_no_longer_fresh() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            now = Time()
            here, there = Keys(app), Keys(app, now)
            made = await here.create("ci", ["viewer"])
            await there.caller(made.secret)
            await there.close()
            await here.revoke(made.key.id)
            assert await refused(here, made.secret) == f"the API key {made.key.id} has been revoked"
            now.now += FRESH
            assert await refused(there, made.secret) == f"the API key {made.key.id} has been revoked"
            assert FRESH <= 10

    asyncio.run(main())


def test_a_new_secret_is_good_at_once_where_the_key_is_known_with_the_old_one() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            here, there = Keys(app), Keys(app, Time())
            made = await here.create("ci", ["viewer"])
            await there.caller(made.secret)
            again = await here.rotate(made.key.id)
            assert (await there.caller(again.secret)).user == "ci"
            await there.close()

    asyncio.run(main())


def test_only_so_many_keys_are_kept_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)

    async def main() -> None:
        async with Perdure("memory://") as app:
            keys = Keys(app)
            for name in "abc":
                await keys.caller((await keys.create(name, ["viewer"])).secret)
            await keys.close()
            assert len(keys._recent._kept) == 2

    asyncio.run(main())


def test_a_store_out_of_reach_is_not_the_fault_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            keys = Keys(app)
            made = await keys.create("ci", ["viewer"])

            async def broken(*args: Any) -> Any:
                raise StoreUnavailable("out of reach")

            # That the use cannot be noted keeps nobody from calling, and is not tried again with every call.
            monkeypatch.setattr(app.store, "hold", broken)
            for _ in range(3):
                await keys.caller(made.secret)
                await keys.close()
            assert caplog.text.count(f"the use of the API key {made.key.id} could not be noted") == 1
            keys._recent._kept.clear()
            monkeypatch.setattr(app.store, "head", broken)
            with pytest.raises(StoreUnavailable):
                await keys.caller(made.secret)

    asyncio.run(main())


# --- what a key looks like, and what does not pass --------------------------------------------------------------------


def test_a_key_has_an_id_and_a_secret_of_256_bits() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            secrets = {(await Keys(app).create("ci", ["viewer"])).secret for _ in range(50)}
            assert len(secrets) == 50
            assert all(re.fullmatch(r"pdk_[a-z2-7]{12}_[A-Za-z0-9]{43}", one) for one in secrets)
            assert 62**43 > 2**256

    asyncio.run(main())


def test_every_key_that_is_not_proven_is_refused_in_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            keys = Keys(app)
            made = await keys.create("ci", ["viewer"])
            other = await keys.create("other", ["admin"])
            await keys.revoke(other.key.id)
            id, secret = made.key.id, made.secret.rpartition("_")[2]
            wrong = secret[:-1] + ("a" if secret[-1] != "a" else "b")
            attempts = [
                f"pdk_{id}_{wrong}",
                f"pdk_aaaaaaaaaaaa_{secret}",
                f"pdk_{other.key.id}_{secret}",
                f"pdk_{id}_{secret}x",
                f"pdk_{id}_",
                f"pdk_{id}_{secret}\n",
                f"PDK_{id}_{secret}",
                f"pdk_{id.upper()}_{secret}",
                "pdk_../../default_x",
            ]
            assert {await refused(keys, one) for one in attempts} == {"the API key is not valid"}

    asyncio.run(main())


def test_what_is_no_key_is_refused_without_asking_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            reads = Reads(app, monkeypatch)
            await refused(Keys(app), "pdk_x_y")
            assert reads.count == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "roles", "why"),
    [
        ("", ["viewer"], "cannot be the name of a key"),
        ("a\nb", ["viewer"], "cannot be the name of a key"),
        ("ci", ["viewer", "\x1b[31m"], "cannot be a role"),
        ("ci", ["viewr"], "could do nothing: give it at least one of the roles observer, viewer, sender"),
        ("ci", [], "could do nothing"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(name: str, roles: list[str], why: str) -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            with pytest.raises(InvalidValue, match=why):
                await Keys(app).create(name, roles)
            with pytest.raises(InvalidValue, match="expires at once"):
                await Keys(app).create("ci", ["viewer"], expires=0)
            assert await Keys(app).list() == []

    asyncio.run(main())


# --- the secret is nowhere --------------------------------------------------------------------------------------------


def test_the_secret_is_in_no_row_no_log_line_and_no_error(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> tuple[list[NewKey], str]:
        async with Perdure(url) as app:
            keys = Keys(app)
            made = await keys.create("ci", ["viewer"], by="ada")
            again = await keys.rotate(made.key.id)
            other = await keys.create("other", ["viewer"], expires="1us")
            await keys.caller(made.secret)
            await keys.caller(again.secret)
            await keys.close()
            await keys.revoke(made.key.id)
            said = [await refused(keys, one.secret) for one in (made, again, other)]
            said += [await refused(keys, made.secret + "x"), repr(made), repr(again), str(await keys.list())]
            heads = await app.store.find(Query(None, limit=100))
            assert sorted(head.workflow for head in heads) == ["audit:"] * 4 + ["key:"] * 2
            for head in heads:
                rows = await app.store.read(head.key)
                said += [repr(head), *map(repr, rows), *(repr(ev.read(row)) for row in rows)]
            return [made, again, other], "\n".join(said)

    made, said = asyncio.run(main())
    for one in made:
        secret = one.secret.rpartition("_")[2]
        assert secret not in said
        assert secret not in caplog.text
