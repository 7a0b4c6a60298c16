"""Whether a call may run: verdicts, approvals, and tools that somebody else performs."""

from typing import Any

import pytest
from msgspec.structs import replace

from clew.core import entries as e
from clew.core.effects import CallTool, Close, Here, Judge, Record
from clew.core.entries import Entry
from clew.core.outcomes import Cancelled
from clew.core.proceeding import arguments, call_digest, stated_arguments
from clew.core.rules import next_effects
from clew.core.spec import AgentSpec, ToolSpec
from clew.core.state import Known, State
from clew.core.tickets import Approve, Decision, Edit, Reject, Respond
from clew.core.values import INLINE_LIMIT
from tests.core.build import (
    FP,
    GUARDED,
    RUN,
    SCREEN,
    TOOLS,
    attached,
    call,
    closed,
    decided,
    failed,
    finish,
    folded,
    intent,
    judged,
    only,
    open_call,
    recorded,
    reply,
    retried,
    returned,
    running,
    settle,
    started,
    steps,
    then,
)

ONE = "1.tool.1"
SECOND = 1_000_000


def asked(tool: str = "gated", *entries: Entry, **fields: Any) -> State:
    """A call about which policy says that somebody is to be asked."""
    verdict = judged(ONE, "ask", tool=tool, reason="it is dear", args={"a": 1}, action_key="k")
    return running(reply(call(ONE, tool, '{"a":1}')), verdict, *entries, **fields)


def opened(state: State) -> e.TicketOpened:
    entry = recorded(state)
    assert isinstance(entry, e.TicketOpened)
    return entry


def failure(state: State) -> tuple[str, str, str]:
    entry = recorded(state)
    assert isinstance(entry, e.ToolFailed)
    assert entry.final
    return entry.class_, entry.message, entry.source


# --- who is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("T10", "L1")
def test_only_where_somebody_has_a_say_is_anybody_asked() -> None:
    plain = reply(call(ONE))
    assert next_effects(running(plain)) == (CallTool(ONE),)
    for fingerprint in ("sha256:guarded", "sha256:watched"):
        state = running(plain, e.StateChanged(step="input"), fingerprint=fingerprint)
        here = Here(hooked=frozenset({"on_attach"}))
        assert next_effects(state, here) == (Judge(ONE),)
        # A plain allow leaves no fact: this process remembers it, another asks again.
        assert next_effects(state, replace(here, allowed=frozenset({ONE}))) == (CallTool(ONE),)
    assert next_effects(running(reply(call(ONE, "gated")))) == (Judge(ONE),)


@pytest.mark.proves("T10")
def test_the_policy_of_today_has_a_say_too() -> None:
    state = running(reply(call(ONE)), attached(2, fingerprint="sha256:guarded"))
    assert next_effects(state) == (Judge(ONE),)


@pytest.mark.proves("T10", "W7")
def test_nobody_judges_what_has_begun() -> None:
    state = running(reply(call(ONE, "pay")), intent(ONE), fingerprint="sha256:guarded")
    assert next_effects(state) == (CallTool(ONE),)
    waiting = then(state, e.TimerSet(step=f"{ONE}:sleep", timer=f"{ONE}:sleep", due=9), attached(2))
    assert isinstance(recorded(waiting), e.TimerFired)
    assert isinstance(recorded(then(waiting, e.TimerFired(timer=f"{ONE}:sleep"))), e.ToolStarted)
    # An attempt that raised is over: the next one is a beginning.
    assert next_effects(then(state, retried(ONE, 9))) == (Judge(ONE),)


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T10")
def test_a_denied_call_says_why() -> None:
    for verdict, told in (
        (judged(ONE, "deny"), "denied by r1"),
        (judged(ONE, "deny", reason="not today"), "not today"),
    ):
        assert failure(running(reply(call(ONE)), verdict)) == ("denied", told, "policy")


@pytest.mark.proves("T10")
def test_an_answer_stands_for_the_call() -> None:
    state = running(reply(call(ONE)), judged(ONE, "answer", value={"cached": True}))
    assert recorded(state) == returned(ONE, {"cached": True}, source="policy")


