"""The examples of the specification: each is taken, or refused with a reason that is listed here. None is half taken.

They are not part of this project. The environment variable PERDURE_TEST_SW_EXAMPLES names the folder with them; where
it is not set, these tests are skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.flows import kinds
from perdure.flows.reading import read

FOLDER = os.environ.get("PERDURE_TEST_SW_EXAMPLES", "")
FILES = sorted(Path(FOLDER).glob("*.yaml")) if FOLDER else []
pytestmark = pytest.mark.skipif(not FOLDER, reason="PERDURE_TEST_SW_EXAMPLES does not name the folder of the examples")

#: What is refused, by how the file is called: where, and what is said of it.
REFUSED = {
    "call-asyncapi-": ("/call", "asyncapi is not called from here"),
    "call-custom-function-cataloged": ("/call", "lies in a catalog"),
    "call-grpc": ("/call", "grpc is not called from here"),
    "listen-to-any-forever-foreach": ("/any", "a list of events is expected here"),
    "listen-to-any-until-condition": ("/any", "a list of events is expected here"),
    "listen-to-any.": ("/any", "a list of events is expected here"),
    "mock-service-extension": ("/use/extensions", "is not known here"),
    "run-container": ("/run/container", "no container is run from here"),
    "run-return-": ("/run/container", "no container is run from here"),
    "run-script": ("/run/script", "no script is run from here"),
    "run-shell": ("/run/shell", "no shell is run from here"),
    "schedule-cron": ("/schedule/cron", "a document does not start at times"),
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_is_taken_or_refused_for_a_reason_that_is_known(file: Path) -> None:
    found = [one for one in kinds.check(read(file.read_bytes(), file.name)) if one.level == "error"]
    reason = next((reason for name, reason in REFUSED.items() if file.name.startswith(name)), None)
    if reason is None:
        assert not found
    else:
        assert any(one.where.endswith(reason[0]) and reason[1] in one.message for one in found), found


def test_every_reason_is_that_of_an_example() -> None:
    for name in REFUSED:
        assert any(file.name.startswith(name) for file in FILES), name
