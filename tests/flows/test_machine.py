"""State machines, through the public surface: every rule once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from perdure import (
    DefinitionInvalid,
    Do,
    EventRefused,
    ExecutionCancelled,
    ExecutionFailed,
    InvalidValue,
    Machine,
    Run,
    State,
    To,
    action,
)
from perdure.core import events as ev
from perdure.testing import World

seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@dataclass
class Request:
    amount: int
    notes: list[str] = field(default_factory=list)
    by: str = ""


@dataclass
class Comment:
    text: str


@action(name="machine.note")
async def note(text: str) -> str:
    seen.append(text)
    return text.upper()


@action(name="machine.slow")
async def slow(text: str, seconds: float) -> str:
    seen.append(f"{text}…")
    await asyncio.sleep(seconds)
    seen.append(text)
    return text


@action(name="machine.broken")
async def broken(text: str = "") -> None:
    seen.append(f"broken {text}".strip())
    raise ValueError("no luck")


@action(name="machine.book")
async def book(what: str) -> str:
    seen.append(f"book {what}")
    return what


@book.undo
async def unbook(what: str, booked: str) -> None:
    seen.append(f"unbook {what}")


def says(text: str, **options: Any) -> Do:
    return Do(note, [text], **options)


async def state_of(run: Run[Any]) -> str:
    return (await run.state()).current


async def changes(run: Run[Any]) -> list[tuple[str, str, str]]:
    return [
        (entry.data.get("from_state", ""), entry.data["to_state"], entry.data.get("event", ""))
        for entry in await run.log()
        if entry.type == "StateChanged"
    ]


async def rejected(run: Run[Any]) -> list[tuple[str, str]]:
    return [(entry.data["name"], entry.data["reason"]) for entry in await run.log() if entry.type == "EventRejected"]


approval = Machine(
    "approval-machine",
    data=Request,
    events={"comment": Comment},
    initial="draft",
    publish=["amount"],
    states={
        "draft": State(on={"submit": To("review", when=lambda request, event: request.amount > 0)}),
        "review": State(
            entry=[says("asked")],
            exit=[says("left")],
            after={"24h": "escalate"},
            on={
                "approve": To(
                    "approved",
                    roles=["manager"],
                    do=[says("approved")],
                    set=lambda request, event: replace(request, by=event.by),
                ),
                "comment": To(set=lambda request, event: request.notes.append(event.payload.text)),
                "escalate": "director",
            },
        ),
        "director": State(on={"approve": To("approved", roles=["director"])}),
        "approved": State(final=True),
    },
)


async def test_events_move_a_machine_to_its_end(world: World) -> None:
    run = await world.start(approval, Request(5))
    await run.send("submit")
    await run.send("comment", Comment("fine"))
    await run.send("approve", by="ann", roles=["manager"])
    assert await run.result() == Request(5, ["fine"], "ann")
    assert seen == ["asked", "left", "approved"]
    assert await changes(run) == [
        ("", "draft", ""),
        ("draft", "review", "submit"),
        ("review", "review", "comment"),
        ("review", "approved", "approve"),
    ]


async def test_an_event_that_the_state_does_not_take_is_in_the_log_as_rejected(world: World) -> None:
    run = await world.start(approval, Request(5))
    await run.send("approve", by="ann", roles=["manager"])
    await run.until("waiting")
    assert await rejected(run) == [("approve", "state draft takes submit")]
    assert await state_of(run) == "draft"
    await run.send("submit")
    await run.until("waiting")
    assert await state_of(run) == "review"


async def test_a_condition_that_does_not_hold_rejects(world: World) -> None:
    run = await world.start(approval, Request(0))
    await run.send("submit")
    await run.until("waiting")
    assert await rejected(run) == [("submit", "the condition does not hold")]
    assert await state_of(run) == "draft" and await changes(run) == [("", "draft", "")]


async def test_only_the_roles_of_a_transition_may_send_its_event(world: World) -> None:
    run = await world.start(approval, Request(5))
    await run.send("submit")
    await run.send("approve", by="bob", roles=["director"])  # somewhere in the machine that is enough
    await run.until("waiting")
    assert await rejected(run) == [("approve", "only manager may send it")]
    assert await state_of(run) == "review" and (await run.state()).published["amount"] == 5
    with pytest.raises(EventRefused, match="only director or manager may send approve"):
        await run.send("approve", by="eve", roles=["clerk"])


async def test_whoever_needs_a_role_has_to_say_who_it_is(world: World) -> None:
    run = await world.start(approval, Request(5))
    await run.send("submit")
    with pytest.raises(EventRefused, match="does not say who sent it"):
        await run.send("approve", roles=["manager", "director"])
    assert await rejected(run) == []


async def test_who_sent_an_event_with_which_roles_is_in_the_log(world: World) -> None:
    run = await world.start(approval, Request(5))
    await run.send("submit", by="ann", roles=["clerk"])
    await run.until("waiting")
    log = await run.log()
    [received] = [entry.data for entry in log if entry.type == "EventReceived"]
    assert (received["by"], received["roles"]) == ("ann", ["clerk"])
    moved = next(entry.data for entry in log if entry.data.get("event") == "submit")
    assert (moved["by"], moved["id"]) == ("ann", received["id"])


async def test_validate_now_refuses_what_a_resting_machine_does_not_take(world: World) -> None:
    run = await world.start(approval, Request(5))
    await run.until("waiting")
    with pytest.raises(EventRefused, match="state draft takes submit"):
        await run.send("escalate", validate="now")
    assert await rejected(run) == []
    await run.send("submit", validate="now")
    await run.until("waiting")
    assert await state_of(run) == "review"


async def test_what_was_valid_when_it_was_sent_is_judged_again_in_its_turn(world: World) -> None:
    run = await world.start(approval, Request(5))
    await run.until("waiting")
    await asyncio.gather(*(run.send("submit", id=f"s{number}", validate="now") for number in range(3)))
    await run.until("waiting")
    assert await state_of(run) == "review"
    assert await rejected(run) == [("submit", "state review takes approve, comment, escalate")] * 2
    assert [entry.data["id"] for entry in await run.log() if entry.type == "EventRejected"] == ["s1", "s2"]


async def test_an_event_that_no_state_takes_is_refused_at_once(world: World) -> None:
    run = await world.start(approval, Request(5))
    with pytest.raises(InvalidValue, match="takes no event 'dance'"):
        await run.send("dance")


async def test_payloads_are_checked_by_their_types(world: World) -> None:
    run = await world.start(approval, Request(5))
    with pytest.raises(InvalidValue, match="Comment"):
        await run.send("comment", {"text": 5})


async def test_the_first_data_is_checked_by_its_type(world: World) -> None:
    with pytest.raises(InvalidValue):
        await world.start(approval, {"amount": "five"})  # type: ignore[arg-type]


async def test_a_state_that_lasts_too_long_raises_its_event(world: World) -> None:
    run = await world.start(approval, Request(5))
    await run.send("submit")
    await world.advance("23h")
    assert await state_of(run) == "review"
    await world.advance("2h")
    assert await state_of(run) == "director"


def commits(world: World, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is written together from now on."""
    found: list[list[str]] = []
    saw = world.saw

    def watched(process: Any, verb: str, asked: Any, answer: Any) -> None:
        if verb == "commit":
            found.extend([type(ev.read(row)).__name__ for row in one.rows] for one in asked)
        saw(process, verb, asked, answer)

    monkeypatch.setattr(world, "saw", watched)
    return found


