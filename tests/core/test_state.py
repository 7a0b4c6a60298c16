"""What each kind of entry adds up to."""

from decimal import Decimal

import pytest

from clew.core import entries as e
from clew.core.limits import Limits
from clew.core.messages import Message, Usage
from clew.core.outcomes import Cancelled, Completed
from clew.core.spec import ToolSpec
from clew.core.state import State, apply, fold
from clew.core.tickets import Approve, Decision, Edit, Reject
from clew.core.values import MAX_SAFE_INTEGER
from clew.errors import JournalCorrupt
from tests.core.build import (
    FP,
    RUN,
    SPEC,
    TOOLS,
    attached,
    call,
    decided,
    failed,
    folded,
    intent,
    journal,
    judged,
    late,
    open_call,
    reply,
    resolved,
    retried,
    returned,
    running,
    said,
    share,
    started,
    then,
    told,
)

FINISHED = e.RunFinished(outcome=Completed())


# --- the order of things ----------------------------------------------------------------------------------------------


@pytest.mark.proves("B5")
def test_entries_follow_one_another() -> None:
    state = folded(started())
    assert (state.seq, state.at) == (1, 1000)
    for seq in (1, 3):
        with pytest.raises(JournalCorrupt, match=f"entry {seq} follows entry 1"):
            apply(state, e.Noted(seq=seq, note_kind="x"))


@pytest.mark.proves("J8")
def test_nothing_follows_the_end() -> None:
    for more in (FINISHED, attached(), reply("more")):
        with pytest.raises(JournalCorrupt, match="follows the end of the run"):
            running(FINISHED, more)


def test_a_journal_begins_with_run_started_and_has_one() -> None:
    with pytest.raises(JournalCorrupt, match="run_started comes first, and once"):
        folded(attached())
    with pytest.raises(JournalCorrupt, match="run_started comes first, and once"):
        folded(started(), started())


@pytest.mark.proves("L4")
def test_a_reply_while_calls_are_open_is_refused() -> None:
    with pytest.raises(JournalCorrupt, match="while calls of the last are open"):
        running(reply(call("1.tool.1")), reply("done"))


@pytest.mark.proves("T3")
def test_a_second_answer_to_a_call_is_refused() -> None:
    asked = reply(call("1.tool.1"), call("1.tool.2"))
    for second in (returned("1.tool.1"), failed("1.tool.1"), intent("1.tool.1"), resolved("1.tool.1")):
        with pytest.raises(JournalCorrupt, match=r"'1.tool.1', which is no open call"):
            running(asked, returned("1.tool.1"), second)


def test_folding_is_applying_one_by_one() -> None:
    entries = journal(started(), attached(), reply(call("1.tool.1")), returned("1.tool.1"), reply("done"))
    state = State(run=RUN)
    for entry in entries:
        state = apply(state, entry)
    assert state == fold(RUN, entries)
    assert fold(RUN, []) == State(run=RUN)


# --- begin ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("J9")
def test_messages_have_ids_and_authors_for_ever() -> None:
    two = (Message.system("be brief"), Message("user", Message.user("go").parts, "forged", ("run_9", 1)))
    state = folded(started(input=two), attached(), reply(call("1.tool.1")), returned("1.tool.1"), said("and"))
    assert [(m.role, m.id, m.produced_by) for m in state.transcript] == [
        ("system", f"{RUN}:1.1", None),
        ("user", f"{RUN}:1.2", None),
        ("assistant", f"{RUN}:3", (RUN, 1)),
        ("tool", f"{RUN}:4", (RUN, 1)),
        ("user", f"{RUN}:5", None),
    ]
    assert state.triggered == (f"{RUN}:1.1", f"{RUN}:1.2", f"{RUN}:5")
    assert state.produced == [f"{RUN}:3", f"{RUN}:4"]


