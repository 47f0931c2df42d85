"""Traces: who starts or sends says which one, children and checkpoints keep it, and every line of a log has it."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Perdure, Retry, Settings, action, event, tracing, workflow
from perdure.core import events as ev
from perdure.core.records import Query
from perdure.core.tracing import Trace, here, of_execution, parse
from perdure.errors import Undecodable, UsageError
from perdure.runtime.run import Run
from perdure.runtime.sealing.keyring import DirectoryRing
from perdure.runtime.telemetry.logs import JsonLines, configure
from perdure.testing import World, run
from tests.runtime.computing import traced_in_a_process

ID, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{ID}-{SPAN}-01"
QUEUES = ["default", "tracing-apart"]
log = logging.getLogger("perdure.tracing-test")


class Lines(logging.Handler):
    """What a process would write, as JSON; made when the line is, for the context counts."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines("node-1"))
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))

    def traces(self, execution: str) -> set[str]:
        return {line.get("trace", "") for line in self.lines if line.get("execution") == execution}


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, ours = Lines(), logging.getLogger("perdure")
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel("DEBUG")
    yield handler
    ours.removeHandler(handler)
    ours.setLevel(before)


@action(name="tracing.tells")
async def tells(what: str) -> str:
    log.info("told %s", what)
    return action.traceparent


@action(name="tracing.apart", queue="tracing-apart")
async def tells_apart() -> str:
    log.info("told apart")
    return action.traceparent


@action(name="tracing.starts")
async def starts(id: str) -> None:
    await action.app.start(leaf, id=id)


@workflow(name="tracing-leaf")
async def leaf() -> str:
    return await tells("leaf")


@action(name="tracing.slow")
async def tells_slowly() -> None:
    log.info("told slowly")
    await asyncio.sleep(30)


@workflow(name="tracing-crowded")
async def crowded() -> None:
    await tells_slowly()


@workflow(name="tracing-family")
async def family() -> list[str]:
    return [await tells("parent"), await leaf(), await tells_apart()]


@workflow(name="tracing-rounds")
async def rounds(left: int) -> list[str]:
    await event("go")
    if left:
        workflow.restart_with(left - 1)
    return [await tells("after"), await leaf()]


@workflow(name="tracing-starter")
async def starter(id: str) -> None:
    await starts(id)


@workflow(name="tracing-waits")
async def waits() -> Any:
    workflow.log.info("waits")
    return await event("go")


async def first(run: Run[Any]) -> ev.Started:
    return await begun(run._app, run.key)


async def begun(app: Perdure, key: str) -> ev.Started:
    [row] = await app.store.read(key, 0, 1)
    event = ev.read(row)
    assert isinstance(event, ev.Started)
    return event


async def of_head(run: Run[Any]) -> Trace:
    [row] = await run._app.store.read(run.key, 0, 1)
    return of_execution((await first(run)).trace, run.key, row.at)


def id_in(traceparent: str) -> str:
    found = parse(traceparent)
    assert found is not None
    return found.id


# Starting and sending.


async def test_what_is_started_in_a_block_has_its_trace(world: World) -> None:
    with tracing(GIVEN):
        run = await world.start(waits, id="given")
        other = await world.app.start_by_name("tracing-waits", [], id="by-name")
    assert [(await first(one)).trace for one in (run, other)] == [GIVEN, GIVEN]
    assert (await run.state()).trace == (await other.state()).trace == ID


async def test_the_log_of_who_was_given_no_trace_is_as_long_as_before(world: World) -> None:
    run = await world.start(waits, id="plain")
    await run.send("go")
    await run.result()
    assert not [row for row in await world.rows(run.key) if b"trace" in row.data]


@pytest.mark.parametrize("given", [None, "", "rubbish", f"00-{'0' * 32}-{SPAN}-01", GIVEN.upper()])
async def test_what_is_no_traceparent_is_ignored(given: str | None, world: World) -> None:
    with tracing(given):
        run = await world.start(waits, id="odd")
        await run.send("go")
    assert (await first(run)).trace == ""
    assert (await run.state()).trace == (await of_head(run)).id


