"""What watchers get: committed entries from the store, and the fragments of what is being said right now.

A watcher pulls at its own pace from what stands here, so a slow, broken or absent one holds up nobody.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeAlias

from clew.core.deltas import Delta, ProgressDelta
from clew.core.entries import Entry
from clew.core.state import State
from clew.core.values import Value
from clew.ports import Fragment, Store
from clew.runtime.relaying import Listener, Speaker
from clew.runtime.saying import Saying, Sayings, Watcher, drop, supersedes

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


class Feed:
    """The watchers of one process, and what its drivers are saying."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watchers: dict[str, set[Watcher]] = {}
        self._everything: set[Watcher] = set()
        self._waiting: dict[str, set[asyncio.Future[State | None]]] = {}
        self._sayings: Sayings = {}
        self._hush: Callable[[], None] | None = None
        self._closed = False
        self._speaker: Speaker | None = None
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._drives: Callable[[str], bool] = lambda _: False
        self._spawn: Spawn | None = None

    def open(self, drives: Callable[[str], bool], spawn: Spawn) -> None:
        """`drives` tells whether this process drives a run: what it says is not listened for elsewhere."""
        self._drives = drives
        self._spawn = spawn
        self._hush = self._store.listen(self._changed)
        if self._store.relay is not None:
            self._speaker = Speaker(self._store.relay, self._sayings)

    def close(self) -> None:
        self._closed = True
        for listening in self._listening.values():
            listening.cancel()
        if self._hush is not None:
            self._hush()
        for watcher in [w for group in self._watchers.values() for w in group] + list(self._everything):
            watcher.wake()
        for run in list(self._waiting):
            self.settled(run, None)

    # --- from drivers

    def begin(self, run: str, step: str, epoch: int, attempt: int, after_seq: int) -> Saying:
        saying = Saying(step, epoch, attempt, after_seq)
        self._sayings.setdefault(run, {})[step] = saying
        return saying

    def saying(self, run: str, step: str) -> Saying | None:
        """What is being said under a step."""
        return self._sayings.get(run, {}).get(step)

    def say(self, run: str, saying: Saying, piece: Fragment | ProgressDelta) -> None:
        saying.pieces.append(piece)
        self._wake(run)
        if self._speaker is not None:
            self._speaker.said(run)

    def progress(self, run: str, saying: Saying, value: Value) -> None:
        delta = ProgressDelta(
            step=saying.step, epoch=saying.epoch, attempt=saying.attempt, offset=len(saying.pieces), value=value
        )
        self.say(run, saying, delta)

    def end(self, run: str, step: str) -> None:
        """The step's entry is committed, or nobody will say more: the fragments are superseded."""
        if drop(self._sayings, run, step) and self._speaker is not None:
            self._speaker.over(run)

    def _wake(self, run: str) -> None:
        for watcher in self._watchers.get(run, ()):
            watcher.wake()

    def settled(self, run: str, state: State | None) -> None:
        """The run has finished or waits; `None`: somebody else may know, look at the store."""
        for future in self._waiting.pop(run, ()):
            if not future.done():
                future.set_result(state)
        self._wake(run)

    # --- from the store

    def _changed(self, run: str | None) -> None:
        groups = list(self._watchers.values()) if run is None else [self._watchers.get(run, set())]
        for watcher in self._everything.union(*groups):
            watcher.wake()
        if run is None:
            for name in list(self._waiting):
                self.settled(name, None)

    # --- to watchers

    def expect(self, run: str) -> "asyncio.Future[State | None]":
        """Answered when the run may have settled, with the state if this process drove it there."""
        future: asyncio.Future[State | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run, set()).add(future)
        return future

    def forget(self, run: str, future: "asyncio.Future[State | None]") -> None:
        group = self._waiting.get(run)
        if group is not None:
            group.discard(future)
            if not group:
                del self._waiting[run]

    async def watch(
        self, run: str, after: int, stop: Callable[[Entry | None], Awaitable[bool]]
    ) -> AsyncIterator[Entry | Delta]:
        """History, then what comes, without gap or repeat. `stop` is asked after each entry and before each wait."""
        seq = after
        last = False
        with self._watching(run) as watcher:
            while True:
                for entry in await self._store.read(run, after=seq):
                    seq = entry.seq
                    if entry.step is not None and supersedes(entry):
                        watcher.forget(entry.step)
                        self.end(run, entry.step)
                    yield entry
                    if await stop(entry):
                        return
                if last:
                    return
                for delta in watcher.unread(self._sayings.get(run, {}), seq):
                    yield delta
                # What came between the look and the answer is shown yet.
                last = await stop(None)
                if not last:
                    await watcher.wait()

    @contextmanager
    def _watching(self, run: str) -> Generator[Watcher]:
        """A watcher among those of the run, and an ear on other processes while there is one."""
        watcher = Watcher()
        group = self._watchers.setdefault(run, set())
        group.add(watcher)
        self._listen(run)
        try:
            yield watcher
        finally:
            group.discard(watcher)
            if not group and self._watchers.get(run) is group:
                del self._watchers[run]
                self._listen_no_more(run)

    def _listen(self, run: str) -> None:
        """Hear what is said of it in other processes, while somebody watches it here."""
        relay = self._store.relay
        if relay is not None and self._spawn is not None and run not in self._listening:
            listener = Listener(self._store, relay, run, self._sayings)
            listening = listener.listen(lambda: self._drives(run), lambda: self._wake(run))
            self._listening[run] = self._spawn(listening, f"listen {run}")

    def _listen_no_more(self, run: str) -> None:
        listening = self._listening.pop(run, None)
        if listening is not None:
            listening.cancel()

    async def watch_all(self, cursor: str | None) -> AsyncIterator[tuple[str, str, Entry]]:
        """(cursor behind it, run, entry) of all runs in commit order."""
        watcher = Watcher()
        self._everything.add(watcher)
        try:
            while not self._closed:
                before = cursor
                found, cursor = await self._store.entries_since(cursor)
                for run, entry, behind in found:
                    yield behind, run, entry
                if cursor == before:
                    await watcher.wait()
        finally:
            self._everything.discard(watcher)
