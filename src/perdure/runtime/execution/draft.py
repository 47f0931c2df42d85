"""What an execution writes with its next commit.

Rules kept here: until the commit is answered a draft only grows, so one that failed cleanly is simply prepared again.
What a commit was given is never changed afterwards: a written draft begins anew with lists of its own.
"""

from __future__ import annotations

from perdure.core.records import Commit, End, Mail, Park, Row, Start, Status


class Draft:
    __slots__ = ("children", "done", "fired", "mail", "rows", "sent", "settle", "shown")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.done: list[str] = []  # ids of mail that is folded
        self.fired: int | None = None  # the latest due time of what happened because it was time
        self.children: list[Start] = []
        self.mail: list[Mail] = []
        self.sent: dict[str, str] = {}  # the queues of those to whom mail goes, where they are known
        self.settle: Park | End | None = None  # what becomes of the hold; stands until the next is prepared
        self.shown: Status | None = None  # a change of status that the head does not show yet

    def commit(self, key: str, token: int, rows: list[Row]) -> Commit:
        return Commit(
            key=key,
            token=token,
            rows=rows,
            settle=self.settle,
            status=self.shown if self.settle is None else None,
            fired=self.fired,
            done=self.done,
            children=self.children,
            mail=self.mail,
        )

    @property
    def holds_something(self) -> bool:
        return bool(self.rows or self.done or self.children or self.mail or self.shown or self.fired is not None)

    def written(self) -> None:
        """All of it is durable, or none of it will ever be."""
        self.rows, self.fired, self.shown = [], None, None
        if self.done:
            self.done = []
        if self.children:
            self.children = []
        if self.mail:
            self.mail = []
            self.sent.clear()
