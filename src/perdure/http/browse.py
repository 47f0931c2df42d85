"""The description of the API as one page for a browser: no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from perdure.http.reference import Field, Operation, Section, Shape, sections

#: The page runs nothing and loads nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem 1.5rem 4rem; }
code, .path { font-family: ui-monospace, monospace; font-size: .92em; }
nav a { margin-right: 1rem; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; }
summary { cursor: pointer; padding: .4rem .7rem; }
details > div { border-top: 1px solid var(--line); padding: .4rem .9rem .8rem; }
.method { display: inline-block; font-weight: 600; min-width: 4rem; }
.GET { color: #2673b8; } .POST { color: #2a8a4a; } .PUT { color: #a86a00; } .DELETE { color: #b83a3a; }
.dim { color: var(--dim); }
table { border-collapse: collapse; margin: .3rem 0 .8rem; width: 100%; }
td { border-top: 1px solid var(--line); padding: .2rem .6rem .2rem 0; vertical-align: top; }
td:first-child { white-space: nowrap; width: 12rem; } td:nth-child(2) { width: 14rem; }
"""


def page(document: dict[str, Any]) -> bytes:
    """The whole page."""
    parts = sections(document)
    links = "".join(f'<a href="#{escape(one.tag)}">{escape(one.tag)}</a>' for one in parts)
    title = escape(f"{document['info']['title']} API {document['info']['version']}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    intro = 'Described in <a href="/openapi.json">OpenAPI</a>. Errors are problem details (RFC 9457).'
    rest = "".join(line for one in parts for line in _section(one))
    body = f"<h1>{title}</h1><p>{intro}</p><nav>{links}</nav>{rest}"
    return f"<!doctype html><html lang=en><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>".encode()


def _section(section: Section) -> Iterator[str]:
    yield f'<h2 id="{escape(section.tag)}">{escape(section.tag)}</h2>'
    for one in section.operations:
        yield "".join(_operation(one))
    if section.shapes:
        shapes = "".join(f"<h4><code>{escape(one.kind)}</code></h4>{_shape(one)}" for one in section.shapes)
        yield f'<details><summary class="dim">Shapes</summary><div>{shapes}</div></details>'


def _operation(one: Operation) -> Iterator[str]:
    yield f'<details id="{escape(one.name)}"><summary><span class="method {one.method}">{one.method}</span>'
    yield f'<span class="path">{escape(one.path)}</span> <span class="dim">{escape(one.summary)}</span></summary><div>'
    if one.description:
        yield f"<p>{escape(one.description)}</p>"
    yield f'<p class="dim">scope: {escape(one.scopes)}</p>' if one.scope else '<p class="dim">for anybody</p>'
    if one.parameters:
        yield f"<h4>Parameters</h4>{_fields(one.parameters)}"
    if one.body is not None:
        yield f"<h4>Body: <code>{escape(one.body.kind)}</code></h4>{_shape(one.body)}"
    for status, answer in one.answers:
        yield f"<h4>{escape(status)}: <code>{escape(answer.kind)}</code></h4>{_shape(answer)}"
    yield "</div></details>"


def _shape(shape: Shape) -> str:
    meaning = f"<p>{escape(shape.meaning)}</p>" if shape.meaning else ""
    return meaning + (_fields(shape.fields) if shape.fields else "")


def _fields(fields: Sequence[Field]) -> str:
    rows = (
        f"<tr><td><code>{escape(one.name)}</code>{'' if one.required else ' <span class=dim>optional</span>'}</td>"
        f"<td><code>{escape(one.kind)}</code></td><td>{escape(one.meaning)}</td></tr>"
        for one in fields
    )
    return f"<table>{''.join(rows)}</table>"