def test_what_a_run_is_started_with() -> None:
    limits = Limits(turns=3)
    state = folded(started(limits=limits, client_tools=(ToolSpec(name="screen", client=True),)))
    assert (state.agent, state.fingerprint, state.spec, state.limits) == ("clerk", FP, SPEC, limits)
    assert state.outcome is None


def test_a_driver_brings_its_epoch_and_perhaps_another_agent() -> None:
    state = folded(started(), attached(4))
    assert (state.epoch, state.worker, state.fingerprint) == (4, "w4", FP)
    assert then(state, attached(5, fingerprint="sha256:typed")).fingerprint == "sha256:typed"


def test_only_driven_time_counts() -> None:
    state = folded(started(), attached(1, at=10_000), reply("a", at=17_000), attached(2, at=90_000))
    assert state.driven == 7_000
    assert then(state, e.Noted(note_kind="x", at=95_000)).driven == 12_000


def test_time_under_an_epoch_that_the_same_driver_took_anew_counts() -> None:
    state = folded(started(), attached(1, at=10_000), reply("a", at=17_000))
    assert then(state, e.Noted(note_kind="x", epoch=2, at=19_000)).driven == 9_000


def test_input_takes_another_wording_in_its_place() -> None:
    rewritten = e.InputRewritten(messages=(Message.user("a"), Message.user("b")), by="tidy")
    state = running(said("meanwhile"), rewritten)
    assert told(state) == ["user: a", "user: b", "user: meanwhile"]
    assert state.triggered == (f"{RUN}:4.1", f"{RUN}:4.2", f"{RUN}:3")
    again = then(state, e.InputRewritten(messages=(Message.user("c"),), by="tidy"))
    assert told(again) == ["user: c", "user: meanwhile"]
    assert again.triggered == (f"{RUN}:5", f"{RUN}:3")


# --- replies ----------------------------------------------------------------------------------------------------------


def test_a_reply_is_one_message_and_opens_its_calls() -> None:
    asked = reply("hm", call("1.tool.1"), call("1.tool.2"), cost=Decimal("0.5"))
    state = running(asked)
    assert told(state)[-1] == "assistant: hm look() look()"
    assert [c.id for c in state.open_calls] == ["1.tool.1", "1.tool.2"]
    assert (state.turn, state.call_count, state.attempts, state.cost) == (1, 2, 1, Decimal("0.5"))
    assert state.final is None
    assert (asked.text, asked.calls) == ("hm", (call("1.tool.1"), call("1.tool.2")))


@pytest.mark.proves("L6")
def test_a_continuation_is_of_the_same_turn() -> None:
    state = running(reply("a", finish="length", step="1.model"), reply("b", continues="1.model"))
    assert (state.turn, state.model.asked) == (1, 2)


@pytest.mark.proves("L2")
def test_failures_count_and_cost() -> None:
    bad = e.ModelFailed(class_="timeout", retry_at=5, usage=Usage(input=7, estimated=True), cost=Decimal(1))
    state = running(bad, bad)
    assert (state.model.errors, state.model.asked, state.attempts) == (2, 2, 2)
    assert state.usage == Usage(input=14, estimated=True)
    assert state.cost == 2
    assert running(e.ModelFailed(class_="timeout", retry_at=5)).usage == Usage()
    state = then(state, reply("done", cost=Decimal("0.25")))
    assert (state.model.errors, state.model.asked, state.cost) == (0, 3, Decimal("2.25"))


