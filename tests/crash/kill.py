"""Kill processes that drive runs, at drawn instants, and see that nothing is lost and nothing happens twice.

`python -m tests.crash.kill [--kills 1000] [--seed N]`. Two processes share a file; each is killed and started again,
and takes over what the other one left. Every few dozen kills the file is brought to rest and held against the ledger.
"""

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from clew.core import entries as e
from tests.crash.ledger import Ledger
from tests.crash.phases import PHASES, TITLES, How, Trigger
from tests.crash.processes import Silence, Victim
from tests.crash.subject import TOOLS
from tests.crash.verdict import Evidence, wrongs

LANES = 2
KILLS_A_FILE = 50
RUNS_A_LIFE = 2
SHORT_LEASE = 3.0
DEFAULT_LEASE = 30.0
DEADLINE = 60.0  # seconds that a life may take
REST = 20.0  # seconds in which a file comes to rest: below the default lease that the last ones to die held
ENOUGH = {"commit": 3}  # drifting away from COMMIT is easy: it is drawn more often
HOWS: tuple[How, ...] = ("die", "linger", "drift")
SHOWN = 40
DRIFT = 0.0006  # seconds, about one commit


@dataclass
class Tally:
    """What a session of kills came to."""

    fell: Counter[str] = field(default_factory=Counter[str])
    elsewhere: int = 0
    hows: Counter[str] = field(default_factory=Counter[str])
    default_lease: int = 0
    runs: int = 0
    effects: int = 0
    doubts: int = 0
    quarantined: int = 0
    wrongs: list[str] = field(default_factory=list[str])

    @property
    def kills(self) -> int:
        return sum(self.fell.values()) + self.elsewhere


class Campaign:
    """One file, one ledger, and the processes that die over them."""

    def __init__(self, folder: Path, name: str, dice: random.Random, tally: Tally) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.name = name
        self.tally = tally
        self._dice = dice
        self._lock = threading.Lock()
        self._evidence: Evidence | None = None
        self._runs = 0
        self._deck: list[str] = []

    def run(self, kills: int, told: Callable[[], None]) -> None:
        with Ledger(self.folder) as ledger:
            lives = [kills // LANES + (lane < kills % LANES) for lane in range(LANES)]
            with ThreadPoolExecutor(LANES) as pool:
                for lane in [pool.submit(self._lane, ledger, count, told) for count in lives]:
                    lane.result()
            self._rest()
            evidence = self._seen()
            lines = ledger.lines()
            self.tally.wrongs += [f"{self.name}: {wrong}" for wrong in wrongs(evidence, lines)]
            words = Counter(line.word for line in lines)
            self.tally.runs += len(evidence.runs())
            self.tally.effects += words["asked"] + words["began"] + words["ended"]
            self.tally.quarantined += words["released"]
            self.tally.doubts += sum(isinstance(entry, e.DoubtResolved) for _, entry in Evidence(evidence.path).news())
            evidence.close()

    # --- lives

    def _lane(self, ledger: Ledger, kills: int, told: Callable[[], None]) -> None:
        for number in range(kills):
            self._life(ledger, last=number == kills - 1)
            told()

    def _life(self, ledger: Ledger, *, last: bool) -> None:
        with self._lock:
            trigger, runs, pause = self._drawn()
        lease = DEFAULT_LEASE if last else SHORT_LEASE
        with Victim(self.folder, runs=runs, triggers=(trigger,), lease=lease) as victim:
            try:
                # It says nothing more if it kills itself; it is idle if the instant that was meant never came.
                said = victim.wait_for("at", "idle", seconds=DEADLINE)
            except Silence:
                if victim.ended(1) != -signal.SIGKILL:
                    raise
                said = ""
            if said:
                time.sleep(pause)
            code = victim.kill()
        if code != -signal.SIGKILL:
            raise AssertionError(f"a victim ended with {code}: {victim.said}\n{victim.tail()}")
        with self._lock:
            self._count(trigger, victim.fell_in(), default_lease=last)
            self._find(ledger)
        victim.board.unlink()

    def _drawn(self) -> tuple[Trigger, tuple[tuple[str, str], ...], float]:
        dice = self._dice
        if not self._deck:
            self._deck = [phase for phase in PHASES for _ in range(ENOUGH.get(phase, 2))]
            dice.shuffle(self._deck)
        phase = self._deck.pop()
        how = dice.choice(HOWS) if phase != "commit" else dice.choice(("die", "die", "linger", "drift", "drift"))
        nth = dice.randint(1, 24 if phase == "commit" else 8 if phase == "stream" else 3)
        if phase == "commit" and how == "drift":
            nth |= 1  # before one
        if phase == "idle":
            nth = 1
        runs: list[tuple[str, str]] = []
        for _ in range(RUNS_A_LIFE):
            self._runs += 1
            turns = ["+".join(dice.choices(TOOLS, k=dice.randint(1, 3))) for _ in range(dice.randint(1, 3))]
            runs.append((f"{self.name}-{self._runs}", ";".join(turns)))
        trigger = Trigger(phase=phase, how=how, nth=nth, seconds=dice.random() * DRIFT)
        return trigger, tuple(runs), dice.random() * 0.003

    def _count(self, trigger: Trigger, phases: set[str], *, default_lease: bool) -> None:
        """Each kill counts for one phase: the one that was meant, or the one it fell into instead."""
        if trigger.phase in phases:
            self.tally.fell[trigger.phase] += 1
        elif phases:
            self.tally.fell[min(phases, key=lambda phase: self.tally.fell[phase])] += 1
        else:
            self.tally.elsewhere += 1
        self.tally.hows[trigger.how] += 1
        self.tally.default_lease += default_lease

    def _find(self, ledger: Ledger) -> None:
        """What is durable now, whether its writer lived to know it or not: from here on it may not happen again."""
        for run, entry in self._seen().news():
            match entry:
                case e.ModelReplied() | e.ToolReturned() | e.ToolFailed(final=True):
                    ledger.write("found", run, entry.step)
                case _:
                    pass

    def _seen(self) -> Evidence:
        if self._evidence is None:
            self._evidence = Evidence(self.folder / "clew.db")
        return self._evidence

    def _rest(self) -> None:
        """A process that lives until every run is done."""
        with Victim(self.folder, settle=True) as calm:
            try:
                calm.wait_for("left", seconds=REST)
                code = calm.ended()
            except Silence as silence:
                left = [info.run_id for info in self._seen().runs() if info.status != "done"]
                leases = [self._seen().lease(run) for run in left]
                raise AssertionError(f"{self.name} does not come to rest, {len(left)} runs left: {leases}") from silence
        if code != 0:
            raise AssertionError(f"the last process ended with {code}\n{calm.tail()}")


def session(kills: int, seed: int, told: Callable[[Tally], None] = lambda _: None) -> Tally:
    """So many kills; what is wrong is in the answer."""
    tally = Tally()
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="clew-kill-") as folder:
        for number, start in enumerate(range(0, kills, KILLS_A_FILE)):
            campaign = Campaign(Path(folder), f"f{number}", dice, tally)
            campaign.run(min(KILLS_A_FILE, kills - start), lambda: told(tally))
            if tally.wrongs:
                break
    return tally