async def test_the_same_start_in_another_trace_is_the_same_start(world: World) -> None:
    with tracing(GIVEN):
        await world.start(waits, id="once")
    with tracing(f"00-{'a' * 32}-{SPAN}-01"):
        run = await world.start(waits, id="once")
        await run.send("go", id="e")
        await run.send("go", id="e")
    await run.send("go", id="e")
    assert (await run.state()).trace == ID


async def test_an_event_keeps_the_trace_of_who_sent_it(world: World) -> None:
    run = await world.start(waits, id="sent")
    with tracing(GIVEN):
        await run.send("go", 1)
    await run.result()
    received = [entry for entry in await run.log() if entry.type == "EventReceived"]
    assert [entry.data["trace"] for entry in received] == [GIVEN]
    assert (await run.state()).trace != ID  # it is still the execution that it was


async def test_a_cloudevent_that_names_its_trace_is_not_told_another(world: World) -> None:
    run = await world.start(waits, id="cloud")
    with tracing(GIVEN):
        await run.send("go", 1, attributes={"traceparent": f"00-{'a' * 32}-{SPAN}-01"})
    await run.result()
    [received] = [entry for entry in await run.log() if entry.type == "EventReceived"]
    assert "trace" not in received.data and received.data["attributes"]["traceparent"][3] == "a"


# What belongs together.


async def test_children_and_actions_that_run_apart_inherit_it(world: World, lines: Lines) -> None:
    with tracing(GIVEN):
        run = await world.start(family, id="family")
    told = await run.result()
    assert [id_in(one) for one in told] == [ID] * 3
    assert len({SPAN, *(one[36:52] for one in told)}) == 4  # each call is a part of its own
    assert lines.traces("family") == lines.traces("family.2") == {ID}


def test_a_worker_that_has_only_the_action_logs_the_trace_of_its_caller(lines: Lines) -> None:
    async def main() -> None:
        async with World(workers=0) as world:
            world.add_worker(queues=["default"])
            world.add_worker(queues=["tracing-apart"])
            with tracing(GIVEN):
                await world.run(family, id="family")

            log = await world.app.get("family").log()
            asked.extend(entry.version for entry in log if entry.type == "ActionScheduled")

    asked: list[int] = []
    run(main())
    [line] = [line for line in lines.lines if line["message"] == "told apart"]
    assert (line["tenant"], line["execution"], line["trace"]) == ("default", "family", ID)
    assert [line["version"]] == asked
    assert line["worker"] == "node-1"


async def test_a_child_inherits_also_the_trace_that_nobody_gave(world: World, lines: Lines) -> None:
    run = await world.start(family, id="family")
    told = {id_in(one) for one in await run.result()}
    assert told == {(await of_head(run)).id} == lines.traces("family") == lines.traces("family.2")


async def test_what_an_action_or_a_workflow_starts_belongs_to_its_trace(world: World) -> None:
    @workflow(name="tracing-starting")
    async def starting() -> None:
        await starts("by-action")
        await workflow.start(leaf, id="by-workflow")
        await workflow.send("waiting", "go")

    waiting = await world.start(waits, id="waiting")
    with tracing(GIVEN):
        await world.run(starting)
    assert [id_in((await begun(world.app, f"default/{id}")).trace) for id in ("by-action", "by-workflow")] == [ID, ID]
    await waiting.result()
    [received] = [entry for entry in await waiting.log() if entry.type == "EventReceived"]
    assert id_in(received.data["trace"]) == ID


async def test_each_time_of_a_schedule_is_a_trace_of_its_own(world: World) -> None:
    with tracing(GIVEN):
        await world.app.schedules.create("tracing", leaf, every="1h")
    await world.advance("2h")
    heads = await world.store.find(Query("default", workflow="tracing-leaf"))
    traces = {(await world.app.get(head.key.partition("/")[2]).state()).trace for head in heads}
    assert len(traces) == len(heads) == 2 and ID not in traces


def test_a_worker_does_not_belong_to_the_trace_of_who_began_it() -> None:
    async def main() -> None:
        async with Perdure("memory://") as app:
            with tracing(GIVEN):
                async with app.working():
                    with tracing(None):
                        run = await app.start(starter, "of-nobody")
                    await run.result(20)
            assert ID not in (await begun(app, "default/of-nobody")).trace

    asyncio.run(main())


