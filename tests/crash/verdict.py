"""What must be true of a file and its ledger after any number of kills. Reads only; answers with what is wrong."""

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clew import codec
from clew.core import entries as e
from clew.core.entries import Entry
from clew.core.messages import Text, ToolCall, text_of
from clew.core.rules import next_effects
from clew.core.state import Known, State, fold
from clew.errors import ClewError
from clew.ports import LeaseInfo, RunFilter, RunInfo
from clew.stores import owners
from clew.stores.clock import StoreTime
from clew.stores.sqlite import file, leases, reading
from clew.stores.sqlite.desk import Desk
from tests.crash.ledger import Line
from tests.crash.subject import ONCE, reply_to
from tests.runtime.world import check_journal, check_transcript

if TYPE_CHECKING:
    from clew.core.spec import AgentSpec

Settling = e.ModelReplied | e.ToolReturned | e.ToolFailed
ALL = 1_000_000


class Evidence:
    """A file, read past every process that has it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = file.connect(path, may_write=False)
        self._place: str | None = None

    def close(self) -> None:
        self._connection.close()

    def news(self) -> list[tuple[str, Entry]]:
        """What was committed since this was last asked."""
        found, self._place = reading.entries_since(self._connection, self._place, ALL)
        return [(run, entry) for run, entry, *_ in found]

    def runs(self) -> list[RunInfo]:
        return reading.runs(self._connection, RunFilter(limit=ALL))

    def info(self, run: str) -> RunInfo:
        return reading.info(self._connection, run)

    def entries(self, run: str) -> list[Entry]:
        return reading.read(self._connection, run)

    def lease(self, run: str) -> LeaseInfo:
        return leases.lease(Desk(self._connection, StoreTime(None), owners.Presence(self.path)), run)

    def state(self, run: str, entries: Sequence[Entry]) -> State:
        named = {x.fingerprint for x in entries if isinstance(x, e.RunStarted | e.DriverAttached) and x.fingerprint}
        specs: dict[str, AgentSpec] = {
            digest: codec.decode_spec(data) for digest, data in reading.blobs(self._connection, named).items()
        }
        return fold(run, entries, Known(specs=specs))

    def unread(self) -> int:
        """Letters that no journal has taken in yet."""
        [count] = self._connection.execute("SELECT count(*) FROM inbox").fetchone()
        return int(count)

    def damage(self) -> list[str]:
        with sqlite3.connect(self.path) as connection:
            found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check")]
        connection.close()
        return [] if found == ["ok"] else found


class Story:
    """One run: its journal beside what the ledger says of it."""

    def __init__(self, evidence: Evidence, run: str, lines: Sequence[Line]) -> None:
        self.run = run
        self.lines = lines
        self.evidence = evidence
        self.entries = evidence.entries(run)
        self.state: State | None = None
        self.settled = {x.step: x for x in self.entries if isinstance(x, Settling) and _is_final(x)}
        self.epochs: dict[int, list[int]] = defaultdict(list)
        for entry in self.entries:
            if isinstance(entry, e.DriverAttached) and entry.owner is not None:
                self.epochs[entry.owner.pid].append(entry.epoch)

    def said(self, *words: str) -> list[Line]:
        return [line for line in self.lines if line.word in words]

    def wrongs(self) -> Iterator[str]:
        checks = (self._journal, self._nothing_repeated, self._in_order, self._once, self._agreement, self._model)
        for check in checks:
            for wrong in check():
                yield f"run {self.run}: {wrong}"

    def _journal(self) -> Iterator[str]:
        try:
            self.state = self.evidence.state(self.run, self.entries)
            check_journal(self.entries)
            check_transcript(list(self.state.transcript))
        except (AssertionError, ClewError) as error:
            yield f"its journal is not as journals are: {error}"
            return
        ends = [entry for entry in self.entries if isinstance(entry, e.RunFinished)]
        if len(ends) != 1 or next_effects(self.state) or str(ends[0].outcome) != "natural":
            yield f"it did not end well, once: {[str(end.outcome) for end in ends]}"
        known = {line.rest[-1] for line in self.said("seen", "finished")}
        if known - {"natural"}:
            yield f"somebody was told of other ends: {known}"

    def _nothing_repeated(self) -> Iterator[str]:
        """Nothing was asked or begun after it was settled: by the ledger's order, and by the epoch of who did it."""
        kept: dict[str, int] = {}
        for line in self.lines:
            if line.word in ("kept", "found"):
                kept.setdefault(line.step, line.number)
            elif line.word in ("asked", "began"):
                if line.step in kept:
                    yield f"{line.step} was {line.word} at line {line.number}, settled since line {kept[line.step]}"
                yield from self._by_epoch(line)

    def _by_epoch(self, line: Line) -> Iterator[str]:
        settled, epochs = self.settled.get(line.step), self.epochs.get(int(line.rest[0]))
        if epochs is None:
            yield f"{line.step} was {line.word} by process {line.rest[0]}, which never drove the run"
        elif settled is not None and settled.epoch < min(epochs):
            yield f"{line.step} was {line.word} by epoch {min(epochs)}, settled in epoch {settled.epoch}"

    def _in_order(self) -> Iterator[str]:
        """Nobody acts on a reply or a result, or sees an end, before it is durable."""
        kept = {(line.step, line.rest[0]): line.number for line in reversed(self.said("kept"))}
        for line in self.said("asked", "began"):
            turn, pid = int(line.step.partition(".")[0]), line.rest[0]
            needed = (
                [f"{turn}.model"]
                if line.word == "began"
                else [step for step in self.settled if step is not None and step.startswith(f"{turn - 1}.tool.")]
            )
            for step in needed:
                answer = self.settled.get(step)
                before = answer is not None and answer.epoch < min(self.epochs.get(int(pid), [0]))
                if not before and kept.get((step, pid), ALL) > line.number:
                    yield f"{line.step} was {line.word} before {step} was durable"
        if self.said("seen-early"):
            yield "its end was seen before it was durable"

    def _once(self) -> Iterator[str]:
        """A once body begins at most once, in the process whose intent is committed; a doubt is told as one."""
        intents = {entry.call: entry for entry in self.entries if isinstance(entry, e.ToolStarted)}
        begun: dict[str, list[Line]] = defaultdict(list)
        for line in self.said("began"):
            if line.rest[2] in ONCE:
                begun[line.step].append(line)
        for step, lines in begun.items():
            if len(lines) != 1:
                yield f"once call {step} began {len(lines)} times"
            if step not in intents or intents[step].worker != f"worker-{lines[0].rest[0]}":
                yield f"once call {step} began without an intent of its process"
        yield from self._doubts(intents, begun)

    def _doubts(self, intents: Iterable[str], begun: Collection[str]) -> Iterator[str]:
        doubts = {entry.call for entry in self.entries if isinstance(entry, e.DoubtResolved)}
        for step in intents:
            answer = self.settled.get(step)
            unknown = isinstance(answer, e.ToolFailed) and answer.class_ == "outcome_unknown"
            if unknown != (step in doubts):
                yield f"once call {step}: doubt found {step in doubts}, answered {answer!r}"
            if not unknown and step not in begun:
                yield f"once call {step} has a result and never began"

    def _agreement(self) -> Iterator[str]:
        """What the journal holds is what happened, and what happened is in it."""
        values = {(line.step, line.rest[1]) for line in self.said("ended")}
        for step, answer in self.settled.items():
            if isinstance(answer, e.ToolReturned) and (step, answer.content) not in values:
                yield f"{step} has the result {answer.content!r}, which no body returned"
        for word in ("asked", "began"):
            for step in {line.step for line in self.said(word)} - set(self.settled):
                yield f"{step} was {word} and has no entry"
        keys = {line.step: line.rest[1] for line in self.said("began")}
        if wrong := {step: key for step, key in keys.items() if key != f"{self.run}:{step}"}:
            yield f"keys that are not those of the steps: {wrong}"
        asked = {line.step for line in self.said("asked")}
        if unasked := {x.step for x in self.entries if isinstance(x, e.ModelReplied)} - asked:
            yield f"replies that nobody gave: {unasked}"

    def _model(self) -> Iterator[str]:
        """Each committed reply is what the model says to the conversation before it."""
        transcript = [] if self.state is None else list(self.state.transcript)
        for place, message in enumerate(transcript):
            if message.role == "assistant":
                expected = reply_to(transcript[:place])
                if _said(message.parts) != _said(expected):
                    yield f"message {message.id} is {text_of(message.parts)!r}, not {text_of(expected)!r}"


def _is_final(entry: Settling) -> bool:
    return not isinstance(entry, e.ToolFailed) or entry.final


def _said(parts: Iterable[object]) -> list[str]:
    said = [part.text for part in parts if isinstance(part, Text)]
    return said + [f"{part.tool}{part.args_text}" for part in parts if isinstance(part, ToolCall)]


def wrongs(evidence: Evidence, lines: Sequence[Line]) -> Iterator[str]:
    """Everything that is wrong with a file in which nothing goes on any more."""
    yield from evidence.damage()
    by_run: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_run[line.run].append(line)
    there = {info.run_id for info in evidence.runs()}
    for run in {line.run for line in lines if line.word == "accepted"} - there:
        yield f"run {run} was accepted and is gone"
    for run in sorted(there):
        yield from Story(evidence, run, by_run[run]).wrongs()
