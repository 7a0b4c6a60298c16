"""The SQLite store's verbs: each one write or one look at the file."""

import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from clew.core.entries import Entry, Owner
from clew.core.letters import AnyLetter, DecisionLetter
from clew.core.tickets import Ticket
from clew.core.values import Digest
from clew.errors import JournalCorrupt, NotFound, StaleWriter, StoreUnavailable, UsageError
from clew.ports import (
    Batch,
    Claim,
    Clock,
    LeaseInfo,
    Listener,
    NewRun,
    Receipt,
    Relay,
    RunFilter,
    RunInfo,
    Started,
    ThreadInfo,
    TicketFilter,
)
from clew.stores import admission, owners, rows
from clew.stores.claims import Wanted
from clew.stores.clock import StoreTime
from clew.stores.sqlite import failures, file, journal, leases, letters, pruning, reading
from clew.stores.sqlite.desk import Desk
from clew.stores.sqlite.listening import Listeners
from clew.stores.sqlite.relay import SideFiles
from clew.stores.sqlite.writer import Writer

T = TypeVar("T")

BUSY = 5.0  # seconds that a write waits for another process that is writing
LATEST = 256  # entries whose times the store's own time may not fall below


class SqliteStore:
    """A Store in one file that any number of processes of one host share.

    `busy` is how long a write waits, in seconds, while another process is inside one, before StoreUnavailable names it.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None, busy: float = BUSY) -> None:
        self.path = Path(path).resolve()
        self._time = StoreTime(clock)
        self._busy = busy
        self._presence = owners.Presence(self.path)
        self._side_files = SideFiles(self.path)
        self._pid = 0
        self._driven: set[str] = set()
        self._renewals = threading.Lock()
        self._renewing: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    @property
    def relay(self) -> Relay:
        return self._side_files

    async def open(self) -> None:
        if self._pid:
            raise UsageError(f"{self.path} is open already")
        with ExitStack() as undone:
            try:
                self._connection = file.prepare(self.path)
                undone.callback(self._connection.close)
                self._reader = file.connect(self.path, may_write=False)
                undone.callback(self._reader.close)
                self._time.not_below(reading.newest_at(self._reader, LATEST))
                self._presence.sweep()
                self._side_files.sweep()
                self._presence.enter()
            except sqlite3.Error as error:
                raise failures.translated(self.path, error) from error
            except UnicodeDecodeError as error:
                raise JournalCorrupt(f"{self.path} is damaged ({error}): restore a copy") from error
            except OSError as error:
                raise StoreUnavailable(f"{self.path}: {error.strerror}: {error.filename}") from error
            undone.pop_all()
        self._glance = Desk(self._reader, self._time, self._presence)
        desk = Desk(self._connection, self._time, self._presence)
        self._writer = Writer(self.path, desk, self._busy, self._tell)
        self._listeners = Listeners(self._writer.data_version)
        self._pid = os.getpid()

    async def close(self) -> None:
        if not self._pid:
            return
        self._check()
        self._listeners.close()
        await self._writer.close()
        self._pid = 0
        with self._renewals:
            if self._renewing is not None:
                self._renewing.close()
                self._renewing = None
        self._reader.close()
        self._side_files.close()
        self._presence.leave()
        try:
            file.close(self.path, self._connection)
        except sqlite3.Error as error:
            raise failures.translated(self.path, error) from error

    def _check(self) -> None:
        if self._pid != os.getpid():
            if self._pid:
                raise UsageError(f"{self.path} was opened before this process was forked: open a store of its own here")
            raise UsageError(f"{self.path} is not open")

    def now(self) -> int:
        return self._time.now()

    # --- writing ------------------------------------------------------------------------------------------------------

    async def start(self, new: NewRun) -> Started:
        self._check()
        started = await self._writer.write(partial(journal.start, new=new), new.run)
        if new.owner is not None and started.created:
            self._drives({new.run})
        return started

    async def commit(self, batch: Batch) -> Receipt:
        self._check()
        plain = rows.is_plain(batch, rows.OLDEST)
        try:
            work = partial(journal.commit, batch=batch, plain=plain)
            receipt = await self._writer.write(work, batch.run, batch=batch if plain else None)
        except StaleWriter:
            self._drives_no_more(batch.run)
            raise
        if not plain and (batch.lease == "release" or rows.ends(batch)):
            self._drives_no_more(batch.run)
        return receipt

    async def post(self, run: str, letter: AnyLetter) -> int:
        self._check()
        return await self._writer.write(partial(letters.post, run=run, letter=letter), run)

    async def withdraw(self, run: str, inbox: int, replacement: AnyLetter | None = None) -> None:
        self._check()
        work = partial(letters.withdraw, run=run, inbox=inbox, replacement=replacement)
        await self._writer.write(work, run)

    async def decide(self, run: str, letter: DecisionLetter) -> Ticket:
        self._check()
        return await self._writer.write(partial(letters.decide, run=run, letter=letter), run)

    async def alias(self, name: str, run: str) -> None:
        self._check()
        await self._writer.write(partial(journal.alias, name=name, run=run), run)

    async def prune(self, runs: Collection[str]) -> int:
        self._check()
        return await self._writer.write(partial(pruning.prune, runs=runs))

    # --- leases -------------------------------------------------------------------------------------------------------

    async def claim(
        self,
        owner: Owner,
        *,
        lease: int,
        run: str | None = None,
        agents: Collection[str] | None = None,
        limit: int = 1,
        suspects: bool = True,
    ) -> list[Claim]:
        self._check()
        until = self._time.boottime() + lease
        if run is None:
            wanted = Wanted(agents, limit, suspects)
            # Most looks find nothing, and those need not become the file's writer.
            if not self._ask(lambda _: any(True for _ in leases.candidates(self._glance, wanted))):
                return []
            found = await self._writer.write(partial(leases.look, owner=owner, until=until, wanted=wanted))
        else:
            claim = await self._writer.write(partial(leases.claim, run=run, owner=owner, until=until), run)
            if claim is None:
                raise admission.quarantined(run)
            found = [claim]
        self._drives({claim.run for claim in found})
        return found

    async def retake(self, owner: Owner, run: str, epoch: int, *, lease: int) -> Claim:
        self._check()
        until = self._time.boottime() + lease
        work = partial(leases.retake, run=run, owner=owner, epoch=epoch, until=until)
        return await self._writer.write(work, run)

    def renew(self, owner: Owner, held: Mapping[str, int], lease: int) -> set[str]:
        until = self._time.boottime() + lease
        with self._renewals:
            self._check()  # behind the lock: it may have been closed while this thread waited
            try:
                if self._renewing is None:
                    self._renewing = file.connect(self.path, patience=self._busy)
                standing = leases.renew(self._renewing, owner, held, until)
            except sqlite3.Error as error:
                raise failures.translated(self.path, error) from error
        # A run whose driver failed is renewed no more, and no reason to think that others write.
        self._driven.intersection_update(held)
        self._writer.driven = len(self._driven)
        return standing

    async def give_back(self, run: str, epoch: int, *, pause: int = 0) -> None:
        self._check()
        await self._writer.write(partial(leases.give_back, run=run, epoch=epoch, pause=pause), run)
        self._drives_no_more(run)

    async def quarantine(self, run: str, on: bool) -> None:
        self._check()
        await self._writer.write(partial(leases.quarantine, run=run, on=on), run)
        self._drives_no_more(run)

    async def lease(self, run: str) -> LeaseInfo:
        return self._ask(lambda _: leases.lease(self._glance, run))

    async def is_gone(self, owner: Owner) -> bool:
        return self._glance.is_gone(owner)

    async def next_wake(self, agents: Collection[str] | None = None) -> int | None:
        return self._ask(lambda reader: leases.next_wake(reader, agents))

    def _drives(self, runs: Collection[str]) -> None:
        self._driven.update(runs)
        self._writer.driven = len(self._driven)

    def _drives_no_more(self, run: str) -> None:
        self._driven.discard(run)
        self._writer.driven = len(self._driven)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        self._check()
        try:
            return question(self._reader)
        except sqlite3.Error as error:
            raise failures.translated(self.path, error) from error
        except UnicodeEncodeError as error:
            raise NotFound(f"{error.object!r} names nothing: it is not valid Unicode") from error
        except (msgspec.DecodeError, UnicodeDecodeError, ArithmeticError) as error:
            raise JournalCorrupt(f"{self.path} holds a row that cannot be read ({error}): restore a copy") from error

    async def read(self, run: str, after: int = 0, until: int | None = None) -> list[Entry]:
        return self._ask(lambda reader: reading.read(reader, run, after, until))

    async def read_raw(self, run: str, after: int = 0) -> list[bytes]:
        return self._ask(lambda reader: reading.read_raw(reader, run, after))

    async def entries_since(self, cursor: str | None, limit: int = 500) -> tuple[list[tuple[str, Entry, str]], str]:
        return self._ask(lambda reader: reading.entries_since(reader, cursor, limit))

    async def cursor(self) -> str:
        return self._ask(reading.cursor)

    async def inbox(self, run: str) -> list[AnyLetter]:
        return self._ask(lambda reader: reading.inbox(reader, run))

    async def mailed(self, seen: Mapping[str, int]) -> list[str]:
        return self._ask(lambda reader: reading.mailed(reader, seen))

    async def blobs(self, digests: Collection[Digest]) -> dict[Digest, bytes]:
        return self._ask(lambda reader: reading.blobs(reader, digests))

    async def info(self, run: str) -> RunInfo:
        return self._ask(lambda reader: reading.info(reader, run))

    async def runs(self, which: RunFilter) -> list[RunInfo]:
        return self._ask(lambda reader: reading.runs(reader, which))

    async def thread(self, thread_id: str) -> ThreadInfo | None:
        return self._ask(lambda reader: reading.thread(reader, thread_id))

    async def threads(self, *, limit: int = 100, after: str | None = None) -> list[ThreadInfo]:
        return self._ask(lambda reader: reading.threads(reader, limit, after))

    async def tickets(self, which: TicketFilter) -> list[Ticket]:
        return self._ask(lambda reader: reading.tickets(reader, which))

    async def decision(self, run: str, ticket: str) -> DecisionLetter | None:
        return self._ask(lambda reader: reading.decision(reader, run, ticket))

    # --- listening ----------------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> Callable[[], None]:
        self._check()
        return self._listeners.listen(listener)

    def _tell(self, runs: Iterable[str]) -> None:
        self._listeners.tell(runs)
