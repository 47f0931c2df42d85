"""Who did it: every start and every letter of a user says so, whichever way it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import Raw

from perdure import Machine, Perdure, Run, State, To, event, workflow
from perdure.core import events as ev, letters as mail
from perdure.core.records import Mail
from perdure.errors import SettingsError, Undecodable, UsageError
from perdure.flows.listening import Listen
from perdure.runtime.callers.sending import NewEvent
from perdure.testing import World
from perdure.testing.invariants import check_who


@workflow(name="actors.told", listens=[Listen("news")])
async def told() -> str:
    return await event("stop", str)


@workflow(name="actors.teller")
async def teller() -> None:
    run = await workflow.start(told, id="other")
    await workflow.send(run, "word", 1)
    await workflow.cancel(run, "enough")


async def deeds(run: Run[Any]) -> dict[str, str]:
    """Who did what, by the type of the event."""
    found = [ev.read(row) async for row in run.rows()]
    return {type(one).__name__: by for one in found if (by := getattr(one, "by", None)) is not None}


async def begun(app: Perdure, **more: Any) -> Run[Any]:
    run = await app.start(told, id="run", **more)
    await run.until("waiting")
    return run


async def one(run: Run[Any]) -> None:
    await run.send("word")


async def many(run: Run[Any]) -> None:
    assert await run.send_all([NewEvent("word", id="w")]) == ["w"]


async def routed(run: Run[Any]) -> None:
    news = {"specversion": "1.0", "type": "news", "source": "/paper", "id": "1"}
    assert (await run._app.route(news)).woken == ["run"]


@pytest.mark.parametrize("send", [one, many, routed])
async def test_an_event_that_names_nobody_is_the_applications(
    send: Callable[[Run[Any]], Awaitable[None]], world: World
) -> None:
    run = await begun(world.app)
    await send(run)
    await run.until("waiting")
    assert await deeds(run) == {"Started": "app", "EventReceived": "app"}


async def test_what_is_done_to_an_execution_without_a_name_is_the_applications(world: World) -> None:
    run = await begun(world.app)
    await run.pause()
    await run.until("paused")
    await run.resume()
    await run.until("waiting")
    fork = await run.fork(at=1)
    await run.cancel()
    await run.until("cancelled")
    done = await deeds(run)
    assert done == dict.fromkeys(("Started", "Paused", "Resumed", "CancelRequested"), "app")
    assert await deeds(fork) == {"Started": "app"}


async def test_who_is_named_is_who_it_was(world: World) -> None:
    run = await begun(world.app, by="ann")
    await run.send("word", by="bob", roles=["heads"])
    await run.until("waiting")
    assert await deeds(run) == {"Started": "ann", "EventReceived": "bob"}


async def test_what_a_workflow_does_to_others_it_does_in_its_own_name(world: World) -> None:
    await world.run(teller, id="teller")
    other = world.app.get("other")
    await other.until("cancelled")
    assert set((await deeds(other)).values()) == {"default/teller"}


def test_the_name_of_the_application_is_a_setting() -> None:
    async def main() -> None:
        async with Perdure("memory://", actor="shop") as app, app.working():
            run = await begun(app)
            await run.send("stop", "now")
            await run.result(timeout=10)
            assert await deeds(run) == {"Started": "shop", "EventReceived": "shop"}
            machine = {"machine": "actors-machine", "initial": "a", "states": {"a": {"final": True}}}
            assert (await app.definitions.publish(machine)).by == "shop"

    asyncio.run(main())


def test_an_application_has_a_name() -> None:
    with pytest.raises(SettingsError, match="actor"):
        Perdure("memory://", actor="")


async def test_roles_are_somebodys(world: World) -> None:
    run = await begun(world.app)
    with pytest.raises(UsageError, match="default/run: an event with the roles heads does not say who sent it"):
        await run.send("word", roles=["heads"])
    [refused] = await run.send_all([NewEvent("word")], roles=["heads"])
    assert isinstance(refused, UsageError)
    assert "EventReceived" not in await deeds(run)


# --- row by row ------------------------------------------------------------------------------------------------------

#: What is done by nobody: it follows from the code, or from what somebody did before.
BY_ITSELF = {"StateChanged", "EventRejected", "TimerStarted", "TimerFired", "TimerCancelled", "Restarted", "Cancelled"}
door = Machine(
    "actors-door",
    initial="shut",
    states={
        "shut": State(on={"push": "open"}),
        "open": State(after={"1h": "pull"}, on={"pull": "shut", "lock": To("gone", roles=["owner"])}),
        "gone": State(final=True),
    },
)


async def test_every_row_says_who_when_what_and_what_was_before_and_after(world: World) -> None:
    run = await world.start(door, id="door")
    await run.send("pull", by="eve", id="too-early")
    await run.until("waiting")
    await world.advance("1m")
    await run.send("push", {"hard": True}, by="ann", id="first")
    await run.until("waiting")
    await run.pause(by="ops", reason="lunch")
    await run.until("paused")
    await run.resume(by="ops")
    await world.advance("2h")
    await run.cancel("enough", by="ann")
    await run.until("cancelled")
    log = await run.log()
    before, began = await run.state(at=1), log[0].at
    for entry in log:
        after = await run.state(at=entry.version)
        assert entry.at >= began and after.at == round(entry.at.timestamp() * 1e6), "when"
        began = entry.at
        assert (entry.type in BY_ITSELF) != bool(entry.data.get("by") and entry.type != "StateChanged"), "who"
        match entry.type:
            case "StateChanged":
                moved = (entry.data["from_state"], entry.data["to_state"])
                assert moved == (before.current, after.current), "before and after"
            case "EventReceived" | "EventRejected":
                assert before.current == after.current and entry.data["id"] and entry.data["name"]
        before = after
    did = [(entry.type, entry.data["by"]) for entry in log if entry.data.get("by")]
    assert did == [
        ("Started", "app"),
        ("EventReceived", "eve"),
        ("EventReceived", "ann"),
        ("StateChanged", "ann"),
        ("Paused", "ops"),
        ("Resumed", "ops"),
        ("CancelRequested", "ann"),
    ]
    payloads = [entry.data.get("payload") for entry in log if entry.type == "EventReceived"]
    assert payloads == [None, {"hard": True}]
    moves = [
        (one.data["from_state"], one.data["to_state"], one.data.get("event")) for one in log if "to_state" in one.data
    ]
    assert moves == [("", "shut", None), ("shut", "open", "push"), ("open", "shut", "pull")]


# --- without a name --------------------------------------------------------------------------------------------------

LETTERS = (
    mail.EventLetter("word"),
    mail.PauseLetter(),
    mail.ResumeLetter(),
    mail.CancelLetter(),
    mail.RedriveLetter(),
    mail.MigrateLetter(1, ""),
)


@pytest.mark.parametrize("letter", LETTERS, ids=lambda letter: type(letter).__name__)
def test_a_letter_of_nobody_is_neither_sealed_nor_read(letter: mail.Letter) -> None:
    with pytest.raises(UsageError, match="does not say who sends it"):
        mail.seal(letter)
    with pytest.raises(Undecodable, match="default/run: message m does not say who sent it"):
        mail.unseal(Mail("default/run", "m", mail._encode(letter)))


def test_an_outcome_has_a_log_of_its_own_and_needs_no_name() -> None:
    for letter in (mail.ChildLetter(1, "c", "completed"), mail.ActionLetter(1, "a", Raw(b"[]"))):
        assert mail.unseal(Mail("default/run", "m", mail.seal(letter))) == letter


async def test_a_letter_of_nobody_is_rejected_in_the_log_and_nothing_else_is_lost(world: World) -> None:
    run = await begun(world.app)
    await world.store.send([Mail(run.key, "nobody", mail._encode(mail.EventLetter("stop", Raw(b'"a"'))))], 0)
    await run.send("stop", "b", by="ann")
    assert await run.result() == "b"
    [row] = [row for row in await world.rows(run.key) if row.message_id == "nobody"]
    rejected = ev.read(row)
    assert isinstance(rejected, ev.EventRejected)
    assert "does not say who sent it" in rejected.reason


@pytest.mark.parametrize(
    "nobody",
    [
        ev.Started("order", 1, Raw(b"[]")),
        ev.EventReceived("word"),
        ev.CancelRequested(),
        ev.Paused(),
        ev.Resumed(),
        ev.Redriven(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_log_that_does_not_say_who_is_found_out(nobody: ev.Event) -> None:
    with pytest.raises(AssertionError, match=f"I23, acme/o: version 7, {type(nobody).__name__}, does not say who"):
        check_who([ev.row(nobody, 7, 0, message_id="m")], "acme/o")


@pytest.mark.parametrize(
    "fine",
    [
        ev.Started("order", 1, Raw(b"[]"), parent="acme/p"),
        ev.Started("definition:", 1, Raw(b"[]")),
        ev.Resumed("it is time"),
        ev.EventReceived("word", by="ann"),
        ev.TimerFired(1, 0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_nobody_does_needs_no_name(fine: ev.Event) -> None:
    check_who([ev.row(fine, 1, 0)])


def test_what_a_worker_writes_says_which() -> None:
    fired = ev.TimerFired(1, 0)
    check_who([ev.row(fired, 7, 0, fence=1, worker="w1"), ev.row(ev.TakenOver("w2"), 8, 0, fence=2)])
    with pytest.raises(AssertionError, match=r"version 7, TimerFired, does not say which worker wrote it"):
        check_who([ev.row(fired, 7, 0, fence=1)])


@workflow(name="actors.timed")
async def timed() -> int:
    await asyncio.sleep(60)
    workflow.publish(slept=True)
    try:
        async with asyncio.timeout(5):
            await event("never", str)
    except TimeoutError:
        pass
    return workflow.record(lambda: 7)


async def test_every_row_under_a_hold_names_its_worker_also_the_engines_own(world: World) -> None:
    run = await world.app.start(timed, id="timed")
    assert await run.result() == 7
    rows = [row async for row in run.rows()]
    log = await run.log()
    me = "worker-1"
    kinds = {type(ev.read(row)).__name__ for row in rows}
    assert {"Started", "TimerStarted", "TimerFired", "Published", "Marked", "Completed"} <= kinds
    assert [ev.writer(row) for row in rows] == ["", *[me] * (len(rows) - 1)]
    assert [entry.data.get("worker") for entry in log] == [None, *[me] * (len(rows) - 1)]
