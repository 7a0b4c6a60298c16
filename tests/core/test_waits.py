"""Bodies that let go: what they stand at, what makes them run again, and what comes of questions nobody answers."""

from itertools import permutations

import pytest

from clew.core import entries as e
from clew.core.effects import CallTool, Record
from clew.core.entries import Entry
from clew.core.outcomes import Cancelled
from clew.core.rules import next_effects
from clew.core.state import State
from clew.core.tickets import Reject, Respond
from tests.core.build import (
    asks,
    attached,
    call,
    closed,
    decided,
    failed,
    fired,
    intent,
    only,
    open_call,
    recorded,
    reply,
    retried,
    returned,
    running,
    settle,
    sleeps,
    steps,
    then,
    together,
    told,
)

ONE = "1.tool.1"
WHO, WHAT, NAP = f"{ONE}:who", f"{ONE}:what", f"{ONE}:sleep"
FAR = 10**12


def body(*entries: Entry, tool: str = "send") -> State:
    """A body that has begun, and then these."""
    begun = [intent(ONE)] if tool in ("pay", "ship") else []
    return running(reply(call(ONE, tool)), *begun, *entries)


def standing(state: State) -> tuple[str, ...]:
    return open_call(state).standing


# --- letting go -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("W7")
def test_a_body_that_let_go_waits_for_what_it_stands_at() -> None:
    state = body(asks(WHO, ONE))
    assert next_effects(state) == ()
    assert next_effects(then(state, attached(2))) == ()
    assert (list(state.tickets), standing(state)) == ([ONE], (WHO,))
    assert next_effects(then(state, decided(ONE, Respond("ada")))) == (CallTool(ONE),)
    assert next_effects(then(state, decided(ONE, Reject()))) == (CallTool(ONE),), "it hears of it"


@pytest.mark.proves("W7")
def test_a_sleep_ends_by_the_clock() -> None:
    state = body(sleeps(NAP, FAR))
    assert next_effects(state) == (Record(fired(NAP), FAR),)
    assert list(state.timers) == [NAP]
    state = then(state, fired(NAP))
    assert (next_effects(state), state.timers) == ((CallTool(ONE),), {})


@pytest.mark.proves("T2", "W7")
def test_a_once_body_says_again_that_it_starts() -> None:
    state = then(body(asks(WHO, ONE), tool="pay"), decided(ONE, Respond("ada")))
    entry = recorded(state)
    assert isinstance(entry, e.ToolStarted)
    assert (entry.attempt, entry.key) == (1, f"run_1:{ONE}")
    state = then(state, entry)
    assert next_effects(state) == (CallTool(ONE),)
    # From now on it may act, so that a crash leaves a doubt.
    assert open_call(then(state, attached(2))).in_doubt


@pytest.mark.proves("W7")
@pytest.mark.parametrize("first", [asks(WHO, ONE), sleeps(NAP, FAR)], ids=["ask", "sleep"])
@pytest.mark.parametrize("tool", ["send", "pay"])
def test_several_waits_of_one_commit_and_whichever_comes_first(first: Entry, tool: str) -> None:
    state = body(*together(asks(WHO, ONE), asks(WHAT, f"{ONE}~2"), sleeps(NAP, FAR)), tool=tool)
    assert standing(state) == (WHO, WHAT, NAP)
    assert next_effects(state) == (Record(fired(NAP), FAR),)
    came = decided(ONE, Respond(1)) if isinstance(first, e.TicketOpened) else fired(NAP)
    state = settle(then(state, came))
    assert next_effects(state) == (CallTool(ONE),)
    # It runs again, and lets go at what is open yet: the same questions, not new ones.
    rest = [asks(WHAT, f"{ONE}~2"), sleeps(NAP, FAR) if isinstance(first, e.TicketOpened) else asks(WHO, ONE)]
    state = then(state, *together(*rest))
    assert len(open_call(state).waits) == 3
    assert standing(state) == tuple(entry.step for entry in rest)
    assert isinstance(recorded(state), e.TimerFired) if NAP in standing(state) else next_effects(state) == ()
    assert steps(settle(then(state, decided(f"{ONE}~2", Respond(2))))) == [ONE]


