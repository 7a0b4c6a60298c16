"""What crosses from a base into the run that goes on from it, and what does not."""

from decimal import Decimal

import pytest
from msgspec.structs import replace

from clew.core import entries as e
from clew.core.entries import Entry
from clew.core.limits import Limits
from clew.core.messages import Message, Usage
from clew.core.outcomes import Cancelled, Completed
from clew.core.rules import next_effects
from clew.core.snapshots import restored, snapshot
from clew.core.state import Known, State, apply, fold, rebase
from clew.core.tickets import Approve, Reject
from clew.errors import JournalCorrupt
from tests.core.build import (
    FP,
    KNOWN,
    RUN,
    asks,
    attached,
    began,
    call,
    decided,
    failed,
    folded,
    intent,
    journal,
    judged,
    recorded,
    reply,
    resolved,
    retried,
    returned,
    running,
    said,
    settle,
    share,
    started,
    steps,
    then,
    told,
    told_step,
)

NEXT = "run_2"


def on(base: State, *entries: Entry, text: str | None = "next", **fields: object) -> State:
    """Another run that goes on from this state."""
    given = {"base": e.BaseAt(base.run, base.seq), **fields}
    known = Known(specs=KNOWN.specs, bases={(base.run, base.seq): base})
    return folded(started(text, **given), *entries, known=known, run=NEXT)


def lived() -> State:
    """A run that has one of everything, and is between two turns."""
    ticket = e.TicketOpened(ticket="t1", ticket_kind="approval", call="1.tool.1")
    return running(
        e.ModelFailed(class_="timeout", retry_at=3),
        e.ModelSwitched(from_="a", to="b"),
        reply(call("1.tool.1"), cost=Decimal("0.5")),
        judged("1.tool.1", "ask", action_key="look:1"),
        ticket,
        e.DecisionMade(ticket="t1", decision_id="d", decision=Approve(remember="thread")),
        returned(
            "1.tool.1",
            state=(e.Op(op="set", key="r", value=1), e.Op(op="set", key="t", value=2, scope="thread")),
            end=True,
        ),
        e.ContextCompacted(covers=("run_1:1",), summary=(Message.user("sum"),)),
        e.TicketOpened(ticket="t2", ticket_kind="limit"),
        e.TimerSet(timer="x", due=5),
        e.ChildStarted(run="run_9", agent="b", background=True),
        e.RemoteAttached(backend="a2a", task="t"),
        e.Paused(),
        e.AgentChanged(to="boss"),
        e.LimitsChanged(limits=Limits(turns=1)),
        e.CancelRequested(by="ada"),
        limits=Limits(turns=2),
    )


@pytest.mark.proves("B1")
def test_what_crosses() -> None:
    base = lived()
    state = on(base, agent="")
    assert told(state) == [*told(base), "user: next"]
    assert share(state, base)
    assert [m.id for m in state.transcript] == ["run_1:1", "run_1:5", "run_1:9", "run_2:1"]
    assert state.compacted == base.compacted
    assert state.thread_state == {"t": 2}
    assert state.thread_approvals == ("look:1",)
    assert state.agent == "boss"
    assert on(base).agent == "clerk"
    assert (state.inherited_usage, state.inherited_cost) == (Usage(10, 5, requests=1), Decimal("0.5"))


@pytest.mark.proves("B1")
def test_what_does_not_cross() -> None:
    state = on(lived())
    fresh = folded(started("next"), run=NEXT)
    own = {"seq", "at", "started", "known", "transcript", "base_length", "compacted", "thread_state"}
    crossing = {"thread_approvals", "inherited_usage", "inherited_cost"}
    for field in State.__struct_fields__:
        if field not in own | crossing:
            assert getattr(state, field) == getattr(fresh, field), field
    assert state.produced == []
    assert steps(then(state, attached())) == ["1.model"]


