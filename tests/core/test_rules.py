"""Every rule of the loop: what is asked of the world, given what has happened."""

from decimal import Decimal

import pytest

from clew.core import entries as e
from clew.core.effects import Await, CallModel, CallTool, CheckOutput, Close, Finish, Record
from clew.core.limits import Limits
from clew.core.messages import Usage
from clew.core.outcomes import Blocked, Cancelled, Completed, Failed, Requested, Stopped
from clew.core.rules import (
    CANCELLED,
    CUT_OFF,
    NOBODY_TO_ASK,
    NOT_RUN_ENDING,
    NOT_RUN_REJOINED,
    PARALLEL_CALLS,
    UNKNOWN_OUTCOME,
    arguments,
    call_digest,
    next_effects,
)
from clew.core.spec import ToolSpec
from clew.core.state import State
from clew.core.values import digest
from tests.core.build import (
    RUN,
    attached,
    call,
    doubted,
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
    said,
    settle,
    started,
    steps,
    then,
    told,
)


def test_what_never_started_asks_for_nothing() -> None:
    assert next_effects(State()) == ()


@pytest.mark.proves("L1")
def test_the_loop_in_one_breath() -> None:
    state = running()
    assert next_effects(state) == (CallModel("1.model", 1, 0),)
    state = then(state, reply("hm", call("1.tool.1"), call("1.tool.2", "send")))
    assert next_effects(state) == (CallTool("1.tool.1"), CallTool("1.tool.2"))
    state = then(state, returned("1.tool.2", "second"))
    assert next_effects(state) == (CallTool("1.tool.1"),)
    state = then(state, returned("1.tool.1", "first"))
    assert next_effects(state) == (CallModel("2.model", 1, 1),)
    state = then(state, reply("done"))
    assert finish(state) == e.RunFinished(
        outcome=Completed(), output=e.Output(text="done"), usage=Usage(20, 10, requests=2), turns=2, calls=2
    )
    assert next_effects(settle(state)) == ()
    assert told(state) == [
        "user: go",
        "assistant: hm look() send()",
        "tool: 1.tool.1 first",
        "tool: 1.tool.2 second",
        "assistant: done",
    ]


# --- the model --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("L10")
def test_a_transient_failure_is_asked_again_when_its_time_has_come() -> None:
    state = running(e.ModelFailed(step="1.model", class_="overloaded", retry_at=9_000))
    assert next_effects(state) == (CallModel("1.model", 2, 1, 9_000),)
    assert next_effects(then(state, reply(call("1.tool.1")), returned("1.tool.1"))) == (CallModel("2.model", 1, 2),)


@pytest.mark.proves("L10")
def test_a_permanent_failure_ends_the_run() -> None:
    state = running(e.ModelFailed(step="1.model", class_="unauthorized", message="no key"))
    assert finish(state).outcome == Failed("unauthorized", "no key")


def test_after_a_fall_over_the_failure_is_forgotten() -> None:
    failure = e.ModelFailed(step="1.model", class_="unauthorized")
    state = running(failure, e.ModelSwitched(from_="a", to="b", why="unauthorized"))
    assert next_effects(state) == (CallModel("1.model", 1, 1),)
    assert state.model.name == "b"


def test_a_withheld_answer_is_a_failure() -> None:
    assert finish(running(reply(finish="filter"))).outcome == Failed("filtered", "the provider withheld the answer")


def test_a_typed_answer_is_held_against_its_type_and_sent_back() -> None:
    state = running(reply("7", step="1.model"), fingerprint="sha256:typed")
    assert next_effects(state) == (CheckOutput("1.model", "7"),)
    state = then(state, e.OutputRejected(message="not a number"))
    assert next_effects(state) == (CallModel("2.model", 1, 1),)
    assert state.rejections == 1
    assert told(state)[-1] == "user: not a number"


