"""The one place that calls user code: tools, instructions, models, deps. Whatever it raises comes back as a value."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent import futures
from typing import Generic, TypeVar, cast

from msgspec import Struct

T = TypeVar("T")
THREADS = 40
IDLE_SECONDS = 30.0


class NeverBegan(Exception):
    """A sync function was cancelled or ran out of time before a thread was free to begin it."""


class Returned(Struct, Generic[T], frozen=True, gc=False):
    value: T


class Raised(Struct, frozen=True):
    error: BaseException


async def attempt(work: Awaitable[T]) -> Returned[T] | Raised:
    """Await user code. SystemExit, KeyboardInterrupt and cancellations of its own making are answers like any other."""
    try:
        return Returned(await work)
    except BaseException as error:  # noqa: BLE001
        return Raised(error)


def attempt_sync(function: Callable[..., T], /, *args: object, **kwargs: object) -> Returned[T] | Raised:
    """Call user code that cannot wait: a validator, a plain function in its thread."""

    async def body() -> T:
        return function(*args, **kwargs)

    # A coroutine that never awaits runs to its end in one step, so that `attempt` stays the only broad except.
    stepping = attempt(body())
    try:
        stepping.send(None)
    except StopIteration as stop:
        outcome: Returned[T] | Raised = stop.value
        return outcome
    raise AssertionError("a function that cannot wait has waited")


async def call(function: Callable[..., T | Awaitable[T]], /, *args: object, **kwargs: object) -> T:
    """Call a plain or async function of the user's on the event loop."""
    result = function(*args, **kwargs)
    return await cast("Awaitable[T]", result) if isinstance(result, Awaitable) else result


class Threads:
    """Daemon threads for sync tools: capped, started on demand, and never in the way of the process's exit."""

    def __init__(self, limit: int = THREADS) -> None:
        self._limit = limit
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._alive = 0
        self._unclaimed = 0  # idle threads minus jobs that wait for one

    async def run(
        self,
        function: Callable[..., T],
        kwargs: dict[str, object],
        late: "Callable[[Returned[T] | Raised], None]" = lambda _outcome: None,
    ) -> T:
        """What the function returns or raises. `late` hears of it if by then nobody waits here any more."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Returned[T] | Raised] = loop.create_future()
        context = contextvars.copy_context()

        unclaimed = [True]  # whoever takes this out decides: the thread that it begins, the waiter that it never will

        def job() -> None:
            if not _taken(unclaimed):
                return
            outcome = _outcome(context, function, kwargs)
            try:
                loop.call_soon_threadsafe(_deliver, done, outcome, late)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        self._submit(job)
        try:
            outcome = await done
        except asyncio.CancelledError:
            if _taken(unclaimed):
                raise NeverBegan(f"not started: {self._limit} other sync tools of this process had not ended") from None
            raise
        if isinstance(outcome, Raised):
            # Raised here, not thrown into the future's waiter: GeneratorExit would close every frame above.
            raise outcome.error
        return outcome.value

    def within(self, function: Callable[[], T], seconds: float) -> "futures.Future[Returned[T] | Raised]":
        """What a function that should be quick came to, waited for so long and no longer."""
        done: futures.Future[Returned[T] | Raised] = futures.Future()
        context = contextvars.copy_context()

        def job() -> None:
            # Who is cancelled while it waits does not want it any more; from here on it cannot be.
            if done.set_running_or_notify_cancel():
                done.set_result(_outcome(context, function, {}))

        self._submit(job)
        futures.wait([done], timeout=seconds)
        return done

    def _submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._unclaimed -= 1
            start = self._unclaimed < 0 and self._alive < self._limit
            if start:
                self._alive += 1
                self._unclaimed += 1
        self._jobs.put(job)
        if start:
            threading.Thread(target=self._serve, name="clew-tool", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._unclaimed <= 0:
                        continue
                    self._alive -= 1
                    self._unclaimed -= 1
                    return
            job()
            with self._lock:
                self._unclaimed += 1


def _taken(unclaimed: list[bool]) -> bool:
    """Take what is there, which only one of several threads can."""
    try:
        return unclaimed.pop()
    except IndexError:
        return False


def _outcome(
    context: contextvars.Context, function: Callable[..., T], kwargs: dict[str, object]
) -> Returned[T] | Raised:
    return context.run(attempt_sync, function, **kwargs)


def _deliver(
    done: "asyncio.Future[Returned[T] | Raised]",
    outcome: Returned[T] | Raised,
    late: "Callable[[Returned[T] | Raised], None]",
) -> None:
    if done.done():
        late(outcome)
    else:
        done.set_result(outcome)
