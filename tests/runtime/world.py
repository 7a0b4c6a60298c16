"""A world for the tests of the runtime: a place that outlives processes, processes that die, a store with a gate."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from clew import Agent, Runtime, tool
from clew.app import Run
from clew.core.entries import Entry
from clew.core.messages import Message, ToolCall, ToolResult
from clew.core.tickets import Ticket
from clew.ports import Batch, Fragment, ModelReply, ModelRequest, Receipt, RunInfo, Started
from clew.stores.memory import MemoryStore
from clew.testing import ScriptedModel, VirtualClock, call

LEASE = 30.0
PATIENCE = 10.0
E = TypeVar("E")
When = Callable[[Batch], bool]


class Stop:
    """A place where somebody who comes by is held until he is let go."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._go = asyncio.Event()
        self.passed = 0

    async def arrive(self) -> None:
        self.passed += 1
        self._reached.set()
        await self._go.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._reached.wait()

    def let_go(self) -> None:
        self._go.set()


class Gate:
    """A store by delegation, whose commits a test may hold, refuse, lose the answers of, and count."""

    def __init__(self, inner: Any, *, shared: bool) -> None:
        self.inner = inner
        self.dead = False
        self.batches: list[Batch] = []
        self.calls: dict[str, int] = {}
        self.before: Callable[[Batch], Awaitable[None]] | None = None
        self.after: Callable[[Batch], Awaitable[None]] | None = None
        self._shared = shared
        self._deaf: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.inner, name)
        if not asyncio.iscoroutinefunction(verb):
            return verb

        async def asked(*args: Any, **given: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            await self._alive()
            answer = await verb(*args, **given)
            await self._alive()
            return answer

        return asked

    async def _alive(self) -> None:
        if self.dead:
            await asyncio.get_running_loop().create_future()

    def renew(self, owner: Any, held: Any, lease: int) -> set[str]:
        return set() if self.dead else self.inner.renew(owner, held, lease)

    def listen(self, listener: Any) -> Callable[[], None]:
        end: Callable[[], None] = self.inner.listen(listener)
        self._deaf.append(end)
        return end

    async def start(self, new: Any) -> Started:
        await self._alive()
        started: Started = await self.inner.start(new)
        return started

    async def commit(self, batch: Batch) -> Receipt:
        await self._alive()
        self.batches.append(batch)
        if self.before is not None:
            await self.before(batch)
        await self._alive()
        receipt: Receipt = await self.inner.commit(batch)
        if self.after is not None:
            await self.after(batch)
        await self._alive()
        return receipt

    async def close(self) -> None:
        for end in self._deaf:
            end()
        if not self._shared:
            await self.inner.close()

    # --- what tests say

    def hold(self, when: When) -> Stop:
        """The first commit of this kind is held before it is made."""
        stop = Stop()

        async def before(batch: Batch) -> None:
            if not stop.passed and when(batch):
                await stop.arrive()

        self.before = before
        return stop

    def fail(self, when: When, *errors: BaseException, written: bool = False) -> list[Batch]:
        """The first commits of this kind raise these, one each, without or after being written; answers whom it hit."""
        left = list(errors)
        hit: list[Batch] = []

        async def raising(batch: Batch) -> None:
            if left and when(batch):
                hit.append(batch)
                raise left.pop(0)

        if written:
            self.after = raising
        else:
            self.before = raising
        return hit


class World:
    """What outlives a process: a clock, and a place where runs are kept."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path / "clew.db"
        self.clock = VirtualClock()
        self._memory = MemoryStore(clock=self.clock)
        self._runtimes: list[Runtime] = []
        self._gates: list[Gate] = []
        self._places = 0

    def store(self) -> Gate:
        """A new connection to the one place."""
        if self.kind == "memory":
            gate = Gate(self._memory, shared=True)
        else:
            from clew.stores.sqlite import SqliteStore

            gate = Gate(SqliteStore(str(self.path), clock=self.clock), shared=False)
        self._gates.append(gate)
        return gate

    def runtime(self, *agents: Agent[Any, Any], **given: Any) -> Runtime:
        """A process, not yet at work."""
        options: dict[str, Any] = {"grace": 0.2, "lease": LEASE, **given}
        runtime = Runtime(self.store(), agents=agents, clock=self.clock, **options)
        self._runtimes.append(runtime)
        return runtime

    def fresh(self, clock: VirtualClock) -> Any:
        """A place of its own, of the same kind, for a trial of the crash kit."""
        if self.kind == "memory":
            return MemoryStore(clock=clock)
        from clew.stores.sqlite import SqliteStore

        self._places += 1
        return SqliteStore(str(self.path.with_name(f"trial{self._places}.db")), clock=clock)

    async def open(self, *agents: Agent[Any, Any], **given: Any) -> Runtime:
        return await self.runtime(*agents, **given).open()

    async def opened_store(self) -> Gate:
        """The place itself, to look at and to write to past every Runtime."""
        gate = self.store()
        await gate.open()
        return gate

    async def passing(self, work: Awaitable[E]) -> E:
        """What this comes to, while time passes."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self.clock.advance(0.5)
            await asyncio.sleep(0.001)
        return await task

    async def kill(self, runtime: Runtime, *, lapse: bool = True) -> None:
        """The process dies where it stands; nothing it holds is given back, and its leases run out."""
        gate = gate_of(runtime)
        gate.dead = True
        runtime._worker._stop_renewing.set()
        tasks = [task for task in runtime.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        self._runtimes.remove(runtime)
        await gate.close()
        if lapse:
            await self.clock.advance(LEASE + 1)

    async def close(self) -> None:
        for runtime in self._runtimes:
            gate_of(runtime).before = gate_of(runtime).after = None
            await runtime.close()
        for gate in self._gates:
            await gate.close()


def gate_of(runtime: Runtime) -> Gate:
    gate = runtime.store
    assert isinstance(gate, Gate)
    return gate


# --- models -----------------------------------------------------------------------------------------------------------


class Fragments:
    """A model that streams what it is given, piece by piece; a Stop among the pieces holds it there."""

    name = "fragments"

    def __init__(self, *replies: Sequence[Any]) -> None:
        self._replies = replies
        self.requests: list[ModelRequest] = []

    @property
    def count(self) -> int:
        return len(self.requests)

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        self.requests.append(request)
        for piece in self._replies[request.ordinal]:
            match piece:
                case Stop():
                    await piece.arrive()
                case BaseException():
                    raise piece
                case str():
                    yield Fragment("text", piece)
                case _:
                    yield piece


def agent(model: Any, *tools: Any, name: str = "meteo", **given: Any) -> Agent[Any, Any]:
    return Agent(name, model=ScriptedModel(model) if isinstance(model, list) else model, tools=tools, **given)


@tool(effect="read")
def look() -> str:
    return "blue"


class Work:
    """An agent whose one tool is held until it is let go; it counts how often it ran."""

    def __init__(self, effect: Any = "read", model: Any = None, on_doubt: Any = "ask", **given: Any) -> None:
        self.held, self.ran = Stop(), 0

        @tool(effect=effect, on_doubt=on_doubt)
        async def work() -> str:
            self.ran += 1
            await self.held.arrive()
            return "worked"

        self.tool = work
        self.model = ScriptedModel([[call("work")], "Done."]) if model is None else model
        self.agent = agent(self.model, work, look, **given)


# --- reading journals -------------------------------------------------------------------------------------------------


def has(*kinds: str) -> When:
    """Whether a batch holds entries of all these kinds."""
    return lambda batch: set(kinds) <= {entry.kind for entry in batch.entries}


def kinds(entries: Sequence[Entry]) -> list[str]:
    return [entry.kind for entry in entries]


def of(entries: Sequence[Entry], kind: type[E]) -> list[E]:
    return [entry for entry in entries if isinstance(entry, kind)]


def results(messages: Sequence[Message]) -> dict[str, ToolResult]:
    return {part.call: part for message in messages for part in message.parts if isinstance(part, ToolResult)}


async def seen(run: Run[Any], *wanted: str, after: int = 0) -> list[Entry]:
    """Watch until there was an entry of each of these kinds; answers what was watched."""
    left, found = list(wanted), []
    async with asyncio.timeout(PATIENCE):
        async for item in run.watch(after):
            if hasattr(item, "seq"):
                found.append(item)
                if item.kind in left:
                    left.remove(item.kind)
            if not left:
                return found
    raise AssertionError(f"the run ended without {left}: {kinds(found)}")


async def becomes(runtime: Runtime, run: str, told: Callable[[RunInfo], bool]) -> RunInfo:
    """The row of a run, once it says this."""
    changed = asyncio.Event()
    end = runtime.store.listen(lambda _run: changed.set())
    try:
        async with asyncio.timeout(PATIENCE):
            while not told(info := await runtime.store.info(run)):
                await changed.wait()
                changed.clear()
            return info
    finally:
        end()


async def until(condition: Callable[[], bool]) -> None:
    """Goes on once this holds, whoever brings it about."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 -- what is waited for happens in threads, too
            await asyncio.sleep(0.001)


def check_transcript(messages: Sequence[Message]) -> None:
    """Each call has exactly one result, in call order, right after its reply; no result stands anywhere else."""
    expected: list[str] = []
    for message in messages:
        answers = [part.call for part in message.parts if isinstance(part, ToolResult)]
        if expected:
            assert message.role == "tool", f"{message.role} stands between a call and its result {expected}"
        assert answers == expected[: len(answers)]
        del expected[: len(answers)]
        if not expected:
            expected = [part.call for part in message.parts if isinstance(part, ToolCall)]
    assert not expected, f"calls without a result: {expected}"


def check_journal(entries: Sequence[Entry]) -> None:
    """What is true of every journal."""
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[0].kind == "run_started"
    assert kinds(entries).count("run_started") == 1
    assert kinds(entries[:-1]).count("run_finished") == 0
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert [entry.epoch for entry in entries] == sorted(entry.epoch for entry in entries)
    finals = [entry.step for entry in entries if entry.kind == "tool_returned" or getattr(entry, "final", False)]
    assert len(finals) == len(set(finals)), f"a call was answered twice: {finals}"
    replies = [entry.step for entry in entries if entry.kind == "model_replied"]
    assert len(replies) == len(set(replies)), f"a model step was answered twice: {replies}"


async def check_run(run: Run[Any]) -> list[Entry]:
    """A run that has ended, as every run must look."""
    entries = await run.entries()
    check_journal(entries)
    assert entries[-1].kind == "run_finished"
    check_transcript(await run.messages())
    return entries


async def asked(run: Run[Any], *kinds: str, but: Sequence[Ticket] = ()) -> list[Ticket]:
    """The open tickets of a run, once it waits for people about exactly these kinds of things, `but` for old ones."""
    while True:
        result = await run.result()
        assert result.status == "waiting", f"the run has ended: {result}"
        old = {ticket.id for ticket in but}
        if sorted(ticket.kind for ticket in result.tickets) == sorted(kinds) and not old & {
            x.id for x in result.tickets
        }:
            return list(result.tickets)
        await asyncio.sleep(0.001)