async def test_leaving_a_state_cancels_its_timers_in_the_same_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await world.start(approval, Request(5))
    await run.send("submit")
    await run.until("waiting")
    written = commits(world, monkeypatch)
    await run.send("approve", by="ann", roles=["manager"])
    await run.result()
    [together] = [one for one in written if "StateChanged" in one]
    assert "TimerCancelled" in together
    assert sum(one.count("TimerCancelled") for one in written) == 1
    log = await run.log()
    timer = next(entry for entry in log if entry.type == "TimerStarted")
    received = next(entry for entry in log if entry.data.get("name") == "approve")
    changed = next(entry for entry in log if entry.data.get("to_state") == "approved")
    [cancelled] = [entry for entry in log if entry.type == "TimerCancelled"]
    assert cancelled.data["ref"] == timer.data["ref"]
    assert received.version < changed.version and cancelled.at == received.at == changed.at


async def test_an_event_that_leaves_no_state_keeps_its_timers(world: World) -> None:
    run = await world.start(approval, Request(5))
    await run.send("submit")
    await world.advance("20h")
    await run.send("comment", Comment("still here"))
    await world.advance("3h")
    assert await state_of(run) == "review"
    await world.advance("2h")
    assert await state_of(run) == "director"


async def test_published_fields_find_machines_by_state(world: World) -> None:
    one, two = await world.start(approval, Request(5)), await world.start(approval, Request(6))
    await two.send("submit")
    await one.until("waiting")
    await two.until("waiting")
    page = await world.app.find(state="review")
    assert [head.key for head in page.heads] == [two.key]
    assert [head.key for head in (await world.app.find(amount=5)).heads] == [one.key]
    assert "waits for the event submit" in str(await one.why())


