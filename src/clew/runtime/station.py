"""What every driver of one process works with: the store, the agents, the clock, the feed."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

from msgspec import Struct

from clew.agent import Agent
from clew.core.entries import Owner
from clew.core.state import State
from clew.ports import Clock, Model, Store
from clew.runtime.feed import Feed
from clew.runtime.history import History
from clew.runtime.user_code import Threads


class Deps(Protocol):
    """Makes what an agent's tools depend on, when a process takes a run up; closed with the stack."""

    async def __call__(self, run: str, stack: AsyncExitStack, /) -> object: ...


class Lease(Protocol):
    """The right to drive one run, as its driver sees it."""

    @property
    def epoch(self) -> int: ...
    @property
    def fresh(self) -> bool:
        """Whether that is so without asking the store."""
        ...

    async def good(self) -> bool:
        """Whether a step may start: less than two thirds have passed since the store last confirmed it."""
        ...

    async def retake(self) -> None:
        """Take the same run under a new epoch, which settles what became of the last commit. Raises StaleWriter."""
        ...


class Station(Struct, kw_only=True):
    store: Store
    clock: Clock
    history: History
    feed: Feed
    threads: Threads
    owner: Owner
    worker: str
    version: str = ""
    agents: dict[str, Agent[Any, Any]]
    deps: Deps
    resolve: Callable[[object], Model]
    result: Callable[[State, Agent[Any, Any]], Awaitable[object]]  # what a run came to, as its caller sees it
    model: object = None  # takes the place of every agent's
    grace: float = 10.0
    lease: int = 30_000_000
    tasks: set["asyncio.Task[Any]"] = set()

    def spawn(self, work: Any, name: str) -> "asyncio.Task[Any]":
        """The one home of background tasks: kept until done, so that none is collected while it runs."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task
