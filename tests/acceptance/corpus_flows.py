"""What is data in the corpus, for `perdure worker`: every call of an action is in the ledger.

With DIES_AT in its environment the worker dies in the middle of that call.
"""

from __future__ import annotations

import itertools
import os
import signal

from perdure import action
from tests.acceptance.cluster_flows import note
from tests.corpus import graphs, machines, scenes, workflows  # noqa: F401 - the corpus is what this is for

DIES_AT = int(os.environ.get("DIES_AT", "0"))
_calls = itertools.count(1)


def in_the_ledger() -> None:
    note(f"attempt {action.attempt}")
    if next(_calls) == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get("LEDGER"):  # in a worker; whoever only looks at this module is left as it is
    workflows.happenings[:] = [in_the_ledger, scenes.unlucky]