nested = Machine(
    "nested-machine",
    initial="open",
    on={"stop": "stopped"},
    states={
        "open": State(
            initial="legal",
            entry=[says("in open")],
            exit=[says("out open")],
            on={"back": "open", "skip": "open.budget"},
            done=To("closed", do=[says("all fine")]),
            states={
                "legal": State(entry=[says("in legal")], exit=[says("out legal")], on={"ok": "budget"}),
                "budget": State(entry=[says("in budget")], on={"ok": "agreed"}, exit=[says("out budget")]),
                "agreed": State(final=True),
            },
        ),
        "closed": State(final=True),
        "stopped": State(final=True),
    },
)


async def test_states_inside_states_are_entered_and_left_in_order(world: World) -> None:
    run = await world.start(nested)
    await run.send("ok")
    await run.send("ok")
    await run.result()
    assert seen == ["in open", "in legal", "out legal", "in budget", "out budget", "out open", "all fine"]
    assert [to for _, to, _ in await changes(run)] == ["open.legal", "open.budget", "open.agreed", "closed"]


async def test_a_transition_to_its_own_source_leaves_and_enters_it(world: World) -> None:
    run = await world.start(nested)
    await run.until("waiting")
    seen.clear()
    await run.send("back")
    await run.until("waiting")
    assert seen == ["out legal", "out open", "in open", "in legal"]
    seen.clear()
    await run.send("skip")
    await run.until("waiting")
    assert seen == ["out legal", "out open", "in open", "in budget"]


async def test_transitions_of_the_machine_belong_to_every_state(world: World) -> None:
    run = await world.start(nested)
    await run.send("stop")
    await run.result()
    assert seen[-2:] == ["out legal", "out open"]


parallel = Machine(
    "parallel-machine",
    initial="new",
    states={
        "new": State(
            on={
                "go": To(
                    "done",
                    do=[
                        Do(slow, ["a", 1.0], name="a"),
                        Do(slow, ["b", 2.0], name="b"),
                        Do(slow, ["c", 1.0], name="c", after=["a"]),
                        Do(slow, ["d", 0.5], name="d", after=["b", "c"], set=lambda data, result: {"last": result}),
                    ],
                )
            }
        ),
        "done": State(final=True),
    },
)


async def test_actions_run_side_by_side_as_after_allows(world: World) -> None:
    run = await world.start(parallel)
    before = world.now()
    await run.send("go")
    assert await run.result() == {"last": "d"}
    assert seen[:2] == ["a…", "b…"] and seen.index("c…") > seen.index("a") and seen[-2:] == ["d…", "d"]
    assert 2.4 < (world.now() - before).total_seconds() < 2.8


async def test_actions_for_which_a_worker_has_no_room_run_on_another(world: World) -> None:
    async with World(workers=2, concurrency=1, spill="100ms") as fleet:
        run = await fleet.start(parallel)
        before = fleet.now()
        await run.send("go")
        assert await run.result() == {"last": "d"}
        assert 2.4 < (fleet.now() - before).total_seconds() < 3.2  # one after the other it would be 4.5
        assert "ActionScheduled" in [entry.type for entry in await run.log()]


failing = Machine(
    "failing-machine",
    initial="new",
    states={
        "new": State(
            on={
                "go": To(
                    "next",
                    do=[
                        Do(broken, ["x"], name="x"),
                        says("after x", name="y", after=["x"]),
                        says("beside", name="z"),
                        says("after z", name="w", after=["z"]),
                    ],
                ),
                "ignore": To("next", do=[Do(broken, optional=True), says("on", name="on", after=["machine.broken"])]),
            }
        ),
        "next": State(
            entry=[says("entered")],
            on={"end": "end"},
            error=To("failed", set=lambda data, event: {"why": event.payload}),
        ),
        "failed": State(final=True),
        "end": State(final=True),
    },
)


async def test_a_failed_action_keeps_back_only_what_comes_after_it(world: World) -> None:
    run = await world.start(failing)
    await run.send("go")
    result = await run.result()
    assert sorted(seen) == ["after z", "beside", "broken x"]
    assert result["why"]["failed"] == ["x"] and result["why"]["blocked"] == ["y"]
    assert result["why"]["type"] == "ValueError"


