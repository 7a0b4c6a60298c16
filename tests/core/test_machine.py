"""Any legal interleaving of outcomes, letters and crashes, played against the core alone."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from clew.core import entries as e
from clew.core.effects import (
    Await,
    CallModel,
    CallTool,
    CheckOutput,
    Close,
    Effect,
    Finish,
    Here,
    Judge,
    Record,
    RunHooks,
    Verify,
)
from clew.core.messages import Message, Usage
from clew.core.outcomes import Cancelled, Completed, Failed
from clew.core.rules import finished, next_effects
from clew.core.state import Known, State, apply, fold
from clew.core.steps import call_of, call_step
from tests.core import moves
from tests.core.build import KNOWN, call, failed, judged, raised, resolved, retried, returned, started, told_step
from tests.core.moves import ONCE, Flight, Performed, due_of, one_in, pick, starts

OUTPUT_RETRIES = 2
FORK_AFTER = 20
SETTLES_WITHIN = 60
BODY = ["end", "end", "end", "step", "step", "step ends", "let go", "let go"]


class Driver(RuleBasedStateMachine):
    """One run at a time; a fork leaves it for another that goes on from one of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.now = 1_000

    # --- the journal

    def begin(self, first: e.RunStarted, bases: dict[tuple[str, int], State]) -> None:
        self.number += 1
        self.flights: dict[str, Flight] = {}
        self.ghosts: list[e.LateResultReceived] = []
        self.here = Here()
        self.epoch = 0
        self.log: list[e.Entry] = []
        self.known = Known(specs=KNOWN.specs, bases=bases)
        self.states = [State(run=f"run_{self.number}", known=self.known)]
        self.untouchable: set[str] = set()
        self.may_start: set[str] = set()
        self.add(first)

    @property
    def state(self) -> State:
        return self.states[-1]

    @property
    def effects(self) -> tuple[Effect, ...]:
        return next_effects(self.state, self.here)

    @property
    def live(self) -> bool:
        return bool(self.states) and self.state.finished is None and self.state.epoch > 0

    def stamped(self, state: State, entry: e.Entry, batch: int) -> e.Entry:
        return replace(entry, seq=state.seq + 1, batch=batch, at=max(self.now, state.at), epoch=self.epoch)

    def add(self, *entries: e.Entry) -> None:
        """One commit."""
        batch = self.state.seq + 1
        for made in entries:
            entry = self.stamped(self.state, made, batch)
            self.states.append(apply(self.state, entry))
            self.log.append(entry)
            if isinstance(entry, e.ToolStarted):
                self.may_start.add(entry.call)
            if isinstance(entry, e.DoubtResolved) and entry.rule == "retry":
                self.untouchable.discard(entry.call)

    def write(self, entry: e.Entry) -> None:
        """A fact from an effect: it is about something that is not being performed, and asked for once."""
        assert entry.step is None or entry.step not in self.flights
        self.add(entry)
        assert not any(isinstance(effect, Record | Close) and effect.entry == entry for effect in self.effects)

    # --- how runs begin

    @initialize(start=starts, queued=st.sampled_from([False, False, True]))
    def start(self, start: dict[str, Any], queued: bool) -> None:
        self.begin(started("go", base=e.BaseThread() if queued else None, **start), {})
        if not queued:
            self.attach()

    @precondition(lambda self: self.state.finished is not None or len(self.log) >= FORK_AFTER)
    @rule(place=pick, start=starts, text=st.sampled_from([None, "other"]))
    def fork(self, place: int, start: dict[str, Any], text: str | None) -> None:
        base = self.states[1:][-1 - place % (len(self.states) - 1)]
        if base.queued:
            return
        self.begin(started(text, base=e.BaseAt(base.run, base.seq), **start), {(base.run, base.seq): base})
        for old, new in zip(base.calls, self.state.calls, strict=False):
            assert new.answer == old.answer
            assert (new.judged, new.waits, new.standing) == (None, (), ()) or new.answer is not None
            if old.answer is None and moves.is_in_doubt(old):
                assert new.in_doubt
                self.untouchable.add(old.id)
        self.attach()

    def attach(self) -> None:
        self.epoch += 1
        self.add(e.DriverAttached(worker="w"))

    # --- what drivers do

    @precondition(lambda self: self.live)
    @rule(which=pick, data=st.data())
    def go_on(self, which: int, data: st.DataObject) -> None:
        """Perform an effect, let one go on, or wait for the next to be due."""
        moves_: list[Effect | Flight] = [*filter(self.is_open, self.effects), *self.flights.values()]
        if not moves_:
            self.now = max([self.now + 1_000, *[due_of(effect) or 0 for effect in self.effects][:1]])
            return
        move = moves_[which % len(moves_)]
        if isinstance(move, Flight):
            self.fly(move, data)
        elif isinstance(move, Performed):
            self.take_off(move)
        elif isinstance(move, CheckOutput):
            self.check_output(move, data)
        elif isinstance(move, Close) and move.step in self.flights:
            del self.flights[move.step]  # it was interrupted
        elif not isinstance(move, Await):
            self.write(move.entry)

    # Hypothesis picks among rules evenly: most of what happens is the run going on.
    go_on_2 = go_on_3 = go_on_4 = go_on_5 = go_on_6 = go_on_7 = go_on_8 = go_on_9 = go_on

    def is_open(self, effect: Effect) -> bool:
        if (due_of(effect) or 0) > self.now:
            return False
        match effect:
            case Finish() | CheckOutput():
                return not self.flights
            case Await():
                return False
            case Record(entry):
                return not isinstance(entry, e.ToolStarted) or entry.call not in self.flights
            case _:
                return effect.step not in self.flights or (isinstance(effect, Close) and effect.interrupt)

    def take_off(self, effect: Performed) -> None:
        self.flights[effect.step] = Flight(effect, self.state)
        assert not isinstance(effect, CallTool) or self.tool_of(effect.step) not in ("screen", "fly"), "it has no body"
        if isinstance(effect, CallTool) and self.tool_of(effect.step) in ONCE:
            assert effect.step in self.may_start, "a body that must not run twice starts without an intent of its own"
            self.may_start.remove(effect.step)

    def tool_of(self, step: str) -> str:
        return next(found.tool for found in self.state.calls if found.id == step)

    def fly(self, flight: Flight, data: st.DataObject) -> None:
        if isinstance(flight.effect, CallTool):
            self.body_goes_on(flight, flight.effect, data)
            return
        del self.flights[flight.effect.step]
        match flight.effect:
            case CallModel() as effect:
                self.model_ends(effect, data)
            case Judge() as effect:
                self.judge(effect, data)
            case Verify() as effect:
                self.verify(effect, data)
            case RunHooks() as effect:
                self.hook(effect, data)

    def model_ends(self, effect: CallModel, data: st.DataObject) -> None:
        usage, cost = data.draw(moves.usages), data.draw(moves.costs)
        if data.draw(one_in(6), "fails"):
            wait = data.draw(st.none() | st.integers(0, 3))
            retry_at = None if wait is None else self.now + wait * 1_000
            self.add(e.ModelFailed(step=effect.step, class_="timeout", retry_at=retry_at, usage=usage, cost=cost))
            return
        turn = self.state.turn + (effect.continues is None)
        calls = [
            call(call_step(turn, place), data.draw(moves.tools), invalid="no such" if data.draw(one_in(8)) else None)
            for place in range(1, data.draw(st.sampled_from([0, 1, 1, 2, 2, 3])) + 1)
        ]
        finish = data.draw(st.sampled_from(["length", "filter"])) if data.draw(one_in(6)) else "stop"
        parts = (*Message.assistant("7").parts, *calls)
        made = {"parts": parts, "finish": finish, "usage": usage, "cost": cost, "continues": effect.continues}
        self.add(e.ModelReplied(step=effect.step, end=data.draw(one_in(20)), **made))

    # --- bodies

    def body_goes_on(self, body: Flight, effect: CallTool, data: st.DataObject) -> None:
        what = data.draw(st.sampled_from(BODY))
        if body.open and (body.leaving or what == "step ends"):
            self.add(*body.ends_step())
        elif body.leaving:
            del self.flights[effect.step]  # what it says counts no longer
        elif what == "step":
            self.add(*body.begins(data.draw(st.sampled_from(moves.STEPS))))
        elif what == "let go":
            names = data.draw(st.lists(st.sampled_from(moves.NAMES), min_size=1, unique=True))
            due = self.now + data.draw(st.integers(0, 3)) * 1_000
            on_expire = data.draw(st.sampled_from(["reject", "cancel", "escalate", "escalate"]))
            self.add(*body.lets_go(names, due if data.draw(st.booleans()) or "sleep" in names else None, on_expire))
        else:
            del self.flights[effect.step]
            self.body_ends(effect.step, data)

    def body_ends(self, step: str, data: st.DataObject) -> None:
        attempt = next(found.attempt for found in self.state.calls if found.id == step)
        match data.draw(st.sampled_from(["returns", "returns", "returns", "error", "retry", "raise", "rare"])):
            case "returns":
                self.add(returned(step, 1, attempt=attempt))
            case "error":
                self.add(failed(step, attempt=attempt))
            case "retry":
                self.add(retried(step, self.now + data.draw(st.integers(0, 3)) * 1_000, attempt=attempt))
            case "raise" if self.tool_of(step) in ONCE:
                class_ = data.draw(st.sampled_from(["timeout", "step_mismatch"]))
                self.add(raised(step, class_=class_, attempt=attempt))
            case _:
                rare = [failed(step, class_="fatal"), failed(step, stop=True), returned(step, end=True)]
                self.add(data.draw(st.sampled_from(rare)))

    # --- judges, verify and hooks

    def judge(self, effect: Judge, data: st.DataObject) -> None:
        verdict = data.draw(moves.verdicts)
        if effect.again and verdict not in ("deny", "block"):
            verdict = "allow"
        if verdict == "pass":
            self.here = replace(self.here, allowed=self.here.allowed | {effect.step})
        else:
            self.add(judged(effect.step, verdict, args={"a": 1}, value=1, action_key="k"))

    def verify(self, effect: Verify, data: st.DataObject) -> None:
        finding = data.draw(st.sampled_from(["done", "not_done", "unknown"]))
        result = [returned(effect.step, 1, source="verify")]
        if effect.subject != effect.step:
            result = [told_step(effect.subject, 1)]
        self.add(resolved(effect.subject, "verify", finding, "verify"), *(result if finding == "done" else []))

    def hook(self, effect: RunHooks, data: st.DataObject) -> None:
        if effect.hook == "on_attach" or data.draw(st.booleans(), "passes"):
            self.here = replace(self.here, hooked=self.here.hooked | {effect.step})
        elif data.draw(one_in(6), "fails"):
            self.add(e.ModelFailed(step="1.model", class_="middleware"))
        else:
            self.add(e.StateChanged(step=effect.step, end=data.draw(one_in(6))))

    def check_output(self, effect: CheckOutput, data: st.DataObject) -> None:
        if data.draw(st.booleans(), "valid"):
            self.add(finished(self.state, Completed(), e.Output(text=effect.text, value=7)))
        elif self.state.rejections < OUTPUT_RETRIES:
            self.add(e.OutputRejected(message="not a number"))
        else:
            self.add(finished(self.state, Failed("output_invalid")))

    # --- what comes from outside

    @precondition(lambda self: self.states and self.state.finished is None)
    @rule(what=st.sampled_from(["retake", "hear", "hear", "stall"]), data=st.data())
    def disturb(self, what: str, data: st.DataObject) -> None:
        match what:
            case "retake" if self.live:
                self.epoch += 1  # the same driver goes on, with what it performs
            case "stall":
                self.now += data.draw(st.sampled_from([1_000, 4_000, 60_000_000]))
            case _:
                self.hear(data)

    @precondition(lambda self: self.live and (self.flights or self.state.calls))
    @rule(known_dead=st.booleans(), seconds=st.integers(0, 4))
    def crash(self, known_dead: bool, seconds: int) -> None:
        self.ghosts.extend(ghost for flight in self.flights.values() for ghost in flight.ghosts)
        self.flights.clear()
        patience = {found.id: self.now + seconds * 1_000 for found in self.state.open_calls}
        self.here = Here(patience={} if known_dead else patience)
        self.attach()

    @precondition(lambda self: self.live and self.ghosts)
    @rule(which=pick, error=st.sampled_from([None, None, "boom"]))
    def late(self, which: int, error: str | None) -> None:
        doubts = {step for found in self.state.open_calls for step in found.doubts}
        ghost = min(self.ghosts[which % len(self.ghosts) :], key=lambda ghost: ghost.step not in doubts)
        self.ghosts.remove(ghost)
        self.add(replace(ghost, error=error))

    @precondition(lambda self: self.live and self.state.tickets)
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        """One ticket, or several in one commit; what is decided twice counts once."""
        names = data.draw(st.lists(st.sampled_from(sorted(self.state.tickets)), min_size=1, max_size=3))
        made = [data.draw(moves.decisions(self.state.tickets[name].ticket_kind)) for name in names]
        self.add(*[moves.decided(name, decision) for name, decision in zip(names, made, strict=True)])

    decide_2 = decide

    def hear(self, data: st.DataObject) -> None:
        letter = data.draw(moves.letters if self.state.paused is None else moves.letters_while_paused)
        flying = [flight.effect for flight in self.flights.values()]
        if isinstance(letter, e.MessagesReceived) and any(isinstance(effect, CallModel) for effect in flying):
            return  # it is taken in at the next boundary
        self.add(letter)
        if self.state.queued and data.draw(st.booleans(), "its turn comes"):
            self.add(e.BaseFixed(run="", base_seq=0))
            self.attach()

    # --- what is always true

    @invariant()
    def every_prefix_folds_to_the_state_it_had(self) -> None:
        if self.states:
            assert fold(self.state.run, self.log, self.known) == self.state

    @invariant()
    def who_waits_waits_for_something(self) -> None:
        state = self.state
        if state.finished is not None:
            assert self.effects == ()
        elif not self.effects:
            assert state.queued or state.tickets
        elif all(isinstance(effect, Await) for effect in self.effects):
            assert state.paused
        assert state.timers.keys() <= {
            wait.opened.timer
            for found in state.open_calls
            for wait in found.waits
            if isinstance(wait.opened, e.TimerSet) and wait.closed is None
        }

    @invariant()
    def it_settles(self) -> None:
        """All that follows without outside work is written down together, as drivers do, and comes to an end."""
        if not self.states or self.state.epoch == 0:
            return
        state = self.state
        for _ in range(SETTLES_WITHIN):
            due = [x for x in next_effects(state, self.here) if self.is_written_at_once(x)]
            if not due:
                return
            for effect in due:
                state = apply(state, self.stamped(state, effect.entry, self.state.seq + 1))
        raise AssertionError(f"it never settles: {due}")

    def is_written_at_once(self, effect: Effect) -> bool:
        if not isinstance(effect, Record | Close | Finish) or not self.is_open(effect):
            return False
        return not isinstance(effect, Close) or effect.step not in self.flights

    @invariant()
    def the_transcript_is_valid(self) -> None:
        open_ids = moves.valid(self.state.transcript)
        assert open_ids == [c.id for c in self.state.calls]
        assert self.state.calls == () or self.state.open_calls

    @invariant()
    def what_is_committed_is_never_asked_for_again(self) -> None:
        replied = {entry.step for entry in self.log if isinstance(entry, e.ModelReplied)}
        ended = [entry.call for entry in self.log if moves.ends(entry)]
        assert len(set(ended)) == len(ended), "a call is answered once"
        answered = {c.id for c in self.state.calls if c.answer is not None} | set(ended)
        for effect in self.effects:
            match effect:
                case CallModel(step):
                    assert step not in replied
                    assert not self.state.calls
                case CallTool(step) | Close(step) | Judge(step) | Verify(step):
                    assert step not in answered
                case Record(entry):
                    assert getattr(entry, "call", None) not in answered
                case _:
                    pass

    @invariant()
    def a_once_call_starts_once_for_each_intent(self) -> None:
        for effect in self.effects:
            if isinstance(effect, CallTool):
                (found,) = [c for c in self.state.open_calls if c.id == effect.step]
                assert effect.attempt == found.attempt
                assert effect.step not in self.untouchable
                assert not found.in_doubt
                assert found.id in self.flights or not moves.unreported(found)
                if found.tool in ONCE:
                    assert found.intent is not None
                    assert found.intent.epoch >= self.state.epoch
                    assert found.intent.attempt == effect.attempt
                    assert found.id in self.flights or found.id in self.may_start

    @invariant()
    def a_step_is_in_doubt_for_as_long_as_nobody_says_what_became_of_it(self) -> None:
        for found in self.state.open_calls:
            assert all(call_of(step) == found.id for step in found.doubts)
            assert found.finding is None or found.finding.step == found.doubts[0]

    @invariant()
    def ticket_ids_are_unique(self) -> None:
        about: dict[str, tuple[object, ...]] = {}
        for entry in self.log:
            if isinstance(entry, e.TicketOpened):
                place = (entry.call, entry.step, entry.ticket_kind)
                assert about.setdefault(entry.ticket, place) == place

    @invariant()
    def cancel_wins(self) -> None:
        cancel = self.state.cancel
        if cancel is None:
            return
        for effect in self.effects:
            assert isinstance(effect, Close | Finish)
        ends_ = [effect.entry for effect in self.effects if isinstance(effect, Finish)]
        if self.state.finished is not None:
            ends_.append(self.state.finished)
        assert all(entry.outcome == Cancelled(by=cancel.by, reason=cancel.reason) for entry in ends_)

    @invariant()
    def counters_are_what_the_journal_says(self) -> None:
        state, log = self.state, self.log
        replies = [entry for entry in log if isinstance(entry, e.ModelReplied)]
        paid = [*replies, *[entry for entry in log if isinstance(entry, e.ModelFailed)]]
        ran = [x for x in log if isinstance(x, e.ToolReturned) and x.source == "ran"]
        raised_ = [x for x in log if isinstance(x, e.ToolFailed) and (x.source == "ran" or not x.final)]
        turns = sum(entry.continues is None for entry in replies)
        assert state.turn - state.first_turn == turns
        assert state.call_count == sum(len(entry.calls) for entry in replies)
        assert state.attempts == len(paid) + len(ran) + len(raised_)
        assert state.usage == sum((x.usage for x in paid if x.usage is not None), Usage())
        assert (state.cost or 0) == sum(x.cost for x in paid if x.cost is not None)
        assert state.produced == [m.id for m in state.transcript if m.produced_by and m.produced_by[0] == state.run]
        if state.finished is not None:
            told = state.finished
            counts = (told.usage, told.cost, told.turns, told.calls)
            assert counts == (state.usage, state.cost, turns, state.call_count)

    @invariant()
    def at_most_one_end(self) -> None:
        assert sum(isinstance(entry, e.RunFinished) for entry in self.log) <= 1


# Whole runs need more steps than usual.
Driver.TestCase.settings = settings(max_examples=settings().max_examples * 3, stateful_step_count=100)
PROVES = ("B2", "B3", "C1", "J8", "J9", "L2", "L4", "T1", "T2", "T3", "T4", "T5", "T11", "W1", "W2", "W6", "W7")
TestDriver = pytest.mark.proves(*PROVES)(Driver.TestCase)
