"""How much a run may do."""

import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from clew.core import entries as e
from clew.core.entries import Entry
from clew.core.limits import SCHEMA, Limits, edited, exceeded
from clew.core.outcomes import Completed, Stopped
from clew.core.rules import next_effects
from clew.core.state import State
from clew.core.tickets import Approve, Decision, Edit, Reject
from clew.errors import UsageError
from tests.core.build import (
    attached,
    call,
    closed,
    decided,
    failed,
    finish,
    folded,
    recorded,
    reply,
    returned,
    running,
    settle,
    started,
    steps,
    then,
)


@pytest.mark.parametrize(
    "name", ["turns", "tool_calls", "tokens", "cost", "seconds", "model_errors", "repeats", "depth"]
)
@pytest.mark.parametrize("amount", [-1, math.nan, math.inf])
def test_a_limit_is_zero_or_more(name: str, amount: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}="):
        Limits(**{name: amount})
    assert getattr(Limits(**{name: 0}), name) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"turns": 1.5},
        {"turns": True},
        {"turns": 10**400},
        {"seconds": 1e300},
        {"cost": Decimal("NaN")},
        {"cost": Decimal("sNaN")},
        {"tool": 7},
        {"text": b"x"},
        {"text": "("},
    ],
    ids=repr,
)
def test_what_is_no_limit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"Limits\("):
        Limits(**wrong)


def test_a_limit_is_asked_about_or_stops() -> None:
    with pytest.raises(UsageError, match="on_limit='wait'"):
        Limits(on_limit="wait")  # type: ignore[arg-type]


def test_money_is_a_decimal_however_it_is_given() -> None:
    assert Limits(cost=0.1).cost == Decimal("0.1")
    assert Limits(cost=2).cost == Limits(cost=Decimal(2)).cost == Decimal(2)
    stored = msgspec.json.encode(Limits(cost=0.1))
    assert stored == b'{"cost":"0.1"}'
    assert msgspec.json.decode(stored, type=Limits) == Limits(cost=Decimal("0.1"))


ONE_TURN = (reply(call("1.tool.1"), cost=Decimal("0.5")), returned("1.tool.1"))
FAILED = e.ModelFailed(class_="timeout", retry_at=9)


@pytest.mark.proves("L2", "L9")
@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        (Limits(turns=1), Stopped("turns", "1 of 1")),
        (Limits(tool_calls=1), Stopped("tool_calls", "1 of 1")),
        (Limits(tokens=15), Stopped("tokens", "15 of 15")),
        (Limits(cost=Decimal("0.5")), Stopped("cost", "0.5 of 0.5")),
        (Limits(cost=0.3), Stopped("cost", "0.5 of 0.3")),
        (Limits(seconds=0.003), Stopped("seconds", "0.003 of 0.003")),
        (Limits(model_errors=1), Stopped("model_errors", "1 of 1")),
        (Limits(turns=2, tool_calls=2, tokens=16, cost=Decimal("0.51"), seconds=0.004, model_errors=2), None),
        (Limits(turns=None, model_errors=None), None),
    ],
    ids=repr,
)
def test_each_limit(limits: Limits, reached: Stopped | None) -> None:
    assert exceeded(running(*ONE_TURN, FAILED, limits=limits)) == reached


def test_what_costs_nothing_known_is_within_any_cost() -> None:
    assert exceeded(folded(started(limits=Limits(cost=1.5)), attached())) is None
    assert exceeded(folded(started(limits=Limits(cost=0)), attached())) == Stopped("cost", "0 of 0")


# --- what is said and done --------------------------------------------------------------------------------------------


@pytest.mark.proves("L9")
def test_a_tool_may_be_a_stop_condition() -> None:
    asked = reply(call("1.tool.1", "send"), call("1.tool.2"))
    state = running(asked, returned("1.tool.1"), failed("1.tool.2"), limits=Limits(tool="look"))
    assert steps(state) == ["2.model"], "it was called, and failed"
    state = then(state, reply(call("2.tool.1")), returned("2.tool.1"))
    assert finish(state).outcome == Stopped("tool", "look")
    # Siblings end first, and a second time it is the same stop.
    both = reply(call("1.tool.1"), call("1.tool.2"))
    state = running(both, returned("1.tool.1"), limits=Limits(tool="look"))
    assert steps(state) == ["1.tool.2"]
    assert finish(then(state, attached(2), returned("1.tool.2"))).outcome == Stopped("tool", "look")


@pytest.mark.proves("L9")
def test_a_text_may_be_a_stop_condition() -> None:
    limits = Limits(text="DONE|READY")
    state = running(reply("nearly", call("1.tool.1")), returned("1.tool.1"), limits=limits)
    assert steps(state) == ["2.model"]
    state = then(state, reply("all DONE", call("2.tool.1")), returned("2.tool.1"))
    assert finish(state).outcome == Stopped("text", "DONE|READY")
    assert finish(running(reply("DONE"), limits=limits)).outcome == Completed()
    # What was seen once is not seen again for another reason.
    both = Limits(text="DONE", tool="look")
    assert finish(running(reply("DONE", call("1.tool.1")), returned("1.tool.1"), limits=both)).outcome == Stopped(
        "text", "DONE"
    )


