"""The identity of an effect over all its attempts, derived from its place in the journal; and backoff arithmetic."""

import hashlib
from typing import NewType

RunId = NewType("RunId", str)
StepId = NewType("StepId", str)

MAX_RUN_ID = 128
FIRST_BACKOFF = 500_000  # microseconds
LONGEST_BACKOFF = 60_000_000
LONGEST_RETRY_AFTER = 30 * 86_400  # seconds; what a provider asks for beyond it is a mistake


def model_step(turn: int, continuation: int = 1) -> str:
    return f"{turn}.model" if continuation == 1 else f"{turn}.model.{continuation}"


def call_step(turn: int, place: int) -> str:
    """The step of a call, which is also its id: `3.tool.1`, places from 1."""
    return f"{turn}.tool.{place}"


def nested_step(step: str, name: str, use: int = 1) -> str:
    return f"{step}:{name}" if use == 1 else f"{step}:{name}#{use}"


def call_of(step: str) -> str:
    """The call that a step inside of its body belongs to; a call's own step is the call."""
    return step.partition(":")[0]


def end_step(turn: int) -> str:
    """The mark that hooks leave behind a turn."""
    return f"{turn}.end"


INPUT_STEP = "input"  # the mark that hooks leave behind the input


def verify_step(step: str) -> str:
    return f"{step}!verify"


def compact_step(turn: int) -> str:
    return f"{turn}.compact"


def child_run(run: str, step: str) -> str:
    """The id of a child run: found again after a crash, since it follows from the parent's step."""
    name = f"{run}:{step}"
    return name if len(name) <= MAX_RUN_ID else "run_" + hashlib.sha256(name.encode()).hexdigest()[:32]


def idempotency_key(run: str, step: str) -> str:
    return f"{run}:{step}"


def backoff(run: str, step: str, attempt: int, retry_after: float | None = None) -> int:
    """Microseconds to wait after a failed attempt: exponential, with jitter drawn from the step's own name.

    A pure function must not roll dice; the hash spreads the runs of a fleet as well as dice would.
    """
    if retry_after is not None and retry_after >= 0:
        return int(min(retry_after, LONGEST_RETRY_AFTER) * 1_000_000)
    base = min(FIRST_BACKOFF << (attempt - 1), LONGEST_BACKOFF)
    spread = hashlib.sha256(f"{run}:{step}:{attempt}".encode()).digest()[0]
    return base // 2 + base * spread // 512
