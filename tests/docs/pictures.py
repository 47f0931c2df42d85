"""The pictures of the pages: definitions of the examples, drawn.

To draw them after a definition or the drawing has changed: python -m tests.docs.pictures
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from perdure.flows import kinds, reading
from perdure.flows.diagram import Diagram, svg

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/pictures"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"pictured_{name}", ROOT / f"examples/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def approval() -> Diagram:
    found: Diagram = example("approval_machine").approval.diagram({"asked.manager": "current"})
    return found


def order() -> Diagram:
    example("order_machine")  # for its actions
    body = reading.read((ROOT / "examples/order_machine.yaml").read_bytes(), "order_machine.yaml")
    return kinds.build(body, version=1).diagram({"paid": "current"})


PICTURES: dict[str, Callable[[], Diagram]] = {"approval": approval, "order-machine": order}


def drawn(name: str) -> str:
    return svg(PICTURES[name]()) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in PICTURES:
        (FOLDER / f"{each}.svg").write_text(drawn(each))