@pytest.mark.proves("L2")
def test_compaction_children_and_remote_work_cost_too() -> None:
    state = running(
        e.ContextCompacted(covers=("run_1:1",), summary=(), usage=Usage(1), cost=Decimal(1)),
        e.CompactionFailed(class_="timeout"),
        e.ChildStarted(run="run_2", agent="b"),
        e.ChildFinished(run="run_2", outcome=Completed(), usage=Usage(2), cost=Decimal(2)),
        e.RemoteAttached(backend="a2a"),
        e.RemoteAttached(backend="a2a", task="t"),
        e.RemoteProgressed(status="working", usage=Usage(4)),
        e.RemoteProgressed(status="working"),
        e.RemoteAborted(ok=True),
    )
    assert (state.usage, state.cost) == (Usage(7), Decimal(3))
    assert [x.covers for x in state.compacted] == [("run_1:1",)]
    assert (state.children, state.remote and state.remote.task) == ({}, "t")


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("L4")
def test_results_stand_in_call_order_and_messages_after_them() -> None:
    state = running(
        reply(call("1.tool.1"), call("1.tool.2"), call("1.tool.3")),
        returned("1.tool.3", "c"),
        said("wait"),
        failed("1.tool.1", "a"),
    )
    assert told(state) == ["user: go", "assistant: look() look() look()"]
    assert [c.id for c in state.open_calls] == ["1.tool.2"]
    state = then(state, returned("1.tool.2", "b"))
    assert told(state)[2:] == ["tool: 1.tool.1 !a", "tool: 1.tool.2 b", "tool: 1.tool.3 c", "user: wait"]
    assert (state.calls, state.mail) == ((), ())


@pytest.mark.proves("L4")
def test_any_order_of_results_folds_to_the_same() -> None:
    asked = reply(call("1.tool.1"), call("1.tool.2"))
    a, b = returned("1.tool.1", "a"), returned("1.tool.2", "b")
    assert told(running(asked, a, b)) == told(running(asked, b, a))


def test_a_failed_attempt_is_counted_and_the_intent_with_it_spent() -> None:
    state = running(reply(call("1.tool.1", "pay")), intent("1.tool.1"), retried("1.tool.1", 50_000))
    found = open_call(state)
    assert (found.failures, found.retry_at, found.intent, found.in_doubt) == (1, 50_000, None, False)
    assert state.attempts == 2
    assert not open_call(then(state, attached(2))).in_doubt


@pytest.mark.proves("T1")
def test_an_intent_of_an_older_epoch_without_a_result_is_doubt() -> None:
    state = running(reply(call("1.tool.1", "pay"), call("1.tool.2", "pay")), intent("1.tool.1"))
    assert not state.calls[0].in_doubt
    state = then(state, attached(2))
    assert [c.in_doubt for c in state.calls] == [True, False]
    state = then(state, resolved("1.tool.1"))
    assert [c.in_doubt for c in then(state, attached(3)).calls] == [True, False], "it is, until it is answered"
    # Found not to have happened, it is started anew.
    again = open_call(then(state, returned("1.tool.2"), intent("1.tool.1", attempt=2)))
    assert (again.in_doubt, again.finding) == (False, None)


def test_a_result_in_hand_is_no_doubt() -> None:
    asked = reply(call("1.tool.1", "pay"), call("1.tool.2", "pay"))
    state = running(asked, intent("1.tool.1"), returned("1.tool.1"), attached(2))
    assert [c.in_doubt for c in state.calls] == [False, False]


def test_what_is_known_late_is_kept_with_its_call() -> None:
    known = e.LateResultReceived(call="1.tool.1", from_epoch=1, value="x")
    state = running(reply(call("1.tool.1", "pay")), intent("1.tool.1"), attached(2), known)
    (found,) = open_call(state).evidence
    assert (found.value, found.from_epoch) == ("x", 1)
    # Of a call that is answered, or of none, or of what nobody doubts, it is only recorded.
    for entries in ((returned("1.tool.1"), known), (late("9.tool.9"),), (late("1.tool.1:fetch"),)):
        assert then(state, *entries).calls == then(state, *entries[:-1]).calls


def test_verdicts_and_steps_stand_with_their_call() -> None:
    opened = e.StepStarted(call="1.tool.1", name="fetch", step="1.tool.1:fetch")
    closed = e.StepRecorded(call="1.tool.1", name="fetch", step="1.tool.1:fetch", value=1)
    state = running(reply(call("1.tool.1"), call("1.tool.2")), judged("1.tool.1", "allow"), opened, closed)
    assert [s.kind for s in state.calls[0].steps] == ["step_started", "step_recorded"]
    assert state.calls[0].judged is not None
    assert state.calls[1].steps == ()
    assert state.blocked is None
    assert then(state, judged("1.tool.2", "block")).blocked is not None


