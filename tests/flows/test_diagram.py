"""Diagrams: what may be built, what Mermaid text says, and that pictures are sound whatever the diagram is."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import get_args
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given, settings, strategies as st

from perdure.errors import UsageError
from perdure.flows.diagram import Arrow, Box, Diagram, Mark, Shape, level, mermaid, svg
from perdure.flows.diagram.layout import Layout, lay_out
from perdure.flows.diagram.ranks import ranks
from perdure.flows.diagram.shapes import heading, label_size
from perdure.flows.diagram.style import STYLE

SVG = "{http://www.w3.org/2000/svg}"
NASTY = [
    'a"b', "end", "a --> b", "%% note", '%%{init: {"theme":"dark"}}%%', "x; y", "{x}", "[*]", "a\nb", "\r\nend\n", "😀",
    "שלום", "\u202eevil", "\ud800", "\x00", "\ufffe", "|", "`code`", "<script>", "#quot;", "&amp;", "]]>",
    "style a fill:#f00;", "direction LR", "---", "::: x", "\\n", "", "  ", "x" * 300, "long words " * 30, "漢字" * 40,
]  # fmt: skip

#: Marks that would make the text after them run backwards.
TURNING = set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

names = st.sampled_from(NASTY) | st.text(max_size=12)


@st.composite
def diagrams(draw: st.DrawFn) -> Diagram:
    ids = draw(st.lists(names, max_size=14, unique=True))
    boxes: list[Box] = []
    for number, id in enumerate(ids):
        inside = draw(st.none() | st.sampled_from(ids[:number])) if number else None
        shape, mark = draw(st.sampled_from(get_args(Shape))), draw(st.sampled_from(get_args(Mark)))
        boxes.append(Box(id, draw(st.just("") | names), shape, inside, mark, draw(st.just("") | names)))
    order = draw(st.permutations(boxes))
    if not ids:
        return Diagram("flow", draw(names), (), ())
    arrow = st.builds(
        Arrow, st.sampled_from(ids), st.sampled_from(ids), st.just("") | names, st.sampled_from(get_args(Mark))
    )
    arrows = draw(st.lists(arrow, max_size=25))
    return Diagram(draw(st.sampled_from(["state", "flow"])), draw(names), tuple(order), tuple(arrows))


def order_machine() -> Diagram:
    return Diagram(
        "state",
        "order@1",
        (
            Box("begin", shape="start"),
            Box("draft", mark="done"),
            Box("fulfil", "Fulfilment", mark="current"),
            Box("first", shape="start", inside="fulfil"),
            Box("reserve", inside="fulfil", mark="current", note="after 24h → escalate"),
            Box("ship", "Shipping", inside="fulfil"),
            Box("pack", inside="ship"),
            Box("sent", inside="ship"),
            Box("last", shape="end", inside="ship"),
            Box("cancelled", "cancelled", shape="end"),
            Box("end", shape="end"),
        ),
        (
            Arrow("begin", "draft"),
            Arrow("draft", "fulfil", "submit [valid]"),
            Arrow("draft", "draft", "edit"),
            Arrow("first", "reserve"),
            Arrow("reserve", "ship", "reserved"),
            Arrow("reserve", "fulfil", "start over"),
            Arrow("pack", "sent", "packed"),
            Arrow("sent", "last"),
            Arrow("reserve", "cancelled", "out of stock"),
            Arrow("fulfil", "end"),
        ),
    )


def parcel_flow() -> Diagram:
    return Diagram(
        "flow",
        "send parcels",
        (
            Box("start", shape="start"),
            Box("check", "Check stock", mark="done"),
            Box("ok", "in stock?", shape="choice"),
            Box("both", shape="split"),
            Box("charge", "Charge the card", note="3 tries"),
            Box("reserve"),
            Box("met", shape="join"),
            Box("each", "for each parcel", shape="loop"),
            Box("label", "Print label", inside="each", shape="child"),
            Box("pick-up", "Picked up", inside="each", shape="wait", mark="current"),
            Box("pick up", "Call the carrier", inside="each", shape="person"),
            Box("sold out", "Sold out", shape="end"),
            Box("end", shape="end"),
        ),
        (
            Arrow("start", "check"),
            Arrow("check", "ok", mark="done"),
            Arrow("ok", "both", "yes"),
            Arrow("ok", "sold out", "no"),
            Arrow("both", "charge"),
            Arrow("both", "reserve"),
            Arrow("charge", "met"),
            Arrow("reserve", "met"),
            Arrow("met", "each"),
            Arrow("label", "pick-up"),
            Arrow("pick-up", "pick up", "after 3 days"),
            Arrow("pick up", "pick-up"),
            Arrow("each", "end"),
        ),
    )


# --- what may be built ---


@pytest.mark.parametrize(
    ("boxes", "arrows", "culprit"),
    [
        ((Box("a"), Box("b"), Box("a")), (), "'a'"),
        ((Box("a"), Box("b", inside="nowhere")), (), "'nowhere'"),
        ((Box("a"),), (Arrow("a", "b"),), "'b'"),
        ((Box("b"),), (Arrow("a", "b"),), "'a'"),
        ((Box("a", inside="a"),), (), "'a' is inside itself"),
        ((Box("a", inside="c"), Box("b", inside="a"), Box("c", inside="b")), (), "inside itself"),
    ],
)
def test_a_diagram_that_cannot_be_is_refused_with_the_name_of_the_culprit(
    boxes: tuple[Box, ...], arrows: tuple[Arrow, ...], culprit: str
) -> None:
    with pytest.raises(UsageError, match=culprit) as caught:
        Diagram("flow", "parcels", boxes, arrows)

    assert "'parcels'" in str(caught.value)


# --- Mermaid ---


def test_a_nested_state_machine_as_mermaid() -> None:
    expected = """\
