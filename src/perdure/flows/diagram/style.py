"""The style sheet of pictures, one for all diagrams.

It is constant, so a page with a strict policy can allow it by its hash; all rules are scoped, so it changes nothing
else in a page; and it holds two sets of colours, for readers who like it light and for those who like it dark.
"""

from __future__ import annotations

from perdure.flows.diagram.shapes import LABEL, NOTE, WORDS

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
#: (what, light, dark); the light colours also serve programs that know no colour schemes.
_COLOURS = (
    (".bg", "fill:#ffffff", "fill:#14181f"),
    (".frame", "stroke:#b3bdcc", "stroke:#566176"),
    (".box", "fill:#f6f8fb;stroke:#7c8aa0", "fill:#222936;stroke:#8896ad"),
    (".solid", "fill:#4a5568;stroke:#4a5568", "fill:#b4becd;stroke:#b4becd"),
    (".wait", "fill:#fff8e6;stroke:#b98a1d", "fill:#33290f;stroke:#d3a73c"),
    (".choice", "fill:#f4f0fd;stroke:#8766c9", "fill:#2a2340;stroke:#a98be6"),
    (".person", "fill:#eaf7f6;stroke:#2f8f8a", "fill:#12302f;stroke:#55b8b2"),
    (".done", "fill:#e9f7ec;stroke:#2f8f4e", "fill:#12301c;stroke:#56b876"),
    (".current", "fill:#dceaff;stroke:#1f6feb", "fill:#14305c;stroke:#6aa6ff"),
    (".failed", "fill:#ffebe9;stroke:#cf222e", "fill:#42171a;stroke:#ff7b72"),
    (".frame.even", "fill:#fbfcfe", "fill:#191e27"),
    (".frame.odd", "fill:#f2f5f9", "fill:#1e2430"),
    (".line", "stroke:#66738a", "stroke:#96a3b8"),
    (".line.done", "stroke:#2f8f4e", "stroke:#56b876"),
    (".line.current", "stroke:#1f6feb", "stroke:#6aa6ff"),
    (".line.failed", "stroke:#cf222e", "stroke:#ff7b72"),
    (".tip", "fill:#66738a", "fill:#96a3b8"),
    (".tip.done", "fill:#2f8f4e", "fill:#56b876"),
    (".tip.current", "fill:#1f6feb", "fill:#6aa6ff"),
    (".tip.failed", "fill:#cf222e", "fill:#ff7b72"),
    (".sign", "stroke:#ffffff", "stroke:#14181f"),
    ("text", "fill:#1d2530", "fill:#e6ebf2"),
    (".note", "fill:#566176", "fill:#a9b4c5"),
    (".label", "fill:#3b4658", "fill:#c3ccda"),
    (".inverse", "fill:#ffffff", "fill:#14181f"),
)
_FORMS = (
    f"text{{font:{WORDS:g}px {_FONT};text-anchor:middle}}"
    f".note{{font-size:{NOTE:g}px}}.label{{font-size:{LABEL:g}px}}"
    ".title{font-size:15px;font-weight:600;text-anchor:start}"
    ".head{font-weight:600;text-anchor:start}.note.head{font-weight:400}"
    ".box,.frame,.solid{stroke-width:1.25}.current{stroke-width:2.5}.done,.failed{stroke-width:1.75}"
    ".line,.line.current,.line.done,.line.failed,.box.bare,.frame.bare{fill:none}"
    ".line{stroke-width:1.4;stroke-linejoin:round}.line.current,.line.done,.line.failed{stroke-width:2}"
    ".tip{stroke:none}.sign{fill:none;stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round}"
    ".dashed{stroke-dasharray:5 4}"
)


def _scoped(rules: str) -> str:
    return "".join(
        ",".join(f".perdure-diagram {one}" for one in rule.split("{")[0].split(",")) + "{" + rule.split("{")[1] + "}"
        for rule in rules.split("}")
        if rule
    )


STYLE = (
    _scoped(_FORMS)
    + _scoped("".join(f"{what}{{{light}}}" for what, light, _ in _COLOURS))
    + "@media(prefers-color-scheme:dark){"
    + _scoped("".join(f"{what}{{{dark}}}" for what, _, dark in _COLOURS))
    + "}"
)