@pytest.mark.proves("T10", "L1")
def test_an_allowed_call_runs_with_the_arguments_that_were_judged() -> None:
    state = running(reply(call(ONE, args='{"a":1}')), judged(ONE, "allow", args={"a": 2}))
    assert steps(state) == [ONE]
    assert arguments(open_call(state)) == {"a": 2}
    plain = running(reply(call(ONE, args='{"a":1}')), judged(ONE, "allow"))
    assert arguments(open_call(plain)) == {"a": 1}


@pytest.mark.proves("Z1")
def test_arguments_take_the_journals_form() -> None:
    state = running(reply(call(ONE, args='{"n":9007199254740993,"x":NaN}')))
    assert arguments(open_call(state)) == {"n": {"$number": "9007199254740993"}, "x": {"$number": "NaN"}}


def test_a_verdict_states_no_arguments_that_are_large() -> None:
    small, large = '{"a":1}', '{"a":"' + "x" * INLINE_LIMIT + '"}'
    assert stated_arguments(open_call(running(reply(call(ONE, args=small))))) == {"a": 1}
    assert stated_arguments(open_call(running(reply(call(ONE, args=large))))) is None


# --- approvals --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("W1", "W4")
def test_an_approval_is_asked_for_with_what_it_binds_to() -> None:
    state = asked()
    entry = opened(state)
    assert entry == e.TicketOpened(
        step=ONE,
        ticket=ONE,
        ticket_kind="approval",
        call=ONE,
        action="tool:gated",
        prompt="May gated run?",
        schema={},
        args_digest=call_digest(open_call(state), next(tool for tool in TOOLS if tool.name == "gated")),
        reason="it is dear",
    )
    assert next_effects(then(state, entry)) == ()
    assert next_effects(then(state, entry, attached(2))) == ()
    assert opened(running(reply(call(ONE)), judged(ONE, "ask"))).reason == "r1"


DECIDED = [
    (Approve(), None),
    (Reject("too dear"), ("rejected", "too dear", "decision")),
    (Reject(), ("rejected", "this call was rejected", "decision")),
]


@pytest.mark.proves("W2")
@pytest.mark.parametrize(("decision", "told"), DECIDED, ids=repr)
def test_what_is_decided_about_an_approval(decision: Decision, told: tuple[str, str, str] | None) -> None:
    state = settle(asked())
    state = then(state, decided(ONE, decision))
    if told is None:
        assert next_effects(state) == (CallTool(ONE),)
    else:
        assert failure(state) == told


@pytest.mark.proves("W2")
def test_a_response_is_the_result() -> None:
    state = then(settle(asked()), decided(ONE, Respond({"b": 2})))
    assert recorded(state) == returned(ONE, {"b": 2}, source="decision")


@pytest.mark.proves("W2", "T10")
def test_edited_arguments_are_judged_again_and_then_run() -> None:
    state = then(settle(asked("pay")), decided(ONE, Edit({"a": 2})))
    assert next_effects(state) == (Judge(ONE, again=True),)
    allowed = then(state, judged(ONE, "allow", args={"a": 2}, rule="edited"))
    entry = recorded(allowed)
    assert isinstance(entry, e.ToolStarted)
    tool = next(tool for tool in TOOLS if tool.name == "pay")
    assert entry.digest == call_digest(open_call(allowed), tool)
    assert arguments(open_call(allowed)) == {"a": 2}
    assert failure(then(state, judged(ONE, "deny", reason="never"))) == ("denied", "never", "policy")


@pytest.mark.proves("W4")
def test_what_was_approved_is_what_runs_or_somebody_is_asked_again() -> None:
    other = AgentSpec(name="clerk", tools=(ToolSpec(name="gated", effect="read", schema={"type": "object"}),))
    known = Known(specs={FP: AgentSpec(name="clerk", tools=TOOLS), "sha256:new": other})
    state = folded(started(), attached(), reply(call(ONE, "gated")), judged(ONE, "ask"), known=known)
    state = then(settle(state), decided(ONE, Approve()))
    assert next_effects(state) == (CallTool(ONE),)
    changed = then(state, attached(2, fingerprint="sha256:new"))
    entry = opened(changed)
    assert (entry.ticket, entry.schema) == (f"{ONE}~2", {"type": "object"})
    changed = then(changed, entry)
    assert next_effects(changed) == ()
    assert next_effects(then(changed, decided(entry.ticket, Approve()))) == (CallTool(ONE),)


