"""Several processes on one file: what they see of each other alive, frozen, dead and forked."""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from clew.errors import InboxMoved, RunBusy, RunEnded, StoreUnavailable
from clew.stores.owners import this_process
from clew.stores.sqlite import SqliteStore
from clew.testing.stores.acting import HERE, LEASE, Driver, claimed, driven, note

ROOT = Path(__file__).parents[2]
PATIENCE = 20  # seconds until a test that waits for another process gives up


class Actor:
    """A process of `actors`, and its lines."""

    def __init__(self, *what: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.actors", *map(str, what)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), PATIENCE)).strip()

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    @property
    def is_frozen(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    async def stopped(self) -> None:
        """Until the kernel has frozen it."""
        while True:
            if self.is_frozen:
                return
            await asyncio.sleep(0.001)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture
def act() -> Iterator[Callable[..., Actor]]:
    actors: list[Actor] = []

    def start(*what: object) -> Actor:
        actors.append(Actor(*what))
        return actors[-1]

    yield start
    for actor in actors:
        actor.end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clew.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, busy=0.3)
    await store.open()
    yield store
    await store.close()


# --- seeing each other ------------------------------------------------------------------------------------------------


@pytest.mark.proves("E1")
async def test_a_commit_by_another_process_is_heard_within_100_ms(
    store: SqliteStore, act: Callable[..., Actor]
) -> None:
    delays: list[float] = []
    for number in range(5):
        actor = act("commits", store.path, f"r{number}", 1)
        assert await actor.line() == "ready"
        heard = asyncio.Event()
        await asyncio.sleep(0.05)
        end = store.listen(lambda run, heard=heard: heard.set() if run is None else None)
        actor.tell()
        await asyncio.wait_for(heard.wait(), PATIENCE)
        now = time.monotonic()
        delays.append(now - float(await actor.line()))
        end()
        assert (await store.info(f"r{number}")).seq == 2
    assert statistics.median(delays) < 0.1


@pytest.mark.proves("E1")
async def test_listening_while_nothing_happens_asks_for_a_number_and_reads_nothing(store: SqliteStore) -> None:
    asked: list[str] = []
    looked = asyncio.Event()

    def trace(statement: str) -> None:
        asked.append(statement)
        if len(asked) == 5:
            looked.set()

    for connection in (store._connection, store._reader):
        connection.set_trace_callback(trace)
    end = store.listen(lambda _: None)
    await asyncio.wait_for(looked.wait(), PATIENCE)
    end()
    assert set(asked) == {"PRAGMA data_version"}


@pytest.mark.proves("E4")
async def test_cursors_give_the_order_of_commits_over_processes(store: SqliteStore, act: Callable[..., Actor]) -> None:
    actors = [act("commits", store.path, run, 150) for run in ("a", "b")]
    for actor in actors:
        assert await actor.line() == "ready"
    cursor = await store.cursor()
    for actor in actors:
        actor.tell()
    mine = await driven(store, "c", HERE)
    seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    while sum(map(len, seen.values())) < 301 + 50:
        if mine.seq < 51:
            await mine.commit(note())
        found, cursor = await store.entries_since(cursor, limit=40)
        for run, entry, _ in found:
            seen[run].append(entry.seq)
        await asyncio.sleep(0)
    assert seen == {"a": [*range(2, 152)], "b": [*range(2, 152)], "c": [*range(1, 52)]}


@pytest.mark.proves("J1")
async def test_letters_around_the_end_are_taken_or_refused(store: SqliteStore, act: Callable[..., Actor]) -> None:
    driver = await driven(store, "r", HERE)
    actor = act("posts", store.path, "r", 300)
    assert await actor.line() == "ready"
    actor.tell()
    taken: list[int] = []
    ended = False
    while not ended:
        newest = (await store.info("r")).inbox_seq
        numbers = tuple(letter.inbox for letter in await store.inbox("r") if letter.inbox <= newest)
        driver.inbox_seen = newest
        try:
            if len(taken) + len(numbers) < 150:
                await driver.commit(note(), taken=numbers)
            else:
                await driver.finish(taken=numbers)
                ended = True
            taken += numbers
        except InboxMoved:
            assert (await store.info("r")).inbox_seq > newest
        await asyncio.sleep(0)
    answers = [await actor.line() for _ in range(300)]
    assert [int(answer) for answer in answers if answer.isdecimal()] == taken == [*range(1, len(taken) + 1)]
    assert {answer for answer in answers if not answer.isdecimal()} <= {RunEnded.__name__}


@pytest.mark.proves("J2")
async def test_processes_that_open_a_new_file_together_make_one(path: Path, act: Callable[..., Actor]) -> None:
    actors = [act("opens", path) for _ in range(6)]
    for actor in actors:
        assert await actor.line() == "ready"
    for actor in actors:
        actor.tell()
    for actor in actors:
        assert await actor.line() == "made"
    store = SqliteStore(path)
    await store.open()
    assert len(await store.claim(HERE, lease=LEASE, limit=9)) == 6
    await store.close()


# --- death and frost --------------------------------------------------------------------------------------------------


@pytest.mark.proves("R1")
async def test_a_killed_process_loses_its_runs_at_once(store: SqliteStore, act: Callable[..., Actor]) -> None:
    actor = act("hold", store.path, 3600)
    assert await actor.line() == "holds"
    assert await store.claim(HERE, lease=LEASE) == []
    with pytest.raises(RunBusy, match=f"process {actor.pid} "):
        await store.claim(HERE, lease=LEASE, run="r")
    actor.end()
    assert (await store.lease("r")).alive is False
    [claim] = await store.claim(HERE, lease=LEASE)
    assert (claim.run, claim.epoch, claim.unclean) == ("r", 2, 1)
    assert [found.name for found in store.path.parent.glob("*-owner-*")] == [
        f"clew.db-owner-{this_process().pid}-{this_process().start}"
    ]


@pytest.mark.proves("R1")
async def test_a_frozen_process_loses_its_runs_with_the_lease(store: SqliteStore, act: Callable[..., Actor]) -> None:
    actor = act("hold", store.path, 1.5)
    assert await actor.line() == "holds"
    begun = time.monotonic()
    os.kill(actor.pid, signal.SIGSTOP)
    await actor.stopped()
    assert (await store.lease("r")).alive is True
    found = await store.claim(HERE, lease=LEASE)
    while not found:
        await asyncio.sleep(0.02)
        found = await store.claim(HERE, lease=LEASE)
    assert 1 < time.monotonic() - begun < 2.5
    os.kill(actor.pid, signal.SIGCONT)
    actor.tell()
    assert await actor.line() == "StaleWriter"
    await Driver(store, "r", epoch=found[0].epoch).commit(note())
    assert len(await store.read("r")) == 2


@pytest.mark.proves("R1")
async def test_a_process_frozen_in_a_commit_is_named(store: SqliteStore, act: Callable[..., Actor]) -> None:
    driver = await driven(store, "r", HERE)
    actor = act("freeze", store.path)
    assert await actor.line() == "frozen"
    await actor.stopped()
    named = f"process {actor.pid}, in the middle of a write"
    with pytest.raises(StoreUnavailable, match=named):
        await driver.commit(note())
    with pytest.raises(StoreUnavailable, match=named):
        await store.claim(HERE, lease=LEASE, run="r")
    with pytest.raises(StoreUnavailable, match=named):
        store.renew(HERE, {"r": 1}, LEASE)
    assert len(await store.read("r")) == 1
    another = SqliteStore(store.path, busy=0.1)
    await another.open()
    assert (await another.info("r")).label == "Rain?"
    await another.close()
    actor.end()
    await driver.commit(note())
    assert store.renew(HERE, {"r": 1}, LEASE) == {"r"}


@pytest.mark.proves("R1")
async def test_a_write_waits_for_a_process_that_thaws(store: SqliteStore, act: Callable[..., Actor]) -> None:
    driver = await driven(store, "r", HERE)
    actor = act("freeze", store.path)
    assert await actor.line() == "frozen"
    await actor.stopped()
    patient = SqliteStore(store.path, busy=PATIENCE)
    await patient.open()
    commit = asyncio.ensure_future(patient.commit(driver.batch(note())))
    await asyncio.sleep(0.05)
    assert not commit.done()
    os.kill(actor.pid, signal.SIGCONT)
    await asyncio.wait_for(commit, PATIENCE)
    assert (await store.info("r")).label == "Rain?"
    await patient.close()


@pytest.mark.proves("R1")
async def test_a_forked_child_may_not_use_the_store_nor_keep_its_parent_alive(
    store: SqliteStore, act: Callable[..., Actor]
) -> None:
    actor = act("fork", store.path)
    said, refused, child = (await actor.line()).split()
    assert (said, refused) == ("refused", "3")
    try:
        assert (await store.lease("r")).alive is True
        actor.process.kill()
        actor.process.wait()
        os.kill(int(child), 0)
        assert (await store.lease("r")).alive is False
        assert [claim.run for claim in await store.claim(HERE, lease=LEASE)] == ["r"]
    finally:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.proves("R1")
async def test_two_stores_of_one_process_are_one_owner(path: Path, act: Callable[..., Actor]) -> None:
    first, second = SqliteStore(path), SqliteStore(path)
    await first.open()
    await second.open()
    driver = await driven(first, "r", HERE)
    with pytest.raises(RunBusy, match=f"process {os.getpid()} "):
        await second.claim(HERE, lease=LEASE, run="r")
    await driver.commit(note())
    assert len(await second.read("r")) == 2
    await first.close()
    assert await act("sees", path).line() == "True"
    await second.close()
    # A process that lives may still be in the middle of something, whatever it has closed: its lease runs out.
    last = act("sees", path)
    assert await last.line() == "True"
    assert last.process.wait(PATIENCE) == 0
    assert [found.name for found in path.parent.iterdir()] == ["clew.db"]


# --- the disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("J7")
async def test_a_disk_that_is_full_at_a_commit_leaves_the_outcome_unknown(
    path: Path, act: Callable[..., Actor]
) -> None:
    actor = act("full", path)
    assert await actor.line() == "OutcomeUnknown"
    assert await actor.line() == "True"


@pytest.mark.proves("J7")
@pytest.mark.parametrize("what", ["file", "folder"])
async def test_what_may_not_be_written_is_refused_when_opened(act: Callable[..., Actor], what: str) -> None:
    # Not under tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clew.db"
        if what == "file":
            store = SqliteStore(path)
            await store.open()
            await store.close()
        _protect(path, what)
        assert f"{path} is read-only for this process: allow it to write" in await act("unprivileged", path).line()
        _protect(path, "nothing")


def _protect(path: Path, what: str) -> None:
    path.parent.chmod(0o555 if what == "folder" else 0o755)
    if what == "file":
        path.chmod(0o444)


@pytest.mark.proves("J7")
async def test_a_lone_process_commits_after_another_one_has_gone(store: SqliteStore, act: Callable[..., Actor]) -> None:
    actor = act("commits", store.path, "theirs", 20)
    assert await actor.line() == "ready"
    actor.tell()
    mine = await driven(store, "mine", HERE)
    for _ in range(50):
        await mine.commit(note())
    assert actor.process.wait(PATIENCE) == 0
    assert (await store.info("theirs")).seq == 21
    assert (await store.info("mine")).seq == 51
    assert (await claimed(store, "theirs", HERE)).seq == 21
