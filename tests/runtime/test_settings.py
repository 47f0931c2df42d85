"""Settings: their sources and which one counts, their names, and what stops the start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, Settings
from perdure.errors import SettingsError
from perdure.runtime.backends import connect
from perdure.runtime.settings import MEANING, explain, load, look, type_of
from perdure.runtime.sources import KINDS, OLDER
from perdure.runtime.urls import redacted
from perdure.stores.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no variables of ours."""
    monkeypatch.chdir(tmp_path)
    for name in (*OLDER, *KINDS, "PERDURE_CONFIG", *(f"PERDURE_{name.upper()}" for name in MEANING)):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def refused(environ: dict[str, str] | None = None, **chosen: Any) -> str:
    with pytest.raises(SettingsError) as refusal:
        load(environ, **chosen)
    return str(refusal.value)


# --- which source counts ---------------------------------------------------------------------------------------------


def test_the_caller_counts_more_than_the_environment_and_that_more_than_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "perdure.toml").write_text('lease = "3s"\ngrace = "3s"\nprobe = "3s"\n')
    monkeypatch.setenv("PERDURE_GRACE", "4s")
    monkeypatch.setenv("PERDURE_PROBE", "4s")
    settings = load(probe="5s")
    assert (settings.lease, settings.grace, settings.probe, settings.drain) == (3.0, 4.0, 5.0, 30.0)
    origins = {one.name: (one.source, one.place) for one in explain(look(probe="5s"))}
    assert origins["lease"] == ("file", "perdure.toml:1")
    assert origins["grace"] == ("environment", "PERDURE_GRACE")
    assert origins["probe"][0] == "given"
    assert origins["drain"] == ("default", "")


def test_perdure_toml_counts_and_pyproject_is_not_even_read_beside_it(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.perdure]\nlease = 5\nnonsense = 1\n")
    (folder / "perdure.toml").write_text("grace = 1\n")
    assert (load().lease, load().grace) == (10.0, 1.0)


def test_pyproject_has_a_table_of_ours(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "shop"\n\n[tool.perdure]\nlease = 5\n\n[tool.other]\nx = 1'
    )
    assert [one.place for one in explain(look()) if one.name == "lease"] == ["pyproject.toml:5"]
    (folder / "pyproject.toml").write_text('[project]\nname = "shop"\n')
    assert load() == Settings()


def test_a_variable_names_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "perdure.toml").write_text("lease = 5\n")
    (folder / "other.toml").write_text("grace = 1\n")
    monkeypatch.setenv("PERDURE_CONFIG", str(folder / "other.toml"))
    assert (load().lease, load().grace) == (10.0, 1.0)


def test_an_environment_of_ones_own_is_all_there_is(folder: Path) -> None:
    (folder / "perdure.toml").write_text("lease = 5\n")
    assert load({}) == Settings()
    assert load({"PERDURE_CONFIG": "perdure.toml"}).lease == 5.0


def test_an_application_takes_its_settings_from_the_file(folder: Path) -> None:
    (folder / "perdure.toml").write_text('store = "memory://"\ntenant = "acme"\n')
    assert Perdure().tenant == "acme"
    assert Perdure(tenant="globex").tenant == "globex"


def test_every_setting_can_be_said_in_a_file_and_in_the_environment(folder: Path) -> None:
    other: dict[type, Any] = {str: "json", int: 7, float: 7.5, bool: None, type(None): 7.5}
    for name in MEANING:
        default = getattr(Settings(), name)
        value = other[type(default)] if not isinstance(default, bool) else not default
        value = {"log_level": "debug", "loop": "asyncio", "locks": "stream"}.get(name, value)
        written = str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
        (folder / "perdure.toml").write_text(f"{name} = {written}\n")
        assert getattr(load(), name) == value
        assert getattr(load({f"PERDURE_{name.upper()}": str(value)}), name) == value


