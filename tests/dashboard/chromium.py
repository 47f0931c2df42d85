"""Chromium for the tests of pages.

`PERDURE_TEST_CHROMIUM` names its binary. Otherwise `chromium` on the PATH is taken, else Debian's packages, which are
fetched into a cache of the user's and only unpacked there, with the libraries that this machine lacks. Rules kept here:
a browser begins with an empty profile and an empty home; it reaches nobody but this host; it ends with its process, and
leaves no event loop to those who come after it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from perdure.testing.servers import debian

GIVEN = "PERDURE_TEST_CHROMIUM"
#: The second has the data that the first looks for beside itself: it is fetched also where it is installed.
PACKAGES = ("chromium", "chromium-common")
#: What a browser does for its user, or for its maker, is nothing for tests.
_QUIET = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-proxy-server"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


class NoBrowser(RuntimeError):
    """There is no Chromium here, and no way to get one."""


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser, until the end of the block.

    Until then this thread counts as one in which an event loop runs, and `asyncio.run` refuses to work in it. So it is
    never open for longer than a module of tests.
    """
    binary, libraries = find_browser()
    with tempfile.TemporaryDirectory(prefix="perdure-chromium-", ignore_cleanup_errors=True) as home:
        env: dict[str, str | float | bool] = {**os.environ, "HOME": home}
        if libraries:
            env["LD_LIBRARY_PATH"] = libraries
        with sync_playwright() as playwright:
            # Without its sandbox: that needs rights which root in a container does not have, and the pages are ours.
            browser = playwright.chromium.launch(
                executable_path=binary, args=_QUIET, env=env, chromium_sandbox=False, timeout=60_000
            )
            try:
                yield browser
            finally:
                browser.close()


def find_browser() -> tuple[str, str]:
    """The binary, and where it finds its libraries; "" if those of this machine are enough."""
    if found := os.environ.get(GIVEN) or shutil.which("chromium"):
        return found, ""
    return unpacked(debian.cache("chromium"))


def unpacked(home: Path) -> tuple[str, str]:
    """A browser from Debian's packages in that directory; fetched once, also by those who ask at the same time."""
    with debian.once(home) as empty:
        if empty:
            _fetch(home)
    # The script of that name among the programs has the places of an installed browser written in it.
    return str(home / "usr" / "lib" / "chromium" / "chromium"), debian.libraries(home)


def _fetch(home: Path) -> None:
    try:
        debian.unpack(home, PACKAGES, needs=True)
    except debian.NoPackages as error:
        raise NoBrowser(
            f"Chromium could not be fetched for the tests ({error}): set {GIVEN} to its binary, or put chromium on the"
            " PATH"
        ) from error
    # It would run as root, and nobody uses it.
    (home / "usr" / "lib" / "chromium" / "chrome-sandbox").unlink(missing_ok=True)
