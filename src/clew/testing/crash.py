"""Crash an agent at every point where a crash can fall, and compare what comes of it with the calm run."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

from msgspec import Struct

from clew.agent import Agent, ModelLike
from clew.app import Result, Runtime
from clew.core.effects import CallTool
from clew.core.entries import DoubtResolved, Entry, ModelReplied, RunFinished, ToolFailed, ToolReturned, ToolStarted
from clew.core.messages import Message, ToolResult
from clew.core.state import State
from clew.errors import Unsupported
from clew.ports import Batch, NewRun, Receipt, Started, Store
from clew.runtime.flight import Done, Flight
from clew.runtime.hands import Hands
from clew.runtime.plan import Input
from clew.runtime.redact import described
from clew.runtime.user_code import Raised, attempt, call
from clew.stores.memory import MemoryStore
from clew.testing.clock import VirtualClock

RUN = "crash"
LIFETIME = 1_000_000.0  # seconds of lease: here a process loses it by dying, never by time
MOST_LIVES = 20

Where = Literal["before", "after", "effect"]


class Crash(BaseException):
    """The process is gone. Nothing but the crash kit may catch it."""


class Point(Struct, frozen=True):
    """Where to crash: before or after the nth commit, or after the nth effect and before its commit."""

    where: Where
    number: int

    def __str__(self) -> str:
        return f"{self.where} {'effect' if self.where == 'effect' else 'commit'} {self.number}"


class CrashReport(Struct, frozen=True):
    """What crashing at each point showed. `doubts` are `once` calls that ended unknown: told, and never repeated."""

    points: int
    repeated: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()  # what `check` found in the outside world
    rerun: dict[str, int] = {}  # tools that a crash made run again, as they are declared to, and how often
    doubts: int = 0
    calm: str = ""  # how the run ended without a crash

    @property
    def ok(self) -> bool:
        return not (self.repeated or self.differing or self.wrong)

    def __str__(self) -> str:
        titled = (("ran twice", self.repeated), ("differs", self.differing), ("wrong", self.wrong))
        found = [f"{title}: {x}" for title, whats in titled for x in whats]
        return f"{self.points} crash points: {'; '.join(found) if found else 'nothing ran twice, nothing differs'}"


class World:
    """What outlives a crash: the store, the clock, and a tally of what was performed."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.performed: Counter[tuple[str, int]] = Counter()
        self.repeated: list[str] = []
        self.rerun: Counter[str] = Counter()

    async def settled_steps(self) -> set[str]:
        """Steps whose outcome is committed, and `once` calls whose intent is: none of these may be performed again."""
        try:
            entries = await self.store.read(RUN)
        except Exception as error:
            if type(error).__name__ == "NotFound":
                return set()
            raise
        final = (ModelReplied, ToolReturned, ToolStarted)
        return {
            entry.step
            for entry in entries
            if entry.step is not None and (isinstance(entry, final) or (isinstance(entry, ToolFailed) and entry.final))
        }


