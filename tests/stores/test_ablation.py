"""Each safeguard is taken away, and a test of the contract must notice.

A safeguard that another one backs up is not missed alone, so those are taken away in pairs; alone they must not be
missed, or the pair would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from perdure.core.records import Commit, Mail, Row
from perdure.ports import Store
from perdure.stores.memory import MemoryStore, _Execution, _Wake
from perdure.testing.contract import StoreContract

Test = Callable[[StoreContract], None]


class NoBarrier(MemoryStore):
    def _barrier(self, it: _Execution, wake: _Wake, me: str, now: int) -> None:
        pass


class NoVersionCheck(MemoryStore):
    def _follows(self, it: _Execution, rows: Sequence[Row]) -> bool:
        return True


class NoTokenCheck(MemoryStore):
    def _held(self, key: str, token: int) -> tuple[_Execution, _Wake] | None:
        it = self._executions.get(key)
        return None if it is None or it.wake is None else (it, it.wake)


class NoDedupeAtSend(MemoryStore):
    def _folded_at(self, it: _Execution, id: str) -> int | None:
        return None


class NoDedupeAtRead(MemoryStore):
    def _unread(self, it: _Execution) -> list[Mail]:
        return [letter.mail for letter in it.mailbox.values()]


class NoDedupeAtFold(MemoryStore):
    def _folds_once(self, it: _Execution, commit: Commit) -> bool:
        return True


class NoDedupeAtSendAndRead(NoDedupeAtSend, NoDedupeAtRead):
    pass


class NoDedupeAtReadAndFold(NoDedupeAtRead, NoDedupeAtFold):
    pass


class NoDedupeAtAll(NoDedupeAtSend, NoDedupeAtRead, NoDedupeAtFold):
    pass


class OpenToSendersAtTheEnd(MemoryStore):
    def _mail_waits(self, it: _Execution, commit: Commit) -> bool:
        return False


class NoTimerCheck(MemoryStore):
    def _commit(self, commit: Commit, now: int, due: int) -> str:  # type: ignore[override]
        return super()._commit(commit, max(now, commit.fired or now), due)


def play(store: type[MemoryStore], test: Test) -> None:
    class Contract(StoreContract):
        async def make_store(self) -> Store:
            return store(self.clock)

    test(Contract())


MISSED: list[tuple[type[MemoryStore], Test]] = [
    (NoBarrier, StoreContract.test_a_zombie_is_stale_after_a_take_over),
    (NoBarrier, StoreContract.test_holding_again_what_is_mine_writes_a_barrier_and_counts_no_lapse),
    (NoVersionCheck, StoreContract.test_a_zombie_is_stale_after_a_take_over),
    (NoVersionCheck, StoreContract.test_of_a_stale_commit_no_row_is_written),
    (NoTokenCheck, StoreContract.test_a_park_with_an_old_token_is_stale),
    (NoTokenCheck, StoreContract.test_an_end_with_an_old_token_is_stale),
    (NoTokenCheck, StoreContract.test_a_renewal_leaves_out_what_is_lost),
    (NoDedupeAtSend, StoreContract.test_mail_that_was_folded_is_a_duplicate),
    (NoDedupeAtRead, StoreContract.test_mail_that_is_in_the_log_is_not_read),
    (NoDedupeAtFold, StoreContract.test_a_second_fold_of_a_message_is_stale),
    (NoDedupeAtAll, StoreContract.test_a_message_sent_again_around_its_fold_is_folded_once),
    (OpenToSendersAtTheEnd, StoreContract.test_accepted_mail_is_never_lost_in_an_end),
    (OpenToSendersAtTheEnd, StoreContract.test_a_park_is_refused_while_mail_waits),
    (NoTimerCheck, StoreContract.test_a_timer_that_is_not_due_is_early),
]

BACKED_UP: list[type[MemoryStore]] = [
    MemoryStore,
    NoDedupeAtSend,
    NoDedupeAtRead,
    NoDedupeAtFold,
    NoDedupeAtSendAndRead,
    NoDedupeAtReadAndFold,
]


@pytest.mark.parametrize(("store", "test"), MISSED, ids=lambda value: value.__name__)
def test_a_safeguard_is_missed(store: type[MemoryStore], test: Test) -> None:
    with pytest.raises(AssertionError):
        play(store, test)


@pytest.mark.parametrize("test", dict.fromkeys(test for _, test in MISSED), ids=lambda value: value.__name__)
def test_with_all_safeguards_nothing_is_missed(test: Test) -> None:
    play(MemoryStore, test)


@pytest.mark.parametrize("store", BACKED_UP, ids=lambda value: value.__name__)
def test_no_single_dedupe_carries_a_message_alone(store: type[MemoryStore]) -> None:
    play(store, StoreContract.test_a_message_sent_again_around_its_fold_is_folded_once)