async def test_the_failure_of_an_optional_action_does_not_matter(world: World) -> None:
    run = await world.start(failing)
    await run.send("ignore")
    await run.until("waiting")
    assert seen == ["broken", "on", "entered"]
    await run.send("end")
    await run.result()


async def test_without_an_error_transition_a_failed_action_fails_the_machine_and_undoes(world: World) -> None:
    machine = Machine(
        "undoing-machine",
        initial="new",
        states={
            "new": State(on={"book": To("booked", do=[Do(book, ["hotel"])])}),
            "booked": State(on={"more": To("more", do=[Do(book, ["car"]), Do(broken, after=["machine.book"])])}),
            "more": State(final=True),
        },
    )
    run = await world.start(machine)
    await run.send("book")
    await run.until("waiting")
    await run.send("more")
    with pytest.raises(ExecutionFailed, match="no luck"):
        await run.result()
    assert seen == ["book hotel", "book car", "broken", "unbook car", "unbook hotel"]


async def test_a_state_that_settles_ends_the_time_of_undoing(world: World) -> None:
    machine = Machine(
        "settling-machine",
        initial="new",
        states={
            "new": State(on={"book": To("booked", do=[Do(book, ["hotel"])])}),
            "booked": State(settles=True, on={"more": To("more", do=[Do(broken)])}),
            "more": State(final=True),
        },
    )
    run = await world.start(machine)
    await run.send("book")
    await run.send("more")
    with pytest.raises(ExecutionFailed):
        await run.result()
    assert seen == ["book hotel", "broken"]


async def test_cancelling_a_machine_undoes_what_it_did(world: World) -> None:
    machine = Machine(
        "cancelled-machine",
        initial="new",
        states={
            "new": State(on={"book": To("booked", do=[Do(book, ["hotel"])])}),
            "booked": State(on={"end": "end"}),
            "end": State(final=True),
        },
    )
    run = await world.start(machine)
    await run.send("book")
    await run.until("waiting")
    await run.cancel("enough")
    with pytest.raises(ExecutionCancelled):
        await run.result()
    assert seen == ["book hotel", "unbook hotel"]


async def test_transitions_without_event_follow_at_once(world: World) -> None:
    machine = Machine(
        "choosing-machine",
        initial="sum",
        states={
            "sum": State(
                entry=[Do(note, ["total"], set=lambda data, result: {**data, "total": 7, "seen": result})],
                always=[To("big", when=lambda data, event: data["total"] > 10), To("small")],
            ),
            "big": State(final=True),
            "small": State(final=True),
        },
    )
    run = await world.start(machine)
    assert await run.result() == {"total": 7, "seen": "TOTAL"}
    assert [to for _, to, _ in await changes(run)] == ["sum", "small"]


async def test_a_machine_that_goes_round_in_circles_gets_stuck(world: World) -> None:
    machine = Machine(
        "circling-machine",
        initial="a",
        states={
            "a": State(always=To("b", when=lambda data, event: True)),
            "b": State(always=To("a", when=lambda data, event: True)),
        },
    )
    run = await world.start(machine)
    await run.until("stuck")
    assert "100 transitions in a row without an event" in str(await run.why())


async def test_a_timer_may_have_a_transition_of_its_own(world: World) -> None:
    machine = Machine(
        "expiring-machine",
        initial="open",
        states={
            "open": State(after={"PT1H": To("expired", do=[says("too late")])}, on={"close": "closed"}),
            "expired": State(final=True),
            "closed": State(final=True),
        },
    )
    run = await world.start(machine)
    await run.until("waiting")
    await world.advance("1h")
    await run.result()
    assert seen == ["too late"]


async def test_events_wait_until_the_step_before_is_done(world: World) -> None:
    machine = Machine(
        "busy-machine",
        initial="a",
        states={
            "a": State(on={"next": To("b", do=[Do(slow, ["one", 5.0])])}),
            "b": State(on={"next": To("c", do=[Do(slow, ["two", 5.0])])}),
            "c": State(final=True),
        },
    )
    run = await world.start(machine)
    for number in range(3):
        await run.send("next", id=f"n{number}")
    await run.result()
    assert seen == ["one…", "one", "two…", "two"]