def test_an_answer_without_its_step_is_checked_all_the_same() -> None:
    assert next_effects(running(reply("7"), fingerprint="sha256:typed")) == (CheckOutput("", "7"),)


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T1")
def test_a_once_call_starts_with_its_intent_and_the_others_without() -> None:
    state = running(reply(call("1.tool.1", "pay", '{"to":"ada"}'), call("1.tool.2", "send")))
    tool = state.tool_of(state.calls[0])
    assert tool is not None
    expected = e.ToolStarted(
        step="1.tool.1",
        call="1.tool.1",
        key=f"{RUN}:1.tool.1",
        digest=digest(["pay", {"to": "ada"}, {}]),
        effect="once",
        worker="w1",
    )
    assert next_effects(state) == (Record(expected), CallTool("1.tool.2"))
    assert expected.digest == call_digest(state.calls[0], tool)
    assert next_effects(then(state, expected)) == (CallTool("1.tool.1"), CallTool("1.tool.2"))


@pytest.mark.proves("T1")
def test_a_retry_of_a_once_call_has_an_intent_of_its_own_no_earlier_than_it_starts() -> None:
    state = running(reply(call("1.tool.1", "pay")), intent("1.tool.1"), retried("1.tool.1", 90_000))
    effect = only(next_effects(state))
    assert isinstance(effect, Record)
    assert (effect.entry.attempt, effect.not_before) == (2, 90_000)
    assert next_effects(then(state, effect.entry)) == (CallTool("1.tool.1", 2, 90_000),)


def test_a_retry_of_any_other_call_waits_its_pause() -> None:
    state = running(reply(call("1.tool.1", "send")), retried("1.tool.1", 90_000))
    assert next_effects(state) == (CallTool("1.tool.1", 2, 90_000),)
    assert next_effects(then(state, retried("1.tool.1", 99_000))) == (CallTool("1.tool.1", 3, 99_000),)


@pytest.mark.proves("T6")
def test_a_sequential_call_runs_alone_and_in_its_place() -> None:
    asked = reply(call("1.tool.1"), call("1.tool.2", "alone"), call("1.tool.3"), call("1.tool.4"))
    state = running(asked)
    assert steps(state) == ["1.tool.1"]
    state = then(state, returned("1.tool.1"))
    assert steps(state) == ["1.tool.2"]
    assert steps(then(state, returned("1.tool.2"))) == ["1.tool.3", "1.tool.4"]


@pytest.mark.proves("T6")
def test_not_more_calls_at_a_time_than_allowed() -> None:
    state = running(reply(*[call(f"1.tool.{i}") for i in range(1, PARALLEL_CALLS + 3)]))
    assert len(next_effects(state)) == PARALLEL_CALLS
    assert steps(then(state, returned("1.tool.3")))[-1] == f"1.tool.{PARALLEL_CALLS + 1}"


@pytest.mark.proves("L8")
def test_an_unknown_tool_is_an_error_result_that_names_the_known_ones() -> None:
    entry = recorded(running(reply(call("1.tool.1", "fly"))))
    assert isinstance(entry, e.ToolFailed)
    assert (entry.class_, entry.source, entry.final) == ("unknown_tool", "invalid", True)
    assert entry.message == "there is no tool 'fly': use one of look, send, pay, alone, gated"


@pytest.mark.proves("L8")
def test_an_unknown_tool_of_an_agent_that_cannot_be_read() -> None:
    entry = recorded(running(reply(call("1.tool.1", "fly")), fingerprint="sha256:gone"))
    assert isinstance(entry, e.ToolFailed)
    assert entry.message == "there is no tool 'fly'"


@pytest.mark.proves("L8")
def test_arguments_that_do_not_parse_are_an_error_result_and_the_siblings_run() -> None:
    state = running(reply(call("1.tool.1", args="{", invalid="Expecting property name"), call("1.tool.2")))
    bad, good = next_effects(state)
    assert isinstance(bad, Record)
    assert isinstance(bad.entry, e.ToolFailed)
    assert (bad.entry.class_, bad.entry.message) == ("invalid_arguments", "Expecting property name")
    assert good == CallTool("1.tool.2")


