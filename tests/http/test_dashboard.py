"""The files of the dashboard, as they are served."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import perdure.http.dashboard
from perdure import Perdure
from perdure.http.api import api
from perdure.http.auth import Authenticator, Open

ASSETS = Path(perdure.http.dashboard.__file__).parent / "assets"
NAMES = sorted(file.name for file in ASSETS.iterdir())


@pytest.fixture
def served() -> httpx.ASGITransport:
    return httpx.ASGITransport(app=api(Perdure("memory://"), Authenticator(open=Open("default"))))


def caller(transport: httpx.ASGITransport) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.mark.parametrize("path", ["/", "/dashboard"])
@pytest.mark.real_time
async def test_browsers_are_led_to_the_page(served: httpx.ASGITransport, path: str) -> None:
    async with caller(served) as client:
        answer = await client.get(path)
        assert answer.status_code == 307
        page = await client.get(answer.url.join(answer.headers["location"]))
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.content == (ASSETS / "index.html").read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.real_time
async def test_every_file_is_served_under_the_policy_and_kept_until_it_changes(
    served: httpx.ASGITransport, name: str
) -> None:
    async with caller(served) as client:
        answer = await client.get(f"/dashboard/{name}")
        assert answer.content == (ASSETS / name).read_bytes()
        directives = (one.split() for one in answer.headers["content-security-policy"].split(";"))
        policy = {name: sources for name, *sources in directives}
        for nothing in ("default-src", "base-uri", "form-action", "frame-ancestors"):
            assert policy.pop(nothing) == ["'none'"]
        assert policy.pop("img-src") == ["'self'", "blob:"]
        assert policy == {name: ["'self'"] for name in ("script-src", "style-src", "connect-src")}
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await client.get(f"/dashboard/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = await client.get(f"/dashboard/{name}", headers={"If-None-Match": '"another"'})
        assert other.status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fpages.py", "%2Fetc%2Fpasswd", "pages.py", "index.html/x"])
@pytest.mark.real_time
async def test_nothing_else_is_served(served: httpx.ASGITransport, name: str) -> None:
    async with caller(served) as client:
        answer = await client.get(f"/dashboard/{name}")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_scripts_make_no_markup_of_texts_and_load_nothing_from_elsewhere(name: str) -> None:
    text = (ASSETS / name).read_text()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in text
    assert set(re.findall(r"https?://[^\"'\s]+", text)) <= {"http://www.w3.org/2000/svg"}
    for imported in re.findall(r'from "([^"]+)"', text):
        assert imported.removeprefix("./") in NAMES


@pytest.mark.real_time
async def test_it_can_be_mounted_below_a_path(served: httpx.ASGITransport) -> None:
    mounted = Starlette(routes=[Mount("/flows", app=served.app)])
    async with caller(httpx.ASGITransport(app=mounted)) as client:
        page = await client.get("/flows/dashboard/")
        for address in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            assert (await client.get(page.url.join(address))).status_code == 200, address
        assert (await client.get(page.url.join("../v1/caller"))).json()["user"] == "dev"
