"""The agent loop as a function: state in, next effects out. The only place that decides."""

from collections.abc import Callable

from clew.core import entries as e
from clew.core.effects import (
    NOWHERE,
    Await,
    CallModel,
    CallTool,
    CheckOutput,
    Effect,
    Finish,
    Here,
    Record,
    RunHooks,
    Verify,
)
from clew.core.limits import SCHEMA, edited, exceeded, raised
from clew.core.messages import text_of
from clew.core.outcomes import Blocked, Cancelled, Completed, Failed, Outcome, Requested, Stopped
from clew.core.proceeding import close, forbidden, proceed
from clew.core.state import State
from clew.core.steps import INPUT_STEP, end_step, model_step
from clew.core.tickets import Approve, Edit
from clew.core.values import unpack

PARALLEL_CALLS = 16

NOT_RUN_ENDING = "not run: the run is ending"
CANCELLED = "cancelled"


def next_effects(state: State, here: Here = NOWHERE) -> tuple[Effect, ...]:
    """What is to be done now. Empty means: the run waits for somebody, or is finished."""
    if state.started is None or state.finished is not None:
        return ()
    for rule in RULES:
        effects = rule(state, here)
        if effects is not None:
            return effects
    return (_ask_model(state),)


def next_model_step(state: State) -> str:
    """Of the next turn, or of the same one if its reply was cut off and is to go on."""
    return model_step(state.turn + 1) if not _goes_on(state) else model_step(state.turn, state.continued + 2)


def _goes_on(state: State) -> bool:
    """Whether the last words were cut off at their length limit, and are to be taken up again."""
    if state.final is None or state.final.finish != "length" or state.spec is None:
        return False
    return state.continued < state.spec.max_continuations


# --- the rules, in their order; each answers None if it has nothing to say --------------------------------------------


def _cancelled(state: State, _here: Here) -> tuple[Effect, ...] | None:
    if state.cancel is None:
        return None
    if state.open_calls:
        return tuple([close(call, "cancelled", CANCELLED, interrupt=True) for call in state.open_calls])
    return (_finish(state, Cancelled(by=state.cancel.by, reason=state.cancel.reason)),)


def _queued(state: State, _here: Here) -> tuple[Effect, ...] | None:
    return () if state.queued else None


def _paused(state: State, _here: Here) -> tuple[Effect, ...] | None:
    if state.paused is None:
        return None
    return (Await(next_model_step(state)), *[Await(call.id) for call in state.open_calls])


def _attached(state: State, here: Here) -> tuple[Effect, ...] | None:
    """Middleware sees that a process has taken the run up, and, once, what came in."""
    spec = state.spec
    if spec is None or not spec.middleware or state.model.failure is not None:
        return None
    if "on_attach" not in here.hooked:
        return (RunHooks("on_attach", "on_attach"),)
    if state.turn == state.first_turn and not state.calls and not state.course.hooked and INPUT_STEP not in here.hooked:
        return (RunHooks(INPUT_STEP, "on_input"),)
    return None


def _ending(state: State, _here: Here) -> tuple[Effect, ...] | None:
    """A fatal error or a block: what runs may end, what has not started will not."""
    gave_up = _gave_up(state)
    if state.fatal is not None:
        outcome: Outcome = Failed("fatal", state.fatal.message)
    elif state.blocked is not None:
        outcome = Blocked(state.blocked.reason or state.blocked.rule)
    elif gave_up is not None:
        outcome = Failed("tool_failed", f"Tool execution failed: {gave_up.message}")
    else:
        return None
    if state.open_calls:
        return tuple([forbidden(call) or close(call, "not_run", NOT_RUN_ENDING) for call in state.open_calls])
    return (_finish(state, outcome),)


def _gave_up(state: State) -> e.ToolFailed | None:
    """The failure after which the agent's recovery ends the run."""
    failed = state.course.failed
    if failed is None or failed.stop:
        return failed
    mode = "tell" if state.spec is None else state.spec.on_tool_error
    if mode.isdecimal():
        return failed if max(state.course.failing.values(), default=0) >= int(mode) else None
    return failed if mode == "stop" else None


def _withdrawn(state: State, _here: Here) -> tuple[Effect, ...] | None:
    """What was asked about a call that has its answer needs none any more."""
    if not state.tickets:
        return None
    over = [ticket for ticket in state.tickets.values() if ticket.call is not None and _is_moot(state, ticket)]
    closed = [Record(e.TicketClosed(step=one.step, ticket=one.ticket, why="withdrawn")) for one in over]
    return tuple(closed) or None


