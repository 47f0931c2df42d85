"""What all commands share: their options, their errors, their way to the store.

`@command` adds --store, --tenant, --config, --json and --debug to a function and hands it a `Call`. Rules kept here:
stdout has the answer and nothing else; errors and notes go to stderr; exit codes are 0 (done), 1 (the answer is no: a
failed run, a missing execution, a store out of reach), 2 (asked wrongly), 130 (interrupted).
"""

from __future__ import annotations

import functools
import getpass
import inspect
import os
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from perdure.cli import loading
from perdure.cli.display import Display
from perdure.core.behalf import noted_already
from perdure.errors import (
    DefinitionNotFound,
    EventConflict,
    ExecutionEnded,
    ExecutionExists,
    ExecutionNotFound,
    HookNotFound,
    InvalidValue,
    KeyNotFound,
    MigrationRefused,
    NotRegistered,
    PerdureError,
    SettingsError,
    StoreError,
    StoreOutdated,
    UsageError,
)
from perdure.runtime import interrupts
from perdure.runtime.app import Perdure
from perdure.runtime.managing.audit import Act
from perdure.runtime.sources import CONFIG
from perdure.runtime.urls import redacted

app = typer.Typer(
    name="perdure",
    help="Durable workflows in plain asyncio.",
    epilog="Exit codes: 0 done, 1 the answer is no (a failed run, nothing found), 2 asked wrongly.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunId = Annotated[str, Argument(metavar="ID", help="The execution's id.", show_default=False)]
Module = Annotated[str, Argument(metavar="MODULE", help="A file or module, shop.py, shop or shop:app.")]
AppOption = Annotated[str | None, Option("--app", metavar="MODULE", help="Use the application of this file or module.")]
_StoreOption = Annotated[
    str | None,
    Option(
        "--store",
        metavar="URL",
        help="Where everything is kept; else the setting `store`.",
        rich_help_panel="All commands",
    ),
]
_StreamOption = Annotated[
    str | None,
    Option(
        "--stream",
        metavar="URL",
        help="What hints travel on, as redis://HOST or nats://HOST; else the setting `stream`.",
        rich_help_panel="All commands",
    ),
]
_TenantOption = Annotated[str | None, Option("--tenant", help="Whose executions.", rich_help_panel="All commands")]
_ConfigOption = Annotated[
    str | None,
    Option(
        "--config",
        metavar="FILE",
        help="Settings from this file; else PERDURE_CONFIG, perdure.toml or pyproject.toml.",
        rich_help_panel="All commands",
    ),
]
_ReasonOption = Annotated[str, Option("--reason", help="Why, for the audit.")]
_JsonOption = Annotated[bool, Option("--json", help="Answer in JSON.", rich_help_panel="All commands")]
_DebugOption = Annotated[bool, Option("--debug", help="Show the traceback.", rich_help_panel="All commands")]
_SHARED: dict[str, tuple[Any, Any]] = {
    "store": (_StoreOption, None),
    "stream": (_StreamOption, None),
    "tenant": (_TenantOption, None),
    "config": (_ConfigOption, None),
    "json": (_JsonOption, False),
    "debug": (_DebugOption, False),
}

_HINTS: list[tuple[type[PerdureError], str]] = [
    (ExecutionNotFound, "looked in {store}, tenant {tenant}; --store and --tenant name others"),
    (ExecutionEnded, "`perdure retry` and `perdure fork` make a new execution of its log"),
    (ExecutionExists, "`perdure show` tells about the one that is there"),
    (EventConflict, "an event id stands for one event: leave --id out, or send the same payload"),
    (DefinitionNotFound, "`perdure definitions list` shows what was published in {store}, tenant {tenant}"),
    (
        MigrationRefused,
        "`perdure show` tells where it stands, `perdure definition NAME --version N` what the version is",
    ),
    (KeyNotFound, "looked in {store}, tenant {tenant}; --store and --tenant name others"),
    (HookNotFound, "looked in {store}, tenant {tenant}; --store and --tenant name others"),
    (NotRegistered, "`perdure workflows MODULE` lists what a module registers"),
    (InvalidValue, "`perdure workflows MODULE --json` has the types; a string of digits is written '\"42\"'"),
    (SettingsError, "`perdure config` lists every setting and where its value comes from"),
    (StoreOutdated, "the store is {store}"),
    (StoreError, "the store is {store}; --store or PERDURE_STORE name another"),
]


class Call:
    """One invocation: what the shared options say."""

    def __init__(self, store: str | None, stream: str | None, tenant: str | None, json: bool, debug: bool) -> None:
        self.store = store
        self.stream = stream
        self.tenant = tenant
        self.debug = debug
        self.show = Display(json)
        self.app: Perdure | None = None
        self.act: Act | None = None  # to be noted before anything is done
        self.noted = False
        self.typed = False

    def application(self, module: str | None = None, *, code: bool = False, **settings: Any) -> Perdure:
        """The application of a module, or one on the store alone."""
        self.app = loading.application(module, store=self.store, stream=self.stream, tenant=self.tenant, **settings)
        if code and module is not None:
            loading.registered(module)
        return self.app

    @asynccontextmanager
    async def client(
        self, module: str | None = None, *, code: bool = False, create: bool = False
    ) -> AsyncIterator[Perdure]:
        """An open application without a worker.

        With `code` the module must register something. A store that is not there is made only with `create`.
        """
        app = self.application(module, code=code)
        _check_place(app, create)
        async with app:
            if self.act is not None:
                await app.audit.note(self.act)
                self.act, self.noted = None, True
            with noted_already(self.noted):
                yield app

    def hint(self, error: PerdureError) -> str:
        for kind, hint in _HINTS:
            if isinstance(error, kind) and (kind is not InvalidValue or self.typed):
                store = self.app.settings.store if self.app is not None else self.store
                tenant = self.app.tenant if self.app is not None else self.tenant
                return hint.format(store=redacted(store or ""), tenant=tenant)
        return ""


def _check_place(app: Perdure, create: bool) -> None:
    path = getattr(app.store, "path", None)
    if path is None and app.settings.store.startswith("memory:"):
        raise UsageError(
            "memory:// lives and dies with its process, so there is nothing here: name a file with --store"
        )
    if path is not None and not create and not Path(path).exists():
        raise StoreError(f"there is no store at {path}")


@contextmanager
def _configured(file: str | None) -> Iterator[None]:
    """Settings from this file, also for an application that a module makes and for processes that are started."""
    before = os.environ.get(CONFIG)
    if file is not None:
        os.environ[CONFIG] = file
    try:
        yield
    finally:
        if file is not None:
            os.environ.pop(CONFIG)
            os.environ.update({} if before is None else {CONFIG: before})


def command(
    name: str, panel: str | None = None, group: typer.Typer = app, act: str = "", typed: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function, plain or async, whose first parameter is the Call.

    A command that administers names its `act`: it is noted in the audit as soon as the store is open, with the reason
    that is given. One that has no use for a reason itself gets the option all the same. A `typed` one takes values of
    types that the code declares.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(fn).parameters

        @functools.wraps(fn)
        def run(
            store: str | None,
            stream: str | None,
            tenant: str | None,
            config: str | None,
            json: bool,
            debug: bool,
            **given: Any,
        ) -> None:
            call = Call(store, stream, tenant, json, debug)
            call.typed = typed
            why = str(given.get("reason") or given.get("note") or "")
            given = {name: value for name, value in given.items() if name in own}
            if act and not given.get("dry_run"):
                call.act = Act(user(), act, _target(given), why, "cli")
            try:
                with call.show.undisturbed(), _configured(config):
                    answer = fn(call, **given)
                    code = interrupts.run(answer) if inspect.iscoroutine(answer) else answer
            except PerdureError as error:
                if debug:
                    raise
                call.show.error(str(error), call.hint(error))
                code = 2 if isinstance(error, UsageError) else 1
            except KeyboardInterrupt:
                code = 130
            raise typer.Exit(code or 0)

        run.__signature__, run.__annotations__ = _signature(fn, bool(act))  # type: ignore[attr-defined]
        return group.command(name, help=_help(fn), rich_help_panel=panel)(run)

    return decorate


def _help(fn: Callable[..., Any]) -> str:
    """The paragraphs of a docstring, each in one line: how wide the terminal is, only the terminal knows."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(fn) or "").split("\n\n"))


def _target(given: Mapping[str, Any]) -> str:
    """What a command is about, as its arguments say."""
    for name in ("id", "name", "which", "ids", "files", "file"):
        if value := given.get(name):
            return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return ", ".join(f"{name}={given[name]}" for name in ("cause", "workflow", "all") if given.get(name))


def user() -> str:
    """Who asks, for the log."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _signature(fn: Callable[..., Any], administers: bool) -> tuple[inspect.Signature, dict[str, Any]]:
    """That of the function without its Call, and with the shared options."""
    hints = typing.get_type_hints(fn, include_extras=True)
    own = [one.replace(annotation=hints[one.name]) for one in inspect.signature(fn).parameters.values()][1:]
    own = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own]
    if administers and not {"reason", "note"} & {one.name for one in own}:
        own.append(Parameter("reason", Parameter.KEYWORD_ONLY, default="", annotation=_ReasonOption))
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _SHARED.items()
    ]
    parameters = [*own, *shared]
    return inspect.Signature(parameters), {one.name: one.annotation for one in parameters}