def table(tally: Tally) -> str:
    rows = [f"  {TITLES[phase]:26} {tally.fell[phase]:5}" for phase in PHASES]
    rows.append(f"  {'elsewhere':26} {tally.elsewhere:5}")
    hows = ", ".join(f"{count} {how}" for how, count in sorted(tally.hows.items()))
    rows.append(f"{tally.kills} kills ({hows}); {tally.default_lease} under the default lease")
    rows.append(f"{tally.runs} runs, {tally.effects} effects in the ledger, {tally.doubts} calls in doubt")
    rows.append(f"{tally.quarantined} quarantined for five deaths in one place, and released")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="draw the same instants again (timing is the machine's)")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"{options.kills} kills, seed {seed}", flush=True)
    begun = time.monotonic()

    def told(tally: Tally) -> None:
        if tally.kills % KILLS_A_FILE == 0:
            print(f"  {tally.kills:5} kills, {time.monotonic() - begun:4.0f} s", flush=True)

    tally = session(options.kills, seed, told)
    print(table(tally))
    print(f"{time.monotonic() - begun:.0f} s")
    least = 50 * options.kills // 1000
    few = [TITLES[phase] for phase in PHASES if tally.fell[phase] < least]
    for wrong in tally.wrongs[:SHOWN]:
        print(f"WRONG {wrong}")
    for phase in few:
        print(f"WRONG fewer than {least} kills fell {phase}")
    if len(tally.wrongs) > SHOWN:
        print(f"and {len(tally.wrongs) - SHOWN} more")
    if not tally.wrongs and not few:
        print("nothing lost, nothing twice")
    return 1 if tally.wrongs or few else 0


if __name__ == "__main__":
    sys.exit(main())
