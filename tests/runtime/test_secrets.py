"""Secrets by reference: found by the worker, used by the action, and in nothing that is written."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Raw

from perdure import (
    ActionFailed,
    Breaker,
    ExecutionFailed,
    Perdure,
    Permanent,
    Secret,
    Settings,
    action,
    secret,
    workflow,
)
from perdure.core import copies
from perdure.core.codec import codec_for, encode
from perdure.core.events import Error
from perdure.errors import InvalidValue, SecretNotFound, SettingsError, UsageError
from perdure.http.api import api
from perdure.http.auth import Authenticator, Open
from perdure.runtime.secrets.sources import LONGEST, Secrets, from_directory, from_environment, source_of
from perdure.runtime.secrets.watching import HIDDEN, KEPT, Watch, watch as watched
from perdure.runtime.telemetry.logs import configure
from perdure.testing import World

CANARY = 'canary-9f3b/7"q e1'
log = logging.getLogger("perdure.secrets-test")


@pytest.fixture(autouse=True)
def _canary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PERDURE_SECRET_CANARY", CANARY)
    ours = logging.getLogger("perdure")
    before = list(ours.handlers), ours.level, ours.propagate
    yield
    ours.handlers[:], ours.propagate = before[0], before[2]
    ours.setLevel(before[1])


# The reference.


def test_a_secret_shows_nothing_of_itself() -> None:
    one = secret("canary")
    assert (str(one), repr(one), f"{one}", f"{one!r:>5}") == ("***", "***", "***", "  ***")
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(AttributeError):
        one.name = "other"


@pytest.mark.parametrize("wrong", ["", "stripe", "secret://", "secret://../etc", "secret://a/b", "secret://.a"])
def test_only_a_reference_is_a_secret_and_the_text_is_not_repeated(wrong: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Secret(wrong)
    assert "given by reference" in str(caught.value)
    assert not wrong or repr(wrong) not in str(caught.value)


def test_it_is_stored_as_its_reference_also_inside_of_other_values() -> None:
    @dataclass
    class Login:
        user: str
        password: Secret

    login = Login("ada", secret("db"))
    assert encode(login) == b'{"user":"ada","password":"secret://db"}'
    assert codec_for(Login).decode(encode(login)) == login
    assert codec_for(Secret).schema() == {"type": "string", "format": "secret"}


def test_an_error_about_a_value_that_should_be_a_reference_does_not_show_it() -> None:
    for kind, data in ((Secret, CANARY), (list[Secret], [CANARY]), (dict[str, Secret], {"a": CANARY})):
        with pytest.raises(InvalidValue) as caught:
            codec_for(kind).decode(encode(data))
        assert "canary" not in str(caught.value)


# Where they are found.


def test_the_environment_has_those_of_the_own_tenant_only() -> None:
    find = from_environment("acme", {"PERDURE_SECRET_STRIPE_KEY": "sk-1"})
    assert find("acme", "stripe-key") == find("acme", "stripe.key") == "sk-1"
    assert find("acme", "other") is None
    assert find("rival", "stripe-key") is None


def test_a_directory_has_a_file_for_each_and_a_directory_for_each_other_tenant(tmp_path: Path) -> None:
    (tmp_path / "stripe").write_text("sk-1\n")
    (tmp_path / "rival").mkdir()
    (tmp_path / "rival" / "stripe").write_text("sk-2")
    find = from_directory("acme", tmp_path)
    assert (find("acme", "stripe"), find("rival", "stripe"), find("third", "stripe")) == ("sk-1", "sk-2", None)
    assert find("acme", "rival") is None


def test_no_name_and_no_tenant_leads_out_of_its_directory(tmp_path: Path) -> None:
    for place in ("shop", "secrets/shop", "secrets/rival/shop", "secrets/..data/shop"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("a-value")
    found = Secrets(str(tmp_path / "secrets"), "acme")
    assert found.find("acme", "shop") == "a-value"
    for name in ("..", "../shop", "rival/shop", "..data/shop", str(tmp_path / "shop"), ".x", "", "shop\n"):
        with pytest.raises(InvalidValue, match="given by reference"):
            found.find("acme", name)
    for tenant in ("..", ".", "", "..data", "rival/../.."):
        with pytest.raises(UsageError, match="cannot serve as tenant"):
            found.find(tenant, "shop")
    with pytest.raises(SecretNotFound):
        found.find("third", "shop")


def test_a_variable_that_was_not_put_there_to_be_a_secret_cannot_be_named() -> None:
    find = from_environment("acme", {"HOME": "/root", "PERDURE_STORE": "postgresql://u:p@h/d"})
    assert [find("acme", name) for name in ("HOME", "PERDURE_STORE", "store")] == [None] * 3


def test_a_file_that_cannot_be_a_secret_is_refused_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * (LONGEST + 1))
    (tmp_path / "just").write_text("x" * LONGEST)
    (tmp_path / "binary").write_bytes(b"hush\xff\xfe")
    (tmp_path / "empty").write_text("\n")
    found = Secrets(str(tmp_path), "acme")
    assert len(found.find("acme", "just")) == LONGEST
    for name, why in (("long", "more than 10,000 bytes"), ("binary", "not text in UTF-8"), ("empty", "fewer than 4")):
        with pytest.raises(UsageError, match=why) as caught:
            found.find("acme", name)
        assert caught.value.__cause__ is None and "hush" not in str(caught.value)


def test_sources_are_asked_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "both").write_text("of the file")
    (tmp_path / "one").write_text("of the file")
    monkeypatch.setenv("PERDURE_SECRET_BOTH", "of the environment")
    found = Secrets(f"env:, {tmp_path}", "default")
    assert (found.find("default", "both"), found.find("default", "one")) == ("of the environment", "of the file")


def test_a_place_that_is_none_is_refused_at_once() -> None:
    for wrong in ("", "vault://x"):
        with pytest.raises(SettingsError, match="secrets cannot be found at"):
            source_of(wrong, "default")
    with pytest.raises(SettingsError):
        Perdure("memory://", secrets="vault://x")


def test_a_variable_of_a_secret_is_no_unknown_setting() -> None:
    assert Perdure("memory://").settings.secrets == "env:"


def test_a_value_that_cannot_be_told_from_other_text_is_refused() -> None:
    with pytest.raises(UsageError, match="fewer than 4 characters"):
        Secrets("", "t", lambda tenant, name: "abc").find("t", "x")


# In actions.


@action(name="secrets.use")
async def use(key: Secret, note: str = "") -> int:
    return len(key.reveal()) + len(note)


async def test_an_action_gets_the_value_and_the_log_the_reference(world: World) -> None:
    @workflow
    async def using() -> int:
        return await use(secret("canary"), note="!")

    run = await world.start(using)
    assert await run.result() == len(CANARY) + 1
    text = str([row.data async for row in run.rows()])
    assert "secret://canary" in text
    assert "canary-9f3b" not in text


async def test_a_plain_function_reveals_by_name_in_its_thread(world: World) -> None:
    @action(name="secrets.in_a_thread")
    def in_a_thread() -> int:
        return len(secret("canary").reveal())

    @workflow
    async def using_in_a_thread() -> int:
        return await in_a_thread()

    assert await world.run(using_in_a_thread) == len(CANARY)


async def test_a_workflow_cannot_reveal(world: World) -> None:
    @workflow
    async def peeking() -> str:
        return secret("canary").reveal()

    with pytest.raises(ExecutionFailed, match="revealed in an action, not in a workflow"):
        await world.run(peeking)
    with pytest.raises(UsageError, match="only inside a running action"):
        secret("canary").reveal()


async def test_a_value_in_place_of_a_reference_is_refused_before_it_is_written(world: World) -> None:
    careless: Any = use

    @workflow
    async def telling() -> int:
        return await careless(CANARY)

    run = await world.start(telling)
    with pytest.raises(ExecutionFailed, match="given by reference"):
        await run.result()
    assert "canary-9f3b" not in str([row.data async for row in run.rows()])


async def test_a_missing_secret_fails_before_the_function_is_called_and_is_not_tried_again(world: World) -> None:
    called = []

    @action(name="secrets.absent", retries=5)
    async def charge(key: Secret) -> None:
        called.append(1)

    @workflow
    async def charging() -> str:
        try:
            await charge(secret("absent"))
        except ActionFailed as error:
            return f"{error.type} {error.kind} {error.attempts}"
        return ""

    assert await world.run(charging) == "SecretNotFound permanent 1"
    assert not called


async def test_a_missing_secret_says_nothing_about_the_service_behind_the_action(world: World) -> None:
    @action(name="secrets.broken", breaker=Breaker(failures=1, fail_fast=True, counts=(Permanent,)))
    async def broken(key: Secret) -> None: ...

    @workflow
    async def breaking() -> list[str]:
        seen = []
        for _ in range(2):
            try:
                await broken(secret("absent"))
            except ActionFailed as error:
                seen.append(error.type)
        return seen

    assert await world.run(breaking) == ["SecretNotFound"] * 2


def test_a_source_that_fails_is_tried_again_as_the_policy_says() -> None:
    asked = []

    def vault(tenant: str, name: str) -> str | None:
        asked.append((tenant, name))
        if len(asked) == 1:
            raise ConnectionError("the vault is sealed")
        return "a-value-of-the-vault"

    @action(name="secrets.patient", retries=1)
    async def patient(key: Secret) -> int:
        return len(key.reveal())

    @workflow(name="secrets-patient")
    async def waiting() -> int:
        return await patient.options(retries=2)(secret("x"))

    async def main() -> None:
        app = Perdure("memory://", secrets=vault)
        async with app, app.working():
            assert await (await app.start(waiting)).result(20) == 20

    asyncio.run(main())
    assert asked == [("default", "x")] * 2


async def test_a_result_with_the_value_in_it_is_refused(world: World) -> None:
    @action(name="secrets.echo", retries=3)
    async def echo(key: Secret) -> dict[str, str]:
        return {"sent": f"Bearer {key.reveal()}"}

    @workflow
    async def echoing() -> Any:
        return await echo(secret("canary"))

    run = await world.start(echoing)
    with pytest.raises(ExecutionFailed, match="the result of secrets.echo contains the secret 'canary'"):
        await run.result()
    assert "canary-9f3b" not in str([row.data async for row in run.rows()])


def test_errors_are_cleaned_in_all_their_parts() -> None:
    watch = Watch()
    watch.add("acme", CANARY)
    details = Raw(encode({"headers": [CANARY], CANARY: 1}))
    error = Error("E", f"no {CANARY!r}", "", details, cause=Error("F", f"at ?key={CANARY}"))
    hidden = watch.hide_in_error(error, "acme")
    assert hidden.message in (f"no '{HIDDEN}'", f'no "{HIDDEN}"')
    assert json.loads(bytes(hidden.details)) == {"headers": [HIDDEN], HIDDEN: 1}
    assert hidden.cause is not None and hidden.cause.message == f"at ?key={HIDDEN}"
    assert watch.hide_in_error(error, "rival") is error


def test_what_one_tenant_revealed_is_hidden_from_log_lines_of_all() -> None:
    watch = Watch()
    watch.add("acme", "first-value")
    watch.add("rival", "first-value-and-more")
    assert watch.hide("first-value-and-more, first-value") == f"{HIDDEN}, {HIDDEN}"
    assert watch.hide("first-value", "rival") == "first-value"


def test_old_values_are_forgotten() -> None:
    watch = Watch()
    for number in range(KEPT + 1):
        watch.add("acme", f"token-{number:03}")
    assert watch.hide("token-000 token-001", "acme") == f"token-000 {HIDDEN}"
    assert watch.hide("token-000 token-001") == f"token-000 {HIDDEN}"


def test_a_value_that_is_too_short_hides_nothing_else() -> None:
    watch = Watch()
    watch.add("acme", "a")
    assert watch.hide("a banana", "acme") == watch.hide("a banana") == "a banana"


def test_webhooks_find_the_same_secrets_and_log_lines_do_not_show_them() -> None:
    known = {("default", "hook"): "whsec-of-the-hook"}
    app = Perdure("memory://", secrets=lambda tenant, name: known.get((tenant, name)))
    assert asyncio.run(app.secrets.resolve("default", "secret://hook")) == "whsec-of-the-hook"
    assert watched.hide("with whsec-of-the-hook") == "with ***"
    with pytest.raises(SecretNotFound, match="tenant 'rival' has no secret 'hook'"):
        asyncio.run(app.secrets.resolve("rival", "secret://hook"))


@pytest.mark.parametrize("text", ["whsec-of-the-hook", "env:HOOK", "file:hook", "secret://../hook", "secret:hook", ""])
def test_what_should_be_a_reference_and_is_none_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidValue, match="given by reference") as caught:
        asyncio.run(Perdure("memory://").secrets.resolve("default", text))
    assert not text or text not in str(caught.value)


def test_a_source_that_is_slow_does_not_hold_up_the_loop() -> None:
    async def main() -> str:
        asked, answered = threading.Event(), threading.Event()

        def slow(tenant: str, name: str) -> str:
            asked.set()
            assert answered.wait(10)
            return "whsec-of-the-hook"

        finding = asyncio.create_task(Perdure("memory://", secrets=slow).secrets.resolve("default", "secret://hook"))
        while not asked.is_set():
            await asyncio.sleep(0.01)
        answered.set()  # nobody could say this from a loop that stands still
        return await finding

    assert asyncio.run(main()) == "whsec-of-the-hook"


# The canary.


@action(name="secrets.told", retries=1, heartbeat="10s")
async def leaky(key: Secret, way: str) -> str:
    value = key.reveal()
    log.warning("with %s", value)
    action.heartbeat({"auth": value, "step": action.attempt})
    await asyncio.sleep(0.2)  # work, during which the heartbeat is written
    match way:
        case "fails":
            raise ConnectionError(f"401 for {value!r}", value)
        case "notes":
            error = ValueError(f"?key={value}")
            error.add_note(f"sent {value}")
            raise error from KeyError(value)
        case "logs":
            try:
                raise RuntimeError(value)
            except RuntimeError:
                log.exception("broke with %r", value)
    return "done"


@workflow(name="secrets-told")
async def careless(way: str) -> str:
    return await leaky(secret("canary"), way)


async def over_http(app: Perdure, id: str) -> str:
    """All that the API says about an execution."""
    there = api(app, Authenticator(open=Open("default", "ann", ("viewer",))))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(there), base_url="http://localhost") as client:
        whole = f"/v1/executions/{id}"
        pages = [await client.get(f"{whole}{part}") for part in ("", "/log", "/state", "/why", "/result")]
    assert {page.status_code for page in pages} == {200}
    return "".join(page.text for page in pages)


@pytest.mark.parametrize("format", ["json", "console"])
def test_the_canary_is_found_nowhere(format: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "canary.db"

    async def main() -> str:
        said = []
        app = Perdure(f"sqlite:///{file}", probe=0.05)
        async with app, app.working():
            for way in ("works", "fails", "notes", "logs"):
                run = await app.start(careless, way, id=way)
                try:
                    said.append(str(await run.result(20)))
                except ExecutionFailed as error:
                    said.append(f"{error} {error.details}")
                said += [str(await run.log()), str(await run.state()), str(await run.why()), str(await run.head())]
                said.append(str(copies.export(run.key, "default", [row async for row in run.rows()])))
                said.append(await over_http(app, way))
            said.append(str(await app.dead()))
        return "".join(said)

    configure(Settings(log_format=format))  # type: ignore[arg-type]
    answers = asyncio.run(main())
    written = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    errors = capfd.readouterr().err
    for form in ("canary-9f3b", "canary-9f3b%2F7"):
        assert form not in answers
        assert form.encode() not in written
        assert form not in errors
    assert "with ***" in errors and "broke with" in errors
    assert "401 for" in answers and '"auth":"***"' in written.decode(errors="replace")


# In a process of its own.


@action(name="secrets.computed", process=True)
def computed(key: Secret, way: str) -> int:
    if way == "logs":
        log.info("with %s\n", key.reveal())
    if way == "other":
        return len(secret("other").reveal())
    if way == "fails":
        raise ValueError(f"no {key.reveal()}")
    return len(key.reveal())


@workflow(name="secrets-computing")
async def computing(way: str) -> int:
    return await computed(secret("canary"), way)


def test_a_process_gets_those_that_are_passed_to_it() -> None:
    async def main() -> None:
        app = Perdure("memory://", secrets=lambda tenant, name: CANARY)
        async with app, app.working():
            assert await (await app.start(computing, "works")).result(30) == len(CANARY)
            with pytest.raises(ExecutionFailed, match=r"no \*\*\*"):
                await (await app.start(computing, "fails")).result(30)
            with pytest.raises(ExecutionFailed, match="pass it as an argument"):
                await (await app.start(computing, "other")).result(30)

    asyncio.run(main())


def test_lines_of_a_process_are_written_as_those_of_its_worker_and_hide_the_canary(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def main() -> None:
        app = Perdure("memory://", secrets=lambda tenant, name: CANARY)
        configure(Settings(log_format="json"), worker="w1")
        async with app, app.working():
            await (await app.start(computing, "logs", id="run")).result(30)

    asyncio.run(main())
    [line] = [json.loads(one) for one in capfd.readouterr().err.splitlines()]
    told = {name: line[name] for name in ("message", "tenant", "execution", "version", "worker", "level")}
    assert told == {
        "message": "with ***\n",
        "tenant": "default",
        "execution": "run",
        "version": 1,
        "worker": "w1",
        "level": "info",
    }
    assert len(line["trace"]) == 32


# In definitions that are data.


def test_a_definition_names_a_secret_where_an_action_takes_one() -> None:
    document = {
        "machine": "secrets-machine",
        "initial": "begin",
        "states": {
            "begin": {"entry": [{"action": "secrets.use", "with": {"key": "secret://canary"}}], "final": True},
        },
    }

    async def main() -> None:
        app = Perdure("memory://")
        async with app, app.working():
            await app.definitions.publish(document)
            run = await app.start("secrets-machine", None)
            await run.result(20)
            text = str([row.data async for row in run.rows()])
            assert "secret://canary" in text and "canary-9f3b" not in text
            assert f'"result":{len(CANARY)}' in text

    asyncio.run(main())
