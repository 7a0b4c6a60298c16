"""The SQLite file: what is said when it cannot be used, what is in it, and what its use costs."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clew.core.entries import ToolReturned
from clew.errors import JournalCorrupt, StoreUnavailable, Unsupported, UsageError
from clew.ports import RunFilter
from clew.stores import queries
from clew.stores.claims import Wanted
from clew.stores.sqlite import SqliteStore, file, leases
from clew.testing.stores.acting import (
    AWAY,
    BEGIN,
    FAR,
    HERE,
    LEASE,
    SECOND,
    HandClock,
    dead_process,
    driven,
    new_run,
    note,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clew.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


# --- opening and closing ----------------------------------------------------------------------------------------------


@pytest.mark.proves("J2")
async def test_what_was_stored_is_there_after_a_restart(path: Path) -> None:
    for number in range(3):
        store = SqliteStore(path)
        await store.open()
        await store.start(new_run(f"r{number}"))
        assert len(await store.runs(RunFilter())) == number + 1
        await store.close()
        # Everything is in the file itself, and nothing lies about.
        assert _names(path.parent) == ["clew.db"]


@pytest.mark.proves("J7")
async def test_a_store_that_is_not_open_says_so(path: Path) -> None:
    store = SqliteStore(path)
    await store.close()
    with pytest.raises(UsageError, match="is not open"):
        await store.read("r")
    await store.open()
    with pytest.raises(UsageError, match="is open already"):
        await store.open()
    await store.close()
    await store.close()
    for verb in (store.start(new_run("r")), store.claim(HERE, lease=LEASE), store.cursor()):
        with pytest.raises(UsageError, match="is not open"):
            await verb
    await store.open()
    await store.start(new_run("r"))
    await store.close()


@pytest.mark.proves("J7")
async def test_what_is_no_store_is_refused_when_opened(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, but long enough to be taken for one" * 50)
    (tmp_path / "folder").mkdir()
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("CREATE TABLE users (name TEXT)")
    other.close()
    for name, error, remedy in (
        ("text", JournalCorrupt, "restore a copy"),
        ("folder", UsageError, "name a file"),
        ("other", UsageError, "another program: name another file"),
        ("missing/clew.db", StoreUnavailable, "does not exist, make it"),
    ):
        with pytest.raises(error, match=f"{tmp_path / name}.*{remedy}"):
            await SqliteStore(tmp_path / name).open()
    assert _names(tmp_path) == ["folder", "other", "text"]


@pytest.mark.proves("J7")
async def test_a_damaged_file_is_named(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    driver = await driven(store, "r")
    for _ in range(50):
        await driver.commit(note("x" * 500))
    await store.close()
    _damage(path, 20 * 1024)
    with pytest.raises(JournalCorrupt, match=f"{path}.*restore a copy"):
        await _open_and_read(path)


def _names(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.iterdir())


def _damage(path: Path, after: int) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:after] + b"\x55" * (len(whole) - after))


async def _open_and_read(path: Path) -> None:
    store = SqliteStore(path)
    try:
        await store.open()
        await store.read("r")
    finally:
        await store.close()


@pytest.mark.proves("J5")
async def test_a_file_from_the_future_is_refused(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()
    _execute(path, f"PRAGMA user_version = {file.version() + 1}")
    with pytest.raises(Unsupported, match=f"{path}.*newer Clew.*upgrade"):
        await SqliteStore(path).open()
    _execute(path, "PRAGMA user_version = 0")
    with pytest.raises(JournalCorrupt, match=f"{path}.*schema version"):
        await SqliteStore(path).open()


@pytest.mark.proves("J5")
async def test_an_older_file_is_migrated_forward(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(path)
    await store.open()
    await (await driven(store, "r")).commit(note("old"))
    await store.close()
    step = "ALTER TABLE run ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm';\nCREATE INDEX run_of_mood ON run (mood);"
    monkeypatch.setattr(file, "MIGRATIONS", (step,))
    for _ in range(2):
        store = SqliteStore(path)
        await store.open()
        assert len(await store.read("r")) == 2
        await store.close()
    assert _execute(path, "SELECT mood FROM run") == [("calm",)]
    assert _execute(path, "PRAGMA user_version") == [(2,)]
    # A new file has both from the start.
    store = SqliteStore(path.with_name("new.db"))
    await store.open()
    await store.close()
    assert _execute(store.path, "SELECT count(mood) FROM run") == [(0,)]


@pytest.mark.proves("J5")
async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()
    monkeypatch.setattr(file, "MIGRATIONS", ("CREATE TABLE half (x);\nCREATE TABLE run (x);",))
    with pytest.raises(StoreUnavailable, match="table run already exists"):
        await SqliteStore(path).open()
    assert _execute(path, "SELECT count(*) FROM sqlite_master WHERE name = 'half'") == [(0,)]
    assert _execute(path, "PRAGMA user_version") == [(1,)]


def _execute(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


@pytest.mark.proves("R4")
async def test_time_is_not_below_what_the_file_bears(path: Path) -> None:
    clock = HandClock()
    store = SqliteStore(path, clock=clock)
    await store.open()
    clock.advance(3600)
    await (await driven(store, "r")).commit(note())
    await store.close()
    clock.wall = BEGIN
    again = SqliteStore(path, clock=clock)
    await again.open()
    assert again.now() == BEGIN + 3600 * SECOND
    await again.close()


@pytest.mark.proves("R1")
async def test_what_dead_processes_left_is_removed(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    dead = dead_process()
    await driven(store, "r", dead)
    await store.close()
    path.with_name(f"clew.db-owner-{dead.pid}-{dead.start}").touch()
    await store.open()
    assert len(list(path.parent.glob("*-owner-*"))) == 1
    await store.claim(HERE, lease=LEASE, run="r")
    # The next process that takes its first lease drops the rows of those that are gone.
    await driven(store, "r2", FAR)
    await driven(store, "r3", AWAY)
    await store.close()
    assert _execute(path, f"SELECT count(*) FROM owner WHERE pid = {dead.pid}") == [(0,)]


# --- what it costs ----------------------------------------------------------------------------------------------------


def _pages_written(store: SqliteStore) -> int:
    """Pages in the write-ahead log, which grows by every page that a commit writes."""
    return (Path(f"{store.path}-wal").stat().st_size - 32) // (file.PAGE_SIZE + 24)


@pytest.mark.proves("J4")
async def test_an_ordinary_commit_writes_no_rows_but_the_journals(store: SqliteStore) -> None:
    for number in range(200):
        await store.start(new_run(f"other{number}"))
    driver = await driven(store, "r", HERE)
    rows = {name: _dump(store.path, name) for name in ("run", "lease", "thread", "inbox", "ticket")}
    await store.close()
    await store.open()
    before = _pages_written(store)
    for number in range(40):
        await driver.commit(ToolReturned(call=f"{number}.tool.1", content="x" * 400))
    assert (_pages_written(store) - before) / 40 < 5
    assert {name: _dump(store.path, name) for name in rows} == rows


def _size(path: Path) -> int:
    return path.stat().st_size


def _dump(path: Path, table: str) -> list[tuple[object, ...]]:
    return _execute(path, f"SELECT * FROM {table}")


@pytest.mark.proves("J4")
async def test_a_thousand_steps_fit_into_little_more_than_their_json(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    driver = await driven(store, "r", HERE)
    for number in range(200):
        reply = ToolReturned(call=f"{number}.tool.1", content="x" * 300, duration=123_456)
        result = ToolReturned(call=f"{number}.tool.1", content="x" * 330, step=f"{number}.tool.1")
        for entry in (reply, result):
            await driver.commit(entry)
    size = sum(map(len, await store.read_raw("r")))
    await store.close()
    assert _size(path) < 1.25 * size + 100 * 1024


@pytest.mark.proves("R0")
async def test_a_look_reads_what_there_is_to_do_and_not_what_waits(store: SqliteStore) -> None:
    async def steps(waiting: int) -> int:
        _fill(store, waiting)
        counted = 0

        def count() -> None:
            nonlocal counted
            counted += 1

        store._reader.set_progress_handler(count, 1)
        for agents in (["meteo", "pilot"], None):
            wanted = Wanted(agents, 10)
            assert len(list(leases.candidates(store._glance, wanted))) == 2
        await store.next_wake()
        store._reader.set_progress_handler(None, 1)
        return counted

    await store.start(new_run("ready"))
    await driven(store, "lapsed", dead_process())
    few = await steps(100)
    many = await steps(100_000)
    assert many < 1.3 * few


def _fill(store: SqliteStore, waiting: int) -> None:
    """So many runs that wait for people, and a tenth of them for a time far off."""
    connection = sqlite3.connect(store.path, isolation_level=None)
    connection.execute(
        """INSERT INTO lease SELECT value, 1, NULL, 0, 1, 0, 0, 'meteo', 1, 0, 0, iif(value % 10, NULL, ?), 0, 0
           FROM (WITH RECURSIVE n (value) AS (SELECT 1000000 UNION ALL SELECT value + 1 FROM n LIMIT ?)
                 SELECT value FROM n) WHERE true ON CONFLICT DO NOTHING""",
        (2**60, waiting),
    )
    connection.close()


@pytest.mark.proves("R0")
@pytest.mark.parametrize(
    ("query", "index"),
    [("ready", "lease_ready"), ("due", "lease_due"), ("lapsed", "lease_held"), ("next_wake", "lease_due")],
)
async def test_a_look_starts_from_a_partial_index(store: SqliteStore, query: str, index: str) -> None:
    sql = queries.load("leases")[query]
    names = ("agent", "now", "format", "suspects", "suspect", "limit", "owner", "until")
    values: object = dict.fromkeys(names, 1) if ":" in sql else (1,)
    plan = store._reader.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()  # type: ignore[arg-type]
    assert any(f"INDEX {index} (" in row[3] for row in plan), plan
    assert not any(row[3].startswith("SCAN") for row in plan), plan


@pytest.mark.proves("J4")
async def test_lists_and_commits_start_from_indexes(store: SqliteStore) -> None:
    for name, values in (
        ("standing", (1,)),
        ("read", (1, 0, 9)),
        ("latest", (1,)),
        ("since", (0, 9)),
    ):
        plan = store._reader.execute(f"EXPLAIN QUERY PLAN {queries.load('journal')[name]}", values)
        for row in plan.fetchall():
            assert not row[3].startswith("SCAN"), (name, row)


@pytest.mark.proves("E2")
async def test_readers_do_not_wait_for_a_writer(store: SqliteStore) -> None:
    driver = await driven(store, "r", HERE)
    other = file.connect(store.path)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE run SET label = 'not yet'")
    assert (await store.info("r")).label == "Rain?"
    commit = asyncio.ensure_future(driver.commit(note()))
    await asyncio.sleep(0.02)
    assert not commit.done()
    other.execute("ROLLBACK")
    other.close()
    await commit
