"""Clew, the floor and a peer, interleaved in one run: one line a target, with the median of its figure."""

import argparse
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bench import meters
from bench.measure import Job
from bench.targets import EXPERIMENTS, FIGURES, Experiment, Figure, Repetition
from bench.workload import CRASHED

ROOT = Path(__file__).parent.parent
LONGEST = 900  # seconds

Found = dict[str, list[Repetition]]


class MeasurementFailed(Exception):
    """Says which one, and what it printed."""


def main() -> int:
    options = _options()
    chosen = [experiment for experiment in EXPERIMENTS if options.only in (None, experiment.name)]
    rounds = {experiment.name: experiment.times(options.pairs, quick=options.quick) for experiment in chosen}
    found: Found = {experiment.name: [] for experiment in chosen}
    for turn in range(max(rounds.values())):
        for experiment in chosen:
            if turn < rounds[experiment.name]:
                print(f"{experiment.name} {turn + 1} of {rounds[experiment.name]}", file=sys.stderr, flush=True)
                found[experiment.name].append(_repetition(experiment, turn, options))
    machine = _machine(found)
    if options.json:
        print(json.dumps({"machine": machine, "figures": list(map(_as_json, *_figures(found))), "found": found}))
    else:
        _print(machine, found)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=", description=__doc__)
    parser.add_argument("--only", choices=[experiment.name for experiment in EXPERIMENTS], help="one experiment")
    parser.add_argument("--pairs", type=int, help="repetitions of each, instead of its own number")
    parser.add_argument("--quick", action="store_true", help="a look: few repetitions, of which no target is judged")
    parser.add_argument("--json", action="store_true", help="everything that was found")
    parser.add_argument("--folder", type=Path, default=ROOT / "bench", help="where the files go: the disk to measure")
    parser.add_argument(
        "--quiet", type=float, default=20, help="seconds to wait, at most, for other processes to be quiet (20)"
    )
    options = parser.parse_args()
    if options.pairs is not None and options.pairs < 1:
        parser.error("--pairs takes a number from 1")
    return options


# --- measuring --------------------------------------------------------------------------------------------------------


def _repetition(experiment: Experiment, turn: int, options: argparse.Namespace) -> Repetition:
    """Each measurement once; who goes first rotates, so that no peer always meets the same mood of the disk."""
    names = list(experiment.measurements)
    start = turn % len(names)
    return {name: _measured(experiment.measurements[name], options) for name in names[start:] + names[:start]}


def _measured(job: Job | Literal["first_agent"], options: argparse.Namespace) -> dict[str, Any]:
    meters.wait_until_quiet(options.quiet)
    if isinstance(job, str):
        return _answer(_spawn("bench.first_agent"))
    with _folder(options.folder) as folder:
        job = replace(job, folder=str(folder))
        if job.mode == "resume":
            crashed = _spawn("bench.measure", replace(job, mode="crash").to_json())
            if crashed.returncode != CRASHED:
                raise MeasurementFailed(
                    f"{job.peer} was to crash and ended with {crashed.returncode}: {crashed.stderr}"
                )
        return _answer(_spawn("bench.measure", job.to_json()))


@contextmanager
def _folder(where: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _spawn(*arguments: str) -> "subprocess.CompletedProcess[str]":
    # As installed: bytecode is cached, and no other program's settings leak in.
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST)


def _answer(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    if done.returncode != 0:
        raise MeasurementFailed(f"{' '.join(done.args)} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


# --- telling ----------------------------------------------------------------------------------------------------------


def _machine(found: Found) -> dict[str, Any]:
    """What the figures depend on, and how calm it was."""
    all_found = [one for repetitions in found.values() for repetition in repetitions for one in repetition.values()]
    disk = [one["fdatasync_us"] for one in all_found if "fdatasync_us" in one]
    foreign = [one["foreign_cores"] for one in all_found if "foreign_cores" in one]
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cores": os.cpu_count(),
        "fdatasync_us": statistics.median(disk) if disk else None,
        "foreign_cores": statistics.median(foreign) if foreign else None,
    }


def _figures(found: Found) -> tuple[list[Figure], list[tuple[float, float, float]]]:
    figures = [figure for figure in FIGURES if figure.experiment in found]
    return figures, [figure.median(found[figure.experiment]) for figure in figures]


def _as_json(figure: Figure, seen: tuple[float, float, float]) -> dict[str, Any]:
    median, smallest, largest = seen
    return {
        "experiment": figure.experiment,
        "name": figure.name.strip(),
        "target": figure.target,
        "median": median,
        "smallest": smallest,
        "largest": largest,
        "reached": figure.reached(median),
    }


def _print(machine: dict[str, Any], found: Found) -> None:
    calm = ", ".join(
        f"{what} {value:.{places}f}{unit}"
        for what, value, places, unit in (
            ("fdatasync", machine["fdatasync_us"], 0, " µs"),
            ("used by others", machine["foreign_cores"], 1, " cores"),
        )
        if value is not None
    )
    print(f"Python {machine['python']}, SQLite {machine['sqlite']}, {machine['cores']} cores; {calm}")
    for figure, (median, smallest, largest) in zip(*_figures(found), strict=True):
        verdict = {True: "reached", False: "NOT REACHED", None: ""}[figure.reached(median)]
        spread = f"[{smallest:,.{figure.places}f}..{largest:,.{figure.places}f}]"
        print(f"{figure.name:38}{figure.target:>16}{figure.shown(median):>18}  {spread:22}{verdict}".rstrip())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MeasurementFailed as error:
        sys.exit(f"bench: {error}")