@pytest.mark.proves("B1")
def test_a_finished_base_is_no_end() -> None:
    base = then(running(reply("done")), e.RunFinished(outcome=Cancelled()))
    state = on(base)
    assert (state.finished, state.cancel, state.final) == (None, None, None)
    assert steps(state) == ["1.model"]


@pytest.mark.proves("B1")
def test_usage_is_inherited_through_generations() -> None:
    first = running(reply("a", cost=Decimal(1)))
    second = then(on(first), attached(), reply("b", cost=Decimal(2)))
    third = on(second)
    assert (third.usage, third.cost) == (Usage(), None)
    assert (third.inherited_usage, third.inherited_cost) == (Usage(20, 10, requests=2), Decimal(3))


@pytest.mark.proves("B1")
def test_turns_are_counted_on_only_inside_a_turn() -> None:
    base = running(reply(call("1.tool.1")), returned("1.tool.1"), reply(call("2.tool.1"), call("2.tool.2")))
    base = then(base, returned("2.tool.1", "kept"))
    inside = on(base, text=None)
    assert (inside.turn, inside.first_turn) == (2, 2)
    assert steps(inside) == ["2.tool.2"]
    done = then(inside, returned("2.tool.2", "new"))
    assert told(done)[-2:] == ["tool: 2.tool.1 kept", "tool: 2.tool.2 new"]
    assert steps(done) == ["3.model"]
    assert done.produced == ["run_2:2"]
    # Only what it does itself counts against its limits.
    assert steps(then(on(base, text=None, limits=Limits(turns=1)), returned("2.tool.2"))) == ["3.model"]
    between = on(then(base, returned("2.tool.2")), text=None)
    assert (between.turn, between.first_turn, steps(between)) == (0, 0, ["1.model"])


@pytest.mark.proves("B2")
def test_an_open_call_is_not_yet_judged_in_the_new_run() -> None:
    base = running(
        reply(call("1.tool.1", "send"), call("1.tool.2", "pay"), call("1.tool.3")),
        judged("1.tool.1", "deny"),
        e.TicketOpened(ticket="t1", ticket_kind="approval", call="1.tool.1"),
        retried("1.tool.1", 90_000),
        intent("1.tool.1", effect="idempotent"),
        e.StepRecorded(call="1.tool.1", name="s", value=1),
        returned("1.tool.3", "kept"),
    )
    state = on(base, text=None)
    first, second, third = state.calls
    assert (first.judged, first.waits, first.failures, first.retry_at, first.intent) == (None, (), 0, None, None)
    assert (first.steps, first.in_doubt) == ((), False)
    assert not second.in_doubt
    assert third.answer is not None
    assert steps(state) == ["1.tool.1"]
    entry = recorded(then(state, returned("1.tool.1")))
    assert isinstance(entry, e.ToolStarted)
    assert entry.key == "run_2:1.tool.2"


@pytest.mark.proves("B2")
@pytest.mark.parametrize(
    "found",
    [(), (attached(2),), (attached(2), resolved("1.tool.1")), (asks("1.tool.1:who", "1.tool.1"),)],
    ids=["running", "crashed", "told", "waiting"],
)
@pytest.mark.parametrize("many", [0, 30], ids=["early", "late"])
def test_an_intent_without_a_result_is_in_doubt_in_the_new_run_too(found: tuple[Entry, ...], many: int) -> None:
    remarks = [e.Noted(note_kind="n")] * many  # the base's places are none in the new journal
    base = running(reply(call("1.tool.1", "pay")), *remarks, intent("1.tool.1"), *found)
    state = on(base, text=None)
    assert steps(state) == []
    assert_asked(state)
    assert_asked(on(replace(state, run="run_1b"), text=None))


def assert_asked(state: State) -> None:
    """Somebody is asked once, and nothing else is done."""
    entry = recorded(state)
    assert isinstance(entry, e.TicketOpened)
    assert (entry.ticket_kind, entry.ticket) == ("doubt", "1.tool.1")
    state = then(state, entry)
    assert next_effects(state) == ()
    assert recorded(then(state, decided(entry.ticket, Reject()))) == resolved(
        "1.tool.1", "decision", "not_done", "reject"
    )