@pytest.mark.proves("W7")
def test_decisions_and_timers_may_come_in_any_order() -> None:
    came = [decided(ONE, Respond(1)), decided(f"{ONE}~2", Reject("no")), fired(NAP)]
    for order in permutations(came):
        state = then(body(*together(asks(WHO, ONE), asks(WHAT, f"{ONE}~2"), sleeps(NAP, FAR))), *order)
        assert next_effects(state) == (CallTool(ONE),)
        assert (state.tickets, state.timers) == ({}, {})
        assert all(wait.closed is not None for wait in open_call(state).waits)


@pytest.mark.proves("W7", "W3")
def test_what_comes_while_the_body_runs_is_there_when_it_lets_go_again() -> None:
    both = [asks(WHO, ONE), sleeps(NAP, FAR)]
    state = then(body(*together(*both)), fired(NAP), decided(ONE, Respond("ada")))
    # It had not seen the answer, and says again that it waits for it.
    state = then(state, asks(WHO, ONE))
    assert state.tickets == {}, "it is not open a second time"
    assert next_effects(state) == (CallTool(ONE),)
    timers = then(body(*together(*both)), decided(ONE, Respond("ada")), fired(NAP), sleeps(NAP, FAR))
    assert (timers.timers, next_effects(timers)) == ({}, (CallTool(ONE),))


@pytest.mark.proves("T7", "W7")
def test_a_retry_stands_at_nothing_and_answers_are_kept() -> None:
    state = then(body(asks(WHO, ONE)), decided(ONE, Respond("ada")), retried(ONE, 90_000))
    assert (standing(state), next_effects(state)) == ((), (CallTool(ONE, 2, 90_000),))
    wait = open_call(state).wait(WHO)
    assert wait is not None
    assert isinstance(wait.closed, e.DecisionMade)
    assert open_call(state).wait(WHAT) is None


def test_other_calls_go_on_meanwhile_unless_they_must_run_alone() -> None:
    asked = reply(call(ONE), call("1.tool.2"), call("1.tool.3", "alone"))
    state = running(asked, asks(WHO, ONE))
    assert steps(state) == ["1.tool.2"]
    assert steps(then(state, returned("1.tool.2"))) == []
    assert steps(then(state, returned("1.tool.2"), decided(ONE, Respond()), returned(ONE))) == ["1.tool.3"]


# --- the end of waiting -----------------------------------------------------------------------------------------------


def test_what_a_call_waited_for_goes_with_it() -> None:
    for answer in (returned(ONE), failed(ONE)):
        state = then(body(*together(asks(WHO, ONE), sleeps(NAP, FAR))), answer)
        assert state.timers == {}
        assert recorded(state) == e.TicketClosed(step=WHO, ticket=ONE, why="withdrawn")
        assert steps(settle(state)) == ["2.model"]


def test_a_timer_of_another_call_stays() -> None:
    nap = "1.tool.2:sleep"
    state = running(reply(call(ONE), call("1.tool.2")), sleeps(NAP, FAR), sleeps(nap, FAR), returned(ONE))
    assert list(state.timers) == [nap]


def test_a_timer_that_nobody_waits_for_is_only_recorded() -> None:
    state = running(sleeps("9.tool.9:sleep", 5), e.TimerFired(timer="other"))
    assert list(state.timers) == ["9.tool.9:sleep"]
    assert then(state, fired("9.tool.9:sleep")).timers == {}


@pytest.mark.proves("C1", "W7")
def test_cancel_ends_a_wait() -> None:
    state = then(body(asks(WHO, ONE), tool="pay"), e.CancelRequested(by="ada"))
    done = settle(state)
    assert done.outcome == Cancelled(by="ada")
    assert told(done)[-1] == f"tool: {ONE} !cancelled"


# --- questions nobody answers -----------------------------------------------------------------------------------------


def question(on_expire: str, step: str = WHO, ticket: str = ONE) -> e.TicketOpened:
    return asks(step, ticket, expires_at=FAR, on_expire=on_expire)


@pytest.mark.proves("W6")
def test_a_question_expires_and_the_body_hears_of_it() -> None:
    state = body(question("reject"))
    effect = only(next_effects(state))
    assert effect == Record(e.TicketClosed(step=WHO, ticket=ONE, why="expired", applied="reject"), FAR)
    assert next_effects(then(state, closed(ONE, "reject"))) == (CallTool(ONE),)


