"""A machine in the form in which it is run: states by path, transitions with their targets, everything looked up.

`Chart.select` is the pure decision: which transition an event takes in a state, or why none. `Chart.steps` says what is
left and entered. Both are functions of their arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from perdure.core.durations import micros
from perdure.errors import InvalidValue, UsageError
from perdure.flows.action import Action
from perdure.flows.bound import Bound, Call, Problem, bind, bind_name, check_arguments
from perdure.flows.machine.model import Do, Event, State, To
from perdure.flows.machine.people import Question, question
from perdure.flows.machine.terms import Context, condition, filler, setter, words
from perdure.flows.registry import registry

Condition: TypeAlias = Callable[[Context], bool]
Change: TypeAlias = Callable[[Context], Any]


class Task(Struct, frozen=True):
    """One action of a step."""

    name: str
    call: Call
    args: Callable[[Context, Bound], Any]
    set: Change | None
    after: tuple[str, ...]
    optional: bool
    action: Action[..., Any] | None = None  # where results are typed


class Node(Struct, eq=False):
    """A state in its place. The root is the machine itself, with the empty path."""

    path: str
    parent: Node | None
    state: State
    children: dict[str, Node] = {}
    initial: Node | None = None
    entry: list[Task] = []
    exit: list[Task] = []
    on: dict[str, list[Transition]] = {}
    after: list[Timer] = []
    always: list[Transition] = []
    done: list[Transition] = []
    error: list[Transition] = []
    question: Question | None = None

    @property
    def final(self) -> bool:
        return self.state.final

    def line(self) -> list[Node]:
        """Itself and all around it, from the inside out."""
        return [self] if self.parent is None else [self, *self.parent.line()]

    def leaf(self) -> Node:
        """Where entering it leads to."""
        node = self
        while node.initial is not None:
            node = node.initial
        return node


class Transition(Struct, eq=False):
    source: Node
    target: Node | None
    when: Condition | None
    set: Change | None
    do: list[Task]
    roles: frozenset[str]
    words: str = ""  # its condition, for people

    def refuses(self, event: Event) -> str:
        """Why this sender may not cause it. Whoever needs a role has to say who it is: the log answers for it."""
        if not event.id or not self.roles:
            return ""
        if self.roles.isdisjoint(event.roles):
            return f"only {' or '.join(sorted(self.roles))} may send it"
        return "" if event.by else "it does not say who sent it (by=…)"


class Timer(Struct, eq=False):
    """After so long in a state: an event, or a transition of its own."""

    key: str
    delay: int
    event: str = ""
    transitions: list[Transition] = []


class Step(Struct, frozen=True):
    """Which states a transition leaves, from the inside out, and which it enters, from the outside in."""

    left: tuple[Node, ...]
    entered: tuple[Node, ...]
    leaf: Node


class Chart:
    """See the module. Problems found on the way are collected, not raised, so that all of them are told at once."""

    def __init__(self, root: State, bounds: Mapping[str, Bound] | None = None) -> None:
        self.problems: list[Problem] = []
        self.bounds: dict[str, Bound] = {}
        self.undos: dict[str, Action[..., Any]] = {}  # of actions that are given as themselves
        self._known = bounds
        self.root = self._node("", None, root)
        self.nodes = {node.path: node for node in self._all(self.root)}
        for node in self.nodes.values():
            self._wire(node)
        #: The transitions of every event, wherever they begin.
        self.events: dict[str, list[Transition]] = {}
        for node in self.nodes.values():
            for name, transitions in node.on.items():
                self.events.setdefault(name, []).extend(transitions)
        self._steps: dict[tuple[Node, Transition], Step] = {}

    # Deciding.

    def select(self, leaf: Node, event: Event, context: Context) -> Transition | str:
        """The transition that an event takes, or why it takes none."""
        reason = ""
        for node in leaf.line():
            for transition in node.on.get(event.name, ()):
                if refused := transition.refuses(event):
                    reason = reason or refused
                elif transition.when is not None and not transition.when(context):
                    reason = reason or "the condition does not hold"
                else:
                    return transition
        return reason or self.no_such(leaf)

    def pick(self, transitions: Sequence[Transition], context: Context) -> Transition | None:
        """The first whose condition holds."""
        for transition in transitions:
            if transition.when is None or transition.when(context):
                return transition
        return None

    def takes(self, leaf: Node) -> list[str]:
        """The events for which there is a transition in this state."""
        return list(dict.fromkeys(name for node in leaf.line() for name in node.on))

    def no_such(self, leaf: Node) -> str:
        return f"state {leaf.path} takes {', '.join(self.takes(leaf)) or 'no events'}"

    def steps(self, leaf: Node, transition: Transition) -> Step:
        """A transition with a target leaves its source, also when it leads back to it."""
        known = self._steps.get((leaf, transition))
        if known is None:
            known = self._steps[leaf, transition] = self._step(leaf, transition)
        return known

    def _step(self, leaf: Node, transition: Transition) -> Step:
        target = transition.target
        if target is None:
            return Step((), (), leaf)
        around = set(transition.source.line())
        if transition.source.parent is not None:
            around.discard(transition.source)
        common = next(node for node in target.line() if node in around and (node is not target or node.parent is None))
        return self.enter(leaf, target, common)

    def enter(self, leaf: Node | None, target: Node, common: Node) -> Step:
        stays = set(common.line())
        left = [] if leaf is None else [node for node in leaf.line() if node not in stays]
        end = target.leaf()
        entered = [node for node in end.line() if node not in stays]
        return Step(tuple(left), tuple(reversed(entered)), end)

    # Making.

    def _node(self, path: str, parent: Node | None, state: State) -> Node:
        node = Node(path, parent, state)
        for name, inner in state.states.items():
            if not name or "." in name:
                self._wrong(path, f"{name!r} cannot name a state", "use letters, digits, _ and -")
            node.children[name] = self._node(f"{path}.{name}" if path else name, node, inner)
        return node

    def _all(self, node: Node) -> Iterator[Node]:
        yield node
        for child in node.children.values():
            yield from self._all(child)

    def _wire(self, node: Node) -> None:
        state, here = node.state, f"states.{node.path}" if node.path else "machine"
        if node.children:
            chosen = state.initial
            if chosen in node.children:
                node.initial = node.children[chosen]
            else:
                fix = f"name one of {', '.join(node.children)}"
                self._wrong(f"{here}.initial", f"there is no state {chosen!r} inside" if chosen else "missing", fix)
        elif state.initial:
            self._wrong(f"{here}.initial", "there are no states inside", "leave it out")
        node.entry = self._tasks(state.entry, f"{here}.entry")
        node.exit = self._tasks(state.exit, f"{here}.exit")
        node.on = {name: self._transitions(node, tos, f"{here}.on.{name}") for name, tos in state.on.items()}
        node.always = self._transitions(node, state.always, f"{here}.always")
        node.done = self._transitions(node, state.done, f"{here}.done")
        node.error = self._transitions(node, state.error, f"{here}.error")
        if state.person is not None:
            ask = state.person
            node.question = self._term(f"{here}.person", "", lambda: question(ask))
        node.after = [
            timer for key, tos in state.after.items() if (timer := self._timer(node, key, tos, f"{here}.after.{key}"))
        ]

    def _timer(self, node: Node, key: str, tos: Any, where: str) -> Timer | None:
        try:
            delay = micros(key)
        except InvalidValue as error:
            self._wrong(where, str(error))
            return None
        if isinstance(tos, str):
            return Timer(key, delay, tos)
        return Timer(key, delay, "", self._transitions(node, tos, where))

    def _transitions(self, node: Node, tos: Any, where: str) -> list[Transition]:
        several = [tos] if isinstance(tos, To | str) else list(tos)
        return [
            self._transition(node, one if isinstance(one, To) else To(one), f"{where}[{index}]" if index else where)
            for index, one in enumerate(several)
        ]

    def _transition(self, node: Node, to: To, where: str) -> Transition:
        target = None
        if to.target:
            target = self._resolve(node, to.target)
            if target is None:
                self._wrong(where, f"there is no state {to.target!r}", f"states are: {', '.join(self._paths())}")
        return Transition(
            node,
            target,
            self._term(where, "when", lambda: condition(to.when)),
            self._term(where, "set", lambda: setter(to.set, "event")),
            self._tasks(to.do, f"{where}.do"),
            frozenset(to.roles),
            words(to.when),
        )

    def _paths(self) -> list[str]:
        return [node.path for node in self._all(self.root) if node.path]

    def _resolve(self, node: Node, name: str) -> Node | None:
        """A path from the root; or the nearest state of that name: inside, beside, or further out."""
        for around in node.line():
            found: Node | None = around
            for part in name.split("."):
                found = None if found is None else found.children.get(part)
            if found is not None:
                return found
        return None

    def _tasks(self, dos: Sequence[Any], where: str) -> list[Task]:
        several = [dos] if isinstance(dos, Do | Action | str) else list(dos)
        tasks = []
        for index, one in enumerate(several):
            do = one if isinstance(one, Do) else Do(one)
            if (task := self._task(do, f"{where}[{index}]")) is not None:
                tasks.append(task)
        self._order(tasks, where)
        return tasks

    def _task(self, do: Do, where: str) -> Task | None:
        action = None
        try:
            if isinstance(do.action, Action):
                action, bound = do.action, bind(do.action)
            else:
                bound = bind_name(do.action) if self._known is None else self._known[do.action]
        except UsageError as error:
            self._wrong(where, str(error))
            return None
        self.bounds[bound.name] = bound
        if action is not None and action.compensation is not None:
            self.undos[action.compensation.name] = action.compensation
        args = self._term(where, "args", lambda: filler(do.args))
        if self._known is None and isinstance(do.args, Mapping | list | tuple):
            self.problems += check_arguments(action or registry.action(bound.name), do.args, where)
        call = Call(bound, do.retries, do.timeout)
        try:
            if action is None:
                call.spec()
            elif do.retries is not None or do.timeout is not None:
                action = action.options(retries=do.retries, timeout=do.timeout)
        except (InvalidValue, UsageError) as error:
            self._wrong(where, str(error))
            return None
        change = self._term(where, "set", lambda: setter(do.set, "result"))
        assert args is not None
        return Task(do.name or bound.name, call, args, change, tuple(do.after), do.optional, action)

    def _order(self, tasks: list[Task], where: str) -> None:
        """`after` names others of the same list and makes no circle."""
        names = [task.name for task in tasks]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            self._wrong(where, f"there are two actions {name}", "give one of them another `name`")
        for task in tasks:
            for other in task.after:
                if other not in names:
                    have = ", ".join(names)
                    self._wrong(f"{where}.{task.name}", f"it comes after {other!r}, which is not here: {have}")
        left = {task.name: set(task.after) & set(names) for task in tasks}
        while free := [name for name, before in left.items() if not before]:
            left = {name: before - set(free) for name, before in left.items() if name not in free}
        if left:
            circle = " → ".join(sorted(left))
            self._wrong(where, f"these wait for one another: {circle}", "take one `after` out")

    def _term(self, where: str, what: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except InvalidValue as error:
            self._wrong(f"{where}.{what}".rstrip("."), str(error))
            return None if what != "args" else filler(())

    def _wrong(self, where: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(where, message, fix))