@pytest.mark.proves("B2", "T5")
def test_so_is_a_call_with_a_once_step_that_never_reported() -> None:
    body = (began("1.tool.1:mail"), told_step("1.tool.1:fetch"))
    assert_asked(on(running(reply(call("1.tool.1", "send")), *body), text=None))
    harmless = began("1.tool.1:mail", effect="idempotent")
    assert steps(on(running(reply(call("1.tool.1", "send")), harmless), text=None)) == ["1.tool.1"]


@pytest.mark.proves("B3")
def test_new_input_answers_the_open_calls_in_call_order() -> None:
    base = running(
        reply(call("1.tool.1", "pay"), call("1.tool.2"), call("1.tool.3", "nowhere"), call("1.tool.4")),
        intent("1.tool.1"),
        returned("1.tool.4", "kept"),
    )
    state = settle(on(base, attached()))
    assert [line.partition(":")[0] for line in told(state)] == ["user", "assistant", *["tool"] * 4, "user"]
    assert "outcome unknown" in told(state)[2]
    assert told(state)[3:] == [
        "tool: 1.tool.2 !not run: the conversation went another way",
        "tool: 1.tool.3 !not run: the conversation went another way",
        "tool: 1.tool.4 kept",
        "user: next",
    ]
    assert steps(state) == ["2.model"]


@pytest.mark.proves("B1", "B3")
def test_a_message_the_base_had_taken_in_is_not_lost() -> None:
    base = running(reply(call("1.tool.1")), said("wait"))
    assert told(settle(on(base)))[-2:] == ["user: wait", "user: next"]
    assert told(then(on(base, text=None), returned("1.tool.1")))[-2:] == ["tool: 1.tool.1 ok", "user: wait"]


def test_input_is_reworded_while_calls_of_the_base_are_open() -> None:
    base = running(reply(call("1.tool.1")))
    state = on(base, attached(), e.InputRewritten(messages=(Message.user("nicer"),), by="tidy"))
    assert told(state) == told(base)
    assert told(settle(state))[-1] == "user: nicer"
    # And once they are answered.
    late = then(settle(on(base, attached())), e.InputRewritten(messages=(Message.user("nicer"),), by="tidy"))
    assert told(late)[-2:] == ["tool: 1.tool.1 !not run: the conversation went another way", "user: nicer"]


# --- queued runs ------------------------------------------------------------------------------------------------------


def queued(*entries: Entry, base: State | None = None, **fields: object) -> State:
    bases = {} if base is None else {(base.run, base.seq): base}
    known = Known(specs=KNOWN.specs, bases=bases)
    return folded(started("next", base=e.BaseThread(), **fields), *entries, known=known, run=NEXT)


@pytest.mark.proves("B4", "W11")
def test_a_queued_run_goes_on_from_where_its_thread_is_when_its_turn_comes() -> None:
    base = running(reply("done"), e.RunFinished(outcome=Completed()))
    state = queued(base=base)
    assert (state.queued, told(state), next_effects(state)) == (True, [], ())
    assert state.triggered == ("run_2:1",)
    state = then(state, e.BaseFixed(run=base.run, base_seq=base.seq))
    assert not state.queued
    assert told(state) == ["user: go", "assistant: done", "user: next"]
    assert state.inherited_usage == base.usage
    assert steps(state) == ["1.model"]


@pytest.mark.proves("W11")
def test_what_a_queued_run_is_told_meanwhile_is_kept() -> None:
    base = running(reply("done"))
    reworded = e.InputRewritten(messages=(Message.user("nicer"),), by="tidy")
    state = queued(said("one thing more"), reworded, base=base)
    assert told(state) == []
    state = then(state, e.BaseFixed(run=base.run, base_seq=base.seq))
    assert told(state) == ["user: go", "assistant: done", "user: nicer", "user: one thing more"]
    assert state.triggered == ("run_2:3", "run_2:2")


