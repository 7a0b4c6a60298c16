"""Who hears of changes: at once of this process's own, within 100 ms of those by others."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import count

from clew.errors import StoreUnavailable
from clew.ports import Listener

LOOK_EVERY = 0.04  # seconds; a look costs some microseconds


class Listeners:
    """Calls listeners on the event loop. It looks for changes by others only while somebody listens."""

    def __init__(self, data_version: Callable[[], int | None]) -> None:
        self._data_version = data_version
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[int, Listener] = {}
        self._ids = count()
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
        if self._listeners:
            for run in runs:
                self._call(run)

    def _call(self, run: str | None) -> None:
        for listener in list(self._listeners.values()):
            self._loop.call_soon(listener, run)

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
        except StoreUnavailable:
            return None  # whoever reads or writes is told

    def close(self) -> None:
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
