"""Calls that will not go on: what is said of those that had begun."""

import pytest

from clew.core import entries as e
from clew.core.effects import CallModel, Close, Record
from clew.core.entries import Entry
from clew.core.outcomes import Cancelled, Failed
from clew.core.proceeding import NOT_RUN_REJOINED, UNKNOWN_OUTCOME
from clew.core.rules import CANCELLED, NOT_RUN_ENDING, next_effects
from clew.core.state import Known, State
from clew.core.tickets import Respond
from tests.core.build import (
    attached,
    began,
    call,
    decided,
    failed,
    folded,
    intent,
    late,
    only,
    raised,
    reply,
    resolved,
    retried,
    running,
    settle,
    sleeps,
    started,
    then,
    told,
)

ONE = "1.tool.1"
MAIL, POST = f"{ONE}:mail", f"{ONE}:post"


def begun(tool: str = "pay", *entries: Entry) -> State:
    return running(reply(call(ONE, tool)), intent(ONE), *entries)


def crashed(tool: str = "pay", *entries: Entry) -> State:
    return begun(tool, *entries, attached(2))


def in_step(tool: str = "send", *entries: Entry) -> State:
    """A crash inside a step that must not happen twice."""
    return running(reply(call(ONE, tool)), began(MAIL), *entries, attached(2))


def asked() -> State:
    """Somebody was asked what became of it."""
    return settle(crashed())


def cancelled(state: State) -> State:
    return settle(then(state, e.CancelRequested(by="ada")))


@pytest.mark.proves("C1", "C2")
def test_cancel_says_what_is_known() -> None:
    verdict = resolved(ONE, "verify", "not_done", "verify")
    for state, expected in (
        (crashed(), f"!{UNKNOWN_OUTCOME}"),
        (begun(), f"!{UNKNOWN_OUTCOME}"),
        (asked(), f"!{UNKNOWN_OUTCOME}"),
        (begun("pay", raised(ONE, "cut")), "!outcome unknown: cut"),
        (then(crashed(), resolved(ONE)), f"!{UNKNOWN_OUTCOME}"),
        (then(crashed("charge"), resolved(ONE, "verify", "unknown", "verify")), f"!{UNKNOWN_OUTCOME}"),
        (then(crashed("charge"), verdict), f"!{CANCELLED}"),
        (then(crashed(), late(ONE, "paid")), "paid"),
        (then(asked(), decided(ONE, Respond("so")), resolved(ONE, "decision", "done", "respond")), "so"),
        (begun("pay", sleeps(f"{ONE}:sleep", 10**9)), f"!{CANCELLED}"),
        (begun("pay", retried(ONE, 10**9)), f"!{CANCELLED}"),
        (in_step(), f"!{UNKNOWN_OUTCOME}"),
        (running(reply(call(ONE, "send")), began(MAIL)), f"!{UNKNOWN_OUTCOME}"),
        (then(in_step(), late(MAIL, "m")), f"!{CANCELLED}"),
    ):
        done = cancelled(state)
        assert done.outcome == Cancelled(by="ada")
        assert told(done)[-1] == f"tool: {ONE} {expected}"


@pytest.mark.proves("C1")
def test_whoever_verifies_is_interrupted_before_anything_is_said() -> None:
    state = then(crashed("charge"), e.CancelRequested())
    effect = only(next_effects(state))
    assert effect == Close(ONE, resolved(ONE), interrupt=True)


@pytest.mark.proves("T8")
def test_a_fatal_sibling_lets_a_doubt_be_told() -> None:
    state = running(reply(call(ONE, "pay"), call("1.tool.2")), intent(ONE), attached(2))
    state = settle(then(settle(state), failed("1.tool.2", class_="fatal")))
    assert state.outcome == Failed("fatal", "no")
    assert told(state)[2:] == [f"tool: {ONE} !{UNKNOWN_OUTCOME}", "tool: 1.tool.2 !no"]
    # What had not begun is only not run.
    state = running(reply(call(ONE, "pay"), call("1.tool.2")), failed("1.tool.2", class_="fatal"))
    assert told(settle(state))[2] == f"tool: {ONE} !{NOT_RUN_ENDING}"


@pytest.mark.proves("B3", "T11")
def test_in_a_run_that_goes_another_way_nothing_more_is_found_out() -> None:
    base = running(reply(call(ONE, "charge"), call("1.tool.2", "pay")), intent(ONE))
    known = Known(specs=base.known.specs, bases={("run_0", 4): base})
    state = folded(started("other", base=e.BaseAt("run_0", 4)), attached(), known=known)
    assert recorded_all(state) == [
        resolved(ONE),
        failed("1.tool.2", NOT_RUN_REJOINED, class_="superseded", source="superseded"),
    ]
    state = settle(then(state, late(ONE, "paid")))
    assert told(state)[2:] == [f"tool: {ONE} paid", f"tool: 1.tool.2 !{NOT_RUN_REJOINED}", "user: other"]
    assert next_effects(state) == (CallModel("2.model"),)


def recorded_all(state: State) -> list[Entry]:
    return [effect.entry for effect in next_effects(state) if isinstance(effect, Record)]