async def test_many_waiting_events_cost_a_log_of_linear_size(world: World) -> None:
    count = 300
    machine = Machine(
        "flooded-machine",
        initial="idle",
        states={
            "idle": State(on={"begin": To("counting", do=[Do(slow, ["x", 60.0])])}),
            "counting": State(
                on={
                    "one": To(set=lambda data, event: {"n": data.get("n", 0) + 1}),
                    "end": To("end", when=lambda data, event: data["n"] == count),
                }
            ),
            "end": State(final=True),
        },
    )
    run = await world.start(machine)
    await run.send("begin")
    await world.advance("1s")
    for number in range(count):
        await run.send("one", id=f"one-{number}")
    await run.send("end")
    assert await run.result() == {"n": count}
    rows = [row async for row in run.rows()]
    assert sum(len(row.data) for row in rows) < count * 1000
    # Between two checkpoints lie at most as many steps as events were waiting.
    kinds = [entry.type for entry in await run.log()]
    assert 5 <= kinds.count("Restarted") < 30


async def test_a_bad_event_does_not_end_a_machine(world: World) -> None:
    def add(data: dict[str, Any], event: Any) -> None:
        data["said"].append(event.payload["say"])
        data["n"] += event.payload["n"]

    machine = Machine(
        "robust-machine",
        initial="open",
        states={
            "open": State(on={"add": To(set=add), "end": To("end", when=lambda data, event: event.payload["now"])}),
            "end": State(final=True),
        },
    )
    run = await world.start(machine, {"n": 1, "said": []})
    await run.send("add", {"say": "half of it"})
    await run.send("end", 5)
    await run.until("waiting")
    assert [name for name, _ in await rejected(run)] == ["add", "end"]
    assert [reason.split(":")[0] for _, reason in await rejected(run)] == ["KeyError", "TypeError"]
    await run.send("add", {"n": 2, "say": "all of it"})
    await run.send("end", {"now": True})
    assert await run.result() == {"n": 3, "said": ["all of it"]}


async def test_a_machine_can_be_a_child_and_sends_can_come_from_workflows(world: World) -> None:
    from perdure import workflow

    @workflow
    async def parent() -> Any:
        child = asyncio.create_task(small(None))
        await asyncio.sleep(1)
        await workflow.send(f"{workflow.id}.2", "end", {"by": "parent"})
        return await child

    small = Machine(
        "small-machine",
        initial="open",
        output=lambda data: "small is done",
        states={"open": State(on={"end": "end"}), "end": State(final=True)},
    )
    run = await world.start(parent)
    assert await run.result() == "small is done"


# What is wrong with a machine is told when it is made.


def mistakes(**parts: Any) -> list[str]:
    with pytest.raises(DefinitionInvalid) as caught:
        Machine("mistaken-machine", **{"initial": "a", "states": {"a": State(final=True)}, **parts})
    return [str(problem) for problem in caught.value.problems]


def test_all_mistakes_are_told_at_once() -> None:
    found = mistakes(
        initial="nowhere",
        states={
            "a": State(on={"go": "b"}, after={"soon": "go"}),
            "c": State(final=True, on={"go": "a"}),
        },
    )
    assert any("machine.initial: there is no state 'nowhere' inside; name one of a, c" in one for one in found)
    assert any("states.a.on.go: there is no state 'b'" in one for one in found)
    assert any("states.a.after.soon: 'soon' is not a duration" in one for one in found)


def test_actions_that_wait_for_one_another_are_refused() -> None:
    dos = [says("x", name="x", after=["y"]), says("y", name="y", after=["x"]), says("z", name="z", after=["q"])]
    found = mistakes(states={"a": State(on={"go": To("b", do=dos)}), "b": State(final=True)})
    assert any("these wait for one another: x → y" in one for one in found)
    assert any("it comes after 'q', which is not here" in one for one in found)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"a": State(final=True), "b": State(on={"x": "a"})}, "states.b: no transition leads here"),
        ({"a": State(on={"x": "b"}), "b": State(final=True, on={"y": "a"})}, "a final state is the end"),
        ({"a": State(after={"1h": "x"}, on={"y": "b"}), "b": State(final=True)}, "the state does not take 'x'"),
        ({"a": State(always="b"), "b": State(always="a")}, "it goes round for ever: a → b → a"),
        ({"a": State(on={"x": "a"}, done="a")}, "there is no final state inside"),
        ({"a": State(entry=[Do(note, {"txt": "x"})], on={"x": "a"})}, "it takes: text"),
        ({"a": State(entry=["nobody"], on={"x": "a"})}, "no action nobody"),
        ({"a": State(entry=[note, note], on={"x": "a"})}, "there are two actions machine.note"),
    ],
    ids=["unreachable", "final", "timer", "circle", "done", "arguments", "unknown", "names"],
)
def test_mistakes_name_the_place_and_the_remedy(states: dict[str, State], message: str) -> None:
    assert any(message in one for one in mistakes(states=states)), mistakes(states=states)


