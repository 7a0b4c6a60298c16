"""Who hears of changes: at once of this process's own, within 100 ms of those by others."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from clew.errors import JournalCorrupt, StoreUnavailable
from clew.ports import Listener

LOOK_EVERY = 0.04  # seconds; a look costs some microseconds


class Listeners:
    """Calls listeners on the event loop. It looks for changes by others only while somebody listens."""

    def __init__(self, data_version: Callable[[], int | None]) -> None:
        self._data_version = data_version
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[int, Listener] = {}
        self._ids = count()
        self._news: deque[tuple[Listener, str | None]] = deque()
        self._seen: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, listener: Listener) -> Callable[[], None]:
        key = next(self._ids)
        self._listeners[key] = listener
        if self._timer is None:
            self._seen = self._version()
            self._timer = self._loop.call_later(LOOK_EVERY, self._look)

        def end() -> None:
            self._listeners.pop(key, None)
            if not self._listeners:
                self.close()

        return end

    def tell(self, runs: Iterable[str]) -> None:
        """This process has changed these runs, and the change is durable."""
        for run in runs:
            self._call(run)

    def _call(self, run: str | None) -> None:
        """Soon, and all that comes until then in one go: a turn of the loop for each would be felt."""
        if self._listeners and not self._news:
            self._loop.call_soon(self._spread)
        self._news.extend([(listener, run) for listener in self._listeners.values()])

    def _spread(self) -> None:
        try:
            while self._news:
                listener, run = self._news.popleft()
                listener(run)
        finally:
            # One that raised ends this turn; whoever stands behind it hears in the next.
            if self._news:
                self._loop.call_soon(self._spread)

    def _look(self) -> None:
        version = self._version()
        if version is not None and version != self._seen:
            if self._seen is not None:
                self._call(None)
            self._seen = version
        self._timer = self._loop.call_later(LOOK_EVERY, self._look)

    def _version(self) -> int | None:
        try:
            return self._data_version()
        except (StoreUnavailable, JournalCorrupt):
            return None  # whoever reads or writes is told

    def close(self) -> None:
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