---
title: "order@1"
---
stateDiagram-v2
  state "draft" as b_draft
  state "Fulfilment" as b_fulfil {
    state "Fulfilment" as b_fulfil_itself
    state "reserve<br/>after 24h → escalate" as b_reserve
    state "Shipping" as b_ship {
      state "pack" as b_pack
      state "sent" as b_sent
      b_pack --> b_sent : packed
      b_sent --> [*]
    }
    [*] --> b_reserve
    b_reserve --> b_ship : reserved
  }
  state "cancelled" as b_cancelled
  b_cancelled --> [*]
  [*] --> b_draft
  b_draft --> b_fulfil : submit #91;valid#93;
  b_draft --> b_draft : edit
  b_reserve --> b_fulfil_itself : start over
  b_reserve --> b_cancelled : out of stock
  b_fulfil --> [*]
  classDef current fill:#dceaff,stroke:#1f6feb,stroke-width:3px,color:#1d2530
  class b_fulfil,b_reserve current
  classDef done fill:#e9f7ec,stroke:#2f8f4e,stroke-width:2px,color:#1d2530
  class b_draft done
"""

    assert mermaid(order_machine()) == expected


def test_a_flow_as_mermaid() -> None:
    expected = """\
---
title: "send parcels"
---
flowchart TD
  b_start((" "))
  b_check["Check stock"]
  b_ok{"in stock?"}
  b_both[" "]
  b_charge["Charge the card<br/>3 tries"]
  b_reserve["reserve"]
  b_met[" "]
  subgraph b_each ["for each parcel"]
    b_label[["Print label"]]
    b_pick_up{{"Picked up"}}
    b_pick_up_2[/"Call the carrier"/]
  end
  b_sold_out(["Sold out"])
  b_end(((" ")))
  b_start --> b_check
  b_check --> b_ok
  b_ok -->|"yes"| b_both
  b_ok -->|"no"| b_sold_out
  b_both --> b_charge
  b_both --> b_reserve
  b_charge --> b_met
  b_reserve --> b_met
  b_met --> b_each
  b_label --> b_pick_up
  b_pick_up -->|"after 3 days"| b_pick_up_2
  b_pick_up_2 --> b_pick_up
  b_each --> b_end
  classDef current fill:#dceaff,stroke:#1f6feb,stroke-width:3px,color:#1d2530
  class b_pick_up current
  classDef done fill:#e9f7ec,stroke:#2f8f4e,stroke-width:2px,color:#1d2530
  class b_check done
  classDef solid fill:#4a5568,stroke:#4a5568,color:#ffffff
  class b_start,b_both,b_met solid
  linkStyle 1 stroke:#2f8f4e,stroke-width:3px
