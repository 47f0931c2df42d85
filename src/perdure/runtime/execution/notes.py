"""What must be known of a log also when its code cannot be run.

Rules kept here: notes follow from the log alone, so whoever is stuck can still show its state, be cancelled with all
that belongs to it, and tell whoever waits for it.
"""

from __future__ import annotations

import re
from contextlib import suppress

import msgspec

from perdure.core import events as ev
from perdure.core.callbacks import Callback
from perdure.core.records import Held
from perdure.errors import Undecodable

NOTED_TYPES = frozenset(
    {
        ev.Published,
        ev.StateChanged,
        ev.Restarted,
        ev.ChildStarted,
        ev.ChildSettled,
        ev.ActionScheduled,
        ev.ActionCancelled,
    }
)
_NOTED = frozenset(ev.NUMBERS[kind] for kind in NOTED_TYPES)
_STARTED = ev.NUMBERS[ev.Started]
_WORDS = re.compile(rb'"(?:callback|correlation|trace)":').search


class Notes:
    __slots__ = ("apart", "began", "callback", "correlation", "offspring", "parent_queue", "published", "trace")

    def __init__(self, held: Held) -> None:
        self.published: bytes | None = None  # the state that the log shows
        self.offspring: set[int] = set()  # children that the log shows as open
        self.apart: dict[int, str] = {}  # actions that run apart, open according to the log, with their queues
        self.parent_queue = ""
        self.callback: Callback | None = None
        self.correlation = self.trace = ""
        first = held.rows[0] if held.rows else None  # a log that was lost: loading will say so
        self.began = 0 if first is None else first.at  # when it was started, unless a checkpoint says more
        for row in held.rows:
            if row.type in _NOTED or row.message_id is not None:
                with suppress(Undecodable):  # loading will say so
                    self.note(ev.read(row))
        # Nearly all have neither a parent nor one of these: no need to read the first row for them.
        if first is None or first.type != _STARTED:
            return
        if held.parent is not None or _WORDS(first.data):
            with suppress(Undecodable):
                self.note(ev.read(first))

    def note(self, event: ev.Event) -> None:
        match event:
            case ev.Published():
                self.published = bytes(event.state)
            case ev.StateChanged():
                shown = msgspec.json.decode(self.published or b"{}")
                self.published = msgspec.json.encode({**shown, "state": event.to_state})
            case ev.Restarted():
                self.published = bytes(event.published) if bytes(event.published) != b"{}" else None
                self.callback, self.correlation = event.callback, event.correlation
                self.trace, self.began = event.trace, event.began
                self.offspring |= set(event.lasting)
            case ev.ChildStarted():
                self.offspring.add(event.ref)
            case ev.ChildSettled():
                self.offspring.discard(event.ref)
            case ev.ActionScheduled():
                self.apart[event.ref] = event.queue
            case ev.ActionSettled() | ev.ActionCancelled():
                self.apart.pop(event.ref, None)
            case ev.Started():
                self.parent_queue = event.parent_queue
                self.callback, self.correlation, self.trace = event.callback, event.correlation, event.trace
            case _:
                pass