def test_functions_that_cannot_be_replayed_are_refused() -> None:
    import time

    from perdure import Forbidden

    with pytest.raises(Forbidden, match="time"):
        Machine(
            "clocked-machine",
            initial="a",
            states={"a": State(on={"x": To("b", when=lambda data, event: time.time() > 0)}), "b": State(final=True)},
        )


async def test_the_options_of_an_action_hold_for_its_call(world: World) -> None:
    tries: list[int] = []

    @action(name="machine.stubborn")
    async def stubborn() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not yet")
        return "done"

    machine = Machine(
        "stubborn-machine",
        initial="a",
        states={
            "a": State(entry=[Do(stubborn, retries=5, set=lambda data, result: {"said": result})], always="b"),
            "b": State(final=True),
        },
    )
    assert await (await world.start(machine)).result() == {"said": "done"}
    assert len(tries) == 3


async def test_a_timer_that_went_off_during_a_step_that_left_its_state_is_forgotten(world: World) -> None:
    machine = Machine(
        "forgetful-machine",
        initial="a",
        states={
            "a": State(
                after={"1s": "late"},
                on={"go": To(do=[Do(slow, ["x", 5.0])], set=lambda data, event: {"gone": True}), "late": "bad"},
                always=To("b", when=lambda data, event: bool(data.get("gone"))),
            ),
            "b": State(on={"late": "bad", "noise": To(), "end": "end"}),
            "bad": State(final=True),
            "end": State(final=True),
        },
    )
    run = await world.start(machine)
    await run.send("go")
    for _ in range(5):
        await run.send("noise")  # while events wait, there is no checkpoint after every step
    await world.advance("10s")
    assert await state_of(run) == "b"
    await run.send("end")
    await run.result()
    assert await state_of(run) == "end"


@pytest.mark.parametrize("noise", [0, 5], ids=["with a checkpoint", "without a checkpoint"])
async def test_a_timer_that_went_off_during_a_step_is_heard_after_it(noise: int, world: World) -> None:
    machine = Machine(
        "patient-timer-machine",
        initial="a",
        states={
            "a": State(after={"1s": "late"}, on={"go": To(do=[Do(slow, ["x", 5.0])]), "late": "end", "noise": To()}),
            "end": State(final=True),
        },
    )
    run = await world.start(machine)
    await run.send("go")
    for _ in range(noise):
        await run.send("noise")
    await world.advance("6s")
    assert await run.status() == "completed"
    assert seen == ["x…", "x"]


async def test_the_event_of_a_timer_needs_no_role(world: World) -> None:
    machine = Machine(
        "roleless-machine",
        initial="a",
        states={"a": State(after={"1m": "close"}, on={"close": To("end", roles=["clerk"])}), "end": State(final=True)},
    )
    run = await world.start(machine)
    await world.advance("2m")
    assert await run.status() == "completed"


async def test_a_timer_that_nothing_follows_leaves_the_machine_waiting_as_before(world: World) -> None:
    machine = Machine(
        "unmoved-machine",
        initial="a",
        states={
            "a": State(after={"1m": To("end", when=lambda data, event: False)}, on={"go": "end"}),
            "end": State(final=True),
        },
    )
    run = await world.start(machine)
    await world.advance("2m")
    assert await rejected(run) == [("after 1m", "the condition does not hold")]
    assert [reason.kind for reason in (await run.why()).reasons] == ["event"]
    await run.send("go")
    await run.result()


async def test_a_machine_that_was_changed_under_its_version_gets_stuck(world: World) -> None:
    def made(first: str) -> Machine[Any]:
        return Machine(
            "changed-machine",
            initial=first,
            states={
                "a": State(entry=[Do(slow, ["x", 60.0])], on={"go": "b"}),
                "b": State(entry=[Do(slow, ["x", 60.0])], on={"go": "a"}),
            },
        )

    run = await world.start(made("a"))
    await world.advance("1s")
    made("b")  # registered instead
    await world.crash()
    await run.until("stuck")
    assert "give a changed definition another version" in str(await run.why())
