"""What is to be done next about one open call: verdict, ticket, intent, body, doubt. The other half of the rules."""

from typing import Literal, cast

from msgspec.structs import replace

from clew.core import entries as e
from clew.core.calls import ESCALATED, RETRY, Call, Wait, may_have_run, open_steps
from clew.core.effects import CallTool, Close, Effect, Here, Judge, Record, Verify
from clew.core.spec import OnExpire, ToolSpec
from clew.core.state import State
from clew.core.steps import idempotency_key
from clew.core.tickets import Approve, Edit, Reject, Respond, TicketKind
from clew.core.values import INLINE_LIMIT, Digest, Value, digest, pack

LONGEST_NAME = 64  # of a tool that is not there, as the model is told of it
SECOND = 1_000_000

UNKNOWN_OUTCOME = (
    "outcome unknown: the call was started, and the process that ran it ended before it could say what happened"
)
NOT_RUN_REJOINED = "not run: the conversation went another way"
CUT_OFF = "not run: the reply was cut off at its length limit, so these arguments may be incomplete; send them again"
DID_NOT_HAPPEN = "it did not happen"

How = Literal["verify", "decision", "late", "policy"]
Finding = Literal["done", "not_done", "unknown"]


def proceed(state: State, call: Call, here: Here) -> tuple[Effect, ...]:  # noqa: PLR0911, C901
    """The next things to do about one open call; none: it waits for somebody."""
    if call.superseded:
        # Nothing more is found out about what may have happened.
        return (_unknown(call) or failure(call, "superseded", NOT_RUN_REJOINED, "superseded"),)
    if call.in_doubt:
        return _settle_doubt(state, call, here)
    if call.cut_off:
        return (failure(call, "cut_off", CUT_OFF, "invalid"),)
    if call.request.invalid is not None:
        return (failure(call, "invalid_arguments", call.request.invalid, "invalid"),)
    tool = state.tool_of(call)
    if tool is None:
        return (failure(call, "unknown_tool", _unknown_tool(state, call), "invalid"),)
    if call.standing:
        owed = _owed(call)
        if owed or not call.stirred:
            return owed or _to_come(call)
    verdict = _judge(state, call, tool, here)
    if verdict is not None:
        return verdict
    return _offered(state, call, tool) if tool.client else (_start(state, call, tool),)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def _judge(state: State, call: Call, tool: ToolSpec, here: Here) -> tuple[Effect, ...] | None:
    """What the verdict asks for, or None if the call may run."""
    judged = call.judged
    if judged is None:
        if call.id in here.allowed or may_have_run(call) or call.standing or not needs_judging(state, call, tool):
            return None
        return (Judge(call.id),)
    match judged.verdict:
        case "deny" | "block":
            return (_denied(call, judged),)
        case "answer":
            return (Record(e.ToolReturned(step=call.id, call=call.id, content=judged.value, source="policy")),)
        case "ask":
            return _ask(state, call, tool)
        case _:
            return None


def _denied(call: Call, judged: e.CallJudged) -> Record:
    return failure(call, "denied", judged.reason or f"denied by {judged.rule}", "policy")


def forbidden(call: Call) -> Record | None:
    """The answer of a call that a verdict forbids, whatever becomes of its siblings."""
    judged = call.judged
    return _denied(call, judged) if judged is not None and judged.verdict in ("deny", "block") else None


def needs_judging(state: State, call: Call, tool: ToolSpec) -> bool:
    """Whether anybody has a say in whether this call may run: as it was asked for, or as the agent is today."""
    if tool.needs_approval:
        return True
    return _is_ruled(state, call.fingerprint) or (
        call.fingerprint != state.fingerprint and _is_ruled(state, state.fingerprint)
    )


def _is_ruled(state: State, fingerprint: Digest) -> bool:
    spec = state.known.specs.get(fingerprint)
    return spec is not None and bool(spec.policy or spec.middleware)


def _ask(state: State, call: Call, tool: ToolSpec) -> tuple[Effect, ...] | None:  # noqa: PLR0911, C901
    """An approval is asked for, and what it comes to; None lets the call run."""
    wait = call.ticket("approval")
    if wait is None:
        return (_open(state, call, tool, "approval"),)
    match _answer(wait):
        case None:
            return _expire(wait)
        case Approve():
            return None if _bound(state, call, tool, wait) else (_open(state, call, tool, "approval"),)
        case Edit():
            return (Judge(call.id, again=True),)
        case Reject(message=message):
            return (failure(call, "rejected", message or "this call was rejected", "decision"),)
        case Respond(value=value):
            return (Record(e.ToolReturned(step=call.id, call=call.id, content=value, source="decision")),)
        case "escalate":
            return (_open(state, call, tool, "approval", reason=ESCALATED),)
        case "cancel":
            return (_cancel(wait),)
        case _:
            return (failure(call, "expired", "nobody approved this call in time", "decision"),)


