"""Everything that can happen to a run: facts in the past tense, one frozen struct each.

The kinds and their fields are stable for ever once stored. A new field needs a default; a new kind needs an ADR.
Times are integer microseconds UTC, money is a decimal, a `Value` is JSON or a reference to a blob.
"""

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from clew.core.limits import Limits
from clew.core.messages import Message, Part, RawReply, ToolCall, Usage, calls_of, text_of
from clew.core.outcomes import Outcome

# What entries hold is named beside them.
from clew.core.records import Base as Base
from clew.core.records import BaseAt as BaseAt
from clew.core.records import BaseSnapshot as BaseSnapshot
from clew.core.records import BaseThread as BaseThread
from clew.core.records import Finish as Finish
from clew.core.records import Op as Op
from clew.core.records import Origin as Origin
from clew.core.records import Output as Output
from clew.core.records import Owner as Owner
from clew.core.records import Parent as Parent
from clew.core.records import Recording as Recording
from clew.core.records import RequestMade as RequestMade
from clew.core.records import Source as Source
from clew.core.records import StepError as StepError
from clew.core.records import Trace as Trace
from clew.core.records import VerdictKind as VerdictKind
from clew.core.records import wire_name
from clew.core.spec import EffectKind, OnExpire, ToolSpec
from clew.core.tickets import Decision, TicketKind
from clew.core.values import Digest, Money, Value

FORMAT = 1  # the highest version of any kind below; a run row keeps that of its journal


class Envelope(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="kind", rename=wire_name):
    """What every entry carries; `batch` is the first seq of its commit. `v` and `attempt` are 1 where nothing is said.

    `VERSION` is that of the kind today: raising it, which raises FORMAT, needs an upcaster from the one before. The
    collector of cycles need not look at entries: what is made of JSON holds none.
    """

    VERSION: ClassVar[int] = 1

    v: int = 1
    seq: int = 0
    at: int = 0
    epoch: int = 0
    batch: int = 0
    step: str | None = None
    attempt: int = 1


# --- where a run begins -----------------------------------------------------------------------------------------------


class RunStarted(Envelope, frozen=True, tag="run_started"):
    kind: ClassVar[Literal["run_started"]] = "run_started"
    input: tuple[Message, ...]
    agent: str
    fingerprint: Digest
    limits: Limits = Limits()
    settings: dict[str, Value] = {}
    model: str | None = None
    client_tools: tuple[ToolSpec, ...] = ()
    base: Base | None = None
    thread: str | None = None
    parent: Parent | None = None
    root: str = ""
    origin: Origin = "user"
    depth: int = 0
    budget: Limits | None = None
    trace: Trace | None = None
    record: Recording | None = None
    start_digest: Digest = ""
    metadata: dict[str, Value] = {}


class BaseFixed(Envelope, frozen=True, tag="base_fixed"):
    """A queued run has become its thread's head; `base_seq` 0 with no run says that the thread was empty."""

    kind: ClassVar[Literal["base_fixed"]] = "base_fixed"
    run: str
    base_seq: int


class DriverAttached(Envelope, frozen=True, tag="driver_attached"):
    """A worker took the run up; calls started under an older epoch and without a result are what a crash left."""

    kind: ClassVar[Literal["driver_attached"]] = "driver_attached"
    worker: str
    owner: Owner | None = None
    version: str = ""
    fingerprint: Digest = ""
    changed: tuple[str, ...] = ()


# --- messages and models ----------------------------------------------------------------------------------------------


class InputRewritten(Envelope, frozen=True, tag="input_rewritten"):
    kind: ClassVar[Literal["input_rewritten"]] = "input_rewritten"
    messages: tuple[Message, ...]
    by: str


class MessagesReceived(Envelope, frozen=True, tag="messages_received"):
    kind: ClassVar[Literal["messages_received"]] = "messages_received"
    messages: tuple[Message, ...]
    inbox: tuple[int, ...] = ()
    when: Literal["asap", "idle"] = "asap"
    by: str | None = None


class ModelReplied(Envelope, frozen=True, tag="model_replied"):
    kind: ClassVar[Literal["model_replied"]] = "model_replied"
    parts: tuple[Part, ...] = ()
    raw: RawReply | None = None
    usage: Usage = Usage()
    cost: Money | None = None
    prices: dict[str, Value] | None = None
    finish: Finish = "stop"
    continues: str | None = None
    rewritten_by: str | None = None
    request: RequestMade | None = None
    duration: int = 0
    first_token: int | None = None
    end: bool = False  # middleware asked for the end of the run

    @property
    def text(self) -> str:
        return text_of(self.parts)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return calls_of(self.parts)


class ModelFailed(Envelope, frozen=True, tag="model_failed"):
    kind: ClassVar[Literal["model_failed"]] = "model_failed"
    class_: str
    message: str = ""
    retry_at: int | None = None
    usage: Usage | None = None
    cost: Money | None = None
    model: str = ""


class ModelSwitched(Envelope, frozen=True, tag="model_switched"):
    kind: ClassVar[Literal["model_switched"]] = "model_switched"
    from_: str
    to: str
    why: str = ""


