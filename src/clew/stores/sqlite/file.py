"""The file: opening, what is set on a connection, the schema and its versions."""

import os
import sqlite3
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from clew.errors import JournalCorrupt, StoreUnavailable, Unsupported, UsageError
from clew.stores import schema
from clew.stores.sqlite import failures

APPLICATION = 0x436C6577  # "Clew", in the file's header
PAGE_SIZE = 1024
LOG_PAGES = 2000  # of the write-ahead log, which are then copied into the file; after a crash they are read anew
PATIENCE = 5.0  # seconds that opening waits for another process that opens the same file
RETRY = 0.005  # seconds between two attempts

# SQLite keeps its locks by process and file: in a child, a file that the parent had open cannot be locked any more.
_open: Counter[tuple[int, int]] = Counter()
_inherited: set[tuple[int, int]] = set()


def _forked() -> None:
    _inherited.update(place for place, times in _open.items() if times > 0)
    _open.clear()


os.register_at_fork(after_in_child=_forked)

# What leads from version n to n + 1, at place n - 1: statements that run in one transaction.
MIGRATIONS: tuple[str, ...] = ()


def version() -> int:
    """The schema that this Clew writes."""
    return len(MIGRATIONS) + 1


def connect(path: Path, *, patience: float = PATIENCE, may_write: bool = True) -> sqlite3.Connection:
    """A connection to a file that has been prepared; `patience` is how long it waits for others, in seconds."""
    connection = sqlite3.connect(
        path, timeout=patience, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    if not may_write:
        connection.execute("PRAGMA query_only = ON")
    return connection


def prepare(path: Path) -> sqlite3.Connection:
    """The connection that writes, which waits for nobody. The file is made, or brought to this version.

    Raises what is wrong with it, and with what remedy.
    """
    if not path.parent.is_dir():
        raise StoreUnavailable(f"{path} cannot be opened: its folder {path.parent} does not exist, make it first")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise StoreUnavailable(f"{path} is read-only for this process: allow it to write the file and its folder")
    if path.exists() and _identity(path) in _inherited:
        raise UsageError(
            f"{path} was open in the process that forked this one, and SQLite cannot share it across a fork: "
            "start processes by spawn, or fork before opening it"
        )
    with ExitStack() as undone:
        connection = connect(path)
        undone.callback(connection.close)
        _prepare(path, connection)
        _open[_identity(path)] += 1
        connection.execute("PRAGMA busy_timeout = 0")
        undone.pop_all()
    return connection


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    # One look: between two of them another process may make the file.
    connection.execute("BEGIN")
    try:
        found = _version_of(path, connection)
    finally:
        connection.execute("ROLLBACK")
    if found == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    if _log_mode(connection) != "wal":
        raise Unsupported(f"{path}: its file system cannot share memory between processes: use a local disk")
    if found != version():
        _migrate(path, connection)


def _log_mode(connection: sqlite3.Connection) -> str:
    """Set to WAL. While others make the same file this is busy at once, however patient the connection is."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as error:
            if not failures.is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(RETRY)


def _version_of(path: Path, connection: sqlite3.Connection) -> int:
    """0 for an empty file. Raises if the file is somebody else's, or from the future."""
    [found] = connection.execute("PRAGMA user_version").fetchone()
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == APPLICATION:
        if found > version():
            raise Unsupported(
                f"{path} was written by a newer Clew: it has schema {found}, this one knows up to {version()}; "
                "upgrade Clew to use it"
            )
        if found > 0:
            return int(found)
        raise JournalCorrupt(f"{path} has lost its schema version: restore a copy")
    if tables or found:
        raise UsageError(f"{path} is the SQLite file of another program: name another file")
    return 0


def _migrate(path: Path, connection: sqlite3.Connection) -> None:
    """From whatever version to this one in one transaction, unless another process was faster."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _version_of(path, connection)
        scripts = [schema.load("sqlite")] if found == 0 else []
        for script in (*scripts, *MIGRATIONS[max(found, 1) - 1 :]):
            for statement in schema.statements(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {version()}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def close(path: Path, connection: sqlite3.Connection) -> None:
    """Everything into the file itself, as far as nobody else still reads the old pages."""
    if path.exists():
        _open[_identity(path)] -= 1
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.close()