"""

    assert mermaid(parcel_flow()) == expected


STATE_LINES = re.compile(
    r"""stateDiagram-v2
    |state\ "[^"\n]+"\ as\ b_\w*(\ \{)?
    |state\ b_\w*\ <<(choice|fork|join)>>
    |\}
    |(b_\w*|\[\*\])\ -->\ (b_\w*|\[\*\])(\ :\ [^:;"\n]+(;[^:;"\n]*)*)?
    |classDef\ \w+\ [\w:\#,-]+
    |class\ b_\w*(,b_\w*)*\ \w+""",
    re.VERBOSE,
)
FLOW_LINES = re.compile(
    r"""flowchart\ TD
    |subgraph\ b_\w*\ \["[^"\n]+"\]
    |end
    |b_\w*(\[|\(\[|\{|\{\{|\[/|\(|\[\[|\(\(|\(\(\()"[^"\n]+"(\]|\]\)|\}|\}\}|/\]|\)|\]\]|\)\)|\)\)\))
    |b_\w*\ -->(\|"[^"\n]+"\|)?\ b_\w*
    |classDef\ \w+\ [\w:\#,-]+
    |class\ b_\w*(,b_\w*)*\ \w+
    |linkStyle\ \d+\ [\w:\#,-]+""",
    re.VERBOSE,
)


@settings(max_examples=150, deadline=None)
@given(diagrams())
def test_no_name_breaks_out_of_mermaid(diagram: Diagram) -> None:
    text = mermaid(diagram)

    text.encode()
    assert not TURNING & set(text)
    lines = text.removesuffix("\n").split("\n")
    if lines[0] == "---":
        assert re.fullmatch(r'title: "([^"\\]|\\.)*"', lines[1])
        assert lines[2] == "---"
        lines = lines[3:]
    allowed = STATE_LINES if diagram.kind == "state" else FLOW_LINES
    for line in lines:
        assert allowed.fullmatch(line.strip(" ")), line
        for quoted in re.findall(r'"([^"]*)"', line):
            assert not re.search(r"[\[\]{}|;`\\%<>\"]|--|direction [A-Z]", re.sub(r"#\d+;|<br/>", "", quoted)), line


def test_ids_that_look_alike_stay_apart_in_mermaid() -> None:
    text = mermaid(Diagram("flow", "", (Box("a b"), Box("a-b"), Box("a_b_2"), Box("a/b")), (Arrow("a/b", "a-b"),)))

    assert re.findall(r"^  (\w+)\[", text, re.MULTILINE) == ["b_a_b", "b_a_b_2", "b_a_b_2_2", "b_a_b_3"]
    assert "  b_a_b_3 --> b_a_b_2\n" in text


def test_what_stands_for_a_frame_in_mermaid_has_a_name_of_its_own() -> None:
    boxes = (Box("shop"), Box("shop itself", inside="shop"))
    text = mermaid(Diagram("state", "", boxes, (Arrow("shop", "shop itself"),)))

    assert "  b_shop_itself_2 --> b_shop_itself\n" in text


# --- where things are ---


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Whether two rectangles (left, top, right, bottom) share more than a border."""
    return a[0] < b[2] - 0.5 and b[0] < a[2] - 0.5 and a[1] < b[3] - 0.5 and b[1] < a[3] - 0.5


def rectangles(diagram: Diagram, layout: Layout) -> dict[str, tuple[float, float, float, float]]:
    return {
        box.id: (at.x, at.y, at.x + at.figure.width, at.y + at.figure.height)
        for box, at in zip(diagram.boxes, layout.boxes)
    }


def titles(diagram: Diagram, layout: Layout) -> list[tuple[float, float, float, float]]:
    found = []
    for box, at in zip(diagram.boxes, layout.boxes):
        if at.figure.form == "frame":
            _, _, width, height = heading(box)
            found.append((at.x + 16, at.y + 8, at.x + 16 + width, at.y + 8 + height))
    return found


def labels(layout: Layout) -> list[tuple[float, float, float, float]]:
    found = []
    for route in layout.routes:
        if route.label is not None:
            (x, y), (width, height) = route.label, label_size(route.words)
            found.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    return found


def along(stroke: tuple[tuple[float, float], ...]) -> Iterator[tuple[float, float]]:
    """Points of a stroke as it is drawn: straight up and down, and bends with vertical ends."""
    for (x, y), (to_x, to_y) in pairwise(stroke):
        for step in range(17):
            t = step / 16
            share = 3 * t * t - 2 * t**3
            middle = (y + to_y) / 2
            yield (
                x + (to_x - x) * share,
                (1 - t) ** 3 * y + 3 * t * (1 - t) * middle + t**3 * to_y,
            )


def check_boxes(diagram: Diagram) -> None:
    layout = lay_out(diagram)
    where = rectangles(diagram, layout)

    by_frame: dict[str | None, list[str]] = {}
    for box in diagram.boxes:
        by_frame.setdefault(box.inside, []).append(box.id)
        left, top, right, bottom = where[box.inside] if box.inside is not None else (0, 0, layout.width, layout.height)
        inner = where[box.id]
        assert left < inner[0] and top < inner[1] and inner[2] < right and inner[3] < bottom
    for siblings in by_frame.values():
        for a, b in combinations(siblings, 2):
            assert not overlap(where[a], where[b])


def check_labels(diagram: Diagram) -> None:
    layout = lay_out(diagram)
    where = rectangles(diagram, layout)
    frames = diagram.frames()

    shown = labels(layout)
    for label in shown:
        assert label[0] >= 0 and label[1] >= 0 and label[2] <= layout.width and label[3] <= layout.height
        assert not any(overlap(label, where[box.id]) for box in diagram.boxes if box.id not in frames)
    assert not any(overlap(a, b) for a, b in combinations(shown, 2))


def check_arrows(diagram: Diagram) -> None:
    layout = lay_out(diagram)
    where = rectangles(diagram, layout)
    around = {box.id: box.inside for box in diagram.boxes}
    titles_shown = titles(diagram, layout)
    frames = diagram.frames()

    for arrow, route in zip(diagram.arrows, layout.routes):
        for end, (x, y) in ((arrow.source, route.strokes[0][0]), (arrow.target, route.strokes[-1][-1])):
            left, top, right, bottom = where[end]
            assert left - 1 <= x <= right + 1 and top - 1 <= y <= bottom + 1
            assert end not in frames or route.loop or min(abs(y - top), abs(y - bottom)) < 0.1
        if route.loop:
            continue
        heights = [y for stroke in route.strokes for _, y in stroke]
        assert heights in (sorted(heights), sorted(heights, reverse=True))
        mine: set[str | None] = {arrow.source, arrow.target}
        for end in (arrow.source, arrow.target):
            at: str | None = end
            while at is not None:
                mine.add(at)
                at = around[at]
        for x, y in (point for stroke in route.strokes for point in along(stroke)):
            inside = [
                id for id, (left, top, right, bottom) in where.items()
                if left + 1 < x < right - 1 and top + 1 < y < bottom - 1
            ]  # fmt: skip
            assert mine.issuperset(inside)
            assert not any(left < x < right and top < y < bottom for left, top, right, bottom in titles_shown)


@settings(max_examples=150, deadline=None)
@given(diagrams())
def test_siblings_never_overlap_and_children_are_within_their_frame(diagram: Diagram) -> None:
    check_boxes(diagram)


@settings(max_examples=150, deadline=None)
@given(diagrams())
def test_labels_lie_on_no_box_and_on_no_other_label(diagram: Diagram) -> None:
    check_labels(diagram)


@settings(max_examples=150, deadline=None)
@given(diagrams())
def test_arrows_join_their_boxes_and_cross_no_other_and_no_title(diagram: Diagram) -> None:
    check_arrows(diagram)


def test_lines_that_are_too_long_to_be_threaded_through_are_led_around(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"box {number}" for number in range(12)]
    boxes = tuple(Box(id, "", "split", "frame" if number > 7 else None) for number, id in enumerate(ids))
    chain = [Arrow(a, b) for a, b in pairwise(ids[1:])]
    far = [Arrow(ids[a], ids[b], "a label of two lines, if not of three") for a, b in combinations(range(0, 12, 2), 2)]
    diagram = Diagram("flow", "far", (*boxes, Box("frame")), (*chain, *far, *(Arrow(a.target, a.source) for a in far)))
    threaded = lay_out(diagram)

    for limit in (0, 5, 30):
        monkeypatch.setattr(level, "BENDS", limit)

        assert lay_out(diagram) != threaded
        check_boxes(diagram)
        check_labels(diagram)
        check_arrows(diagram)


def test_a_two_way_pair_is_drawn_apart() -> None:
    layout = lay_out(Diagram("state", "", (Box("a"), Box("b")), (Arrow("a", "b"), Arrow("b", "a"))))

    down, up = (route.strokes[0] for route in layout.routes)
    assert down[0][1] < down[-1][1] and up[0][1] > up[-1][1]
    assert all(abs(a - b) >= 10 for a, _ in down for b, _ in up)


def test_a_chain_is_straight_and_leads_down() -> None:
    boxes = tuple(Box(f"step {number}", "x" * number) for number in range(1, 9))
    arrows = tuple(Arrow(a.id, b.id) for a, b in pairwise(boxes))

    layout = lay_out(Diagram("flow", "", boxes, arrows))

    assert len({x for route in layout.routes for stroke in route.strokes for x, _ in stroke}) == 1
    assert [at.y for at in layout.boxes] == sorted(at.y for at in layout.boxes)


def test_a_way_back_leads_up_and_the_first_box_stays_on_top() -> None:
    boxes = (Box("draft"), Box("review"), Box("shop"), Box("pay", inside="shop"))
    arrows = (Arrow("draft", "review"), Arrow("review", "pay"), Arrow("pay", "draft"))

    layout = lay_out(Diagram("state", "", boxes, arrows))

    where = [at.y for at in layout.boxes]
    assert where[0] < where[1] < where[2] < where[3]
    back = layout.routes[2].strokes
    assert back[0][0][1] > back[-1][-1][1]


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_ranks_lead_down_and_the_edges_are_as_short_as_can_be(count: int, pairs: list[tuple[int, int]]) -> None:
    edges = [(a, b) for a, b in pairs if a < b < count]

    def length(rank: Sequence[int]) -> int:
        return sum(rank[b] - rank[a] for a, b in edges)

    found = ranks(count, edges)

    assert all(found[a] < found[b] for a, b in edges)
    sound = (rank for rank in product(range(count), repeat=count) if all(rank[a] < rank[b] for a, b in edges))
    assert length(found) == min(map(length, sound))


def test_a_long_line_bends_only_at_its_ends() -> None:
    ways = ("cd", "bc", "be", "ac", "de", "ad", "ae")
    layout = lay_out(Diagram("flow", "", tuple(map(Box, "abcde")), tuple(Arrow(*way) for way in ways)))

    # The first two and the last two points belong to the boxes, what is between them to the layers passed.
    passed = [{x for x, _ in route.strokes[0][2:-2]} for route in layout.routes]
    assert max(len(places) for places in passed) == 1


# --- SVG ---


@settings(max_examples=150, deadline=None)
@given(diagrams())
@example(Diagram("flow", "", (), ()))
def test_every_picture_is_xml_with_a_path_for_every_arrow_and_refers_to_nothing(diagram: Diagram) -> None:
    text = svg(diagram)

    root = ET.fromstring(text.encode())
    assert not TURNING & set(text)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "style", "g", "rect", "circle", "polygon", "path", "text",
    }  # fmt: skip
    lines = [path for path in root.iter(f"{SVG}path") if "line" in path.get("class", "").split()]
    icons = sum(box.shape == "loop" for box in diagram.boxes)
    assert len(lines) == len(diagram.arrows) + icons
    assert all(re.fullmatch(r"M[-\d. MCVA]+", path.get("d", "")) for path in lines)
    assert not re.search(r"href|url\(|@import|\bon\w+=", re.sub(r">[^<]*<", "><", text))


@settings(max_examples=60, deadline=None)
@given(diagrams())
def test_the_same_diagram_gives_the_same_text(diagram: Diagram) -> None:
    again = Diagram(diagram.kind, diagram.title, diagram.boxes, diagram.arrows)

    assert svg(again) == svg(diagram)
    assert mermaid(again) == mermaid(diagram)


def test_a_script_in_a_name_is_text() -> None:
    evil = "<script>alert('x')</script>\"&"
    text = svg(Diagram("flow", evil, (Box(evil, note=evil), Box("b", evil)), (Arrow(evil, "b", evil),)))

    assert "<script" not in text
    root = ET.fromstring(text)
    assert evil in [title.text for title in root.iter(f"{SVG}title")]


def test_what_does_not_fit_ends_in_an_ellipsis_and_is_whole_in_the_tooltip() -> None:
    label = "one " * 100 + "and the end"
    root = ET.fromstring(svg(Diagram("flow", "", (Box("a", label),), ())))

    assert "".join(text.text or "" for text in root.iter(f"{SVG}text")).endswith("…")
    assert any(title.text == label for title in root.iter(f"{SVG}title"))


def test_marks_are_told_by_a_sign_and_in_words() -> None:
    boxes = (Box("a", mark="done"), Box("b", mark="current"), Box("c", mark="failed"), Box("d"))
    root = ET.fromstring(svg(Diagram("state", "marks", boxes, ())))

    signs = [path for path in root.iter(f"{SVG}path") if path.get("class") == "sign"]
    assert len({(path.get("d") or "").split("m", 1)[1] for path in signs}) == 3
    described = root.findtext(f"{SVG}desc") or ""
    assert "Current: b. Done: a. Failed: c." in described


def test_two_pictures_in_one_page_share_no_id_and_no_rule_leaves_them() -> None:
    ids = [re.findall(r'\bid="([^"]+)"', svg(Diagram("flow", "", (Box("a", mark=mark),), ()))) for mark in ("", "done")]

    assert len({*ids[0], *ids[1]}) == 4
    selectors = re.findall(r"(?:^|[{}])([^{}@]+)\{", STYLE.replace("@media(prefers-color-scheme:dark){", ""))
    assert all(one.startswith(".perdure-diagram ") for selector in selectors for one in selector.split(","))


def test_both_colour_schemes_set_the_same_colours() -> None:
    light, dark = STYLE.split("@media(prefers-color-scheme:dark){")

    assert set(re.findall(r"(\.perdure-diagram [^{},]+)\{(?:fill|stroke):#", light)) == set(
        re.findall(r"(\.perdure-diagram [^{},]+)\{(?:fill|stroke):#", dark)
    )


@pytest.mark.parametrize("kind", ["chain with far arrows", "at random", "one to all", "nested"])
def test_a_thousand_boxes_are_drawn_in_time(kind: str) -> None:
    chance = random.Random(kind)
    ids = [f"box {number}" for number in range(1_000)]
    anywhere = tuple(Arrow(chance.choice(ids), chance.choice(ids), "event") for _ in ids)
    match kind:
        case "one to all":
            diagram = Diagram("flow", kind, tuple(map(Box, ids)), tuple(Arrow(ids[0], id, "go") for id in ids))
        case "nested":
            boxes = (Box(id, inside=ids[(number - 1) // 3] if number else None) for number, id in enumerate(ids))
            diagram = Diagram("state", kind, tuple(boxes), anywhere)
        case "at random":
            diagram = Diagram("flow", kind, tuple(map(Box, ids)), anywhere * 2)
        case _:
            chain = tuple(Arrow(a, b) for a, b in pairwise(ids))
            diagram = Diagram("flow", kind, tuple(map(Box, ids)), chain + anywhere)

    started = time.process_time()
    text = svg(diagram)

    assert time.process_time() - started < 5
    assert text.count('<path class="tip"') >= len(diagram.arrows)
