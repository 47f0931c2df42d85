"""Whether hints get through, part by part, and a word about it in the log now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

#: A trouble that lasts is logged once in so many seconds.
SILENCE = 30.0

log = logging.getLogger("perdure.streams")


class Health:
    """What is wrong with each part; `recovered` is called when one of them is well again, `failed` when it is not."""

    def __init__(self, recovered: Callable[[], None], failed: Callable[[], None] | None = None) -> None:
        self._recovered = recovered
        self._failed = failed
        self._troubles: dict[str, str] = {}
        self._said = float("-inf")

    @property
    def trouble(self) -> str:
        return next(iter(self._troubles.values()), "")

    def bad(self, part: str, trouble: str) -> None:
        new = part not in self._troubles
        self._troubles[part] = trouble
        if time.monotonic() - self._said > SILENCE:
            self._said = time.monotonic()
            log.warning("hints do not get through, work is found a little later: %s", trouble)
        if new and self._failed is not None:
            self._failed()

    def good(self, part: str) -> None:
        if self._troubles.pop(part, None) is None:
            return
        if not self._troubles:
            log.info("hints get through again")
        self._recovered()
