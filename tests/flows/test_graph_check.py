"""What is wrong with a graph is found before it runs: all of it, each with its place and how to mend it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from perdure import DefinitionInvalid, action, workflow
from perdure.flows.bound import Problem
from perdure.flows.diagram import mermaid
from perdure.flows.graph import Graph, actions, build, check as all_problems
from tests.flows.making import body


@action
async def c_charge(order: str, cents: int = 0) -> str:
    return order


@workflow
async def c_child(n: int) -> int:
    return n


PAUSE = ("delay", {"duration": 1})
NODE = "action", {"action": "c_charge", "with": {"order": "o"}}


def check(made: dict[str, Any]) -> list[Problem]:
    """All problems of a graph, each of which says how to mend it."""
    found = all_problems(made)
    assert [one for one in found if not one.fix] == []
    return found


def wrong(nodes: dict[str, Any], *ways: str, **more: Any) -> list[tuple[str, str]]:
    """Errors of a graph that begins with a trigger `start`, as places and words."""
    found = check(body("checked", {"start": "trigger", **nodes}, *ways, **more))
    return [(one.where, one.message) for one in found if one.level == "error"]


def one_wrong(nodes: dict[str, Any], *ways: str) -> tuple[str, str]:
    found = wrong(nodes, *ways)
    assert len(found) == 1, found
    return found[0]


def test_a_sound_graph_has_no_problems() -> None:
    nodes = {
        "start": ("trigger", {"event": "paid", "schema": {"type": "object"}, "label": "Paid"}),
        "charge": NODE,
        "ask": ("condition", {"when": ".outputs.charge == .trigger.id"}),
        "yes": ("end", {"result": "${ .outputs.charge }"}),
        "no": "end",
    }
    assert check(body("sound", nodes, "start > charge > ask:true > yes", "ask:false > no")) == []


def test_what_editors_keep_beside_data_is_passed_over() -> None:
    made = body("edited", {"start": "trigger", "end": "end"}, "start > end", viewport={"x": 1, "y": 2, "zoom": 1})
    for node in made["nodes"]:
        node |= {
            "position": {"x": 1, "y": 1},
            "measured": {"width": 4},
            "selected": True,
            "style": {},
            "parentId": None,
        }
    for edge in made["edges"]:
        edge |= {"animated": True, "label": "next", "markerEnd": {"type": "arrow"}, "type": "smoothstep"}
    assert check(made) == []


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (("action", {"action": "c_charge", "wiht": {}}), "data has an unknown field 'wiht'"),
        (("action", {}), "data.action is missing"),
        (("action", {"action": 5}), "Expected `str`, got `int`"),
        (("action", {"action": "c_charge", "with": {"order": "o"}, "retries": -1}), ">= 0"),
        (
            ("action", {"action": "c_charge", "with": {"order": "o"}, "onError": "ignore"}),
            "Invalid enum value 'ignore'",
        ),
        (("action", {"action": "c_charge", "with": {"order": "o"}, "timeout": "soon"}), "'soon' is not a duration"),
        (("action", {"action": "c_nothing"}), "this process has no action c_nothing"),
        (("action", {"action": "c_charge", "with": {}}), "missing a required argument: 'order'"),
        (("action", {"action": "c_charge", "with": {"order": "o", "price": 1}}), "unexpected keyword argument 'price'"),
        (("action", {"action": "c_charge", "with": {"order": "o", "cents": "many"}}), 'cents: "many" is not of type'),
        (("action", {"action": "c_charge", "with": ["o", 1, 2]}), "too many positional arguments"),
        (("action", {"action": "c_charge", "with": {"order": "${ .trigger. }"}}), "at /order: the expression"),
        (("condition", {"when": ".trigger >"}), "an expression is missing"),
        (("condition", {"when": "now > 5"}), "now"),
        (("condition", {"when": "true", "onError": "continue"}), "Invalid enum value 'continue'"),
        (("switch", {"cases": [{"handle": "a"}]}), "needs either equals or when"),
        (("switch", {"cases": [{"handle": "a", "equals": 1, "when": "true"}]}), "needs either equals or when"),
        (("switch", {"cases": [{"handle": "default", "equals": 1}]}), "a handle of its own"),
        (("switch", {"cases": [{"handle": "a", "is": 1}]}), "unknown field `is`"),
        (("delay", {"duration": "1 fortnight"}), "is not a duration"),
        (("delay", {"duration": "P1M"}), "has no fixed length"),
        (("delay", {"duration": "5", "unit": "hours"}), "'5' is not a number of hours"),
        (("delay", {"duration": 5, "unit": "months"}), "Invalid enum value 'months'"),
        (("delay", {"duration": -5}), "negative"),
        (("set", {"variables": [1]}), "Expected `object`, got `array`"),
        (("set", {"variables": {"x": "${ $x }"}}), "$x"),
        (("wait", {"events": []}), "there are no events"),
        (("wait", {"events": [{"name": "a"}], "mode": 2}), "mode 2 is not between 1 and 1"),
        (("wait", {"events": [{"name": "a"}], "mode": 0}), "mode 0 is not between 1 and 1"),
        (("wait", {"events": [{"name": "a", "schema": {"type": "text"}}]}), "not a JSON Schema"),
        (("person", {"task": "t", "form": {"required": "id"}}), "not a JSON Schema"),
        (("person", {"task": "t", "form": {"$ref": "https://example.org/form.json"}}), "not a JSON Schema"),
        (("person", {}), "data.task is missing"),
        (("child", {"workflow": "c_child", "version": "new"}), "Expected `int | null`, got `str`"),
        (("end", {"status": "lost"}), "Invalid enum value 'lost'"),
        (("robot", {}), "has the type 'robot'"),
        ((None, {}), "has the type None"),
        (("set", []), "data is not an object"),
        (("set", {"variables": {"x": "${ .outputs.nobody.a }"}}), "it refers to .outputs.nobody"),
        (("condition", {"when": "[1, (.outputs.nobody // 2)] | .outputs.fine"}), "it refers to .outputs.nobody"),
    ],
    ids=str,
)
def test_a_node_that_says_something_impossible(node: Any, message: str) -> None:
    where, found = one_wrong({"bad": node}, "start > bad")
    assert where.startswith("nodes.bad")
    assert message in found


@pytest.mark.parametrize(
    ("data", "fix"),
    [
        ({"onError": "ignore"}, "write one of compensate, continue, fail, handle"),
        ({"retries": -1}, "write a whole number, or null"),
        ({"timeout": "soon"}, "mend the data of this action"),
        ({"with": {"order": "${ .trigger. }"}}, "mend the expression"),
        ({"with": {"order": "o", "cents": "many"}}, "give cents a value that c_charge takes"),
    ],
)
def test_each_mistake_says_how_to_mend_it(data: dict[str, Any], fix: str) -> None:
    made = body("mended", {"start": "trigger", "bad": ("action", {**NODE[1], **data})}, "start > bad")
    [problem] = check(made)
    assert problem.fix == fix


def test_a_trigger_checks_its_schema() -> None:
    found = check(body("t", {"start": ("trigger", {"schema": {"type": 5}})}))
    assert ["not a JSON Schema" in one.message for one in found] == [True]


def test_a_loop_names_its_items_as_nothing_else_is_named() -> None:
    found = wrong({"each": ("loop", {"items": "[]", "as": "outputs"}), "a": NODE}, "start > each:each > a > each")
    assert found == [("nodes.each", "items cannot be called 'outputs'")]


def test_there_must_be_a_trigger() -> None:
    assert [one.message for one in check(body("none", {"end": "end"}))] == ["there is no trigger"]


def test_ids_are_there_and_unique_and_plain() -> None:
    made = body("ids", {"start": "trigger"})
    made["nodes"] += [{"id": "start", "type": "end"}, {"type": "end"}, {"id": "a/b", "type": "end"}, 7]
    assert [(one.where, one.message) for one in check(made)] == [
        ("nodes.start", "there are two nodes with this id"),
        ("nodes[2]", "has no id"),
        ("nodes[3]", "has the id 'a/b'"),
        ("nodes[4]", "has no id"),
    ]


def test_edges_lead_from_nodes_to_nodes() -> None:
    made = body("edges", {"start": "trigger", "end": "end"}, "start > end")
    made["edges"] += [{"id": "x", "source": "start", "target": "nowhere"}, {"id": "x", "source": 5}, "edge"]
    found = [(one.where, one.message) for one in check(made)]
    assert found == [
        ("edges.x", "there is no node 'nowhere'"),
        ("edges.x", "there are two edges with this id"),
        ("edges.x", "there is no node 5 and no node None"),
        ("edges.3", "is not an object"),
    ]


def test_a_graph_without_its_fields_says_which() -> None:
    assert [one.where for one in check({})] == ["graph", "nodes"]
    assert [one.where for one in check({"graph": "", "nodes": {}, "edges": 5, "queue": 1})] == [
        "graph",
        "queue",
        "nodes",
        "edges",
    ]


def test_an_unknown_field_of_the_graph_is_a_warning() -> None:
    [found] = check(body("typo", {"start": "trigger"}, varaibles={}))
    assert (found.where, found.level) == ("varaibles", "warning")


def test_nodes_that_no_trigger_leads_to() -> None:
    assert wrong({"a": NODE, "b": NODE}, "a > b") == [
        ("nodes.a", "no trigger leads here"),
        ("nodes.b", "no trigger leads here"),
    ]


def test_an_edge_to_a_trigger() -> None:
    where, message = one_wrong({"ask": ("condition", {"when": "true"})}, "start > ask:true > start")
    assert (where, message) == ("nodes.start", "an edge leads to a trigger")


def test_two_edges_from_one_handle_need_a_parallel_node() -> None:
    found = check(body("fork", {"start": "trigger", "a": NODE, "b": NODE}, "start > a", "start > b"))
    assert [(one.where, one.message, one.fix) for one in found] == [
        ("nodes.start", "2 edges leave it", "put a parallel node between")
    ]


@pytest.mark.parametrize(
    ("node", "way", "message"),
    [
        (NODE, "bad:true > end", "a node of type action has no handle 'true'"),
        (("condition", {"when": "true"}), "bad > end", "a node of type condition has no plain handle"),
        (
            ("switch", {"cases": [{"handle": "a", "equals": 1}]}),
            "bad:b > end",
            "a node of type switch has no handle 'b'",
        ),
        (("wait", {"events": [{"name": "a"}]}), "bad:timeout > end", "a node of type wait has no handle 'timeout'"),
        (("end", {}), "bad > end", "a node of type end has no plain handle"),
        ("join", "bad:error > end", "a node of type join has no handle 'error'"),
    ],
    ids=str,
)
def test_handles_that_a_type_does_not_have(node: Any, way: str, message: str) -> None:
    assert ("nodes.bad", message) in wrong({"bad": node, "end": "end"}, "start > bad", way)


def test_a_handle_without_an_edge_is_a_warning() -> None:
    made = body(
        "open", {"start": "trigger", "ask": ("condition", {"when": "true"}), "end": "end"}, "start > ask:true > end"
    )
    assert [(one.where, one.message, one.level) for one in check(made)] == [
        ("nodes.ask", "no edge leaves by 'false'", "warning")
    ]


def test_handling_an_error_needs_an_edge() -> None:
    bad = ("action", {"action": "c_charge", "with": {"order": "o"}, "onError": "handle"})
    assert one_wrong({"bad": bad}, "start > bad")[1] == 'onError is "handle", but no edge leaves by "error"'


def test_a_circle_without_a_way_out() -> None:
    assert one_wrong({"a": NODE, "b": PAUSE}, "start > a > b > a")[1] == "there is no way out of the circle of a, b"


def test_a_node_that_leads_to_itself_alone() -> None:
    assert one_wrong({"a": PAUSE}, "start > a > a")[1] == "there is no way out of the circle of a"


def test_a_circle_with_a_way_out_is_fine() -> None:
    ask = ("condition", {"when": "true"})
    assert wrong({"a": NODE, "ask": ask, "end": "end"}, "start > a > ask:false > a", "ask:true > end") == []
    assert wrong({"a": NODE, "ask": ask}, "start > a > ask:false > a") == []
    assert wrong({"a": NODE, "b": NODE}, "start > a > a", "a:error > b") == []


def test_branches_that_meet_without_a_join() -> None:
    found = wrong(
        {"p": "parallel", "a": NODE, "b": NODE, "c": NODE, "end": "end"}, "start > p > a > c > end", "p > b > c"
    )
    assert found == [("nodes.c", "branches that run at the same time meet here: it would run twice")]


def test_branches_that_share_an_end() -> None:
    [(where, _)] = wrong({"p": "parallel", "a": NODE, "b": NODE, "end": "end"}, "start > p > a > end", "p > b > end")
    assert where == "nodes.end"


def test_what_follows_a_join_of_some_meets_the_rest() -> None:
    nodes = {"p": "parallel", "a": NODE, "b": NODE, "c": NODE, "ab": "join", "d": NODE}
    [(where, _)] = wrong(nodes, "start > p > a > ab > d", "p > b > ab", "p > c > d")
    assert where == "nodes.d"


def test_branches_with_ends_of_their_own_are_fine() -> None:
    assert (
        wrong({"p": "parallel", "a": NODE, "b": NODE, "e": "end", "f": "end"}, "start > p > a > e", "p > b > f") == []
    )


def test_ways_of_a_condition_may_meet_without_a_join() -> None:
    nodes = {"ask": ("condition", {"when": "true"}), "a": NODE, "b": NODE, "c": NODE}
    assert wrong(nodes, "start > ask:true > a > c", "ask:false > b > c") == []


def test_a_join_of_what_was_never_split() -> None:
    nodes = {"ask": ("condition", {"when": "true"}), "a": NODE, "join": "join"}
    where, message = one_wrong(nodes, "start > ask:true > a > join", "ask:false > join")
    assert (where, message) == ("nodes.join", "no parallel node splits what is joined here")


@pytest.mark.parametrize("mode", [0, 3])
def test_a_join_of_more_than_there_are(mode: int) -> None:
    nodes = {"p": "parallel", "a": NODE, "b": NODE, "join": ("join", {"mode": mode})}
    [(_, message)] = wrong(nodes, "start > p > a > join", "p > b > join")
    assert message == f"mode {mode} is not between 1 and 2, the number of its branches"


def test_a_loop_without_a_body() -> None:
    assert one_wrong({"each": ("loop", {"items": "[]"})}, "start > each")[1] == "no edge leaves by 'each'"


def test_a_body_that_leads_out_of_its_loop() -> None:
    nodes = {"each": ("loop", {"items": "[]"}), "a": NODE, "after": NODE}
    where, message = one_wrong(nodes, "start > each:each > a > after", "each:done > after")
    assert (where, message) == ("nodes.after", "the body of loop each leads here, and so do others")


def test_loops_nest_only_so_deep() -> None:
    names = [f"l{number}" for number in range(25)]
    loops = {name: ("loop", {"items": "[1]"}) for name in names}
    found = wrong({**loops, "a": NODE}, "start > l0", *(f"{one}:each > {two}" for one, two in pairwise([*names, "a"])))
    assert found == [("nodes.l20", "it is within 20 other loops")]


def test_a_split_in_a_body_joins_in_the_body() -> None:
    nodes = {"each": ("loop", {"items": "[]"}), "p": "parallel", "a": NODE, "b": NODE, "join": "join"}
    assert wrong(nodes, "start > each:each > p > a > join > each", "p > b > join") == []


def test_a_child_that_is_not_here_is_a_warning() -> None:
    made = body(
        "c",
        {"start": "trigger", "a": ("child", {"workflow": "c_child"}), "b": ("child", {"workflow": "c_later"})},
        "start > a > b",
    )
    assert [(one.where, one.level) for one in check(made)] == [("nodes.b", "warning")]


def test_everything_is_found_at_once_and_said_in_one_error() -> None:
    nodes = {
        "start": "trigger",
        "a": ("action", {"action": "c_nothing"}),
        "b": ("delay", {"duration": "soon"}),
        "c": "what",
    }
    with pytest.raises(DefinitionInvalid) as caught:
        Graph(body("all_wrong", nodes, "start > a > b"))
    assert [one.where for one in caught.value.problems] == ["nodes.c", "nodes.a", "nodes.b", "nodes.c"]
    assert "graph all_wrong has 4 mistakes" in str(caught.value)


def test_the_actions_of_a_graph_are_known_by_name() -> None:
    assert actions(body("acts", {"start": "trigger", "a": NODE, "b": NODE}, "start > a > b")) == ["c_charge"]


def test_a_published_graph_needs_no_code_for_what_is_bound() -> None:
    nodes = {"start": "trigger", "a": ("action", {"action": "c_charge", "with": {"order": "o"}})}
    bounds = build(body("bound", nodes, "start > a"), version=1).bounds
    assert bounds["c_charge"].parameters == ("order", "cents")
    other = body(
        "bound", {"start": "trigger", "a": ("action", {"action": "c_elsewhere", "with": {"x": 1}})}, "start > a"
    )
    assert build(other, version=2, hash="h", bounds={"c_elsewhere": bounds["c_charge"]}).hash == "h"


def test_a_changed_graph_has_another_fingerprint() -> None:
    one = build(body("f", {"start": "trigger"}), version=1)
    two = build(body("f", {"start": "trigger", "end": "end"}, "start > end"), version=1)
    assert one.fingerprint != two.fingerprint


def test_a_graph_is_drawn_with_its_loops_as_frames_and_what_is_open() -> None:
    nodes = {"start": "trigger", "each": ("loop", {"items": "[1]"}), "a": NODE, "end": ("end", {"label": "Done"})}
    made = build(body("drawn", nodes, "start > each:each > a > each", "each:done > end"), version=1)
    diagram = made.diagram({"each": "current", "each[0]/a": "done"})
    marks = {box.id: (box.shape, box.inside, box.mark) for box in diagram.boxes}
    assert marks["a"] == ("box", "each", "done") and marks["each"] == ("loop", None, "current")
    assert [(arrow.source, arrow.target, arrow.label) for arrow in diagram.arrows][1] == ("each", "a", "each")
    assert "flowchart TD" in mermaid(diagram)