@pytest.mark.proves("L6")
def test_calls_of_a_reply_cut_off_at_its_length_are_answered_not_run() -> None:
    entry = recorded(running(reply(call("1.tool.1", "pay"), finish="length")))
    assert isinstance(entry, e.ToolFailed)
    assert (entry.class_, entry.message, entry.source) == ("cut_off", CUT_OFF, "invalid")


def test_a_call_is_held_to_the_declaration_of_its_reply() -> None:
    state = running(reply(call("1.tool.1")))
    assert steps(then(state, attached(2, fingerprint="sha256:other"))) == ["1.tool.1"]


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_call_that_needs_an_approval_is_denied_while_nobody_can_be_asked() -> None:
    state = running(reply(call("1.tool.1", "gated", '{"a":1}')))
    entry = recorded(state)
    assert entry == e.CallJudged(
        step="1.tool.1",
        call="1.tool.1",
        tool="gated",
        args={"a": 1},
        verdict="deny",
        rule="needs_approval",
        reason=NOBODY_TO_ASK,
    )
    denial = recorded(then(state, entry))
    assert isinstance(denial, e.ToolFailed)
    assert (denial.class_, denial.message, denial.source) == ("denied", NOBODY_TO_ASK, "policy")


def test_so_is_a_client_tool() -> None:
    state = running(reply(call("1.tool.1", "screen")), client_tools=(ToolSpec(name="screen", client=True),))
    entry = recorded(state)
    assert isinstance(entry, e.CallJudged)
    assert entry.rule == "client_tool"


@pytest.mark.parametrize("verdict", ["deny", "ask"])
def test_a_denied_call_says_why(verdict: str) -> None:
    state = running(reply(call("1.tool.1")), judged("1.tool.1", verdict))
    entry = recorded(state)
    assert isinstance(entry, e.ToolFailed)
    assert entry.message == "denied by r1"
    entry = recorded(running(reply(call("1.tool.1")), judged("1.tool.1", verdict, reason="not today")))
    assert isinstance(entry, e.ToolFailed)
    assert entry.message == "not today"


def test_an_answer_stands_for_the_call() -> None:
    state = running(reply(call("1.tool.1")), judged("1.tool.1", "answer", value={"cached": True}))
    assert recorded(state) == returned("1.tool.1", {"cached": True}, source="policy")


def test_an_allowed_call_runs_with_the_arguments_that_were_judged() -> None:
    state = running(reply(call("1.tool.1", args='{"a":1}')), judged("1.tool.1", "allow", args={"a": 2}))
    assert steps(state) == ["1.tool.1"]
    assert arguments(open_call(state)) == {"a": 2}
    plain = running(reply(call("1.tool.1", args='{"a":1}')), judged("1.tool.1", "allow"))
    assert arguments(open_call(plain)) == {"a": 1}


@pytest.mark.proves("Z1")
def test_arguments_take_the_journals_form() -> None:
    state = running(reply(call("1.tool.1", args='{"n":9007199254740993,"x":NaN}')))
    assert arguments(open_call(state)) == {"n": {"$number": "9007199254740993"}, "x": {"$number": "NaN"}}


# --- doubt ------------------------------------------------------------------------------------------------------------


def crashed() -> State:
    return running(reply(call("1.tool.1", "pay")), intent("1.tool.1"), attached(2))


@pytest.mark.proves("T1")
def test_what_a_crash_left_is_told_and_never_started_again() -> None:
    entry = recorded(crashed())
    assert entry == doubted("1.tool.1")
    state = then(crashed(), entry)
    failure = recorded(state)
    assert isinstance(failure, e.ToolFailed)
    assert (failure.class_, failure.message, failure.source) == ("outcome_unknown", UNKNOWN_OUTCOME, "doubt")
    # A crash in between changes nothing.
    assert recorded(then(state, attached(3))) == failure
    assert steps(then(state, failure)) == ["2.model"]


def test_a_late_result_closes_the_doubt() -> None:
    state = then(crashed(), e.LateResultReceived(call="1.tool.1", from_epoch=1, value="paid"))
    entry = recorded(state)
    assert entry == e.DoubtResolved(step="1.tool.1", call="1.tool.1", how="late", finding="done", rule="late_result")
    assert recorded(then(state, entry)) == returned("1.tool.1", "paid", source="late")


