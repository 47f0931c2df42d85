from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from perdure import Settings, action, workflow
from perdure.runtime.telemetry.logs import configure, escaped
from perdure.testing import World

log = logging.getLogger("perdure.telemetry-test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    loggers = (logging.getLogger(), logging.getLogger("perdure"))
    before = [(one, list(one.handlers), one.level, one.propagate) for one in loggers]
    yield
    for one, handlers, level, propagate in before:
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json"))
    log.warning("lost %s", "it", extra={"execution": "tea/order-1", "worker": "w1", "version": 3, "odd": "x"})
    line = json.loads(capsys.readouterr().err)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "perdure.telemetry-test",
        "message": "lost it",
        "tenant": "tea",
        "execution": "order-1",
        "version": 3,
        "worker": "w1",
    }


def test_a_line_of_json_names_the_worker_of_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json"), worker="w1")
    log.info("ours")
    log.info("of another", extra={"worker": "w2"})
    assert [json.loads(line)["worker"] for line in capsys.readouterr().err.splitlines()] == ["w1", "w2"]


async def test_what_actions_and_workflows_log_names_their_execution(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    @action
    async def tells() -> None:
        log.info("in an action")

    @action
    def tells_in_a_thread() -> None:
        log.info("in a thread")

    @workflow
    async def telling() -> None:
        await tells()
        await tells_in_a_thread()
        workflow.log.info("in a workflow")

    configure(Settings(log_format="json"), worker="w1")
    await world.run(telling, id="run")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["message"], one["tenant"], one["execution"]) for one in lines] == [
        ("in an action", "default", "run"),
        ("in a thread", "default", "run"),
        ("in a workflow", "default", "run"),
    ]
    assert lines[-1]["version"] == 3


def test_an_exception_goes_with_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    for settings in (Settings(log_format="json"), Settings()):
        configure(settings)
        try:
            raise ValueError("first\nsecond\x1b[2J")
        except ValueError:
            log.exception("broke")
    first, *rest = capsys.readouterr().err.splitlines()
    assert json.loads(first)["exception"].endswith("ValueError: first\nsecond\x1b[2J")
    assert "broke" in rest[0]
    assert all(line.startswith("    | ") for line in rest[1:])
    assert rest[-1] == r"    | second\x1b[2J"


@pytest.mark.parametrize("format", ["json", "console"])
def test_nothing_in_a_message_can_pass_for_a_record(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format=format))  # type: ignore[arg-type]
    log.info("one\r\n12:00 error two\x9b1m\u2028three\ud800", extra={"execution": "x\ny"})
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert not set(written) & set("\r\x9b\u2028\x1b")


def test_console_lines_have_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings())
    log.info("taken", extra={"execution": "default/order-1"})
    assert capsys.readouterr().err.endswith(" info    telemetry-test: taken tenant=default execution=order-1\n")


def test_console_lines_are_coloured_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    configure(Settings())
    log.error("bad")
    assert "\x1b[31merror  \x1b[0m" in capsys.readouterr().err
    monkeypatch.setenv("NO_COLOR", "1")
    log.error("bad")
    assert "\x1b" not in capsys.readouterr().err


def test_the_level_is_that_of_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_level="error"))
    log.warning("quiet")
    assert capsys.readouterr().err == ""


def test_others_are_left_alone_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    root, other = logging.getLogger(), logging.getLogger("somebody.else")
    before = list(root.handlers), root.level
    configure(Settings())
    assert (root.handlers, root.level) == before
    other.info("not ours")
    assert "not ours" not in capsys.readouterr().err
    configure(Settings(), root=True)
    other.info("asked for")
    log.info("ours")
    written = capsys.readouterr().err
    assert written.count("asked for") == written.count("ours") == 1
    configure(Settings())
    assert root.handlers == before[0]


def test_configuring_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json"))
    configure(Settings())
    log.info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_escaped_text_is_one_harmless_line() -> None:
    assert escaped("ü\ta\u202eb\x07") == r"ü\ta\u202eb\x07"
