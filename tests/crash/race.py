"""Messages and cancels from another process, posted at every instant around the end and the release of a run.

`python -m tests.crash.race [--trials 10000] [--seed N]`. Each one that was accepted must be in the journal, each one
that was refused must have been told so, and nothing else may have happened.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from clew.core import entries as e
from clew.core.entries import Entry
from clew.stores.sqlite import file
from tests.crash.ledger import REPOSITORY
from tests.crash.processes import Silence, until
from tests.crash.racers import Shot
from tests.crash.verdict import Evidence
from tests.runtime.world import check_journal

TRIALS_A_FILE = 1000
DEADLINE = 120.0  # seconds for all the shots of a file
REST = 20.0
CLOSE = 1000  # microseconds
SHOWN = 40


@dataclass
class Tally:
    shots: Counter[str] = field(default_factory=Counter[str])
    close: int = 0
    by_poster: int = 0
    wrongs: list[str] = field(default_factory=list[str])

    @property
    def trials(self) -> int:
        return sum(self.shots.values())


def heat(folder: Path, trials: int, seed: int, tally: Tally) -> None:
    """So many trials on one file."""
    path = folder / "clew.db"
    # Both find the file made.
    file.prepare(path)
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "tests.crash.racers"]
    rest = [str(trials), str(seed)]
    with (folder / "log").open("wb") as log:
        poster = subprocess.Popen(
            [*command, "poster", str(path), str(reading), *rest],
            cwd=REPOSITORY, pass_fds=(reading,), stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        os.close(reading)
        runner = subprocess.Popen(
            [*command, "runner", str(path), str(writing), *rest],
            cwd=REPOSITORY, pass_fds=(writing,), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        os.close(writing)
        try:
            said = poster.communicate(timeout=DEADLINE)[0].splitlines()
            shots = [msgspec.json.decode(line, type=Shot) for line in said if line != b"posted"]
            judge(path, trials, shots, tally)
            runner.communicate(b"", timeout=DEADLINE)
        finally:
            for process in (poster, runner):
                process.kill()
                process.communicate()
    if (poster.returncode, runner.returncode) != (0, 0):
        tally.wrongs.append(f"poster {poster.returncode}, runner {runner.returncode}: {(folder / 'log').read_text()}")


def judge(path: Path, trials: int, shots: Sequence[Shot], tally: Tally) -> None:
    evidence = Evidence(path)
    try:
        if len(shots) != trials:
            tally.wrongs.append(f"{trials} runs were started, {len(shots)} were shot at")
        try:
            until(lambda: at_rest(evidence), "every letter is taken in, and no run is at work", REST)
        except Silence as silence:
            tally.wrongs.append(f"{silence}: {evidence.unread()} letters are unread")
        journals: dict[str, list[Entry]] = defaultdict(list)
        for run, entry in evidence.news():
            journals[run].append(entry)
        for shot in shots:
            entries = journals[shot.run]
            tally.shots[f"{shot.run.partition('-')[0]}: {shot.what} {shot.answer}"] += 1
            end = next((entry.at for entry in entries if isinstance(entry, e.RunFinished)), None)
            attached = {x.owner.pid for x in entries if isinstance(x, e.DriverAttached) and x.owner is not None}
            tally.by_poster += len(attached) > 1
            tally.close += end is not None and shot.before - CLOSE < end < shot.after + CLOSE
            tally.wrongs += [f"{shot}: {wrong}" for wrong in wrongs(shot, entries)]
        tally.wrongs += evidence.damage()
    finally:
        evidence.close()


def at_rest(evidence: Evidence) -> bool:
    return not evidence.unread() and all(info.status in ("done", "waiting") for info in evidence.runs())


def wrongs(shot: Shot, entries: Sequence[Entry]) -> Iterator[str]:
    """What is wrong with a run, for what its poster was told."""
    try:
        check_journal(entries)
    except AssertionError as error:
        yield str(error)
    messages = sum(isinstance(entry, e.MessagesReceived) for entry in entries)
    cancels = sum(isinstance(entry, e.CancelRequested) for entry in entries)
    accepted = shot.answer == "accepted"
    if messages != (accepted and shot.what == "message"):
        yield f"it has {messages} messages"
    if cancels != (accepted and shot.what == "cancel"):
        yield f"it has {cancels} cancels"
    ends = [str(entry.outcome) for entry in entries if isinstance(entry, e.RunFinished)]
    parks = shot.run.startswith("parks")
    cancelled = accepted and shot.what == "cancel"
    expected = ["cancelled"] if cancelled else [] if parks else ["natural"]
    if [end.partition(":")[0] for end in ends] != expected:
        yield f"it ended {ends}, and not {expected}"
    if parks and not accepted:
        yield "it was refused although the run had not ended"


def race(trials: int, seed: int, told: Callable[[Tally], None] = lambda _: None) -> Tally:
    tally = Tally()
    for number, start in enumerate(range(0, trials, TRIALS_A_FILE)):
        with tempfile.TemporaryDirectory(prefix="clew-race-") as folder:
            heat(Path(folder), min(TRIALS_A_FILE, trials - start), seed + number, tally)
        told(tally)
        if tally.wrongs:
            break
    return tally


def table(tally: Tally) -> str:
    rows = [f"  {what:28} {count:6}" for what, count in sorted(tally.shots.items())]
    rows.append(f"{tally.trials} trials; {tally.close} shots within {CLOSE / 1000:g} ms of an end")
    rows.append(f"{tally.by_poster} runs that nobody drove were ended by whoever cancelled them")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.race", description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"{options.trials} trials, seed {seed}", flush=True)
    begun = time.monotonic()

    def told(tally: Tally) -> None:
        print(f"  {tally.trials:6} trials, {time.monotonic() - begun:4.0f} s", flush=True)

    tally = race(options.trials, seed, told)
    print(table(tally))
    print(f"{time.monotonic() - begun:.0f} s")
    for wrong in tally.wrongs[:SHOWN]:
        print(f"WRONG {wrong}")
    if not tally.wrongs:
        print("all that was accepted is in the journal, all that was refused was told so")
    return 1 if tally.wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