def test_a_late_error_does_not() -> None:
    state = then(crashed(), e.LateResultReceived(call="1.tool.1", from_epoch=1, error="boom"))
    assert recorded(state) == doubted("1.tool.1")


def test_a_finding_of_somebody_else_without_a_value_is_unknown_too() -> None:
    failure = recorded(then(crashed(), doubted("1.tool.1", "done", "verify")))
    assert isinstance(failure, e.ToolFailed)
    assert failure.class_ == "outcome_unknown"


def test_calls_that_may_run_again_do() -> None:
    state = running(reply(call("1.tool.1"), call("1.tool.2", "send")), attached(2))
    assert steps(state) == ["1.tool.1", "1.tool.2"]
    # Whoever writes an intent for such a call does not make it doubtful.
    state = running(reply(call("1.tool.1", "send")), intent("1.tool.1", effect="idempotent"), attached(2))
    assert steps(state) == ["1.tool.1"]


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("C1", "C2")
def test_cancel_answers_the_open_calls_and_ends() -> None:
    state = running(
        reply(call("1.tool.1"), call("1.tool.2", "pay"), call("1.tool.3", "pay"), call("1.tool.4")),
        intent("1.tool.2"),
        returned("1.tool.4", "kept"),
        e.CancelRequested(reason="enough", by="ada", inbox=1),
    )
    first, second, third = next_effects(state)
    assert isinstance(first, Close)
    assert isinstance(second, Close)
    assert isinstance(third, Close)
    assert all(effect.interrupt for effect in (first, second, third))
    assert isinstance(first.entry, e.ToolFailed)
    assert isinstance(second.entry, e.ToolFailed)
    assert (first.entry.message, first.entry.source) == (CANCELLED, "cancelled")
    assert (second.entry.message, second.entry.source) == (UNKNOWN_OUTCOME, "doubt")
    state = then(state, first.entry, second.entry, third.entry)
    assert finish(state).outcome == Cancelled(by="ada", reason="enough")
    assert told(state)[2:] == [
        f"tool: 1.tool.1 !{CANCELLED}",
        f"tool: 1.tool.2 !{UNKNOWN_OUTCOME}",
        f"tool: 1.tool.3 !{CANCELLED}",
        "tool: 1.tool.4 kept",
    ]


@pytest.mark.proves("C1")
def test_cancel_settles_a_doubt_first() -> None:
    state = then(crashed(), e.CancelRequested())
    state = settle(state)
    assert state.outcome == Cancelled()
    assert told(state)[-1] == f"tool: 1.tool.1 !{UNKNOWN_OUTCOME}"


@pytest.mark.proves("C1")
def test_cancel_wins_over_pause_queue_and_answer() -> None:
    assert finish(running(reply("done"), e.CancelRequested())).outcome == Cancelled()
    assert finish(running(e.Paused(), e.CancelRequested())).outcome == Cancelled()
    assert finish(folded(started(base=e.BaseThread()), e.CancelRequested())).outcome == Cancelled()


def test_a_queued_run_waits() -> None:
    assert next_effects(folded(started(base=e.BaseThread()))) == ()


def test_a_paused_run_lets_end_what_is_being_performed() -> None:
    state = running(reply(call("1.tool.1"), call("1.tool.2")), returned("1.tool.1"), e.Paused())
    assert next_effects(state) == (Await("2.model"), Await("1.tool.2"))
    assert steps(then(state, e.Unpaused())) == ["1.tool.2"]


@pytest.mark.proves("T8")
def test_fatal_ends_the_run_once_the_siblings_have_ended() -> None:
    state = running(
        reply(call("1.tool.1"), call("1.tool.2"), call("1.tool.3", "pay")),
        intent("1.tool.3"),
        failed("1.tool.1", "disk on fire", class_="fatal"),
    )
    second, third = next_effects(state)
    assert isinstance(second, Close)
    assert isinstance(third, Close)
    assert not second.interrupt
    assert isinstance(second.entry, e.ToolFailed)
    assert isinstance(third.entry, e.ToolFailed)
    assert second.entry.message == NOT_RUN_ENDING
    assert third.entry.message == UNKNOWN_OUTCOME
    # What runs may still say its own.
    state = then(state, returned("1.tool.2", "mine"), returned("1.tool.3", "paid"))
    assert finish(state).outcome == Failed("fatal", "disk on fire")


