"""From what the functions in the database return to the answers of the port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.records import Busy, Held, HoldAnswer, Mail, Queued, Row, Sent

#: What a hold says of an execution that was given back while it looked.
AGAIN = 5


def sent(mail: Mail, fresh: bool, queue: str | None, holder: str | None, sha: str | None, version: int | None) -> Sent:
    if queue is None:
        return Sent("missing")
    if fresh:
        return Sent("accepted", queue, holder)
    if sha is not None:
        return Sent("duplicate" if sha == mail.sha else "conflict", queue, holder)
    if version is not None:
        return Sent("duplicate", queue, holder, version)
    return Sent("ended", queue)


def hold_answers(records: Sequence[Any]) -> dict[str, HoldAnswer]:
    answers: dict[str, HoldAnswer] = {}
    rows: dict[str, list[Row]] = {}
    mail: dict[str, list[Mail]] = {}
    for what, key, n, kind, at, fence, a, b, c, d, data in records:
        match what:
            case 0:
                rows[key], mail[key] = [], []
                answers[key] = Held(key, n, a, b, kind, c, rows[key], mail[key], d, at, fence is not None)
            case 1:
                rows[key].append(Row(n, kind, data, at, fence, a))
            case 2:
                mail[key].append(Mail(key, a, data, b))
            case 3:
                answers[key] = Busy(key, a)
            case _:  # also one that was given back in between: if asking again does not help, another time will do
                answers[key] = Queued(key)
    return answers