def test_only_what_ran_is_an_attempt() -> None:
    asked = reply(call("1.tool.1"), call("1.tool.2"))
    state = running(asked, returned("1.tool.1", source="policy"), failed("1.tool.2", source="invalid"))
    assert state.attempts == 1
    assert running(asked, returned("1.tool.1"), failed("1.tool.2")).attempts == 3


def test_the_first_fatal_counts() -> None:
    asked = reply(call("1.tool.1"), call("1.tool.2"))
    state = running(asked, failed("1.tool.1", "a", class_="fatal"), failed("1.tool.2", "b", class_="fatal"))
    assert state.fatal is not None
    assert state.fatal.message == "a"


def test_tools_are_those_of_the_agent_and_of_the_client() -> None:
    screen = ToolSpec(name="screen", client=True)
    state = running(
        reply(call("1.tool.1"), call("1.tool.2", "screen"), call("1.tool.3", "fly")), client_tools=(screen,)
    )
    assert [state.tool_of(c) for c in state.calls] == [TOOLS[0], screen, None]
    assert State().tool_of(state.calls[0]) is None


# --- state keys -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T9")
def test_state_changes_with_a_result() -> None:
    asked = reply(call("1.tool.1"), call("1.tool.2"))
    ops = (
        e.Op(op="set", key="a", value=1),
        e.Op(op="add", key="a", value=2),
        e.Op(op="add", key="b", value=5),
        e.Op(op="append", key="c", value="x", scope="thread"),
        e.Op(op="append", key="c", value="y", scope="thread"),
    )
    state = running(asked, returned("1.tool.1", state=ops))
    assert (state.run_state, state.thread_state) == ({"a": 3, "b": 5}, {"c": ["x", "y"]})
    gone = (e.Op(op="remove", key="a"), e.Op(op="remove", key="never"))
    assert then(state, failed("1.tool.2", state=gone)).run_state == {"b": 5}
    assert then(state, e.StateChanged(ops=gone)).run_state == {"b": 5}


@pytest.mark.proves("Z1")
def test_sums_beyond_safe_integers_take_their_form() -> None:
    big = e.Op(op="set", key="n", value=MAX_SAFE_INTEGER)
    one = e.Op(op="add", key="n", value=1)
    state = running(e.StateChanged(ops=(big, one)))
    assert state.run_state == {"n": {"$number": str(MAX_SAFE_INTEGER + 1)}}
    assert then(state, e.StateChanged(ops=(one,))).run_state == {"n": {"$number": str(MAX_SAFE_INTEGER + 2)}}


@pytest.mark.parametrize("op", ["add", "append"])
def test_an_operation_that_does_not_fit_is_corruption(op: str) -> None:
    ops = (e.Op(op="set", key="a", value="text"), e.Op(op=op, key="a", value=1))  # type: ignore[arg-type]
    with pytest.raises(JournalCorrupt, match="state key 'a'"):
        running(e.StateChanged(ops=ops))


# --- waiting and people -----------------------------------------------------------------------------------------------


def ticket(name: str = "t1", **fields: object) -> e.TicketOpened:
    return e.TicketOpened(**{"ticket": name, "ticket_kind": "approval", "call": "1.tool.1", **fields})  # type: ignore[arg-type]


def decision(made: Decision, name: str = "t1") -> e.DecisionMade:
    return decided(name, made)


def answer(state: State) -> object:
    """What was decided about the approval of its call."""
    wait = open_call(state).ticket("approval")
    assert wait is not None
    return wait.closed.decision if isinstance(wait.closed, e.DecisionMade) else wait.closed


ASKED = (reply(call("1.tool.1")), judged("1.tool.1", "ask", args={"a": 1}, action_key="look:1"))


