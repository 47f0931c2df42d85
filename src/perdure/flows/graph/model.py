"""A graph as values: its nodes by type and its edges, read from what a visual editor saves.

Rules kept here: everything that is wrong is found in one reading, each with its place; what editors keep for themselves
beside `data` (positions, sizes, styles) is passed over; inside `data` an unknown field is a mistake, because a typo
must not pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from perdure.core import jq
from perdure.errors import InvalidValue
from perdure.flows import listening
from perdure.flows.bound import Problem
from perdure.flows.listening import Listen, On
from perdure.flows.schema import Schema

Length: TypeAlias = str | int | float  # a duration, or an expression that gives one
JsonSchema: TypeAlias = dict[str, Any] | bool
#: Rounds of a loop that may be open at once.
MOST_ROUNDS = 1000
Count: TypeAlias = Annotated[int, Meta(ge=0)]
OnError: TypeAlias = Literal["", "fail", "continue", "handle", "compensate"]
#: Where there is no plain way on, there is nothing to continue with.
OnChoiceError: TypeAlias = Literal["", "fail", "handle", "compensate"]
Unit: TypeAlias = Literal["milliseconds", "seconds", "minutes", "hours", "days", "weeks"]


class Data(Struct, frozen=True, kw_only=True):
    """What a node of any type may have: words for people."""

    label: str = ""
    description: str = ""


class Trigger(Data, frozen=True, kw_only=True):
    event: str = ""
    source: str = ""
    when: str = ""
    input: str = ".data"
    schema: JsonSchema | None = None


class Act(Data, frozen=True, kw_only=True):
    action: str
    given: dict[str, Any] | list[Any] = field(name="with", default_factory=dict[str, Any])
    retries: Count | None = None
    timeout: Length | None = None
    on_error: OnError = field(name="onError", default="")


class Condition(Data, frozen=True, kw_only=True):
    when: str
    on_error: OnChoiceError = field(name="onError", default="")


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    handle: str
    equals: Any | UnsetType = UNSET
    when: str | UnsetType = UNSET


class Switch(Data, frozen=True, kw_only=True):
    cases: list[Case]
    value: Any = None
    on_error: OnChoiceError = field(name="onError", default="")


class Delay(Data, frozen=True, kw_only=True):
    duration: Length
    unit: Unit | None = None
    on_error: OnError = field(name="onError", default="")


class Assign(Data, frozen=True, kw_only=True):
    variables: dict[str, Any]
    on_error: OnError = field(name="onError", default="")


class Awaited(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    match: dict[str, Any] = {}
    schema: JsonSchema | None = None


class Declared(Struct, frozen=True, forbid_unknown_fields=True):
    """An event that the graph takes. Where any is declared, no other can be sent."""

    schema: JsonSchema | None = None
    description: str = ""


class Wait(Data, frozen=True, kw_only=True):
    events: list[Awaited]
    mode: Literal["all", "any"] | int = "all"
    timeout: Length | None = None
    on_error: OnError = field(name="onError", default="")


class Parallel(Data, frozen=True, kw_only=True):
    pass


class Join(Data, frozen=True, kw_only=True):
    mode: Literal["all", "any"] | int = "all"


class Loop(Data, frozen=True, kw_only=True):
    items: str | list[Any]
    name: str = field(name="as", default="item")
    mode: Literal["sequential", "parallel"] = "sequential"
    limit: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = 20
    on_error: OnError = field(name="onError", default="")


class Child(Data, frozen=True, kw_only=True):
    workflow: str
    version: int | None = None
    given: Any = field(name="with", default=None)
    on_error: OnError = field(name="onError", default="")


class Person(Data, frozen=True, kw_only=True):
    task: str
    form: JsonSchema | None = None
    roles: list[str] = []
    assign: str = ""
    given: Any = field(name="with", default=None)
    priority: int = 0
    event: str = ""
    timeout: Length | None = None
    on_error: OnError = field(name="onError", default="")


class End(Data, frozen=True, kw_only=True):
    result: Any | UnsetType = UNSET
    status: Literal["completed", "failed"] = "completed"
    message: str = ""
    stop: bool = False


TYPES: dict[str, type[Data]] = {
    "trigger": Trigger,
    "action": Act,
    "condition": Condition,
    "switch": Switch,
    "delay": Delay,
    "set": Assign,
    "wait": Wait,
    "parallel": Parallel,
    "join": Join,
    "loop": Loop,
    "child": Child,
    "person": Person,
    "end": End,
}
#: Types whose nodes stay open for a while without work of their own: at rest there is nothing but these.
RESTING = (Delay, Wait, Person)
_FIELDS = {"graph", "queue", "description", "variables", "metadata", "nodes", "edges", "viewport", "listens", "events"}
_PASSED = "remove it; what is your own goes into `metadata`"
#: Types of JSON Schema, in words.
_KINDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
#: Names that expressions see already.
TAKEN = {"trigger", "outputs", "variables", "metadata", "index", "execution"}
MOST_NODES, MOST_EDGES = 1_000, 5_000
MOST_METADATA = 16_384  # bytes
LONGEST_ID = 200


class Node(Struct, frozen=True):
    id: str
    type: str  # "" if it is not known
    data: Any = None  # of the class that TYPES names; None if it could not be read


class Edge(Struct, frozen=True):
    id: str
    source: str
    target: str
    handle: str = ""


class Model(Struct, frozen=True):
    """A graph as it was read; `problems` says what could not be read."""

    name: str
    queue: str
    description: str
    variables: dict[str, Any]
    metadata: dict[str, Any]
    nodes: dict[str, Node]
    edges: tuple[Edge, ...]
    problems: list[Problem]
    listens: tuple[Listen, ...] = ()
    events: dict[str, Declared] = {}

    @property
    def starts_on(self) -> tuple[On, ...]:
        """What its triggers say of the events that start it; the input names the trigger."""
        found = []
        for node in self.nodes.values():
            if isinstance(one := node.data, Trigger) and one.event:
                name = msgspec.json.encode(node.id).decode()
                input = f"{{trigger: {name}, payload: ({jq.expression(one.input)})}}"
                found.append(On(one.event, one.source, input, one.when))
        return tuple(found)


def read(body: Mapping[str, Any]) -> Model:
    """Read a graph; whatever is wrong is named in `problems`."""
    problems: list[Problem] = []
    for name in body.keys() - _FIELDS:
        problems.append(Problem(name, "is not a field of a graph and is passed over", _PASSED, "warning"))
    problems.sort(key=lambda one: one.where)
    name = _field(body, "graph", Annotated[str, Meta(min_length=1)], "", problems)
    queue = _field(body, "queue", str, "default", problems)
    nodes = _nodes(_field(body, "nodes", list[Any], [], problems), problems)
    listens, _, wrong = listening.read({"listens": body.get("listens", [])})
    problems += wrong
    return Model(
        name,
        queue,
        _field(body, "description", str, "", problems),
        _field(body, "variables", dict[str, Any], {}, problems),
        _metadata(_field(body, "metadata", dict[str, Any], {}, problems), problems),
        nodes,
        tuple(_edges(_field(body, "edges", list[Any], [], problems), nodes, problems)),
        problems,
        listens,
        _declared(_field(body, "events", dict[str, Declared], {}, problems), problems),
    )


def _declared(events: dict[str, Declared], problems: list[Problem]) -> dict[str, Declared]:
    for name, one in events.items():
        try:
            Schema(True if one.schema is None else one.schema)
        except InvalidValue as error:
            problems.append(Problem(f"events.{name}.schema", str(error), "mend the schema"))
    return events


def _field(body: Mapping[str, Any], name: str, kind: Any, default: Any, problems: list[Problem]) -> Any:
    if name not in body:
        if name in ("graph", "nodes"):
            problems.append(Problem(name, "is missing", 'a graph has at least {"graph": name, "nodes": […]}'))
        return default
    try:
        return msgspec.convert(body[name], kind)
    except msgspec.ValidationError as error:
        problems.append(Problem(name, str(error), wanted(kind)))
        return default


def _metadata(found: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """It is shown with every execution, whenever that comes to rest."""
    size = len(msgspec.json.encode(found))
    if size > MOST_METADATA:
        problems.append(Problem("metadata", f"has {size:,} bytes", f"keep it below {MOST_METADATA:,}"))
    return found


def wanted(kind: Any) -> str:
    """How to mend a value that is not of this type.

    >>> wanted(Literal["all", "any"] | int)
    'write one of all, any, or a whole number'
    """
    schema = msgspec.json.schema(kind)
    kinds = schema.get("$defs", {})
    return f"write {', or '.join(_words(one, kinds) for one in schema.get('anyOf', [schema]))}"


def _words(schema: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _words(kinds[schema["$ref"].rpartition("/")[2]], kinds)
    if "enum" in schema:
        return f"one of {', '.join(str(one) for one in schema['enum'] if one != '')}"
    if schema.get("properties"):
        return f"an object that may have {', '.join(schema['properties'])}"
    if "$ref" in (items := schema.get("items") or {}):
        return f"a list, each of it {_words(items, kinds)}"
    return _KINDS.get(schema.get("type", ""), "a value")


def _nodes(raws: list[Any], problems: list[Problem]) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    if _too_many("nodes", raws, MOST_NODES, problems):
        return nodes
    for index, raw in enumerate(raws):
        id = raw.get("id") if isinstance(raw, dict) else None
        if not isinstance(id, str) or not id or len(id) > LONGEST_ID or any(sign in id for sign in "/[]"):
            where, fix = f"nodes[{index}]", f"give it an id: a text of up to {LONGEST_ID} characters without / [ ]"
            problems.append(Problem(where, f"has the id {id!r}" if id is not None else "has no id", fix))
        elif id in nodes:
            problems.append(Problem(f"nodes.{id}", "there are two nodes with this id", "give one of them another id"))
        else:
            nodes[id] = _node(id, raw, problems)
    return nodes


def _too_many(what: str, raws: list[Any], most: int, problems: list[Problem]) -> bool:
    if len(raws) > most:
        fix = "put parts of it into graphs of their own and call them as children"
        problems.append(Problem(what, f"there are {len(raws):,} of them, more than {most:,}", fix))
    return len(raws) > most


def _node(id: str, raw: dict[str, Any], problems: list[Problem]) -> Node:
    where = f"nodes.{id}"
    kind = raw.get("type")
    cls = TYPES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        problems.append(Problem(where, f"has the type {kind!r}", f"the types are: {', '.join(TYPES)}"))
        return Node(id, "")
    data = raw.get("data", {})
    if not isinstance(data, dict):
        problems.append(Problem(where, "data is not an object", wanted(cls)))
        return Node(id, str(kind))
    before = len(problems)
    values = _data(cls, data, where, problems)
    return Node(id, str(kind), None if len(problems) > before else cls(**values))


def _data(cls: type[Data], data: dict[str, Any], where: str, problems: list[Problem]) -> dict[str, Any]:
    """The fields of `data`, each read for itself, so that every mistake is found."""
    values: dict[str, Any] = {}
    known = {one.encode_name: one for one in msgspec.structs.fields(cls)}
    for name in data:
        if name not in known:
            problems.append(Problem(where, f"data has an unknown field {name!r}", f"it may have: {', '.join(known)}"))
    for name, one in known.items():
        if name not in data:
            if one.required:
                problems.append(Problem(where, f"data.{name} is missing", f"in its place {wanted(one.type)}"))
            continue
        try:
            values[one.name] = msgspec.convert(data[name], one.type)
        except msgspec.ValidationError as error:
            problems.append(Problem(f"{where}.{name}", str(error), wanted(one.type)))
    return values


def _edges(raws: list[Any], nodes: dict[str, Node], problems: list[Problem]) -> Iterable[Edge]:
    seen: set[str] = set()
    if _too_many("edges", raws, MOST_EDGES, problems):
        return
    for index, raw in enumerate(raws if nodes else ()):
        id = str(raw.get("id") or index) if isinstance(raw, dict) else str(index)
        where = f"edges.{id}"
        if not isinstance(raw, dict):
            fix = 'write {"source": the id of a node, "target": that of the next}'
            problems.append(Problem(where, "is not an object", fix))
            continue
        if id in seen:
            problems.append(Problem(where, "there are two edges with this id", "give one of them another id"))
        seen.add(id)
        ends = [raw.get(end) for end in ("source", "target")]
        unknown = [repr(end) for end in ends if not isinstance(end, str) or end not in nodes]
        if unknown:
            problems.append(Problem(where, f"there is no node {' and no node '.join(unknown)}", "remove the edge"))
        else:
            yield Edge(id, str(ends[0]), str(ends[1]), str(raw.get("sourceHandle") or ""))
