"""A process that drives runs on a SQLite file and may be killed at any instant: `python -m tests.crash.victim ORDERS`.

It says on its output what happens, one line each, and hears commands on its input. Hooks are around the store's port
and SQLite's COMMIT, here only: the product runs as it is.
"""

import asyncio
import gc
import logging
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from clew import Runtime
from clew.core import entries as e
from clew.errors import ClewError
from clew.ports import Batch, NewRun, Receipt, Started
from clew.stores.sqlite import SqliteStore, file, reading
from tests.crash.ledger import Pen
from tests.crash.phases import Board, Stage, Trigger
from tests.crash.planting import as_planted
from tests.crash.subject import subject

AFTER = 0.03  # seconds that count as "after the end" of a run
LOOK_AGAIN = 0.02


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a victim is told when it is born. `runs`: ids and plans."""

    folder: str
    board: str
    runs: tuple[tuple[str, str], ...] = ()
    triggers: tuple[Trigger, ...] = ()
    lease: float = 30.0
    grace: float = 10.0
    busy: float = 5.0
    drive: bool = True
    settle: bool = False  # end by itself when every run in the file is done, and set quarantined ones free


class WatchedConnection(sqlite3.Connection):
    """Knows when COMMIT is on its way."""

    stage: Stage

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql != "COMMIT" or threading.current_thread().name == "clew-renew":
            return super().execute(sql, parameters)
        with self.stage.board.inside("commit", "COMMIT"):
            # Before it all rows are written and the lock is held; after it all is durable, and nobody has been told.
            self.stage.reach_at_once("commit")
            done = super().execute(sql, parameters)
            self.stage.reach_at_once("commit", "", "done")
            return done


class WatchedStore(SqliteStore):
    """Tells the ledger what this process knows to be durable, before anybody can act on it."""

    def __init__(self, path: Path, busy: float, pen: Pen, stage: Stage) -> None:
        super().__init__(path, busy=busy)
        self._pen = pen
        self._stage = stage

    async def start(self, new: NewRun) -> Started:
        started = await super().start(new)
        self._pen.write("accepted", new.run)
        return started

    async def commit(self, batch: Batch) -> Receipt:
        replied = [entry for entry in batch.entries if isinstance(entry, e.ModelReplied)]
        results = [entry for entry in batch.entries if isinstance(entry, e.ToolReturned | e.ToolFailed)]
        for entry in replied:
            await self._stage.reach("reply", batch.run, entry.step or "")
        for what in (f"{batch.run}:{entry.step}" for entry in (*replied, *results)):
            self._stage.board.leave("reply", what)
            self._stage.board.leave("result", what)
        receipt = await super().commit(batch)
        await self._kept(batch)
        return receipt

    async def _kept(self, batch: Batch) -> None:
        run, board = batch.run, self._stage.board
        intents = [entry.call for entry in batch.entries if isinstance(entry, e.ToolStarted)]
        ends = any(isinstance(entry, e.RunFinished) for entry in batch.entries)
        for call in intents:
            board.enter("intent", f"{run}:{call}")
        if ends:
            board.enter("after", run)
            asyncio.get_running_loop().call_later(AFTER, board.leave, "after", run)
        for entry in batch.entries:
            self._write_down(run, entry)
        for call in intents:
            await self._stage.reach("intent", run, call)
        if ends:
            await self._stage.reach("after", run)

    def _write_down(self, run: str, entry: e.Entry) -> None:
        match entry:
            case e.ModelReplied() | e.ToolReturned() | e.ToolFailed(final=True):
                self._pen.write("kept", run, entry.step, os.getpid())
            case e.ToolStarted():
                self._pen.write("intent", run, entry.step, os.getpid())
            case e.RunFinished():
                self._pen.write("finished", run, "", os.getpid(), str(entry.outcome))
            case _:
                pass


class Victim:
    def __init__(self, orders: Orders) -> None:
        folder = Path(orders.folder)
        self.orders = orders
        self.pen = Pen(folder / "ledger.sock")
        self.stage = Stage(Board(Path(orders.board)), orders.triggers)
        WatchedConnection.stage = self.stage
        self.store = WatchedStore(folder / "clew.db", orders.busy, self.pen, self.stage)
        self.agent = subject(self.pen, self.stage, folder)
        self.runtime = Runtime(
            self.store, agents=[self.agent], lease=orders.lease, grace=orders.grace, drive=orders.drive
        )
        self._leaving = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        self.stage.begin()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._leaving.set)
        async with self.runtime:
            threading.Thread(target=self._hear, args=(loop,), daemon=True).start()
            self.stage.say("ready", os.getpid())
            work = loop.create_task(self._work())
            leaving = loop.create_task(self._leaving.wait())
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            if not self.orders.settle:
                await leaving
            for task in (work, leaving):
                task.cancel()
            self.stage.say("leaving")
        self.stage.say("left")

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for run, plan in self.orders.runs:
                group.create_task(self._start(run, plan))
        if self.orders.settle:
            await self._settle()
        elif self.orders.runs:
            await self._idle()

    async def _start(self, run: str, plan: str) -> None:
        started = await self.runtime.start(self.agent, plan, run_id=run)
        self.stage.say("accepted", run)
        result = await started.result(until="done")
        # Whoever sees the end may rely on it: a connection of its own sees only what is committed.
        durable = file.connect(self.store.path, may_write=False)
        ended = reading.info(durable, run).status == "done"
        durable.close()
        self.pen.write("seen" if ended else "seen-early", run, "", os.getpid(), result.outcome)
        self.stage.say("seen", run, result.outcome)

    async def _idle(self) -> None:
        """Everything it was told to do is done, and it drives nothing."""
        while any(task.get_name().startswith("drive ") for task in self.runtime.tasks):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN)
        with self.stage.board.inside("idle", "all"):
            self.stage.say("idle")
            await self.stage.reach("idle")
            await self._leaving.wait()

    async def _settle(self) -> None:
        while True:
            async for info in self.runtime.runs(status="quarantined"):
                self.pen.write("released", info.run_id)
                await self.store.quarantine(info.run_id, on=False)
            left = [info.run_id async for info in self.runtime.runs() if info.status != "done"]
            if not left:
                return
            await asyncio.sleep(LOOK_AGAIN)

    # --- commands

    def _hear(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "go":
                self.stage.go_on()
            else:
                loop.call_soon_threadsafe(self._obey, word, rest)
        loop.call_soon_threadsafe(self._leaving.set)

    def _obey(self, word: str, rest: list[str]) -> None:
        commands: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
            "start": self._start,
            "drive": self._drive,
            "cancel": self._cancel,
            "fork": self._fork,
            "leave": self._leave,
        }
        task = asyncio.get_running_loop().create_task(self._answer(word, commands[word](*rest)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, word: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ClewError as error:
            self.stage.say("refused", word, type(error).__name__, error)

    async def _drive(self, run: str) -> None:
        await self.runtime.drive(run)
        self.stage.say("drove", run)

    async def _cancel(self, run: str) -> None:
        await self.runtime.cancel(run)
        self.stage.say("cancelled", run)

    async def _leave(self) -> None:
        self._leaving.set()

    async def _fork(self) -> None:
        """A child that tries to use what its parent has open, and closes all of it as it ends."""
        pid = os.fork()
        if pid == 0:
            self._be_a_child()
        await asyncio.to_thread(os.waitpid, pid, 0)
        self.stage.say("forked", pid)

    def _be_a_child(self) -> NoReturn:
        asyncio.events._set_running_loop(None)
        runtime = self.runtime
        verbs = runtime.start(self.agent, "look"), runtime.drive("r"), runtime.cancel("r"), runtime.close()
        for verb in verbs:
            try:
                asyncio.new_event_loop().run_until_complete(verb)
                self.stage.say("child", "did it")
            except ClewError as error:
                self.stage.say("child", type(error).__name__, error)
        for connection in [one for one in gc.get_objects() if isinstance(one, sqlite3.Connection)]:
            connection.close()
        os._exit(0)


def watch_commits() -> None:
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **given: connect(*args, factory=WatchedConnection, **given)  # type: ignore[assignment]


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format=f"{os.getpid()} %(relativeCreated)d %(name)s: %(message)s")
    watch_commits()
    with as_planted():
        asyncio.run(Victim(msgspec.json.decode(sys.argv[1], type=Orders)).live())


if __name__ == "__main__":
    main()