@pytest.mark.proves("T8")
def test_after_a_fatal_sibling_and_a_crash_nothing_runs_again() -> None:
    state = running(
        reply(call("1.tool.1"), call("1.tool.2"), call("1.tool.3", "pay")),
        intent("1.tool.3"),
        failed("1.tool.1", class_="fatal"),
        attached(2),
    )
    assert steps(state) == []
    assert settle(state).outcome == Failed("fatal", "no")


def test_a_block_ends_the_run_and_answers_the_siblings() -> None:
    state = running(reply(call("1.tool.1"), call("1.tool.2")), judged("1.tool.1", "block", reason="no weapons"))
    state = settle(state)
    assert state.outcome == Blocked("no weapons")
    assert [line.split("!")[1] for line in told(state)[2:]] == [NOT_RUN_ENDING] * 2
    assert settle(running(reply(call("1.tool.1")), judged("1.tool.1", "block"))).outcome == Blocked("r1")


@pytest.mark.proves("L9")
def test_a_tool_may_ask_for_the_end_after_its_siblings() -> None:
    state = running(reply(call("1.tool.1"), call("1.tool.2")), returned("1.tool.1", end=True))
    assert steps(state) == ["1.tool.2"]
    assert finish(then(state, returned("1.tool.2"))).outcome == Requested()


@pytest.mark.proves("L2", "L5")
def test_a_limit_is_held_before_the_model_is_asked_and_not_after_it_answered() -> None:
    state = running(reply(call("1.tool.1")), limits=Limits(turns=1))
    assert steps(state) == ["1.tool.1"]
    assert finish(then(state, returned("1.tool.1"))).outcome == Stopped("turns", "1 of 1")
    assert finish(running(reply("done"), limits=Limits(turns=1))).outcome == Completed()
    assert finish(running(limits=Limits(turns=0))).outcome == Stopped("turns", "0 of 0")


@pytest.mark.proves("L2")
def test_limits_survive_a_crash() -> None:
    state = running(reply(call("1.tool.1")), returned("1.tool.1"), attached(2), limits=Limits(turns=1))
    assert finish(state).outcome == Stopped("turns", "1 of 1")


def test_an_end_tells_of_children_left_behind() -> None:
    state = running(e.ChildStarted(run="run_2", agent="b"), reply("done"))
    assert finish(state).children_abandoned == ("run_2",)


def test_a_message_taken_in_puts_off_the_end() -> None:
    state = running(reply("done"), said("and one thing more"))
    assert next_effects(state) == (CallModel("2.model", 1, 1),)


def test_superseded_calls_are_answered_in_the_new_run() -> None:
    base = running(reply(call("1.tool.1"), call("1.tool.2", "pay")), intent("1.tool.2"))
    known = {"bases": {("run_0", 4): base}, "specs": base.known.specs}
    state = folded(started("other", base=e.BaseAt("run_0", 4)), known=type(base.known)(**known))
    done = settle(state)
    assert told(done)[1:] == [
        "assistant: look() pay()",
        f"tool: 1.tool.1 !{NOT_RUN_REJOINED}",
        f"tool: 1.tool.2 !{UNKNOWN_OUTCOME}",
        "user: other",
    ]
    assert steps(done) == ["2.model"]


def test_costs_end_in_the_last_entry() -> None:
    state = running(reply("done", cost=Decimal("0.02")))
    assert next_effects(state) == (
        Finish(
            e.RunFinished(
                outcome=Completed(),
                output=e.Output(text="done"),
                usage=Usage(10, 5, requests=1),
                cost=Decimal("0.02"),
                turns=1,
            )
        ),
    )
