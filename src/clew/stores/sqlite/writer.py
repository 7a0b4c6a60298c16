"""How writes reach the file: a lone run's at once, on the event loop; those of many together, through one thread."""

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from clew.errors import ClewError, StoreUnavailable
from clew.ports import Batch
from clew.stores.sqlite import failures, journal
from clew.stores.sqlite.desk import Desk

T = TypeVar("T")

# What a write does at the desk: its answer, and the runs it changed.
Work = Callable[[Desk], tuple[T, list[str]]]

GROUP = 256  # writes that share a transaction at most
RETRY = 0.001  # seconds between two attempts to become the file's writer
BURST = 0.02  # seconds of writes without a gap, after which other processes get one
GAP = 2 * RETRY  # seconds in which whoever waits for the file will try it
# What a write's own data can break: its neighbours in the group are not to suffer for it.
OF_THE_JOB = (
    ClewError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
TOGETHER = 0.0005  # writes of different runs that come this close, in seconds, come together


class Job(Generic[T]):
    """One write on its way through the thread; `batch` if it is a commit of entries alone."""

    __slots__ = ("batch", "changed", "error", "future", "result", "run", "work")

    def __init__(self, work: Work[T], run: str | None, batch: Batch | None, future: "asyncio.Future[T]") -> None:
        self.work = work
        self.run = run
        self.batch = batch
        self.future = future
        self.result: Any = None
        self.changed: list[str] = []
        self.error: Exception | None = None


class Writer:
    """The one place that opens and ends write transactions. `driven` is how many runs this process drives."""

    def __init__(self, path: Path, desk: Desk, busy: float, told: Callable[[Iterable[str]], None]) -> None:
        self._path = path
        self._desk = desk
        self._execute = desk.connection.execute
        self._busy = busy
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._gate = threading.Lock()
        self._jobs: deque[Job[Any]] = deque()
        self._waiting = threading.Condition()
        self._pending = 0
        self._answered = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._version: int | None = None
        self._last_run: str | None = None
        self._last_end = 0.0
        self._burst_began = 0.0
        self.driven = 0

    async def write(self, work: Work[T], run: str | None = None, *, batch: Batch | None = None) -> T:
        """The answer of a write that is durable. It is finished even if whoever waits for it is cancelled.

        `batch`, if the work is to commit that and it is entries alone: then it goes together with others like it.
        """
        if self._pending == 0 and self._is_lone(run) and self._gate.acquire(blocking=False):
            try:
                done = self._at_once(work)
            finally:
                self._gate.release()
                self._last_run = run
                self._last_end = time.monotonic()
            if done is not None:
                self._told(done[1])
                return done[0]
        return await self._hand_over(Job(work, run, batch, self._loop.create_future()))

    def _is_lone(self, run: str | None) -> bool:
        """Whether a write may be made at once: nobody else is writing here, and no gap is due."""
        now = time.monotonic()
        since = now - self._last_end
        if since > GAP:
            self._burst_began = now
        no_other = self.driven == 0 or (self.driven == 1 and (run == self._last_run or since > TOGETHER))
        return no_other and not self._owes_a_gap(now)

    def _at_once(self, work: Work[T]) -> tuple[T, list[str]] | None:
        """Write here and now; None if another process is writing."""
        try:
            self._execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if failures.is_busy(error):
                return None
            raise failures.translated(self._path, error) from error
        try:
            done = work(self._desk)
        except sqlite3.Error as error:
            self._take_back()
            raise failures.translated(self._path, error) from error
        except BaseException:
            self._take_back()
            raise
        try:
            self._execute("COMMIT")
        except sqlite3.Error as error:
            self._take_back()
            raise failures.unknown(self._path, error) from error
        return done

    def _take_back(self) -> None:
        self._desk.forget()
        try:
            if self._desk.connection.in_transaction:
                self._execute("ROLLBACK")
        except sqlite3.Error:
            return  # what went wrong before is what is reported; the next BEGIN says if it still is

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _hand_over(self, job: Job[T]) -> "asyncio.Future[T]":
        if self._closing:
            raise StoreUnavailable(f"{self._path} is closed: open the store again")
        self._pending += 1
        with self._waiting:
            self._jobs.append(job)
            if self._thread is None:
                self._begin_serving()
            self._waiting.notify()
        return job.future

    def _begin_serving(self) -> None:
        # A daemon: whoever ends the process without closing the store gives up what is not committed.
        self._thread = threading.Thread(target=self._serve, name="clew-sqlite-writer", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while jobs := self._next_group():
            try:
                self._leave_a_gap()
                with self._gate:
                    self._write_group(jobs)
            except BaseException:
                self._fail(jobs, StoreUnavailable(f"{self._path}: the writer failed; nothing was written"))
                with self._waiting:
                    self._begin_serving()  # another thread goes on; this one ends with its error told
                raise
            finally:
                self._answer(jobs)

    def _owes_a_gap(self, now: float) -> bool:
        """SQLite has no queue of writers: one that never pauses would keep those of other processes waiting."""
        if now - self._burst_began < BURST:
            return False
        if self._desk.presence.has_company():
            return True
        self._burst_began = now
        return False

    def _leave_a_gap(self) -> None:
        if self._owes_a_gap(time.monotonic()):
            time.sleep(GAP)
            self._burst_began = time.monotonic()

    def _next_group(self) -> list[Job[Any]]:
        with self._waiting:
            while not self._jobs:
                if self._closing:
                    return []
                self._waiting.wait()
            return [self._jobs.popleft() for _ in range(min(len(self._jobs), GROUP))]

    def _write_group(self, jobs: list[Job[Any]]) -> None:
        """All of them in one transaction, each taken or refused on its own."""
        try:
            self._begin()
            for together in _in_order(jobs):
                if together[0].batch is None:
                    self._do(together[0])
                else:
                    self._do_together(together)
        except sqlite3.Error as error:
            self._take_back()
            self._fail(jobs, failures.translated(self._path, error))
            return
        except BaseException:
            self._take_back()
            raise
        try:
            self._execute("COMMIT")
        except sqlite3.Error as error:
            self._take_back()
            self._fail(jobs, failures.unknown(self._path, error))

    def _begin(self) -> None:
        """Become the file's writer, or raise that it stays busy."""
        deadline = time.monotonic() + self._busy
        while True:
            try:
                self._execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if not failures.is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY)
            else:
                [self._version] = self._execute("PRAGMA data_version").fetchone()
                return

    def _do(self, job: Job[Any]) -> None:
        self._execute("SAVEPOINT job")
        try:
            job.result, job.changed = job.work(self._desk)
        except OF_THE_JOB as error:
            job.error = error
            self._desk.forget()
            self._execute("ROLLBACK TO job")
        self._execute("RELEASE job")

    def _do_together(self, jobs: list[Job[Any]]) -> None:
        batches = [job.batch for job in jobs if job.batch is not None]
        for job, batch, outcome in zip(jobs, batches, journal.commit_together(self._desk, batches), strict=True):
            if isinstance(outcome, ClewError):
                job.error = outcome
            else:
                job.result = outcome
                job.changed = [batch.run]

    def _fail(self, jobs: list[Job[Any]], error: ClewError) -> None:
        """What was refused for a reason of its own stays refused for that."""
        for job in jobs:
            job.error = job.error or type(error)(*error.args)

    def _answer(self, jobs: list[Job[Any]]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._resolve, jobs)

    def _resolve(self, jobs: list[Job[Any]]) -> None:
        self._pending -= len(jobs)
        self._answered.set()
        self._last_run = jobs[-1].run
        self._last_end = time.monotonic()
        for job in jobs:
            if job.error is None:
                self._told(job.changed)
            if job.future.done():
                continue  # whoever waited was cancelled; the write stands
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)

    # --- others -------------------------------------------------------------------------------------------------------

    def data_version(self) -> int | None:
        """A number that changes when another connection commits. While the thread writes, what it saw last."""
        if not self._gate.acquire(blocking=False):
            return self._version
        try:
            [version] = self._execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            raise failures.translated(self._path, error) from error
        finally:
            self._gate.release()
        return int(version)

    async def close(self) -> None:
        """After everything that was handed over is written."""
        with self._waiting:
            self._closing = True
            self._waiting.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        while self._pending:
            self._answered.clear()
            await self._answered.wait()


def _in_order(jobs: list[Job[Any]]) -> Iterator[list[Job[Any]]]:
    """The jobs as they came; commits of entries alone that follow one another together, each run once."""
    together: dict[str, Job[Any]] = {}
    for job in jobs:
        if together and (job.batch is None or job.batch.run in together):
            yield list(together.values())
            together = {}
        if job.batch is None:
            yield [job]
        else:
            together[job.batch.run] = job
    if together:
        yield list(together.values())
