"""What SQLite's errors mean for whoever called, and who keeps others from writing."""

import os
import re
import sqlite3
from pathlib import Path

from clew.errors import ClewError, JournalCorrupt, OutcomeUnknown, StoreUnavailable

_PRIMARY = 0xFF  # the rest of a result code only refines it

# A line of /proc/locks: a writer in WAL mode has locked byte 120 of the -shm file. Who waits has an arrow in front.
_WRITE_LOCK = "120"
_WRITE_LOCK_LINE = re.compile(
    r"\d+: POSIX +\S+ +WRITE +(?P<pid>\d+) \w+:\w+:(?P<inode>\d+) (?P<first>120) (?P<last>\d+|EOF)"
)


def is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY


_MEANINGS: dict[int, tuple[type[ClewError], str]] = {
    sqlite3.SQLITE_NOTADB: (JournalCorrupt, "it is not a SQLite file, or it is damaged: move it aside, restore a copy"),
    sqlite3.SQLITE_CORRUPT: (JournalCorrupt, "it is damaged: restore a copy, or save what `sqlite3 .recover` finds"),
    sqlite3.SQLITE_READONLY: (
        StoreUnavailable,
        "this process may not write it: allow that for the file and its folder",
    ),
    sqlite3.SQLITE_FULL: (StoreUnavailable, "the disk is full, nothing was written: make room"),
    sqlite3.SQLITE_CANTOPEN: (StoreUnavailable, "see that its folder exists, and that this process may write there"),
}


def translated(path: Path, error: sqlite3.Error) -> ClewError:
    """The same failure in our words, for what happened before a commit: nothing was written."""
    if is_busy(error):
        return busy(path)
    kind, remedy = _MEANINGS.get(_code(error), (StoreUnavailable, "nothing was written"))
    return kind(f"{path}: {error}; {remedy}")


def unknown(path: Path, error: sqlite3.Error) -> OutcomeUnknown:
    return OutcomeUnknown(f"{path}: {error} while committing: it may or may not be written; take the run again, read")


def busy(path: Path) -> StoreUnavailable:
    """Somebody else is writing, for too long; the message names the process, if it can be seen."""
    pid = write_lock_holder(path)
    if pid is None:
        return StoreUnavailable(f"{path} is locked by another process: nothing was written; try again")
    who = "this process" if pid == os.getpid() else f"process {pid}"
    return StoreUnavailable(f"{path} is locked by {who}, in the middle of a write: nothing was written; try again")


def write_lock_holder(path: Path) -> int | None:
    """The process that holds the write lock, read from the kernel's list.

    The file that carries the locks is never opened here: closing it again would drop this process's own.
    """
    try:
        inode = Path(f"{path}-shm").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    for line in locks.splitlines():
        holder = _WRITE_LOCK_LINE.match(line)
        if holder and int(holder["inode"]) == inode and holder["last"] in ("EOF", _WRITE_LOCK):
            return int(holder["pid"])
    return None