async def test_a_fork_keeps_the_trace(world: World) -> None:
    with tracing(GIVEN):
        run = await world.start(waits, id="origin")
    await run.until("waiting")
    fork = await run.fork(id="fork")
    assert (await fork.state()).trace == ID


async def test_a_log_from_elsewhere_may_name_what_is_no_trace(world: World, lines: Lines) -> None:
    run = await world.start(waits, id="origin")
    await run.until("waiting")
    row, *_ = await world.rows(run.key)
    data = row.data[:-1] + b',"trace":"\\u001b[2J"}'
    await world.app.adopt([perdure.core.records.Row(1, row.type, data, row.at)], "adopted")
    await world.app.get("adopted").until("waiting")
    assert lines.traces("adopted") == {of_execution("", "default/adopted", row.at).id}


def test_an_action_that_found_no_place_here_logs_elsewhere_how_far_its_execution_was(lines: Lines) -> None:
    async def main() -> None:
        async with World(workers=2, concurrency=1, spill="1s") as world:
            await asyncio.gather(*(world.run(crowded, id=f"crowded-{number}") for number in range(4)))
            logs = [await world.app.get(f"crowded-{number}").log() for number in range(4)]
            apart.extend(entry for log in logs for entry in log if entry.type == "ActionScheduled")

    apart: list[Any] = []
    run(main())
    told = [line for line in lines.lines if line["message"] == "told slowly"]
    assert apart and len(told) == 4
    assert [line for line in told if not {"tenant", "execution", "version", "worker", "trace"} <= line.keys()] == []


# Checkpoints and take-overs.


@pytest.mark.parametrize("given", [GIVEN, None])
async def test_a_worker_that_loads_only_the_checkpoint_knows_the_trace(
    given: str | None, world: World, lines: Lines
) -> None:
    with tracing(given):
        run = await world.start(rounds, 2, id="rounds")
    wanted = (await of_head(run)).id
    for _ in range(2):
        await world.advance("1h")
        await run.send("go")
        await world.settle()
    await world.crash()  # nobody has it in memory any more
    await run.send("go")
    assert [id_in(one) for one in await run.result()] == [wanted, wanted]
    rows = [ev.read(row) for row in await world.rows(run.key)]
    assert [row.trace for row in rows if isinstance(row, ev.Restarted)] == [given or ""] * 2
    assert lines.traces("rounds") == {wanted}
    assert (wanted == ID) == (given is not None)


def test_two_workers_have_the_same_trace_for_it_and_each_attempt_the_same_place() -> None:
    told: list[str] = []

    @action(name="tracing.dies", retries=Retry(attempts=3, first="1s"))
    async def dies(world: str) -> None:
        told.append(action.traceparent)
        if len(told) == 1:
            await asyncio.sleep(3600)
        if len(told) == 2:
            raise ValueError("once more")

    @workflow(name="tracing-dying")
    async def dying() -> None:
        await dies("x")

    async def main() -> None:
        async with World(lease="5s") as world:
            execution = await world.start(dying)
            await world.settle()
            await world.crash()
            await execution.result()
            place = (await of_head(execution)).within(f"{execution.key}/1/tracing.dies")
            assert len(told) == 3 and set(told) == {str(place)}

    run(main())


# What code asks for.


async def test_an_action_in_a_process_of_its_own_has_it_too(world: World) -> None:
    @workflow(name="tracing-process")
    async def processed() -> str:
        return await traced_in_a_process()

    with tracing(GIVEN):
        assert id_in(await world.run(processed)) == ID


def test_outside_of_actions_there_is_none_to_ask_for() -> None:
    with pytest.raises(UsageError, match=r"action\.traceparent works only inside a running action"):
        _ = action.traceparent


# Lines.


@action(name="tracing.flaky", retries=Retry(attempts=3, first="1s"))
async def flaky() -> None:
    log.warning("attempt %d", action.attempt)
    await asyncio.sleep(1)
    if action.attempt < 3:
        raise ConnectionError("not yet")


@workflow(name="tracing-works")
async def works() -> None:
    workflow.log.info("begins")
    await flaky()
    await leaf()
    await tells_apart()
    workflow.log.info("ends")


