"""A run as lines to read: what happened, when, how long it took, what it cost."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from clew import codec
from clew.cli.output import count, dollars, harmless, say, short, took, width
from clew.core import entries as e
from clew.core.messages import Message, ToolCall, Usage, text_of
from clew.core.outcomes import detail_of
from clew.core.tickets import Approve, Decision, Edit, Reject, Respond
from clew.core.values import unpack
from clew.errors import JournalCorrupt

UNCUT = 400  # columns of a line where there is no terminal
ENVELOPE = ("kind", "v", "seq", "at", "epoch", "batch", "step", "attempt")
OFFSET = 9  # columns that the time takes


@dataclass(frozen=True)
class Line:
    """`mark` says what sort of thing it was at a glance; a `head` begins a turn."""

    at: int
    mark: str
    text: str
    colour: str | None = None
    head: bool = False


class Narrator:
    """Tells entries one after the other, and remembers what the next one refers to."""

    def __init__(self) -> None:
        self.begun = 0
        self._calls: dict[str, ToolCall] = {}
        self._turn = 0

    def tell(self, entry: e.Entry) -> Iterator[Line]:  # noqa: PLR0915 -- a flat match
        self.begun = self.begun or entry.at
        match entry:
            case e.RunStarted():
                yield from self._started(entry)
            case e.DriverAttached():
                yield from _attached(entry)
            case e.ModelReplied():
                yield from self._replied(entry)
            case e.ModelFailed():
                again = "" if entry.retry_at is None else f", tried again in {_between(entry.at, entry.retry_at)}"
                text = f"{entry.model or 'the model'} failed: {_error(entry)}{again}"
                yield Line(entry.at, "!", text, "yellow" if again else "red")
            case e.CallJudged():
                reason = f": {entry.reason}" if entry.reason else ""
                yield Line(entry.at, "§", f"{entry.call} {entry.verdict} by {entry.rule}{reason}", "yellow")
            case e.ToolReturned():
                yield Line(entry.at, "✓", f"{self._ended(entry)} → {_value(entry.content)}", "green")
            case e.ToolFailed():
                yield from self._failed(entry)
            case e.DoubtResolved():
                text = f"{self._name(entry.call)} was in doubt: {entry.finding} (by {entry.how} {entry.rule})"
                yield Line(entry.at, "?", text, "magenta")
            case e.MessagesReceived():
                yield Line(entry.at, "+", _messages(entry.messages), "cyan")
            case e.CancelRequested():
                by = f" by {entry.by}" if entry.by else ""
                reason = f": {entry.reason}" if entry.reason else ""
                yield Line(entry.at, "x", f"cancel asked for{by}{reason}", "yellow")
            case e.TicketOpened():
                text = f"{entry.ticket} asks ({entry.ticket_kind}): {entry.prompt}"
                yield Line(entry.at, "?", text, "yellow")
            case e.DecisionMade():
                by = f" by {entry.by}" if entry.by else ""
                yield Line(entry.at, "!", f"{entry.ticket} {_decided(entry.decision)}{by}", "yellow")
            case e.TicketClosed():
                applied = f", {entry.applied}" if entry.applied else ""
                yield Line(entry.at, "!", f"{entry.ticket} closed: {entry.why}{applied}", "yellow")
            case e.StepRecorded():
                value = entry.error.message if entry.error else _value(entry.value)
                yield Line(entry.at, "·", f"{entry.step} → {value}")
            case e.TimerSet():
                yield Line(entry.at, "z", f"{entry.timer} sleeps {_between(entry.at, entry.due)}", "blue")
            case e.StateChanged():
                if entry.ops:
                    yield Line(entry.at, "·", f"state by {entry.by}: {', '.join(op.key for op in entry.ops)}")
            case e.OutputRejected():
                yield Line(entry.at, "!", f"answer refused: {entry.message}", "yellow")
            case e.RunFinished():
                yield _finished(entry)
            case e.ToolStarted() | e.StepStarted() | e.TimerFired() | e.BaseFixed():
                return  # the call stands with its reply already
            case _:
                yield Line(entry.at, "·", f"{entry.kind} {_rest(entry)}")

    def _started(self, entry: e.RunStarted) -> Iterator[Line]:
        origin = "" if entry.origin == "user" else f" ({entry.origin})"
        base = f", goes on from {entry.base.run} at {entry.base.seq}" if isinstance(entry.base, e.BaseAt) else ""
        queued = ", behind its thread's active run" if isinstance(entry.base, e.BaseThread) else ""
        yield Line(entry.at, "▸", f"started{origin}{base}{queued}: {_messages(entry.input)}", head=True)

    def _replied(self, entry: e.ModelReplied) -> Iterator[Line]:
        self._turn += 0 if entry.continues else 1
        facts = [entry.request.model if entry.request else "", took(entry.duration / 1e6), _tokens(entry.usage)]
        facts += [dollars(entry.cost), "" if entry.finish in ("stop", "tool_calls") else entry.finish]
        again = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
        summary = ", ".join(filter(None, facts))
        yield Line(entry.at, "■", f"turn {self._turn}{again}: {summary}", head=True)
        if entry.text:
            yield Line(entry.at, "»", entry.text)
        for call in entry.calls:
            self._calls[call.call] = call
            yield Line(entry.at, "→", f"{call.call} {call.tool}({_arguments(call.args_text)})", "cyan")

    def _failed(self, entry: e.ToolFailed) -> Iterator[Line]:
        again = "" if entry.retry_at is None else f", tried again in {_between(entry.at, entry.retry_at)}"
        again = ", in doubt" if entry.source == "doubt" and not entry.final else again
        text = f"{self._ended(entry)}: {_error(entry)}{again}"
        yield Line(entry.at, "✗", text, "yellow" if again else "red")

    def _ended(self, entry: e.ToolReturned | e.ToolFailed) -> str:
        how = "" if entry.source == "ran" else f" ({entry.source})"
        attempt = f" attempt {entry.attempt}" if entry.attempt > 1 else ""
        duration = f" {took(entry.duration / 1e6)}" if entry.source == "ran" else ""
        return f"{self._name(entry.call)}{attempt}{duration}{how}"

    def _name(self, call: str) -> str:
        known = self._calls.get(call)
        return call if known is None else f"{call} {known.tool}"


def _decided(decision: Decision) -> str:
    match decision:
        case Approve(remember=remember):
            return "approved" + (f" for the {remember}" if remember else "")
        case Edit(args=args):
            return f"edited: {_value(args)}"
        case Reject(message=message):
            return "rejected" + (f": {message}" if message else "")
        case Respond(value=value):
            return f"answered: {_value(value)}"


def print_line(line: Line, begun: int, *, err: bool = False) -> None:
    """The line under its time since the run began, cut where the terminal ends."""
    columns = width(err=err) or UNCUT
    # A narrow terminal is for what happened; when is in --json.
    lead = f"{'+' + took((line.at - begun) / 1e6):>{OFFSET}} " if columns > OFFSET * 4 else ""
    indent = "" if line.head else "  "
    text = f"{lead}{indent}{line.mark} {line.text}"
    say(short(text, columns), err=err, fg=line.colour, bold=line.head)


def _attached(entry: e.DriverAttached) -> Iterator[Line]:
    changed = f"; changed since: {', '.join(entry.changed)}" if entry.changed else ""
    if entry.epoch > 1 or changed:
        where = "" if entry.owner is None else f" (process {entry.owner.pid} on {entry.owner.host})"
        yield Line(entry.at, "↻", f"taken up by {entry.worker}{where}, epoch {entry.epoch}{changed}", "blue")


def _finished(entry: e.RunFinished) -> Line:
    detail = detail_of(entry.outcome)
    facts = [count(entry.turns, "turn"), count(entry.calls, "call"), _tokens(entry.usage), dollars(entry.cost)]
    text = f"{entry.outcome}{': ' + detail if detail else ''} ({', '.join(filter(None, facts))})"
    good = entry.outcome.kind in ("completed", "requested")
    return Line(entry.at, "●", text, "green" if good else "red", head=True)


def _error(entry: e.ModelFailed | e.ToolFailed) -> str:
    """Class and message; of an exception that nobody foresaw the message begins with its class."""
    known = entry.message.startswith(f"{entry.class_}:")
    return entry.message if known else f"{entry.class_}: {entry.message}"


def _messages(messages: tuple[Message, ...]) -> str:
    return " / ".join([text_of(message.parts) or f"({message.role})" for message in messages])


def _tokens(usage: Usage) -> str:
    about = "about " if usage.estimated else ""
    return f"{about}{usage.input} in, {usage.output} out" if usage.input or usage.output else ""


def _between(at: int, then: int) -> str:
    return took(max(then - at, 0) / 1e6)


def _arguments(text: str) -> str:
    try:
        args: Any = json.loads(text) if text.strip() else {}
    except ValueError:
        return text
    if not isinstance(args, Mapping):
        return text
    pairs = cast("Mapping[str, object]", args).items()
    return ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in pairs)


def _value(content: object) -> str:
    try:
        value = unpack(content)
    except JournalCorrupt:
        value = content
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _rest(entry: e.Entry) -> str:
    fields = {name: value for name, value in codec.jsonable(entry).items() if name not in ENVELOPE}
    return harmless(json.dumps(fields, ensure_ascii=False))
