"""A run as it happens: words as they stream, and a line for everything else."""

import sys
from collections.abc import AsyncIterator

from clew.cli.output import harmless, item_json, print_json
from clew.cli.timeline import Narrator, print_line
from clew.core import entries as e
from clew.core.deltas import Delta, ProgressDelta, ResetDelta, TextDelta, ThinkingDelta, ToolArgsDelta


class Show:
    """Words go to the output; lines go there too, or beside it to the error stream."""

    def __init__(self, *, lines_to_err: bool) -> None:
        self._narrator = Narrator()
        self._err = lines_to_err
        self._said: dict[str, int] = {}
        self._open = False  # a line of words that has no end yet

    async def follow(self, items: AsyncIterator[e.Entry | Delta]) -> None:
        async for item in items:
            self.show(item)
        self.end_line()

    def show(self, item: e.Entry | Delta) -> None:
        match item:
            case TextDelta(step=step, text=text):
                self._words(text)
                self._said[step] = self._said.get(step, 0) + len(text)
            case ResetDelta(step=step):
                if self._said.pop(step, 0):
                    self.end_line()
            case ThinkingDelta() | ToolArgsDelta() | ProgressDelta():
                pass
            case e.ModelReplied():
                self._replied(item)
            case _:
                self._lines(item)

    def _replied(self, entry: e.ModelReplied) -> None:
        """What was not heard of it yet; the rest stands there already."""
        said = self._said.pop(entry.step or "", 0)
        self._words(entry.text[said:])
        self._lines(entry)

    def _lines(self, entry: e.Entry) -> None:
        for line in self._narrator.tell(entry):
            if line.mark != "»":
                self.end_line()
                print_line(line, self._narrator.begun, err=self._err)

    def _words(self, text: str) -> None:
        if text:
            sys.stdout.write(harmless(text, lines=True))
            sys.stdout.flush()
            self._open = not text.endswith("\n")

    def end_line(self) -> None:
        if self._open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open = False


async def print_items(items: AsyncIterator[e.Entry | Delta]) -> None:
    async for item in items:
        print_json(item_json(item))
