"""What watchers get: committed entries from the store, and the fragments of what is being said right now.

A watcher pulls at its own pace from what stands here, so a slow, broken or absent one holds up nobody.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import zip_longest

from clew.core import entries as e
from clew.core.deltas import Delta, ProgressDelta, ResetDelta, TextDelta, ThinkingDelta, ToolArgsDelta
from clew.core.entries import Entry
from clew.core.state import State
from clew.core.values import Value
from clew.ports import Fragment, Store

_CLASSES: dict[str, type[TextDelta | ThinkingDelta | ToolArgsDelta]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_args": ToolArgsDelta,
}


class Saying:
    """One attempt at a step: its fragments so far, in order, joined only for those who ask."""

    __slots__ = ("after_seq", "attempt", "epoch", "pieces", "step")

    def __init__(self, step: str, epoch: int, attempt: int, after_seq: int) -> None:
        self.step = step
        self.epoch = epoch
        self.attempt = attempt
        self.after_seq = after_seq  # the entry that a watcher must have seen before this
        self.pieces: list[Fragment | ProgressDelta] = []


class Watcher:
    """One subscription: a wake-up call, and how far it has read in each saying."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._read: dict[str, tuple[Saying, int, dict[int, int]]] = {}

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()

    def forget(self, step: str) -> None:
        self._read.pop(step, None)

    def unread(self, sayings: dict[str, Saying], seq: int) -> Iterator[Delta]:
        """What was said since the last look. A new attempt first voids what the old one said."""
        for saying in list(sayings.values()):
            if saying.after_seq > seq:
                continue
            known, place, offsets = self._read.get(saying.step, (saying, 0, {}))
            if known is not saying:
                yield ResetDelta(step=saying.step, epoch=saying.epoch, attempt=saying.attempt)
                place, offsets = 0, {}
            fresh = saying.pieces[place:]
            self._read[saying.step] = (saying, place + len(fresh), offsets)
            yield from _joined(saying, fresh, offsets)


def _joined(saying: Saying, pieces: list[Fragment | ProgressDelta], offsets: dict[int, int]) -> Iterator[Delta]:
    """Neighbouring fragments of one part as one delta: a late or slow watcher gets larger pieces, not more of them."""
    texts: list[str] = []
    for here, after in zip_longest(pieces, pieces[1:]):
        if isinstance(here, ProgressDelta):
            yield here
            continue
        texts.append(here.text)
        if isinstance(after, Fragment) and after.part == here.part and after.kind == here.kind:
            continue
        text = "".join(texts)
        texts.clear()
        offset = offsets.get(here.part, 0)
        offsets[here.part] = offset + len(text)
        yield _CLASSES[here.kind](
            step=saying.step, epoch=saying.epoch, attempt=saying.attempt, part=here.part, offset=offset, text=text
        )


class Feed:
    """The watchers of one process, and what its drivers are saying."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watchers: dict[str, set[Watcher]] = {}
        self._everything: set[Watcher] = set()
        self._waiting: dict[str, set[asyncio.Future[State | None]]] = {}
        self._sayings: dict[str, dict[str, Saying]] = {}
        self._hush: Callable[[], None] | None = None
        self._closed = False

    def open(self) -> None:
        self._hush = self._store.listen(self._changed)

    def close(self) -> None:
        self._closed = True
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

    def say(self, run: str, saying: Saying, piece: Fragment | ProgressDelta) -> None:
        saying.pieces.append(piece)
        for watcher in self._watchers.get(run, ()):
            watcher.wake()

    def progress(self, run: str, saying: Saying, value: Value) -> None:
        delta = ProgressDelta(
            step=saying.step, epoch=saying.epoch, attempt=saying.attempt, offset=len(saying.pieces), value=value
        )
        self.say(run, saying, delta)

    def end(self, run: str, step: str) -> None:
        """The step's entry is committed, or nobody will say more: the fragments are superseded."""
        sayings = self._sayings.get(run)
        if sayings is None:
            return
        sayings.pop(step, None)
        if not sayings:
            del self._sayings[run]

    def settled(self, run: str, state: State | None) -> None:
        """The run has finished or waits; `None`: somebody else may know, look at the store."""
        for future in self._waiting.pop(run, ()):
            if not future.done():
                future.set_result(state)
        for watcher in self._watchers.get(run, ()):
            watcher.wake()

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
        watcher = Watcher()
        group = self._watchers.setdefault(run, set())
        group.add(watcher)
        seq = after
        try:
            while True:
                for entry in await self._store.read(run, after=seq):
                    seq = entry.seq
                    if entry.step is not None and not isinstance(entry, e.ToolStarted | e.ModelFailed):
                        watcher.forget(entry.step)
                    yield entry
                    if await stop(entry):
                        return
                for delta in watcher.unread(self._sayings.get(run, {}), seq):
                    yield delta
                if await stop(None):
                    return
                await watcher.wait()
        finally:
            group.discard(watcher)
            if not group and self._watchers.get(run) is group:
                del self._watchers[run]

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
