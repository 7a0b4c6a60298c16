"""One call of the turn at hand, from the reply that asked for it to its answer, and what its body waits for."""

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from clew.core import entries as e
from clew.core.messages import Message, ToolCall
from clew.core.steps import backoff
from clew.core.tickets import TicketKind
from clew.core.values import Digest

ESCALATED = "escalated"
RETRY = "retry"  # the rule of a finding after which the step happens again
STEP_MISMATCH = "step_mismatch"

Closing: TypeAlias = e.DecisionMade | e.TicketClosed | e.TimerFired
StepEntry: TypeAlias = e.StepStarted | e.StepRecorded


class Wait(Struct, frozen=True, kw_only=True, gc=False):
    """Something asked of a person or of the clock, and what came of it."""

    opened: e.TicketOpened | e.TimerSet
    closed: Closing | None = None

    @property
    def step(self) -> str:
        return self.opened.step or ""


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the journal says of one call so far."""

    request: ToolCall
    fingerprint: Digest  # the declaration in force when its reply was committed
    cut_off: bool = False  # its reply was, so its arguments may be half of what was meant
    superseded: bool = False  # the conversation went another way
    judged: e.CallJudged | None = None
    intent: e.ToolStarted | None = None
    owner: e.Owner | None = None  # the process that began what of it was begun last
    failures: int = 0  # attempts that raised
    repeats: int = 0  # attempts after a doubt that was settled so
    failed: e.ToolFailed | None = None  # the last of those that raised
    retry_at: int | None = None
    doubts: tuple[str, ...] = ()  # steps that were started by nobody knows whom: the call's own, or inside of it
    finding: e.DoubtResolved | None = None  # of the first of them
    evidence: tuple[e.LateResultReceived, ...] = ()  # what is known of steps in doubt
    waits: tuple[Wait, ...] = ()
    standing: tuple[str, ...] = ()  # steps of the waits at which its body let go, last time
    let_go_in: int = 0  # the commit in which it did
    steps: tuple[StepEntry, ...] = ()
    answer: Message | None = None

    @property
    def id(self) -> str:
        return self.request.call

    @property
    def tool(self) -> str:
        return self.request.tool

    @property
    def in_doubt(self) -> bool:
        return bool(self.doubts)

    @property
    def attempt(self) -> int:
        """The number of the attempt that is due, or under way."""
        return self.failures + self.repeats + 1

    @property
    def stirred(self) -> bool:
        """Whether something that its body waits for has come."""
        return any(has_come(wait) for wait in self.stands_at)

    @property
    def stands_at(self) -> tuple[Wait, ...]:
        """The last wait under each step at which its body has let go."""
        return tuple({wait.step: wait for wait in self.waits if wait.step in self.standing}.values())

    def known_late(self, step: str) -> e.LateResultReceived | None:
        return next((late for late in self.evidence if _step_of(late) == step), None)

    def wait(self, step: str) -> Wait | None:
        """What its body asked for, or waits for, under a step. What was escalated is asked anew under the same."""
        return next((wait for wait in reversed(self.waits) if wait.step == step), None)

    def ticket(self, kind: TicketKind) -> Wait | None:
        """The last ticket of a kind."""
        for wait in reversed(self.waits):
            if isinstance(wait.opened, e.TicketOpened) and wait.opened.ticket_kind == kind:
                return wait
        return None

    @property
    def next_ticket(self) -> str:
        """The id that its next ticket gets: its own, then `~2`."""
        count = len({wait.opened.ticket for wait in self.waits if isinstance(wait.opened, e.TicketOpened)})
        return self.id if count == 0 else f"{self.id}~{count + 1}"

    def recorded(self, step: str) -> e.StepRecorded | None:
        """The value or error of a step inside its body, once that is committed."""
        last = next((entry for entry in reversed(self.steps) if entry.step == step), None)
        return last if isinstance(last, e.StepRecorded) else None


def has_come(wait: Wait) -> bool:
    """Whether the body may go on: what was escalated is asked again, and what cancels the run ends it."""
    match wait.closed:
        case None:
            return False
        case e.TicketClosed(applied=applied):
            return applied not in ("escalate", "cancel")
        case _:
            return True


def open_steps(call: Call) -> tuple[str, ...]:
    """Steps inside its body that must not happen twice, were started, and never reported."""
    if not call.steps:
        return ()
    last = {entry.step or "": entry for entry in call.steps}
    return tuple([step for step, x in last.items() if isinstance(x, e.StepStarted) and x.effect == "once"])


def left_open(call: Call, *, steps_only: bool) -> tuple[str, ...]:
    """The steps that a driver that comes now finds in doubt; `read` and `idempotent` ones simply start anew."""
    if call.in_doubt:
        return call.doubts
    if may_have_run(call) and not steps_only:
        return (call.id,)
    return open_steps(call)


def may_have_run(call: Call) -> bool:
    """Whether it started, must not start again by itself, and did not let go since."""
    return call.intent is not None and call.intent.effect == "once" and not call.standing


def unjudged(call: Call, *, superseded: bool) -> Call:
    """A call open at a position, as a run that goes on from there sees it: no decision counts, an intent is doubt."""
    if call.answer is not None:
        return call
    intent = call.intent if call.intent is not None and call.intent.effect == "once" else None
    doubtful = intent is not None or open_steps(call)
    return Call(
        request=call.request,
        fingerprint=call.fingerprint,
        cut_off=call.cut_off,
        superseded=superseded,
        # Its place was one in another journal.
        intent=None if intent is None else replace(intent, seq=0),
        doubts=(call.id,) if doubtful else (),
    )


# --- what an entry changes --------------------------------------------------------------------------------------------


def waiting(call: Call, entry: e.TicketOpened | e.TimerSet) -> Call:
    """It waits for one thing more. What its body says again, letting go anew, is the same thing still."""
    known = any(_same(wait.opened, entry) for wait in call.waits)
    waits = call.waits if known else (*call.waits, Wait(opened=entry))
    # A question that is asked anew since nobody answered in time is not of the body's asking.
    escalated = not known and _is_escalated(call.wait(entry.step or ""))
    if isinstance(entry, e.TicketOpened) and (entry.ticket_kind != "question" or escalated):
        return replace(call, waits=waits)
    anew = call.let_go_in != entry.batch
    if anew and not call.in_doubt:
        # The body is at none of its steps: one that was started and cut off from inside may have happened.
        call = replace(call, doubts=open_steps(call))
    standing = (entry.step or "",) if anew else (*call.standing, entry.step or "")
    return replace(call, waits=waits, standing=standing, let_go_in=entry.batch)


def _is_escalated(wait: Wait | None) -> bool:
    return wait is not None and isinstance(wait.closed, e.TicketClosed) and wait.closed.applied == "escalate"


def is_closed(call: Call, entry: e.TicketOpened | e.TimerSet) -> bool:
    """Whether the thing that a body says it waits for has come already."""
    return any(wait.closed is not None and _same(wait.opened, entry) for wait in call.waits)


def _same(a: e.TicketOpened | e.TimerSet, b: e.TicketOpened | e.TimerSet) -> bool:
    return ticket_or_timer(a) == ticket_or_timer(b)


def ticket_or_timer(entry: e.TicketOpened | e.TimerSet | Closing) -> str:
    return entry.timer if isinstance(entry, e.TimerSet | e.TimerFired) else entry.ticket


def answered_wait(call: Call, entry: Closing) -> Call:
    """What it waited for has come, or will not."""
    name = ticket_or_timer(entry)
    waits = tuple(
        [
            replace(wait, closed=entry) if wait.closed is None and ticket_or_timer(wait.opened) == name else wait
            for wait in call.waits
        ]
    )
    return replace(call, waits=waits)


def started(call: Call, entry: e.ToolStarted, owner: e.Owner | None) -> Call:
    return replace(call, intent=entry, owner=owner, doubts=(), finding=None, failed=None, standing=())


def raised(call: Call, entry: e.ToolFailed) -> Call:
    """An attempt that another may follow; of one that may have happened nobody knows whether it did."""
    doubtful = entry.source == "doubt"
    return replace(
        call,
        failures=call.failures + 1,
        failed=entry,
        retry_at=entry.retry_at,
        intent=call.intent if doubtful else None,
        doubts=(call.id,) if doubtful else open_steps(call),
        finding=None,
        standing=(),
    )


def settled(run: str, call: Call, entry: e.DoubtResolved) -> Call:
    """A finding about the first doubt; one that lets it happen again removes it."""
    if entry.rule != RETRY:
        return replace(call, finding=entry)
    step = entry.step or call.id
    if step != call.id:
        steps = tuple([told for told in call.steps if told.step != step])
        return replace(call, doubts=_without(call.doubts, step), finding=None, steps=steps)
    return replace(
        call,
        doubts=(),
        finding=None,
        intent=None,
        failed=None,
        evidence=(),
        retry_at=None if call.failed is None else entry.at + backoff(run, call.id, call.failures),
        repeats=call.repeats + (call.failed is None),
        steps=() if _is_mismatch(call) else tuple([told for told in call.steps if isinstance(told, e.StepRecorded)]),
    )


def _is_mismatch(call: Call) -> bool:
    """Whether what its steps recorded was said by other code than what runs now."""
    return call.failed is not None and call.failed.class_ == STEP_MISMATCH


def is_outdated(call: Call, entry: e.LateResultReceived) -> bool:
    """That an older attempt failed says nothing of the one in hand; that it succeeded does: it happened."""
    if entry.error is None:
        return False
    if entry.step in (None, call.id):
        return entry.attempt < (call.attempt if call.intent is None else call.intent.attempt)
    begun = [told.epoch for told in call.steps if told.step == entry.step and isinstance(told, e.StepStarted)]
    return bool(begun) and entry.from_epoch < begun[-1]


def told_of_step(call: Call, entry: StepEntry) -> Call:
    """A step inside its body began or came to something, which closes its doubt."""
    doubts = call.doubts
    finding = call.finding
    if isinstance(entry, e.StepRecorded) and entry.step in doubts:
        doubts, finding = _without(doubts, entry.step), None
    return replace(call, steps=(*call.steps, entry), doubts=doubts, finding=finding)


def told_late(call: Call, entry: e.LateResultReceived) -> Call:
    """Evidence, while somebody wonders or it is about to happen again; otherwise a remark."""
    again = call.intent is None and call.attempt > 1 and _step_of(entry) == call.id
    wanted = again or _step_of(entry) in call.doubts
    return replace(call, evidence=(*call.evidence, entry)) if wanted else call


def _step_of(entry: e.LateResultReceived) -> str:
    return entry.step or entry.call


def _without(doubts: tuple[str, ...], step: str | None) -> tuple[str, ...]:
    return tuple([doubt for doubt in doubts if doubt != step])
