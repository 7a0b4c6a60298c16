"""One effect on its way: the task that performs it, what it tells meanwhile, and what it came to."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from clew.core.effects import CallModel, CallTool, Judge, RunHooks, Verify
from clew.core.entries import Entry
from clew.core.values import Digest

if TYPE_CHECKING:
    import asyncio

Performed = CallModel | CallTool | Judge | Verify | RunHooks  # what takes outside work


class Update(Struct, frozen=True, gc=False):
    """What user code gave to a state key; what becomes of it depends on who else did."""

    key: Any  # a StateKey
    value: Any  # in journal form


class Done(Struct, frozen=True, gc=False):
    """The facts that came of an effect; none, if it was interrupted before there was anything to keep.

    `updates` belong to the first entry that can hold them. `passed`: nothing is written down, and nobody asked again.
    """

    entries: tuple[Entry, ...] = ()
    blobs: dict[Digest, bytes] = {}
    updates: tuple[Update, ...] = ()
    passed: bool = False
    until: int | None = None  # until when what a doubt is about may go on yet, in a thread that cannot be stopped


PASSED = Done(passed=True)


class Told:
    """Facts of a body that goes on once they are committed."""

    __slots__ = ("blobs", "committed", "entries")

    def __init__(
        self, entries: tuple[Entry, ...], blobs: dict[Digest, bytes], committed: "asyncio.Future[None]"
    ) -> None:
        self.entries = entries
        self.blobs = blobs
        self.committed = committed

    def known(self) -> None:
        if not self.committed.done():
            self.committed.set_result(None)


class Flight:
    __slots__ = (
        "_landed",
        "asked_at",
        "done",
        "effect",
        "instead",
        "interrupted",
        "let_go",
        "on_late",
        "task",
        "telling",
    )

    def __init__(self, effect: Performed, landed: "asyncio.Event") -> None:
        self.effect = effect
        self._landed = landed
        self.done: Done | None = None  # what it came to, also if its task ends cancelled behind that
        self.interrupted = False
        self.let_go = False  # what its body comes to is thrown away
        self.instead: Done | None = None  # what counts in its place, if anything does
        self.asked_at = 0.0
        self.task: asyncio.Task[None] | None = None
        self.telling: list[Told] = []
        self.on_late: Callable[[Done], None] = lambda _done: None

    @property
    def step(self) -> str:
        return self.effect.step

    async def tell(self, *entries: Entry, blobs: dict[Digest, bytes] | None = None) -> None:
        """Have facts committed while the effect goes on."""
        assert self.task is not None
        committed: asyncio.Future[None] = self.task.get_loop().create_future()
        self.telling.append(Told(entries, blobs or {}, committed))
        self._landed.set()
        await committed

    def interrupt(self) -> None:
        """Cancel the task, once: what it answers then is known to be our doing."""
        if not self.interrupted and self.task is not None:
            self.interrupted = True
            self._stop(self.task)

    def leave(self, instead: Done | None = None) -> None:
        """The body has let go, or cannot go on: it is unwound, and nothing that it says counts."""
        if not self.let_go and self.task is not None:
            self.let_go = True
            self.instead = instead
            self._stop(self.task)
            self._landed.set()  # its driver counts the grace from now on

    def _stop(self, task: "asyncio.Task[None]") -> None:
        self.asked_at = task.get_loop().time()
        # One that is cancelled before its first step runs nothing, not even its finally.
        task.add_done_callback(lambda _task: self._landed.set())
        task.cancel()

    @property
    def stopping(self) -> bool:
        return self.interrupted or self.let_go

    def overdue(self, grace: float) -> bool:
        return self.stopping and self.task is not None and self.task.get_loop().time() >= self.asked_at + grace