@workflow(name="tracing-hangs")
async def hangs() -> None:
    await tells("before")
    await asyncio.Event().wait()


@action(name="tracing.long")
async def long() -> None:
    await asyncio.sleep(3600)


@workflow(name="tracing-poison")
async def poison() -> None:
    await long()


def test_every_line_about_an_execution_has_its_trace_whatever_happens(lines: Lines) -> None:
    wanted = run(_trouble())
    about = [line for line in lines.lines if "execution" in line]
    assert [line for line in about if line.get("trace") != wanted[line["execution"]]] == []
    assert {"given", "own-0", "hangs", "poison"} <= {line["execution"] for line in about}
    assert [line for line in about if not {"tenant", "version", "worker"} <= line.keys()] == []
    said = " ".join(line["message"] for line in about)
    for words in ("attempt 3", "can bring", "workers in a row", "begins", "ends", "told apart", "told leaf"):
        assert words in said, words
    assert re.search("lost to another worker|gone on with it|lease ran out", said), said


async def _trouble() -> dict[str, str]:
    """Retries, a worker that stops and comes back, code that hangs, code that kills; gives the traces by execution."""
    async with World(workers=2, lease="3s", lapses=1, grace="1s") as world:
        with tracing(GIVEN):
            runs = [await world.start(works, id="given")]
        runs += [await world.start(works, id=f"own-{n}") for n in range(3)]
        await world.start(hangs, id="hangs")
        poisoned = await world.start(poison, id="poison")
        await world.advance("0.5s")
        frozen, *_ = world.workers
        frozen.process.stop()
        await world.advance("10s")
        frozen.process.cont()
        for one in runs:
            await one.result()
        while await poisoned.status() != "stuck":
            await poisoned.until("running")
            for worker in world.workers:
                worker.process.kill()
            world.add_worker()
            await world.advance("4s")
        keys = [head.key for head in await world.heads()]
        starts = {key: (await world.rows(key))[0] for key in keys}
        given = {key: (await begun(world.app, key)).trace for key in keys}
        return {key.partition("/")[2]: of_execution(given[key], key, starts[key].at).id for key in keys}


def test_no_place_in_the_engine_names_an_execution_and_not_its_trace() -> None:
    """What a line says about where it comes from is written there, or in a function that is called so: `about`."""
    found = [
        (f"{path.name}:{one.lineno}", names)
        for path in Path(perdure.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.keyword) and node.arg == "extra")
        or (isinstance(node, ast.FunctionDef) and node.name.strip("_") == "about")
        for one in ast.walk(node)
        if isinstance(one, ast.Dict)
        and "execution" in (names := {key.value for key in one.keys if isinstance(key, ast.Constant)})
    ]
    assert len(found) >= 2  # the worker's and the sealed store's
    assert [place for place, names in found if "trace" not in names] == []


def test_a_line_of_no_execution_has_the_trace_of_its_block_or_none(lines: Lines) -> None:
    log.info("of nobody")
    with tracing(GIVEN):
        log.info("of a block")
        with tracing(None):
            log.info("of nobody again")
    assert [line.get("trace") for line in lines.lines] == [None, ID, None]


def test_the_console_shows_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    ours = logging.getLogger("perdure")
    before = list(ours.handlers), ours.level, ours.propagate
    try:
        configure(Settings())
        log.info("taken", extra={"execution": "default/order-1", "trace": ID})
    finally:
        ours.handlers[:], ours.propagate = before[0], before[2]
        ours.setLevel(before[1])
    assert capsys.readouterr().err.endswith(f"taken tenant=default execution=order-1 trace={ID}\n")


# Sealed stores.


def test_a_sealed_store_keeps_the_trace_and_hides_it(tmp_path: Path, lines: Lines) -> None:
    DirectoryRing.create(str(tmp_path / "ring"))

    async def main() -> None:
        app = Perdure(f"sqlite:///{tmp_path / 's.db'}", keyring=str(tmp_path / "ring"))
        async with app, app.working(QUEUES):
            with tracing(GIVEN):
                run = await app.start(family, id="sealed")
            assert {id_in(one) for one in await run.result(20)} == {ID}

    asyncio.run(main())
    assert lines.traces("sealed") == {ID}
    assert ID.encode() not in b"".join(one.read_bytes() for one in tmp_path.glob("s.db*"))


