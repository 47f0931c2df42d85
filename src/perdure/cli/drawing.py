"""How commands draw: the option that asks for a picture, and the picture as text."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from typer import Option

from perdure.flows.diagram import Diagram, mermaid, svg


class Form(StrEnum):
    """How a diagram is written."""

    mermaid = "mermaid"
    svg = "svg"


DiagramOption = Annotated[
    Form | None, Option("--diagram", help="The definition as a picture instead.", show_default=False)
]


def draw(diagram: Diagram, form: Form) -> str:
    text = mermaid(diagram) if form is Form.mermaid else svg(diagram)
    return text if text.endswith("\n") else text + "\n"
