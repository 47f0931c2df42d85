"""The files of the dashboard, as the server gives them to browsers.

Rules kept here: every file is part of the package, and nothing of it is made at run time; the page may load, call and
show only what comes from the server that it came from, runs no script but those files, and can be framed by nobody. It
asks for no credential, because it has nothing in it that is anybody's: what it shows it gets from the API, with the
credential of whoever looks. The addresses in it are relative, so the API may be mounted anywhere.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from pathlib import PurePath

from perdure.http.problems import Refused
from perdure.http.route import Answer, Call, Html, Nothing, Routes

#: Pictures are drawn by the API and shown from memory, since only calls can show a credential.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The sorts of files that there are.
_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FIRST = "index.html"

routes = Routes("dashboard")


@routes("GET", "/", None, answers={307: None})
@routes("GET", "/dashboard", None, answers={307: None})
async def lead_in(call: Call[Nothing, Nothing]) -> Answer:
    """Lead a browser to the dashboard."""
    return Answer(b"", 307, {"Location": "dashboard/"}, "text/plain")


@routes("GET", "/dashboard/", None, answers={200: Html})
@routes("GET", "/dashboard/{file}", None, answers={200: Html})
async def get_file(call: Call[Nothing, Nothing]) -> Answer:
    """Get the page of the dashboard, or a file that it needs."""
    name = call.path.get("file", _FIRST)
    if (found := _files().get(name)) is None:
        raise Refused(404, "No Such File", f"the dashboard has no file {name[:80]!r}")
    content, tag = found
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "ETag": tag}
    media = _MEDIA[PurePath(name).suffix]
    if call.headers.get("if-none-match") == tag:
        return Answer(b"", 304, headers, media)
    return Answer(content, headers=headers, media=media)


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """By name, with a tag that changes with the content."""
    found = {}
    for file in (resources.files("perdure.http.dashboard") / "assets").iterdir():
        content = file.read_bytes()
        found[file.name] = content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return found
