"""Every rule of the loop: what is asked of the world, given what has happened."""

from decimal import Decimal

import pytest

from clew.core import entries as e
from clew.core.effects import Await, CallModel, CallTool, CheckOutput, Close, Finish, Here, Record, RunHooks
from clew.core.limits import Limits
from clew.core.messages import Usage
from clew.core.outcomes import Blocked, Cancelled, Completed, Failed, Requested, Stopped
from clew.core.proceeding import CUT_OFF, NOT_RUN_REJOINED, UNKNOWN_OUTCOME, call_digest
from clew.core.rules import CANCELLED, NOT_RUN_ENDING, PARALLEL_CALLS, next_effects
from clew.core.state import State
from clew.core.steps import INPUT_STEP
from clew.core.values import digest
from tests.core.build import (
    RUN,
    TOOLS,
    attached,
    call,
    failed,
    finish,
    folded,
    intent,
    judged,
    only,
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
    watched,
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
    assert entry.message == "there is no tool 'fly': use one of " + ", ".join(tool.name for tool in TOOLS)
    long = recorded(running(reply(call("1.tool.1", "x" * 65))))
    assert isinstance(long, e.ToolFailed)
    assert long.message.startswith(f"there is no tool '{'x' * 64}…': use one of")


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


# --- middleware -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("L1")
def test_middleware_sees_each_activation_and_once_what_came_in() -> None:
    state = watched()
    assert next_effects(state) == (RunHooks("on_attach", "on_attach"),)
    here = Here(hooked=frozenset({"on_attach"}))
    assert next_effects(state, here) == (RunHooks(INPUT_STEP, "on_input"),)
    # It leaves its mark in the journal, or passes here.
    assert next_effects(then(state, e.StateChanged(step=INPUT_STEP)), here) == (CallModel("1.model"),)
    passed = Here(hooked=frozenset({"on_attach", INPUT_STEP}))
    assert next_effects(state, passed) == (CallModel("1.model"),)
    # Another process does not see the input again, if it was changed.
    again = then(state, e.StateChanged(step=INPUT_STEP), attached(2))
    assert next_effects(again) == (RunHooks("on_attach", "on_attach"),)
    assert next_effects(again, here) == (CallModel("1.model"),)


@pytest.mark.proves("L1")
def test_middleware_sees_a_turn_once_its_results_are_there() -> None:
    here = Here(hooked=frozenset({"on_attach", INPUT_STEP}), allowed=frozenset({"1.tool.1"}))
    state = watched(reply(call("1.tool.1")))
    assert next_effects(state, here) == (CallTool("1.tool.1"),)
    state = then(state, returned("1.tool.1"))
    assert next_effects(state, here) == (RunHooks("1.end", "on_turn_end"),)
    assert steps(then(state, e.StateChanged(step="1.end")), here) == ["2.model"]
    assert steps(state, Here(hooked=here.hooked | {"1.end"})) == ["2.model"]
    assert state.course.hooked == ""
    # A mark of another boundary is none of this one.
    assert then(state, e.StateChanged(step="7.end")).course.hooked == ""


def test_middleware_does_not_see_the_last_reply_as_a_turn_nor_a_failure_for_good() -> None:
    here = Here(hooked=frozenset({"on_attach", INPUT_STEP}))
    assert isinstance(only(next_effects(watched(reply("done")), here)), Finish)
    assert isinstance(only(next_effects(watched(e.ModelFailed(class_="middleware")))), Finish)
    failed_later = watched(reply(call("1.tool.1")), returned("1.tool.1"), e.ModelFailed(class_="unauthorized"))
    assert isinstance(only(next_effects(failed_later, here)), Finish)


@pytest.mark.proves("L9")
@pytest.mark.parametrize("asked", [reply(call("1.tool.1"), end=True), e.StateChanged(end=True)], ids=["reply", "hook"])
def test_middleware_may_ask_for_the_end_after_the_calls(asked: e.Entry) -> None:
    state = running(*([asked] if isinstance(asked, e.ModelReplied) else [reply(call("1.tool.1")), asked]))
    assert steps(state) == ["1.tool.1"]
    assert finish(then(state, returned("1.tool.1"))).outcome == Requested()


# --- recovery after failures ------------------------------------------------------------------------------------------

GAVE_UP = Failed("tool_failed", "Tool execution failed: no")


def recovering(mode: str, *entries: e.Entry) -> State:
    return running(*entries, fingerprint=f"sha256:{mode}")


def test_a_failure_is_told_to_the_model_by_default() -> None:
    assert steps(running(reply(call("1.tool.1")), failed("1.tool.1"))) == ["2.model"]
    # Also if nobody can read how the agent recovers.
    unreadable = running(reply(call("1.tool.1", "fly")), fingerprint="sha256:gone")
    assert steps(settle(unreadable)) == ["2.model"]


def test_a_failure_stops_the_run_of_an_agent_that_says_so() -> None:
    state = recovering("stop", reply(call("1.tool.1"), call("1.tool.2")), failed("1.tool.1"))
    assert only(next_effects(state)) == Close(
        "1.tool.2", failed("1.tool.2", NOT_RUN_ENDING, class_="not_run", source="cancelled"), interrupt=False
    )
    assert settle(state).outcome == GAVE_UP
    # What was forbidden, or never ran, is no failure of the tool.
    for source in ("policy", "decision", "cancelled", "superseded", "middleware"):
        assert steps(recovering("stop", reply(call("1.tool.1")), failed("1.tool.1", source=source))) == ["2.model"]


def test_so_many_failures_of_one_tool_in_a_row_stop_the_run() -> None:
    first = [reply(call("1.tool.1"), call("1.tool.2", "send")), failed("1.tool.1"), failed("1.tool.2", "other")]
    state = recovering("2", *first)
    assert steps(state) == ["2.model"]
    assert state.course.failing == {"look": 1, "send": 1}
    assert finish(then(state, reply(call("2.tool.1")), failed("2.tool.1"))).outcome == GAVE_UP
    well = then(state, reply(call("2.tool.1")), returned("2.tool.1"), reply(call("3.tool.1")), failed("3.tool.1"))
    assert well.course.failing == {"look": 1, "send": 1}
    assert steps(well) == ["4.model"]
    # The counts are folded, so they survive a crash.
    assert finish(then(state, attached(2), reply(call("2.tool.1")), failed("2.tool.1"))).outcome == GAVE_UP


def test_a_function_may_stop_the_run_and_its_failure_is_the_one_that_is_told() -> None:
    asked = reply(call("1.tool.1"), call("1.tool.2"))
    state = running(asked, failed("1.tool.1", stop=True), failed("1.tool.2", "another"))
    assert finish(state).outcome == GAVE_UP
    refused = running(reply(call("1.tool.1")), failed("1.tool.1", source="policy", stop=True))
    assert finish(refused).outcome == GAVE_UP


# --- replies that were cut off ----------------------------------------------------------------------------------------


@pytest.mark.proves("L6")
def test_words_that_were_cut_off_are_taken_up_again_and_joined() -> None:
    state = running(reply("All ", finish="length", step="1.model"))
    assert next_effects(state) == (CallModel("1.model.2", 1, 1, None, "1.model"),)
    state = then(state, reply("is ", finish="length", step="1.model.2", continues="1.model"))
    assert next_effects(state) == (CallModel("1.model.3", 1, 2, None, "1.model"),)
    # So often and no oftener.
    state = then(state, reply("well", finish="length", step="1.model.3", continues="1.model"))
    assert finish(state).output == e.Output(text="All is well")
    assert told(state) == ["user: go", "assistant: All is well"]
    assert finish(state).turns == 1


@pytest.mark.proves("L6", "L5")
def test_a_continuation_is_no_turn_more_and_has_its_price() -> None:
    cut = reply("All", finish="length")
    assert steps(running(cut, limits=Limits(turns=1))) == ["1.model.2"]
    for limits, code in ((Limits(turns=1, tokens=15), "tokens"), (Limits(turns=1, cost=0), "cost")):
        outcome = finish(running(cut, limits=limits)).outcome
        assert isinstance(outcome, Stopped)
        assert outcome.code == code


@pytest.mark.proves("L6")
def test_parts_that_are_no_words_stand_side_by_side() -> None:
    asked = reply("let me", finish="length", step="1.model")
    state = running(asked, reply(call("1.tool.1"), continues="1.model"))
    assert told(state) == ["user: go", "assistant: let me look()"]
    assert steps(state) == ["1.tool.1"]
    assert told(running(reply(finish="length"), reply("so", continues="1.model")))[-1] == "assistant: so"


def test_without_an_agent_that_can_be_read_nothing_is_taken_up_again() -> None:
    assert finish(running(reply("All", finish="length"), fingerprint="sha256:gone")).output.text == "All"


def test_a_message_puts_an_end_to_what_was_cut_off() -> None:
    assert steps(running(reply("All", finish="length"), said("stop"))) == ["2.model"]


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
    assert [line.split("!")[1] for line in told(state)[2:]] == ["no weapons", NOT_RUN_ENDING]
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