def _bound(state: State, call: Call, tool: ToolSpec, wait: Wait) -> bool:
    """Whether what was approved is what would run today: the tool may have another schema by now."""
    assert isinstance(wait.opened, e.TicketOpened)
    return wait.opened.args_digest == call_digest(call, _today(state, tool))


def _today(state: State, tool: ToolSpec) -> ToolSpec:
    """The tool as the agent has it now, which is what would run."""
    return (None if state.spec is None else state.spec.tool(tool.name)) or tool


def _offered(state: State, call: Call, tool: ToolSpec) -> tuple[Effect, ...]:  # noqa: PLR0911
    """A tool without a body: whoever asked for the run performs it and answers its ticket."""
    wait = call.ticket("client_tool")
    if wait is None:
        return (_open(state, call, tool, "client_tool"),)
    match _answer(wait):
        case None:
            return _expire(wait)
        case Respond(value=value):
            return (Record(e.ToolReturned(step=call.id, call=call.id, content=value, source="decision")),)
        case Reject(message=message):
            return (failure(call, "rejected", message or "the client turned this call down", "decision"),)
        case "escalate":
            return (_open(state, call, tool, "client_tool", reason=ESCALATED),)
        case "cancel":
            return (_cancel(wait),)
        case _:
            return (failure(call, "expired", "the client did not answer in time", "decision"),)


# --- tickets ----------------------------------------------------------------------------------------------------------


def _open(
    state: State, call: Call, tool: ToolSpec, kind: TicketKind, *, subject: str = "", reason: str | None = None
) -> Record:
    """A ticket about a call or a step inside of it. One that was escalated stays open until somebody answers it."""
    judged, today = call.judged, _today(state, tool)
    expires = None if tool.expires is None or reason == ESCALATED else state.at + int(tool.expires * SECOND)
    on_expire: OnExpire = tool.on_expire if kind == "approval" or tool.on_expire != "approve" else "reject"
    why = "" if judged is None else judged.reason or judged.rule
    return Record(
        e.TicketOpened(
            step=subject or call.id,
            ticket=call.next_ticket,
            ticket_kind=kind,
            call=call.id,
            action=f"tool:{call.tool}",
            prompt=_prompt(call, kind, subject.partition(":")[2]),
            schema=today.schema if kind == "approval" else None,
            args_digest=call_digest(call, today),
            reason=reason or why,
            expires_at=expires,
            on_expire=on_expire,
        )
    )


def _prompt(call: Call, kind: TicketKind, step: str) -> str:
    match kind:
        case "approval":
            return f"May {call.tool} run?"
        case "doubt":
            what = f"The step {step!r} of {call.tool}" if step else call.tool
            return f"{what} was started, and nobody knows whether it happened. Did it?"
        case _:
            return f"{call.tool} is yours to run."


def _answer(wait: Wait) -> "Approve | Edit | Reject | Respond | str | None":
    """What a ticket came to: a decision, or what was applied when its time was over; None while it is open."""
    match wait.closed:
        case None:
            return None
        case e.DecisionMade(decision=decision):
            return decision
        case e.TicketClosed(applied="approve"):
            return Approve()
        case e.TicketClosed(applied=str(applied)):
            return applied
        case _:
            return "reject"


def _expire(wait: Wait) -> tuple[Effect, ...]:
    """An open ticket closes by itself when its time is over."""
    opened = wait.opened
    assert isinstance(opened, e.TicketOpened)
    if opened.expires_at is None:
        return ()
    unknown = opened.ticket_kind == "doubt" and opened.on_expire == "reject"
    applied = "report" if unknown else opened.on_expire
    closed = e.TicketClosed(step=opened.step, ticket=opened.ticket, why="expired", applied=applied)
    return (Record(closed, opened.expires_at),)


def _cancel(wait: Wait) -> Record:
    assert isinstance(wait.opened, e.TicketOpened)
    return Record(e.CancelRequested(reason=f"ticket {wait.opened.ticket} expired", by="expiry"))


def _owed(call: Call) -> tuple[Effect, ...]:
    """What follows when the time of a question is over, whatever else has come: it is asked anew, or the run ends."""
    for wait in call.stands_at:
        match wait.opened, wait.closed:
            case e.TicketOpened() as opened, e.TicketClosed(applied="escalate"):
                # One at a time: the next one's id follows from this one's.
                return (Record(replace(opened, ticket=call.next_ticket, expires_at=None, reason=ESCALATED)),)
            case _, e.TicketClosed(applied="cancel"):
                return (_cancel(wait),)
            case _:
                pass
    return ()


