"""What the facts add up to. State is always folded from a journal and never stored as the truth."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from clew.core import entries as e
from clew.core import turns
from clew.core.calls import Call as Call
from clew.core.calls import settled, started, unjudged
from clew.core.course import Course, replied
from clew.core.limits import Limits
from clew.core.messages import Message, Text, ToolCall, Transcript, Usage, identified, message_id, text_of
from clew.core.outcomes import Outcome
from clew.core.records import Owner
from clew.core.spec import AgentSpec, ToolSpec
from clew.core.values import Digest, Value
from clew.errors import JournalCorrupt


class ModelPhase(Struct, frozen=True, kw_only=True, gc=False):
    """Where the asking stands: `errors` in a row, `asked` in this run, and the failure that is final."""

    name: str | None = None  # after a fall-over
    errors: int = 0
    asked: int = 0
    retry_at: int | None = None
    failure: e.ModelFailed | None = None


class Known(Struct, frozen=True, kw_only=True, gc=False):
    """Data the fold is given beside the entries: agents by fingerprint, and folded bases by (run, seq)."""

    specs: Mapping[Digest, AgentSpec] = {}
    bases: "Mapping[tuple[str, int], State]" = {}


NOTHING_KNOWN = Known()
WINDOW = 2  # a reply that is repeated may have this many times as many others between
BEGINNINGS = (e.BaseFixed, e.DriverAttached)  # of an activation: the time before them was not driven


class State(Struct, frozen=True, kw_only=True, gc=False):
    """A run as of one entry."""

    known: Known = NOTHING_KNOWN
    run: str = ""
    seq: int = 0
    at: int = 0
    epoch: int = 0
    worker: str = ""
    owner: Owner | None = None
    started: e.RunStarted | None = None
    queued: bool = False
    fingerprint: Digest = ""
    agent: str = ""
    limits: Limits = Limits()
    transcript: Transcript = Transcript()
    base_length: int = 0  # messages that came from the base
    input_ids: tuple[str, ...] = ()
    triggered: tuple[str, ...] = ()  # input and messages
    compacted: tuple[e.ContextCompacted, ...] = ()
    mail: tuple[Message, ...] = ()  # taken in, shown once no call is open
    turn: int = 0
    first_turn: int = 0
    model: ModelPhase = ModelPhase()
    calls: tuple[Call, ...] = ()
    final: e.ModelReplied | None = None  # a reply without calls that the run has not acted on
    continued: int = 0  # how often the reply was taken up again after it was cut off
    rejections: int = 0  # of final answers, in a row
    usage: Usage = Usage()
    cost: Decimal | None = None
    inherited_usage: Usage = Usage()
    inherited_cost: Decimal | None = None
    call_count: int = 0
    attempts: int = 0
    driven: int = 0  # microseconds
    run_state: dict[str, Value] = {}
    thread_state: dict[str, Value] = {}
    run_approvals: tuple[str, ...] = ()
    thread_approvals: tuple[str, ...] = ()
    tickets: dict[str, e.TicketOpened] = {}
    timers: dict[str, e.TimerSet] = {}
    children: dict[str, e.ChildStarted] = {}
    remote: e.RemoteAttached | None = None
    reminders: tuple[e.ReminderAdded, ...] = ()
    skills: tuple[e.SkillLoaded, ...] = ()
    course: Course = Course()
    cancel: e.CancelRequested | None = None
    paused: e.Paused | None = None
    blocked: e.CallJudged | None = None
    fatal: e.ToolFailed | None = None
    end_requested: bool = False
    finished: e.RunFinished | None = None

    @property
    def outcome(self) -> Outcome | None:
        return None if self.finished is None else self.finished.outcome

    @property
    def spec(self) -> AgentSpec | None:
        return self.known.specs.get(self.fingerprint)

    @property
    def open_calls(self) -> tuple[Call, ...]:
        return tuple([call for call in self.calls if call.answer is None])

    def call(self, call_id: str) -> Call:
        """A call of the turn at hand."""
        return next(call for call in self.calls if call.id == call_id)

    def tool_of(self, call: Call) -> ToolSpec | None:
        """The tool as it was declared when the call was asked for, client tools of the run included."""
        spec = self.known.specs.get(call.fingerprint)
        if spec is not None and (tool := spec.tool(call.tool)) is not None:
            return tool
        offered = () if self.started is None else self.started.client_tools
        return next((tool for tool in offered if tool.name == call.tool), None)

    @property
    def produced(self) -> list[str]:
        """Ids of the messages that this run made, in order."""
        return [m.id for m in self.transcript[self.base_length :] if m.produced_by and m.produced_by[0] == self.run]


def fold(run: str, entries: Iterable[e.Entry], known: Known = NOTHING_KNOWN) -> State:
    state = State(run=run, known=known)
    for entry in entries:
        state = apply(state, entry)
    return state


def apply(state: State, entry: e.Entry) -> State:
    """The state after one more fact. Raises JournalCorrupt for a fact that cannot follow."""
    if entry.seq != state.seq + 1:
        raise JournalCorrupt(f"run {state.run!r}: entry {entry.seq} follows entry {state.seq}")
    if state.finished is not None:
        raise JournalCorrupt(f"run {state.run!r}: entry {entry.seq} ({entry.kind}) follows the end of the run")
    if (state.started is None) is not (type(entry) is e.RunStarted):
        raise JournalCorrupt(f"run {state.run!r}: entry {entry.seq} is {entry.kind}; run_started comes first, and once")
    driven = state.driven if state.epoch == 0 or type(entry) in BEGINNINGS else state.driven + entry.at - state.at
    return _change(replace(state, seq=entry.seq, at=entry.at, driven=driven), entry)


def _change(state: State, entry: e.Entry) -> State:
    match entry:
        case e.ModelReplied():
            return _replied(state, entry)
        case e.ToolReturned():
            return turns.returned(state, entry)
        case e.ToolStarted():
            return turns.with_call(state, entry.call, lambda call: started(call, entry, state.owner))
        case e.ToolFailed():
            return turns.failed(state, entry)
        case e.CallJudged():
            return turns.judged(state, entry)
        case e.DriverAttached():
            return _attached(state, entry)
        case e.RunStarted():
            return _started(state, entry)
        case e.BaseFixed():
            return _base_fixed(state, entry)
        case e.MessagesReceived():
            return _received(state, entry)
        case e.InputRewritten():
            return _input_rewritten(state, entry)
        case e.ModelFailed():
            return _model_failed(state, entry)
        case e.ModelSwitched():
            return replace(state, model=replace(state.model, name=entry.to, errors=0, retry_at=None, failure=None))
        case e.OutputRejected():
            told = Message("user", (Text(entry.message),), message_id(state.run, entry.seq))
            transcript = state.transcript.extended(told)
            return replace(state, transcript=transcript, final=None, rejections=state.rejections + 1)
        case e.StepStarted() | e.StepRecorded():
            return turns.step_told(state, entry)
        case e.DoubtResolved():
            return turns.with_call(state, entry.call, lambda call: settled(state.run, call, entry))
        case e.LateResultReceived():
            return turns.late_result(state, entry)
        case e.TicketOpened():
            return turns.ticket_opened(state, entry)
        case e.DecisionMade() | e.TicketClosed():
            return turns.ticket_closed(state, entry)
        case e.StateChanged():
            return turns.state_changed(state, entry)
        case e.TimerSet():
            return turns.timer_set(state, entry)
        case e.TimerFired():
            return turns.timer_fired(state, entry)
        case e.LimitsChanged():
            return replace(state, limits=entry.limits, course=replace(state.course, limit=None, stop=None))
        case e.CancelRequested():
            return replace(state, cancel=state.cancel or entry)
        case e.Paused():
            return replace(state, paused=state.paused or entry)
        case e.Unpaused():
            return replace(state, paused=None)
        case e.AgentChanged():
            return replace(state, agent=entry.to)
        case e.ContextCompacted():
            spent = _spend(state, entry.usage, entry.cost)
            return replace(spent, compacted=(*state.compacted, entry))
        case e.ReminderAdded():
            return replace(state, reminders=(*state.reminders, entry))
        case e.SkillLoaded():
            return replace(state, skills=(*state.skills, entry))
        case e.ChildStarted():
            return replace(state, children={**state.children, entry.run: entry})
        case e.ChildFinished():
            spent = _spend(state, entry.usage, entry.cost)
            return replace(spent, children=turns.without(state.children, entry.run))
        case e.RemoteAttached():
            return replace(state, remote=entry)
        case e.RemoteProgressed():
            return _spend(state, entry.usage, None)
        case e.RunFinished():
            return replace(state, finished=entry, final=None, tickets={}, timers={})
        case e.CompactionFailed() | e.RemoteAborted() | e.Noted():
            return state
        case _:
            assert_never(entry)


# --- where a run begins -----------------------------------------------------------------------------------------------


def _started(state: State, entry: e.RunStarted) -> State:
    messages = identified(state.run, entry.seq, entry.input)
    ids = tuple([m.id for m in messages])
    fresh = replace(
        state,
        started=entry,
        fingerprint=entry.fingerprint,
        agent=entry.agent,
        limits=entry.limits,
        mail=messages,
        input_ids=ids,
        triggered=ids,
    )
    match entry.base:
        case None:
            return _delivered(fresh)
        case e.BaseThread():
            return replace(fresh, queued=True)
        case e.BaseAt(run=run, seq=seq):
            return rebase(_base(state, run, seq), fresh)
        case e.BaseSnapshot(blob=blob):
            return rebase(_base(state, str(blob["$blob"]), 0), fresh)
        case _:
            assert_never(entry.base)


def _base_fixed(state: State, entry: e.BaseFixed) -> State:
    if not state.queued:
        raise JournalCorrupt(f"run {state.run!r}: entry {entry.seq} fixes a base that was never open")
    active = replace(state, queued=False)
    return rebase(_base(state, entry.run, entry.base_seq), active) if entry.run else _delivered(active)


def _base(state: State, run: str, seq: int) -> State:
    base = state.known.bases.get((run, seq))
    if base is None:
        raise JournalCorrupt(f"run {state.run!r} goes on from entry {seq} of {run!r}, which cannot be read")
    return base


def rebase(base: State, fresh: State) -> State:
    """The first state of a run that goes on from `base`: the conversation crosses, the run's own affairs do not.

    `fresh` is the state right after its `run_started`, its input still in the mail.
    """
    calls = tuple([unjudged(call, superseded=bool(fresh.mail)) for call in base.calls])
    inside = any(call.answer is None for call in calls)
    based = replace(
        fresh,
        known=Known(specs=fresh.known.specs),  # a long chain must not be kept, each state by the next
        transcript=base.transcript,
        base_length=len(base.transcript),
        compacted=base.compacted,
        thread_state=base.thread_state,
        thread_approvals=base.thread_approvals,
        agent=fresh.agent or base.agent,
        calls=calls,
        mail=(*base.mail, *fresh.mail),
        turn=base.turn if inside else 0,
        first_turn=base.turn if inside else 0,
        inherited_usage=base.inherited_usage + base.usage,
        inherited_cost=_sum(base.inherited_cost, base.cost),
    )
    return _delivered(based)


def _delivered(state: State) -> State:
    """Mail is shown once no call is open: between a call and its result nothing may stand."""
    answers = [call.answer for call in state.calls if call.answer is not None]
    if state.queued or len(answers) < len(state.calls):
        return state
    return replace(state, transcript=state.transcript.extended(*answers, *state.mail), calls=(), mail=())


def _input_rewritten(state: State, entry: e.InputRewritten) -> State:
    """The input takes another wording, in its place, before anything was made of it."""
    messages = identified(state.run, entry.seq, entry.messages)
    shown = _reworded(state.transcript[state.base_length :], state.input_ids, messages)
    ids = tuple([m.id for m in messages])
    return replace(
        state,
        transcript=state.transcript.prefix(state.base_length).extended(*shown),
        mail=tuple(_reworded(state.mail, state.input_ids, messages)),
        input_ids=ids,
        triggered=(*ids, *state.triggered[len(state.input_ids) :]),
    )


def _reworded(messages: Sequence[Message], old: Sequence[str], new: Sequence[Message]) -> list[Message]:
    place = next((i for i, message in enumerate(messages) if message.id in old), None)
    kept = [message for message in messages if message.id not in old]
    return kept if place is None else [*kept[:place], *new, *kept[place:]]


def _attached(state: State, entry: e.DriverAttached) -> State:
    """What an older epoch started and did not finish is what a crash left: `once` is in doubt, the rest starts anew."""
    calls = tuple([turns.attached(state, call) for call in state.calls])
    fingerprint = entry.fingerprint or state.fingerprint
    return replace(
        state, epoch=entry.epoch, worker=entry.worker, owner=entry.owner, fingerprint=fingerprint, calls=calls
    )


# --- messages and models ----------------------------------------------------------------------------------------------


def _received(state: State, entry: e.MessagesReceived) -> State:
    messages = identified(state.run, entry.seq, entry.messages)
    triggered = (*state.triggered, *[m.id for m in messages])
    return _delivered(replace(state, triggered=triggered, mail=(*state.mail, *messages), final=None))


def _replied(state: State, entry: e.ModelReplied) -> State:
    if state.calls:
        raise JournalCorrupt(f"run {state.run!r}: entry {entry.seq} is a reply while calls of the last are open")
    turn = state.turn if entry.continues else state.turn + 1
    message = Message("assistant", entry.parts, message_id(state.run, entry.seq), (state.run, turn))
    cut_off = entry.finish == "length"
    calls = tuple(
        [
            Call(request=part, fingerprint=state.fingerprint, cut_off=cut_off)
            for part in entry.parts
            if isinstance(part, ToolCall)
        ]
    )
    phase = ModelPhase(name=state.model.name, asked=state.model.asked + 1)
    transcript = _continued(state.transcript, message) if entry.continues else state.transcript.extended(message)
    course, limits = state.course, state.limits
    if limits.repeats is not None or course.writes:
        said = text_of(transcript[-1].parts)
        course = replied(course, entry, said, None if limits.repeats is None else WINDOW * limits.repeats)
    if limits.text is not None:
        course = replace(course, stop=turns.stopped_by_text(state, text_of(transcript[-1].parts)))
    return replace(
        state,
        transcript=transcript,
        turn=turn,
        model=phase,
        calls=calls,
        final=None if calls else entry,
        continued=state.continued + 1 if entry.continues else 0,
        usage=state.usage + entry.usage,
        cost=_sum(state.cost, entry.cost),
        call_count=state.call_count + len(calls),
        attempts=state.attempts + 1,
        course=course,
        end_requested=state.end_requested or entry.end,
    )


def _continued(transcript: Transcript, more: Message) -> Transcript:
    """A reply that was cut off and what it went on with are one message; words that were cut apart join."""
    first = transcript[-1]
    parts = [*first.parts, *more.parts]
    place = len(first.parts)
    if first.parts and more.parts and isinstance(parts[place - 1], Text) and isinstance(parts[place], Text):
        parts[place - 1 : place + 1] = [Text(text_of(parts[place - 1 : place + 1]))]
    joined = Message("assistant", tuple(parts), first.id, first.produced_by)
    return transcript.prefix(len(transcript) - 1).extended(joined)


def _model_failed(state: State, entry: e.ModelFailed) -> State:
    phase = replace(
        state.model,
        errors=state.model.errors + 1,
        asked=state.model.asked + 1,
        retry_at=entry.retry_at,
        failure=entry if entry.retry_at is None else None,
    )
    return replace(_spend(state, entry.usage, entry.cost), model=phase, attempts=state.attempts + 1)


def _spend(state: State, usage: Usage | None, cost: Decimal | None) -> State:
    if usage is None and cost is None:
        return state
    return replace(state, usage=state.usage + (usage or Usage()), cost=_sum(state.cost, cost))


def _sum(a: Decimal | None, b: Decimal | None) -> Decimal | None:
    return b if a is None else a if b is None else a + b
