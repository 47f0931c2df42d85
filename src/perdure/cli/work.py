"""Commands that run code, and those that tell what code there is."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from typer import Argument, Option

from perdure.cli import loading
from perdure.cli.command import Call, Module, command
from perdure.cli.display import add_row, compact, styled, table
from perdure.core.durations import show as span
from perdure.errors import UsageError
from perdure.flows.action import Action
from perdure.flows.registry import registry
from perdure.flows.workflow import Workflow
from perdure.runtime.settings import Settings

WORK, CODE = "Work", "Code"


@command("worker", WORK)
def worker(
    call: Call,
    module: Module,
    queues: Annotated[str | None, Option("--queues", metavar="A,B", help="The queues to serve.")] = None,
    concurrency: Annotated[int | None, Option("--concurrency", min=1, help="Actions at once, in each process.")] = None,
    processes: Annotated[int | None, Option("--processes", min=1, help="Worker processes to keep alive.")] = None,
    health: Annotated[
        str | None, Option("--health", metavar="HOST:PORT", help="Answer health checks and metrics here.")
    ] = None,
    all_logs: Annotated[bool, Option("--all-logs", help="Log also what other libraries and your code say.")] = False,
    supervised: Annotated[bool, Option("--supervised", hidden=True)] = False,
) -> int:
    """Run a worker until SIGTERM or Ctrl-C.

    It then finishes what runs, gives back what it holds, and ends with 0. A second signal ends it at once, with 128 +
    the signal's number. With --processes, each process is started again when it dies, and the ports of --health count
    upwards. Logs go to stderr.

    Example: perdure worker shop.py --queues default,mail --concurrency 50 --processes 4 --health 127.0.0.1:9464
    """
    from perdure.runtime import service
    from perdure.runtime.telemetry import logs as telemetry
    from perdure.runtime.work.worker import Worker

    # Only what is given on the command line goes above the module's own settings.
    log_format = "json" if call.show.json else None
    chosen = {"queues": queues, "concurrency": concurrency, "processes": processes, "health": health}
    app = call.application(module, code=True, log_format=log_format, **chosen)
    if app.settings.processes > 1 and not supervised:
        return _supervise(app.settings, all_logs)
    telemetry.configure(app.settings, root=all_logs, worker=app.me)

    def ready(one: Worker) -> None:
        names = sorted(registry.definitions())
        if call.show.json:
            call.show.line({"event": "ready", "worker": one.me, "queues": app.settings.queue_names, "workflows": names})
        else:
            for name in names:
                if (found := registry.find(name)) is not None and found.queue not in app.settings.queue_names:
                    call.show.note(f"{name} is on queue {found.queue}, which this worker does not serve")
            call.show.print(
                styled("ready: ", (one.me, "bold"), f" serves {app.settings.queues} with {', '.join(names)}")
            )

    def stopped(code: int) -> None:
        if call.show.json:
            call.show.line({"event": "stopped", "code": code})

    def leave(code: int) -> None:
        stopped(code)
        service.exit_now(code)

    orders = sys.stdin.fileno() if supervised else None
    code = service.run(app, app.settings.queue_names, ready=ready, leave=leave, orders=orders)
    stopped(code)
    return code


def _supervise(settings: Settings, all_logs: bool) -> int:
    """The same command again in each process, which sees that it is one of many and takes its own port."""
    from perdure.runtime import supervisor
    from perdure.runtime.telemetry import health, logs as telemetry

    if settings.store.startswith("memory:"):
        raise UsageError("memory:// lives and dies with its process: several need a store that they share, --store")
    telemetry.configure(settings, root=all_logs)
    commands = []
    for index in range(settings.processes):
        words = [sys.executable, *sys.orig_argv[1:], "--supervised"]
        if settings.health:
            words += ["--health", health.shifted(settings.health, index)]
        commands.append(words)
    return supervisor.Supervisor(commands, settings.drain).run()


@command("dev", WORK)
def dev(
    call: Call,
    module: Module,
    port: Annotated[
        int | None, Option("--port", min=0, max=65535, help="Of the HTTP API; else 8470, or any that is free.")
    ] = None,
) -> int:
    """Run a worker, the HTTP API and the dashboard beside the editor.

    Shows what happens, reloads when the code changes, and replays after every turn, so that code which would not
    survive a crash is found at once. The API asks for no credentials and listens on this machine only.

    Example: perdure dev shop.py
    """
    from perdure.cli import dev as development

    return development.run(call, module, port)


@command("serve", WORK)
def serve(
    call: Call,
    module: Annotated[
        str | None, Argument(metavar="[MODULE]", help="The code of the workflows, as shop.py.", show_default=False)
    ] = None,
    host: Annotated[str, Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, Option("--port", min=0, max=65535, help="0 for any that is free.")] = 8470,
    open: Annotated[bool, Option("--open", help="Ask for no credentials; only on this machine.")] = False,
    work: Annotated[bool, Option("--work", help="Run a worker in the same process.")] = False,
) -> int:
    """Serve the HTTP API and the dashboard until SIGTERM or Ctrl-C.

    Callers show an API key (`perdure keys create`), or a token of the issuer that the settings name. What the API can
    do is described at /docs and /openapi.json.

    Example: perdure serve shop.py --work --open
    """
    try:
        from perdure.http import serving
        from perdure.http.auth import Authenticator, Open, configured
        from perdure.runtime.service import collecting_seldom, exit_now, run_in_loop
    except ImportError as error:
        raise UsageError(f"the API needs further packages: pip install 'perdure[http]' ({error})") from error
    app = call.application(module)
    asks = Authenticator(open=Open(app.tenant)) if open else configured(app)

    def ready(address: str) -> None:
        if call.show.json:
            call.show.line({"event": "ready", "address": address, "dashboard": f"{address}/dashboard/"})
        else:
            whom = "open to everybody on this machine" if open else "for callers with an API key"
            call.show.print(styled("ready: ", (address, "bold"), f" {whom}"))
            call.show.print(styled("dashboard: ", (f"{address}/dashboard/", "bold")))

    async def main() -> int:
        await serving.run(app, asks, host, port, working=work, ready=ready)
        return 0

    with collecting_seldom():
        return run_in_loop(main, app.settings.loop, exit_now)


@command("workflows", CODE)
def workflows(call: Call, module: Module) -> None:
    """List the workflows of a module.

    With --json also the schemas of input, result and events.

    Example: perdure workflows shop.py --json
    """
    loading.load(module)
    loading.registered(module)
    known = [one for one in registry.workflows() if not one.name.startswith("perdure.")]
    if call.show.json:
        call.show.data([_workflow_data(one) for one in known])
        return
    lines = table("workflow", "takes", "gives", "queue", "events", "about", flexible="about")
    for one in known:
        add_row(
            lines,
            styled((one.definition, "bold")),
            styled(_parameters(one)),
            styled(_kind(one.signature.returns.schema())),
            styled(one.queue),
            styled(", ".join(one.events)),
            styled(_first_line(one.description)),
        )
    call.show.print(lines)


@command("actions", CODE)
def actions(call: Call, module: Module) -> None:
    """List the actions of a module.

    With --json also the schemas of parameters and results.

    Example: perdure actions shop.py --json
    """
    loading.load(module)
    known = [one for one in registry.actions() if not one.name.startswith("perdure.")]
    if call.show.json:
        call.show.data([one.schema() for one in known])
        return
    if not known:
        call.show.note(f"{module} registers no action")
        return
    lines = table("action", "takes", "gives", "tries", "limits", "undo", "about", flexible="about")
    for one in known:
        add_row(
            lines,
            styled((one.name, "bold")),
            styled(_parameters(one)),
            styled(_kind(one.signature.returns.schema())),
            styled(_tries(one)),
            styled(_limits(one)),
            styled(one.compensation.name if one.compensation else ""),
            styled(_first_line(one.description)),
        )
    call.show.print(lines)


def _workflow_data(one: Workflow[..., Any]) -> dict[str, Any]:
    return {
        "name": one.name,
        "version": one.version,
        "description": one.description,
        "queue": one.queue,
        "parameters": one.signature.schema(),
        "result": one.signature.returns.schema(),
        "events": {name: codec.schema() for name, codec in one.events.items()},
    }


def _tries(one: Action[..., Any]) -> str:
    if one.how.at_most_once:
        return "1, at most once"
    tries = str(one.how.retry.attempts or "unlimited")
    return f"{tries}, then stuck" if one.how.retry.spent == "stuck" else tries


def _limits(one: Action[..., Any]) -> str:
    limits = {"timeout": one.how.timeout, "deadline": one.how.deadline, "heartbeat": one.how.heartbeat}
    shown = [f"{name} {span(value)}" for name, value in limits.items() if value]
    if one.how.queue:
        shown.append(f"on queue {one.how.queue}")
    if one.how.transactional:
        shown.append("transactional")
    if one.how.concurrency is not None:
        shown.append(f"{one.how.concurrency} at once")
    if one.how.everywhere is not None:
        shown.append(f"{one.how.everywhere} at once everywhere")
    if one.how.breaker is not None:
        shown.append("breaker")
    return ", ".join(shown)


def _parameters(one: Action[..., Any] | Workflow[..., Any]) -> str:
    schema = one.signature.schema()
    required = schema.get("required", [])
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {_kind(kind)}" for name, kind in schema.get("properties", {}).items()
    )


def _kind(schema: Any) -> str:
    """A schema in a word: what JSON it is, or the name of the type."""
    if not isinstance(schema, dict) or not schema:
        return "any"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return f"[{_kind(schema['items'])}]"
    if "title" in schema:
        return str(schema["title"])
    return str(schema.get("type") or compact(schema, 40))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
