"""The spec check: each statement of docs/semantics.md, the tests that name it, the planted faults that they catch.

A test names what it proves: `@pytest.mark.proves("J1", "R3")`. A fault of `clew.testing.faults` names the statements
that it breaks; the pytest plugin plants it while CLEW_FAULT holds its name. For each of those statements a test that
names it must then fail.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import msgspec

from tools.proofs import REPORT, STOP_AFTER, Written

STATEMENTS = Path("docs/semantics.md")
FAULT = "CLEW_FAULT"
FEWEST_FAULTS = 16
PROCESSES = 2
SLOW = "tests/crash/"
DEADLINE = 900  # seconds for one pytest run

ROW = re.compile(r"^\|\s*(?P<id>[A-Z]\d+)\s*\|(?P<text>.+)\|\s*(?P<due>[^|]+?)\s*\|\s*$")

Proofs = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Statement:
    id: str
    text: str
    due: str

    @property
    def holds_now(self) -> bool:
        return self.due == "now"


class Fault(Protocol):
    """What is read here of a fault of `clew.testing.faults`."""

    @property
    def statements(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Ran:
    """One pytest run: its exit code, what it wrote down, what it printed."""

    code: int
    written: Written
    output: str


@dataclass(frozen=True)
class Finding:
    """How one planted fault fared: per statement that it breaks, the first test that caught it."""

    fault: str
    caught: Mapping[str, str]
    escaped: tuple[str, ...]
    trouble: str = ""


def statements(page: str) -> dict[str, Statement]:
    rows = (found for line in page.splitlines() if (found := ROW.match(line)))
    return {row["id"]: Statement(row["id"], row["text"].strip(), row["due"]) for row in rows}


def run_pytest(options: Iterable[str], fault: str = "", stop_after: Iterable[str] = ()) -> Ran:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.proofs", "-p", "no:cacheprovider", *options]
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        environment = {**os.environ, REPORT: str(report), STOP_AFTER: " ".join(stop_after), FAULT: fault}
        if not fault:
            del environment[FAULT]
        try:
            run = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=DEADLINE,
            )
        except subprocess.TimeoutExpired:
            return Ran(-1, Written(), f"not over after {DEADLINE} s: a test waits for ever, give it a deadline")
        written = msgspec.json.decode(report.read_bytes(), type=Written) if report.exists() else Written()
    return Ran(run.returncode, written, run.stdout + run.stderr)


def collect() -> Proofs:
    ran = run_pytest(["--collect-only"])
    if ran.code != 0:
        raise SystemExit(f"the tests cannot be collected:\n{ran.output}")
    return ran.written.proofs


def tests_of(broken: set[str], proofs: Proofs) -> list[str]:
    """Those that prove most of what is broken come first: a run ends once each statement has its catch.

    Those that start and kill processes come last, for they take seconds each.
    """
    tests = (test for test, named in proofs.items() if broken & set(named))
    return sorted(tests, key=lambda test: (test.startswith(SLOW), -len(broken & set(proofs[test]))))


def plant(name: str, broken: tuple[str, ...], proofs: Proofs) -> Finding:
    """Run the tests that prove what the fault breaks, with the fault planted."""
    tests = tests_of(set(broken), proofs)
    if not tests:
        return Finding(name, {}, broken)
    provable = {statement for test in tests for statement in proofs[test]} & set(broken)
    ran = run_pytest(tests, name, provable)
    caught: dict[str, str] = {}
    for test in ran.written.failed:
        for statement in provable & set(proofs.get(test, ())):
            caught.setdefault(statement, test)
    # A run without a failing test is over with code 0; any other code says that the tests did not run at all.
    trouble = ran.output if ran.code != 0 and not ran.written.failed else ""
    return Finding(name, caught, tuple(statement for statement in broken if statement not in caught), trouble)


def failing_unaided(broken: set[str], proofs: Proofs) -> Iterable[str]:
    """A test that fails without a fault catches nothing."""
    tests = tests_of(broken, proofs)
    ran = run_pytest(tests) if tests else Ran(0, Written(), "")
    if ran.code != 0:
        yield from (f"{test} fails without any fault" for test in ran.written.failed)
        if not ran.written.failed:
            yield ran.output


def unknown_names(known: Mapping[str, Statement], proofs: Proofs, faults: Mapping[str, Fault]) -> Iterable[str]:
    for test, named in proofs.items():
        yield from (f"{test} proves {name!r}, which {STATEMENTS} does not have" for name in named if name not in known)
    for name, fault in faults.items():
        strangers = (one for one in fault.statements if one not in known)
        yield from (f"fault {name!r} breaks {one!r}, which {STATEMENTS} does not have" for one in strangers)


def unproven(known: Mapping[str, Statement], proofs: Proofs) -> Iterable[str]:
    proven = {name for named in proofs.values() for name in named}
    for statement in known.values():
        if statement.holds_now and statement.id not in proven:
            yield f"{statement.id} is to hold now, and no test names it"


def uncaught(known: Mapping[str, Statement], findings: Iterable[Finding]) -> Iterable[str]:
    for finding in findings:
        if finding.trouble:
            yield f"fault {finding.fault!r}: the tests did not run\n{finding.trouble}"
        for name in finding.escaped:
            if name in known and known[name].holds_now:
                yield f"fault {finding.fault!r} breaks {name}, and no test of {name} fails"


def table(known: Mapping[str, Statement], proofs: Proofs, findings: Iterable[Finding]) -> Iterable[str]:
    tests: dict[str, list[str]] = defaultdict(list)
    for test, named in proofs.items():
        for name in named:
            tests[name].append(test)
    caught: dict[str, list[str]] = defaultdict(list)
    escaped: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        for name, test in finding.caught.items():
            caught[name].append(f"caught {finding.fault} by {test}")
        for name in finding.escaped:
            escaped[name].append(f"ESCAPED {finding.fault}")
    yield "statement                tests  faults caught"
    for name, one in known.items():
        faults = [*caught[name], *escaped[name]]
        yield f"{name:4} {one.due:18} {len(tests[name]):6} {len(caught[name]):5} of {len(faults):2}   {one.text}"
        functions = sorted({test.partition("[")[0] for test in tests[name]})
        yield from (f"       {line}" for line in [*functions, *faults])


def planted(only: str | None) -> Mapping[str, Fault]:
    from clew.testing.faults import FAULTS

    if only is None:
        return FAULTS
    if only not in FAULTS:
        raise SystemExit(f"no fault is named {only!r}; there are: {', '.join(sorted(FAULTS))}")
    return {only: FAULTS[only]}


def main() -> int:
    parser = argparse.ArgumentParser(description="Each statement, its tests, and the planted faults that they catch.")
    parser.add_argument("--fault", metavar="NAME", help="plant this one only")
    parser.add_argument("--no-faults", action="store_true", help="plant none: only ask that each statement has a test")
    options = parser.parse_args()

    known = statements(STATEMENTS.read_text(encoding="utf-8"))
    proofs = collect()
    faults: Mapping[str, Fault] = {} if options.no_faults else planted(options.fault)
    red = [*unknown_names(known, proofs, faults), *unproven(known, proofs)]
    if not options.no_faults and options.fault is None and len(faults) < FEWEST_FAULTS:
        red.append(f"{len(faults)} faults can be planted: at least {FEWEST_FAULTS} are to be")
    red += failing_unaided({name for fault in faults.values() for name in fault.statements}, proofs)
    with ThreadPoolExecutor(PROCESSES) as pool:
        started = [pool.submit(plant, name, fault.statements, proofs) for name, fault in faults.items()]
        findings = [one.result() for one in started]
    red += uncaught(known, findings)

    caught = sum(not finding.escaped for finding in findings)
    print(*table(known, proofs, findings), sep="\n")
    print(f"{len(known)} statements, named by {len(proofs)} tests; {caught} of {len(findings)} faults caught in full")
    print(*(f"RED {reason}\n" for reason in red), sep="", end="")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
