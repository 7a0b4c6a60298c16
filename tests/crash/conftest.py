"""A place for real processes: a file, a ledger, and victims that do not outlive their test."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from clew.core.entries import DriverAttached, Entry
from clew.ports import LeaseInfo, RunInfo
from tests.crash.ledger import Ledger, Line
from tests.crash.processes import Victim, until
from tests.crash.verdict import Evidence, wrongs

E = TypeVar("E")


class Scene:
    """One file, its ledger, and the processes on it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.ledger = stack.enter_context(Ledger(folder))
        self._stack = stack
        self._evidence: Evidence | None = None

    @property
    def evidence(self) -> Evidence:
        if self._evidence is None:
            self._evidence = Evidence(self.folder / "clew.db")
            self._stack.callback(self._evidence.close)
        return self._evidence

    def victim(self, **orders: Any) -> Victim:
        """A process that has the file open."""
        victim = self._stack.enter_context(Victim(self.folder, **orders))
        victim.wait_for("ready")
        return victim

    def lines(self, word: str, run: str, step: str | None = None) -> list[Line]:
        return [x for x in self.ledger.lines() if (x.word, x.run) == (word, run) and step in (None, x.step)]

    def pids(self, word: str, run: str, step: str) -> list[int]:
        """The processes of which the ledger says this, in order."""
        return [int(line.rest[0]) for line in self.lines(word, run, step)]

    def entries(self, run: str, kind: type[E] = object) -> list[E]:  # type: ignore[assignment]
        return [entry for entry in self.evidence.entries(run) if isinstance(entry, kind)]

    def kinds(self, run: str) -> list[str]:
        return [entry.kind for entry in self.entries(run, Entry)]  # type: ignore[arg-type]

    def info(self, run: str) -> RunInfo:
        return self.evidence.info(run)

    def lease(self, run: str) -> LeaseInfo:
        return self.evidence.lease(run)

    def log(self) -> str:
        return (self.folder / "victims.log").read_text(encoding="utf-8")

    # --- conditions

    def until_done(self, run: str) -> None:
        until(lambda: self.info(run).status == "done", f"run {run} is done")

    def until_driven_by(self, victim: Victim, run: str, seconds: float = 30.0) -> DriverAttached:
        """The entry with which it took the run up."""

        def taken() -> list[DriverAttached]:
            found = self.entries(run, DriverAttached)
            return [entry for entry in found if entry.owner is not None and entry.owner.pid == victim.pid]

        until(taken, f"process {victim.pid} drives {run}", seconds)
        return taken()[-1]

    def until_has(self, run: str, *kinds: str) -> None:
        until(lambda: set(kinds) <= set(self.kinds(run)), f"run {run} has entries {kinds}")

    def check(self) -> None:
        """Every run in the file is done, and everything is as it must be after any crash."""
        for info in self.evidence.runs():
            self.until_done(info.run_id)
        assert not list(wrongs(self.evidence, self.ledger.lines()))


@pytest.fixture
def scene() -> Iterator[Scene]:
    # A folder with a short name: a socket's is limited.
    with tempfile.TemporaryDirectory(prefix="clew-") as folder, ExitStack() as stack:
        yield Scene(Path(folder), stack)


def now() -> int:
    """Microseconds since 1970, as a store on this machine counts them."""
    return time.time_ns() // 1000