def turn(number: int, tool: str = "look", text: str = "hm", args: str = "{}") -> list[Entry]:
    return [reply(text, call(f"{number}.tool.1", tool, args)), returned(f"{number}.tool.1")]


@pytest.mark.proves("L9")
def test_the_same_reply_again_and_again_is_a_stop_condition() -> None:
    limits = Limits(repeats=3)
    twice = [*turn(1), *turn(2)]
    assert steps(running(*twice, limits=limits)) == ["3.model"]
    assert finish(running(*twice, *turn(3), limits=limits)).outcome == Stopped("repeats", "the same reply 3 times")
    # Others may stand between, but not too many; and a word, a tool or an argument makes another of it.
    between = [*twice, *turn(3, "send"), *turn(4, text="ah"), *turn(5, args='{"a":1}')]
    assert finish(running(*between, *turn(6), limits=limits)).outcome == Stopped("repeats", "the same reply 3 times")
    assert steps(running(*between, *turn(6, "pay"), *turn(7), limits=limits)) == ["8.model"]
    assert running(*twice).course.recent == (), "nobody counts"
    # It survives a crash.
    assert finish(running(*twice, attached(2), *turn(3), limits=limits)).outcome is not None


# --- whoever is asked -------------------------------------------------------------------------------------------------


def asked(*entries: Entry, **limits: Any) -> State:
    return settle(running(*entries, limits=Limits(**{"on_limit": "ask", **limits})))


@pytest.mark.proves("L9", "W1")
def test_a_limit_may_open_a_ticket_instead() -> None:
    state = running(*turn(1), limits=Limits(turns=1, on_limit="ask"))
    assert recorded(state) == e.TicketOpened(
        step="2.model",
        ticket="limit",
        ticket_kind="limit",
        schema=SCHEMA,
        action="limit:turns",
        prompt="The limit 'turns' is reached (1 of 1). May the run go on?",
        reason="stopped:turns",
    )
    state = settle(state)
    assert next_effects(state) == ()
    assert next_effects(then(state, attached(2))) == ()


@pytest.mark.proves("W2")
@pytest.mark.parametrize(
    ("decision", "turns"), [(Approve(), 2), (Edit({"turns": 9, "cost": "0.5"}), 9), (Edit({"turns": None}), None)]
)
def test_who_lets_a_run_go_on_gives_it_the_same_once_more_or_what_they_say(
    decision: Decision, turns: int | None
) -> None:
    state = then(asked(*turn(1), turns=1), decided("limit", decision, by="ada"))
    entry = recorded(state)
    assert isinstance(entry, e.LimitsChanged)
    assert (entry.limits.turns, entry.by, entry.limits.on_limit) == (turns, "ada", "ask")
    assert steps(then(state, entry)) == ["2.model"]


@pytest.mark.proves("W2", "L9")
def test_a_limit_that_is_reached_again_is_asked_about_again() -> None:
    state = settle(then(asked(*turn(1), turns=1), decided("limit", Approve())))
    state = settle(then(state, *turn(2)))
    assert list(state.tickets) == ["limit~2"]
    assert state.limits.turns == 2
    # It has grown by the amount that the run began with.
    state = settle(then(state, decided("limit~2", Approve())))
    assert (state.limits.turns, steps(state)) == (3, ["3.model"])


@pytest.mark.proves("W2")
@pytest.mark.parametrize("end", [decided("limit", Reject("no")), closed("limit", "reject")], ids=["reject", "expiry"])
def test_who_does_not_let_it_go_on_ends_it(end: Entry) -> None:
    assert finish(then(asked(*turn(1), turns=1), end)).outcome == Stopped("turns", "1 of 1")


@pytest.mark.proves("W2")
@pytest.mark.parametrize("condition", [{"tool": "look"}, {"text": "hm"}])
def test_a_condition_that_was_met_counts_no_longer_once_the_run_may_go_on(condition: dict[str, str]) -> None:
    state = settle(then(asked(*turn(1), **condition), decided("limit", Approve())))
    assert (state.limits.tool, state.limits.text) == (None, None)
    assert steps(state) == ["2.model"]
    assert steps(then(state, *turn(2))) == ["3.model"]


def test_an_amount_that_came_later_grows_by_one() -> None:
    state = then(asked(*turn(1), turns=1), decided("limit", Edit({"turns": None, "tool_calls": 2})))
    state = settle(then(settle(state), *turn(2)))
    assert list(state.tickets) == ["limit~2"]
    assert settle(then(state, decided("limit~2", Approve()))).limits.tool_calls == 3


def test_some_limits_are_edited_and_the_others_stay() -> None:
    limits = edited(Limits(turns=3, tokens=5), {"tokens": 9, "cost": 0.5, "on_limit": "ask"})
    assert limits == Limits(turns=3, tokens=9, cost=Decimal("0.5"), on_limit="ask")


@pytest.mark.parametrize(
    "args",
    [{"tuns": 1}, {"turns": "many"}, {"turns": -1}, {"text": "("}, {"cost": "x"}, {"on_limit": "wait"}],
    ids=repr,
)
def test_an_edit_that_is_no_limit_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"limit|expression"):
        edited(Limits(), args)
