"""How writes reach the SQLite file: a lone run's at once, many together, and what happens when the file fails."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clew.core.entries import Noted, TicketOpened
from clew.errors import InboxMoved, OutcomeUnknown, StaleWriter, StoreUnavailable
from clew.ports import Batch, Projection, Receipt, RunFilter
from clew.stores.sqlite import SqliteStore, file
from clew.testing.stores.acting import AWAY, HERE, LEASE, Driver, approval, driven, message, new_run, note


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "clew.db", busy=0.2)
    await store.open()
    yield store
    await store.close()


class Faults:
    """Stands before the write connection and fails where a test wants it to, as a disk would."""

    def __init__(self, store: SqliteStore) -> None:
        self.writer = store._writer
        self.execute = self.writer._execute
        self.writer._execute = self  # type: ignore[assignment]
        self.statements: list[tuple[str, str]] = []
        self.fail_before: str | None = None
        self.fail_after: str | None = None

    def __call__(self, statement: str, *values: object) -> sqlite3.Cursor:
        self.statements.append((statement, threading.current_thread().name))
        if statement == self.fail_before:
            raise sqlite3.OperationalError("disk I/O error")
        done = self.execute(statement, *values)
        if statement == self.fail_after:
            raise sqlite3.OperationalError("disk I/O error")
        return done

    def threads_of(self, statement: str) -> list[str]:
        return [thread for done, thread in self.statements if done == statement]


async def together(store: SqliteStore, *batches: Batch) -> list[Receipt | BaseException]:
    tasks = [asyncio.ensure_future(store.commit(batch)) for batch in batches]
    await asyncio.wait(tasks)
    return [task.exception() or task.result() for task in tasks]


async def test_a_lone_run_commits_on_the_loop_itself(store: SqliteStore) -> None:
    driver = await driven(store, "r", HERE)
    faults = Faults(store)
    for _ in range(5):
        await driver.commit(note())
    assert faults.threads_of("COMMIT") == ["MainThread"] * 5


async def test_runs_that_come_together_share_transactions(store: SqliteStore) -> None:
    drivers = [await driven(store, f"r{number}", HERE) for number in range(30)]
    faults = Faults(store)
    await together(store, *(driver.batch(note(), note()) for driver in drivers))
    commits = faults.threads_of("COMMIT")
    assert set(commits) == {"clew-sqlite-writer"}
    assert len(commits) < 10
    for driver in drivers:
        assert [entry.seq for entry in await store.read(driver.run)] == [1, 2, 3]


async def test_the_last_run_left_commits_on_the_loop_again(store: SqliteStore) -> None:
    first, second = await driven(store, "r1", HERE), await driven(store, "r2", HERE)
    await together(store, first.batch(note()), second.batch(note()))
    first.seq += 1
    await first.finish()
    second.seq += 1
    await second.commit(note())
    faults = Faults(store)
    await second.commit(note())
    assert faults.threads_of("COMMIT") == ["MainThread"]


@pytest.mark.proves("J1")
async def test_one_refused_batch_spoils_none_of_its_group(store: SqliteStore) -> None:
    drivers = [await driven(store, f"r{number}", HERE) for number in range(12)]
    await store.post("r5", message("mail"))
    drivers[2].epoch = 9
    drivers[3].seq = 4
    batches = [driver.batch(note()) for driver in drivers]
    batches[4] = drivers[4].batch(note(), starts=(new_run("child"), new_run("r1", digest="sha256:other")))
    batches[5] = drivers[5].batch(note(), lease="release", projection=Projection(status="waiting"))
    batches[6] = drivers[6].batch(approval(), projection=Projection(status="running", turns=2))
    batches[7] = drivers[7].batch(Noted(note_kind="n", value="\ud800"))
    batches[8] = drivers[8].batch(note(), projection=Projection(status="waiting", wake_at=2**70))
    outcomes = await together(store, *batches)
    errors = {place: type(outcome).__name__ for place, outcome in enumerate(outcomes) if isinstance(outcome, Exception)}
    assert errors == {
        2: "StaleWriter",
        3: "StaleWriter",
        4: "Conflict",
        5: "InboxMoved",
        7: "UsageError",
        8: "OverflowError",
    }
    assert [len(await store.read(f"r{number}")) for number in range(12)] == [2, 2, 1, 1, 1, 1, 2, 1, 1, 2, 2, 2]
    assert (await store.info("r6")).turns == 2
    assert "child" not in [row.run_id for row in await store.runs(RunFilter())]


@pytest.mark.proves("J1")
async def test_a_start_that_was_taken_back_leaves_no_trace(store: SqliteStore) -> None:
    """The number that a run had in a refused batch goes to another run, and nobody takes the one for the other."""
    parent = await driven(store, "parent", HERE)
    await driven(store, "other", HERE)
    refused = parent.batch(note(), starts=(new_run("child"),), posts=(("child", message("a")),), taken=(7,))
    fine = Driver(store, "other").batch(note(), starts=(new_run("grandchild", agent="g"),))
    outcomes = await together(store, refused, fine)
    assert isinstance(outcomes[0], InboxMoved)
    await store.start(new_run("child", agent="c"))
    assert [(await store.info(run)).agent for run in ("grandchild", "child")] == ["g", "c"]
    assert await store.inbox("child") == []


@pytest.mark.proves("J7")
@pytest.mark.parametrize("runs", [1, 10])
@pytest.mark.parametrize("written", [False, True])
async def test_an_error_in_a_commit_leaves_the_outcome_unknown(store: SqliteStore, runs: int, written: bool) -> None:
    drivers = [await driven(store, f"r{number}", HERE) for number in range(runs)]
    faults = Faults(store)
    faults.fail_after, faults.fail_before = ("COMMIT", None) if written else (None, "COMMIT")
    outcomes = await together(store, *(driver.batch(note()) for driver in drivers))
    assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
    faults.fail_after = faults.fail_before = None
    for driver in drivers:
        claim = await store.retake(HERE, driver.run, 1, lease=LEASE)
        assert claim.seq == len(await store.read(driver.run)) == (2 if written else 1)
        with pytest.raises(StaleWriter):
            await driver.commit(note())
        driver.epoch, driver.seq = claim.epoch, claim.seq
        await driver.commit(note())


@pytest.mark.proves("J7")
async def test_a_refused_batch_of_a_lost_group_stays_refused(store: SqliteStore) -> None:
    drivers = [await driven(store, f"r{number}", HERE) for number in range(4)]
    drivers[1].epoch = 9
    faults = Faults(store)
    faults.fail_before = "COMMIT"
    outcomes = await together(store, *(driver.batch(note()) for driver in drivers))
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, StaleWriter, OutcomeUnknown, OutcomeUnknown]


@pytest.mark.proves("J7")
@pytest.mark.parametrize("runs", [1, 10])
async def test_a_disk_that_is_full_before_a_commit_writes_nothing(store: SqliteStore, runs: int) -> None:
    drivers = [await driven(store, f"r{number}", HERE) for number in range(runs)]
    connection = store._connection
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    outcomes = await together(store, *(driver.batch(note("x" * 5000)) for driver in drivers))
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
    assert "full" in str(outcomes[0])
    connection.execute("PRAGMA max_page_count = 1000000")
    for driver in drivers:
        await driver.commit(note("x" * 5000))
        assert len(await store.read(driver.run)) == 2


@pytest.mark.proves("J7")
@pytest.mark.parametrize("runs", [1, 5])
async def test_a_busy_file_is_waited_for_and_then_reported(store: SqliteStore, runs: int) -> None:
    drivers = [await driven(store, f"r{number}", HERE) for number in range(runs)]
    other = file.connect(store.path)
    other.execute("BEGIN IMMEDIATE")
    outcomes = await together(store, *(driver.batch(note()) for driver in drivers))
    assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
    assert f"{store.path} is locked by this process" in str(outcomes[0])
    other.execute("ROLLBACK")
    other.close()
    for driver in drivers:
        await driver.commit(note())


@pytest.mark.proves("J7")
async def test_a_cancelled_wait_cancels_no_write(store: SqliteStore) -> None:
    drivers = [await driven(store, f"r{number}", HERE) for number in range(5)]
    other = file.connect(store.path)
    other.execute("BEGIN IMMEDIATE")
    tasks = [asyncio.ensure_future(driver.commit(note(), blobs={"sha256:b": b"b"})) for driver in drivers]
    await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    follow = [asyncio.ensure_future(store.commit(Driver(store, driver.run, seq=2).batch(note()))) for driver in drivers]
    other.execute("ROLLBACK")
    other.close()
    await asyncio.wait(follow)
    assert [task.exception() for task in follow] == [None] * 5
    assert [len(await store.read(driver.run)) for driver in drivers] == [3] * 5


@pytest.mark.proves("J7")
async def test_what_was_handed_over_is_written_before_a_store_closes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "closing.db")
    await store.open()
    drivers = [await driven(store, f"r{number}", HERE) for number in range(5)]
    tasks = [asyncio.ensure_future(store.commit(driver.batch(note()))) for driver in drivers]
    await asyncio.sleep(0)
    await store.close()
    assert [task.exception() for task in tasks] == [None] * 5
    await store.open()
    assert [(await store.info(driver.run)).seq for driver in drivers] == [2] * 5
    await store.close()


@pytest.mark.proves("J7")
async def test_every_verb_goes_through_the_thread_when_many_write(store: SqliteStore) -> None:
    drivers = [await driven(store, f"r{number}", HERE) for number in range(3)]
    await drivers[0].commit(TicketOpened(ticket="t", ticket_kind="question"))
    faults = Faults(store)
    work: list[Any] = [
        store.start(new_run("new")),
        store.post("r1", message("a")),
        store.claim(AWAY, lease=LEASE),
        store.alias("name", "r1"),
        store.quarantine("r2", on=True),
        drivers[0].commit(note()),
    ]
    tasks = [asyncio.ensure_future(one) for one in work]
    await asyncio.wait(tasks)
    assert [task.exception() for task in tasks] == [None] * len(work)
    assert set(faults.threads_of("COMMIT")) == {"clew-sqlite-writer"}
