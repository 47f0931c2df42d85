"""Pages over HTTP: cursors are taken by every process of a deployment, for the question that they were given for."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from perdure import Client, Perdure
from perdure.errors import InvalidValue
from perdure.http.api import ALL, api
from tests.http.test_api import Door, People, opened, problem, served
from tests.runtime.test_cursors import long_log
from tests.stores.test_postgres import application

#: Every route that gives pages, as one would ask it for the first; there is a log of this id.
PAGED = {
    "/v1/executions": "/v1/executions?",
    "/v1/dead": "/v1/dead?",
    "/v1/tasks": "/v1/tasks?",
    "/v1/audit": "/v1/audit?",
    "/v1/executions/{id}/log": "/v1/executions/long/log?",
}


def test_every_route_with_a_cursor_is_asked_here() -> None:
    assert {one.path for one in ALL if "cursor" in getattr(one.query, "__struct_fields__", ())} == PAGED.keys()


@pytest.mark.parametrize(
    "cursor",
    ["x", "", "1", "-", "1-", "1794796841386602-h0", "9" * 5000 + "-x", "A" * 60, "=" * 40, "٣-x", "\x85", "%"],
)
def test_what_is_no_cursor_is_a_problem_of_the_senders(cursor: str) -> None:
    async def main(door: Door) -> None:
        await door.app.adopt(long_log(5), "long", tenant="acme")
        for had_key in (False, True):
            for path in PAGED.values():
                problem(await door("GET", f"{path}cursor={quote(cursor)}"), 422, "invalid-value")
            if not had_key:
                assert (await door("GET", "/v1/executions/long/log?limit=1")).json()["next"]

    served(main, working=False)


def test_a_cursor_is_refused_by_every_other_route_tenant_and_question() -> None:
    async def main(door: Door) -> None:
        await door.app.adopt(long_log(5), "long", tenant="acme")
        await door.app.adopt(long_log(5), "long", tenant="evil")
        for number in range(3):
            await door.start(id=f"h{number}")
        listed = (await door("GET", "/v1/executions?limit=1&status=waiting")).json()["next"]
        logged = (await door("GET", "/v1/executions/long/log?limit=1&until=4")).json()["next"]
        assert (await door("GET", f"/v1/executions?status=waiting&cursor={listed}")).status_code == 200
        assert (await door("GET", f"/v1/executions/long/log?cursor={logged}")).status_code == 200
        refused = [
            f"/v1/executions?cursor={listed}",
            f"/v1/executions?status=waiting&workflow=http-hello&cursor={listed}",
            f"/v1/executions?status=waiting&cursor={logged}",
            f"/v1/dead?cursor={listed}",
            f"/v1/executions/long/log?cursor={listed}",
            f"/v1/executions/long/log?until=5&cursor={logged}",
            f"/v1/executions/h1/log?until=4&cursor={logged}",
            f"/v1/executions/nobody/log?cursor={logged}",
        ]
        told = [problem(await door("GET", path), 422, "invalid-value")["detail"] for path in refused]
        said = {one.partition(" gave ")[2] for one in told}
        assert len(said) == 1 and "begin again without a cursor" in said.pop()
        door.who = "evil:eve:admin"
        problem(await door("GET", f"/v1/executions?status=waiting&cursor={listed}"), 422, "invalid-value")
        problem(await door("GET", f"/v1/executions/long/log?cursor={logged}"), 422, "invalid-value")

    served(main, working=False)


@asynccontextmanager
async def process(url: str) -> AsyncIterator[Door]:
    app = Perdure(url)
    transport = httpx.ASGITransport(app=api(app, People()))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Door(app, client)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_second_process_and_one_after_a_restart_take_the_cursors_of_the_first(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(request.getfixturevalue("postgres")) if kind == "postgres" else f"sqlite:///{tmp_path}/two.db"

    async def check(door: Door, cursors: tuple[str, str]) -> None:
        listed = (await door("GET", f"/v1/executions?limit=1&cursor={cursors[0]}")).json()
        assert [one["id"] for one in listed["executions"]] == ["h1"]
        logged = (await door("GET", f"/v1/executions/long/log?cursor={cursors[1]}")).json()
        assert [one["version"] for one in logged["events"]] == [3, 4]

    async def first() -> tuple[str, str]:
        async with asyncio.timeout(20), process(url) as one, process(url) as other:
            await one.app.adopt(long_log(5), "long", tenant="acme")
            for number in range(3):
                await one.start(id=f"h{number}")
            listed = (await one("GET", "/v1/executions?limit=1")).json()["next"]
            logged = (await other("GET", "/v1/executions/long/log?limit=2&until=4")).json()["next"]
            for door in (one, other):
                await check(door, (listed, logged))
            return listed, logged

    async def then(cursors: tuple[str, str]) -> None:
        async with asyncio.timeout(20), process(url) as door:
            await check(door, cursors)

    asyncio.run(then(asyncio.run(first())))


def test_cursors_work_for_a_role_that_sees_one_tenant_at_a_time(postgres: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), application(postgres) as url, process(url) as one, process(url) as other:
            for who in ("acme:ann:admin", "mill:bob:admin"):
                one.who = other.who = who
                for number in range(3):
                    await one.start(id=f"h{number}")
                cursor = (await one("GET", "/v1/executions?limit=2")).json()["next"]
                rest = (await other("GET", f"/v1/executions?limit=2&cursor={cursor}")).json()
                assert [execution["id"] for execution in rest["executions"]] == ["h0"]

    asyncio.run(main())


def test_a_cursor_of_another_deployment_is_refused() -> None:
    async def main() -> None:
        async with asyncio.timeout(20), opened(False) as one, opened(False) as other:
            for door in (one, other):
                await door.app.adopt(long_log(5), "long", tenant="acme")
            path = "/v1/executions/long/log?limit=2"
            theirs = (await one("GET", path)).json()["next"]
            assert (await other("GET", path)).json()["next"] != theirs
            problem(await other("GET", f"{path}&cursor={theirs}"), 422, "invalid-value")

    asyncio.run(main())


@pytest.mark.parametrize("limit", [1, 3, 4, 9, 100])
@pytest.mark.parametrize(
    ("asked", "whole"), [("", (1, 9)), ("&after=3", (4, 9)), ("&until=4", (1, 4)), ("&after=2&until=7", (3, 7))]
)
def test_a_log_is_read_by_pages_of_any_size_with_and_without_saying_again_what_of_it(
    asked: str, whole: tuple[int, int], limit: int
) -> None:
    async def versions(door: Door, again: str) -> list[int]:
        path = f"/v1/executions/long/log?limit={limit}"
        page: dict[str, Any] = (await door("GET", f"{path}{asked}")).json()
        seen = [one["version"] for one in page["events"]]
        while page["next"] is not None:
            assert len(page["events"]) == limit
            page = (await door("GET", f"{path}&cursor={page['next']}{again}")).json()
            seen += [one["version"] for one in page["events"]]
        return seen

    async def main(door: Door) -> None:
        await door.app.adopt(long_log(9), "long", tenant="acme")
        for again in ("", asked):
            assert await versions(door, again) == list(range(whole[0], whole[1] + 1))

    served(main, working=False)


def test_a_client_goes_through_a_long_log_in_bounded_memory(tmp_path: Path) -> None:
    """Both sides are in this process: that of the server and that of the client."""

    async def main() -> None:
        app = Perdure(f"sqlite:///{tmp_path}/long.db")
        transport = httpx.ASGITransport(app=api(app, People()))
        async with app, Client("http://test", "acme:ann:admin", transport=transport) as client:
            await app.adopt(long_log(50_000), "long", tenant="acme")
            told = 0
            tracemalloc.start()
            async for entry in client.get("long").entries():
                told += 1
                assert entry.version == told
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert told == 50_000
            assert peak < 12_000_000  # a page of 1,000 on either side; the whole of it is 38 MB

    asyncio.run(main())


def test_a_client_is_told_that_a_cursor_is_not_good() -> None:
    async def main() -> None:
        app = Perdure("memory://")
        transport = httpx.ASGITransport(app=api(app, People()))
        async with app, Client("http://test", "acme:ann:admin", transport=transport) as client:
            await app.adopt(long_log(9), "long", tenant="acme")
            run = client.get("long")
            page = await run.log_page(2, 8, limit=4)
            assert [one.version for one in page.events] == [3, 4, 5, 6]
            page = await run.log_page(limit=4, cursor=page.next)
            assert ([one.version for one in page.events], page.next) == ([7, 8], None)
            for asking in (run.log_page(cursor="x"), client.find(cursor="x"), client.dead(cursor="x")):
                with pytest.raises(InvalidValue, match="begin again without a cursor"):
                    await asking

    asyncio.run(main())
