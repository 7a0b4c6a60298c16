"""The agent loop as a function: state in, next effects out. The only place that decides."""

from collections.abc import Callable
from typing import cast

from clew.core import entries as e
from clew.core.effects import Await, CallModel, CallTool, CheckOutput, Close, Effect, Finish, Record
from clew.core.limits import exceeded
from clew.core.outcomes import Blocked, Cancelled, Completed, Failed, Outcome, Requested
from clew.core.spec import ToolSpec
from clew.core.state import Call, State
from clew.core.steps import idempotency_key, model_step
from clew.core.values import INLINE_LIMIT, Value, digest, pack

PARALLEL_CALLS = 16
LONGEST_NAME = 64  # of a tool that is not there, as the model is told of it

UNKNOWN_OUTCOME = (
    "outcome unknown: the call was started, and the process that ran it ended before it could say what happened"
)
NOT_RUN_REJOINED = "not run: the conversation went another way"
NOT_RUN_ENDING = "not run: the run is ending"
CANCELLED = "cancelled"
CUT_OFF = "not run: the reply was cut off at its length limit, so these arguments may be incomplete; send them again"
NOBODY_TO_ASK = "this call needs an approval, and nobody can be asked here"


def next_effects(state: State) -> tuple[Effect, ...]:
    """What is to be done now. Empty means: the run waits for somebody, or is finished."""
    if state.started is None or state.finished is not None:
        return ()
    for rule in RULES:
        effects = rule(state)
        if effects is not None:
            return effects
    return (_ask_model(state),)


def next_model_step(state: State) -> str:
    return model_step(state.turn + 1)


# --- the rules, in their order; each answers None if it has nothing to say --------------------------------------------


def _cancelled(state: State) -> tuple[Effect, ...] | None:
    if state.cancel is None:
        return None
    if state.open_calls:
        return tuple([_close(call, "cancelled", CANCELLED, interrupt=True) for call in state.open_calls])
    return (_finish(state, Cancelled(by=state.cancel.by, reason=state.cancel.reason)),)


def _queued(state: State) -> tuple[Effect, ...] | None:
    return () if state.queued else None


def _paused(state: State) -> tuple[Effect, ...] | None:
    if state.paused is None:
        return None
    return (Await(next_model_step(state)), *[Await(call.id) for call in state.open_calls])


def _ending(state: State) -> tuple[Effect, ...] | None:
    """A fatal error or a block: what runs may end, what has not started will not."""
    if state.fatal is not None:
        outcome: Outcome = Failed("fatal", state.fatal.message)
    elif state.blocked is not None:
        outcome = Blocked(state.blocked.reason or state.blocked.rule)
    else:
        return None
    if state.open_calls:
        return tuple([_close(call, "not_run", NOT_RUN_ENDING) for call in state.open_calls])
    return (_finish(state, outcome),)


def _calls(state: State) -> tuple[Effect, ...] | None:
    """The calls that may proceed now: in order, `sequential` ones alone, and not more at a time than is allowed."""
    if not state.calls:
        return None
    proceeding: list[Call] = []
    for call in state.open_calls:
        tool = state.tool_of(call)
        if tool is not None and tool.sequential:
            if not proceeding:
                proceeding.append(call)
            break
        proceeding.append(call)
    return tuple([_proceed(state, call) for call in proceeding[:PARALLEL_CALLS]])


def _end_requested(state: State) -> tuple[Effect, ...] | None:
    return (_finish(state, Requested()),) if state.end_requested else None


def _final_answer(state: State) -> tuple[Effect, ...] | None:
    reply = state.final
    if reply is None:
        return None
    if reply.finish == "filter":
        return (_finish(state, Failed("filtered", "the provider withheld the answer")),)
    if state.spec is not None and state.spec.output_schema is not None:
        return (CheckOutput(reply.step or "", reply.text),)
    return (_finish(state, Completed(), e.Output(text=reply.text)),)


def _model_failed(state: State) -> tuple[Effect, ...] | None:
    failure = state.model.failure
    return None if failure is None else (_finish(state, Failed(failure.class_, failure.message)),)


def _over_limit(state: State) -> tuple[Effect, ...] | None:
    stopped = exceeded(state)
    return None if stopped is None else (_finish(state, stopped),)


RULES: tuple[Callable[[State], tuple[Effect, ...] | None], ...] = (
    _cancelled,
    _queued,
    _paused,
    _ending,
    _calls,
    _end_requested,
    _final_answer,
    _model_failed,
    _over_limit,
)


def _ask_model(state: State) -> CallModel:
    phase = state.model
    return CallModel(next_model_step(state), phase.errors + 1, phase.asked, phase.retry_at)


# --- one call ---------------------------------------------------------------------------------------------------------


