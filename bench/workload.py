"""The work every peer does: a scripted, zero-latency model asks for k calls of one tool, N times, then says it is done.

The script is a function of the conversation: the first user message says how much to do, the id of the last call says
where we are. So the model is O(1) a call, needs no state of its own, and goes on in another process after a crash.
"""

import functools
import os
import time
from dataclasses import dataclass, field

SYSTEM = "You are a careful research assistant. Use the lookup tool until every page is read."
TOOL = "lookup"
FINAL = "All pages were read. The archive is consistent and nothing needs attention."
CRASHED = 42  # the exit code of a process that was told to crash

_TALE = (
    "order invoice customer late shipped refund blue crate harbour signed draft notice "
    "seven amber ledger copper returned weight approx north gate verified pending"
)


def _archive(size: int = 65536) -> str:
    tale = _TALE.split()
    number, words, length = 12345, [], 0
    while length < size:
        number = (1103515245 * number + 12345) & 0x7FFFFFFF
        words.append(tale[(number >> 8) % len(tale)] + (str(number % 9973) if number & 64 else ""))
        length += len(words[-1]) + 1
    return " ".join(words)


_TEXT = _archive()


@dataclass(frozen=True)
class Spec:
    """`n` steps of one model call and `k` tool calls, each returning `size` bytes."""

    n: int
    k: int = 1
    size: int = 200

    def prompt(self) -> str:
        return f"W n={self.n} k={self.k} size={self.size} : read the archive and report."

    @staticmethod
    @functools.cache  # what is measured is what a run costs, not this
    def parse(prompt: str) -> "Spec":
        given = dict(word.split("=") for word in prompt.split(" : ")[0].split()[1:])
        return Spec(int(given["n"]), int(given["k"]), int(given["size"]))


@dataclass
class Probe:
    """What a measurement wants of the model: when it was asked, a crash at one step, to stop right after recovery."""

    ticking: bool = False
    ticks: list[tuple[int, int]] = field(default_factory=list)  # (step, CPU nanoseconds of the process)
    crash_at: int | None = None
    stop_at_next: bool = False
    resumed: tuple[int, int, int] | None = None  # (step, messages shown, nanoseconds)


probe = Probe()

Calls = list[tuple[str, dict[str, object]]]


def decide(first_user: str, last_call: str | None, shown: int) -> tuple[str, Calls] | None:
    """What the model answers: None for the final text, else the text and the calls beside it."""
    step = 0 if last_call is None else int(last_call.split("_")[1]) + 1
    if probe.ticking:
        probe.ticks.append((step, time.process_time_ns()))
    if probe.stop_at_next:
        if probe.resumed is None:
            probe.resumed = (step, shown, time.perf_counter_ns())
        return None
    if probe.crash_at is not None and step >= probe.crash_at:
        os._exit(CRASHED)
    spec = Spec.parse(first_user)
    if step >= spec.n:
        return None
    text = f"Page {step} comes next; I will look it up and compare it with the ledger."
    return text, [
        (
            f"call_{step}_{place}",
            {"query": f"order archive part {place}", "page": step * spec.k + place, "limit": spec.size},
        )
        for place in range(spec.k)
    ]


def lookup(page: int, limit: int) -> str:
    """What the tool returns."""
    at = (page * 7919) % (len(_TEXT) - limit)
    return _TEXT[at : at + limit]