def _is_moot(state: State, ticket: e.TicketOpened) -> bool:
    call = next((call for call in state.open_calls if call.id == ticket.call), None)
    return call is None or (ticket.ticket_kind == "doubt" and ticket.step not in call.doubts)


def _calls(state: State, here: Here) -> tuple[Effect, ...] | None:
    """What may be done about calls now: bodies in order, `sequential` ones alone, and so many at a time."""
    if not state.calls:
        return None
    effects: list[Effect] = []
    running = 0
    before = alone = False  # whether another call, or one that must run alone, stands before this one
    for call in state.open_calls:
        tool = state.tool_of(call)
        sequential = tool is not None and tool.sequential
        for effect in proceed(state, call, here):
            if _is_body(effect):
                if alone or (sequential and before) or running == PARALLEL_CALLS:
                    continue
                running += 1
            effects.append(effect)
        before, alone = True, alone or sequential
    return tuple(effects)


def _is_body(effect: Effect) -> bool:
    """Whether the effect is that a body runs, or is about to."""
    return isinstance(effect, CallTool | Verify) or (isinstance(effect, Record) and type(effect.entry) is e.ToolStarted)


def _turn_ended(state: State, here: Here) -> tuple[Effect, ...] | None:
    """Middleware sees a turn once all its results are there; of the last reply there are none."""
    spec = state.spec
    if spec is None or not spec.middleware or state.final is not None or state.model.failure is not None:
        return None
    if state.turn == state.first_turn:
        return None
    step = end_step(state.turn)
    if state.course.hooked == step or step in here.hooked:
        return None
    return (RunHooks(step, "on_turn_end"),)


def _end_requested(state: State, _here: Here) -> tuple[Effect, ...] | None:
    return (_finish(state, Requested()),) if state.end_requested else None


def _final_answer(state: State, _here: Here) -> tuple[Effect, ...] | None:
    reply = state.final
    if reply is None or _goes_on(state):
        return None
    if reply.finish == "filter":
        return (_finish(state, Failed("filtered", "the provider withheld the answer")),)
    text = text_of(state.transcript[-1].parts) if state.continued else reply.text
    if state.spec is not None and state.spec.output_schema is not None:
        return (CheckOutput(reply.step or "", text),)
    return (_finish(state, Completed(), e.Output(text=text)),)


def _model_failed(state: State, _here: Here) -> tuple[Effect, ...] | None:
    failure = state.model.failure
    return None if failure is None else (_finish(state, Failed(failure.class_, failure.message)),)


def _over_limit(state: State, _here: Here) -> tuple[Effect, ...] | None:
    stopped = exceeded(state, same_turn=_goes_on(state))
    if stopped is None:
        return None
    return (_finish(state, stopped),) if state.limits.on_limit == "stop" else _ask_to_go_on(state, stopped)


def _ask_to_go_on(state: State, stopped: Stopped) -> tuple[Effect, ...]:
    """A ticket says which limit was reached; its answer raises it or ends the run."""
    asked = state.course.limit
    closed = None if asked is None else asked.closed
    if asked is None:
        return (Record(_limit_ticket(state, stopped)),)
    if closed is None:
        return ()
    match closed:
        case e.DecisionMade(decision=Approve(), by=by):
            return (Record(e.LimitsChanged(limits=raised(state, stopped.code), by=by)),)
        case e.DecisionMade(decision=Edit(args=args), by=by):
            return (Record(e.LimitsChanged(limits=edited(state.limits, unpack(args)), by=by)),)
        case _:
            return (_finish(state, stopped),)


def _limit_ticket(state: State, stopped: Stopped) -> e.TicketOpened:
    return e.TicketOpened(
        step=next_model_step(state),
        ticket="limit" if state.course.limits_asked == 0 else f"limit~{state.course.limits_asked + 1}",
        ticket_kind="limit",
        schema=SCHEMA,
        action=f"limit:{stopped.code}",
        prompt=f"The limit {stopped.code!r} is reached ({stopped.detail}). May the run go on?",
        reason=str(stopped),
    )


RULES: tuple[Callable[[State, Here], tuple[Effect, ...] | None], ...] = (
    _cancelled,
    _queued,
    _paused,
    _attached,
    _ending,
    _withdrawn,
    _calls,
    _turn_ended,
    _end_requested,
    _final_answer,
    _model_failed,
    _over_limit,
)


def _ask_model(state: State) -> CallModel:
    phase = state.model
    continues = model_step(state.turn) if _goes_on(state) else None
    return CallModel(next_model_step(state), phase.errors + 1, phase.asked, phase.retry_at, continues)


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
