"""The store kit: inboxes, tickets, decisions."""

import pytest

from clew.core.entries import DecisionMade, TicketClosed, TicketOpened
from clew.core.letters import CancelLetter, DecisionLetter, LateResultLetter, MessageLetter
from clew.core.tickets import ALLOWED, Approve, Decision, Edit, Reject, Respond, TicketKind
from clew.errors import AlreadyDecided, AlreadyTaken, InboxMoved, NotFound, RunEnded, UsageError
from clew.ports import Store, TicketFilter
from clew.testing.stores.acting import (
    AWAY,
    BEGIN,
    LEASE,
    SECOND,
    HandClock,
    approval,
    decision,
    driven,
    message,
    new_run,
    note,
)


class LetterContract:
    """What anybody may leave for a run, and what a person decides."""

    @pytest.mark.proves("J1", "W10")
    async def test_letters_are_numbered_without_gaps(self, store: Store) -> None:
        await store.start(new_run("r"))
        late = LateResultLetter(call="1.tool.1", from_epoch=1, value={"a": [1, None]})
        assert [await store.post("r", letter) for letter in (message("a"), CancelLetter(by="me"), late)] == [1, 2, 3]
        letters = await store.inbox("r")
        assert [letter.inbox for letter in letters] == [1, 2, 3]
        assert [letter.kind for letter in letters] == ["message", "cancel", "late_result"]
        assert isinstance(letters[2], LateResultLetter)
        assert letters[2].value == {"a": [1, None]}
        assert (await store.info("r")).inbox_seq == 3
        assert await store.mailed({"r": 2}) == ["r"]
        assert await store.mailed({"r": 3, "nobody": 0}) == []

    @pytest.mark.proves("J1")
    async def test_a_post_wakes_a_waiting_run(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.release()
        assert await store.claim(AWAY, lease=LEASE) == []
        await store.post("r", message("a"))
        [claim] = await store.claim(AWAY, lease=LEASE)
        assert (claim.run, claim.inbox_seq, claim.epoch) == ("r", 1, 2)

    @pytest.mark.proves("J1")
    async def test_a_post_to_nobody_or_to_a_finished_run_is_refused(self, store: Store) -> None:
        with pytest.raises(NotFound, match="'nobody'"):
            await store.post("nobody", CancelLetter())
        await (await driven(store, "r")).finish()
        with pytest.raises(RunEnded, match="'r'"):
            await store.post("r", CancelLetter())
        assert await store.inbox("r") == []

    @pytest.mark.proves("W10")
    async def test_a_message_sent_again_is_the_same_message(self, store: Store) -> None:
        driver = await driven(store, "r")
        assert await store.post("r", message("a", "m")) == 1
        assert await store.post("r", message("b", "n")) == 2
        assert await store.post("r", message("a", "m")) == 1
        driver.inbox_seen = 2
        await driver.commit(note(), taken=(1,))
        assert await store.post("r", message("a", "m")) == 1
        assert [letter.inbox for letter in await store.inbox("r")] == [2]
        await store.start(new_run("other"))
        assert await store.post("other", message("a", "m")) == 1

    @pytest.mark.proves("W10")
    async def test_a_withdrawn_message_is_gone(self, store: Store) -> None:
        driver = await driven(store, "r")
        await store.post("r", message("a"))
        await store.withdraw("r", 1)
        assert await store.inbox("r") == []
        driver.inbox_seen = 1
        with pytest.raises(InboxMoved, match=r"'r'.*letter 1"):
            await driver.commit(note(), taken=(1,))
        assert await store.post("r", message("b")) == 2
        with pytest.raises(AlreadyTaken, match=r"'r'.*letter 1"):
            await store.withdraw("r", 1)

    @pytest.mark.proves("W10")
    async def test_a_changed_message_is_read_anew(self, store: Store) -> None:
        driver = await driven(store, "r")
        for text in "ab":
            await store.post("r", message(text))
        driver.inbox_seen = 2
        await store.withdraw("r", 1, message("A"))
        letters = [letter for letter in await store.inbox("r") if isinstance(letter, MessageLetter)]
        assert [(letter.inbox, letter.messages[0].text) for letter in letters] == [(1, "A"), (2, "b")]
        with pytest.raises(InboxMoved, match="letter 1"):
            await driver.commit(note(), taken=(1, 2))
        with pytest.raises(InboxMoved):
            await driver.finish()
        driver.inbox_seen = (await store.info("r")).inbox_seq
        await driver.commit(note(), taken=(1, 2))
        assert await store.inbox("r") == []

    @pytest.mark.proves("W10")
    async def test_what_is_taken_cannot_be_withdrawn(self, store: Store) -> None:
        driver = await driven(store, "r")
        await store.post("r", message("a"))
        driver.inbox_seen = 1
        await driver.commit(note(), taken=(1,))
        for replacement in (None, message("b")):
            with pytest.raises(AlreadyTaken, match=r"'r'.*letter 1"):
                await store.withdraw("r", 1, replacement)
        with pytest.raises(NotFound, match=r"'r'.*letter 2"):
            await store.withdraw("r", 2)
        with pytest.raises(NotFound, match="'nobody'"):
            await store.withdraw("nobody", 1)

    @pytest.mark.proves("C1")
    async def test_only_messages_are_withdrawn(self, store: Store) -> None:
        await store.start(new_run("r"))
        await store.post("r", CancelLetter())
        await store.post("r", message("a"))
        with pytest.raises(UsageError, match="only messages"):
            await store.withdraw("r", 1)
        with pytest.raises(UsageError, match="only messages"):
            await store.withdraw("r", 2, CancelLetter())
        assert len(await store.inbox("r")) == 2

    # --- tickets ------------------------------------------------------------------------------------------------------

    @pytest.mark.proves("W1")
    async def test_a_ticket_is_there_when_its_entry_is(self, store: Store, clock: HandClock) -> None:
        driver = await driven(store, "r", thread="t", place="head")
        schema = {"type": "string"}
        opened = approval(
            prompt="Pay?", schema=schema, reason="rule", expires_at=BEGIN + SECOND, args_digest="sha256:a"
        )
        await driver.commit(opened)
        [ticket] = await store.tickets(TicketFilter())
        assert (ticket.ref, ticket.kind, ticket.call, ticket.tool) == ("r/1.tool.1", "approval", "1.tool.1", "pay")
        assert (ticket.prompt, ticket.schema, ticket.reason, ticket.thread_id) == ("Pay?", schema, "rule", "t")
        assert (ticket.opened_at, ticket.expires_at) == (clock.wall, BEGIN + SECOND)
        assert (ticket.args_digest, ticket.on_expire, ticket.decision) == ("sha256:a", "reject", None)

    @pytest.mark.proves("W3", "J1")
    async def test_a_decision_is_durable_with_its_letter(self, store: Store, clock: HandClock) -> None:
        driver = await driven(store, "r")
        await driver.commit(approval())
        await driver.release()
        clock.advance(9)
        ticket = await store.decide("r", decision("1.tool.1", decided=Approve(note="fine"), by="ann"))
        assert (ticket.id, ticket.decision, ticket.decided_by) == ("1.tool.1", Approve(note="fine"), "ann")
        [letter] = await store.inbox("r")
        assert isinstance(letter, DecisionLetter)
        assert (letter.ticket, letter.decided_at, letter.inbox) == ("1.tool.1", clock.wall, 1)
        stored = await store.decision("r", "1.tool.1")
        assert stored is not None
        assert (stored.decision, stored.by, stored.decided_at) == (Approve(note="fine"), "ann", clock.wall)
        assert await store.tickets(TicketFilter()) == []
        assert (await store.tickets(TicketFilter(closed=True)))[0].decision == Approve(note="fine")
        assert [claim.run for claim in await store.claim(AWAY, lease=LEASE)] == ["r"]

    @pytest.mark.proves("W3")
    async def test_the_first_decision_stands(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.commit(approval())
        first = await store.decide("r", decision("1.tool.1", "d1", by="ann"))
        assert await store.decide("r", decision("1.tool.1", "d1", by="ann")) == first
        for other in (decision("1.tool.1", "d2"), decision("1.tool.1", "d1", Reject("no"))):
            with pytest.raises(AlreadyDecided, match=r"r/1\.tool\.1.*by ann at \d+.*Approve"):
                await store.decide("r", other)
        assert len(await store.inbox("r")) == 1
        driver.inbox_seen = 1
        await driver.commit(DecisionMade(ticket="1.tool.1", decision_id="d1", decision=Approve()), taken=(1,))
        assert await store.decide("r", decision("1.tool.1", "d1", by="ann")) == first
        await driver.finish()
        assert await store.decide("r", decision("1.tool.1", "d1", by="ann")) == first
        with pytest.raises(AlreadyDecided):
            await store.decide("r", decision("1.tool.1", "d3"))

    @pytest.mark.proves("W3")
    async def test_a_decision_that_came_with_a_commit_stands_too(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.commit(approval())
        made = DecisionMade(ticket="1.tool.1", decision_id="d", decision=Reject("late"), by="clock", decided_at=5)
        await driver.commit(made)
        assert await store.tickets(TicketFilter()) == []
        with pytest.raises(AlreadyDecided, match=r"by clock at 5.*Reject"):
            await store.decide("r", decision("1.tool.1"))

    @pytest.mark.proves("W3")
    async def test_what_is_not_asked_cannot_be_decided(self, store: Store) -> None:
        driver = await driven(store, "r")
        for run in ("r", "nobody"):
            with pytest.raises(NotFound, match=f"'{run}'"):
                await store.decide(run, decision("1.tool.1"))
        assert await store.decision("r", "1.tool.1") is None
        await driver.commit(approval())
        await driver.finish()
        with pytest.raises(RunEnded, match="'r'"):
            await store.decide("r", decision("1.tool.1"))

    @pytest.mark.proves("W10")
    async def test_a_ticket_that_was_closed_takes_no_decision(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.commit(approval())
        await driver.commit(TicketClosed(ticket="1.tool.1", why="superseded"))
        assert await store.tickets(TicketFilter()) == []
        with pytest.raises(AlreadyDecided, match=r"r/1\.tool\.1.*superseded"):
            await store.decide("r", decision("1.tool.1"))

    @pytest.mark.proves("W6")
    async def test_an_expired_ticket_takes_no_decision(self, store: Store, clock: HandClock) -> None:
        driver = await driven(store, "r")
        await driver.commit(approval(expires_at=BEGIN + 10 * SECOND))
        clock.advance(10)
        with pytest.raises(UsageError, match=r"r/1\.tool\.1.*expired"):
            await store.decide("r", decision("1.tool.1"))
        assert await store.inbox("r") == []

    @pytest.mark.proves("W6")
    async def test_a_decision_before_the_expiry_is_committed_wins(self, store: Store, clock: HandClock) -> None:
        driver = await driven(store, "r")
        await driver.commit(approval(expires_at=BEGIN + 10 * SECOND))
        await store.decide("r", decision("1.tool.1"))
        clock.advance(11)
        with pytest.raises(InboxMoved):
            await driver.commit(TicketClosed(ticket="1.tool.1", why="expired", applied="reject"))

    @pytest.mark.proves("W2")
    @pytest.mark.parametrize("kind", list(ALLOWED))
    async def test_a_decision_that_does_not_fit_is_refused(self, store: Store, kind: TicketKind) -> None:
        driver = await driven(store, "r")
        fits = ALLOWED[kind]
        decisions: tuple[Decision, ...] = (Approve(), Edit({"a": 1}), Reject("no"), Respond({"b": 2}))
        for number, decided in enumerate(decisions):
            await driver.commit(TicketOpened(ticket=f"t{number}", ticket_kind=kind))
            letter = decision(f"t{number}", decided=decided)
            if isinstance(decided, fits):
                assert (await store.decide("r", letter)).decision == decided
            else:
                with pytest.raises(UsageError, match=f"r/t{number}.*{kind}"):
                    await store.decide("r", letter)
                assert await store.decision("r", f"t{number}") is None
        assert len(await store.inbox("r")) == len(fits)

    @pytest.mark.proves("W1")
    async def test_tickets_are_listed_by_run_and_call_and_id(self, store: Store) -> None:
        first = await driven(store, "r1", agent="a", thread="t", place="head")
        second = await driven(store, "r2", agent="b")
        await second.commit(approval("1.tool.1"))
        await first.commit(
            approval("1.tool.2"),
            approval("1.tool.1"),
            TicketOpened(ticket="zz", ticket_kind="question", call="1.tool.1"),
        )
        everything = await store.tickets(TicketFilter())
        assert [ticket.ref for ticket in everything] == ["r1/1.tool.1", "r1/zz", "r1/1.tool.2", "r2/1.tool.1"]
        assert await store.tickets(TicketFilter(limit=2)) == everything[:2]
        assert await store.tickets(TicketFilter(after=everything[1].ref)) == everything[2:]
        for filter_, count in (
            (TicketFilter(run_id="r1"), 3),
            (TicketFilter(agent="b"), 1),
            (TicketFilter(thread_id="t"), 3),
            (TicketFilter(kind="question"), 1),
            (TicketFilter(closed=True), 0),
        ):
            assert len(await store.tickets(filter_)) == count
        with pytest.raises(NotFound, match="'nobody'"):
            await store.tickets(TicketFilter(run_id="nobody"))
        with pytest.raises(NotFound, match="r9/t"):
            await store.tickets(TicketFilter(after="r9/t"))
