"""Chromium for tests is found, fetched, and ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import skipped
from tests.dashboard import chromium
from tests.dashboard.chromium import NoBrowser, browsing, find_browser, unpacked


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has nothing on its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(chromium.GIVEN, raising=False)


@pytest.mark.usefixtures("bare")
def test_a_chromium_that_is_named_comes_before_one_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "chromium").touch(mode=0o755)
    assert find_browser() == (str(tmp_path / "chromium"), "")
    monkeypatch.setenv(chromium.GIVEN, "/opt/named")
    assert find_browser() == ("/opt/named", "")


@pytest.mark.usefixtures("bare")
def test_without_chromium_and_without_packages_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        NoBrowser, match="only on Debian.*: set PERDURE_TEST_CHROMIUM to its binary, or put chromium on"
    ):
        unpacked(tmp_path / "cache")


def test_a_missing_chromium_skips_at_home_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no way"), skipped(NoBrowser):
        raise NoBrowser("no way")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(NoBrowser), skipped(NoBrowser):
        raise NoBrowser("no way")


@pytest.mark.usefixtures("bare")
def test_a_chromium_is_unpacked_with_what_it_needs_and_only_once(tmp_path: Path) -> None:
    # Whatever it is that is fetched: these packages take less time.
    (tmp_path / "apt-get").write_text(APT)
    (tmp_path / "dpkg").write_text(DPKG)
    for name in ("apt-get", "dpkg"):
        (tmp_path / name).chmod(0o755)
    home = tmp_path / "cache"
    for _ in range(2):
        binary, libraries = unpacked(home)
        assert Path(binary).exists()
        assert libraries == str(home / "usr/lib/some")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == "update"
    assert [line for line in asked if "download" in line] == ["download chromium chromium-common libnew"]


APT = """#!/bin/sh
here=${0%/*}
shift 4  # where its lists are
echo "$*" >> "$here/asked"
case "$*" in
*--simulate*) echo "Inst libc6 [1] (2 Debian)"; echo "Inst libnew (1 Debian)"; echo "Inst chromium (1 Debian)" ;;
*download*) echo > one.deb ;;
esac
"""
DPKG = """#!/bin/sh
PATH=/usr/bin:/bin
mkdir -p "$3/usr/lib/chromium" "$3/usr/lib/some"
touch "$3/usr/lib/chromium/chromium" "$3/usr/lib/some/libnew.so.1"
"""


def test_after_a_browser_other_tests_have_their_own_event_loop() -> None:
    with skipped(NoBrowser):
        find_browser()
    for _ in range(2):
        with browsing() as browser:
            assert browser.new_page().evaluate("6 * 7") == 42
            asyncio.get_running_loop()  # there is one now, or nothing would be proved here
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        assert asyncio.run(asyncio.sleep(0, "ours")) == "ours"


@pytest.fixture
def near() -> Iterator[Path]:
    """A folder with a short name: Chromium has a socket in its temporary folder, whose path may not be long."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_a_browser_ends_with_the_process_that_opened_it(near: Path) -> None:
    with skipped(NoBrowser):
        find_browser()
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(near)}
    with subprocess.Popen([sys.executable, "-c", OPENER], stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        assert living(near)
        process.kill()
    deadline = time.monotonic() + 60
    while living(near):
        assert time.monotonic() < deadline, "it outlives the tests"
        time.sleep(0.02)


OPENER = """
import time
from tests.dashboard.chromium import browsing
with browsing():
    print("open", flush=True)
    time.sleep(60)
"""


def living(folder: Path) -> list[str]:
    """The processes that have their home in this folder."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if f"\0HOME={folder}/".encode() in b"\0" + (one / "environ").read_bytes():
                found.append(one.name)
        except OSError:  # gone, or not ours
            continue
    return found
