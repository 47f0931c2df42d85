"""Dry runs of definitions on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct
from typer import Argument, Option

from perdure.cli.command import Call, command
from perdure.cli.definitions import PANEL, Code
from perdure.cli.display import add_row, entry_cells, entry_data, pairs, status_text, styled, table
from perdure.cli.drawing import DiagramOption, draw
from perdure.errors import InvalidValue, UsageError
from perdure.flows import kinds, reading
from perdure.flows.described import Described
from perdure.flows.registry import registry
from perdure.flows.rehearsal import Cue, Rehearsal, rehearse
from perdure.flows.workflow import Workflow


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """What a dry run is given: the input, what actions return, what is sent."""

    input: Any = None
    results: dict[str, Any] = {}
    events: list[dict[str, Any]] = []


@command("simulate", PANEL)
async def simulate(
    call: Call,
    which: Annotated[str, Argument(metavar="FILE|NAME", help="A definition, or a workflow of --code.")],
    script: Annotated[
        Path | None, Option("--script", metavar="FILE", help="Input, results and events, in JSON or YAML.")
    ] = None,
    input: Annotated[str | None, Option("--input", metavar="JSON", help="The input, instead of the script's.")] = None,
    code: Code = None,
    diagram: DiagramOption = None,
) -> int:
    """Run a definition dry: with given results, in virtual time, without any effect.

    A script has `input`, `results` (by action: a value, or {returns: …}, {raises: "ValueError: …"}, {takes: 5s}, or a
    list of those, one for each call) and `events` (name, payload, by, roles, after). The exit code is 1 if it fails or
    needs a result that was not given.

    Example: perdure simulate order.yaml --script paid.yaml --code shop.py
    """
    given = _script(script)
    if input is not None:
        try:
            given = msgspec.structs.replace(given, input=msgspec.json.decode(input))
        except msgspec.DecodeError as error:
            raise UsageError(f"--input is not JSON: {error}") from error
    call.application(code)
    workflow = _workflow(which)
    if diagram is not None and not isinstance(workflow, Described):
        raise UsageError(f"{which} is code: only what is data can be drawn: machines, graphs and documents")
    done = rehearse(workflow, *_args(workflow, given.input), results=given.results, events=_cues(given.events))
    if diagram is not None and isinstance(workflow, Described):
        call.show.text(draw(workflow.diagram(workflow.marks(done.state)), diagram))
    elif call.show.json:
        call.show.data(_data(done))
    else:
        _show(call, done)
    return 1 if done.needs or done.status == "failed" else 0


def _workflow(which: str) -> Workflow[..., Any]:
    path = Path(which)
    if path.suffix in (".json", ".yaml", ".yml") or path.is_file():
        try:
            body = reading.read(path.read_bytes(), which)
        except OSError as error:
            raise UsageError(f"cannot read {which}: {error.strerror}") from error
        return kinds.build(body, version=1)
    return registry.workflow(which)


def _args(workflow: Workflow[..., Any], input: Any) -> list[Any]:
    """What is data takes one value; code takes a list of arguments."""
    if isinstance(workflow, Described):
        workflow.check_input(input)
        return [input]
    args, _ = workflow.signature.decode(msgspec.json.encode(input or []))
    return list(args)


def _script(path: Path | None) -> Script:
    if path is None:
        return Script()
    try:
        return msgspec.convert(reading.read(path.read_bytes(), str(path)), Script)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise InvalidValue(f"{path} is not a script: {error}") from error


def _cues(events: list[dict[str, Any]]) -> list[Cue]:
    try:
        return [msgspec.convert(one, Cue) for one in events]
    except msgspec.ValidationError as error:
        raise InvalidValue(f"the events of the script: {error}") from error


def _data(done: Rehearsal) -> Mapping[str, Any]:
    return {
        "status": done.status,
        "result": done.result,
        "state": done.state.published,
        "needs": done.needs,
        "log": [entry_data(one) for one in done.log],
    }


def _show(call: Call, done: Rehearsal) -> None:
    lines = table("v", "time", "gap", "event", "what", flexible="what")
    before = None
    for one in done.log:
        add_row(lines, *entry_cells(one, before))
        before = one.at
    call.show.print(lines)
    call.show.print("")
    facts: list[tuple[str, Any]] = [("status", status_text(done.status))]
    if done.status != "waiting":
        facts.append(("result", styled(msgspec.json.encode(done.result).decode())))
    if done.state.published:
        facts.append(("state", styled(msgspec.json.encode(done.state.published).decode())))
    for event in done.waits.get("events", ()):
        facts.append(("waits for", styled(" or ".join(event["names"]))))
    for need in done.needs:
        facts.append(("needs", styled(f"a result of {need}")))
    call.show.print(pairs(facts))
