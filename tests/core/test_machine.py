"""Any legal interleaving of outcomes, letters and crashes, played against the core alone."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from clew.core import entries as e
from clew.core.effects import Await, CallModel, CallTool, CheckOutput, Close, Effect, Finish, Record
from clew.core.limits import Limits
from clew.core.messages import Message, ToolCall, ToolResult, Transcript, Usage, calls_of
from clew.core.outcomes import Cancelled, Completed, Failed
from clew.core.rules import finished, next_effects
from clew.core.spec import ToolSpec
from clew.core.state import Known, State, apply, fold
from clew.core.steps import call_step
from clew.core.tickets import Approve, Edit, Reject, Respond
from tests.core.build import FP, KNOWN, TOOLS, call, started

OUTPUT_RETRIES = 2
FORK_AFTER = 6
ONCE = {tool.name for tool in TOOLS if tool.effect == "once"}
SCREEN = ToolSpec(name="screen", client=True)

tools = st.sampled_from([*[tool.name for tool in TOOLS] * 2, "pay", "pay", "fly", "screen"])
usages = st.builds(Usage, input=st.integers(0, 9), output=st.integers(0, 9), requests=st.just(1))
costs = st.none() | st.sampled_from([Decimal("0.1"), Decimal("0.02")])
limits = st.builds(
    Limits,
    turns=st.sampled_from([None, None, 4, 4, 1, 0]),
    tool_calls=st.sampled_from([None, None, None, 1, 4]),
    tokens=st.sampled_from([None, None, None, 20]),
    cost=st.sampled_from([None, None, None, Decimal("0.2")]),
    model_errors=st.sampled_from([None, None, 1, 3]),
)
starts = st.fixed_dictionaries(
    {
        "limits": limits,
        "fingerprint": st.sampled_from([*[FP] * 5, "sha256:typed", "sha256:typed", "sha256:gone"]),
        "client_tools": st.sampled_from([(), (SCREEN,)]),
    }
)
decisions = st.sampled_from([Approve(remember="run"), Edit({"a": 1}), Reject("no"), Respond(1)])
letters = st.one_of(
    st.builds(
        e.MessagesReceived,
        messages=st.just((Message.user("and"),)),
        when=st.sampled_from(["asap", "idle"]),
        inbox=st.just((1,)),
    ),
    st.builds(e.DecisionMade, ticket=st.just("9.tool.9"), decision_id=st.just("d"), decision=decisions),
    st.sampled_from([e.Paused(), *[e.Unpaused()] * 4, e.CancelRequested(reason="enough", by="ada")]),
)
pick = st.integers(0, 30)


def one_in(number: int) -> st.SearchStrategy[bool]:
    return st.sampled_from([False] * (number - 1) + [True])


class Driver(RuleBasedStateMachine):
    """One run at a time; a fork leaves it for another that goes on from one of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.now = 1_000

    # --- the journal

    def begin(self, first: e.RunStarted, bases: dict[tuple[str, int], State]) -> None:
        self.number += 1
        self.flights: dict[str, Effect] = {}
        self.ghosts: list[str] = []
        self.bodies: dict[str, int] = {}
        self.log: list[e.Entry] = []
        self.known = Known(specs=KNOWN.specs, bases=bases)
        self.states = [State(run=f"run_{self.number}", known=self.known)]
        self.untouchable: set[str] = set()
        self.add(first)

    @property
    def state(self) -> State:
        return self.states[-1]

    @property
    def effects(self) -> tuple[Effect, ...]:
        return next_effects(self.state)

    @property
    def live(self) -> bool:
        return bool(self.states) and self.state.finished is None and self.state.epoch > 0

    def add(self, entry: e.Entry, epoch: int | None = None) -> None:
        seq = self.state.seq + 1
        epoch = self.state.epoch if epoch is None else epoch
        entry = replace(entry, seq=seq, batch=seq, at=self.now, epoch=epoch)
        self.states.append(apply(self.state, entry))
        self.log.append(entry)

    def write(self, entry: e.Entry) -> None:
        """A fact from an effect: it is about something that is not being performed."""
        assert entry.step is None or entry.step not in self.flights
        self.add(entry)

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
            assert new.judged is None or new.answer is not None
            if old.answer is None and old.intent is not None and old.tool in ONCE:
                self.untouchable.add(old.id)
        self.attach()

    def attach(self) -> None:
        self.add(e.DriverAttached(worker="w"), epoch=self.state.epoch + 1)

    # --- what drivers do

    @precondition(lambda self: self.live)
    @rule(which=pick, data=st.data())
    def go_on(self, which: int, data: st.DataObject) -> None:
        """Perform an effect, let one end, or wait for the next to be due."""
        moves = [*filter(self.is_open, self.effects), *self.flights.values()]
        if not moves:
            self.now += 1_000
            return
        effect = moves[which % len(moves)]
        if isinstance(effect, CallModel | CallTool):
            self.fly(effect, data)
        elif isinstance(effect, CheckOutput):
            self.check_output(effect, data)
        elif isinstance(effect, Close) and effect.step in self.flights:
            del self.flights[effect.step]  # it was interrupted, and let go
        elif not isinstance(effect, Await):
            self.write(effect.entry)

    def fly(self, effect: CallModel | CallTool, data: st.DataObject) -> None:
        if effect.step not in self.flights:
            self.flights[effect.step] = effect
            self.bodies[effect.step] = self.bodies.get(effect.step, 0) + 1
            return
        del self.flights[effect.step]
        if isinstance(effect, CallModel):
            self.model_ends(effect, data)
        else:
            self.tool_ends(effect, data)

    # Hypothesis picks among rules evenly: most of what happens is the run going on.
    go_on_2 = go_on_3 = go_on_4 = go_on_5 = go_on_6 = go_on_7 = go_on

    def is_open(self, effect: Effect) -> bool:
        match effect:
            case Record(_, not_before):
                return (not_before or 0) <= self.now
            case CallModel(step) | CallTool(step):
                return step not in self.flights and (effect.not_before or 0) <= self.now
            case Finish() | CheckOutput():
                return not self.flights
            case Close(step, _, interrupt):
                return interrupt or step not in self.flights
            case Await():
                return False

    def model_ends(self, effect: CallModel, data: st.DataObject) -> None:
        usage, cost = data.draw(usages), data.draw(costs)
        if data.draw(one_in(6), "fails"):
            wait = data.draw(st.none() | st.integers(0, 3))
            retry_at = None if wait is None else self.now + wait * 1_000
            self.add(e.ModelFailed(step=effect.step, class_="timeout", retry_at=retry_at, usage=usage, cost=cost))
            return
        turn = self.state.turn + 1
        calls = [
            call(call_step(turn, place), data.draw(tools), invalid="no such field" if data.draw(one_in(8)) else None)
            for place in range(1, data.draw(st.sampled_from([0, 1, 2, 3])) + 1)
        ]
        finish = data.draw(st.sampled_from(["length", "filter"])) if data.draw(one_in(8)) else "stop"
        parts = (*Message.assistant("7").parts, *calls)
        self.add(e.ModelReplied(step=effect.step, parts=parts, finish=finish, usage=usage, cost=cost))

    def tool_ends(self, effect: CallTool, data: st.DataObject) -> None:
        step = effect.step
        match data.draw(st.sampled_from(["returns", "returns", "returns", "error", "retry", "rare"])):
            case "returns":
                self.add(e.ToolReturned(step=step, call=step, content=1))
            case "error":
                self.add(e.ToolFailed(step=step, call=step, class_="tool_error", message="no"))
            case "retry":
                retry_at = self.now + data.draw(st.integers(0, 3)) * 1_000
                self.add(e.ToolFailed(step=step, call=step, class_="E", final=False, retry_at=retry_at))
            case _:
                self.rarely(step, data)

    def rarely(self, step: str, data: st.DataObject) -> None:
        match data.draw(st.sampled_from(["fatal", "end", "doubt"])):
            case "fatal":
                self.add(e.ToolFailed(step=step, call=step, class_="fatal", message="no"))
            case "end":
                self.add(e.ToolReturned(step=step, call=step, content=1, end=True))
            case _:
                self.add(e.DoubtResolved(step=step, call=step, how="policy", finding="unknown", rule="report"))
                self.add(e.ToolFailed(step=step, call=step, class_="outcome_unknown", source="doubt"))

    def check_output(self, effect: CheckOutput, data: st.DataObject) -> None:
        if data.draw(st.booleans(), "valid"):
            self.add(finished(self.state, Completed(), e.Output(text=effect.text, value=7)))
        elif self.state.rejections < OUTPUT_RETRIES:
            self.add(e.OutputRejected(message="not a number"))
        else:
            self.add(finished(self.state, Failed("output_invalid")))

    # --- what comes from outside

    @precondition(lambda self: self.states and self.state.finished is None)
    @rule(what=st.sampled_from(["crash", "hear", "hear", "late", "stall"]), data=st.data())
    def disturb(self, what: str, data: st.DataObject) -> None:
        match what:
            case "crash" if self.live:
                self.ghosts.extend(self.flights)
                self.flights.clear()
                self.attach()
            case "late" if self.live and self.ghosts:
                step = self.ghosts.pop(data.draw(pick) % len(self.ghosts))
                error = "boom" if data.draw(one_in(3)) else None
                self.add(e.LateResultReceived(step=step, call=step, from_epoch=1, value="late", error=error))
            case "stall":
                self.now += data.draw(st.integers(1, 4)) * 1_000
            case _:
                self.hear(data)

    def hear(self, data: st.DataObject) -> None:
        self.add(data.draw(letters))
        if self.state.queued and data.draw(st.booleans(), "its turn comes"):
            self.add(e.BaseFixed(run="", base_seq=0))
            self.attach()

    # --- what is always true

    @invariant()
    def every_prefix_folds_to_the_state_it_had(self) -> None:
        if self.states:
            assert fold(self.state.run, self.log, self.known) == self.state

    @invariant()
    def never_stuck_and_silent_once_settled(self) -> None:
        state = self.state
        if state.finished is not None:
            assert self.effects == ()
        else:
            assert self.effects or state.queued
            waits_for_somebody = all(isinstance(effect, Await) for effect in self.effects)
            assert not waits_for_somebody or state.paused or state.queued

    @invariant()
    def the_transcript_is_valid(self) -> None:
        open_ids = valid(self.state.transcript)
        assert open_ids == [c.id for c in self.state.calls]
        assert self.state.calls == () or self.state.open_calls

    @invariant()
    def what_is_committed_is_never_asked_for_again(self) -> None:
        replied = {entry.step for entry in self.log if isinstance(entry, e.ModelReplied)}
        answered = {c.id for c in self.state.calls if c.answer is not None}
        answered |= {entry.call for entry in self.log if ends(entry)}
        for effect in self.effects:
            match effect:
                case CallModel(step):
                    assert step not in replied
                    assert not self.state.calls
                case CallTool(step) | Close(step):
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
                assert effect.attempt == found.failures + 1
                assert effect.step not in self.untouchable
                if found.tool in ONCE:
                    assert found.intent is not None
                    assert (found.intent.epoch, found.intent.attempt) == (self.state.epoch, effect.attempt)
        asked = {c.id for c in self.state.calls} | {c.id for entry in self.log for c in asked_by(entry)}
        once = {c.id for entry in self.log for c in asked_by(entry) if c.tool in ONCE}
        for step, starts_ in self.bodies.items():
            if step in asked & once:
                raised = sum(isinstance(x, e.ToolFailed) and not x.final and x.call == step for x in self.log)
                assert starts_ <= raised + 1

    @invariant()
    def cancel_wins(self) -> None:
        if self.state.cancel is None:
            return
        for effect in self.effects:
            assert isinstance(effect, Record | Close | Finish)
        ends_ = [effect.entry for effect in self.effects if isinstance(effect, Finish)]
        if self.state.finished is not None:
            ends_.append(self.state.finished)
        assert all(entry.outcome == Cancelled(by="ada", reason="enough") for entry in ends_)

    @invariant()
    def counters_are_what_the_journal_says(self) -> None:
        state, log = self.state, self.log
        replies = [entry for entry in log if isinstance(entry, e.ModelReplied)]
        failures = [entry for entry in log if isinstance(entry, e.ModelFailed)]
        ran = [x for x in log if isinstance(x, e.ToolReturned | e.ToolFailed) and x.source == "ran"]
        paid = [*replies, *failures]
        assert state.turn - state.first_turn == len(replies)
        assert state.call_count == sum(len(entry.calls) for entry in replies)
        assert state.attempts == len(paid) + len(ran)
        assert state.usage == sum((x.usage for x in paid if x.usage is not None), Usage())
        assert (state.cost or 0) == sum(x.cost for x in paid if x.cost is not None)
        assert state.produced == [m.id for m in state.transcript if m.produced_by and m.produced_by[0] == state.run]
        if state.finished is not None:
            told = state.finished
            assert (told.usage, told.cost, told.turns, told.calls) == (
                state.usage,
                state.cost,
                len(replies),
                state.call_count,
            )

    @invariant()
    def at_most_one_end(self) -> None:
        assert sum(isinstance(entry, e.RunFinished) for entry in self.log) <= 1


def ends(entry: e.Entry) -> bool:
    return isinstance(entry, e.ToolReturned) or (isinstance(entry, e.ToolFailed) and entry.final)


def asked_by(entry: e.Entry) -> tuple[ToolCall, ...]:
    return entry.calls if isinstance(entry, e.ModelReplied) else ()


def valid(transcript: Transcript) -> list[str]:
    """The ids of calls without results at the end. Each other call has one result, in order, right after its reply."""
    owed: list[str] = []
    ids: list[str] = []
    for message in transcript:
        if message.role == "tool":
            (result,) = message.parts
            assert isinstance(result, ToolResult)
            assert owed, "a result of no call"
            assert result.call == owed.pop(0)
        else:
            assert not owed, "something stands between a call and its result"
            owed = [c.id for c in calls_of(message.parts)]
        ids.append(message.id)
    assert len(set(ids)) == len(ids)
    return owed


# Whole runs need more steps than usual.
Driver.TestCase.settings = settings(max_examples=settings().max_examples * 3, stateful_step_count=60)
TestDriver = pytest.mark.proves("B2", "B3", "C1", "J8", "J9", "L2", "L4", "T1", "T3", "T4")(Driver.TestCase)