# --- calls ------------------------------------------------------------------------------------------------------------


class CallJudged(Envelope, frozen=True, tag="call_judged"):
    """What policy said of a call; a plain allow writes nothing."""

    kind: ClassVar[Literal["call_judged"]] = "call_judged"
    call: str
    tool: str
    args: Value = None
    verdict: VerdictKind = "allow"
    rule: str = ""
    reason: str | None = None
    value: Value = None
    args_rewritten_by: str | None = None
    action_key: str | None = None


class ToolStarted(Envelope, frozen=True, tag="tool_started"):
    """The intent of a call that must not run twice: committed before its body starts."""

    kind: ClassVar[Literal["tool_started"]] = "tool_started"
    call: str
    key: str
    digest: Digest
    effect: EffectKind
    worker: str = ""


class OutputRejected(Envelope, frozen=True, tag="output_rejected"):
    """A final answer that failed its type; `message` is what the model is told."""

    kind: ClassVar[Literal["output_rejected"]] = "output_rejected"
    message: str


class StepStarted(Envelope, frozen=True, tag="step_started"):
    kind: ClassVar[Literal["step_started"]] = "step_started"
    call: str
    name: str
    effect: EffectKind = "once"
    fn: str = ""
    args_digest: Digest = ""


class StepRecorded(Envelope, frozen=True, tag="step_recorded"):
    kind: ClassVar[Literal["step_recorded"]] = "step_recorded"
    call: str
    name: str
    effect: EffectKind = "idempotent"
    fn: str = ""
    args_digest: Digest = ""
    value: Value = None
    error: StepError | None = None


class ToolReturned(Envelope, frozen=True, tag="tool_returned"):
    kind: ClassVar[Literal["tool_returned"]] = "tool_returned"
    call: str
    content: Value = None
    state: tuple[Op, ...] = ()
    artifacts: tuple[Value, ...] = ()
    metadata: dict[str, Value] = {}
    source: Source = "ran"
    rewritten_by: str | None = None
    end: bool = False
    duration: int = 0


class ToolFailed(Envelope, frozen=True, tag="tool_failed"):
    """An attempt that raised; `final` if no other follows, and then the message is the call's result."""

    kind: ClassVar[Literal["tool_failed"]] = "tool_failed"
    call: str
    class_: str
    message: str = ""
    retry_at: int | None = None
    final: bool = True
    state: tuple[Op, ...] = ()
    source: Source = "ran"
    duration: int = 0
    stop: bool = False  # the agent's recovery asked for the end of the run


class DoubtResolved(Envelope, frozen=True, tag="doubt_resolved"):
    """What became of a call that started and never reported. `rule` was applied, so later defaults bend no journal."""

    kind: ClassVar[Literal["doubt_resolved"]] = "doubt_resolved"
    call: str
    how: Literal["verify", "decision", "late", "policy"]
    finding: Literal["done", "not_done", "unknown"]
    rule: str = ""


class LateResultReceived(Envelope, frozen=True, tag="late_result_received"):
    kind: ClassVar[Literal["late_result_received"]] = "late_result_received"
    call: str
    from_epoch: int
    value: Value = None
    error: str | None = None


# --- waiting and people -----------------------------------------------------------------------------------------------


class TicketOpened(Envelope, frozen=True, tag="ticket_opened"):
    kind: ClassVar[Literal["ticket_opened"]] = "ticket_opened"
    ticket: str
    ticket_kind: TicketKind
    call: str | None = None
    action: str = ""
    prompt: str = ""
    schema: dict[str, Any] | None = None
    args_digest: Digest | None = None
    reason: str = ""
    expires_at: int | None = None
    on_expire: OnExpire = "reject"
    child: str | None = None
    path: tuple[str, ...] = ()


class DecisionMade(Envelope, frozen=True, tag="decision_made"):
    kind: ClassVar[Literal["decision_made"]] = "decision_made"
    ticket: str
    decision_id: str
    decision: Decision
    by: str | None = None
    decided_at: int = 0


class TicketClosed(Envelope, frozen=True, tag="ticket_closed"):
    kind: ClassVar[Literal["ticket_closed"]] = "ticket_closed"
    ticket: str
    why: Literal["expired", "superseded", "withdrawn", "cancelled", "run_ended"]
    applied: Literal["reject", "approve", "cancel", "escalate", "report"] | None = None


class StateChanged(Envelope, frozen=True, tag="state_changed"):
    kind: ClassVar[Literal["state_changed"]] = "state_changed"
    ops: tuple[Op, ...] = ()
    by: str = ""
    end: bool = False  # it asked for the end of the run


class TimerSet(Envelope, frozen=True, tag="timer_set"):
    kind: ClassVar[Literal["timer_set"]] = "timer_set"
    timer: str
    due: int
    why: Literal["sleep", "backoff", "expiry", "pacing"] = "sleep"


class TimerFired(Envelope, frozen=True, tag="timer_fired"):
    kind: ClassVar[Literal["timer_fired"]] = "timer_fired"
    timer: str


