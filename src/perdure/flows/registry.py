"""The workflows and actions of this process, by name and version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from perdure.errors import NotRegistered, UsageError

if TYPE_CHECKING:
    from perdure.flows.action import Action
    from perdure.flows.workflow import Workflow


class Registry:
    """Decorating registers; a second function of the same name and version is an error, its reload is not."""

    def __init__(self) -> None:
        self._workflows: dict[tuple[str, int], Workflow[..., Any]] = {}
        self._actions: dict[str, Action[..., Any]] = {}

    def add_workflow(self, workflow: Workflow[..., Any]) -> None:
        known = self._workflows.get((workflow.name, workflow.version))
        if known is not None and not _same(known.fn, workflow.fn):
            raise UsageError(
                f"there are two workflows {workflow.definition}: {_place(known.fn)} and {_place(workflow.fn)};"
                " give one another name or version"
            )
        self._workflows[workflow.name, workflow.version] = workflow

    def add_action(self, action: Action[..., Any]) -> None:
        known = self._actions.get(action.name)
        if known is not None and not _same(known.fn, action.fn):
            raise UsageError(
                f"there are two actions {action.name}: {_place(known.fn)} and {_place(action.fn)};"
                " give one another name"
            )
        self._actions[action.name] = action

    def workflow(self, name: str, version: int | None = None) -> Workflow[..., Any]:
        """One version, or the newest."""
        versions = [number for known, number in self._workflows if known == name]
        if not versions or (version is not None and version not in versions):
            wanted = name if version is None else f"{name}@{version}"
            have = ", ".join(sorted(self.definitions())) or "none"
            raise NotRegistered(f"this process has no workflow {wanted}; it has: {have}")
        return self._workflows[name, max(versions) if version is None else version]

    def find(self, definition: str) -> Workflow[..., Any] | None:
        name, _, version = definition.rpartition("@")
        return self._workflows.get((name, int(version))) if version.isdecimal() else None

    def action(self, name: str) -> Action[..., Any]:
        try:
            return self._actions[name]
        except KeyError:
            have = ", ".join(sorted(self._actions)) or "none"
            raise NotRegistered(f"this process has no action {name}; it has: {have}") from None

    def definitions(self) -> list[str]:
        return [f"{name}@{version}" for name, version in self._workflows]

    def workflows(self) -> Iterator[Workflow[..., Any]]:
        return iter(list(self._workflows.values()))

    def actions(self) -> Iterator[Action[..., Any]]:
        return iter(list(self._actions.values()))


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same function seen again (a module reloaded, or imported beside __main__), or a local one, as in tests."""
    if "<locals>" in other.__qualname__:
        return True
    files = [getattr(getattr(fn, "__code__", None), "co_filename", fn.__module__) for fn in (one, other)]
    return one.__qualname__ == other.__qualname__ and (one.__module__ == other.__module__ or files[0] == files[1])


def _place(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"


registry = Registry()
