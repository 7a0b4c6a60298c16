"""Calls, and steps inside of them, that started and never reported: what is found out, asked and told."""

import pytest
from msgspec.structs import replace

from clew.core import entries as e
from clew.core.effects import CallTool, Close, Here, Record, Verify
from clew.core.entries import Entry
from clew.core.outcomes import Cancelled
from clew.core.proceeding import DID_NOT_HAPPEN, UNKNOWN_OUTCOME
from clew.core.rules import next_effects
from clew.core.spec import AgentSpec, ToolSpec
from clew.core.state import Known, State
from clew.core.steps import backoff
from clew.core.tickets import Approve, Decision, Edit, Reject, Respond
from tests.core.build import (
    FP,
    RUN,
    asks,
    attached,
    began,
    call,
    closed,
    decided,
    failed,
    folded,
    intent,
    late,
    only,
    open_call,
    raised,
    recorded,
    reply,
    resolved,
    retried,
    returned,
    running,
    settle,
    started,
    steps,
    then,
    told,
    told_step,
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


def error(state: State) -> tuple[str, str, str]:
    entry = recorded(state)
    assert isinstance(entry, e.ToolFailed)
    assert entry.final
    return entry.class_, entry.message, entry.source


def opened(state: State) -> e.TicketOpened:
    entry = recorded(state)
    assert isinstance(entry, e.TicketOpened)
    assert entry.ticket_kind == "doubt"
    return entry


# --- what is declared for the case that nobody can say ----------------------------------------------------------------


@pytest.mark.proves("T1", "T2")
def test_somebody_is_asked_about_what_a_crash_left() -> None:
    state = crashed()
    assert opened(state) == e.TicketOpened(
        step=ONE,
        ticket=ONE,
        ticket_kind="doubt",
        call=ONE,
        action="tool:pay",
        prompt="pay was started, and nobody knows whether it happened. Did it?",
        args_digest=opened(state).args_digest,
    )
    state = settle(state)
    assert next_effects(state) == ()
    assert next_effects(then(state, attached(3))) == (), "one crash more is no further question"


@pytest.mark.proves("T2")
def test_or_the_model_is_told() -> None:
    state = crashed("wire")
    entry = recorded(state)
    assert entry == resolved(ONE)
    state = then(state, entry)
    assert error(state) == ("outcome_unknown", UNKNOWN_OUTCOME, "doubt")
    assert error(then(state, attached(3))) == ("outcome_unknown", UNKNOWN_OUTCOME, "doubt")
    assert steps(settle(state)) == ["2.model"]


@pytest.mark.proves("T2")
def test_or_it_runs_again_as_its_next_attempt_and_by_the_same_key() -> None:
    state = crashed("order")
    entry = recorded(state)
    assert entry == resolved(ONE, rule="retry")
    again = recorded(then(state, entry))
    assert isinstance(again, e.ToolStarted)
    assert (again.attempt, again.key) == (2, f"{RUN}:{ONE}")
    state = then(state, entry, again)
    assert next_effects(state) == (CallTool(ONE, 2),)
    # And so after the next crash.
    third = settle(then(state, attached(3)))
    assert next_effects(third) == (CallTool(ONE, 3),)


@pytest.mark.proves("T2")
def test_of_a_tool_that_cannot_be_read_any_more_the_model_is_told() -> None:
    state = replace(crashed(), known=Known())
    assert recorded(state) == resolved(ONE)


@pytest.mark.proves("T2", "T1")
def test_calls_that_may_run_again_do() -> None:
    state = running(reply(call(ONE), call("1.tool.2", "send")), attached(2))
    assert steps(state) == [ONE, "1.tool.2"]
    # Whoever writes an intent for such a call does not make it doubtful.
    state = running(reply(call(ONE, "send")), intent(ONE, effect="idempotent"), attached(2))
    assert steps(state) == [ONE]


@pytest.mark.proves("T11")
def test_nobody_is_asked_while_the_old_owner_may_be_at_it() -> None:
    here = Here(patience={ONE: 70_000})
    for tool, kind in (("pay", e.TicketOpened), ("wire", e.DoubtResolved), ("order", e.DoubtResolved)):
        effect = only(next_effects(crashed(tool), here))
        assert isinstance(effect, Record)
        assert (type(effect.entry), effect.not_before) == (kind, 70_000)
    assert next_effects(crashed("charge"), here) == (Verify(ONE, ONE, 70_000),)


# --- what raised ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T2", "T8")
def test_what_broke_off_is_in_doubt_at_once_and_says_why() -> None:
    state = begun("pay", raised(ONE, "the line was cut"))
    assert opened(state).ticket == ONE
    assert (open_call(state).failures, open_call(state).in_doubt) == (1, True)
    state = begun("wire", raised(ONE, "the line was cut"))
    assert error(settle_doubt(state)) == ("outcome_unknown", "outcome unknown: the line was cut", "doubt")


def settle_doubt(state: State) -> State:
    entry = recorded(state)
    assert isinstance(entry, e.DoubtResolved)
    return then(state, entry)


@pytest.mark.proves("T2", "T7")
def test_after_a_raise_the_next_attempt_waits_its_pause() -> None:
    state = settle_doubt(begun("order", raised(ONE)))
    effect = only(next_effects(state))
    assert isinstance(effect, Record)
    assert (effect.entry.attempt, effect.not_before) == (2, state.at + backoff(RUN, ONE, 1))


@pytest.mark.proves("T7", "T3")
def test_what_raised_and_certainly_failed_is_no_doubt() -> None:
    state = begun("pay", retried(ONE, 90_000), attached(2))
    assert (open_call(state).in_doubt, open_call(state).intent) == (False, None)


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T2")
def test_who_can_find_out_is_asked_first() -> None:
    state = crashed("charge")
    assert next_effects(state) == (Verify(ONE, ONE),)
    # It happened, and this came back.
    done = then(state, resolved(ONE, "verify", "done", "verify"), returned(ONE, "r1", source="verify"))
    assert told(done)[-1] == f"tool: {ONE} r1"
    assert opened(then(state, resolved(ONE, "verify", "unknown", "verify"))).ticket == ONE


@pytest.mark.proves("T2", "T7")
def test_what_did_not_happen_starts_again_and_a_crash_is_no_attempt() -> None:
    state = crashed("charge")
    for epoch in (3, 4, 5):
        state = then(state, resolved(ONE, "verify", "not_done", "verify"))
        assert recorded(state) == resolved(ONE, "verify", "not_done", "retry")
        state = settle(state)
        assert next_effects(state) == (CallTool(ONE, epoch - 1),)
        state = then(state, attached(epoch))
    assert open_call(state).failures == 0


@pytest.mark.proves("T7")
def test_what_raised_and_did_not_happen_is_tried_as_often_as_declared() -> None:
    not_done = resolved(ONE, "verify", "not_done", "verify")
    state = then(begun("charge", raised(ONE)), not_done)
    assert recorded(state) == resolved(ONE, "verify", "not_done", "retry")
    state = then(state, recorded(state))
    intended = only(next_effects(state))
    assert isinstance(intended, Record)
    state = then(state, intended.entry, raised(ONE, "again"), not_done)
    assert error(state) == ("timeout", "again", "verify")


@pytest.mark.proves("T2")
def test_a_finding_without_a_result_is_asked_about() -> None:
    assert opened(then(crashed("charge"), resolved(ONE, "verify", "done", "verify"))).ticket == ONE


# --- whoever is asked -------------------------------------------------------------------------------------------------


def asked(state: State | None = None) -> State:
    return settle(crashed() if state is None else state)


@pytest.mark.proves("W2")
def test_approved_it_runs_again_and_a_new_doubt_is_a_new_question() -> None:
    state = then(asked(), decided(ONE, Approve(remember="run")))
    assert recorded(state) == resolved(ONE, "decision", "not_done", "retry")
    state = settle(state)
    assert next_effects(state) == (CallTool(ONE, 2),)
    assert state.run_approvals == ()
    again = opened(then(state, attached(3)))
    assert again.ticket == f"{ONE}~2"
    assert opened(then(state, raised(ONE))).ticket == f"{ONE}~2"


@pytest.mark.proves("W2")
@pytest.mark.parametrize(
    ("decision", "finding", "answer"),
    [
        (Reject("the bank says no"), "not_done", failed(ONE, "the bank says no", class_="not_done", source="decision")),
        (Reject(), "not_done", failed(ONE, DID_NOT_HAPPEN, class_="not_done", source="decision")),
        (Respond({"id": 7}), "done", returned(ONE, {"id": 7}, source="decision")),
    ],
)
def test_what_somebody_says_of_a_doubt(decision: Decision, finding: str, answer: Entry) -> None:
    state = then(asked(), decided(ONE, decision))
    rule = "respond" if isinstance(decision, Respond) else "reject"
    assert recorded(state) == resolved(ONE, "decision", finding, rule)
    state = then(state, recorded(state))
    assert recorded(state) == answer
    assert recorded(then(state, attached(3))) == answer


def test_what_no_doubt_is_answered_with_leaves_it_unknown() -> None:
    state = then(asked(), decided(ONE, Edit({})))
    assert recorded(state) == resolved(ONE)


def expiring(on_expire: str) -> State:
    tool = ToolSpec(name="pay", expires=60, on_expire=on_expire)  # type: ignore[arg-type]
    known = Known(specs={FP: AgentSpec(name="clerk", tools=(tool,))})
    return folded(started(), attached(), reply(call(ONE, "pay")), intent(ONE), attached(2), known=known)


@pytest.mark.proves("W2", "W6")
@pytest.mark.parametrize("on_expire", ["reject", "approve"])
def test_a_doubt_that_nobody_answers_in_time_stays_unknown(on_expire: str) -> None:
    state = asked(expiring(on_expire))
    expiry = only(next_effects(state))
    assert isinstance(expiry, Record)
    assert expiry.entry == e.TicketClosed(step=ONE, ticket=ONE, why="expired", applied="report")
    state = then(state, expiry.entry)
    assert recorded(state) == resolved(ONE)
    assert error(then(state, recorded(state)))[0] == "outcome_unknown"


@pytest.mark.proves("W6", "T11")
def test_the_time_for_an_answer_begins_when_it_is_asked_for() -> None:
    state = expiring("reject")
    effect = only(next_effects(state, Here(patience={ONE: 90_000_000})))
    assert isinstance(effect, Record)
    assert isinstance(effect.entry, e.TicketOpened)
    assert (effect.not_before, effect.entry.expires_at) == (90_000_000, 150_000_000)
    assert opened(state).expires_at == state.at + 60_000_000


@pytest.mark.proves("W6")
def test_a_doubt_may_be_escalated_or_cancel_the_run() -> None:
    state = then(asked(expiring("escalate")), closed(ONE, "escalate"))
    again = opened(state)
    assert (again.ticket, again.reason, again.expires_at) == (f"{ONE}~2", "escalated", None)
    assert next_effects(then(state, again)) == ()
    assert recorded(replace(state, known=Known())) == resolved(ONE), "nobody knows any more how it is asked"
    state = then(asked(expiring("cancel")), closed(ONE, "cancel"))
    assert isinstance(recorded(state), e.CancelRequested)
    assert settle(state).outcome == Cancelled(by="expiry", reason=f"ticket {ONE} expired")


# --- late results -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("T11")
def test_a_late_result_closes_the_doubt() -> None:
    for state in (crashed(), asked(), crashed("charge")):
        known = then(state, late(ONE, "paid"))
        # Who asks the tool meanwhile is interrupted first.
        assert next_effects(known) == (Close(ONE, resolved(ONE, "late", "done", "late_result"), interrupt=True),)
        known = then(known, resolved(ONE, "late", "done", "late_result"))
        assert recorded(known) == returned(ONE, "paid", source="late")
        done = settle(known)
        assert (told(done)[-1], done.tickets) == (f"tool: {ONE} paid", {})


@pytest.mark.proves("T11")
def test_so_does_a_late_error() -> None:
    state = then(crashed(), late(ONE, error="boom"), resolved(ONE, "late", "done", "late_result"))
    assert error(state) == ("late", "boom", "late")


@pytest.mark.proves("T11")
def test_what_nobody_doubts_is_only_recorded() -> None:
    for state in (begun(), begun("ship", attached(2)), in_step()):
        assert then(state, late(ONE, "paid")).calls == state.calls
    # What an attempt came to that is settled says nothing of the next one.
    state = settle(then(asked(), decided(ONE, Approve())))
    state = then(state, late(ONE, "first"), attached(3))
    assert opened(state).ticket == f"{ONE}~2"


@pytest.mark.proves("T11")
def test_a_conclusion_whose_evidence_is_not_there_is_unknown() -> None:
    for rule in ("late_result", "respond", "reject"):
        assert error(then(crashed(), resolved(ONE, "late", "done", rule)))[0] == "outcome_unknown"


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T5")
def test_doubt_is_asked_of_the_step() -> None:
    state = in_step()
    entry = opened(state)
    assert (entry.step, entry.ticket, entry.call) == (MAIL, ONE, ONE)
    assert entry.prompt == "The step 'mail' of send was started, and nobody knows whether it happened. Did it?"
    state = then(state, entry)
    answers = {
        "done": (Respond("m1"), told_step(MAIL, "m1")),
        "not_done": (Reject("bounced"), told_step(MAIL, error=e.StepError("not_done", "bounced"))),
    }
    for finding, (decision, record) in answers.items():
        settled = then(state, decided(ONE, decision))
        rule = "respond" if finding == "done" else "reject"
        assert recorded(settled) == resolved(MAIL, "decision", finding, rule)
        settled = then(settled, recorded(settled))
        assert recorded(settled) == record
        settled = then(settled, record)
        assert next_effects(settled) == (CallTool(ONE),), "the body runs again and finds it there"
        assert open_call(settled).recorded(MAIL) is not None
    again = settle(then(state, decided(ONE, Approve())))
    assert next_effects(again) == (CallTool(ONE),)
    assert (open_call(again).steps, open_call(again).recorded(MAIL)) == ((), None)


@pytest.mark.proves("T5")
def test_each_step_that_was_open_is_asked_about_in_its_turn() -> None:
    state = settle(in_step("send", began(POST), told_step(f"{ONE}:read")))
    assert open_call(state).doubts == (MAIL, POST)
    state = settle(then(state, decided(ONE, Approve())))
    assert open_call(state).doubts == (POST,)
    assert [ticket.step for ticket in state.tickets.values()] == [POST]
    state = settle(then(state, decided(f"{ONE}~2", Respond())))
    assert steps(state) == [ONE]
    # A crash of the body that runs again finds what is open then.
    state = settle(then(state, began(MAIL), attached(3)))
    assert [ticket.step for ticket in state.tickets.values()] == [MAIL]
    assert list(state.tickets) == [f"{ONE}~3"]


@pytest.mark.proves("T5", "T11")
def test_late_results_of_several_steps_all_count() -> None:
    state = settle(in_step("send", began(POST)))
    state = then(state, late(POST, "p"), late(MAIL, "m"))
    state = settle(state)
    values = {entry.step: entry.value for entry in open_call(state).steps if isinstance(entry, e.StepRecorded)}
    assert values == {MAIL: "m", POST: "p"}
    assert state.tickets == {}, "nobody needs to answer any more"
    assert steps(state) == [ONE]


@pytest.mark.proves("T5")
def test_steps_are_verified_and_reported_by_the_tools_declaration() -> None:
    verified = then(begun("charge"), began(MAIL))
    assert open_call(then(verified, attached(2))).doubts == (ONE,), "its own intent stands before that of its step"
    spec = ToolSpec(name="mixed", effect="idempotent", verifies=True, on_doubt="report")
    known = Known(specs={FP: AgentSpec(name="clerk", tools=(spec,))})
    state = folded(started(), attached(), reply(call(ONE, "mixed")), began(MAIL), attached(2), known=known)
    assert next_effects(state) == (Verify(ONE, MAIL),)
    not_done = then(state, resolved(MAIL, "verify", "not_done", "verify"))
    assert recorded(not_done) == resolved(MAIL, "verify", "not_done", "retry")
    assert steps(settle(not_done)) == [ONE]
    done = then(state, resolved(MAIL, "verify", "done", "verify"), told_step(MAIL, "m"))
    assert (steps(done), open_call(done).finding) == ([ONE], None)
    unknown = then(state, resolved(MAIL, "verify", "unknown", "verify"))
    assert recorded(unknown) == resolved(MAIL)
    unknown = then(unknown, recorded(unknown))
    assert recorded(unknown) == told_step(MAIL, error=e.StepError("outcome_unknown", UNKNOWN_OUTCOME))


@pytest.mark.proves("T5")
def test_a_body_that_acts_in_steps_only_is_entered_again_if_none_is_open() -> None:
    state = begun("ship", began(MAIL), told_step(MAIL, "m"), attached(2))
    entry = recorded(state)
    assert isinstance(entry, e.ToolStarted)
    assert (entry.worker, entry.attempt) == ("w2", 1)
    state = then(state, entry)
    assert next_effects(state) == (CallTool(ONE),)
    assert open_call(state).recorded(MAIL) is not None
    assert opened(then(state, began(POST), attached(3))).step == POST


@pytest.mark.proves("T5", "T7")
@pytest.mark.parametrize("tool", ["send", "pay"])
def test_a_step_that_a_raise_cut_off_is_asked_about_before_the_next_attempt(tool: str) -> None:
    state = begun(tool, began(MAIL), began(POST), told_step(POST), retried(ONE, 90_000))
    assert opened(state).step == MAIL
    state = settle(then(settle(state), decided(ONE, Respond("m"))))
    effect = only(next_effects(state))
    assert isinstance(effect, CallTool | Record)
    assert effect.not_before == 90_000


@pytest.mark.proves("T5")
def test_a_call_that_is_run_again_keeps_what_its_steps_recorded() -> None:
    state = begun("pay", told_step(POST, "p"), began(MAIL), attached(2))
    state = settle(then(asked(state), decided(ONE, Approve())))
    assert [entry.step for entry in open_call(state).steps] == [POST]


@pytest.mark.proves("T5")
def test_unless_other_code_recorded_it() -> None:
    mismatch = raised(ONE, "the tool has changed", class_="step_mismatch")
    state = begun("send", told_step(POST, "p"), mismatch)
    assert opened(state).step == ONE
    state = then(settle(state), decided(ONE, Approve()))
    assert open_call(then(state, recorded(state))).steps == ()


@pytest.mark.proves("T2", "W7")
def test_a_body_that_let_go_is_not_in_doubt_but_its_open_step_is() -> None:
    question = asks(f"{ONE}:who", ONE)
    assert not open_call(begun("pay", question, attached(2))).in_doubt
    state = begun("pay", began(MAIL), question, attached(2))
    assert opened(state).ticket == f"{ONE}~2"
    state = settle(then(settle(state), decided(f"{ONE}~2", Respond("m"))))
    assert next_effects(state) == (), "and then it waits as before"
    assert isinstance(recorded(then(state, decided(ONE, Respond("ada")))), e.ToolStarted)