def _to_come(call: Call) -> tuple[Effect, ...]:
    """The body has let go: what it stands at comes from outside, or by the clock."""
    effects: list[Effect] = []
    for wait in call.stands_at:
        if isinstance(wait.opened, e.TimerSet):
            effects.append(Record(e.TimerFired(step=wait.step, timer=wait.opened.timer), wait.opened.due))
        else:
            effects.extend(_expire(wait))
    return tuple(effects)


# --- running ----------------------------------------------------------------------------------------------------------


def _start(state: State, call: Call, tool: ToolSpec) -> Effect:
    """The body, or first its intent. One that let go, or is entered by another driver, says again that it starts."""
    if tool.effect != "once" or _may_act(state, call):
        return CallTool(call.id, call.attempt, call.retry_at)
    if (late := call.known_late(call.id)) is not None and late.error is None:
        # It was found that it had not happened, and before it could happen again it turned out that it had.
        return _happened(call, call.id, late.value, "late")
    intent = e.ToolStarted(
        step=call.id,
        attempt=call.attempt,
        call=call.id,
        key=idempotency_key(state.run, call.id),
        digest=call_digest(call, tool),
        effect=tool.effect,
        worker=state.worker,
    )
    # It says that the body is about to start, so it too waits out the pause before a retry.
    return Record(intent, call.retry_at)


def _may_act(state: State, call: Call) -> bool:
    """Whether its intent is for the body that would start now."""
    return may_have_run(call) and call.intent is not None and call.intent.epoch >= state.epoch


def arguments(call: Call) -> dict[str, Value]:
    """The arguments in force, in journal form: as judged if a verdict rewrote them, else as the model gave them."""
    judged: Value = None if call.judged is None else call.judged.args
    return cast("dict[str, Value]", judged if isinstance(judged, dict) else pack(call.request.args))


def stated_arguments(call: Call) -> dict[str, Value] | None:
    """As a verdict states them. Large ones stand in the reply."""
    return arguments(call) if len(call.request.args_text) <= INLINE_LIMIT else None


def call_digest(call: Call, tool: ToolSpec) -> str:
    """What an approval and an intent bind to: tool, arguments and schema."""
    return digest([tool.name, arguments(call), tool.schema])


# --- doubt ------------------------------------------------------------------------------------------------------------


def _settle_doubt(state: State, call: Call, here: Here) -> tuple[Effect, ...]:  # noqa: PLR0911
    """Evidence first, then whoever can find out, then what was declared for the case that nobody can."""
    finding = call.finding
    subject = call.doubts[0]
    if finding is not None and finding.how != "verify":
        return (_concluded(call, finding),)
    if (late := call.known_late(subject)) is not None:
        # Who verifies it meanwhile may stop.
        return (Close(call.id, _by_late_result(call, subject, late).entry, interrupt=True),)
    tool = state.tool_of(call)
    wait = call.ticket("doubt")
    if wait is not None and wait.opened.step == subject and wait.opened.seq > _since(call, subject):
        return _doubt_decided(state, call, tool, wait, subject)
    patience = here.patience.get(call.id)
    if tool is not None and tool.verifies and finding is None:
        return (Verify(call.id, subject, patience),)
    if finding is not None and finding.finding == "not_done":
        return (_again(call, tool, subject),)
    match "report" if tool is None else tool.on_doubt:
        case "ask":
            assert tool is not None
            # The time for an answer begins when it is asked for.
            then = state if patience is None else replace(state, at=max(state.at, patience))
            return (replace(_open(then, call, tool, "doubt", subject=subject), not_before=patience),)
        case "retry":
            return (_resolved(call, subject, "policy", "unknown", RETRY, patience),)
        case _:
            return (_resolved(call, subject, "policy", "unknown", "report", patience),)


def _since(call: Call, subject: str) -> int:
    """The last entry before this doubt: an older ticket was about an older one."""
    told: list[e.Entry | None] = [call.intent, call.failed]
    if subject != call.id:
        told = [entry for entry in call.steps if entry.step == subject]
    return max((entry.seq for entry in told if entry is not None), default=0)


def _again(call: Call, tool: ToolSpec | None, subject: str) -> Effect:
    """It did not happen: after a crash it starts again, after an attempt that raised if one is left."""
    retries = 0 if tool is None else tool.retries
    if call.failed is None or subject != call.id or call.failures <= retries:
        return _resolved(call, subject, "verify", "not_done", RETRY)
    return failure(call, call.failed.class_, call.failed.message, "verify")