@pytest.mark.proves("W6")
def test_a_question_may_cancel_the_run() -> None:
    state = then(body(question("cancel")), closed(ONE, "cancel"))
    assert recorded(state) == e.CancelRequested(reason=f"ticket {ONE} expired", by="expiry")
    assert settle(state).outcome == Cancelled(by="expiry", reason=f"ticket {ONE} expired")


@pytest.mark.proves("W6", "W1")
@pytest.mark.parametrize("tool", ["send", "pay"])
def test_a_question_may_be_escalated(tool: str) -> None:
    state = then(body(question("escalate"), tool=tool), closed(ONE, "escalate"))
    again = recorded(state)
    assert isinstance(again, e.TicketOpened)
    assert (again.ticket, again.step, again.reason, again.expires_at) == (f"{ONE}~2", WHO, "escalated", None)
    state = then(state, again)
    assert (next_effects(state), standing(state)) == ((), (WHO,))
    assert next_effects(then(state, attached(2))) == ()
    assert steps(settle(then(state, decided(f"{ONE}~2", Respond("ada"))))) == [ONE]


@pytest.mark.proves("W6", "W7")
@pytest.mark.parametrize("tool", ["send", "pay"])
def test_a_body_that_runs_again_stands_at_the_escalated_question(tool: str) -> None:
    state = body(*together(question("escalate"), sleeps(NAP, FAR)), tool=tool)
    state = settle(then(state, closed(ONE, "escalate")))
    state = settle(then(state, fired(NAP)))
    assert steps(state) == [ONE]
    wait = open_call(state).wait(WHO)
    assert wait is not None
    assert isinstance(wait.opened, e.TicketOpened)
    state = then(state, wait.opened)
    assert (next_effects(state), standing(state), list(state.tickets)) == ((), (WHO,), [f"{ONE}~2"])
    assert steps(settle(then(state, decided(f"{ONE}~2", Respond("ada"))))) == [ONE]


@pytest.mark.proves("W6", "W7")
@pytest.mark.parametrize("name", ["escalated", "why"])
def test_a_question_may_be_called_anything(name: str) -> None:
    state = body(asks(f"{ONE}:{name}", ONE, reason=name), tool="pay")
    assert (next_effects(state), standing(state)) == ((), (f"{ONE}:{name}",))


@pytest.mark.proves("W6")
@pytest.mark.parametrize("on_expire", ["escalate", "cancel"])
def test_what_an_expiry_asks_for_comes_before_the_body_runs_again(on_expire: str) -> None:
    """The time of a question and a sleep are over at once: the body must not hear that nobody answered."""
    state = body(*together(question(on_expire), sleeps(NAP, FAR)))
    expiry, timer = next_effects(state)
    assert isinstance(expiry, Record)
    assert isinstance(timer, Record)
    for order in ((expiry, timer), (timer, expiry)):
        both = then(state, *[effect.entry for effect in order])
        assert isinstance(recorded(both), e.TicketOpened if on_expire == "escalate" else e.CancelRequested)
    escalated = then(state, expiry.entry, timer.entry)
    if on_expire == "escalate":
        assert next_effects(settle(escalated)) == (CallTool(ONE),)


@pytest.mark.proves("W6", "W1")
def test_questions_that_are_escalated_together_get_ids_of_their_own() -> None:
    state = body(*together(question("escalate"), question("escalate", WHAT, f"{ONE}~2")))
    state = settle(then(state, closed(ONE, "escalate"), closed(f"{ONE}~2", "escalate")))
    assert {name: ticket.step for name, ticket in state.tickets.items()} == {f"{ONE}~3": WHO, f"{ONE}~4": WHAT}
    assert next_effects(state) == ()


@pytest.mark.proves("W7")
def test_a_question_and_a_sleep_of_one_name_are_two() -> None:
    """The tool has changed since it slept there."""
    state = then(body(sleeps(NAP, FAR), tool="pay"), fired(NAP))
    state = then(settle(state), asks(NAP, ONE))
    assert (next_effects(state), standing(state)) == ((), (NAP,))
    assert steps(settle(then(state, decided(ONE, Respond("ada"))))) == [ONE]
