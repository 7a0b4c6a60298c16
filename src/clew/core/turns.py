"""What a fact changes in the turn at hand: its calls and their answers, tickets, timers, steps, state keys."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from clew.core import calls as one
from clew.core import course as courses
from clew.core import entries as e
from clew.core.calls import Call, Wait
from clew.core.keys import changed_keys
from clew.core.messages import Message, ToolResult, Transcript, message_id
from clew.core.outcomes import Stopped
from clew.core.steps import INPUT_STEP, call_of, end_step
from clew.core.tickets import Approve, Edit
from clew.errors import JournalCorrupt

if TYPE_CHECKING:
    from clew.core.state import State

_V = TypeVar("_V")


def open_call(state: "State", call_id: str) -> Call | None:
    for call in state.calls:
        if call.request.call == call_id and call.answer is None:
            return call
    return None


def _find(state: "State", call_id: str) -> Call:
    found = open_call(state, call_id)
    if found is None:
        raise JournalCorrupt(f"run {state.run!r}: entry {state.seq} is about {call_id!r}, which is no open call")
    return found


def with_call(state: "State", call_id: str, change: Callable[[Call], Call]) -> "State":
    found = _find(state, call_id)
    changed = change(found)
    return replace(state, calls=tuple([changed if call is found else call for call in state.calls]))


# --- answers ----------------------------------------------------------------------------------------------------------


def _answered(
    state: "State", found: Call, result: ToolResult
) -> tuple[Transcript, tuple[Call, ...], tuple[Message, ...]]:
    """Results take their place by call order once the last one is there, and then the mail behind them."""
    message = Message("tool", (result,), message_id(state.run, state.seq), (state.run, state.turn))
    maybe = [message if call is found else call.answer for call in state.calls]
    answers = [answer for answer in maybe if answer is not None]
    if len(answers) == len(maybe):
        return state.transcript.extended(*answers, *state.mail), (), ()
    calls = tuple([replace(call, answer=message) if call is found else call for call in state.calls])
    return state.transcript, calls, state.mail


def returned(state: "State", entry: e.ToolReturned) -> "State":
    found = _find(state, entry.call)
    transcript, calls, mail = _answered(state, found, ToolResult(entry.call, entry.content))
    course = courses.succeeded(state.course, found.tool) if state.course.failing else state.course
    if found.tool == state.limits.tool and course.stop is None:
        course = replace(course, stop=Stopped("tool", found.tool))
    return replace(
        with_ops(state, entry.state, entry.call, course) if entry.state else state,
        transcript=transcript,
        calls=calls,
        mail=mail,
        attempts=state.attempts + (entry.source == "ran"),
        timers=_left(state, entry.call),
        end_requested=state.end_requested or entry.end,
        **({} if course is state.course or entry.state else {"course": course}),
    )


def _left(state: "State", call_id: str) -> dict[str, e.TimerSet]:
    """Without the timers of a call that is answered."""
    if not state.timers:
        return state.timers
    return {name: timer for name, timer in state.timers.items() if call_of(timer.step or "") != call_id}


def failed(state: "State", entry: e.ToolFailed) -> "State":
    found = _find(state, entry.call)
    changed = replace(
        with_ops(state, entry.state, entry.call, state.course) if entry.state else state,
        attempts=state.attempts + (entry.source == "ran" or not entry.final),
        fatal=state.fatal or (entry if entry.class_ == "fatal" and entry.final else None),
    )
    if not entry.final:
        return with_call(changed, entry.call, lambda call: one.raised(call, entry))
    transcript, calls, mail = _answered(state, found, ToolResult(entry.call, entry.message, is_error=True))
    course = courses.failed(changed.course, found.tool, entry)
    return replace(
        changed, transcript=transcript, calls=calls, mail=mail, course=course, timers=_left(state, entry.call)
    )


def with_ops(state: "State", ops: tuple[e.Op, ...], writer: str, course: courses.Course) -> "State":
    known = {"run": state.run_state, "thread": state.thread_state}
    return replace(
        state,
        run_state=changed_keys(state.run_state, ops, "run"),
        thread_state=changed_keys(state.thread_state, ops, "thread"),
        course=courses.wrote(course, known, writer, ops) if writer else course,
    )


def state_changed(state: "State", entry: e.StateChanged) -> "State":
    """By middleware; under the step of a boundary it also says that the hooks of that boundary have run.

    Under the step of a call it counts as given by that call.
    """
    writer = entry.step if entry.step is not None and open_call(state, entry.step) is not None else ""
    changed = with_ops(state, entry.ops, writer, state.course) if entry.ops else state
    if entry.end:
        changed = replace(changed, end_requested=True)
    if entry.step is not None and entry.step in (INPUT_STEP, end_step(state.turn)):
        changed = replace(changed, course=replace(changed.course, hooked=entry.step))
    return changed


def stopped_by_text(state: "State", text: str) -> Stopped | None:
    pattern = state.limits.text
    if pattern is None or state.course.stop is not None or not re.search(pattern, text):
        return state.course.stop
    return Stopped("text", pattern)


# --- calls under way --------------------------------------------------------------------------------------------------


def judged(state: "State", entry: e.CallJudged) -> "State":
    blocked = entry if entry.verdict == "block" else state.blocked
    return replace(with_call(state, entry.call, lambda call: replace(call, judged=entry)), blocked=blocked)


def step_told(state: "State", entry: e.StepStarted | e.StepRecorded) -> "State":
    told = with_call(state, entry.call, lambda call: one.told_of_step(call, entry))
    if isinstance(entry, e.StepRecorded):
        return told
    return with_call(told, entry.call, lambda call: replace(call, owner=state.owner))


def late_result(state: "State", entry: e.LateResultReceived) -> "State":
    found = open_call(state, entry.call)
    if found is None or one.is_outdated(found, entry):
        return state
    return with_call(state, entry.call, lambda call: one.told_late(call, entry))


def attached(state: "State", call: Call) -> Call:
    """What an older epoch started and did not finish is what a crash left: `once` is in doubt, the rest starts anew."""
    if call.answer is not None or not (call.intent is not None or call.steps):
        return call
    tool = state.tool_of(call)
    doubts = one.left_open(call, steps_only=tool is not None and tool.steps_only)
    return call if doubts == call.doubts else replace(call, doubts=doubts)


# --- tickets and timers -----------------------------------------------------------------------------------------------


def ticket_opened(state: "State", entry: e.TicketOpened) -> "State":
    call = None if entry.call is None else _find(state, entry.call)
    opened = state
    if call is None or not one.is_closed(call, entry):
        opened = replace(state, tickets={**state.tickets, entry.ticket: entry})
    if entry.ticket_kind == "limit":
        asked = opened.course.limits_asked + 1
        return replace(opened, course=replace(opened.course, limit=Wait(opened=entry), limits_asked=asked))
    return opened if call is None else with_call(opened, call.id, lambda found: one.waiting(found, entry))


def ticket_closed(state: "State", entry: e.DecisionMade | e.TicketClosed) -> "State":
    """A decision for a ticket that is no longer open stands in the journal and changes nothing."""
    ticket = state.tickets.get(entry.ticket)
    if ticket is None:
        return state
    closed = replace(state, tickets=without(state.tickets, entry.ticket))
    if closed.course.limit is not None and closed.course.limit.opened is ticket:
        return replace(closed, course=replace(closed.course, limit=replace(closed.course.limit, closed=entry)))
    call = None if ticket.call is None else open_call(state, ticket.call)
    if call is None:
        return closed
    if isinstance(entry, e.DecisionMade) and ticket.ticket_kind == "approval":
        closed = _remembered(closed, call, entry)
    return with_call(closed, call.id, lambda found: _decided(found, entry))


def _remembered(state: "State", call: Call, entry: e.DecisionMade) -> "State":
    key = None if call.judged is None else call.judged.action_key
    match entry.decision:
        case Approve(remember="run") if key:
            return replace(state, run_approvals=(*state.run_approvals, key))
        case Approve(remember="thread") if key:
            return replace(state, thread_approvals=(*state.thread_approvals, key))
        case _:
            return state


def _decided(call: Call, entry: e.DecisionMade | e.TicketClosed) -> Call:
    """Edited arguments take the place of those that were judged, until they are judged themselves."""
    if isinstance(entry, e.DecisionMade) and isinstance(entry.decision, Edit) and call.judged is not None:
        call = replace(call, judged=replace(call.judged, args=entry.decision.args))
    return one.answered_wait(call, entry)


def timer_set(state: "State", entry: e.TimerSet) -> "State":
    call = None if entry.step is None else open_call(state, call_of(entry.step))
    known = state
    if call is None or not one.is_closed(call, entry):
        known = replace(state, timers={**state.timers, entry.timer: entry})
    return known if call is None else with_call(known, call.id, lambda found: one.waiting(found, entry))


def timer_fired(state: "State", entry: e.TimerFired) -> "State":
    timer = state.timers.get(entry.timer)
    fired = replace(state, timers=without(state.timers, entry.timer))
    call = None if timer is None or timer.step is None else open_call(state, call_of(timer.step))
    return fired if call is None else with_call(fired, call.id, lambda found: one.answered_wait(found, entry))


def without(mapping: Mapping[str, _V], key: str) -> dict[str, _V]:
    return {k: v for k, v in mapping.items() if k != key}
