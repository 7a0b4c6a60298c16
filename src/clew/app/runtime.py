"""The façade: each verb is a few lines over plan, store and worker."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Self, cast, overload

from msgspec.structs import replace
from typing_extensions import TypeVar

from clew.agent import Agent, ClientTool, Duration, ModelLike
from clew.agent.shapes import in_seconds, whole
from clew.app.reading import Reading
from clew.app.result import Queued
from clew.app.run import Run
from clew.app.version import version
from clew.compose import deps_maker, open_store, resolve_model
from clew.core.letters import AnyLetter, CancelLetter, MessageLetter, PauseLetter, UnpauseLetter
from clew.core.limits import Limits
from clew.core.spec import ModelSettings
from clew.errors import Conflict, JournalCorrupt, NotFound, RunBusy, UsageError
from clew.ports import Claim, Clock, RunInfo, Store
from clew.runtime.feed import Feed
from clew.runtime.history import History
from clew.runtime.ids import new_run_id
from clew.runtime.plan import (
    Input,
    OnBusy,
    StartPlan,
    Wishes,
    as_messages,
    check_agent,
    checked_letter,
    client_specs,
    plan_start,
    stamped,
)
from clew.runtime.station import Station
from clew.runtime.user_code import Threads
from clew.runtime.worker import Worker
from clew.stores.clock import SystemClock
from clew.stores.owners import new_owner

_D = TypeVar("_D", default=object)
_Out = TypeVar("_Out", default=str)

START_TRIES = 100


class Runtime(Reading):
    """Runs agents over a store. `async with` opens it, and recovers: it drives every run of its agents that can go on.

    With `drive=False` it only reads, starts, decides and cancels. Leaving it gives steps `grace` seconds to end.
    """

    @overload  # only starts, reads, decides: needs no deps
    def __init__(
        self,
        store: str | Store | None = None,
        *,
        agents: Sequence[Agent[Any, Any]] = (),
        drive: Literal[False],
        model: ModelLike | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload  # no tool needs deps
    def __init__(
        self,
        store: str | Store | None = None,
        *,
        agents: Sequence[Agent[object, Any]] = (),
        deps: None = None,
        drive: bool = True,
        model: ModelLike | None = None,
        concurrency: int = 100,
        lease: Duration = 30.0,
        grace: Duration = 10.0,
        engine: Any = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload  # deps made for each run
    def __init__(
        self,
        store: str | Store | None = None,
        *,
        deps: Callable[[RunInfo], AbstractAsyncContextManager[_D]],
        agents: Sequence[Agent[_D, Any]],
        drive: bool = True,
        model: ModelLike | None = None,
        concurrency: int = 100,
        lease: Duration = 30.0,
        grace: Duration = 10.0,
        engine: Any = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload  # deps made for each run
    def __init__(
        self,
        store: str | Store | None = None,
        *,
        deps: Callable[[RunInfo], Awaitable[_D]],
        agents: Sequence[Agent[_D, Any]],
        drive: bool = True,
        model: ModelLike | None = None,
        concurrency: int = 100,
        lease: Duration = 30.0,
        grace: Duration = 10.0,
        engine: Any = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload  # deps made for each run
    def __init__(
        self,
        store: str | Store | None = None,
        *,
        deps: Callable[[RunInfo], _D],
        agents: Sequence[Agent[_D, Any]],
        drive: bool = True,
        model: ModelLike | None = None,
        concurrency: int = 100,
        lease: Duration = 30.0,
        grace: Duration = 10.0,
        engine: Any = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload  # deps are an object
    def __init__(
        self,
        store: str | Store | None = None,
        *,
        deps: _D,
        agents: Sequence[Agent[_D, Any]],
        drive: bool = True,
        model: ModelLike | None = None,
        concurrency: int = 100,
        lease: Duration = 30.0,
        grace: Duration = 10.0,
        engine: Any = None,
        clock: Clock | None = None,
    ) -> None: ...
    def __init__(
        self,
        store: str | Store | None = None,
        *,
        deps: Any = None,
        agents: Sequence[Agent[Any, Any]] = (),
        drive: bool = True,
        model: ModelLike | None = None,
        concurrency: int = 100,
        lease: Duration = 30.0,
        grace: Duration = 10.0,
        engine: Any = None,
        clock: Clock | None = None,
    ) -> None:
        if engine is not None:
            raise UsageError("engine= comes with a later release of Clew: leave it out")
        if whole(concurrency, "Runtime: concurrency") < 1:
            raise UsageError(f"Runtime(concurrency={concurrency}): one run at a time is the least")
        if not isinstance(cast("object", agents), Sequence):
            raise UsageError(f"Runtime(agents={agents!r}): give a list of agents, agents=[…]")
        self._drives = drive
        self.deps = deps
        self._clock = clock or SystemClock()
        self._pid = os.getpid()
        self._opened = self._closed = False
        self._unlisten: Callable[[], None] = lambda: None
        self.store: Store = open_store(store, clock)
        self._feed = Feed(self.store)
        self._station = Station(
            store=self.store,
            clock=self._clock,
            history=History(self.store),
            feed=self._feed,
            threads=Threads(),
            owner=new_owner(),
            worker=f"worker-{self._pid}",
            version=version(),
            agents={},
            deps=deps_maker(deps, self.store.info),
            resolve=resolve_model,
            result=lambda state, agent: self._result(state.run, agent, (), state),
            model=model,
            grace=0.0 if grace == 0 else in_seconds(grace, "Runtime: grace") or 0.0,
            lease=int((in_seconds(lease, "Runtime: lease") or 30.0) * 1_000_000),
        )
        self._worker = Worker(self._station, concurrency)
        for agent in agents:
            self._know(agent)

    def __repr__(self) -> str:
        how = "closed" if self._closed else "open" if self._opened else "not open"
        does = f"drives {', '.join(self.agents) or 'no agents'}" if self._drives else "drives nothing"
        return f"<Runtime {how}, {does}, on {self.store!r}>"

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Open the store and begin to drive. `async with` does this."""
        if self._closed:
            raise UsageError("this Runtime was closed: make a new one")
        if not self._opened:
            await self.store.open()
            self._opened = True
            self._feed.open(self._worker.drives, self._station.spawn)
            self._worker.open(look=self._drives)
            listen: Callable[[Callable[[], None]], Callable[[], None]] | None = getattr(self._clock, "listen", None)
            if listen is not None:
                self._unlisten = listen(self._worker.nudge)
        return self

    async def close(self) -> None:
        """Give steps `grace` to end, give every run back, close the store. `async with` does this."""
        self._check_process()
        if self._opened and not self._closed:
            self._closed = True
            self._unlisten()
            await self._worker.close()
            self._feed.close()
            await self.store.close()

    @property
    def tasks(self) -> "set[asyncio.Task[Any]]":
        """What this process has going in the background."""
        return self._station.tasks

    @property
    def agents(self) -> "Mapping[str, Agent[Any, Any]]":
        """The agents that this Runtime can drive, by name."""
        return self._station.agents

    @property
    def drives(self) -> bool:
        """Whether it takes runs up, or only reads, starts and cancels."""
        return self._drives

    @property
    def driving(self) -> tuple[str, ...]:
        """The runs that this process drives at this moment."""
        return self._worker.driving

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                "this Runtime was made before a fork(): start processes by spawn, or fork before opening one"
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise UsageError("this Runtime is closed: make a new one")
        if not self._opened:
            raise UsageError("this Runtime is not open: use `async with Runtime(…) as rt:`, or await rt.open()")

    def _know(self, agent: Agent[Any, Any]) -> None:
        check_agent(agent)
        known = self._station.agents.get(agent.name)
        if known is not None and known is not agent and known.fingerprint != agent.fingerprint:
            raise UsageError(f"two different agents are called {agent.name!r}: give one of them another name")
        self._station.agents[agent.name] = agent
        self._station.history.remember(agent.spec, agent.fingerprint)

    # --- starting

    async def start(
        self,
        agent: Agent[Any, _Out],
        input: Input,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        model: ModelLike | None = None,
        limits: Limits | None = None,
        model_settings: ModelSettings | None = None,
        client_tools: Sequence[ClientTool] = (),
        on_busy: OnBusy = "enqueue",
        trace: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Run[_Out]:
        """Accept a run durably; any worker takes it up. With the `run_id` of an earlier start it attaches to that.

        Raises Conflict if the id stands for another start, RunBusy for `on_busy="reject"` on a thread at work.
        """
        self._check_open()
        if on_busy not in ("enqueue", "reject"):
            raise UsageError(f"on_busy={on_busy!r} comes with a later release: use 'enqueue' or 'reject'")
        self._know(agent)
        wishes = Wishes(
            thread_id=thread_id,
            model=model,
            limits=limits,
            settings=model_settings,
            client_tools=client_specs(client_tools),
            trace=trace,
            metadata=metadata,
        )
        plan = plan_start(new_run_id(self.store.now()) if run_id is None else run_id, agent, input, wishes)
        # A task of its own: whoever waits may be cancelled, and the run must not be left without its driver.
        run = await asyncio.shield(self._station.spawn(self._place(plan, agent, on_busy), f"start {plan.run}"))
        return Run(self, run, plan.thread or run, agent, agent.name)

    async def _place(self, plan: StartPlan, agent: Agent[Any, Any], on_busy: OnBusy) -> str:
        """Store the run at its place in its thread; the thread may move meanwhile, then look again."""
        for _ in range(START_TRIES):
            thread = None if plan.thread is None else await self.store.thread(plan.thread)
            new = plan.run_for(thread)
            if new.place == "queue" and on_busy == "reject" and not await self._is_taken(plan):
                raise RunBusy(f"thread {plan.thread!r} is at work on run {new.expected!r}: wait for it, or enqueue")
            here = self._drives and new.place == "head" and self._worker.has_room
            if here:
                attached = self._worker.attached(agent)
                new = replace(
                    new, entries=(*new.entries, attached), owner=self._station.owner, lease=self._station.lease
                )
            new = stamped(new, self.store.now())
            confirmed = self._clock.boottime()
            try:
                started = await self.store.start(new)
            except Conflict:
                if await self._is_taken(plan):
                    raise
                if plan.thread is None:
                    raise UsageError(
                        f"run id {plan.run!r} is the name of a thread: say thread_id={plan.run!r} to go on with it, "
                        "or take another run_id"
                    ) from None
                continue
            if started.created and here:
                state = await self._station.history.state_from(plan.run, list(new.entries))
                claim = Claim(run=plan.run, epoch=1, agent=agent.name, format=1, seq=2, inbox_seq=started.inbox_seq)
                self._worker.adopt(claim, state, confirmed)
            return started.run
        raise Conflict(f"thread {plan.thread!r} moved {START_TRIES} times while run {plan.run!r} looked for its place")

    async def _is_taken(self, plan: StartPlan) -> bool:
        """Whether a refused start was refused for its id, and not because its thread had moved."""
        try:
            await self.store.info(plan.run)
        except NotFound:
            return False
        return True

    # --- acting on runs

    async def drive(self, run_id: str) -> Run[Any]:
        """Drive a run here and now, until it waits or ends. Raises RunBusy naming the process that does already."""
        run = await self.get(run_id)
        if run.agent not in self._station.agents:
            raise UsageError(f"run {run.id!r} is of agent {run.agent!r}, which this Runtime was not given: agents=[…]")
        await self._worker.drive(run.id)
        return run

    async def cancel(self, run_id: str, *, reason: str = "", by: str | None = None) -> None:
        """End a run, from any process, in any state; durable on return. Raises RunEnded if it has ended before."""
        await self._post(run_id, CancelLetter(reason=reason, by=by))

    async def pause(self, run_id: str, *, by: str | None = None) -> None:
        """Stop at the next boundary, until unpause; what runs may end."""
        await self._post(run_id, PauseLetter(by=by))

    async def unpause(self, run_id: str, *, by: str | None = None) -> None:
        await self._post(run_id, UnpauseLetter(by=by))

    async def send(
        self,
        run_id: str,
        input: Input,
        *,
        when: Literal["asap", "idle"] = "asap",
        message_id: str | None = None,
        by: str | None = None,
    ) -> Queued:
        """Put a message into a run that is at work: before its next model call, or (idle) when it would end.

        Durable on return. Raises RunEnded if the run has ended: start(thread_id=…) goes on with its thread.
        """
        messages = as_messages(input)
        name = message_id or new_run_id(self.store.now()).replace("run_", "msg_", 1)
        await self._post(run_id, MessageLetter(messages=messages, when=when, message_id=name, by=by))
        return Queued(name, run_id, "\n".join(message.text for message in messages))

    async def _post(self, run_id: str, letter: AnyLetter) -> None:
        """Leave a letter, and see that somebody reads it: the run's driver, or if it has none, this process."""
        self._check_open()
        info = await self.store.info(run_id)
        await self.store.post(info.run_id, checked_letter(letter))
        if self._worker.notify(info.run_id) or not isinstance(letter, CancelLetter):
            return
        try:
            await self._worker.drive(info.run_id)
        except (Conflict, JournalCorrupt):
            return  # somebody drives it, and reads the letter; or it is set aside until it is released