@pytest.mark.proves("W4")
def test_a_tool_that_the_agent_of_today_has_not_is_held_to_what_it_was() -> None:
    known = Known(specs={FP: AgentSpec(name="clerk", tools=TOOLS), "sha256:bare": AgentSpec(name="clerk")})
    state = folded(started(), attached(), reply(call(ONE, "gated")), judged(ONE, "ask"), known=known)
    state = then(settle(state), decided(ONE, Approve()), attached(2, fingerprint="sha256:bare"))
    assert next_effects(state) == (CallTool(ONE),)
    assert next_effects(then(state, attached(3, fingerprint="sha256:lost"))) == (CallTool(ONE),)


@pytest.mark.proves("W2")
def test_decided_calls_go_on_while_others_wait() -> None:
    two = [judged(f"1.tool.{i}", "ask") for i in (1, 2)]
    state = settle(running(reply(call(ONE), call("1.tool.2")), *two))
    assert list(state.tickets) == [ONE, "1.tool.2"]
    assert steps(then(state, decided("1.tool.2", Approve()))) == ["1.tool.2"]


# --- expiry -----------------------------------------------------------------------------------------------------------

EXPIRING = {
    on_expire: AgentSpec(
        name="clerk",
        tools=(
            ToolSpec(name="gated", effect="read", needs_approval=True, expires=60, on_expire=on_expire),
            ToolSpec(name="form", client=True, expires=0.5, on_expire=on_expire),
        ),
    )
    for on_expire in ("reject", "approve", "cancel", "escalate")
}


def expired(on_expire: str, tool: str = "gated") -> State:
    """The time of a ticket is over: what that means is in the journal."""
    spec = EXPIRING[on_expire]
    verdict = judged(ONE, "ask", tool=tool) if tool == "gated" else judged(ONE, "allow", tool=tool)
    state = folded(started(), attached(), reply(call(ONE, tool)), verdict, known=Known(specs={FP: spec}))
    entry = opened(state)
    seconds = 60 if tool == "gated" else 0.5
    assert entry.expires_at == state.at + seconds * SECOND
    state = then(state, entry)
    effect = only(next_effects(state))
    assert isinstance(effect, Record)
    assert effect.not_before == entry.expires_at
    assert isinstance(effect.entry, e.TicketClosed)
    assert effect.entry.why == "expired"
    return then(state, replace(effect.entry, at=entry.expires_at))


@pytest.mark.proves("W6")
def test_an_approval_that_nobody_gave_is_none_or_one_as_the_tool_says() -> None:
    assert failure(expired("reject")) == ("expired", "nobody approved this call in time", "decision")
    assert next_effects(expired("approve")) == (CallTool(ONE),)


@pytest.mark.proves("W6")
@pytest.mark.parametrize("tool", ["gated", "form"])
def test_an_expiry_may_cancel_the_run(tool: str) -> None:
    state = expired("cancel", tool)
    entry = recorded(state)
    assert entry == e.CancelRequested(reason=f"ticket {ONE} expired", by="expiry")
    assert settle(state).outcome == Cancelled(by="expiry", reason=f"ticket {ONE} expired")


@pytest.mark.proves("W6", "W1")
@pytest.mark.parametrize("tool", ["gated", "form"])
def test_what_is_escalated_is_asked_again_and_waits_for_ever(tool: str) -> None:
    state = expired("escalate", tool)
    entry = opened(state)
    assert (entry.ticket, entry.expires_at, entry.reason) == (f"{ONE}~2", None, "escalated")
    state = then(state, entry)
    assert next_effects(state) == ()
    answer = decided(entry.ticket, Respond(7))
    assert recorded(then(state, answer)) == returned(ONE, 7, source="decision")


