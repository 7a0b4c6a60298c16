"""What is measured and what it is held against: experiments, and the figures that are read from them."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bench.measure import Job

CLEW = "clew_peer:sqlite"
FLOOR = "floor_sqlite:sqlite3-full-append"
LANGGRAPH = "langgraph_peer:sqlite-sync"

Repetition = dict[str, dict[str, Any]]  # what each measurement of one repetition found, by its name


@dataclass(frozen=True)
class Experiment:
    """Measurements that belong together: within a repetition they run one after the other, in rotating order."""

    name: str
    measurements: dict[str, Job | Literal["first_agent"]]
    repetitions: int
    quick: int = 1

    def times(self, pairs: int | None, *, quick: bool) -> int:
        return self.quick if quick else self.repetitions if pairs is None else pairs


@dataclass(frozen=True)
class Figure:
    """One number of a repetition, the median of which over all repetitions is held against a target."""

    experiment: str
    name: str
    read: Callable[[Repetition], float]
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""
    places: int = 2

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:,g}{self.unit}"
        return "" if self.at_least is None else f"≥ {self.at_least:,g}{self.unit}"

    def reached(self, value: float) -> bool | None:
        """None for a figure that is only shown."""
        if self.at_most is not None:
            return value <= self.at_most
        return None if self.at_least is None else value >= self.at_least

    def shown(self, value: float) -> str:
        return f"{value:,.{self.places}f}{self.unit}"

    def median(self, repetitions: list[Repetition]) -> tuple[float, float, float]:
        """With the smallest and the largest."""
        values = [self.read(repetition) for repetition in repetitions]
        return statistics.median(values), min(values), max(values)


EXPERIMENTS = (
    Experiment(
        "n100",
        {"clew": Job("steps", CLEW, 100), "floor": Job("steps", FLOOR, 100), "langgraph": Job("steps", LANGGRAPH, 100)},
        repetitions=9,
        quick=3,
    ),
    Experiment(
        "n1000",
        {"clew": Job("steps", CLEW, 1000), "floor": Job("steps", FLOOR, 1000)},
        repetitions=9,
        quick=2,
    ),
    Experiment("growth", {"clew": Job("steps", CLEW, 10_260, around=(500, 10_000))}, repetitions=3),
    Experiment("bytes", {"clew": Job("steps", CLEW, 500, crowd=200)}, repetitions=3),
    Experiment(
        "resume",
        {"thousand": Job("resume", CLEW, 1000), "four": Job("resume", CLEW, 4000), "floor": Job("resume", FLOOR, 1000)},
        repetitions=5,
    ),
    Experiment(
        "many",
        {"clew": Job("many", CLEW, 20, runs=200), "langgraph": Job("many", LANGGRAPH, 20, runs=200)},
        repetitions=3,
    ),
    Experiment(
        "k4",
        {"clew": Job("steps", CLEW, 100, k=4), "floor": Job("steps", FLOOR, 100, k=4)},
        repetitions=9,
        quick=3,
    ),
    Experiment("first", {"clew": Job("first", CLEW), "langgraph": Job("first", LANGGRAPH)}, repetitions=5),
    Experiment("idle", {"clew": Job("idle", CLEW)}, repetitions=3),
    Experiment("import", {"clew": "first_agent"}, repetitions=7, quick=3),
)


def _ratio(field: str, of: str = "clew", to: str = "floor") -> Callable[[Repetition], float]:
    return lambda found: found[of][field] / found[to][field]


def _value(field: str, of: str = "clew") -> Callable[[Repetition], float]:
    return lambda found: found[of][field]


def _growth(found: Repetition) -> float:
    around = found["clew"]["cpu_ms_around"]
    return around["10000"] / around["500"]


def _strangers(found: Repetition) -> float:
    return len(found["clew"]["strangers"])


FIGURES = (
    Figure("n100", "100 steps, wall over the floor", _ratio("wall_ms"), at_most=1.7, unit=" x"),
    Figure("n100", "  Clew, a step", _value("wall_ms"), unit=" ms", places=3),
    Figure("n100", "  Clew, CPU of a step", _value("cpu_ms"), unit=" ms", places=3),
    Figure("n100", "  LangGraph over the floor", _ratio("wall_ms", of="langgraph"), unit=" x"),
    Figure("n1000", "1,000 steps, wall over the floor", _ratio("wall_ms"), at_most=1.6, unit=" x"),
    Figure("n1000", "  on disk once closed", _value("disk_mib"), at_most=1.1, unit=" MiB"),
    Figure("growth", "CPU of a step around 10,000 over 500", _growth, at_most=1.15, unit=" x"),
    Figure("bytes", "written a step, 200 other runs there", _value("written_kib"), at_most=14, unit=" KiB"),
    Figure("resume", "1,000 turns opened to the model call", _value("resume_ms", "thousand"), at_most=15, unit=" ms"),
    Figure("resume", "  4,000 turns over that", _ratio("resume_ms", "four", "thousand"), at_most=4.5, unit=" x"),
    Figure("resume", "  the floor, 1,000", _value("resume_ms", "floor"), unit=" ms"),
    Figure("many", "200 runs x 20 steps", _value("steps_per_s"), at_least=8000, unit=" steps/s", places=0),
    Figure("many", "  over LangGraph", _ratio("steps_per_s", to="langgraph"), at_least=35, unit=" x", places=1),
    Figure("many", "  Clew, CPU of a step", _value("cpu_ms"), unit=" ms", places=3),
    Figure("k4", "4 calls a step over 5 commits", _ratio("wall_ms"), at_most=0.8, unit=" x"),
    Figure("first", "first streamed fragment, warm", _value("warm_ms"), at_most=0.6, unit=" ms"),
    Figure("first", "  LangGraph", _value("warm_ms", "langgraph"), unit=" ms"),
    Figure("idle", "an open runtime with nothing to do", _value("share_percent"), at_most=1, unit=" %"),
    Figure("import", "imports, one tool and one agent built", _value("ms"), at_most=180, unit=" ms", places=0),
    Figure("import", "  and its schemas derived", _value("derived_ms"), unit=" ms", places=0),
    Figure("import", "  memory", _value("memory_mib"), at_most=42, unit=" MiB", places=1),
    Figure("import", "  rich, click, SDKs loaded", _strangers, at_most=0, places=0),
)