# --- what stops the start --------------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(folder: Path) -> None:
    (folder / "perdure.toml").write_text('# Two\n\nleese = "5s"\n')
    assert "perdure.toml:3: leese is not a setting of Perdure: did you mean lease?" in refused()
    (folder / "perdure.toml").write_text("[stream-prefix]\n")
    assert "perdure.toml:1: stream-prefix is not a setting of Perdure: did you mean stream_prefix?" in refused()


def test_an_unknown_variable_and_an_unknown_argument_are_refused() -> None:
    assert "PERDURE_QUEUE is not a setting of Perdure: did you mean PERDURE_QUEUES?" in refused({"PERDURE_QUEUE": "x"})
    assert "PERDURE_lease is not a setting of Perdure: did you mean PERDURE_LEASE?" in refused({"PERDURE_lease": "1"})
    assert "leases is not a setting of Perdure: did you mean lease?" in refused({}, leases=1)
    assert "; `perdure config` lists them all" in refused({"PERDURE_XYZZY": "x"})


@pytest.mark.parametrize(
    "line", ['lease = "long"', 'resident = "many"', 'resident = "7"', "resident = 0", "lease = -1", "queues = ['a']"]
)
def test_a_value_of_the_wrong_type_is_refused_with_its_line(folder: Path, line: str) -> None:
    (folder / "perdure.toml").write_text(f"grace = 1\n{line}\n")
    assert re.match(rf"perdure\.toml:2: {line.split(maxsplit=1)[0]} cannot be .*: ", refused())


#: By type, what a setting of it cannot be: as a variable, and in a file.
WRONG = {
    "duration": (["long", "-1s", "1 month"], ['"long"', "-1", "true", "[1]"]),
    "whole number": (["many", "1.5", "-1", ""], ['"7"', "1.5", "true", "-1"]),
    "number": (["many", "nan", "-1"], ['"many"', "true", "-1"]),
    "true or false": (["maybe", "2", ""], ['"true"', "1"]),
    "text": ([], ["7", "true", "['a']"]),
}


def test_every_setting_refuses_what_is_not_of_its_type(folder: Path) -> None:
    for name in MEANING:
        words, values = WRONG.get(type_of(name), (["another", ""], ['"another"', "7"]))
        for word in words:
            assert refused({f"PERDURE_{name.upper()}": word}).startswith(f"PERDURE_{name.upper()} cannot be ")
        for value in values:
            (folder / "perdure.toml").write_text(f"{name} = {value}\n")
            assert refused().startswith(f"perdure.toml:1: {name} cannot be ")


@pytest.mark.parametrize(
    ("name", "word", "why"),
    [
        ("log_level", "chatty", "it is debug or info or warning or error"),
        ("stream_reclaim", "maybe", "it is true or false"),
        ("processes", "0", "it is a whole number, 1 or more"),
        ("page", "2000", "it is a whole number, 1 or more, 1000 at most"),
        ("api_rate", "many", "it is a number, 0 or more"),
        ("lease", "0", "it is a duration, more than 0"),
        ("queues", ",", "it is a text, with a name in it"),
        ("actor", "", "it is a text, not empty"),
    ],
)
def test_a_refusal_says_what_the_value_has_to_be(name: str, word: str, why: str) -> None:
    assert refused({f"PERDURE_{name.upper()}": word}) == f"PERDURE_{name.upper()} cannot be {word!r}: {why}"


def test_a_worker_of_no_queue_is_a_mistake() -> None:
    for word in ("", " , "):
        assert refused({"PERDURE_QUEUES": word}).startswith(f"PERDURE_QUEUES cannot be {word!r}")


def test_a_lease_lasts() -> None:
    for word in ("0", "0s", "PT0S"):
        assert refused({"PERDURE_LEASE": word}).startswith(f"PERDURE_LEASE cannot be {word!r}: ")
    assert load({"PERDURE_LEASE": "0.5"}).lease == 0.5
    assert load({"PERDURE_WARM": "0"}).warm == 0


