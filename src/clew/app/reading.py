"""The verbs that only read: rows, states, results, and what is happening right now."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from msgspec.structs import replace
from typing_extensions import TypeVar

from clew.agent import Agent
from clew.agent.shapes import in_seconds
from clew.app.deciding import Deciding
from clew.app.result import Result
from clew.app.run import Run, Thread, Until
from clew.core.deltas import Delta
from clew.core.entries import Entry, RunFinished
from clew.core.outcomes import Completed
from clew.core.snapshots import Snapshot
from clew.core.snapshots import snapshot as snapshot_of
from clew.core.state import State
from clew.errors import JournalCorrupt
from clew.ports import RunFilter, RunInfo, Status, Store, ThreadInfo, TicketFilter
from clew.runtime.feed import Feed
from clew.runtime.station import Station
from clew.runtime.values import loaded
from clew.runtime.worker import Worker

if TYPE_CHECKING:
    from clew.app.runtime import Runtime

_Out = TypeVar("_Out", default=str)

LOOK_AGAIN = 1.0  # seconds: how long a settled run can go unnoticed if every signal were lost
PAGE = 100
OURSELVES = frozenset({"timer", "rate_limit", "background_tasks"})  # waits that end without anybody outside


class Reading(Deciding):
    """What a Runtime shows; set up by the Runtime itself."""

    store: Store
    _feed: Feed
    _station: Station
    _worker: Worker
    _closed: bool

    _check_open: Callable[[], None]

    @property
    def _whole(self) -> "Runtime":
        return cast("Runtime", self)

    @overload
    async def get(self, run_id: str) -> Run[Any]: ...
    @overload
    async def get(self, run_id: str, agent: Agent[Any, _Out]) -> Run[_Out]: ...
    async def get(self, run_id: str, agent: Agent[Any, Any] | None = None) -> Run[Any]:
        """A run that exists; `agent` types its output. Raises NotFound."""
        self._check_open()
        info = await self.store.info(run_id)
        return Run(self._whole, info.run_id, info.thread_id, agent or self._station.agents.get(info.agent), info.agent)

    async def runs(
        self,
        *,
        status: Status | Literal["quarantined"] | None = None,
        agent: str | None = None,
        thread_id: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> AsyncIterator[RunInfo]:
        """The rows of runs, newest first."""
        self._check_open()
        which = RunFilter(status=status, agent=agent, thread_id=thread_id, limit=PAGE, after=after)
        left = limit
        while left is None or left > 0:
            page = await self.store.runs(replace(which, limit=PAGE if left is None else min(PAGE, left)))
            for info in page:
                yield info
            if len(page) < PAGE:
                return
            left = None if left is None else left - len(page)
            which = replace(which, after=page[-1].run_id)

    async def threads(self, *, limit: int | None = None, after: str | None = None) -> AsyncIterator[ThreadInfo]:
        """The rows of threads."""
        self._check_open()
        left = limit
        while left is None or left > 0:
            page = await self.store.threads(limit=PAGE if left is None else min(PAGE, left), after=after)
            for info in page:
                yield info
            if len(page) < PAGE:
                return
            left = None if left is None else left - len(page)
            after = page[-1].thread_id

    def thread(self, thread_id: str) -> Thread:
        return Thread(self._whole, thread_id)

    @property
    def opened(self) -> Store:
        """The store, if this Runtime may be used."""
        self._check_open()
        return self.store

    async def state_of(self, run_id: str) -> State:
        """The folded state of a run: what the journal adds up to now."""
        self._check_open()
        return await self._station.history.state(run_id)

    async def result_of(
        self,
        run_id: str,
        agent: Agent[Any, Any] | None,
        *,
        until: Until = "settled",
        timeout: float | timedelta | None = None,
    ) -> Result[Any]:
        seconds = in_seconds(timeout, "result: timeout")
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while True:
            self._check_open()
            future = self._feed.expect(run_id)
            try:
                info = await self.store.info(run_id)
                left = LOOK_AGAIN if deadline is None else deadline - asyncio.get_running_loop().time()
                if _settled(info, until) or left <= 0:
                    return await self._result(info.run_id, agent, info.reasons)
                heard, _ = await asyncio.wait([future], timeout=min(left, LOOK_AGAIN))
                state = future.result() if heard else None
                if state is not None and state.finished is not None:
                    return await self._result(run_id, agent, (), state)
            finally:
                self._feed.forget(run_id, future)

    async def _result(
        self, run_id: str, agent: Agent[Any, Any] | None, reasons: tuple[str, ...], state: State | None = None
    ) -> Result[Any]:
        if state is None:
            state = await self._station.history.state(run_id)
        output: object = None
        if state.finished is not None:
            output = state.finished.output.text
            typed = agent is not None and agent.output_schema is not None and isinstance(state.outcome, Completed)
            if typed or state.finished.output.value is not None:
                value = await loaded(state.finished.output.value, self.store)
                output = agent.load_output(value) if agent is not None and typed else value
        tickets = () if state.finished is not None else tuple(await self.store.tickets(TicketFilter(run_id=run_id)))
        return Result(state, output=output, reasons=reasons, tickets=tickets)

    async def watch_run(
        self, run_id: str, after: int = 0, *, until: Until = "done", snapshot: bool = False
    ) -> AsyncIterator[Entry | Delta | Snapshot]:
        self._check_open()

        async def stop(entry: Entry | None) -> bool:
            if entry is not None:
                return isinstance(entry, RunFinished)
            if self._closed:
                return True
            if self._worker.drives(run_id):
                return False
            info = await self.store.info(run_id)
            return info.status == "done" if until == "done" else _settled(info, until, check=False)

        if snapshot:
            state = await self.state_of(run_id)
            yield snapshot_of(state)
            after = state.seq
            if state.finished is not None:
                return
        async for item in self._feed.watch(run_id, after, stop):
            yield item

    async def watch(
        self, after: str | None = None, *, agent: str | None = None, thread_id: str | None = None
    ) -> AsyncIterator[tuple[str, str, Entry]]:
        """(cursor, run id, entry) of all runs in commit order, without gap; go on later with `after=cursor`."""
        self._check_open()
        rows: dict[str, RunInfo] = {}
        async for cursor, run, entry in self._feed.watch_all(after):
            if (agent or thread_id) and run not in rows:
                rows[run] = await self.store.info(run)
            row = rows.get(run)
            if row is None or (agent in (None, row.agent) and thread_id in (None, row.thread_id)):
                yield cursor, run, entry


def _settled(info: RunInfo, until: Until, *, check: bool = True) -> bool:
    """Whether a run is done, or waits for somebody outside. Raises JournalCorrupt for one that is set aside."""
    if info.quarantined:
        if check:
            raise JournalCorrupt(
                f"run {info.run_id!r} is quarantined: see why, then `clew quarantine release {info.run_id}`"
            )
        return True
    if info.status == "waiting" and until == "settled":
        return not info.reasons or info.reasons[0] not in OURSELVES
    return info.status == "done"
