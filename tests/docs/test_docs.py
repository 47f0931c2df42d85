"""What the pages say is true: their code runs, and what they list is what there is."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
from perdure import (
    Action,
    Bulk,
    Definitions,
    Perdure,
    Retry,
    Run,
    Schedules,
    Tasks,
    Workflow,
    action,
    errors,
    event,
    workflow,
)
from perdure.cli.main import app as commands_app
from perdure.core import events as ev
from perdure.core.copies import FORMAT
from perdure.errors import PerdureError
from perdure.flows import kinds, reading
from perdure.runtime.external.external import ExternalTasks
from perdure.runtime.managing.tenants import Tenants
from perdure.runtime.settings import MEANING, Settings, type_of
from perdure.runtime.sources import CONFIG
from perdure.testing.servers.ports import free_port
from tests.docs import limits, pictures, routes, settings
from tests.docs.conftest import ROOT, Done, Job, environment
from tests.docs.page import blocks, commands, fits

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
RUNNING = [page for page in PAGES if blocks(page.read_text())]


def text(name: str) -> str:
    return (DOCS / name).read_text()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- code ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job", [("-m", "tests.docs.page", str(page)) for page in RUNNING], ids=[name_of(page) for page in RUNNING]
)
def test_the_code_of_a_page_runs(job: Job, done: Done) -> None:
    assert done.returncode == 0


def test_few_blocks_are_left_out() -> None:
    skipped = [block for page in RUNNING for block in blocks(page.read_text()) if block.skipped]
    assert len(skipped) <= 3


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_hello_is_the_example(page: str) -> None:
    first = blocks((ROOT / page).read_text())[0]
    assert first.code == (ROOT / "examples/hello.py").read_text()


def test_definitions_in_pages_have_no_mistakes() -> None:
    block = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
    found = [text for page in PAGES for text in block.findall(page.read_text())]
    bodies = [reading.read(text, "page.yaml") for text in found if re.match(r"machine:|graph:|document:", text)]
    assert bodies
    for body in bodies:
        problems = [str(one) for one in kinds.check(body) if "this process has no action" not in one.message]
        assert problems == [], body


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_show_what_the_examples_define(name: str) -> None:
    assert (pictures.FOLDER / f"{name}.svg").read_text() == pictures.drawn(name)


def test_the_pages_of_routes_are_made_from_the_code() -> None:
    there = {path.name: path.read_text() for path in routes.FOLDER.iterdir()}
    assert there == routes.pages(), "python -m tests.docs.routes writes them"


def test_every_picture_is_drawn_from_an_example() -> None:
    assert {path.stem for path in pictures.FOLDER.iterdir()} == set(pictures.PICTURES)


# --- commands --------------------------------------------------------------------------------------------------------


def test_the_commands_of_the_tutorial_do_what_it_shows(tmp_path: Path) -> None:
    # Given the two programs of the tutorial
    page = text("tutorial.md")
    hello, shop = (next(b.code for b in blocks(page) if start in b.code) for start in ("hello-1", "# shop.py"))
    (tmp_path / "hello.py").write_text(hello)
    (tmp_path / "shop.py").write_text(shop)
    shown = [(shlex.split(line), printed) for line, printed in commands(page) if line.startswith("perdure")]
    worker = next(words for words, _ in shown if words[1] == "worker")
    shown.sort(key=lambda one: "hello-1" in one[0])  # hello takes its five seconds meanwhile
    # When a worker runs, then every other command answers as shown.
    hello_process = subprocess.Popen(
        [sys.executable, "hello.py"], cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL
    )
    with hello_process, background(worker, tmp_path):
        for words, printed in shown:
            if words is not worker:
                answer(words, printed, tmp_path)


def test_the_way_from_curl_to_production_works_as_it_is_shown(tmp_path: Path) -> None:
    # Given the program of the page, and a server on another port than the one that the page names
    page = text("howto/curl-to-production.md")
    (tmp_path / "shop.py").write_text(blocks(page)[0].code)
    port = str(free_port())
    shown = [
        (line.replace(":8470", f":{port}"), printed.replace(":8470", f":{port}")) for line, printed in commands(page)
    ]
    curls = [one for one in shown if one[0].startswith("curl")]
    keys = [line for line, _ in shown if line.startswith("perdure keys")]
    servers = [line for line, _ in shown if line.startswith(("perdure dev", "perdure serve"))]
    assert (len(curls), len(keys), len(servers)) == (6, 1, 2)
    # When they run, then every line answers as shown.
    with background([*shlex.split(servers[0]), "--port", port], tmp_path, "api"):
        for line, printed in curls[:4]:
            assert fits(shell(line, tmp_path), printed), line
    key = shell(keys[0], tmp_path).split()[0]
    with background([*shlex.split(servers[1]), "--port", port], tmp_path):
        for line, printed in curls[4:]:
            assert fits(shell(line, tmp_path, KEY=key), printed), line


def shell(line: str, folder: Path, **more: str) -> str:
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env={**environment(), **more}, capture_output=True, text=True, check=True
    ).stdout


def answer(words: list[str], printed: str, folder: Path) -> None:
    """Run a command until it answers as shown; one that changes something is run once."""
    deadline = time.monotonic() + 60
    while True:
        done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode == 0 and fits(squeezed(done.stdout), squeezed(printed)):
            return
        if words[1] in ("start", "send") or time.monotonic() > deadline:
            pytest.fail(f"{words} prints\n{done.stdout}{done.stderr}\nnot\n{printed}")


def squeezed(printed: str) -> str:
    """Without what depends on the width of columns."""
    return "\n".join(" ".join(line.split()) for line in printed.splitlines())


@contextmanager
def background(words: list[str], folder: Path, ready: str = "ready") -> Iterator[None]:
    process = subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert any(line.startswith(ready) for line in process.stdout)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


def all_commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its words, those of groups below it as well."""
    for name, command in group.commands.items():
        yield f"{before}{name}", command.params
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{before}{name} ")


