"""The workflows and actions of this process, by name and version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from perdure.core.records import ACTION, PUBLISHED
from perdure.errors import NotRegistered, UsageError

if TYPE_CHECKING:
    from perdure.core.breaker import Breaker
    from perdure.flows.action import Action
    from perdure.flows.workflow import Workflow

#: How many things are named instead of one that is not there, and how long a name may be to be repeated as a whole.
_NEAR, _SHOWN = 5, 100


class Registry:
    """Decorating registers.

    A second workflow of the same name and version is an error, for an execution finds its code by them; its reload is
    not. Two actions may share a name as long as nobody looks them up by it: a workflow calls the function it names.
    """

    def __init__(self) -> None:
        self._workflows: dict[tuple[str, int], Workflow[..., Any]] = {}
        self._actions: dict[str, list[Action[..., Any]]] = {}
        self._inner: dict[str, Workflow[..., Any]] = {}

    def add_inner(self, workflow: Workflow[..., Any]) -> None:
        """A workflow of the engine's own: every worker runs it, but nobody starts it by its name or is shown it."""
        self._inner[workflow.definition] = workflow

    def add_workflow(self, workflow: Workflow[..., Any]) -> None:
        known = self._workflows.get((workflow.name, workflow.version))
        if known is not None and not _same(known.fn, workflow.fn):
            raise UsageError(
                f"there are two workflows {workflow.definition}: {_place(known.fn)} and {_place(workflow.fn)};"
                " give one another name or version"
            )
        self._workflows[workflow.name, workflow.version] = workflow

    def use(self, workflow: Workflow[..., Any]) -> None:
        """This very object is at work: local workflows of one name, as tests have them, must not be confused."""
        if workflow.definition not in self._inner:
            self._workflows[workflow.name, workflow.version] = workflow

    def add_action(self, action: Action[..., Any]) -> None:
        others = [known for known in self._actions.get(action.name, ()) if not _same(known.fn, action.fn)]
        if others and any(one.how.queue for one in (action, *others)):
            places = " and ".join(_place(one.fn) for one in (*others, action))
            raise UsageError(
                f"there are two actions {action.name}: {places}; one with a queue is found by its name, so give them"
                " different names"
            )
        self._actions[action.name] = [*others, action]

    def workflow(self, name: str, version: int | str | None = None) -> Workflow[..., Any]:
        """One version, or the newest; of a document also by the version that it gives itself, which is a text."""
        versions = [number for known, number in self._workflows if known == name]
        if isinstance(version, str):
            versions = [number for number in versions if self._workflows[name, number].label == version]
        if not versions or (isinstance(version, int) and version not in versions):
            raise NotRegistered(f"this process has no workflow {wanted(name, version)}{near(name, self.definitions())}")
        return self._workflows[name, version if isinstance(version, int) else max(versions)]

    def find(self, definition: str) -> Workflow[..., Any] | None:
        """The workflow of this name and version, the engine's own as well, or what stands for an action apart."""
        if definition.startswith(ACTION):
            return self._apart(definition)
        if definition in self._inner:
            return self._inner[definition]
        name, _, version = definition.rpartition("@")
        return self._workflows.get((name, int(version))) if version.isdecimal() else None

    def _apart(self, definition: str) -> Workflow[..., Any] | None:
        from perdure.flows.apart import Apart

        name, _, version = definition.removeprefix(ACTION).rpartition("@")
        known = [action for action in self._actions.get(name, ()) if str(action.version) == version]
        return Apart(known[0]) if len(known) == 1 and not known[0].how.external else None

    def external(self, queue: str) -> dict[str, Action[..., Any]]:
        """What workers in other languages may be given at this queue, by definition."""
        known = (one for one in self.actions() if one.how.external and one.how.queue == queue)
        return {f"{ACTION}{one.name}@{one.version}": one for one in known}

    def external_of(self, definition: str) -> Action[..., Any]:
        """The declaration of an external action."""
        known = (one for one in self.actions() if one.how.external)
        for one in known:
            if f"{ACTION}{one.name}@{one.version}" == definition:
                return one
        raise NotRegistered(
            f"this process has no external action {definition.removeprefix(ACTION)}: let it load the module that"
            " declares it"
        )

    def findable(self, action: Action[..., Any]) -> bool:
        """Whether its name is enough to find it: only then may another process run it."""
        return len(self._actions.get(action.name, ())) == 1

    def action(self, name: str) -> Action[..., Any]:
        known = self._actions.get(name, [])
        if not known:
            have = ", ".join(sorted(self._actions)) or "none"
            raise NotRegistered(f"this process has no action {name}; it has: {have}")
        if len(known) > 1:
            places = " and ".join(_place(action.fn) for action in known)
            raise UsageError(f"there are several actions {name}: {places}; give them different names")
        return known[0]

    def breaker(self, name: str) -> Breaker | None:
        """The circuit breaker of an action, if there is one of that name and it has one."""
        return next((action.how.breaker for action in self._actions.get(name, ()) if action.how.breaker), None)

    def definitions(self) -> list[str]:
        return [f"{name}@{version}" for name, version in self._workflows]

    def served(self) -> list[str]:
        """All that a worker with this registry can run: workflows, actions apart, the engine's own, the published."""
        actions = [f"{ACTION}{one.name}@{one.version}" for one in self.actions() if not one.how.external]
        return [*self.definitions(), *self._inner, *dict.fromkeys(actions), PUBLISHED]

    def workflows(self) -> Iterator[Workflow[..., Any]]:
        return iter(list(self._workflows.values()))

    def actions(self) -> Iterator[Action[..., Any]]:
        return iter([action for known in self._actions.values() for action in known])


def wanted(name: str, version: int | str | None) -> str:
    """What was asked for, short enough to be repeated."""
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    return shown if version is None else f"{shown}@{version}"


def near(name: str, known: Iterable[str]) -> str:
    """What comes near a name that was not found: its versions, or names like it; nothing if there are none."""
    versions: dict[str, set[int]] = {}
    for one in known:
        of, _, number = one.rpartition("@")
        versions.setdefault(of, set()).add(int(number))
    if name in versions:
        return f"; there is version {', '.join(map(str, sorted(versions[name])[-_NEAR:]))}"
    alike = get_close_matches(name, versions, _NEAR) if len(name) <= _SHOWN else []
    return f"; did you mean {' or '.join(alike)}?" if alike else ""


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same function seen again (a module reloaded, or imported beside __main__), or a local one, as in tests."""
    if "<locals>" in other.__qualname__:
        return True
    files = [getattr(getattr(fn, "__code__", None), "co_filename", fn.__module__) for fn in (one, other)]
    return one.__qualname__ == other.__qualname__ and (one.__module__ == other.__module__ or files[0] == files[1])


def _place(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"


registry = Registry()
