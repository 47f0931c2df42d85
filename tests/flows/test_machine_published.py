"""Machines that are published at run time, and change while they run."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import EventRefused, InvalidValue, MigrationRefused, action
from perdure.flows.registry import registry
from perdure.runtime.run import Run
from perdure.testing import World

asked: list[Any] = []
ONE = """
machine: approval
initial: review
data: {type: object, required: [amount], properties: {amount: {type: integer}}}
states:
  review:
    entry:
    - {action: published.ask, with: {who: ada}, set: {asked: "${ .result }"}}
    after: {PT24H: {to: expired}}
    on:
      approve: {to: approved, roles: [manager]}
  approved: {final: true}
  expired: {final: true}
output: "${ .data.asked }"
"""
#: The director has a say, too.
TWO = ONE.replace("{to: approved, roles: [manager]}", "direction").replace(
    "  approved:", "  direction:\n    on: {approve: approved, reject: approved}\n  approved:"
)
#: Nobody is asked, and there is no review.
OTHER = ONE.replace("review", "inspection")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked.clear()
    monkeypatch.setattr(registry, "_workflows", {})  # other tests have workflows of these names


@action(name="published.ask")
async def ask(who: str) -> str:
    asked.append(who)
    return f"asked {who}"


@ask.undo
async def published_unask(who: str, result: str) -> None:
    asked.append(f"never mind, {who}")


async def begun(world: World, *texts: str) -> Run[Any]:
    await world.app.definitions.publish(texts[0], file="one.yaml")
    run = await world.app.start("approval", {"amount": 7}, id="a1")
    await run.until("waiting")
    for text in texts[1:]:
        await world.app.definitions.publish(text, file="other.yaml")
    return run


async def test_a_published_machine_runs(world: World) -> None:
    run = await begun(world, ONE)
    assert (await run.head()).definition == "published:approval@1"
    await world.crash()
    await run.send("approve", by="bob", roles=["manager"])
    assert await run.result() == "asked ada"
    assert asked == ["ada"]


async def test_its_input_and_its_events_are_checked(world: World) -> None:
    run = await begun(world, ONE)
    with pytest.raises(InvalidValue, match="amount"):
        await world.app.start("approval", {})
    with pytest.raises(InvalidValue, match="takes no event 'nothing'"):
        await run.send("nothing")
    with pytest.raises(EventRefused):
        await run.send("approve", by="bob")


async def test_it_goes_on_with_another_version_and_its_timer_with_it(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await world.advance("23h")
    await run.migrate(2, by="ada")
    assert asked == ["ada"]
    before = world.micros()
    await run.result()
    assert (await run.state()).published["state"] == "expired"
    assert world.micros() - before < 3601e6


async def test_after_the_change_events_are_those_of_the_new_version(world: World) -> None:
    run = await begun(world, ONE, TWO)
    with pytest.raises(EventRefused):
        await run.send("approve", validate="now")
    with pytest.raises(InvalidValue):
        await run.send("reject")
    await run.migrate(2)
    with pytest.raises(EventRefused):
        await run.send("reject", validate="now")
    await run.send("approve", validate="now")
    await run.until("waiting")
    await run.send("reject", validate="now")
    assert await run.result() == "asked ada"


async def test_a_version_without_its_state_is_refused(world: World) -> None:
    run = await begun(world, ONE, OTHER)
    with pytest.raises(MigrationRefused, match="it is in state review, which is not here"):
        await run.migrate(2)


async def test_what_it_did_before_the_change_is_undone(world: World) -> None:
    run = await begun(world, ONE, TWO)
    await run.migrate(2)
    await world.crash()
    await run.cancel()
    await run.until("cancelled")
    assert asked == ["ada", "never mind, ada"]


async def test_a_worker_without_the_code_of_its_action_lets_it_run_apart(world: World) -> None:
    await world.app.definitions.publish(ONE, file="one.yaml")
    before = registry._actions.pop("published.ask")
    try:
        run = await world.app.start("approval", {"amount": 7})
        await run.until("waiting")
        assert asked == []
        bundle = await world.app.definitions.export()
        async with World() as other:
            await other.app.definitions.import_(bundle)
            assert await other.app.definitions.export() == bundle
    finally:
        registry._actions["published.ask"] = before
    await run.send("approve", by="bob", roles=["manager"])
    assert await run.result() == "asked ada"
