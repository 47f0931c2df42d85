"""Going on with another version of a published definition, in the middle of an execution.

Rules kept here: only an execution at rest can change its version, and only to one that fits where it stands. Whoever
asks judges first, from the log; whoever holds the execution judges again when the letter is folded, with the same
words. The change is a checkpoint in the log, so replay never mixes two versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from perdure.core import events as ev, letters as mail
from perdure.core.commands import Limits
from perdure.core.durations import Duration, micros
from perdure.core.places import NOWHERE
from perdure.core.records import ENDED, PUBLISHED, Head, Mail, Row, tenant_of
from perdure.core.replay import Replay
from perdure.errors import ExecutionEnded, MigrationRefused, PerdureError, Undecodable, UsageError
from perdure.flows.bound import Problem, owed
from perdure.flows.described import Described
from perdure.runtime.definitions.published import Lost, Ref, ref_in

if TYPE_CHECKING:
    from perdure.runtime.app import Perdure
    from perdure.runtime.run import Run

#: How the id of such a letter begins.
LETTER = "/migrate:"


def asked_for(own: Ref, letters: Sequence[Mail]) -> list[Ref]:
    """The versions that letters ask for."""
    refs = []
    for letter in letters:
        if letter.id.startswith(LETTER):
            with suppress(Undecodable):  # folding it will say so
                if isinstance(wish := mail.unseal(letter), mail.MigrateLetter):
                    refs.append(Ref(own.tenant, own.name, wish.version, wish.hash))
    return refs


def checkpoint(
    replay: Replay, new: Described, by: str, at: int, limits: Limits, roles: tuple[str, ...] = ()
) -> tuple[ev.Restarted | None, list[Problem]]:
    """The row that lets the new version go on, or why it cannot."""
    if problems := _hinders(replay, new):
        return None, problems
    assert replay.position is not None
    position = Raw(msgspec.json.encode(replay.position()))
    if problems := [one for one in new.fits(position) if one.level == "error"]:
        return None, problems
    row = replay.restarted(position, owed(replay), new.version, new.hash, by, roles)
    # The new version is tried out before anything is written: what cannot begin there would be stuck for good.
    trial = Replay(replay.key, new, limits)
    try:
        trial.feed(row, replay.version + 1, at)
    except PerdureError as error:
        return None, [Problem("position", f"{new.definition} cannot go on from here: {error}")]
    finally:
        trial.evict()
    return row, []


def _hinders(replay: Replay, new: Described) -> list[Problem]:
    now = replay.definition
    if isinstance(new, Lost):
        return [Problem("version", str(new.why))]
    if (new.version, new.hash) == (now.version, replay.hash):
        return [Problem("version", f"it is at version {new.version} already")]
    if replay.outcome is not None:
        return [Problem("position", "it goes on to its end without a rest")]
    if replay.paused is not None:
        return [Problem("position", "it is paused", "resume it first")]
    if replay.position is None or replay.actions or replay.children:
        places = _places(replay)
        here = "" if places == NOWHERE else f"; it is at {places}"
        return [Problem("position", "it is not at rest", f"try again {new.at_rest}{here}")]
    return []


def _places(replay: Replay) -> str:
    busy = sorted({asked.spec.name for asked in (*replay.actions.values(), *replay.children.values())})
    return ", ".join(busy or replay.places())


async def migrate(app: Perdure, run: Run[Any], version: int, by: str, timeout: Duration | None) -> None:
    """Ask for it, and wait until it is judged."""
    by = by or app.settings.actor
    head = await run.head()
    rows = await run.since_restart()
    ref = ref_in(run.key, rows)
    _check_head(run, head, ref)
    assert ref is not None
    if ref.version == version:
        return
    wanted = Ref(tenant_of(run.key), ref.name, version)
    found = await app.published.load([ref, wanted])
    if isinstance(new := found[wanted], Lost):
        raise new.why
    _judge(app, run, found[ref], new, rows, by)
    id = f"{LETTER}{app.new_id()}"
    await app.post(run.key, id, mail.MigrateLetter(version, new.hash, by))
    async with asyncio.timeout(None if timeout is None else micros(timeout) / 1e6):
        await _judged(run, id, rows[-1].version, version)


def _check_head(run: Run[Any], head: Head, ref: Ref | None) -> None:
    if head.status in ENDED:
        raise ExecutionEnded(f"{run.key} has ended: it needs no other version", run.key)
    if ref is None or not head.definition.startswith(PUBLISHED):
        raise UsageError(
            f"{run.key} runs {head.definition}, which is code: it stays on the version that it began with; guard"
            " changes with workflow.patched()"
        )
    if head.status == "stuck":
        fix = "`perdure why` tells why; redrive it first, or fork it where it was at rest and migrate the fork"
        problem = Problem("position", "it is stuck", fix)
        raise _refused(run, [problem])


def _judge(app: Perdure, run: Run[Any], now: Described, new: Described, rows: list[Row], by: str) -> None:
    limits = app.settings.limits
    replay = Replay(run.key, now, limits)
    try:
        replay.load(rows)
        _, problems = checkpoint(replay, new, by, rows[-1].at, limits)
    except PerdureError as error:
        problems = [Problem("log", f"it cannot be replayed: {error}")]
    finally:
        replay.evict()
    if problems:
        raise _refused(run, problems)


async def _judged(run: Run[Any], id: str, after: int, version: int) -> None:
    pause = 0.005
    while True:
        async for row in run.rows(after):
            after = row.version
            if row.message_id == id:
                event = ev.read(row)
                if isinstance(event, ev.EventRejected):
                    raise _refused(run, [Problem("position", event.reason)])
                return
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def _refused(run: Run[Any], problems: list[Problem]) -> MigrationRefused:
    return MigrationRefused(f"{run.key} keeps its version: {'; '.join(map(str, problems))}", run.key, problems)
