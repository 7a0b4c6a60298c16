"""Crash an agent at every point where a crash can fall, and compare what comes of it with the calm run."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, cast
from unittest.mock import patch

from msgspec import Struct

from clew.agent import Agent, Decide, ModelLike
from clew.app import Result, Run, Runtime
from clew.core.calls import RETRY, Call
from clew.core.effects import CallModel, CallTool, RunHooks
from clew.core.entries import (
    DoubtResolved,
    Entry,
    ModelReplied,
    Owner,
    RunFinished,
    StateChanged,
    ToolFailed,
    ToolReturned,
)
from clew.core.letters import DecisionLetter
from clew.core.messages import Message, ToolResult
from clew.core.state import State
from clew.core.tickets import Ticket
from clew.errors import AlreadyDecided
from clew.ports import Batch, NewRun, Receipt, Started, Store
from clew.runtime.bodies import Body
from clew.runtime.flight import Done, Flight
from clew.runtime.hands import Hands
from clew.runtime.plan import Input
from clew.runtime.user_code import Raised, attempt, call
from clew.stores.memory import MemoryStore
from clew.testing.clock import SECOND, VirtualClock
from clew.testing.outside import Outside
from clew.testing.stepping import Stepped

RUN = "crash"
LIFETIME = 1_000_000.0  # seconds of lease: here a process loses it by dying, never by time
MOST_LIVES = 20
LOOK_AGAIN = 0.005  # seconds
TICK = 0.25  # seconds by the clock
DEATHS = 200  # how often a task of a dead process is told that it is dead

MOST_AWAITS = 50  # at which a run is crashed: of more, as many are taken that lie evenly

Where = Literal["before", "after", "effect", "await"]


class Crash(BaseException):
    """The process is gone. Nothing but the crash kit may catch it."""


class Point(Struct, frozen=True):
    """Where to crash: around the nth commit, after the nth effect and before its commit, at the nth await of tools."""

    where: Where
    number: int

    def __str__(self) -> str:
        if self.where == "await":
            return f"at await {self.number} of its tools"
        return f"{self.where} {'effect' if self.where == 'effect' else 'commit'} {self.number}"


class CrashReport(Struct, frozen=True):
    """What crashing at each point showed. `doubts`: `once` calls of which somebody else had to say what happened."""

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
        self.performed: set[tuple[object, ...]] = set()
        self.repeated: list[str] = []
        self.rerun: Counter[str] = Counter()

    async def settled_steps(self) -> set[str]:
        """Steps whose outcome is committed: none of these may be performed again."""
        try:
            entries = await self.store.read(RUN)
        except Exception as error:
            if type(error).__name__ == "NotFound":
                return set()
            raise
        final = (ModelReplied, ToolReturned)
        settled = [
            entry for entry in entries if isinstance(entry, final) or (isinstance(entry, ToolFailed) and entry.final)
        ]
        return {entry.step for entry in settled if entry.step is not None} | {
            f"hooks {entry.step}" for entry in entries if isinstance(entry, StateChanged)
        }


class Life:
    """One process: a store that dies with it, and hands that can be cut off after an effect."""

    def __init__(self, world: World, point: Point | None, settled: Collection[str]) -> None:
        self.world = world
        self.point = point
        self.settled = settled
        self.commits = self.effects = self.awaits = 0
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

    def waits(self, body: Body) -> None:
        """The body of a tool is about to wait; one that is being unwound says nothing that counts."""
        if body.is_unwound:
            return
        self.check()
        self.awaits += 1
        if self.reached("await", self.awaits):
            self.die()

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

    async def decide(self, run: str, letter: DecisionLetter) -> Ticket:
        ticket: Ticket = await self._written(lambda: self.world.store.decide(run, letter))
        return ticket

    async def is_gone(self, owner: Owner) -> bool:  # noqa: ARG002 -- whoever it was lived before, and died
        """The lives before this one are over."""
        self.check()
        return True

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
            self._tally(flight, state)
            done: Done = await performing(hands, flight, state)
            self.effects += 1
            if self.reached("effect", self.effects):
                self.die()
            return done

        return perform

    def _tally(self, flight: Flight, state: State) -> None:
        """Note what is performed, and of a body whether a crash made it run again."""
        if not isinstance(flight.effect, CallTool):
            return
        found = state.call(flight.step)
        entered = _entered(found)
        if entered in self.world.performed:
            self.world.rerun[found.tool] += 1
        self.world.performed.add(entered)

    def _again(self, flight: Flight, state: State) -> bool:
        """Whether this was performed before and must not be: its outcome is known, or it may happen only once.

        What only asks (verdicts, `verify`) may ask again. Hooks run again until the mark they leave is committed.
        """
        if isinstance(flight.effect, RunHooks):
            return f"hooks {flight.step}" in self.settled
        if not isinstance(flight.effect, CallTool):
            return isinstance(flight.effect, CallModel) and flight.step in self.settled
        found = state.call(flight.step)
        tool = state.tool_of(found)
        if tool is None or tool.effect != "once":
            return flight.step in self.settled
        left = found.intent is None or found.intent.epoch != state.epoch or _entered(found) in self.world.performed
        return flight.step in self.settled or (left and not tool.steps_only)


def _entered(call: Call) -> tuple[object, ...]:
    """What tells one entering of a body from another: a body that let go, or is tried again, is entered anew."""
    return call.id, call.attempt, call.let_go_in


async def crash_points(
    agent: Agent[Any, Any],
    input: Input,
    *,
    deps: Any = None,
    model: ModelLike | None = None,
    decide: Decide | None = None,
    store: Callable[[VirtualClock], Store] = lambda clock: MemoryStore(clock=clock),
    reset: Callable[[], Any] | None = None,
    check: Callable[[], Any] | None = None,
    told: Callable[[int, int], None] | None = None,
    awaits: bool = True,
) -> CrashReport:
    """Run an agent calmly, then with a crash at each point, and tell what ran twice or came out differently.

    `deps` is an object, or a function of RunInfo that makes a fresh one for each activation; `model` must answer by
    the conversation or by its ordinal, as ScriptedModel does. `store` makes the store of each trial.

    `reset` makes the outside world new before each trial, and `check` looks at it afterwards: what it raises, or
    returns unless that is None or True, is wrong. `told` hears how many points of how many are done. Without `awaits`
    no crash falls into the middle of a tool's body.

    `decide` answers each ticket on the spot, in every life; where it says None the ticket is left, and a run that
    waits for nothing else has come to its end. A run that a crash left in doubt, and nobody answers, is a doubt.
    """
    outside = Outside(reset, check)
    await outside.renew()
    calm = Trial(agent, input, deps, model, store, decide)
    expected, life = await calm.run(None)
    wrong = await outside.found("without a crash")
    repeated: list[str] = []
    differing: list[str] = []
    rerun: Counter[str] = Counter()
    doubts = 0
    points = [Point(where, n) for where in ("before", "after") for n in range(1, life.commits + 1)]
    points += [Point("effect", n) for n in range(1, life.effects + 1)]
    waits = range(1, life.awaits + 1, life.awaits // MOST_AWAITS + 1) if awaits else ()
    points += [Point("await", n) for n in waits]
    for number, point in enumerate(points, start=1):
        await outside.renew()
        trial = Trial(agent, input, deps, model, store, decide)
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


class Story(Struct, frozen=True):
    """What a journal tells: the conversation and its end, and which calls somebody else had to tell the outcome of."""

    messages: tuple[Message, ...]
    outcome: str
    output: object
    ends: int
    doubts: tuple[str, ...]
    waits: bool  # in a doubt that nobody answers

    def tells_the_same(self, other: "Story") -> bool:
        if self.waits:
            said = self._said(self.doubts)
            return self.ends == 0 and said == other._said(self.doubts)[: len(said)]
        return (
            self.ends == other.ends
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
        self,
        agent: Agent[Any, Any],
        input: Input,
        deps: Any,
        model: ModelLike | None,
        store: Callable[..., Store],
        decide: Decide | None,
    ) -> None:
        self.agent = agent
        self.decide = decide
        self.input = input
        self.deps = deps
        self.model = model
        self.clock = VirtualClock()
        self.left: int | None = None  # when the ticket expires that nobody answers
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
            passing = asyncio.ensure_future(self._pass_time())
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
        result = await self._settled(runtime, run)
        await runtime.close()
        return result

    async def _settled(self, runtime: Runtime, run: Run[Any]) -> Result[Any]:
        """What the run comes to when every ticket that `decide` has an answer for is answered."""
        while True:
            result = await run.result()
            if result.status == "done":
                return result
            if not await self._decided(runtime, result):
                row = await run.info()
                self.left = row.wake_at
                # The run may have gone on meanwhile, and ask something else.
                if row.status == "waiting" and row.wake_at is None and (await run.result()).tickets == result.tickets:
                    return result
            await asyncio.sleep(LOOK_AGAIN)

    async def _decided(self, runtime: Runtime, result: Result[Any]) -> bool:
        """Whether the run has something to go on with."""
        answers = 0
        for ticket in result.tickets:
            decision = None if self.decide is None else await call(self.decide, ticket)
            if decision is None:
                continue
            answers += 1
            # It may have been decided in the life before, whose last word was not heard.
            with suppress(AlreadyDecided):
                await runtime.decide(ticket, decision, by="decide")
        return answers > 0

    async def _pass_time(self) -> None:
        """Backoffs and sleeps take no real time here, nor does the expiry of a ticket that nobody answers."""
        while True:
            await asyncio.sleep(0.001)
            due = await self._due()
            await self.clock.advance(TICK if due is None else max(due - self.clock.now(), 0) / SECOND)

    async def _due(self) -> int | None:
        """When the run goes on, if it waits for nothing but that."""
        found = await attempt(self.world.store.info(RUN))
        if isinstance(found, Raised):
            if isinstance(found.error, asyncio.CancelledError):
                raise found.error
            return None
        waits = found.value.status == "waiting" and found.value.wake_at is not None
        alone = found.value.reasons[:1] in (("timer",), ("rate_limit",)) or found.value.wake_at == self.left
        return found.value.wake_at if waits and alone else None

    async def _lease(self) -> int | None:
        found = await asyncio.gather(self.world.store.lease(RUN), return_exceptions=True)  # noqa: TID251
        if isinstance(found[0], BaseException):
            return None
        return found[0].epoch if found[0].owner is not None else None

    async def _story(self, result: Result[Any]) -> Story:
        entries: list[Entry] = await self.world.store.read(RUN)
        doubts = [entry.call for entry in entries if isinstance(entry, DoubtResolved) and entry.rule != RETRY]
        doubts += [ticket.call or "" for ticket in result.tickets if ticket.kind == "doubt"]
        return Story(
            messages=result.messages,
            outcome=str(result.outcome or result.reason),
            output=result.output if result.ok else result.detail,
            ends=sum(isinstance(entry, RunFinished) for entry in entries),
            doubts=tuple(doubts),
            waits=any(ticket.kind == "doubt" for ticket in result.tickets),
        )


@asynccontextmanager
async def _hands(life: Life) -> AsyncGenerator[None]:
    """The hands of this process are cut off where the life says so."""
    run: Any = getattr(Body, "_run")  # noqa: B009

    async def stepped(body: Body, *args: Any) -> object:
        return await Stepped(run(body, *args), lambda: life.waits(body))

    with patch.object(Hands, "perform", life.hands(Hands.perform)), patch.object(Body, "_run", stepped):
        yield


async def _abandon(tasks: "set[asyncio.Future[Any]]") -> None:
    """A dead process runs nothing: whatever it had going is dropped without a word."""
    here = asyncio.current_task()
    if here is not None:
        tasks.discard(here)
    left = set(tasks)
    for _ in range(DEATHS):
        for task in left:
            task.cancel()
        if not left:
            return
        # Bodies may catch what ends them, again and again.
        _, left = await asyncio.wait(left, timeout=LOOK_AGAIN)