def test_commands_and_options_exist() -> None:
    import typer

    known = dict(all_commands(typer.main.get_command(commands_app)))
    used = {
        re.sub(r"`.*", "", line)
        for page in PAGES
        for line in re.findall(r"(?:^\$ |`)(perdure .+)", page.read_text(), re.MULTILINE)
    }
    for line in used:
        words = [word for word in re.split(r"\s+", line) if word]
        command = words[1].rstrip(":,.")
        if " ".join(words[1:3]) in known:
            command = " ".join(words[1:3])
        if command in ("on", "--version"):
            continue
        assert command in known, f"there is no command {line!r}"
        options = {option for param in known[command] for option in param.opts}
        missing = {word for word in words if re.fullmatch(r"--?[a-z-]+", word)} - options
        assert not missing, f"{line!r}: no option {missing}"


# --- lists -----------------------------------------------------------------------------------------------------------


def test_every_setting_is_in_the_table() -> None:
    assert settings.shown() == settings.rows(), "python -m tests.docs.settings writes the table"
    assert list(MEANING) == [field.name for field in msgspec.structs.fields(Settings)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_other_variable_is_named(page: Path) -> None:
    known = {f"PERDURE_{name.upper()}" for name in MEANING} | {CONFIG}
    found = set(re.findall(r"PERDURE_[A-Z_]*[A-Z]", page.read_text()))
    assert {name for name in found if not name.startswith("PERDURE_SECRET")} <= known  # secrets have any name


def test_the_numbers_in_the_table_of_limits_are_those_in_the_code() -> None:
    rows = limits.rows()
    assert len(rows) == limits.lines() > 80, "each row can be read"
    for row in rows:
        assert bool(row.setting) != bool(row.reason), f"{row.what}: a setting, or fixed for a reason"
        fixed = [limits.value(one) for one in limits.FIXED.get(row.what, ())]
        assert row.numbers == ([getattr(Settings(), row.setting)] if row.setting else fixed), row.what


def test_every_limit_is_in_the_table() -> None:
    rows = limits.rows()
    fixed = [row.what for row in rows if not row.setting]
    assert sorted(fixed) == sorted(limits.FIXED)
    numbers = {name for name in MEANING if type_of(name) in ("whole number", "number", "duration")}
    assert {row.setting for row in rows if row.setting} == numbers - limits.TUNING
    assert set(limits.called_like_limits()) - limits.places() == limits.INSIDE


def test_the_tree_of_errors_is_the_one_in_the_code() -> None:
    tree = inspect.cleandoc(errors.__doc__ or "")
    tree = tree[tree.index("    PerdureError") : tree.index("\n\nMessages")]
    assert inspect.cleandoc(f"\n{tree}") in text("reference/errors.md")
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PerdureError)}
    assert set(re.findall(r"^\W*(\w+)", tree, re.MULTILINE)) == kinds