def test_what_is_no_toml_is_refused_with_its_line(folder: Path) -> None:
    (folder / "perdure.toml").write_text("lease = 5\ngrace = \n")
    assert re.match(r"perdure\.toml is not TOML: .*line 2", refused())
    (folder / "perdure.toml").write_bytes(b"\xff\xfe")
    assert "perdure.toml is not TOML" in refused()


def test_a_file_that_was_named_must_be_there() -> None:
    assert refused({"PERDURE_CONFIG": "gone.toml"}) == (
        "gone.toml cannot be read: No such file or directory; PERDURE_CONFIG and --config name another"
    )


def test_all_mistakes_are_told_at_once() -> None:
    error = refused({"PERDURE_LEASE": "long", "PERDURE_GRACES": "2s"})
    assert "PERDURE_GRACES" in error
    assert "PERDURE_LEASE" in error


def test_variables_of_tests_are_no_settings() -> None:
    assert load({"PERDURE_TEST_POSTGRES": "postgresql://localhost"}) == Settings()


# --- older names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "text", "name", "value"),
    [
        ("WORKFLOW_WORKER_COUNT", "2", "processes", 2),
        ("WORKFLOW_REDIS_STREAM_PREFIX", "workflow:events:", "stream_prefix", "workflow:events"),
        ("WORKFLOW_REDIS_CONSUMER_GROUP", "workflow-workers", "stream_group", "workflow-workers"),
        ("WORKER_CONSUMER_GROUP", "worker-service", "stream_group", "worker-service"),
        ("WORKFLOW_REDIS_BATCH_SIZE", "10", "stream_batch", 10),
        ("WORKER_STREAM_BATCH", "10", "stream_batch", 10),
        ("WORKFLOW_REDIS_IDLE_TIMEOUT_MS", "60000", "stream_idle", 60.0),
        ("WORKER_STREAM_BLOCK", "1500", "stream_block", 1.5),
        ("WORKER_STREAM_BLOCK", "1s", "stream_block", 1.0),
        ("WORKER_CONCURRENCY", "4", "concurrency", 4),
        ("WORKER_RECLAIM_ENABLED", "false", "stream_reclaim", False),
    ],
)
def test_an_older_name_stands_for_a_setting(word: str, text: str, name: str, value: Any) -> None:
    found = look({word: text})
    assert getattr(load({word: text}), name) == value
    assert (found.origins[name].source, found.origins[name].place) == ("environment", word)


def test_every_older_name_means_a_setting() -> None:
    assert {one.name for one in OLDER.values()} <= set(MEANING)


def test_our_own_name_counts_and_a_contradiction_is_refused() -> None:
    same = {"WORKER_CONCURRENCY": "4", "PERDURE_CONCURRENCY": "4"}
    assert look(same).origins["concurrency"].place == "PERDURE_CONCURRENCY"
    error = refused(same | {"PERDURE_CONCURRENCY": "8"})
    assert error == "PERDURE_CONCURRENCY is '8' and WORKER_CONCURRENCY is '4', but both mean concurrency: unset one"
    assert "stream_batch: unset one" in refused({"WORKFLOW_REDIS_BATCH_SIZE": "10", "WORKER_STREAM_BATCH": "20"})
    assert load(same, concurrency=9).concurrency == 9


def test_the_same_time_in_two_units_is_no_contradiction() -> None:
    assert load({"WORKER_STREAM_BLOCK": "1000", "PERDURE_STREAM_BLOCK": "1s"}).stream_block == 1.0


@pytest.mark.parametrize("word", KINDS)
def test_a_kind_of_store_must_fit_its_address(word: str) -> None:
    postgres = {"PERDURE_STORE": "postgresql://ada:secret@db/orders"}
    assert load(postgres | {word: "postgres"}).store == postgres["PERDURE_STORE"]
    error = refused(postgres | {word: "sqlite"})
    assert f"{word} is 'sqlite', but the store is postgresql://ada:***@db/orders" in error
    assert load(postgres | {word: "sqlite"}, store="memory://").store == "memory://"


