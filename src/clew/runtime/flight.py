"""One effect on its way: the task that performs it, whether it was asked to stop, and what it came to."""

from typing import TYPE_CHECKING

from msgspec import Struct

from clew.core.effects import CallModel, CallTool
from clew.core.entries import Entry
from clew.core.values import Digest

if TYPE_CHECKING:
    import asyncio


class Done(Struct, frozen=True, gc=False):
    """The facts that came of an effect; none, if it was interrupted before there was anything to keep."""

    entries: tuple[Entry, ...] = ()
    blobs: dict[Digest, bytes] = {}


class Flight:
    __slots__ = ("_landed", "asked_at", "done", "effect", "interrupted", "task")

    def __init__(self, effect: CallModel | CallTool, landed: "asyncio.Event") -> None:
        self.effect = effect
        self._landed = landed
        self.done: Done | None = None  # what it came to, also if its task ends cancelled behind that
        self.interrupted = False
        self.asked_at = 0.0
        self.task: asyncio.Task[None] | None = None

    @property
    def step(self) -> str:
        return self.effect.step

    def interrupt(self) -> None:
        """Cancel the task, once: what it answers then is known to be our doing."""
        if not self.interrupted and self.task is not None:
            self.interrupted = True
            self.asked_at = self.task.get_loop().time()
            # One that is cancelled before its first step runs nothing, not even its finally.
            self.task.add_done_callback(lambda _task: self._landed.set())
            self.task.cancel()

    def overdue(self, grace: float) -> bool:
        return self.interrupted and self.task is not None and self.task.get_loop().time() >= self.asked_at + grace