class LimitsChanged(Envelope, frozen=True, tag="limits_changed"):
    kind: ClassVar[Literal["limits_changed"]] = "limits_changed"
    limits: Limits
    by: str | None = None


class CancelRequested(Envelope, frozen=True, tag="cancel_requested"):
    kind: ClassVar[Literal["cancel_requested"]] = "cancel_requested"
    reason: str = ""
    by: str | None = None
    inbox: int = 0


class Paused(Envelope, frozen=True, tag="paused"):
    kind: ClassVar[Literal["paused"]] = "paused"
    reason: str = ""
    by: str | None = None
    inbox: int = 0


class Unpaused(Envelope, frozen=True, tag="unpaused"):
    kind: ClassVar[Literal["unpaused"]] = "unpaused"
    reason: str = ""
    by: str | None = None
    inbox: int = 0


# --- context ----------------------------------------------------------------------------------------------------------


class AgentChanged(Envelope, frozen=True, tag="agent_changed"):
    kind: ClassVar[Literal["agent_changed"]] = "agent_changed"
    to: str
    reason: str = ""
    filter: str | None = None


class ContextCompacted(Envelope, frozen=True, tag="context_compacted"):
    kind: ClassVar[Literal["context_compacted"]] = "context_compacted"
    covers: tuple[str, ...]
    summary: tuple[Message, ...]
    policy: str = ""
    usage: Usage | None = None
    cost: Money | None = None
    model: str = ""


class CompactionFailed(Envelope, frozen=True, tag="compaction_failed"):
    kind: ClassVar[Literal["compaction_failed"]] = "compaction_failed"
    class_: str
    message: str = ""


class ReminderAdded(Envelope, frozen=True, tag="reminder_added"):
    kind: ClassVar[Literal["reminder_added"]] = "reminder_added"
    key: str
    text: str


class SkillLoaded(Envelope, frozen=True, tag="skill_loaded"):
    kind: ClassVar[Literal["skill_loaded"]] = "skill_loaded"
    name: str
    digest: Digest = ""
    files: tuple[str, ...] = ()


class Noted(Envelope, frozen=True, tag="noted"):
    kind: ClassVar[Literal["noted"]] = "noted"
    note_kind: str
    value: Value = None


# --- delegation -------------------------------------------------------------------------------------------------------


class ChildStarted(Envelope, frozen=True, tag="child_started"):
    kind: ClassVar[Literal["child_started"]] = "child_started"
    run: str
    agent: str
    call: str | None = None
    budget: Limits | None = None
    background: bool = False


class ChildFinished(Envelope, frozen=True, tag="child_finished"):
    kind: ClassVar[Literal["child_finished"]] = "child_finished"
    run: str
    outcome: Outcome
    output: Value = None
    usage: Usage = Usage()
    cost: Money | None = None
    returned: Limits | None = None


class RemoteAttached(Envelope, frozen=True, tag="remote_attached"):
    """First without `task`, before anything is sent; then with the remote's own id, before anything is awaited."""

    kind: ClassVar[Literal["remote_attached"]] = "remote_attached"
    backend: str
    task: str | None = None
    context: str | None = None
    state: Value = None


class RemoteProgressed(Envelope, frozen=True, tag="remote_progressed"):
    kind: ClassVar[Literal["remote_progressed"]] = "remote_progressed"
    status: str
    message: str | None = None
    artifacts: tuple[Value, ...] = ()
    state: Value = None
    usage: Usage | None = None


class RemoteAborted(Envelope, frozen=True, tag="remote_aborted"):
    kind: ClassVar[Literal["remote_aborted"]] = "remote_aborted"
    ok: bool
    error: str | None = None
    deadline: int | None = None


# --- the end ----------------------------------------------------------------------------------------------------------


class RunFinished(Envelope, frozen=True, tag="run_finished"):
    kind: ClassVar[Literal["run_finished"]] = "run_finished"
    outcome: Outcome
    output: Output = Output()
    usage: Usage = Usage()
    cost: Money | None = None
    turns: int = 0
    calls: int = 0
    children_abandoned: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        return str(self.outcome)


Entry: TypeAlias = (
    RunStarted
    | BaseFixed
    | DriverAttached
    | InputRewritten
    | MessagesReceived
    | ModelReplied
    | ModelFailed
    | ModelSwitched
    | CallJudged
    | ToolStarted
    | OutputRejected
    | StepStarted
    | StepRecorded
    | ToolReturned
    | ToolFailed
    | DoubtResolved
    | LateResultReceived
    | TicketOpened
    | DecisionMade
    | TicketClosed
    | StateChanged
    | TimerSet
    | TimerFired
    | LimitsChanged
    | CancelRequested
    | Paused
    | Unpaused
    | AgentChanged
    | ContextCompacted
    | CompactionFailed
    | ReminderAdded
    | SkillLoaded
    | Noted
    | ChildStarted
    | ChildFinished
    | RemoteAttached
    | RemoteProgressed
    | RemoteAborted
    | RunFinished
)