class Life:
    """One process: a store that dies with it, and hands that can be cut off after an effect."""

    def __init__(self, world: World, point: Point | None, settled: Collection[str]) -> None:
        self.world = world
        self.point = point
        self.settled = settled
        self.commits = self.effects = 0
        self.dead = asyncio.Event()
        self.tasks: set[asyncio.Future[Any]] = set()

    def die(self) -> None:
        self.dead.set()
        raise Crash

    def check(self) -> None:
        """Whoever is at work here dies with the process; it is noted, so that its last word is not reported."""
        task = asyncio.current_task()
        if task is not None:
            self.tasks.add(task)
        if self.dead.is_set():
            raise Crash

    def reached(self, where: Where, number: int) -> bool:
        return self.point is not None and self.point.where == where and self.point.number == number

    def __getattr__(self, name: str) -> Any:
        """Everything else a store can do, for as long as the process lives."""
        self.check()
        return getattr(self.world.store, name)

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def start(self, new: NewRun) -> Started:
        started: Started = await self._written(lambda: self.world.store.start(new))
        return started

    async def commit(self, batch: Batch) -> Receipt:
        receipt: Receipt = await self._written(lambda: self.world.store.commit(batch))
        return receipt

    async def _written(self, write: Callable[[], Any]) -> Any:
        self.check()
        self.commits += 1
        number = self.commits
        if self.reached("before", number):
            self.die()
        answer = await write()
        if self.reached("after", number):
            self.die()
        return answer

    def hands(self, performing: Callable[[Hands, Flight, State], Any]) -> Callable[[Hands, Flight, State], Any]:
        async def perform(hands: Hands, flight: Flight, state: State) -> Done:
            self.check()
            if self._again(flight, state):
                self.world.repeated.append(f"{flight.step} at {self.point}")
            performed = flight.step, flight.effect.attempt
            if isinstance(flight.effect, CallTool) and self.world.performed[performed]:
                self.world.rerun[next(call.tool for call in state.calls if call.id == flight.step)] += 1
            self.world.performed[performed] += 1
            done: Done = await performing(hands, flight, state)
            self.effects += 1
            if self.reached("effect", self.effects):
                self.die()
            return done

        return perform

    def _again(self, flight: Flight, state: State) -> bool:
        """Whether this was performed before and must not be: its outcome is known, or it may happen only once."""
        if not isinstance(flight.effect, CallTool):
            return flight.step in self.settled
        found = next((call for call in state.calls if call.id == flight.step), None)
        tool = None if found is None else state.tool_of(found)
        before = self.world.performed[flight.step, flight.effect.attempt]
        return (flight.step in self.settled and flight.effect.attempt == 1) or (
            before > 0 and tool is not None and tool.effect == "once"
        )


async def crash_points(
    agent: Agent[Any, Any],
    input: Input,
    *,
    deps: Any = None,
    model: ModelLike | None = None,
    decide: Callable[[Any], Any] | None = None,
    store: Callable[[VirtualClock], Store] = lambda clock: MemoryStore(clock=clock),
    reset: Callable[[], Any] | None = None,
    check: Callable[[], Any] | None = None,
    told: Callable[[int, int], None] | None = None,
) -> CrashReport:
    """Run an agent calmly, then with a crash at each point, and tell what ran twice or came out differently.

    `deps` is an object, or a function of RunInfo that makes a fresh one for each activation; `model` must answer by
    the conversation or by its ordinal, as ScriptedModel does. `store` makes the store of each trial.

    `reset` makes the outside world new before each trial, and `check` looks at it afterwards: what it raises, or
    returns unless that is None or True, is wrong. `told` hears how many points of how many are done.
    """
    if decide is not None:
        raise Unsupported("decide= comes with the release on people in the loop: leave it out")
    outside = Outside(reset, check)
    await outside.renew()
    calm = Trial(agent, input, deps, model, store)
    expected, life = await calm.run(None)
    wrong = await outside.found("without a crash")
    repeated: list[str] = []
    differing: list[str] = []
    rerun: Counter[str] = Counter()
    doubts = 0
    points = [Point(where, n) for where in ("before", "after") for n in range(1, life.commits + 1)]
    points += [Point("effect", n) for n in range(1, life.effects + 1)]
    for number, point in enumerate(points, start=1):
        await outside.renew()
        trial = Trial(agent, input, deps, model, store)
        story, _ = await trial.run(point)
        wrong += await outside.found(str(point))
        repeated += trial.world.repeated
        rerun += trial.world.rerun
        doubts += len(story.doubts)
        if not story.tells_the_same(expected):
            differing.append(str(point))
        if told is not None:
            told(number, len(points))
    return CrashReport(
        len(points), tuple(repeated), tuple(differing), tuple(wrong), dict(rerun), doubts, calm=expected.outcome
    )


class Outside:
    """The world beyond the store, as far as its owner lent us functions for it."""

    def __init__(self, reset: Callable[[], Any] | None, check: Callable[[], Any] | None) -> None:
        self._reset = reset
        self._check = check

    async def renew(self) -> None:
        if self._reset is not None:
            await call(self._reset)

    async def found(self, where: str) -> list[str]:
        """What is wrong with it now, each with the crash that showed it."""
        if self._check is None:
            return []
        outcome = await attempt(call(self._check))
        if isinstance(outcome, Raised):
            return [f"{where}: {described(outcome.error)}"]
        value = cast("object", outcome.value)
        if value is None or value is True:
            return []
        several = isinstance(value, list | tuple)
        return [f"{where}: {one}" for one in (cast("Sequence[object]", value) if several else (value,))]


