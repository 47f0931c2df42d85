"""The pictures of the pages: definitions of the examples, drawn.

To draw them after a definition or the drawing has changed: python -m tests.docs.pictures
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.flows import kinds, reading
from perdure.flows.diagram import Diagram, Mark, svg
from perdure.flows.registry import registry
from tests.docs.page import blocks

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


def order_graph() -> Diagram:
    found: Diagram = example("order_graph").order.diagram({"inspect": "current", "placed": "done"})
    return found


def order_document() -> Diagram:
    example("order_document")  # for its actions
    body = reading.read((ROOT / "examples/order_document.yaml").read_bytes(), "order_document.yaml")
    marks: dict[str, Mark] = {"think": "done", "both": "done", "lines": "done", "inspect": "current"}
    return kinds.build(body, version=1).diagram(marks)


def definition() -> Diagram:
    """What becomes of a version."""
    states = {
        "draft": {"on": {"draft again": {}, "publish": "published", "discard": "given up"}},
        "published": {"on": {"deprecate": "deprecated"}},
        "deprecated": {"on": {"restore": "published"}},
        "given up": {"final": True},
    }
    return kinds.build({"machine": "definition", "initial": "draft", "states": states}, version=1).diagram()


def of_page(page: str, name: str) -> Diagram:
    """A definition in the code of a page, whose other blocks only use it."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks((ROOT / "docs" / page).read_text()):
        if "await" not in block.code or "@workflow" in block.code:
            exec(block.code, namespace)
    found: Diagram = namespace[name].diagram()
    return found


PICTURES: dict[str, Callable[[], Diagram]] = {
    "approval": approval,
    "order-machine": order,
    "order-graph": order_graph,
    "order-document": order_document,
    "definition": definition,
    "invoice-machine": lambda: of_page("howto/code-machine-graph.md", "invoice_machine"),
    "invoice-graph": lambda: of_page("howto/code-machine-graph.md", "invoice_graph"),
    "invoice-document": lambda: of_page("howto/code-machine-graph.md", "invoice_document"),
}


@contextmanager
def alone() -> Iterator[None]:
    """A registry without what others have registered: examples have actions of the same names."""
    actions, workflows = registry._actions, registry._workflows
    registry._actions = {name: known for name, known in actions.items() if name.startswith("perdure.")}
    registry._workflows = {}
    try:
        yield
    finally:
        registry._actions, registry._workflows = actions, workflows


def drawn(name: str) -> str:
    with alone():
        return svg(PICTURES[name]()) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in PICTURES:
        (FOLDER / f"{each}.svg").write_text(drawn(each))
