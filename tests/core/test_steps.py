"""Identities that follow from the journal, and the arithmetic of waiting."""

import math

import pytest

from clew.core.steps import (
    FIRST_BACKOFF,
    LONGEST_BACKOFF,
    LONGEST_RETRY_AFTER,
    backoff,
    call_step,
    child_run,
    compact_step,
    idempotency_key,
    model_step,
    nested_step,
    verify_step,
)


def test_steps_are_named_by_their_place() -> None:
    assert [model_step(3), model_step(3, 2)] == ["3.model", "3.model.2"]
    assert call_step(3, 1) == "3.tool.1"
    assert [nested_step("3.tool.1", "fetch"), nested_step("3.tool.1", "fetch", 2)] == [
        "3.tool.1:fetch",
        "3.tool.1:fetch#2",
    ]
    assert (verify_step("3.tool.1"), compact_step(4)) == ("3.tool.1!verify", "4.compact")


@pytest.mark.proves("T1")
def test_the_key_of_a_step_is_that_of_all_its_attempts_and_of_no_other_run() -> None:
    assert idempotency_key("run_1", "3.tool.1") == "run_1:3.tool.1"


def test_a_child_is_found_again_by_its_name() -> None:
    assert child_run("run_1", "3.tool.1:ask") == "run_1:3.tool.1:ask"
    longest = child_run("r" * 119, "3.tool.1")
    assert len(longest) == 128
    hashed = child_run("r" * 120, "3.tool.1")
    assert hashed == child_run("r" * 120, "3.tool.1") != child_run("r" * 121, "3.tool.1")
    assert hashed.startswith("run_")
    assert len(hashed) == 36


@pytest.mark.proves("L10")
def test_waits_grow_are_spread_and_end_somewhere() -> None:
    waits = [backoff("run_1", "1.model", attempt) for attempt in range(1, 12)]
    for attempt, wait in enumerate(waits, start=1):
        base = min(FIRST_BACKOFF * 2 ** (attempt - 1), LONGEST_BACKOFF)
        assert base // 2 <= wait <= base
    assert len({backoff(f"run_{n}", "1.model", 3) for n in range(50)}) > 40
    assert backoff("run_1", "1.model", 10_000) <= LONGEST_BACKOFF
    assert backoff("run_1", "1.model", 3) == waits[2]


@pytest.mark.proves("L10")
def test_what_the_provider_asks_for_is_honoured_within_reason() -> None:
    assert backoff("r", "s", 1, 0) == 0
    assert backoff("r", "s", 1, 2.5) == 2_500_000
    assert backoff("r", "s", 1, math.inf) == LONGEST_RETRY_AFTER * 1_000_000
    assert backoff("r", "s", 1, -1) == backoff("r", "s", 1, math.nan) == backoff("r", "s", 1)
