"""Folding: letters of the mailbox become events of the log.

Rules kept here: letters are folded in their order, each once however often it is delivered, and each is taken out of
the mailbox by the commit that writes what it stands for. A letter that no longer means anything is only taken out; one
that cannot be read, or that cannot be done, leaves a row that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core import events as ev, letters as mail
from perdure.core.records import Mail
from perdure.core.replay import Replay
from perdure.errors import Undecodable
from perdure.flows.described import Described
from perdure.runtime.execution.course import ATTEMPTS, FAULTS, Course
from perdure.runtime.execution.migration import checkpoint
from perdure.runtime.settings import Settings


class Mailbox:
    """Mail that was fetched and is not folded yet, and what folding it may need."""

    __slots__ = ("_offered", "_seen", "_settings", "letters")

    def __init__(self, settings: Settings) -> None:
        self.letters: list[Mail] = []
        self._seen: set[str] = set()
        self._offered: dict[tuple[int, str], Described] = {}  # versions that letters ask for
        self._settings = settings

    def deliver(self, letters: Iterable[Mail]) -> bool:
        """Take mail that was not seen before; whether there was any."""
        before = len(self._seen)
        for letter in letters:
            if letter.id not in self._seen:
                self._seen.add(letter.id)
                self.letters.append(letter)
        return len(self._seen) > before

    def lacks(self, letters: Iterable[Mail]) -> bool:
        """Whether there is one among them that was not seen here."""
        return any(letter.id not in self._seen for letter in letters)

    def offer(self, versions: Sequence[Described]) -> None:
        """Other versions of its definition, for letters that ask for them."""
        for one in versions:
            self._offered[one.version, one.hash] = one

    def held_again(self) -> None:
        """Nothing that was folded comes again: it is in the log. What was not comes with the hold."""
        self._seen.clear()
        self.letters.clear()

    def fold_next(self, course: Course, now: int) -> None:
        """Turn one letter into the events it stands for."""
        letter = self.letters.pop(0)
        course.draft.done.append(letter.id)
        try:
            wish = mail.unseal(letter)
        except Undecodable as error:
            course.write(ev.EventRejected(letter.id, "", str(error)), now, letter.id)
            return
        replay = course.replay
        paused = replay is not None and replay.paused is not None
        match wish:
            case mail.EventLetter():
                event = ev.EventReceived(
                    wish.name,
                    wish.payload,
                    letter.id,
                    wish.by,
                    wish.source,
                    wish.roles,
                    wish.attributes,
                    wish.trace,
                    wish.acting_as,
                )
                course.append(event, now, letter.id)
            case mail.ChildLetter():
                done = ev.ChildSettled(wish.ref, wish.id, wish.result, wish.error, wish.status, wish.by)
                course.append(done, now, letter.id)
            case mail.ActionLetter():
                course.notes.apart.pop(wish.ref, None)
                if replay is None or wish.ref in replay.actions:
                    settled = ev.ActionSettled(
                        wish.ref, wish.name, wish.args, wish.result, wish.error, wish.attempts, wish.began, wish.worker
                    )
                    course.append(settled, now, letter.id)
            case mail.PauseLetter():
                if not paused and course.stuck is None and not course.ending:
                    course.append(ev.Paused(wish.until, wish.reason, wish.by, wish.acting_as), now, letter.id)
            case mail.ResumeLetter():
                if paused and wish.at > now:
                    course.append(ev.Paused(wish.at, wish.reason, wish.by, wish.acting_as), now, letter.id)
                elif paused:
                    course.append(ev.Resumed(wish.reason, wish.by, wish.acting_as), now, letter.id)
            case mail.CancelLetter():
                if wish.stuck in (0, course.stuck_since) and not course.ending:
                    self._cancel(course, wish, now, letter.id)
            case mail.MigrateLetter():
                self._migrate(course, wish, now, letter.id)
            case mail.RedriveLetter():
                if course.stuck is not None and not course.ending:
                    _redrive(course, wish, now, letter.id)

    def _cancel(self, course: Course, wish: mail.CancelLetter, now: int, message_id: str) -> None:
        replay = course.replay
        if replay is not None and replay.paused is not None:
            course.append(ev.Resumed("cancelled", wish.by, wish.acting_as), now)
        timeout = wish.timeout or int(self._settings.cancel_timeout * 1e6)
        cleans_up = course.stuck is not None and course.stuck.cause == ATTEMPTS  # other code that is stuck cannot
        at_once = wish.now or (course.stuck is not None and not cleans_up)
        asked = ev.CancelRequested(wish.reason, wish.by, now + timeout, at_once, wish.acting_as)
        course.append(asked, now, message_id)
        if not at_once and cleans_up:
            course.write(ev.Redriven("cancelled", wish.by, acting_as=wish.acting_as), now)
            course.stuck = None
        elif course.replay is None:
            course.kin.recall_all()
            course.replay = Replay(course.key, course.workflow, self._settings.limits)
            course.replay.outcome = ev.Cancelled(wish.reason, forced=True, since=course.version - 1)

    def _migrate(self, course: Course, wish: mail.MigrateLetter, now: int, message_id: str) -> None:
        """Go on with another version from here, or leave everything as it is and say why."""
        replay, new = course.replay, self._offered.get((wish.version, wish.hash))
        if replay is None or new is None:
            why = "it is stuck" if replay is None else f"version {wish.version} is not at hand"
            course.write(ev.EventRejected(message_id, "migrate", why), now, message_id)
            return
        row, problems = checkpoint(replay, new, wish.by, max(course.at, now), self._settings.limits, wish.acting_as)
        if row is None:
            why = "; ".join(map(str, problems))
            course.write(ev.EventRejected(message_id, "migrate", why), now, message_id)
            return
        course.write(row, now, message_id)
        course.workflow = replay.definition = new
        course.migrated = True
        try:
            replay.feed(row, course.version, course.at)
            course.take(now)
        except FAULTS as fault:
            course.stick(fault, now)


def _redrive(course: Course, wish: mail.RedriveLetter, now: int, message_id: str) -> None:
    """Not in this memory, which does not fit the log: it is parked, due at once, and loaded afresh."""
    course.write(ev.Redriven(wish.reason, wish.by, wish.asked, wish.acting_as), now, message_id)
    course.stuck = None