def _proceed(state: State, call: Call) -> Effect:
    """The next thing to do about one open call."""
    if call.finding is not None or call.in_doubt:
        return _settle_doubt(call)
    if call.superseded:
        return _failure(call, "superseded", NOT_RUN_REJOINED, "superseded")
    if call.cut_off:
        return _failure(call, "cut_off", CUT_OFF, "invalid")
    if call.request.invalid is not None:
        return _failure(call, "invalid_arguments", call.request.invalid, "invalid")
    tool = state.tool_of(call)
    if tool is None:
        return _failure(call, "unknown_tool", _unknown_tool(state, call), "invalid")
    return _judge(call, tool) or _start(state, call, tool)


def _judge(call: Call, tool: ToolSpec) -> Effect | None:
    """What the verdict asks for, or None if the call may run."""
    judged = call.judged
    if judged is None:
        if not (tool.needs_approval or tool.client):
            return None
        return Record(
            e.CallJudged(
                step=call.id,
                call=call.id,
                tool=call.tool,
                # Large ones stand in the reply.
                args=arguments(call) if len(call.request.args_text) <= INLINE_LIMIT else None,
                verdict="deny",
                rule="client_tool" if tool.client else "needs_approval",
                reason=NOBODY_TO_ASK,
            )
        )
    match judged.verdict:
        case "deny" | "block" | "ask":
            return _failure(call, "denied", judged.reason or f"denied by {judged.rule}", "policy")
        case "answer":
            return Record(e.ToolReturned(step=call.id, call=call.id, content=judged.value, source="policy"))
        case _:
            return None


def _start(state: State, call: Call, tool: ToolSpec) -> Effect:
    attempt = call.failures + 1
    if tool.effect != "once" or call.intent is not None:
        return CallTool(call.id, attempt, call.retry_at)
    intent = e.ToolStarted(
        step=call.id,
        attempt=attempt,
        call=call.id,
        key=idempotency_key(state.run, call.id),
        digest=call_digest(call, tool),
        effect=tool.effect,
        worker=state.worker,
    )
    # It says that the body is about to start, so it too waits out the pause before a retry.
    return Record(intent, call.retry_at)


def _settle_doubt(call: Call) -> Effect:
    """Until somebody can be asked, a late result closes a doubt and the model is told of any other."""
    finding = call.finding
    if finding is None and call.late is not None and call.late.error is None:
        return Record(e.DoubtResolved(step=call.id, call=call.id, how="late", finding="done", rule="late_result"))
    if finding is None:
        return Record(e.DoubtResolved(step=call.id, call=call.id, how="policy", finding="unknown", rule="report"))
    if finding.finding == "done" and call.late is not None:
        return Record(e.ToolReturned(step=call.id, call=call.id, content=call.late.value, source="late"))
    return _failure(call, "outcome_unknown", UNKNOWN_OUTCOME, "doubt")


def _close(call: Call, class_: str, message: str, *, interrupt: bool = False) -> Effect:
    """The answer of a call that will not go on: what started and never reported has an unknown outcome."""
    if call.in_doubt or call.finding is not None:
        return _settle_doubt(call)
    if call.intent is not None:
        unknown = _failure(call, "outcome_unknown", UNKNOWN_OUTCOME, "doubt")
        return Close(call.id, unknown.entry, interrupt)
    return Close(call.id, _failure(call, class_, message, "cancelled").entry, interrupt)


def _failure(call: Call, class_: str, message: str, source: e.Source) -> Record:
    return Record(e.ToolFailed(step=call.id, call=call.id, class_=class_, message=message, source=source))


def _unknown_tool(state: State, call: Call) -> str:
    spec = state.known.specs.get(call.fingerprint)
    names = ", ".join(tool.name for tool in spec.tools) if spec is not None else ""
    asked = call.tool if len(call.tool) <= LONGEST_NAME else call.tool[:LONGEST_NAME] + "…"
    return f"there is no tool {asked!r}" + (f": use one of {names}" if names else "")


def arguments(call: Call) -> dict[str, Value]:
    """The arguments in force, in journal form: as judged if a verdict rewrote them, else as the model gave them."""
    judged: Value = None if call.judged is None else call.judged.args
    return cast("dict[str, Value]", judged if isinstance(judged, dict) else pack(call.request.args))


def call_digest(call: Call, tool: ToolSpec) -> str:
    """What an approval and an intent bind to: tool, arguments and schema."""
    return digest([tool.name, arguments(call), tool.schema])


# --- the end ----------------------------------------------------------------------------------------------------------


def finished(state: State, outcome: Outcome, output: e.Output = e.Output()) -> e.RunFinished:
    """The one terminal entry, with the counts of the whole run."""
    return e.RunFinished(
        outcome=outcome,
        output=output,
        usage=state.usage,
        cost=state.cost,
        turns=state.turn - state.first_turn,
        calls=state.call_count,
        children_abandoned=tuple(state.children),
    )


def _finish(state: State, outcome: Outcome, output: e.Output = e.Output()) -> Finish:
    return Finish(finished(state, outcome, output))
