"""The table of settings in docs/howto/configuration.md, made from the code.

To write it into the page after a setting has changed: python -m tests.docs.settings
"""

from __future__ import annotations

import re
from pathlib import Path

from perdure.runtime.settings import MEANING, Settings, type_of
from perdure.runtime.sources import older, variable

PAGE = Path(__file__).parents[2] / "docs/howto/configuration.md"
_ROW = re.compile(r"^\| `\w+` \| `PERDURE_.*\n", re.MULTILINE)


def rows() -> str:
    lines = []
    for name, meaning in MEANING.items():
        default = getattr(Settings(), name)
        text = "" if default in ("", None) else f"`{default}`"
        aliases = ", ".join(f"`{alias}`" for alias in older(name))
        lines.append(f"| `{name}` | `{variable(name)}` | {aliases} | {type_of(name)} | {text} | {meaning} |\n")
    return "".join(lines)


def shown() -> str:
    return "".join(_ROW.findall(PAGE.read_text()))


if __name__ == "__main__":
    page = PAGE.read_text()
    head = page[: page.index("| setting | variable |")]
    PAGE.write_text(
        f"{head}| setting | variable | older names | type | default | meaning |\n|---|---|---|---|---|---|\n{rows()}"
    )
