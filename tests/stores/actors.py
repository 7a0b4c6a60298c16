"""Processes that the SQLite tests start, freeze and kill: `python -m tests.stores.actors <what> <file> …`.

Each prints a line when it has done what it was started for, then waits for a line on its standard input.
"""

import asyncio
import os
import resource
import signal
import sqlite3
import sys
import time
from pathlib import Path

from clew.errors import ClewError, StoreUnavailable, UsageError
from clew.stores.sqlite import SqliteStore, file
from clew.testing.stores.acting import HERE, SECOND, Driver, driven, message, new_run, note


def say(*words: object) -> None:
    print(*words, flush=True)


async def told() -> str:
    return (await asyncio.to_thread(sys.stdin.readline)).strip()


async def hold(path: Path, lease: str) -> None:
    """Drive a run under a lease of so many seconds, and never renew it; then commit, when told."""
    store = SqliteStore(path)
    await store.open()
    await store.start(new_run("r", owner=HERE, lease=int(float(lease) * SECOND)))
    say("holds")
    await told()
    try:
        await Driver(store, "r").commit(note())
        say("committed")
    except ClewError as error:
        say(type(error).__name__)
    await store.close()


async def commits(path: Path, run: str, count: str) -> None:
    """Commit so often, and say when each was durable."""
    store = SqliteStore(path)
    await store.open()
    driver = await driven(store, run, HERE)
    say("ready")
    await told()
    for _ in range(int(count)):
        await driver.commit(note())
        say(time.monotonic())
        if count != "1":
            await asyncio.sleep(0)
    await store.close()


async def posts(path: Path, run: str, count: str) -> None:
    """Post so many messages, and say which numbers they got."""
    store = SqliteStore(path)
    await store.open()
    say("ready")
    await told()
    for number in range(int(count)):
        try:
            say(await store.post(run, message(str(number))))
        except ClewError as error:
            say(type(error).__name__)
    await store.close()


async def freeze(path: Path) -> None:
    """Stop in the middle of a write."""
    connection = file.connect(path)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE run SET label = 'frozen'")
    say("frozen")
    os.kill(os.getpid(), signal.SIGSTOP)
    connection.execute("ROLLBACK")
    connection.close()


async def fork(path: Path) -> None:
    """Drive a run, then fork a child that tries to use the store and outlives us."""
    store = SqliteStore(path)
    await store.open()
    await driven(store, "r", HERE)
    child = os.fork()
    if child == 0:
        refused = 0
        for verb in (store.read("r"), store.commit(Driver(store, "r").batch(note())), store.close()):
            try:
                verb.send(None)
            except UsageError as error:
                refused += "fork" in str(error)
        say("refused", refused, os.getpid())
        signal.pause()
    await told()


async def full(path: Path) -> None:
    """Let the disk be full at a commit, and have room again."""
    store = SqliteStore(path)
    await store.open()
    driver = await driven(store, "r", HERE)
    await driver.commit(note())
    size = os.stat(f"{path}-wal").st_size
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    try:
        await driver.commit(note("x" * 10_000))
        say("committed")
    except ClewError as error:
        say(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    claim = await store.retake(HERE, "r", 1, lease=SECOND)
    again = Driver(store, "r", epoch=claim.epoch, seq=claim.seq)
    await again.commit(note())
    say(len(await store.read("r")) == again.seq)
    await store.close()


async def unprivileged(path: Path) -> None:
    """Open what nobody may write."""
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        await SqliteStore(path).open()
        say("opened")
    except StoreUnavailable as error:
        say(error)


async def sees(path: Path) -> None:
    """Whether the owner of a run is taken for alive."""
    store = SqliteStore(path)
    await store.open()
    say((await store.lease("r")).alive)
    await store.close()


async def opens(path: Path) -> None:
    """One of many that make the same file."""
    say("ready")
    await told()
    store = SqliteStore(path)
    await store.open()
    await store.start(new_run(f"r{os.getpid()}"))
    await store.close()
    say("made")


ACTS = {act.__name__: act for act in (hold, commits, posts, freeze, fork, full, unprivileged, sees, opens)}

if __name__ == "__main__":
    try:
        asyncio.run(ACTS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:]))
    except sqlite3.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
