"""Pictures of definitions: a `Diagram` as Mermaid text or as a self-contained SVG.

State machines, graphs and documents make the `Diagram`; nothing here knows them. All of it is pure and deterministic:
the same diagram always gives the same text, byte for byte.
"""

from __future__ import annotations

from perdure.flows.diagram.mermaid import mermaid
from perdure.flows.diagram.model import Arrow, Box, Diagram, Mark, Shape
from perdure.flows.diagram.svg import svg

__all__ = ["Arrow", "Box", "Diagram", "Mark", "Shape", "mermaid", "svg"]
