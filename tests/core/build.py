"""Small builders: a test says what it is about, and the rest of a journal is filled in here."""

from collections.abc import Iterable
from typing import Any, TypeGuard

from msgspec.structs import replace

from clew.core import entries as e
from clew.core.effects import NOWHERE, CallModel, CallTool, Close, Effect, Finish, Here, Record
from clew.core.entries import Entry
from clew.core.messages import Message, Part, Text, ToolCall, Usage
from clew.core.rules import next_effects
from clew.core.spec import AgentSpec, ToolSpec
from clew.core.state import Call, Known, State, apply, fold
from clew.core.steps import call_of
from clew.core.tickets import Decision

RUN = "run_1"
FP = "sha256:agent"

TOOLS = (
    ToolSpec(name="look", effect="read"),
    ToolSpec(name="send", effect="idempotent"),
    ToolSpec(name="pay", effect="once"),
    ToolSpec(name="alone", effect="read", sequential=True),
    ToolSpec(name="gated", effect="read", needs_approval=True),
    ToolSpec(name="wire", effect="once", on_doubt="report"),
    ToolSpec(name="order", effect="once", on_doubt="retry"),
    ToolSpec(name="charge", effect="once", verifies=True, retries=1),
    ToolSpec(name="ship", effect="once", steps_only=True),
    ToolSpec(name="patient", effect="once", needs_approval=True, expires=60, on_expire="escalate"),
)
SCREEN = ToolSpec(name="screen", client=True)
SPEC = AgentSpec(name="clerk", tools=TOOLS)
TYPED = AgentSpec(name="clerk", tools=TOOLS, output_schema={"type": "integer"})
WATCHED = AgentSpec(name="clerk", tools=TOOLS, middleware=("audit",))
GUARDED = AgentSpec(name="clerk", tools=TOOLS, policy=("deny('shell')",))
STOPS = {f"sha256:{mode}": AgentSpec(name="clerk", tools=TOOLS, on_tool_error=mode) for mode in ("stop", "2")}
KNOWN = Known(specs={FP: SPEC, "sha256:typed": TYPED, "sha256:watched": WATCHED, "sha256:guarded": GUARDED, **STOPS})


def started(text: str | None = "go", **fields: Any) -> e.RunStarted:
    messages = () if text is None else (Message.user(text),)
    return e.RunStarted(**{"input": messages, "agent": "clerk", "fingerprint": FP, **fields})


def attached(epoch: int = 1, **fields: Any) -> e.DriverAttached:
    return e.DriverAttached(**{"worker": f"w{epoch}", "epoch": epoch, **fields})


def call(step: str, tool: str = "look", args: str = "{}", **fields: Any) -> ToolCall:
    return ToolCall(**{"call": step, "provider_id": f"p-{step}", "tool": tool, "args_text": args, **fields})


def reply(*parts: str | Part, **fields: Any) -> e.ModelReplied:
    made = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    return e.ModelReplied(**{"parts": made, "usage": Usage(10, 5, requests=1), **fields})


def returned(step: str, content: Any = "ok", **fields: Any) -> e.ToolReturned:
    return e.ToolReturned(**{"step": step, "call": step, "content": content, **fields})


def failed(step: str, message: str = "no", **fields: Any) -> e.ToolFailed:
    return e.ToolFailed(**{"step": step, "call": step, "class_": "tool_error", "message": message, **fields})


def retried(step: str, at: int, **fields: Any) -> e.ToolFailed:
    return failed(step, retry_at=at, final=False, **fields)


def intent(step: str, **fields: Any) -> e.ToolStarted:
    made = {"step": step, "call": step, "key": f"{RUN}:{step}", "digest": "sha256:d", "effect": "once", **fields}
    return e.ToolStarted(**made)


def judged(step: str, verdict: str, **fields: Any) -> e.CallJudged:
    return e.CallJudged(**{"step": step, "call": step, "tool": "look", "verdict": verdict, "rule": "r1", **fields})


def resolved(step: str, how: str = "policy", finding: str = "unknown", rule: str = "report") -> e.DoubtResolved:
    return e.DoubtResolved(step=step, call=call_of(step), how=how, finding=finding, rule=rule)  # type: ignore[arg-type]


def raised(step: str, message: str = "cut off", **fields: Any) -> e.ToolFailed:
    """An attempt of which nobody knows what it has done."""
    return failed(step, message, **{"class_": "timeout", "final": False, "source": "doubt", **fields})


def late(step: str, value: Any = None, **fields: Any) -> e.LateResultReceived:
    return e.LateResultReceived(step=step, call=call_of(step), from_epoch=1, value=value, **fields)


def began(step: str, **fields: Any) -> e.StepStarted:
    name = step.partition(":")[2]
    return e.StepStarted(**{"step": step, "call": call_of(step), "name": name, "effect": "once", "fn": "f", **fields})


