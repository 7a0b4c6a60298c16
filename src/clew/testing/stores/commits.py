"""The store kit: every field of a batch, and what refuses it."""

import pytest
from msgspec.structs import replace

from clew.core.entries import Entry, RunFinished, TicketClosed
from clew.core.letters import CancelLetter, ChildEndLetter
from clew.core.messages import Usage
from clew.core.outcomes import Completed, Stopped
from clew.errors import Conflict, InboxMoved, NotFound, StaleWriter, UsageError
from clew.ports import Projection, Store, TicketFilter
from clew.testing.stores.acting import (
    AWAY,
    BEGIN,
    FAR,
    LEASE,
    RUNNING,
    SECOND,
    Driver,
    HandClock,
    approval,
    claimed,
    driven,
    message,
    new_run,
    note,
)


class CommitContract:
    """Every field of a batch, and what refuses it."""

    @pytest.mark.proves("J1")
    async def test_entries_are_read_back_as_they_were_committed(self, store: Store) -> None:
        driver = await driven(store, "r")
        batch = driver.batch(note("a"), note("ü\x00 NaN"))
        await store.commit(batch)
        assert (await store.read("r"))[1:] == list(batch.entries)
        assert await store.read("r", after=2) == [batch.entries[1]]
        assert await store.read("r", until=1) == (await store.read("r"))[:1]
        assert await store.read("r", after=1, until=2) == [batch.entries[0]]
        assert len(await store.read_raw("r", after=1)) == 2
        assert (await store.info("r")).seq == 3

    @pytest.mark.proves("J1")
    async def test_an_empty_batch_is_a_write_of_rows_alone(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.commit(projection=Projection(status="running", turns=3, usage=Usage(input=5)))
        row = await store.info("r")
        assert (row.turns, row.usage.input, row.seq) == (3, 5, 1)

    @pytest.mark.proves("J1")
    @pytest.mark.parametrize("seq", [0, 2, 3])
    async def test_a_sequence_that_moved_refuses_the_batch(self, store: Store, seq: int) -> None:
        driver = await driven(store, "r")
        driver.seq = seq
        with pytest.raises(StaleWriter, match=r"'r'.*ends at entry 1"):
            await driver.commit(note())
        assert len(await store.read("r")) == 1

    @pytest.mark.proves("J1")
    async def test_an_epoch_that_moved_refuses_the_batch(self, store: Store, clock: HandClock) -> None:
        frozen = await driven(store, "r")
        clock.advance(31)
        thawed = await claimed(store, "r", FAR)
        assert (frozen.epoch, thawed.epoch) == (1, 2)
        with pytest.raises(StaleWriter, match=r"'r'.*epoch 2.*has 1"):
            await frozen.commit(note())
        await thawed.commit(note())

    @pytest.mark.proves("J1")
    async def test_an_expired_lease_that_nobody_took_still_commits(self, store: Store, clock: HandClock) -> None:
        driver = await driven(store, "r")
        clock.advance(3600)
        await driver.commit(note())
        assert len(await store.read("r")) == 2

    @pytest.mark.proves("J1")
    async def test_without_a_lease_nothing_is_committed(self, store: Store) -> None:
        await store.start(new_run("r"))
        with pytest.raises(StaleWriter, match="'r'"):
            await Driver(store, "r").commit(note())
        with pytest.raises(StaleWriter, match="'nobody'"):
            await Driver(store, "nobody").commit(note())

    @pytest.mark.proves("J1")
    async def test_after_a_release_nothing_is_committed(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.release()
        with pytest.raises(StaleWriter):
            await driver.commit(note())

    @pytest.mark.proves("J1")
    async def test_entries_that_are_numbered_otherwise_are_refused(self, store: Store) -> None:
        driver = await driven(store, "r")
        batch = driver.batch(note(), note())
        for wrong in (batch.entries[1:], batch.entries[::-1]):
            with pytest.raises(UsageError, match="'r'"):
                await store.commit(replace(batch, entries=wrong))
        assert len(await store.read("r")) == 1

    @pytest.mark.proves("J1")
    @pytest.mark.parametrize(
        ("entries", "lease"),
        [
            ((RunFinished(outcome=Completed()),), "keep"),
            ((TicketClosed(ticket="1.tool.1", why="expired", applied="reject"),), "keep"),
            ((), "release"),
        ],
        ids=["end", "expiry", "release"],
    )
    async def test_mail_that_was_not_seen_refuses_an_ending(
        self, store: Store, entries: tuple[Entry, ...], lease: str
    ) -> None:
        driver = await driven(store, "r")
        await driver.commit(approval())
        await store.post("r", CancelLetter())
        with pytest.raises(InboxMoved, match=r"'r' has letters up to 1.*saw 0"):
            await driver.commit(*entries, lease=lease)
        assert (await store.info("r")).seq == 2
        assert (await store.commit(driver.batch(note()))).inbox_seq == 1

    @pytest.mark.proves("J1")
    async def test_mail_that_was_seen_ends_with_the_run(self, store: Store) -> None:
        driver = await driven(store, "r")
        await store.post("r", CancelLetter())
        driver.inbox_seen = 1
        assert (await driver.finish(taken=(1,))).inbox_seq == 1
        assert (await store.info("r")).status == "done"

    @pytest.mark.proves("J1")
    async def test_taken_letters_go_with_their_entries(self, store: Store) -> None:
        driver = await driven(store, "r")
        for text in "abc":
            await store.post("r", message(text))
        driver.inbox_seen = 3
        await driver.commit(note(), taken=(1, 3))
        assert [letter.inbox for letter in await store.inbox("r")] == [2]
        with pytest.raises(InboxMoved, match="letter 3"):
            await driver.commit(note(), taken=(2, 3))
        assert [letter.inbox for letter in await store.inbox("r")] == [2]
        assert (await store.info("r")).seq == 2

    @pytest.mark.proves("J1", "C2")
    async def test_posts_reach_other_runs_with_the_batch(self, store: Store) -> None:
        driver = await driven(store, "parent")
        await store.start(new_run("child"))
        await driver.commit(note(), posts=(("child", CancelLetter(by="parent")), ("child", CancelLetter())))
        assert [letter.inbox for letter in await store.inbox("child")] == [1, 2]
        assert (await store.info("child")).inbox_seq == 2

    @pytest.mark.proves("J1")
    async def test_a_refused_batch_posts_nothing(self, store: Store) -> None:
        driver = await driven(store, "r")
        await store.start(new_run("other"))
        driver.seq = 9
        with pytest.raises(StaleWriter):
            await driver.commit(note(), posts=(("other", CancelLetter()),), starts=(new_run("child"),))
        assert await store.inbox("other") == []
        with pytest.raises(NotFound):
            await store.info("child")

    @pytest.mark.proves("J1")
    async def test_a_post_to_a_finished_run_is_dropped_and_the_batch_stands(self, store: Store) -> None:
        parent = await driven(store, "parent")
        await parent.finish()
        child = await driven(store, "child")
        end = ChildEndLetter(run="child", outcome=Completed())
        await child.finish(posts=(("parent", end), ("nobody", end)))
        assert (await store.info("child")).status == "done"
        assert await store.inbox("parent") == []

    @pytest.mark.proves("J1")
    async def test_starts_are_made_with_the_batch_once(self, store: Store) -> None:
        driver = await driven(store, "parent")
        child = new_run("child", owner=AWAY, lease=LEASE)
        await driver.commit(note(), starts=(child,), posts=(("child", CancelLetter()),))
        await driver.commit(note(), starts=(child,))
        assert len(await store.read("child")) == 1
        assert len(await store.inbox("child")) == 1
        with pytest.raises(Conflict, match=r"'child'.*sha256:d.*sha256:other"):
            await driver.commit(note(), starts=(new_run("apart"), new_run("child", digest="sha256:other")))
        assert len(await store.read("parent")) == 3
        with pytest.raises(NotFound):
            await store.info("apart")

    @pytest.mark.proves("J1", "J6")
    async def test_blobs_are_stored_with_the_batch(self, store: Store) -> None:
        driver = await driven(store, "r", blobs={"sha256:spec": b"{}"})
        await driver.commit(note(), blobs={"sha256:a": b"\x00a", "sha256:spec": b"other"})
        assert await store.blobs(["sha256:a", "sha256:spec", "sha256:none"]) == {
            "sha256:a": b"\x00a",
            "sha256:spec": b"{}",
        }
        assert await store.blobs([]) == {}

    @pytest.mark.proves("J1")
    async def test_a_projection_is_what_lists_show(self, store: Store, clock: HandClock) -> None:
        driver = await driven(store, "r")
        clock.advance(5)
        told = Projection(
            status="waiting",
            reasons=("user_input", "timer"),
            message="asks",
            tickets=("t",),
            turns=2,
            calls=3,
            attempts=4,
            usage=Usage(input=7),
            wake_at=BEGIN + 60 * SECOND,
        )
        await driver.commit(note(), projection=told, lease="release")
        row = await store.info("r")
        assert (row.status, row.reasons, row.message, row.tickets) == (
            "waiting",
            ("user_input", "timer"),
            "asks",
            ("t",),
        )
        assert (row.turns, row.calls, row.attempts, row.usage.input) == (2, 3, 4, 7)
        assert (row.wake_at, row.waiting_since, row.updated_at) == (BEGIN + 60 * SECOND, clock.wall, clock.wall)
        assert row.reason == "user_input"
        driver = await claimed(store, "r")
        await driver.commit(note())
        assert await store.info("r") == replace(row, seq=3, started_at=row.started_at)
        await driver.commit(projection=RUNNING)
        assert (await store.info("r")).waiting_since is None

    @pytest.mark.proves("J8")
    async def test_a_finished_run_is_done_and_takes_nothing_more(self, store: Store, clock: HandClock) -> None:
        driver = await driven(store, "r")
        clock.advance(1)
        end = RunFinished(outcome=Stopped("turns", "3 of 3"), usage=Usage(output=9), turns=3, calls=2)
        await driver.commit(end)
        row = await store.info("r")
        assert (row.status, row.outcome, row.finished_at) == ("done", Stopped("turns", "3 of 3"), clock.wall)
        assert (row.usage.output, row.turns, row.calls, row.reason) == (9, 3, 2, "stopped:turns")
        with pytest.raises(StaleWriter):
            await driver.commit(end)
        assert (await store.lease("r")).owner is None
        assert await store.claim(FAR, lease=LEASE) == []

    @pytest.mark.proves("J8")
    async def test_the_end_closes_the_tickets(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.commit(approval("1.tool.1"), approval("1.tool.2"))
        assert len(await store.tickets(TicketFilter())) == 2
        await driver.finish()
        assert await store.tickets(TicketFilter()) == []
        assert len(await store.tickets(TicketFilter(closed=True))) == 2

    @pytest.mark.proves("J5")
    async def test_the_row_keeps_the_highest_format_and_the_agent(self, store: Store) -> None:
        await driven(store, "r", agent="pilot")
        row = await store.info("r")
        assert (row.format, row.agent) == (1, "pilot")