@pytest.mark.proves("W6")
def test_a_decision_stored_before_the_expiry_was_committed_wins() -> None:
    state = settle(asked("patient"))
    state = then(state, decided(ONE, Approve()), replace(closed(ONE, "escalate"), at=99 * SECOND))
    assert isinstance(recorded(state), e.ToolStarted)


def test_what_is_withdrawn_without_a_word_is_no_approval() -> None:
    state = then(settle(asked()), closed(ONE, None, "withdrawn"))
    assert failure(state)[0] == "expired"


# --- client tools -----------------------------------------------------------------------------------------------------


def offered(*entries: Entry) -> State:
    return running(reply(call(ONE, "screen", '{"a":1}')), *entries, client_tools=(SCREEN,))


@pytest.mark.proves("W8", "W1")
def test_a_client_tool_opens_a_ticket() -> None:
    entry = opened(offered())
    assert (entry.ticket, entry.ticket_kind, entry.action, entry.schema) == (ONE, "client_tool", "tool:screen", None)
    assert (entry.prompt, entry.expires_at) == ("screen is yours to run.", None)
    assert next_effects(then(offered(), entry)) == ()


@pytest.mark.proves("W2", "W8")
def test_what_is_decided_about_a_client_tool() -> None:
    state = settle(offered())
    assert recorded(then(state, decided(ONE, Respond("seen")))) == returned(ONE, "seen", source="decision")
    assert failure(then(state, decided(ONE, Reject("busy")))) == ("rejected", "busy", "decision")
    assert failure(then(state, decided(ONE, Reject())))[1] == "the client turned this call down"


@pytest.mark.proves("W6")
@pytest.mark.parametrize("on_expire", ["reject", "approve"])
def test_a_client_that_does_not_answer_in_time_has_not_run_it(on_expire: str) -> None:
    assert failure(expired(on_expire, "form")) == ("expired", "the client did not answer in time", "decision")


@pytest.mark.proves("T10", "W8")
def test_policy_has_a_say_in_client_tools_too() -> None:
    spec = replace(GUARDED, tools=(*TOOLS, SCREEN))
    state = folded(started(), attached(), reply(call(ONE, "screen")), known=Known(specs={FP: spec}))
    assert next_effects(state) == (Judge(ONE),)
    assert opened(then(state, judged(ONE, "allow"))).ticket_kind == "client_tool"
    assert failure(then(state, judged(ONE, "deny")))[0] == "denied"
    # Asked about, and then offered under the next id.
    approved = then(settle(then(state, judged(ONE, "ask"))), decided(ONE, Approve()))
    entry = opened(approved)
    assert (entry.ticket_kind, entry.ticket) == ("client_tool", f"{ONE}~2")
    here = Here(allowed=frozenset({ONE}))
    assert isinstance(recorded(state, here), e.TicketOpened)


# --- tickets that nobody needs any more -------------------------------------------------------------------------------


def test_a_ticket_is_withdrawn_once_its_call_is_answered() -> None:
    state = settle(asked())
    state = then(state, failed(ONE, source="superseded"))
    assert recorded(state) == e.TicketClosed(step=ONE, ticket=ONE, why="withdrawn")
    assert steps(settle(state)) == ["2.model"]
    assert settle(state).tickets == {}


@pytest.mark.proves("C1")
def test_cancel_needs_no_answer() -> None:
    state = then(settle(asked()), e.CancelRequested(by="ada"))
    assert only(next_effects(state)) == Close(
        ONE, failed(ONE, "cancelled", class_="cancelled", source="cancelled"), interrupt=True
    )
    done = settle(state)
    assert (done.outcome, done.tickets) == (Cancelled(by="ada"), {})
    assert finish(then(state, failed(ONE))).outcome == Cancelled(by="ada")


def test_the_key_of_a_call_is_that_of_its_run_and_step() -> None:
    entry = recorded(running(reply(call(ONE, "pay"))))
    assert isinstance(entry, e.ToolStarted)
    assert entry.key == f"{RUN}:{ONE}"
