"""The pages of the HTTP API in docs/reference/http, one per resource, made from the routes as they are declared.

To write them after a route has changed: python -m tests.docs.routes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from perdure.http.api import ALL, VERSION
from perdure.http.openapi import describe
from perdure.http.reference import Field, Operation, Section, Shape, sections

FOLDER = Path(__file__).parents[2] / "docs/reference/http"


def pages() -> dict[str, str]:
    """The text of each page by its name."""
    found = sections(describe(ALL, VERSION))
    made = {f"{one.tag.replace(' ', '-')}.md": "\n".join(_page(one)) + "\n" for one in found}
    return {"index.md": "\n".join(_index(found)) + "\n", **made}


def _index(found: Sequence[Section]) -> Iterator[str]:
    yield "# The routes of the HTTP API\n"
    yield "A page per resource, made from the code; `/openapi.json` describes the same in OpenAPI 3.1, and `/docs` is a"
    yield "page of it for a browser. Errors are problem details (RFC 9457).\n"
    for section in found:
        yield f"## [{section.tag}]({section.tag.replace(' ', '-')}.md)\n"
        yield "| route | scope | does |\n|---|---|---|"
        for one in section.operations:
            yield f"| `{one.method} {one.path}` | {one.scopes} | {one.summary} |"
        yield ""


def _page(section: Section) -> Iterator[str]:
    yield f"# {section.tag.capitalize()}\n"
    for one in section.operations:
        yield from _operation(one)
    if section.shapes:
        yield "## Shapes\n"
    for shape in section.shapes:
        yield f"### {shape.kind}\n"
        if shape.meaning:
            yield f"{shape.meaning}\n"
        yield from _fields(shape.fields)


def _operation(one: Operation) -> Iterator[str]:
    yield f"## `{one.method} {one.path}`\n"
    yield f"{one.summary}{' ' + one.description if one.description else ''}\n"
    without = "; with the scope glance, [without the data](../../howto/access.md#observers)" if one.glance else ""
    yield f"Scope: {one.scope}{without}.\n" if one.scope else "For anybody.\n"
    if one.parameters:
        yield from _fields(one.parameters)
    if one.body is not None:
        yield f"Body: {_link(one.body)}.\n"
    yield "Answers: " + ", ".join(f"{status} with {_link(shape)}" for status, shape in one.answers) + ".\n"


def _link(shape: Shape) -> str:
    return f"[{shape.kind}](#{shape.kind.lower()})" if shape.fields else f"`{shape.kind}`"


def _fields(fields: Sequence[Field]) -> Iterator[str]:
    yield "| name | type | | |\n|---|---|---|---|"
    for one in fields:
        kind = one.kind.replace("|", "\\|")
        yield f"| `{one.name}` | {kind} | {'required' if one.required else ''} | {one.meaning} |"
    yield ""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