def test_a_ticket_stays_until_it_is_decided_or_closed() -> None:
    state = running(*ASKED, ticket(), ticket("t2", call=None))
    assert list(state.tickets) == ["t1", "t2"]
    assert answer(state) is None
    assert list(then(state, e.TicketClosed(ticket="t1", why="expired")).tickets) == ["t2"]
    rejected = then(state, decision(Reject("no")))
    assert list(rejected.tickets) == ["t2"]
    assert answer(rejected) == Reject("no")
    assert then(rejected, decision(Approve(), "t2")).tickets == {}


def test_a_decision_for_no_open_ticket_changes_nothing() -> None:
    state = running(*ASKED)
    after = then(state, decision(Approve()))
    assert (after.tickets, after.calls, after.seq) == (state.tickets, state.calls, state.seq + 1)


def test_a_decision_that_comes_after_its_call_was_answered_closes_the_ticket() -> None:
    state = running(*ASKED, ticket(), returned("1.tool.1"), decision(Approve(remember="run")))
    assert (state.tickets, state.run_approvals) == ({}, ())


@pytest.mark.proves("W5")
def test_approvals_are_remembered_by_action() -> None:
    state = running(*ASKED, ticket())
    assert then(state, decision(Approve())).run_approvals == ()
    assert then(state, decision(Approve(remember="run"))).run_approvals == ("look:1",)
    assert then(state, decision(Approve(remember="thread"))).thread_approvals == ("look:1",)
    nameless = running(reply(call("1.tool.1")), ticket(), decision(Approve(remember="run")))
    assert nameless.run_approvals == ()
    # Who says that a doubtful call may run again has approved no other.
    doubt = running(*ASKED, ticket(ticket_kind="doubt"), decision(Approve(remember="run")))
    assert doubt.run_approvals == ()


def test_an_edit_gives_the_call_other_arguments() -> None:
    state = running(*ASKED, ticket(), decision(Edit({"a": 2})))
    found = open_call(state)
    assert found.judged is not None
    assert found.judged.args == {"a": 2}
    assert answer(state) == Edit({"a": 2})
    unjudged = running(reply(call("1.tool.1")), ticket(), decision(Edit({"a": 2})))
    assert (open_call(unjudged).judged, answer(unjudged)) == (None, Edit({"a": 2}))


def test_the_first_cancel_and_the_first_pause_stand() -> None:
    state = running(e.CancelRequested(by="a"), e.CancelRequested(by="b"), e.Paused(by="a"), e.Paused(by="b"))
    assert (state.cancel and state.cancel.by, state.paused and state.paused.by) == ("a", "a")
    assert then(state, e.Unpaused()).paused is None


def test_timers_limits_agents_and_what_was_shown() -> None:
    state = running(
        e.TimerSet(timer="a", due=5),
        e.TimerSet(timer="b", due=6),
        e.TimerFired(timer="a"),
        e.LimitsChanged(limits=Limits(turns=9)),
        e.AgentChanged(to="other"),
        e.ReminderAdded(key="k", text="t"),
        e.SkillLoaded(name="s"),
        e.Noted(note_kind="n", value=1),
    )
    assert (list(state.timers), state.limits.turns, state.agent) == (["b"], 9, "other")
    assert ([r.key for r in state.reminders], [s.name for s in state.skills]) == (["k"], ["s"])


def test_the_end_clears_what_waits() -> None:
    state = running(*ASKED, ticket(), e.TimerSet(timer="a", due=5), e.RunFinished(outcome=Cancelled(by="x")))
    assert (state.tickets, state.timers, state.outcome) == ({}, {}, Cancelled(by="x"))
    assert state.finished is not None
    assert state.finished.reason == "cancelled"


@pytest.mark.proves("J4")
def test_the_transcript_is_shared_not_copied() -> None:
    state = running()
    for turn in range(1, 50):
        before = state
        state = then(state, reply(call(f"{turn}.tool.1")), returned(f"{turn}.tool.1"))
        assert share(state, before)
    assert len(before.transcript) == len(state.transcript) - 2
