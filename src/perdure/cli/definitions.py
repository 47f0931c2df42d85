"""Commands about definitions: workflows that are data, published at run time.

What is wrong with a definition is listed as a whole, each problem with its place and how to mend it; then the exit code
is 1 and nothing was published, of none of the files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer import Argument, Option

from perdure.cli.command import AppOption, Call, RunId, command, user
from perdure.cli.display import add_row, ago, styled, table
from perdure.cli.drawing import DiagramOption, draw
from perdure.cli.runs import Reason
from perdure.core.moments import to_micros
from perdure.errors import DefinitionInvalid, UsageError
from perdure.flows.bound import Problem
from perdure.flows.reading import LENGTH
from perdure.runtime.definitions.definitions import Change, Listing, Version
from perdure.runtime.definitions.published import Definition

PANEL = "Definitions"
group = typer.Typer(
    name="definitions",
    help="Published definitions: list them, copy them out and in.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Files = Annotated[list[Path], Argument(metavar="FILE", help="JSON or YAML, one definition each; - is stdin.")]
Code = Annotated[
    str | None, Option("--code", metavar="MODULE", help="The file or module that has the actions, as shop.py.")
]
Name = Annotated[str, Argument(metavar="NAME", help="The definition's name.", show_default=False)]
NameAt = Annotated[str, Argument(metavar="NAME@VERSION", help="Which one.", show_default=False)]


@command("publish", PANEL, act="definitions.publish")
async def publish(
    call: Call,
    files: Files,
    code: Code = None,
    note: Annotated[str, Option("--note", help="Kept in the history.", show_default=False)] = "",
    new: Annotated[bool, Option("--new", help="Make an older content the newest version again.")] = False,
    draft: Annotated[
        bool, Option("--draft", help="Keep it as a draft: unchecked, and nothing can be started.")
    ] = False,
) -> int:
    """Publish definitions: each content is a version, and stays what it is.

    What was published before keeps its version, so to publish a folder again does no harm.

    Example: perdure publish order.yaml parcel.json --code shop.py
    """
    texts = {_shown(path): _read(path) for path in files}
    async with call.client(code, create=True) as client:
        if not draft:
            found = {file: await client.definitions.examine(text, file=file) for file, text in texts.items()}
            if problems := _problems(call, found):
                return problems
        made = []
        for file, text in texts.items():
            if draft:
                made.append(await client.definitions.draft(text, by=user(), file=file))
            else:
                made.append(await client.definitions.publish(text, by=user(), note=note, new=new, file=file))
        newest = {one.name: (await client.definitions.get(one.name, draft=draft)).version for one in made}
    if call.show.json:
        call.show.data([_short(one) for one in made])
        return 0
    for one in made:
        what = "kept as a draft" if draft else f"is version {one.version}"
        call.show.print(styled((one.name, "bold"), f" {what}  ", (one.hash[:12], "dim")))
        if newest[one.name] != one.version:
            call.show.note(
                f"version {newest[one.name]} of {one.name} is newer, and what starts take; --new publishes this again"
            )
    return 0


@command("validate", PANEL)
async def validate(call: Call, files: Files, code: Code = None) -> int:
    """Tell all that is wrong with definitions, without publishing them.

    Example: perdure validate order.yaml --code shop.py
    """
    texts = {_shown(path): _read(path) for path in files}
    app = call.application(code)
    found = {file: app.definitions.validate(text, file=file) for file, text in texts.items()}
    problems = _problems(call, found, always=True)
    if not problems and not call.show.json:
        for file in texts:
            call.show.print(styled((file, "bold"), " can be published"))
    return problems


@command("definition", PANEL)
async def definition(
    call: Call,
    name: Name,
    version: Annotated[int | None, Option("--version", help="The one that starts take unless given.")] = None,
    draft: Annotated[bool, Option("--draft", help="The draft.")] = False,
    history: Annotated[bool, Option("--history", help="Who did what, instead of the content.")] = False,
    diagram: DiagramOption = None,
    app: AppOption = None,
) -> None:
    """Show the content of a definition, its history, or a picture of it.

    Example: perdure definition order --version 2
    """
    async with call.client(app) as client:
        if history:
            changes = await client.definitions.history(name)
            if call.show.json:
                call.show.data(changes)
            else:
                call.show.print(_history(changes))
            return
        if diagram is not None:
            call.show.text(draw(await client.definitions.diagram(name, version, draft=draft), diagram))
            return
        found = await client.definitions.get(name, version, draft=draft)
    if call.show.json:
        call.show.data(found)
        return
    call.show.text(json.dumps(found.body, indent=2, ensure_ascii=False) + "\n")


@command("deprecate", PANEL, act="definitions.deprecate")
async def deprecate(
    call: Call,
    which: NameAt,
    reason: Reason = "",
    undo: Annotated[bool, Option("--undo", help="Take it back.")] = False,
    app: AppOption = None,
) -> None:
    """Let nothing begin with a version any more, unless it is asked for by its number.

    Executions that run go on with it.

    Example: perdure deprecate order@2 --reason "charges too early"
    """
    name, _, number = which.rpartition("@")
    if not name or not number.isdecimal():
        raise UsageError(f"name one version, as order@2, not {which!r}")
    if undo and call.act is not None:
        call.act = msgspec.structs.replace(call.act, act="definitions.restore")
    async with call.client(app) as client:
        if undo:
            await client.definitions.restore(name, int(number), by=user())
        else:
            await client.definitions.deprecate(name, int(number), reason, by=user())
        found = await client.definitions.get(name, int(number))
    if call.show.json:
        call.show.data(_short(found))
    else:
        call.show.print(styled((which, "bold"), " is restored" if undo else " is deprecated"))


@command("upgrade", PANEL, act="definitions.upgrade")
async def upgrade(
    call: Call,
    id: RunId,
    to: Annotated[int, Option("--to", metavar="VERSION", help="Of its definition.")],
    timeout: Annotated[str, Option("--timeout", help="How long a worker may take to do it.")] = "30s",
    app: AppOption = None,
) -> None:
    """Let a running execution go on with another version of its published definition.

    It must be at rest, and stand where the other version can go on; else nothing changes and you are told why.

    Example: perdure upgrade order-42 --to 3
    """
    async with call.client(app) as client:
        run = client.get(id)
        try:
            await run.migrate(to, by=user(), timeout=timeout)
        except TimeoutError:
            head = await run.head()
            raise UsageError(
                f"{id} was asked to go on with version {to}, and no worker has done it within {timeout}: it will when"
                f" one serves queue {head.queue!r}"
            ) from None
        state = await run.state()
    if call.show.json:
        call.show.data({"id": id, "definition": state.definition, "version": state.version})
    else:
        call.show.print(styled((id, "bold"), f" goes on with version {to}"))


# The group.


@command("list", group=group)
async def list_all(call: Call, app: AppOption = None) -> None:
    """List what was published.

    Example: perdure definitions list
    """
    async with call.client(app) as client:
        found = await client.definitions.list()
        if call.show.json:
            call.show.data(found)
            return
        if not found:
            call.show.note("nothing was published")
            return
        rows = table("name", "kind", "newest", "versions", "deprecated", "published", "by", flexible="deprecated")
        for one in found:
            add_row(rows, *_cells(one, client.clock.now()))
        call.show.print(rows)


@command("export", group=group)
async def export(
    call: Call,
    file: Annotated[Path, Argument(metavar="FILE", help="Where to; - is stdout.")],
    names: Annotated[list[str] | None, Option("--name", help="Only this one; repeatable.")] = None,
    app: AppOption = None,
) -> None:
    """Write every version of all definitions into one file.

    The same definitions give the same bytes, so the file can be kept in version control.

    Example: perdure definitions export definitions.json
    """
    async with call.client(app) as client:
        bundle = await client.definitions.export(names)
    if str(file) == "-":
        call.show.text(bundle)
        return
    file.write_text(bundle, encoding="utf-8")
    count = len(json.loads(bundle)["definitions"])
    if call.show.json:
        call.show.data({"file": str(file), "versions": count})
    else:
        call.show.print(styled(f"{count} version(s) written to ", (str(file), "bold")))


@command("import", group=group, act="definitions.import")
async def import_(
    call: Call, file: Annotated[Path, Argument(metavar="FILE", help="A bundle; - is stdin.")], app: AppOption = None
) -> int:
    """Publish what a file of `definitions export` has, under the same versions.

    What is there already is left alone. If a version is there with another content, nothing is imported.

    Example: perdure definitions import definitions.json
    """
    bundle = _bytes(file)
    async with call.client(app, create=True) as client:
        try:
            new = await client.definitions.import_(bundle, by=user())
        except DefinitionInvalid as error:
            return _tell(call, {_shown(file): _only(error.problems)})
    if call.show.json:
        call.show.data([_short(one) for one in new])
        return 0
    for one in new:
        call.show.print(styled((one.name, "bold"), f" is version {one.version}  ", (one.hash[:12], "dim")))
    if not new:
        call.show.note("everything was there already")
    return 0


# How it looks.


def _problems(call: Call, found: dict[str, list[Problem]], always: bool = False) -> int:
    """Show what is wrong; 1 if something is that forbids publishing."""
    wrong = any(one.level == "error" for problems in found.values() for one in problems)
    if wrong or always:
        return _tell(call, found)
    for problems in found.values():
        for one in problems:
            call.show.note(str(one))
    return 0


def _tell(call: Call, found: dict[str, list[Problem]]) -> int:
    wrong = any(one.level == "error" for problems in found.values() for one in problems)
    if call.show.json:
        data = [{"file": file, **msgspec.structs.asdict(one)} for file, problems in found.items() for one in problems]
        call.show.data({"ok": not wrong, "problems": data})
        return int(wrong)
    if any(found.values()):
        rows = table("file", "where", "what", "how to mend it", flexible="what")
        for file, problems in found.items():
            for one in problems:
                colour = "red" if one.level == "error" else "yellow"
                rows.add_row(styled(file), styled((one.where, "bold")), styled((one.message, colour)), styled(one.fix))
        call.show.print(rows)
    return int(wrong)


def _only(problems: Iterable[Any]) -> list[Problem]:
    return [one for one in problems if isinstance(one, Problem)]


def _short(one: Definition) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(one)
    return {name: value for name, value in data.items() if name not in ("body", "bounds")}


def _cells(one: Listing, now: int) -> list[Any]:
    last: Version | None = one.versions[-1] if one.versions else None
    deprecated = [str(version.version) for version in one.versions if version.deprecated is not None]
    newest = str(one.newest) if one.newest is not None else "-"
    return [
        styled((one.name, "bold")),
        styled(one.kind),
        styled(newest + (" + draft" if one.draft else "")),
        styled(str(len(one.versions))),
        styled((", ".join(deprecated), "yellow")),
        styled((ago(to_micros(last.published_at), now) if last is not None else "", "dim")),
        styled(last.by if last is not None else ""),
    ]


def _history(changes: list[Change]) -> Any:
    rows = table("time (UTC)", "what", "version", "by", "hash", "note", flexible="note")
    for one in changes:
        add_row(
            rows,
            styled((f"{one.at:%Y-%m-%d %H:%M:%S}", "dim")),
            styled((one.what, "bold")),
            styled(str(one.version or "")),
            styled(one.by),
            styled((one.hash[:12], "dim")),
            styled(one.note),
        )
    return rows


def _shown(path: Path) -> str:
    return "stdin" if str(path) == "-" else str(path)


def _read(path: Path) -> bytes:
    """No more of a file than shows that it is too long."""
    return _bytes(path, LENGTH + 1)


def _bytes(path: Path, most: int = -1) -> bytes:
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(most)
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