@pytest.mark.parametrize("rounds_left", [0, 1])
def test_what_nobody_can_read_any_more_has_the_trace_that_is_its_own(
    rounds_left: int, tmp_path: Path, lines: Lines
) -> None:
    ring = str(tmp_path / "ring")
    DirectoryRing.create(ring)

    async def main() -> str:
        app = Perdure(f"sqlite:///{tmp_path / 's.db'}", keyring=ring, probe=0.1, lease=0.5)
        async with app:
            run = await app.start(rounds, rounds_left, id="doomed", tenant="acme")
            if rounds_left:
                async with app.working():
                    await run.send("go")
                    while (await run.head()).base == 1:
                        await asyncio.sleep(0.02)
            wanted = await of_head(run)
            await run.send("go")
            DirectoryRing(ring).shred("acme")
            app.store.seals.ring._known.clear()  # type: ignore[attr-defined]
            async with app.working():
                while not (await app.dead(tenant="acme")).dead:
                    await asyncio.sleep(0.02)
            return wanted.id

    async def bounded() -> str:
        async with asyncio.timeout(20):
            return await main()

    wanted = asyncio.run(bounded())
    [line] = [line for line in lines.lines if "is stuck" in line["message"]]
    assert (line["execution"], line["tenant"], line["trace"]) == ("doomed", "acme", wanted)


def test_a_worker_whose_key_is_gone_in_the_middle_still_says_which_trace_it_was(tmp_path: Path, lines: Lines) -> None:
    ring = str(tmp_path / "ring")
    DirectoryRing.create(ring)

    @action(name="tracing.shreds")
    async def shreds() -> None:
        DirectoryRing(ring).shred("acme")
        action.app.store.seals.ring._known.clear()

    @workflow(name="tracing-shredding")
    async def shredding() -> None:
        await shreds()

    async def main() -> None:
        app = Perdure(f"sqlite:///{tmp_path / 's.db'}", keyring=ring, probe=0.1, lease=0.5)
        async with asyncio.timeout(20), app, app.working():
            with tracing(GIVEN):
                await app.start(shredding, id="doomed", tenant="acme")
            while not (await app.dead(tenant="acme")).dead:
                await asyncio.sleep(0.02)

    asyncio.run(main())
    refused, *_ = [line for line in lines.lines if line.get("execution") == "doomed"]
    assert "were destroyed" in refused["message"] and refused["trace"] == ID
    assert all(line.get("trace") for line in lines.lines if "execution" in line)


def test_a_task_that_serves_many_forgets_who_began_it() -> None:
    """What the first request begins goes on for all: the writer of starts, the listener for ends."""

    async def main() -> None:
        async with Perdure("memory://") as app:
            seen: list[Trace | None] = []
            write = app.store.start

            async def look(*args: Any) -> Any:
                seen.append(here())
                return await write(*args)

            app.store.start = look  # type: ignore[method-assign]
            with tracing(GIVEN):
                await app.start(leaf)
            assert seen == [None]

    asyncio.run(main())


def test_what_goes_on_after_the_call_that_began_it_belongs_to_nobody_in_particular() -> None:
    """Readers of streams, the listener for ends and the writers of batches, whatever request came first."""
    home = Path(perdure.__file__).parent
    calls = [
        (f"{path.name}:{node.lineno}", {keyword.arg for keyword in node.keywords})
        for folder in ("streams", "runtime/callers")
        for path in (home / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "create_task"
    ]
    assert len(calls) >= 5
    assert [place for place, names in calls if "context" not in names] == []


def test_a_row_of_an_older_release_has_no_trace() -> None:
    row = ev.row(ev.Started("w", 1, ev.NULL, "ann"), 1, 5)
    assert b"trace" not in row.data
    read = ev.read(row)
    assert isinstance(read, ev.Started) and read.trace == ""
    with pytest.raises(Undecodable):
        ev.read(perdure.core.records.Row(1, row.type, row.data[:-1] + b',"trace":7}', 5))
