"""What goes wrong on a page while a test looks at something else.

Everything that a user would not see and a developer should is a trouble: errors on the console, exceptions that nobody
caught, violations of the content security policy, dialogs that nobody expected, requests to other hosts. Rules kept
here: a trouble fails its test, unless the test has allowed it before; also one of a window that the page has opened.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Error, Request, WebError

OURS = ("127.0.0.1", "localhost")
#: Not every violation is an error on the console: those of a policy that only reports are not.
_TELL = """addEventListener("securitypolicyviolation", (told) =>
    console.error(`content security policy: ${told.effectiveDirective} forbids ${told.blockedURI}`))"""


class Trouble(AssertionError):
    """A page has done what it must not do."""


class Watch:
    """Keeps the troubles of all pages of a context.

    A test that causes one on purpose says so first, by a pattern; a dialog that is allowed is accepted.

        watch.allow("ERR_CONNECTION_REFUSED")
        served.stop()
    """

    def __init__(self, context: BrowserContext) -> None:
        self.troubles: list[str] = []
        self._allowed: list[str] = []
        self._context = context
        context.add_init_script(_TELL)
        context.on("console", self._console)
        context.on("weberror", self._exception)
        context.on("dialog", self._dialog)
        context.on("request", self._request)

    def allow(self, pattern: str) -> None:
        """Troubles in which this is found are none, from now on."""
        self._allowed.append(pattern)

    def check(self) -> None:
        """Raise what has happened until now."""
        for page in self._context.pages:
            try:
                page.evaluate("0")  # what the page has sent before its answer has arrived with it
            except Error as error:
                self._note(f"page: {page.url} does not answer: {error.message}")
        if self.troubles:
            raise Trouble("on the page:\n" + "\n".join(self.troubles))

    def _console(self, told: ConsoleMessage) -> None:
        if told.type in ("error", "assert"):
            self._note(f"console: {told.text} ({told.location['url']}:{told.location['lineNumber'] + 1})")

    def _exception(self, told: WebError) -> None:
        self._note(f"exception: {told.error.stack or told.error.message}")

    def _dialog(self, told: Dialog) -> None:
        if self._note(f"dialog: {told.type} {told.message!r}"):
            told.dismiss()
        else:
            told.accept()

    def _request(self, told: Request) -> None:
        place = urlsplit(told.url)
        if place.scheme in ("http", "https", "ws", "wss") and place.hostname not in OURS:
            self._note(f"request: to another host, {told.url}")

    def _note(self, trouble: str) -> bool:
        """Whether it is one."""
        if any(re.search(pattern, trouble) for pattern in self._allowed):
            return False
        self.troubles.append(trouble)
        return True