def test_a_kind_of_store_chooses_the_address_where_none_is_given() -> None:
    assert load({"DB_TYPE": "memory"}).store == "memory://"
    assert look({"DB_TYPE": "sqlite"}).origins["store"].place == "DB_TYPE"
    assert "no address is given: set PERDURE_STORE=postgresql://" in refused({"DB_TYPE": "postgres"})
    assert "set PERDURE_STREAM=redis://" in refused({"EVENTSTORE_TYPE": "redis"})
    assert "DB_TYPE is 'sqlite', but the store is memory://" in refused(
        {"EVENTSTORE_TYPE": "memory", "DB_TYPE": "sqlite"}
    )


def test_redis_may_carry_the_hints_of_another_store() -> None:
    environ = {"EVENTSTORE_TYPE": "redis", "PERDURE_STREAM": "redis://localhost", "PERDURE_STORE": "sqlite:///a.db"}
    assert load(environ).stream == "redis://localhost"
    assert load(environ | {"DB_TYPE": "sqlite"}).store == "sqlite:///a.db"


def test_a_kind_that_nobody_knows_stops_the_start_unless_the_store_is_named() -> None:
    assert "DB_TYPE is 'mongo', but there is no such store" in refused({"DB_TYPE": "mongo"})
    assert load({"DB_TYPE": "mysql", "PERDURE_STORE": "sqlite:///a.db"}).store == "sqlite:///a.db"


# --- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret@db/orders",
        "postgresql://ada:s3c@ret/s3cret?s3cret#s3cret@db/orders",
        "postgresql://ada:s3cret s3cret@db/orders",
        "redis://:s3cret@cache:6379/0",
        "amqp://ada:s3cret@mq:5672/shop",
        "postgresql://db/orders?user=ada&password=s3cret",
    ],
)
def test_passwords_are_shown_nowhere(url: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        connect(url.replace("postgresql", "nosql").replace("redis", "nosql"))
    texts = [
        redacted(url),
        str(refusal.value),
        repr(Settings(store=url, stream=url)),
        repr(explain(look({"PERDURE_STORE": url}))),
        refused({"PERDURE_LEASE": url}),
        refused({"PERDURE_LOG_LEVEL": url}),
        refused({"PERDURE_STORE": url, "DB_TYPE": "sqlite"}),
        refused({"PERDURE_STREAM_PREFIX": url, "WORKFLOW_REDIS_STREAM_PREFIX": f"{url}x"}),
    ]
    for text in texts:
        assert "s3c" not in text
        assert "***" in text


def test_what_cannot_be_taken_apart_is_no_address() -> None:
    for chosen in (
        {"store": "postgresql://ada:s3cret@[::1/shop"},
        {"store": "memory://", "stream": "redis://:s3cret@[::1"},
    ):
        with pytest.raises(SettingsError, match="is no address: write HOST:PORT") as refusal:
            Perdure(**chosen)
        assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    "url", ["sqlite:///orders.db", "sqlite:////var/lib/o.db?synchronous=NORMAL", "redis://h:6379/0"]
)
def test_an_address_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert redacted(url) == url


def test_the_address_of_a_file_has_options(tmp_path: Path) -> None:
    store, _ = connect(f"sqlite:///{tmp_path}/o.db?synchronous=normal&busy_timeout=0.5")
    assert isinstance(store, SqliteStore)
    assert (store._synchronous, store._busy_timeout) == ("NORMAL", 0.5)
    plain, _ = connect(f"sqlite:///{tmp_path}/o.db")
    assert isinstance(plain, SqliteStore)
    assert (plain._synchronous, plain._busy_timeout) == ("FULL", 10.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("sync=off", "unknown option sync; there are synchronous and busy_timeout"),
        ("synchronous=maybe", "synchronous is one of"),
        ("busy_timeout=long", "it is a number of seconds"),
        ("busy_timeout=-1", "it is a number of seconds"),
        ("busy_timeout=nan", "it is a number of seconds"),
    ],
)
def test_an_address_with_an_option_that_is_none_is_refused(options: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        connect(f"sqlite:///orders.db?{options}")
