"""One call of the turn at hand, from the reply that asked for it to its answer."""

from msgspec import Struct

from clew.core import entries as e
from clew.core.messages import Message, ToolCall
from clew.core.values import Digest


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the journal says of one call so far."""

    request: ToolCall
    fingerprint: Digest  # the declaration in force when its reply was committed
    cut_off: bool = False  # its reply was, so its arguments may be half of what was meant
    superseded: bool = False  # the conversation went another way
    judged: e.CallJudged | None = None
    intent: e.ToolStarted | None = None
    failures: int = 0
    retry_at: int | None = None
    in_doubt: bool = False
    finding: e.DoubtResolved | None = None
    late: e.LateResultReceived | None = None
    tickets: tuple[str, ...] = ()
    decided: e.DecisionMade | None = None
    steps: tuple[e.StepStarted | e.StepRecorded, ...] = ()
    answer: Message | None = None

    @property
    def id(self) -> str:
        return self.request.call

    @property
    def tool(self) -> str:
        return self.request.tool


def left_open(call: Call) -> bool:
    """Whether a driver that comes now finds it in doubt; `read` and `idempotent` calls simply start anew."""
    return call.answer is None and call.finding is None and may_have_run(call)


def may_have_run(call: Call) -> bool:
    """Whether it started and must not start again by itself."""
    return call.intent is not None and call.intent.effect == "once"


def unjudged(call: Call, *, superseded: bool) -> Call:
    """A call open at a position, as a run that goes on from there sees it: no decision counts, an intent is doubt."""
    if call.answer is not None:
        return call
    doubtful = may_have_run(call)
    return Call(
        request=call.request,
        fingerprint=call.fingerprint,
        cut_off=call.cut_off,
        superseded=superseded,
        intent=call.intent if doubtful else None,
        in_doubt=doubtful,
    )