def test_the_types_of_events_are_those_in_the_code() -> None:
    found = re.findall(r"^\| (\d+) \| `(\w+)` \| (.*?) \| .+ \|$", text("reference/log.md"), re.MULTILINE)
    wanted = [
        (str(number), kind.__name__, ", ".join(f"`{field.name}`" for field in msgspec.structs.fields(kind)))
        for number, kind in sorted(ev.TYPES.items())
    ]
    assert found == wanted
    assert FORMAT in text("reference/log.md")


def test_errors_in_the_log_have_the_documented_fields() -> None:
    sentence = text("reference/log.md").partition("An `error` has the fields")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", sentence) == [field.name for field in msgspec.structs.fields(ev.Error)]


# --- the API ---------------------------------------------------------------------------------------------------------

#: What the engine's own parts call and authors do not.
INTERNAL = {
    ExternalTasks: {"settings", "metrics", "me", "use", "close"},
    Perdure: {
        "start_raw",
        "send_raw",
        "cancel_raw",
        "find_definition",
        "find_secret",
        "post",
        "described",
        "running",
        "deliver",
        "call_back",
        "call_http",
        "call_openapi",
        "fork",
        "news",
        "no_news",
        "hear",
        "new_id",
        "refuse_crowd",
        "writes",
        "me",
    },
    Run: {"since_restart", "head_at"},
    Schedules: {"fire"},
    Bulk: {"page", "handle"},
    Action: {"absent", "decode_result", "failure", "same_args"},
    Workflow: {"begin", "check", "decode_result", "failure", "fingerprint", "hash", "resume", "same_args", "undo_of"},
}
FACADES: list[tuple[str, Any]] = [
    ("Perdure", Perdure),
    ("Definitions", Definitions),
    ("ExternalTasks", ExternalTasks),
    ("Schedules", Schedules),
    ("Bulk", Bulk),
    ("Tenants", Tenants),
    ("Tasks", Tasks),
    ("Run", Run),
    ("workflow", type(workflow)),
    ("action", type(action)),
    ("event", type(event)),
    ("Action", Action),
    ("Workflow", Workflow),
]


def signature(function: Callable[..., Any]) -> str:
    """Names and defaults, without annotations."""
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    shown: list[str] = []
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and "*" not in shown and not any(name.startswith("*") for name in shown):
            shown.append("*")
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        shown.append(star + one.name + ("" if one.default is one.empty else f"={one.default!r}"))
    return f"({', '.join(shown)})"


@pytest.mark.parametrize(("name", "owner"), FACADES, ids=[name for name, _ in FACADES])
def test_every_method_is_in_the_api(name: str, owner: Any) -> None:
    page = text("reference/api.md")
    for attribute, value in vars(owner).items():
        if attribute.startswith("_") or attribute in INTERNAL.get(owner, ()):
            continue
        wanted = f"{name}.{attribute}{signature(value)}" if inspect.isfunction(value) else f"{name}.{attribute}"
        assert f"`{wanted}`" in page


def test_the_decorators_are_in_the_api() -> None:
    page = text("reference/api.md")
    for name, made in (
        ("Perdure", Perdure.__init__),
        ("workflow", type(workflow).__call__),
        ("action", type(action).__call__),
        ("Retry", Retry),
    ):
        assert f"`{name}{signature(made)}`" in page


def test_every_public_name_is_in_the_api() -> None:
    page = text("reference/api.md")
    names = [*perdure.__all__, *perdure._EXTRAS]
    assert [name for name in names if not re.search(rf"`{name}[`(.]|^## .*\b{name}\b", page, re.MULTILINE)] == []


# --- prose -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} leads nowhere"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{target}: {slugs}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_prose_is_plain(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->|!\[", "", page.read_text(), flags=re.DOTALL)
    assert "!" not in prose


def test_every_page_can_be_reached() -> None:
    index = text("index.md")
    for page in DOCS.rglob("*.md"):
        name = str(page.relative_to(DOCS))
        of_a_route = page.parent == routes.FOLDER and f"({page.name})" in text("reference/http/index.md")
        assert name in index or of_a_route or name in ("index.md", "adr/0000-template.md")


def test_words_of_the_glossary_are_in_order() -> None:
    words = re.findall(r"^\| ([a-z-]+)(?:, [a-z]+)? \| ", text("glossary.md"), re.MULTILINE)[1:]
    assert words == sorted(words)
