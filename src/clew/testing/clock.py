"""Time that tests move: what waits for a time is woken when the clock gets there, in order, without waiting for it."""

import asyncio
import heapq
from collections.abc import Callable
from datetime import timedelta

from clew.errors import UsageError

SECOND = 1_000_000
START = 1_767_225_600 * SECOND  # 2026-01-01 00:00 UTC
TURNS_OF_THE_LOOP = 20


class VirtualClock:
    """The time of a store, in tests only: it stands still until `advance` moves it. Both its times move together."""

    def __init__(self, start: int = START) -> None:
        self._now = start
        self._began = start
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._asleep = 0
        self._listeners: dict[object, Callable[[], None]] = {}

    def now(self) -> int:
        return self._now

    def boottime(self) -> int:
        return self._now - self._began

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Hear of every move of the clock; the answer ends it."""
        key = object()
        self._listeners[key] = callback

        def unlisten() -> None:
            self._listeners.pop(key, None)

        return unlisten

    async def wait_until(self, due: int) -> None:
        """Return once the clock has reached `due`."""
        if due <= self._now:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asleep += 1
        heapq.heappush(self._sleepers, (due, self._asleep, woken))
        await woken

    async def advance(self, by: float | timedelta) -> None:
        """Move on, stopping at each time that somebody waits for, so that what follows from it comes in order."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if not seconds >= 0:
            raise UsageError(f"a clock goes forward: advance({by!r})")
        target = self._now + round(seconds * SECOND)
        while self._sleepers and self._sleepers[0][0] <= target:
            await self._move(max(self._now, self._sleepers[0][0]))
        await self._move(target)

    async def _move(self, to: int) -> None:
        self._now = to
        while self._sleepers and self._sleepers[0][0] <= to:
            _wake(heapq.heappop(self._sleepers)[2])
        for callback in tuple(self._listeners.values()):
            callback()
        for _ in range(TURNS_OF_THE_LOOP):
            await asyncio.sleep(0)


def _wake(sleeper: "asyncio.Future[None]") -> None:
    loop = sleeper.get_loop()
    if not loop.is_closed():
        # The sleeper may live on another thread's loop.
        loop.call_soon_threadsafe(lambda: None if sleeper.done() else sleeper.set_result(None))
