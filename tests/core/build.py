"""Small builders: a test says what it is about, and the rest of a journal is filled in here."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from clew.core import entries as e
from clew.core.effects import CallModel, CallTool, Close, Effect, Finish, Record
from clew.core.entries import Entry
from clew.core.messages import Message, Part, Text, ToolCall, Usage
from clew.core.rules import next_effects
from clew.core.spec import AgentSpec, ToolSpec
from clew.core.state import Call, Known, State, apply, fold

RUN = "run_1"
FP = "sha256:agent"

TOOLS = (
    ToolSpec(name="look", effect="read"),
    ToolSpec(name="send", effect="idempotent"),
    ToolSpec(name="pay", effect="once"),
    ToolSpec(name="alone", effect="read", sequential=True),
    ToolSpec(name="gated", effect="read", needs_approval=True),
)
SPEC = AgentSpec(name="clerk", tools=TOOLS)
TYPED = AgentSpec(name="clerk", tools=TOOLS, output_schema={"type": "integer"})
KNOWN = Known(specs={FP: SPEC, "sha256:typed": TYPED})


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


def doubted(step: str, finding: str = "unknown", how: str = "policy") -> e.DoubtResolved:
    return e.DoubtResolved(step=step, call=step, how=how, finding=finding, rule="report")  # type: ignore[arg-type]


def said(text: str, **fields: Any) -> e.MessagesReceived:
    return e.MessagesReceived(messages=(Message.user(text),), **fields)


def journal(*entries: Entry, start: int = 1, epoch: int = 0) -> list[Entry]:
    """The entries under their places, a millisecond apart; an epoch lasts until the next driver."""
    placed: list[Entry] = []
    for seq, entry in enumerate(entries, start=start):
        if isinstance(entry, e.DriverAttached):
            epoch = entry.epoch
        placed.append(replace(entry, seq=seq, batch=seq, at=entry.at or seq * 1000, epoch=epoch))
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


def only(effects: Iterable[Effect]) -> Effect:
    (effect,) = effects
    return effect


def recorded(state: State) -> Entry:
    """The one thing that is to be written down."""
    effect = only(next_effects(state))
    assert isinstance(effect, Record)
    return effect.entry


def finish(state: State) -> e.RunFinished:
    effect = only(next_effects(state))
    assert isinstance(effect, Finish)
    return effect.entry


def settle(state: State) -> State:
    """The state once everything is written down that needs no outside work."""
    while True:
        entries = [x.entry for x in next_effects(state) if isinstance(x, Record | Close | Finish)]
        if not entries:
            return state
        state = then(state, *entries)


def steps(state: State) -> list[str]:
    """What is to be performed now."""
    return [effect.step for effect in next_effects(state) if isinstance(effect, CallModel | CallTool)]


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