def _doubt_decided(  # noqa: PLR0911
    state: State, call: Call, tool: ToolSpec | None, wait: Wait, subject: str
) -> tuple[Effect, ...]:
    match _answer(wait):
        case None:
            return _expire(wait)
        case Approve():
            return (_resolved(call, subject, "decision", "not_done", RETRY),)
        case Reject():
            return (_resolved(call, subject, "decision", "not_done", "reject"),)
        case Respond():
            return (_resolved(call, subject, "decision", "done", "respond"),)
        case "cancel":
            return (_cancel(wait),)
        case "escalate" if tool is not None:
            return (_open(state, call, tool, "doubt", subject=subject, reason=ESCALATED),)
        case _:
            return (_resolved(call, subject, "policy", "unknown", "report"),)


def _concluded(call: Call, finding: e.DoubtResolved) -> Record:
    """The answer that a finding leads to."""
    subject = finding.step or call.id
    wait = call.ticket("doubt")
    answer = None if wait is None else _answer(wait)
    match finding.rule, answer:
        case "respond", Respond(value=value):
            return _happened(call, subject, value, "decision")
        case "reject", Reject(message=message):
            return _failed_there(call, subject, "not_done", message or DID_NOT_HAPPEN, "decision")
        case "late_result", _ if (late := call.known_late(subject)) is not None:
            if late.error is not None:
                return _failed_there(call, subject, "late", late.error, "late")
            return _happened(call, subject, late.value, "late")
        case _:
            return _failed_there(call, subject, "outcome_unknown", _what_is_unknown(call), "doubt")


def _what_is_unknown(call: Call) -> str:
    return UNKNOWN_OUTCOME if call.failed is None else f"outcome unknown: {call.failed.message}"


def _happened(call: Call, subject: str, value: Value, source: e.Source) -> Record:
    if subject == call.id:
        return Record(e.ToolReturned(step=call.id, call=call.id, content=value, source=source))
    return Record(step_record(call, subject, value=value))


def _failed_there(call: Call, subject: str, class_: str, message: str, source: e.Source) -> Record:
    if subject == call.id:
        return failure(call, class_, message, source)
    return Record(step_record(call, subject, error=e.StepError(class_, message)))


def step_record(call: Call, subject: str, *, value: Value = None, error: e.StepError | None = None) -> e.StepRecorded:
    begun = next(entry for entry in reversed(call.steps) if entry.step == subject)
    return e.StepRecorded(
        step=subject,
        call=call.id,
        name=begun.name,
        effect=begun.effect,
        fn=begun.fn,
        args_digest=begun.args_digest,
        value=value,
        error=error,
    )


def _resolved(call: Call, subject: str, how: How, finding: Finding, rule: str, not_before: int | None = None) -> Record:
    return Record(e.DoubtResolved(step=subject, call=call.id, how=how, finding=finding, rule=rule), not_before)


def _by_late_result(call: Call, subject: str, late: e.LateResultReceived) -> Record:
    """A tool that says late that it failed did nothing; of a step inside of it only its end is known."""
    failed = late.error is not None and subject == call.id
    return _resolved(call, subject, "late", "not_done" if failed else "done", "late_result")


# --- calls that will not go on ----------------------------------------------------------------------------------------


def close(call: Call, class_: str, message: str, *, interrupt: bool = False) -> Close:
    """The answer of a call that will not go on: what started and never reported has an unknown outcome."""
    unknown = _unknown(call)
    if unknown is None and not _found_not_done(call) and (may_have_run(call) or open_steps(call)):
        unknown = failure(call, "outcome_unknown", UNKNOWN_OUTCOME, "doubt")
    answer = unknown or failure(call, class_, message, "cancelled")
    return Close(call.id, answer.entry, interrupt)


def _found_not_done(call: Call) -> bool:
    """Whether `verify` has just found that it did not happen; nobody has let it happen again yet."""
    return call.finding is not None and call.finding.finding == "not_done" and call.finding.step == call.id


def _unknown(call: Call) -> Record | None:
    """A doubt about which nobody is asked any more: what is known already counts."""
    if call.finding is not None and call.finding.how != "verify":
        if call.finding.finding == "unknown":
            return failure(call, "outcome_unknown", _what_is_unknown(call), "doubt")
        return _concluded(call, call.finding)
    if not call.in_doubt or _found_not_done(call):
        return None
    if (late := call.known_late(call.doubts[0])) is not None:
        return _by_late_result(call, call.doubts[0], late)
    return _resolved(call, call.doubts[0], "policy", "unknown", "report")


def failure(call: Call, class_: str, message: str, source: e.Source) -> Record:
    return Record(
        e.ToolFailed(step=call.id, attempt=call.attempt, call=call.id, class_=class_, message=message, source=source)
    )


def _unknown_tool(state: State, call: Call) -> str:
    spec = state.known.specs.get(call.fingerprint)
    names = ", ".join(tool.name for tool in spec.tools) if spec is not None else ""
    asked = call.tool if len(call.tool) <= LONGEST_NAME else call.tool[:LONGEST_NAME] + "…"
    return f"there is no tool {asked!r}" + (f": use one of {names}" if names else "")