def told_step(step: str, value: Any = None, **fields: Any) -> e.StepRecorded:
    name = step.partition(":")[2]
    made = {"step": step, "call": call_of(step), "name": name, "effect": "once", "fn": "f", "value": value, **fields}
    return e.StepRecorded(**made)


def ticket(name: str, kind: str = "approval", **fields: Any) -> e.TicketOpened:
    call = name.partition("~")[0]
    return e.TicketOpened(**{"step": call, "ticket": name, "ticket_kind": kind, "call": call, **fields})


def asks(step: str, ticket: str, **fields: Any) -> e.TicketOpened:
    """A body lets go at a question."""
    made = {"step": step, "ticket": ticket, "ticket_kind": "question", "call": call_of(step), **fields}
    return e.TicketOpened(**made)


def sleeps(step: str, due: int) -> e.TimerSet:
    return e.TimerSet(step=step, timer=step, due=due)


def fired(step: str) -> e.TimerFired:
    return e.TimerFired(step=step, timer=step)


def decided(ticket: str, decision: Decision, **fields: Any) -> e.DecisionMade:
    return e.DecisionMade(**{"ticket": ticket, "decision_id": f"d-{ticket}", "decision": decision, **fields})


def closed(ticket: str, applied: str | None, why: str = "expired") -> e.TicketClosed:
    return e.TicketClosed(ticket=ticket, why=why, applied=applied)  # type: ignore[arg-type]


def said(text: str, **fields: Any) -> e.MessagesReceived:
    return e.MessagesReceived(messages=(Message.user(text),), **fields)


def together(*entries: Entry) -> list[Entry]:
    """Of one commit."""
    return [replace(entry, batch=-1) for entry in entries]


def journal(*entries: Entry, start: int = 1, epoch: int = 0) -> list[Entry]:
    """The entries under their places, a millisecond apart; an epoch lasts until the next driver."""
    placed: list[Entry] = []
    for seq, entry in enumerate(entries, start=start):
        if isinstance(entry, e.DriverAttached):
            epoch = entry.epoch
        joins = entry.batch == -1 and bool(placed) and entries[seq - start - 1].batch == -1
        batch = placed[-1].batch if joins else seq
        placed.append(replace(entry, seq=seq, batch=batch, at=entry.at or seq * 1000, epoch=epoch))
    return placed


def folded(*entries: Entry, known: Known = KNOWN, run: str = RUN) -> State:
    return fold(run, journal(*entries), known)


def then(state: State, *entries: Entry) -> State:
    """The state after these too."""
    for entry in journal(*entries, start=state.seq + 1, epoch=state.epoch):
        state = apply(state, entry)
    return state


def running(*entries: Entry, **fields: Any) -> State:
    """A run with a driver, and then these entries."""
    return folded(started(**fields), attached(), *entries)


def watched(*entries: Entry, **fields: Any) -> State:
    """A run of an agent with middleware."""
    return running(*entries, **{"fingerprint": "sha256:watched", **fields})


def only(effects: Iterable[Effect]) -> Effect:
    (effect,) = effects
    return effect


def recorded(state: State, here: Here = NOWHERE) -> Entry:
    """The one thing that is to be written down."""
    effect = only(next_effects(state, here))
    assert isinstance(effect, Record)
    return effect.entry


def finish(state: State) -> e.RunFinished:
    effect = only(next_effects(state))
    assert isinstance(effect, Finish)
    return effect.entry


def settle(state: State) -> State:
    """The state once everything is written down that needs no outside work and no patience."""
    while True:
        entries = [effect.entry for effect in next_effects(state) if follows(effect)]
        if not entries:
            return state
        state = then(state, *entries)


def follows(effect: Effect) -> TypeGuard[Record | Close | Finish]:
    return isinstance(effect, Close | Finish) or (isinstance(effect, Record) and effect.not_before is None)


def steps(state: State, here: Here = NOWHERE) -> list[str]:
    """What is to be performed now."""
    return [effect.step for effect in next_effects(state, here) if isinstance(effect, CallModel | CallTool)]


def open_call(state: State) -> Call:
    (found,) = state.open_calls
    return found


def share(a: State, b: State) -> bool:
    """Whether one list holds the messages of both."""
    return a.transcript._items is b.transcript._items


def told(state: State) -> list[str]:
    """The transcript, a line a message: `user: go`, `assistant: hm look()`, `tool: 1.tool.1 ok`."""
    return [f"{message.role}: {' '.join(map(_said, message.parts))}".rstrip() for message in state.transcript]


def _said(part: Any) -> str:
    match part.kind:
        case "tool_call":
            return f"{part.tool}()"
        case "tool_result":
            return f"{part.call} {'!' if part.is_error else ''}{part.content}"
        case _:
            return str(part.text)