class Story(Struct, frozen=True):
    """What a journal tells: the conversation and its end, and which calls ended in doubt."""

    messages: tuple[Message, ...]
    outcome: str
    output: object
    ends: int
    doubts: tuple[str, ...]

    def tells_the_same(self, other: "Story") -> bool:
        return (
            self.ends == other.ends == 1
            and (self.outcome, self.output) == (other.outcome, other.output)
            and self._said(self.doubts) == other._said(self.doubts)
        )

    def _said(self, but: Collection[str]) -> list[object]:
        """The parts of each message in order, without the results of doubtful calls."""
        return [
            (message.role, [p for p in message.parts if not (isinstance(p, ToolResult) and p.call in but)])
            for message in self.messages
        ]


class Trial:
    """One run of the agent in a world of its own, through as many lives as it takes."""

    def __init__(
        self, agent: Agent[Any, Any], input: Input, deps: Any, model: ModelLike | None, store: Callable[..., Store]
    ) -> None:
        self.agent = agent
        self.input = input
        self.deps = deps
        self.model = model
        self.clock = VirtualClock()
        self.world = World(store(self.clock), self.clock)

    async def run(self, point: Point | None) -> tuple[Story, Life]:
        await self.world.store.open()
        try:
            for number in range(MOST_LIVES):
                life = Life(self.world, point if number == 0 else None, await self.world.settled_steps())
                result = await self._live(life)
                if result is not None:
                    return await self._story(result), life
            raise AssertionError(f"the run did not end in {MOST_LIVES} lives after a crash {point}")
        finally:
            await self.world.store.close()

    async def _live(self, life: Life) -> Result[Any] | None:
        """One process from start to end or crash; None if it crashed."""
        runtime = Runtime(
            cast("Store", life),
            agents=[self.agent],
            deps=self.deps,
            model=self.model,
            lease=LIFETIME,
            clock=self.clock,
        )
        async with _hands(life):
            work = asyncio.ensure_future(self._work(runtime))
            death = asyncio.ensure_future(life.dead.wait())
            passing = asyncio.ensure_future(_pass_time(self.clock))
            await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
            passing.cancel()
            death.cancel()
            if not life.dead.is_set():
                return await work
            await _abandon({work, *life.tasks, *runtime.tasks})
        lease = await self._lease()
        if lease is not None:
            await self.world.store.give_back(RUN, lease)
        return None

    async def _work(self, runtime: Runtime) -> Result[Any]:
        await runtime.open()
        run = await runtime.start(self.agent, self.input, run_id=RUN)
        result = await run.result(until="done")
        await runtime.close()
        return result

    async def _lease(self) -> int | None:
        found = await asyncio.gather(self.world.store.lease(RUN), return_exceptions=True)  # noqa: TID251
        if isinstance(found[0], BaseException):
            return None
        return found[0].epoch if found[0].owner is not None else None

    async def _story(self, result: Result[Any]) -> Story:
        entries: list[Entry] = await self.world.store.read(RUN)
        return Story(
            messages=result.messages,
            outcome=str(result.outcome),
            output=result.output if result.ok else result.detail,
            ends=sum(isinstance(entry, RunFinished) for entry in entries),
            doubts=tuple(entry.call for entry in entries if isinstance(entry, DoubtResolved)),
        )


@asynccontextmanager
async def _hands(life: Life) -> AsyncGenerator[None]:
    """The hands of this process are cut off where the life says so."""
    whole = Hands.perform
    setattr(Hands, "perform", life.hands(whole))  # noqa: B010
    try:
        yield
    finally:
        setattr(Hands, "perform", whole)  # noqa: B010


async def _pass_time(clock: VirtualClock) -> None:
    """Backoffs and sleeps take no real time here."""
    while True:
        await asyncio.sleep(0.001)
        await clock.advance(0.25)


async def _abandon(tasks: "set[asyncio.Future[Any]]") -> None:
    """A dead process runs nothing: whatever it had going is dropped without a word."""
    here = asyncio.current_task()
    if here is not None:
        tasks.discard(here)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # noqa: TID251
