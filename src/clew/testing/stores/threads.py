"""The store kit: starting runs, their places in threads, the queue, heads, aliases, pruning."""

import pytest
from msgspec.structs import replace

from clew.core.entries import BaseAt, BaseFixed, BaseThread, Parent
from clew.core.letters import CancelLetter
from clew.core.limits import Limits
from clew.core.outcomes import Completed
from clew.errors import Conflict, NotFound, RunEnded, StaleWriter, UsageError
from clew.ports import HeadMove, Projection, RunFilter, Store
from clew.testing.stores.acting import (
    AWAY,
    BEGIN,
    FAR,
    LEASE,
    SECOND,
    Driver,
    HandClock,
    claimed,
    driven,
    message,
    new_run,
    note,
)


class ThreadContract:
    """Runs as they come and go, and the threads they stand in."""

    @pytest.mark.proves("J2")
    async def test_a_started_run_is_there_for_any_worker(self, store: Store) -> None:
        started = await store.start(new_run("r", note()))
        assert (started.run, started.created) == ("r", True)
        assert [entry.kind for entry in await store.read("r")] == ["run_started", "noted"]
        row = await store.info("r")
        assert (row.status, row.agent, row.seq, row.root, row.label) == ("running", "meteo", 2, "r", "Rain?")
        assert (row.created_at, row.started_at, row.metadata) == (BEGIN, None, {})
        assert [claim.run for claim in await store.claim(AWAY, lease=LEASE)] == ["r"]

    @pytest.mark.proves("J2")
    async def test_the_row_says_what_the_start_said(self, store: Store) -> None:
        parent = Parent(run="p", thread="t", step="1.tool.1")
        base = BaseAt("p", 3)
        limits = Limits(turns=3)
        new = new_run("r", parent=parent, root="p", origin="child", base=base, budget=limits, metadata={"user": "ü"})
        await store.start(new)
        row = await store.info("r")
        assert (row.parent, row.root, row.origin, row.base, row.budget) == ("p", "p", "child", base, limits)
        assert (row.metadata, row.fingerprint) == ({"user": "ü"}, "sha256:f")

    @pytest.mark.proves("J2", "R1")
    async def test_a_run_is_held_from_its_first_instant(self, store: Store, clock: HandClock) -> None:
        driver = await driven(store, "r")
        lease = await store.lease("r")
        assert (lease.owner, lease.epoch, lease.until, lease.alive) == (AWAY, 1, clock.boot + LEASE, True)
        assert await store.claim(FAR, lease=LEASE) == []
        await driver.commit(note())

    @pytest.mark.proves("J3")
    async def test_the_same_start_attaches(self, store: Store) -> None:
        driver = await driven(store, "r")
        await store.post("r", CancelLetter())
        again = await store.start(new_run("r", owner=FAR, lease=LEASE))
        assert (again.run, again.created, again.inbox_seq) == ("r", False, 1)
        assert (await store.lease("r")).owner == AWAY
        driver.inbox_seen = 1
        await driver.finish()
        assert (await store.start(new_run("r"))).created is False
        assert len(await store.read("r")) == 2

    @pytest.mark.proves("J3")
    async def test_another_start_under_the_same_id_is_refused(self, store: Store) -> None:
        await store.start(new_run("r"))
        with pytest.raises(Conflict, match=r"'r'.*sha256:d.*sha256:other"):
            await store.start(new_run("r", digest="sha256:other"))

    @pytest.mark.proves("J1")
    async def test_entries_of_a_start_are_numbered_from_one(self, store: Store) -> None:
        new = new_run("r", note())
        with pytest.raises(UsageError, match="'r'"):
            await store.start(replace(new, entries=(new.entries[0], new.entries[0])))
        with pytest.raises(NotFound, match="'r'"):
            await store.info("r")

    # --- threads ------------------------------------------------------------------------------------------------------

    @pytest.mark.proves("W11")
    async def test_the_first_run_makes_the_thread(self, store: Store) -> None:
        assert await store.thread("t") is None
        driver = await driven(store, "r1", thread="t", place="head")
        thread = await store.thread("t")
        assert thread is not None
        assert (thread.head, thread.head_seq, thread.head_done, thread.queue) == ("r1", 1, False, ())
        assert (thread.created_at, (await store.info("r1")).thread_id) == (BEGIN, "t")
        await driver.finish()
        thread = await store.thread("t")
        assert thread is not None
        assert (thread.head_seq, thread.head_done) == (2, True)

    @pytest.mark.proves("W11")
    async def test_a_finished_head_is_followed(self, store: Store) -> None:
        await (await driven(store, "r1", thread="t", place="head")).finish()
        with pytest.raises(Conflict, match=r"'t'.*'r1'"):
            await store.start(new_run("r2", thread="t", place="head"))
        with pytest.raises(Conflict, match=r"'t'.*free"):
            await store.start(new_run("r2", thread="t", place="queue", expected="r1"))
        await store.start(new_run("r2", thread="t", place="head", expected="r1"))
        thread = await store.thread("t")
        assert thread is not None
        assert (thread.head, thread.head_done) == ("r2", False)

    @pytest.mark.proves("W11")
    async def test_an_unfinished_head_is_queued_behind(self, store: Store) -> None:
        await store.start(new_run("r1", thread="t", place="head"))
        with pytest.raises(Conflict, match=r"'t'.*'r1'"):
            await store.start(new_run("r2", thread="t", place="head", expected="r1"))
        with pytest.raises(Conflict, match=r"'t'.*'r1'"):
            await store.start(new_run("r2", thread="t", place="queue", expected="r0"))
        for run in ("r2", "r3"):
            await store.start(new_run(run, thread="t", place="queue", expected="r1", base=BaseThread()))
        thread = await store.thread("t")
        assert thread is not None
        assert (thread.head, thread.queue) == ("r1", ("r2", "r3"))
        assert (await store.info("r2")).status == "queued"
        assert [claim.run for claim in await store.claim(AWAY, lease=LEASE, limit=9)] == ["r1"]

    @pytest.mark.proves("W11")
    async def test_a_thread_that_nobody_began_has_no_queue(self, store: Store) -> None:
        with pytest.raises(Conflict, match="'t'"):
            await store.start(new_run("r", thread="t", place="queue"))
        with pytest.raises(Conflict, match="'t'"):
            await store.start(new_run("r", thread="t", place="head", expected="r0"))
        assert await store.thread("t") is None

    @pytest.mark.proves("W11")
    async def test_the_end_of_the_head_calls_the_next(self, store: Store) -> None:
        head = await driven(store, "r1", thread="t", place="head")
        for run in ("r2", "r3"):
            await store.start(new_run(run, thread="t", place="queue", expected="r1", base=BaseThread()))
        await head.finish()
        assert [(await store.info(run)).status for run in ("r2", "r3")] == ["running", "queued"]
        with pytest.raises(Conflict, match="'t'"):
            await store.start(new_run("r4", thread="t", place="head", expected="r1"))
        [claim] = await store.claim(AWAY, lease=LEASE, limit=9)
        assert claim.run == "r2"
        driver = Driver(store, "r2", epoch=claim.epoch)
        await driver.commit(BaseFixed(run="r1", base_seq=2), heads=(HeadMove("t", "r1", "r2"),))
        thread = await store.thread("t")
        assert thread is not None
        assert (thread.head, thread.queue, (await store.info("r2")).base) == ("r2", ("r3",), BaseAt("r1", 2))
        await driver.finish()
        assert (await store.info("r3")).status == "running"

    @pytest.mark.proves("W11")
    async def test_a_run_that_ends_in_the_queue_leaves_it(self, store: Store) -> None:
        head = await driven(store, "r1", thread="t", place="head")
        for run in ("r2", "r3", "r4"):
            await store.start(new_run(run, thread="t", place="queue", expected="r1"))
        await store.post("r2", CancelLetter())
        cancelled = await claimed(store, "r2")
        await cancelled.finish(taken=(1,))
        thread = await store.thread("t")
        assert thread is not None
        assert (thread.head, thread.queue, (await store.info("r3")).status) == ("r1", ("r3", "r4"), "queued")
        await head.finish()
        # Called, but over before it became the head: the turn goes on to the next.
        await (await claimed(store, "r3")).finish()
        thread = await store.thread("t")
        assert thread is not None
        assert (thread.head, thread.queue, (await store.info("r4")).status) == ("r1", ("r4",), "running")

    @pytest.mark.proves("W11")
    async def test_a_queued_run_that_is_looked_at_stays_queued(self, store: Store) -> None:
        await store.start(new_run("r1", thread="t", place="head", owner=AWAY, lease=LEASE))
        await store.start(new_run("r2", thread="t", place="queue", expected="r1"))
        await store.post("r2", message("more"))
        [claim] = await store.claim(AWAY, lease=LEASE)
        driver = Driver(store, "r2", epoch=claim.epoch, inbox_seen=1)
        await driver.release(Projection(status="queued"))
        assert await store.claim(AWAY, lease=LEASE) == []
        assert (await store.info("r2")).status == "queued"

    @pytest.mark.proves("W11", "B4")
    async def test_the_queue_goes_on_when_the_head_was_pruned(self, store: Store) -> None:
        head = await driven(store, "r1", thread="t", place="head")
        for run in ("r2", "r3"):
            await store.start(new_run(run, thread="t", place="queue", expected="r1"))
        await head.finish()
        await store.prune(["r1"])
        await (await claimed(store, "r2")).finish()
        assert (await store.info("r3")).status == "running"

    @pytest.mark.proves("W11")
    async def test_a_turn_that_comes_while_the_queued_run_is_looked_at_is_not_lost(self, store: Store) -> None:
        head = await driven(store, "r1", thread="t", place="head")
        await store.start(new_run("r2", thread="t", place="queue", expected="r1"))
        looked_at = await claimed(store, "r2")
        await head.finish()
        await looked_at.release(Projection(status="queued"))
        assert (await store.info("r2")).status == "running"
        assert [claim.run for claim in await store.claim(AWAY, lease=LEASE)] == ["r2"]

    @pytest.mark.proves("J1")
    async def test_a_head_that_moved_refuses_the_batch(self, store: Store) -> None:
        driver = await driven(store, "r1", thread="t", place="head")
        await store.start(new_run("r2"))
        with pytest.raises(StaleWriter, match=r"'t'.*'r1'.*'r0'"):
            await driver.commit(note(), heads=(HeadMove("t", "r0", "r2"),))
        assert (await store.info("r1")).seq == 1
        await driver.commit(note(), heads=(HeadMove("t", "r1", "r2"), HeadMove("new", None, "r1")))
        assert [thread and thread.head for thread in (await store.thread("t"), await store.thread("new"))] == [
            "r2",
            "r1",
        ]

    @pytest.mark.proves("W11")
    async def test_an_alias_stands_for_its_run(self, store: Store) -> None:
        await store.start(new_run("r"))
        await store.start(new_run("other"))
        for _ in range(2):
            await store.alias("steered", "r")
        assert (await store.info("steered")).run_id == "r"
        assert await store.start(new_run("steered", digest="sha256:own")) == replace(
            await store.start(new_run("r")), run="r"
        )
        assert await store.post("steered", CancelLetter()) == 1
        assert len(await store.inbox("r")) == len(await store.inbox("steered")) == 1
        assert await store.read("steered") == await store.read("r")
        with pytest.raises(Conflict, match=r"'steered'.*'r'"):
            await store.alias("steered", "other")
        with pytest.raises(Conflict, match="'other'"):
            await store.alias("other", "r")
        with pytest.raises(NotFound, match="'nobody'"):
            await store.alias("name", "nobody")

    @pytest.mark.proves("J2")
    async def test_threads_are_listed_newest_first_in_pages(self, store: Store) -> None:
        for name in "abc":
            await store.start(new_run(f"run-{name}", thread=name, place="head"))
        assert [thread.thread_id for thread in await store.threads()] == ["c", "b", "a"]
        page = await store.threads(limit=2)
        assert [thread.head for thread in page] == ["run-c", "run-b"]
        assert [thread.thread_id for thread in await store.threads(limit=2, after=page[-1].thread_id)] == ["a"]
        with pytest.raises(NotFound, match="'z'"):
            await store.threads(after="z")

    # --- pruning ------------------------------------------------------------------------------------------------------

    @pytest.mark.proves("J3", "B4")
    async def test_a_pruned_run_leaves_a_tombstone(self, store: Store, clock: HandClock) -> None:
        driver = await driven(store, "r", thread="t", place="head")
        await store.alias("name", "r")
        await driver.commit(note())
        clock.advance(5)
        await driver.finish()
        assert await store.prune(["r"]) == 3
        for run in ("r", "name"):
            row = await store.info(run)
            assert (row.run_id, row.status, row.outcome) == ("r", "done", Completed())
            assert row.finished_at == BEGIN + 5 * SECOND
            with pytest.raises(NotFound, match="'r' was pruned"):
                await store.read(run)
            with pytest.raises(RunEnded, match="'r'"):
                await store.post(run, CancelLetter())
        assert await store.runs(RunFilter()) == []
        assert (await store.start(new_run("r"))).created is False
        with pytest.raises(Conflict, match=r"'r'.*sha256:d.*sha256:other"):
            await store.start(new_run("r", digest="sha256:other"))
        thread = await store.thread("t")
        assert thread is not None
        assert (thread.head, thread.head_done) == (None, True)
        await store.start(new_run("r2", thread="t", place="head"))
        assert await store.prune(["r"]) == 0
        with pytest.raises(NotFound, match="'nobody'"):
            await store.prune(["nobody"])

    @pytest.mark.proves("B4")
    async def test_what_others_stand_on_is_not_pruned(self, store: Store) -> None:
        await (await driven(store, "r1")).finish()
        heir = await driven(store, "r2", base=BaseThread())
        await heir.commit(BaseFixed(run="r1", base_seq=2))
        with pytest.raises(UsageError, match=r"'r1'.*'r2'"):
            await store.prune(["r1"])
        with pytest.raises(UsageError, match=r"'r2'.*not finished"):
            await store.prune(["r1", "r2"])
        assert len(await store.read("r1")) == 2
        await heir.finish()
        assert await store.prune(["r2", "r1"]) == 5

    @pytest.mark.proves("E4")
    async def test_a_cursor_survives_pruning(self, store: Store) -> None:
        await (await driven(store, "r1")).finish()
        cursor = await store.cursor()
        await store.prune(["r1"])
        driver = await driven(store, "r2")
        found, cursor = await store.entries_since(cursor)
        assert [(run, entry.seq) for run, entry, _ in found] == [("r2", 1)]
        await driver.commit(note())
        assert [entry.kind for _, entry, _ in (await store.entries_since(cursor))[0]] == ["noted"]
