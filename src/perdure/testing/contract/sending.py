"""How mail comes in: `send` and `mail`, once for each message id, and never after the end."""

from __future__ import annotations

from perdure.core.records import Sent
from perdure.ports import Store
from perdure.testing.contract.stage import (
    GRACE,
    ONE,
    THREE,
    TWO,
    StoreTests,
    accepted,
    begin,
    begun,
    claimed,
    ids,
    letter,
    log,
    scenario,
    settled,
)
from perdure.testing.invariants import check_log


class Sending(StoreTests):
    @scenario
    async def test_mail_is_accepted_into_the_mailbox(self, store: Store) -> None:
        await store.start([begin(queue="slow")], GRACE)
        assert await store.send([letter()], GRACE) == [Sent("accepted", "slow", None)]
        assert (await store.mail([ONE]))[ONE] == [letter()]

    @scenario
    async def test_mail_keeps_its_order(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        await accepted(store, letter("z"), letter("a"))
        await accepted(store, letter("m"))
        assert ids((await store.mail([ONE]))[ONE]) == ["z", "a", "m"]

    @scenario
    async def test_mail_keeps_its_order_when_older_mail_is_gone(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter("a"), letter("b"))
        await hand.commit(letter("b"))
        await accepted(store, letter("c"))
        assert ids((await store.mail([ONE]))[ONE]) == ["a", "c"]

    @scenario
    async def test_the_answer_names_the_holder(self, store: Store) -> None:
        await begun(store)
        assert await store.send([letter()], GRACE) == [Sent("accepted", "default", "w1")]

    @scenario
    async def test_the_answer_names_no_holder_whose_lease_is_over(self, store: Store) -> None:
        await begun(store)
        self.advance(31)
        assert await store.send([letter()], GRACE) == [Sent("accepted", "default", None)]

    @scenario
    async def test_mail_that_waits_is_a_duplicate(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        await accepted(store, letter())
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["duplicate"]
        assert ids((await store.mail([ONE]))[ONE]) == ["m1"]

    @scenario
    async def test_mail_that_was_folded_is_a_duplicate(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.commit(letter())
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["duplicate"]
        assert (await store.mail([ONE]))[ONE] == []

    @scenario
    async def test_a_duplicate_names_its_version_once_it_is_in_the_log(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        assert await store.send([letter()], GRACE) == [Sent("duplicate", "default", "w1", version=0)]
        await hand.commit(settled(), letter())
        assert await store.send([letter(sha="other")], GRACE) == [Sent("duplicate", "default", "w1", version=3)]

    @scenario
    async def test_mail_that_was_folded_is_a_duplicate_after_the_end(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.end(letter())
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["duplicate"]

    @scenario
    async def test_mail_with_another_sha_is_a_conflict(self, store: Store) -> None:
        await store.start([begin()], GRACE)
        await accepted(store, letter())
        assert [sent.answer for sent in await store.send([letter(sha="other")], GRACE)] == ["conflict"]

    @scenario
    async def test_mail_after_the_end_is_refused(self, store: Store) -> None:
        await (await begun(store)).end()
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["ended"]

    @scenario
    async def test_mail_for_nobody_is_missing(self, store: Store) -> None:
        assert [sent.answer for sent in await store.send([letter()], GRACE)] == ["missing"]

    @scenario
    async def test_every_mail_of_a_call_has_its_own_answer(self, store: Store) -> None:
        await store.start([begin(), begin(TWO)], GRACE)
        mail = [letter(), letter(), letter(key=TWO), letter(key=THREE), letter(sha="other"), letter("m2")]
        answers = [sent.answer for sent in await store.send(mail, GRACE)]
        assert answers == ["accepted", "duplicate", "accepted", "missing", "conflict", "accepted"]

    @scenario
    async def test_mail_is_due_by_itself(self, store: Store) -> None:
        await (await begun(store)).park()
        await accepted(store, letter())
        assert await claimed(store) == []
        self.advance(2)
        assert await claimed(store) == [ONE]

    @scenario
    async def test_a_message_sent_again_around_its_fold_is_folded_once(self, store: Store) -> None:
        hand = await begun(store)
        await accepted(store, letter())
        await hand.commit(letter())
        await store.send([letter()], GRACE)
        for mail in (await store.mail([ONE]))[ONE]:
            await hand.commit(mail)
        check_log(await log(store), ONE)
