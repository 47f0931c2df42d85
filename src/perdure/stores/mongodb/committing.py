"""What holders write, inside a transaction: a group is decided first and written then.

Rules kept here: what is refused leaves no trace and gets its own answer; a unique index of the log that refuses a
document ends the transaction, and the group is looked at before it is written again; who parks writes the box of the
execution and its end deletes it, as every sender writes it, so mail that was accepted before is always seen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from pymongo import DESCENDING, UpdateOne

from perdure.core import events
from perdure.core.events import PROGRESS, TakenOver
from perdure.core.records import Commit, End, Outcome, Park
from perdure.stores.mongodb.documents import fits, log_documents, mail_id
from perdure.stores.mongodb.layout import Document
from perdure.stores.mongodb.link import collect
from perdure.stores.mongodb.writing import Writing
from perdure.stores.ticker import NEVER, RESTARTED, TAKEN_OVER

#: So many alternatives are asked for at once.
AT_ONCE = 100
_LANDMARKS = frozenset({*PROGRESS, TAKEN_OVER})


class Committing(Writing):
    """The write of holders, for a whole group."""

    async def commit(self, group: Sequence[Commit], due: int, careful: bool) -> dict[str, Outcome]:
        """Write what can be written; answers for those that are not simply `ok`."""
        answers: dict[str, Outcome] = {}
        for commit in group:
            if commit.fired is not None and commit.fired > self.now:
                answers[commit.key] = "early"
            elif folds_twice(commit):
                answers[commit.key] = "stale"
        rest = [commit for commit in group if commit.key not in answers]
        stale = await self._lost_holds(rest) | await self._missing_mail(rest)
        if careful:
            stale |= await self._overtaken(rest)
        answers.update((key, "stale") for key in stale)
        rest = [commit for commit in rest if commit.key not in answers]
        waiting = await self._mail_waits(rest)
        answers.update((key, "mail") for key in waiting)
        accepted = [one for one in rest if not (one.key in waiting and isinstance(one.settle, End))]
        await self._write(accepted, waiting)
        if children := [child for commit in accepted for child in commit.children]:
            await self.start(children, due)
        if mail := [letter for commit in accepted for letter in commit.mail]:
            await self.send(mail, due)
        return answers

    # What is refused

    async def _lost_holds(self, group: Sequence[Commit]) -> set[str]:
        """Those that settle and do not hold any more."""
        settling = {commit.key: commit.token for commit in group if commit.settle is not None}
        wakes = await self._by_key(self._there.wakes, list(settling), "token", "held", "lane")
        self._lanes = {wake["lane"]: key for key, wake in wakes.items() if "lane" in wake}
        held = {(key, wake["token"]) for key, wake in wakes.items() if wake["held"]}
        return {key for key, token in settling.items() if (key, token) not in held}

    async def _missing_mail(self, group: Sequence[Commit]) -> set[str]:
        """Those that fold mail which is not there any more."""
        done = {(commit.key, id) for commit in group for id in commit.done}
        if not done:
            return set()
        query = {"_id": {"$in": [mail_id(key, id) for key, id in done]}}
        there = {(one["_id"]["key"], one["_id"]["id"]) for one in await self._found(self._there.messages, query, "_id")}
        return {key for key, _ in done - there}

    async def _overtaken(self, group: Sequence[Commit]) -> set[str]:
        """Those whose version is occupied, or whose message is in the log: a look at each, after one was refused."""
        looks = [{"key": commit.key, "versions": commit.rows[0].version} for commit in group if commit.rows]
        ids = [(commit.key, row.message_id) for commit in group for row in commit.rows if row.message_id is not None]
        looks += [{"key": key, "ids": id} for key, id in ids]
        found: set[str] = set()
        for begin in range(0, len(looks), AT_ONCE):
            some = {"$or": looks[begin : begin + AT_ONCE]}
            found.update(one["key"] for one in await self._found(self._there.events, some, "key"))
        return found

    async def _mail_waits(self, group: Sequence[Commit]) -> set[str]:
        """Those that settle while there is mail which they do not fold, and which is not in the log already."""
        settling = {commit.key: commit for commit in group if commit.settle is not None}
        if not settling:
            return set()
        there = await self._found(self._there.messages, {"key": {"$in": list(settling)}}, "_id")
        left = [(one["_id"]["key"], one["_id"]["id"]) for one in there]
        left = [(key, id) for key, id in left if id not in _folds(settling[key])]
        known = await self.folded(list({key for key, _ in left}), [id for _, id in left])
        return {key for key, id in left if (key, id) not in known}

    # What is written

    async def _write(self, group: Sequence[Commit], waiting: set[str]) -> None:
        heads = [UpdateOne({"_id": commit.key}, change) for commit in group if (change := self._head(commit))]
        if heads:
            await self._there.heads.bulk_write(heads, session=self._session)
        parks = [(commit.key, commit.settle) for commit in group if isinstance(commit.settle, Park)]
        wakes = [UpdateOne({"_id": key}, _rest(park)) for key, park in parks if key not in waiting]
        if wakes:
            await self._there.wakes.bulk_write(wakes, session=self._session)
            # A worker that reads mail before it hears that it has parked would think that the mail is in good hands.
            resting = {"_id": {"$in": [key for key, _ in parks if key not in waiting]}}
            await self._there.boxes.update_many(resting, {"$inc": {"rests": 1}}, session=self._session)
        if done := [mail_id(commit.key, id) for commit in group for id in commit.done]:
            await self._there.messages.delete_many({"_id": {"$in": done}}, session=self._session)
        if ended := [commit.key for commit in group if isinstance(commit.settle, End)]:
            await self._end(ended)
        if rows := list(chain.from_iterable(log_documents(commit.key, commit.rows) for commit in group)):
            await self._there.events.insert_many(rows, session=self._session)

    def _head(self, commit: Commit) -> Document:
        """What a commit changes in the head; nothing for most."""
        settle = commit.settle
        changed: Document = {}
        if settle is not None:
            fits(commit.key, settle.state, settle.waits if isinstance(settle, Park) else settle.result)
            changed = {"status": settle.status, "changed_at": self.now, "waits": None}
            if settle.state is not None:
                changed["state"] = settle.state
        match settle:
            case Park():
                changed["waits"] = settle.waits
            case End():
                changed["result"] = settle.result
            case None if commit.status is not None:
                changed["status"] = commit.status
            case None:
                pass
        # Replay begins at the newest checkpoint; it never moves back.
        base = max((row.version for row in commit.rows if row.type % 1000 == RESTARTED), default=1)
        base = max(base, settle.base) if settle is not None else base
        return ({"$set": changed} if changed else {}) | ({"$max": {"base": base}} if base > 1 else {})

    async def _end(self, keys: Sequence[str]) -> None:
        gone, theirs = {"_id": {"$in": list(keys)}}, {"key": {"$in": list(keys)}}
        await self._there.boxes.delete_many(gone, session=self._session)
        await self._there.wakes.delete_many(gone, session=self._session)
        await self._there.messages.delete_many(theirs, session=self._session)
        ended = set(keys)
        for lane, key in sorted(self._lanes.items()):
            if key in ended:
                await self._next_in_lane(lane)

    async def _next_in_lane(self, lane: str) -> None:
        """Make the next one due. The lane is written too, so that no start gets past this unseen."""
        following = await self._first_in_lane(lane)
        if following is None:
            await self._there.lanes.delete_one({"_id": lane}, session=self._session)
            return
        await self._there.lanes.update_one({"_id": lane}, {"$inc": {"ends": 1}}, session=self._session)
        woken = {"$set": {"due": self.now}, "$inc": {"turn": 1}}
        await self._there.wakes.update_one({"_id": following["_id"], "held": False}, woken, session=self._session)

    async def _first_in_lane(self, lane: str) -> Document | None:
        found: Document | None = await self._there.wakes.find_one(
            {"lane": lane}, ["_id"], sort=[("born", 1)], session=self._session
        )
        return found

    # What belongs to holds

    async def put_to_sleep(self, key: str) -> bool:
        """Let an execution and its mail wait for the one before it in its lane; False if there is none."""
        wake = await self._there.wakes.find_one({"_id": key}, ["lane"], session=self._session)
        first = await self._first_in_lane(wake["lane"]) if wake is not None else None
        if first is None or first["_id"] == key:
            return False
        asleep = {"$set": {"due": None, "hints": 0}, "$inc": {"turn": 1}}
        await self._there.wakes.update_one({"_id": key}, asleep, session=self._session)
        await self._there.messages.update_many({"key": key}, {"$set": {"due": NEVER}}, session=self._session)
        return True

    async def barriers(self, tokens: dict[str, int], me: str) -> dict[str, int]:
        """Occupy the next versions of former holders, who may still be writing; answers the lapses that count.

        A hold that was lost meanwhile is left out. The wake is written as well, so nobody else takes it unseen.
        """
        wakes = await self._by_key(self._there.wakes, list(tokens), "token", "held", "lapses")
        counted: dict[str, int] = {}
        rows: list[Document] = []
        for key, token in tokens.items():
            wake = wakes.get(key)
            if wake is None or wake["token"] != token or not wake["held"]:
                continue
            version, progressed = await self._newest(key)
            counted[key] = min(wake["lapses"], 1) if progressed else wake["lapses"]
            row = events.row(TakenOver(holder=me, lapses=counted[key]), version + 1, at=self.now, fence=token)
            rows += log_documents(key, [row])
        if rows:
            marks: list[Any] = [
                UpdateOne({"_id": key}, {"$set": {"lapses": lapses}, "$inc": {"turn": 1}})
                for key, lapses in counted.items()
            ]
            await self._there.wakes.bulk_write(marks, session=self._session)
            await self._there.events.insert_many(rows, session=self._session)
        return counted

    async def _newest(self, key: str) -> tuple[int, bool]:
        """The version of a log, and whether it got somewhere since the execution was last taken over."""
        version = after = 0
        while True:
            query = {"key": key} if not after else {"key": key, "versions": {"$lt": after}}
            backwards = self._there.events.find(query, ["versions", "rows"], session=self._session)
            page = await collect(backwards.sort("versions", DESCENDING).limit(AT_ONCE))
            version = version or max((one["versions"][-1] for one in page), default=0)
            for one in page:
                for type, *_ in reversed(one["rows"]):
                    if type % 1000 in _LANDMARKS:
                        return version, type % 1000 in PROGRESS
            if len(page) < AT_ONCE:
                return version, False
            after = min(one["versions"][0] for one in page)


def _folds(commit: Commit) -> set[str | None]:
    return {row.message_id for row in commit.rows}.union(commit.done)


def _rest(park: Park) -> Document:
    return {"$set": {"holder": None, "held": False, "lapses": 0, "hints": 0, "due": park.due}}


def folds_twice(commit: Commit) -> bool:
    """Whether a message would enter the log twice with this commit alone, which no index of ours sees."""
    ids = [row.message_id for row in commit.rows if row.message_id is not None]
    return len(ids) != len(set(ids))