def test_a_queued_run_whose_thread_stayed_empty_begins_it() -> None:
    state = queued(said("more"), e.BaseFixed(run="", base_seq=0))
    assert told(state) == ["user: next", "user: more"]
    assert steps(state) == ["1.model"]


def test_a_base_is_fixed_once_and_only_if_it_was_open() -> None:
    fixed = e.BaseFixed(run="", base_seq=0)
    for entries in ((fixed,), (fixed, fixed)):
        with pytest.raises(JournalCorrupt, match="fixes a base that was never open"):
            running(*entries) if len(entries) == 1 else queued(*entries)


def test_a_base_that_cannot_be_read_is_corruption() -> None:
    with pytest.raises(JournalCorrupt, match="goes on from entry 7 of 'run_x', which cannot be read"):
        folded(started(base=e.BaseAt("run_x", 7)))


# --- snapshots and chains ---------------------------------------------------------------------------------------------


@pytest.mark.proves("B4")
def test_a_snapshot_stands_for_its_base() -> None:
    inside = running(
        reply(call("1.tool.1", "pay"), call("1.tool.2")),
        intent("1.tool.1"),
        returned("1.tool.2"),
        said("wait"),
    )
    blob = {"$blob": "sha256:s", "size": 1, "type": "application/json"}
    for base in (inside, lived(), on(lived(), attached(), reply("x", cost=Decimal(3)))):
        taken = restored(snapshot(base))
        known = Known(specs=KNOWN.specs, bases={("sha256:s", 0): taken})
        for text in (None, "next"):
            state = folded(started(text, base=e.BaseSnapshot(blob)), known=known, run=NEXT)
            direct = on(base, text=text)
            for field in State.__struct_fields__:
                if field != "started":
                    assert getattr(state, field) == getattr(direct, field), field


@pytest.mark.proves("B5")
def test_a_chain_of_two_thousand_folds_by_iteration() -> None:
    base = running(reply("0"))
    for number in range(1, 2_000):
        name = f"run_{number}"
        first = started(str(number), base=e.BaseAt(base.run, base.seq))
        known = Known(specs=KNOWN.specs, bases={(base.run, base.seq): base})
        base = fold(name, journal(first, attached(), reply(str(number))), known)
    assert len(base.transcript) == 4_000
    assert base.inherited_usage == Usage(19_990, 9_995, requests=1_999)
    assert base.known.bases == {}
    assert repr(base)


@pytest.mark.proves("B1", "B5")
def test_forks_of_one_position_share_it_and_not_each_other() -> None:
    base = running(reply(call("1.tool.1")), returned("1.tool.1"))
    left = then(on(base, text="left"), attached(), reply("l"))
    right = then(on(base, text="right"), attached(), reply("r"))
    on_with_it = then(base, reply("on"))
    assert [told(s)[-2:] for s in (left, right)] == [["user: left", "assistant: l"], ["user: right", "assistant: r"]]
    assert told(on_with_it)[-1] == "assistant: on"
    assert len(told(base)) == 3


def test_rebase_is_a_function_of_two_states() -> None:
    base = running(reply("done"))
    fresh = State(run=NEXT, known=KNOWN, agent="clerk", fingerprint=FP)
    assert rebase(base, fresh).transcript == base.transcript
    assert rebase(base, fresh) == rebase(base, fresh)


def test_a_call_of_the_base_that_failed_for_good_stays_failed() -> None:
    base = running(reply(call("1.tool.1"), call("1.tool.2")), failed("1.tool.1", "no"))
    assert told(then(on(base, text=None), returned("1.tool.2")))[-2] == "tool: 1.tool.1 !no"


def test_applying_reads_the_base_it_was_given() -> None:
    base = running(reply("done"))
    fresh = State(run=NEXT, known=Known(bases={(RUN, 3): base}))
    entry = journal(started("next", base=e.BaseAt(RUN, 3)))[0]
    assert apply(fresh, entry).base_length == 2
