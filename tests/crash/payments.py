"""Payments by once tools in processes that are killed, frozen and thawed, and the bank's book beside the journals.

`python -m tests.crash.payments [--payments 2000] [--seed N]`. Three processes drive runs on one file; a fourth, which
nobody touches, cancels some of them and decides what the bank says nothing about. The bank is a fifth.
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

from clew.stores.sqlite import file
from tests.crash.bank import Bank
from tests.crash.books import Fate, Tally, check
from tests.crash.payers import ASYNC_MODES, LEASE, THREAD_MODES
from tests.crash.processes import Child
from tests.crash.verdict import Evidence

LANES = 3
PAYMENTS_A_RUN = 9
A_TURN = 3
CALM = 6  # runs that are left when nobody is hurt any more
CANCELLED = 0.2  # of the runs
FREEZES = 0.5  # of what is done to a process; the rest are kills
LIFE = (0.2, 2.0)  # seconds between one harm and the next
NODS = (0.1, 1.0)  # seconds of a freeze that costs no lease
SLEEPS = (LEASE + 1.2, LEASE + 3.0)  # seconds of one after which somebody else has asked what happened
REST = 120.0
LEAST = 5  # of each finding, in a hundred payments
SHOWN = 40


@dataclass
class Harm:
    """What was done, to whom."""

    fates: dict[int, Fate] = field(default_factory=dict[int, Fate])
    done: Counter[str] = field(default_factory=Counter[str])
    cancelled: set[str] = field(default_factory=set[str])


class Campaign:
    """One file, one bank, and the processes that pay."""

    def __init__(self, folder: Path, payments: int, seed: int) -> None:
        self.folder = folder
        self.harm = Harm()
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._over = threading.Event()  # nobody is hurt any more
        self._ended = threading.Event()  # nobody is needed any more
        self._plans: dict[str, str] = {}
        self._doomed: set[str] = set()
        self._draw(payments)

    def _draw(self, payments: int) -> None:
        """So many payments, and besides them the runs that will be cancelled over theirs."""
        while payments > 0:
            run, size = f"r{len(self._plans)}", min(payments, PAYMENTS_A_RUN)
            calls = [self._call() for _ in range(size)]
            turns = ["+".join(calls[place : place + A_TURN]) for place in range(0, size, A_TURN)]
            self._plans[run] = ";".join(turns)
            if self._dice.random() < CANCELLED:
                self._doomed.add(run)
            else:
                payments -= size

    def _call(self) -> str:
        """What it does in its first attempt, its second, and any other."""
        tool = self._dice.choice(("pay", "pay", "wire"))
        modes = ASYNC_MODES if tool == "pay" else THREAD_MODES
        return f"{tool}:{','.join(self._dice.choices(modes, k=3))}"

    # --- the course of it

    def run(self, told: Callable[[int, int], None] = lambda _left, _all: None) -> Tally:
        path = self.folder / "clew.db"
        file.prepare(path)  # everybody finds the file made
        with Bank(self.folder) as bank, self._child("clerk") as clerk:
            clerk.wait_for("ready")
            evidence = Evidence(path)
            for run, plan in self._plans.items():
                clerk.tell("start", run, plan)
            clerk.wait_for(f"start {run}")  # type: ignore[possibly-undefined]
            with ThreadPoolExecutor(LANES) as pool:
                lanes = [pool.submit(self._lane, random.Random(self._dice.random())) for _ in range(LANES)]
                try:
                    self._tend(evidence, clerk, told)
                finally:
                    self._over.set()
                    self._ended.set()
                for lane in lanes:
                    lane.result()
            tally = check(evidence, bank.lines(), self.harm.fates, self.harm.cancelled)
            evidence.close()
            clerk.tell("cancel", "r0")  # it is alive, and has been all the while
            clerk.wait_for("too late for r0")
        return tally

    def _child(self, role: str) -> Child:
        command = [sys.executable, "-m", "tests.crash.payers", role, str(self.folder)]
        return Child(command, self.folder / f"{role}s.log")

    def _tend(self, evidence: Evidence, clerk: Child, told: Callable[[int, int], None]) -> None:
        """Cancel the doomed in the middle of their work, set free what is set aside, until all is at rest."""
        doomed = {run: self._dice.random() * 0.8 for run in self._doomed}
        since = time.monotonic()
        left = len(self._plans)
        while left:
            infos = evidence.runs()
            left = sum(info.status != "done" for info in infos)
            told(left, len(self._plans))
            for info in infos:
                run = info.run_id
                if info.status != "done" and info.quarantined:
                    clerk.tell("release", run)
                if run in doomed and info.turns > len(self._plans[run].split(";")) * doomed[run]:
                    clerk.tell("cancel", run)
                    self.harm.cancelled.add(run)
                    del doomed[run]
            if left > CALM:
                since = time.monotonic()
            else:
                self._over.set()
            if time.monotonic() - since > REST:
                stuck = [f"{info.run_id} {info.status} {info.reasons}" for info in infos if info.status != "done"]
                raise AssertionError(f"it does not come to rest: {stuck}\n{clerk.tail()}")
            time.sleep(0.1)

    # --- what is done to processes

    def _lane(self, dice: random.Random) -> None:
        while not self._over.is_set():
            with self._child("driver") as driver:
                with self._lock:
                    fate = self.harm.fates[driver.pid] = Fate()
                driver.wait_for("ready")
                self._live(driver, fate, dice)
                if self._over.is_set():
                    self._ended.wait()  # what is left ends in peace
                self._kill(driver, fate)

    def _live(self, driver: Child, fate: Fate, dice: random.Random) -> None:
        """Freezes until it is to be killed. It may be frozen when that comes."""
        while not self._over.wait(dice.uniform(*LIFE)):
            if dice.random() > FREEZES:
                self._count("kill")
                return
            long = dice.random() < 0.5
            begun = now()
            driver.stop()
            with self._lock:
                fate.frozen.append((begun, 1 << 62))
            dies = dice.random() < 0.2
            time.sleep(dice.uniform(*(SLEEPS if long else NODS)))
            if dies and not self._over.is_set():
                self._count("kill while frozen")
                return
            with self._lock:
                fate.frozen[-1] = (begun, now())
            driver.thaw()
            self._count("long freeze" if long else "short freeze")

    def _kill(self, driver: Child, fate: Fate) -> None:
        fate.killed = now()
        code = driver.kill()
        if code != -signal.SIGKILL:
            raise AssertionError(f"a driver ended with {code}\n{driver.tail()}")

    def _count(self, what: str) -> None:
        with self._lock:
            self.harm.done[what] += 1


def now() -> int:
    """Microseconds, as the store and the bank count them."""
    return time.time_ns() // 1000


def session(payments: int, seed: int, told: Callable[[int, int], None] = lambda _l, _a: None) -> tuple[Tally, Harm]:
    """So many payments; what is wrong is in the tally."""
    # A folder with a short name: a socket's is limited.
    with tempfile.TemporaryDirectory(prefix="clew-pay-") as folder:
        campaign = Campaign(Path(folder), payments, seed)
        tally = campaign.run(told)
    if tally.asked_for < payments:
        tally.wrongs.append(f"of {payments} payments only {tally.asked_for} were asked for")
    least = LEAST * payments // 100
    few = [f"{tally.findings[word]} {word}" for word in ("done", "not_done", "unknown") if tally.findings[word] < least]
    tally.wrongs += [f"fewer than {least} findings: {one}" for one in few]
    return tally, campaign.harm


def table(tally: Tally, harm: Harm) -> str:
    harms = ", ".join(f"{count} {what}s" for what, count in sorted(harm.done.items()))
    rows = [f"{harms}; {tally.runs} runs, {tally.cancelled} of them cancelled"]
    rows.append(f"{tally.asked_for} payments asked for, {tally.attempts} attempts, {tally.paid} paid")
    rows += [f"  {what:30} {count:5}" for what, count in sorted(tally.answers.items())]
    doubts = ", ".join(f"{count} after {why}" for why, count in sorted(tally.doubts.items()))
    rows.append(f"doubts: {doubts}")
    rows += [f"  found {what:24} {tally.findings[what]:5}" for what in ("done", "not_done", "unknown")]
    rows += [f"    {what:28} {count:5}" for what, count in sorted(tally.by.items())]
    rows.append(f"  ended by a cancel              {tally.open_doubts:5}")
    rows.append(
        f"{tally.behind} payments by a process that was frozen for longer than is waited for; "
        f"{tally.twice} payments made twice so, each by two attempts in the journal"
    )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.payments", description=__doc__)
    parser.add_argument("--payments", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=None, help="draw the same plans again (timing is the machine's)")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"{options.payments} payments, seed {seed}", flush=True)
    begun = shown = time.monotonic()

    def told(left: int, runs: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            print(f"  {runs - left:4} of {runs} runs done, {shown - begun:4.0f} s", flush=True)

    tally, harm = session(options.payments, seed, told)
    print(table(tally, harm))
    print(f"{time.monotonic() - begun:.0f} s")
    for wrong in tally.wrongs[:SHOWN]:
        print(f"WRONG {wrong}")
    if len(tally.wrongs) > SHOWN:
        print(f"and {len(tally.wrongs) - SHOWN} more")
    if not tally.wrongs:
        print("the books agree with the journals, and nothing was paid twice in silence")
    return 1 if tally.wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
