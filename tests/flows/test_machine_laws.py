"""Machines against a model of ten lines, and with a crash at every point."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure import Do, Machine, State, To, action
from perdure.core import events as ev
from perdure.core.records import Row
from perdure.core.replay import Replay
from perdure.flows.registry import registry
from perdure.testing import World
from tests.corpus.drive import evict, newest_checkpoint, replay_of, settle_outputs
from tests.flows.test_machine import failing, nested, parallel

SEEDS = 150


@action(name="machine.plus")
def plus(total: int, n: int) -> int:
    return (total * 3 + n) % 1000


# --- random machines -------------------------------------------------------------------------------------------------
#
# A rule is (event, target or "", the remainder by 3 that the total must have or None, what is added). A state has
# rules, what its entry adds or None, and perhaps states inside it, of which the first is the initial one.


def draw(dice: random.Random, path: str, depth: int) -> dict[str, Any]:
    return {
        "rules": [],
        "entry": dice.choice([None, None, dice.randrange(10)]),
        "inside": {
            f"{path}{name}": draw(dice, f"{path}{name}", depth - 1) for name in ("x", "y", "z")[: dice.randrange(1, 4)]
        }
        if depth and (depth > 1 or dice.random() < 0.4)
        else {},
    }


def every(spec: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    found = {path: spec}
    for name, one in spec["inside"].items():
        found |= every(one, f"{path}.{name}" if path else name)
    return found


def drawn(seed: int) -> dict[str, Any]:
    dice = random.Random(seed)
    root = draw(dice, "", 3)
    root["entry"] = None
    states = every(root)
    for spec in states.values():
        for event in "pqrs":
            for _ in range(dice.choice([0, 0, 1, 2])):
                target = dice.choice(["", *[path for path in states if path]])
                spec["rules"].append((event, target, dice.choice([None, 0, 1, 2]), dice.randrange(10)))
    return root


def made(root: dict[str, Any], name: str) -> Machine[dict[str, int]]:
    def state(spec: dict[str, Any]) -> State:
        on: dict[str, list[To]] = {}
        for event, target, remainder, n in spec["rules"]:
            on.setdefault(event, []).append(
                To(
                    target,
                    when=None if remainder is None else lambda data, event, r=remainder: data["total"] % 3 == r,
                    set=lambda data, event, n=n: {"total": (data["total"] * 3 + n) % 1000},
                )
            )
        entry = spec["entry"]
        return State(
            on=on,
            entry=[]
            if entry is None
            else [
                Do(
                    plus,
                    lambda data, event, n=entry: (data["total"], n),
                    set=lambda data, result: {"total": result},
                )
            ],
            initial=next(iter(spec["inside"]), ""),
            states={name: state(one) for name, one in spec["inside"].items()},
        )

    top = state(root)
    # States that nobody reaches are a mistake; here one event reaches them all.
    reach = {f"to {path}": To(path) for path in every(root) if path}
    return Machine(name, initial=top.initial, states=top.states, on={**top.on, **reach})


def model(root: dict[str, Any], events: list[str]) -> tuple[str, int, list[str]]:
    """The ten lines: where a machine is after these events, its total, and which events it refused."""
    states, at, total, refused = every(root), "", 0, []
    rules = [(None, next(iter(root["inside"])), None, None, "")]  # how it begins
    for event in [None, *events]:
        line = (
            [""]
            if event is None
            else [at.rsplit(".", n)[0] if n <= at.count(".") else "" for n in range(at.count(".") + 2)]
        )
        found = [
            (*rule, path)
            for path in line
            for rule in (rules if event is None else states[path]["rules"])
            if rule[0] == event
        ]
        hit = next((rule for rule in found if rule[2] is None or total % 3 == rule[2]), None)
        if hit is None:
            refused.append(event or "")
            continue
        total = total if hit[3] is None else (total * 3 + hit[3]) % 1000
        if hit[1]:
            goal, source = hit[1], hit[-1]
            while states[goal]["inside"]:
                goal += f".{next(iter(states[goal]['inside']))}"
            common = [p for p in around(hit[1]) if p in around(source)][-1] if source else ""
            for path in [p for p in [*around(goal), goal] if p and p not in [*around(common), common]]:
                total = total if states[path]["entry"] is None else (total * 3 + states[path]["entry"]) % 1000
            at = goal
    return at, total, refused


def around(path: str) -> list[str]:
    """The states around a state, from the outside in."""
    parts = path.split(".") if path else []
    return ["", *[".".join(parts[:n]) for n in range(1, len(parts))]] if path else []


class Live:
    """A machine without a worker: every event is fed, every action settled at once."""

    def __init__(self, machine: Machine[Any]) -> None:
        self.machine = machine
        self.rows: list[Row] = []
        self.replay = Replay("laws/run", machine)
        self.feed(ev.Started(machine.name, 1, Raw(b'[{"total":0}]')))

    def feed(self, event: ev.Event) -> None:
        self.write(event)
        self.replay.feed(event, len(self.rows), len(self.rows))
        for output in settle_outputs(self.replay, len(self.rows), len(self.rows)):
            self.write(output)
        for ref, asked in list(self.replay.actions.items()):
            args, kwargs = asked.spec.signature.decode(asked.args)
            result = Raw(msgspec.json.encode(asked.spec.fn(*args, **kwargs)))
            self.feed(ev.ActionSettled(ref, asked.spec.name, asked.args, result))
            return

    def write(self, event: ev.Event) -> None:
        self.rows.append(ev.row(event, len(self.rows) + 1, len(self.rows) + 1))

    def reload(self, whole: bool) -> None:
        evict(self.replay)
        self.replay = replay_of(self.machine, self.rows if whole else self.rows[newest_checkpoint(self.rows) :])
        assert self.replay.take() == []


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered during the test is forgotten: every worker of every later test would ask for it."""
    monkeypatch.setattr(registry, "_workflows", dict(registry._workflows))


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_machines_do_what_the_model_says(seed: int) -> None:
    dice = random.Random(f"events {seed}")
    root = drawn(seed)
    live = Live(made(root, f"random-machine-{seed}"))
    events = [dice.choice("pqrs") for _ in range(40)]
    for number, event in enumerate(events):
        live.feed(ev.EventReceived(event, id=f"e{number}"))
        if dice.random() < 0.3:
            live.reload(whole=dice.random() < 0.5)
    at, total, refused = model(root, events)
    read = [ev.read(row) for row in live.rows]
    last = next(event for event in reversed(read) if isinstance(event, ev.Restarted))
    position = msgspec.json.decode(last.input)
    assert (position["state"], position["data"]["total"]) == (at, total)
    assert [event.name for event in read if isinstance(event, ev.EventRejected)] == refused
    evict(live.replay)


