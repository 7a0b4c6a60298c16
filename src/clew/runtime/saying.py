"""What is being said right now, and how far each watcher has read in it."""

import asyncio
from collections.abc import Iterator
from itertools import zip_longest
from typing import TypeAlias

from clew.core import entries as e
from clew.core.deltas import Delta, ProgressDelta, ResetDelta, TextDelta, ThinkingDelta, ToolArgsDelta
from clew.core.entries import Entry
from clew.ports import Fragment

_CLASSES: dict[str, type[TextDelta | ThinkingDelta | ToolArgsDelta]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_args": ToolArgsDelta,
}


class Saying:
    """One attempt at a step: its fragments so far, in order, joined only for those who ask."""

    __slots__ = ("_lengths", "after_seq", "attempt", "epoch", "pieces", "step")

    def __init__(self, step: str, epoch: int, attempt: int, after_seq: int) -> None:
        self.step = step
        self.epoch = epoch
        self.attempt = attempt
        self.after_seq = after_seq  # the entry that a watcher must have seen before this
        self.pieces: list[Fragment | ProgressDelta] = []
        self._lengths: dict[int, int] = {}

    def add(self, delta: Delta) -> bool:
        """Take in a fragment that may have come before, whole or in part; whether it says anything new."""
        match delta:
            case ResetDelta():
                return False
            case ProgressDelta(offset=offset):
                fresh = offset >= self._lengths.get(-1, 0)
                if fresh:
                    self._lengths[-1] = offset + 1
                    self.pieces.append(delta)
                return fresh
            case _:
                known = self._lengths.get(delta.part, 0)
                # After a gap the rest is left to the entry.
                rest = delta.text[known - delta.offset :] if delta.offset <= known else ""
                if rest:
                    self._lengths[delta.part] = known + len(rest)
                    self.pieces.append(Fragment(delta.kind, rest, delta.part))
                return bool(rest)


Sayings: TypeAlias = dict[str, dict[str, Saying]]  # by run and step


def drop(sayings: Sayings, run: str, step: str) -> bool:
    """Forget what was said under a step; whether nothing else is being said in the run."""
    steps = sayings.get(run)
    if steps is None:
        return False
    steps.pop(step, None)
    if not steps:
        del sayings[run]
    return not steps


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

    def unread(self, sayings: dict[str, Saying], seq: int | None = None) -> Iterator[Delta]:
        """What was said since the last look, after entry `seq`. A new attempt first voids what the old one said."""
        for saying in list(sayings.values()):
            if seq is not None and saying.after_seq > seq:
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


def supersedes(entry: Entry) -> bool:
    """Whether what was said under the entry's step is now told by the entry."""
    match entry:
        case e.ModelReplied() | e.ToolReturned() | e.ToolFailed(final=True):
            return True
        case _:
            return False


def voids(entry: Entry, step: str, attempt: int) -> bool:
    """Whether what an attempt at a step said is told by this entry, or was said in vain."""
    failed = isinstance(entry, e.ModelFailed | e.ToolFailed) and entry.attempt >= attempt
    return entry.step == step and (failed or supersedes(entry))