# --- what comes after what -------------------------------------------------------------------------------------------

ran: dict[str, tuple[float, float]] = {}


@action(name="machine.timed")
async def timed(name: str, seconds: float, fails: bool) -> str:
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    ran[name] = (began, asyncio.get_running_loop().time())
    if fails:
        raise ValueError(name)
    return name


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("seed", range(25))
async def test_each_action_begins_when_all_before_it_have_ended_and_a_failure_blocks_only_its_descendants(
    seed: int, world: World
) -> None:
    dice = random.Random(f"graph {seed}")
    names = [f"n{number}" for number in range(dice.randrange(2, 12))]
    after = {name: dice.sample(names[:place], dice.randrange(min(place, 3) + 1)) for place, name in enumerate(names)}
    length = {name: dice.randrange(1, 9) for name in names}
    fails = {name: seed % 2 == 1 and dice.random() < 0.2 for name in names}
    dos = [Do(timed, [name, float(length[name]), fails[name]], name=name, after=after[name]) for name in names]
    dice.shuffle(dos)  # in which order they are written does not matter
    told = To("bad", set=lambda data, event: {"failed": event.payload["failed"], "blocked": event.payload["blocked"]})
    machine = Machine(
        f"dag-machine-{seed}",
        initial="a",
        states={"a": State(entry=dos, always="ok", error=told), "ok": State(final=True), "bad": State(final=True)},
    )
    ran.clear()
    zero = asyncio.get_running_loop().time()
    result = await world.run(machine)
    blocked: set[str] = set()
    ends: dict[str, float] = {}
    for name in names:  # those before it are before it in the list, too
        if any(fails[one] or one in blocked for one in after[name]):
            blocked.add(name)
            continue
        begins = max((ends[one] for one in after[name]), default=0.0)
        ends[name] = begins + length[name]
        assert ran[name] == pytest.approx((zero + begins, zero + ends[name]), abs=0.01), f"{name} after {after[name]}"
    assert ran.keys() == ends.keys()
    failed = {name for name in ends if fails[name]}
    if failed:
        assert (set(result["failed"]), set(result["blocked"])) == (failed, blocked)
    else:
        assert result == {}


# --- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "args", "send"),
    [
        (nested, (), [("ok", None), ("stop", None)]),
        (parallel, (), [("go", None)]),
        (failing, (), [("go", None)]),
    ],
    ids=["nested", "parallel", "failing"],
)
async def test_a_crash_at_any_point_changes_nothing(machine: Any, args: Any, send: Any, world: World) -> None:
    report = await world.crash_everywhere(machine, *args, send=send)
    assert report.status == "completed"
    assert report.points > 10


async def test_a_crash_at_any_point_keeps_timers_and_roles(world: World) -> None:
    async def send(run: Any) -> None:
        await run.send("comment", "well", id="s1")
        await run.send("approve", by="eve", roles=["director"], id="s2")
        await asyncio.sleep(60)
        assert (await run.state()).current == "director"
        await run.send("approve", by="dan", roles=["director"], id="s3")

    report = await world.crash_everywhere(patient, {"notes": []}, send=send)
    assert report.status == "completed"


patient = Machine(
    "patient-machine",
    initial="review",
    states={
        "review": State(
            after={"30s": "escalate"},
            on={
                "approve": To("approved", roles=["manager"]),
                "comment": To(set=lambda data, event: {"notes": [*data["notes"], event.payload]}),
                "escalate": "director",
            },
        ),
        "director": State(on={"approve": To("approved", roles=["director"])}),
        "approved": State(final=True),
    },
)
