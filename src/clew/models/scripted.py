"""Models without a network, for tests and demos: a script, or a function. The same replies in any process."""

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from clew.core.messages import Message, Part, Text, Thinking, ToolCall, ToolResult, Usage
from clew.core.spec import ToolSpec
from clew.errors import ModelError, UsageError
from clew.ports import Fragment, ModelReply, ModelRequest

CHARACTERS_PER_TOKEN = 4
FRAGMENTS = 4
NEW_MESSAGES = 16


class Slow(Struct, frozen=True):
    """A reply that takes its time."""

    reply: "Saying"
    seconds: float


Saying: TypeAlias = str | ToolCall | Sequence[str | Part] | ModelReply | Exception
Line: TypeAlias = Saying | Slow


def call(tool: str, args: Mapping[str, Any] | str | None = None, id: str = "") -> ToolCall:
    """A call for a scripted reply. Text for `args` is sent as it is, also if it is no JSON."""
    if isinstance(args, str):
        return ToolCall(id, provider_id=id, tool=tool, args_text=args)
    try:
        text = json.dumps(dict(args or {}), ensure_ascii=False)
    except TypeError as error:
        raise UsageError(f"call({tool!r}): a model sends JSON, and this is none: {error}") from error
    return ToolCall(id, provider_id=id, tool=tool, args_text=text)


def slow(reply: Line, seconds: float) -> Slow:
    """A reply whose fragments come spread over so many seconds."""
    if not seconds >= 0:
        raise UsageError(f"slow(…, {seconds!r}): give seconds, zero or more")
    return Slow(reply.reply, reply.seconds + seconds) if isinstance(reply, Slow) else Slow(reply, seconds)


class ScriptedModel:
    """Gives reply n to a run's n-th model step, in any process. `count` and `requests` tell what this one was asked."""

    name = "scripted"

    def __init__(self, script: Sequence[Line]) -> None:
        if isinstance(script, str):
            raise UsageError("ScriptedModel takes a list of replies: say ScriptedModel(['Hello.'])")
        self._script = tuple(script)
        for line in self._script:
            check_line(line)
        self.requests: list[ModelRequest] = []

    @property
    def count(self) -> int:
        return len(self.requests)

    def __repr__(self) -> str:
        return f"ScriptedModel({len(self._script)} replies, asked {self.count} times)"

    def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        self.requests.append(request)
        return spoken(self._line(request.ordinal), request)

    def _line(self, ordinal: int) -> Line:
        if ordinal < len(self._script):
            return self._script[ordinal]
        told = f"the script has {len(self._script)} replies, and the run asks for number {ordinal + 1}"
        return ModelError("invalid_request", told)


class FunctionModel:
    """Asks a function, plain or async: `fn(messages, tools)` gives what a script's line would be."""

    name = "function"

    def __init__(self, fn: Callable[[list[Message], list[ToolSpec]], Line | Awaitable[Line]]) -> None:
        self._fn = fn
        self.count = 0

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        self.count += 1
        said = self._fn(list(request.messages), list(request.tools))
        line = await said if inspect.isawaitable(said) else said
        check_line(line)
        async with aclosing(spoken(line, request)) as pieces:
            async for piece in pieces:
                yield piece


def check_line(line: object) -> None:
    """Raises UsageError for what no model says."""
    match line:
        case Slow():
            check_line(line.reply)
        case str() | ToolCall() | ModelReply() | Exception():
            pass
        case list() | tuple():
            for part in line:  # pyright: ignore[reportUnknownVariableType]
                if not isinstance(part, str | Part):
                    raise UsageError(f"a reply holds text and call(…), not {part!r}")
        case _:
            raise UsageError(f"a reply is text, call(…), a list of these, an exception or slow(…), not {line!r}")


async def spoken(line: Line, request: ModelRequest) -> AsyncGenerator[Fragment | ModelReply]:
    """A line as a model streams it: its fragments, then the reply."""
    said, pause = (line.reply, line.seconds) if isinstance(line, Slow) else (line, 0.0)
    if isinstance(said, Exception):
        await _wait(pause)
        raise said.with_traceback(None)
    reply = said if isinstance(said, ModelReply) else _reply(said, request)
    fragments = [piece for place, part in enumerate(reply.parts) for piece in _fragments(part, place)]
    for fragment in fragments:
        yield fragment
        await _wait(pause / len(fragments))
    if not fragments:
        await _wait(pause)
    yield reply


async def _wait(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


def _reply(line: str | ToolCall | Sequence[str | Part], request: ModelRequest) -> ModelReply:
    said = (line,) if isinstance(line, str | ToolCall) else line
    parts = tuple(_part(part, request.ordinal, place) for place, part in enumerate(said))
    calls = any(isinstance(part, ToolCall) for part in parts)
    return ModelReply(parts=parts, finish="tool_calls" if calls else "stop", usage=_usage(parts, request))


def _part(part: str | Part, ordinal: int, place: int) -> Part:
    if isinstance(part, str):
        return Text(part)
    if isinstance(part, ToolCall) and not part.provider_id:
        own = f"call_{ordinal}_{place}"
        return replace(part, call=own, provider_id=own)
    return part


def _fragments(part: Part, place: int) -> list[Fragment]:
    match part:
        case Text():
            return [Fragment("text", piece, place) for piece in _pieces(part.text)]
        case Thinking():
            return [Fragment("thinking", piece, place) for piece in _pieces(part.text)]
        case ToolCall():
            return [Fragment("tool_args", part.args_text, place)]
        case _:
            return []


def _pieces(text: str) -> list[str]:
    step = max(1, -(-len(text) // FRAGMENTS))
    return [text[start : start + step] for start in range(0, len(text), step)]


def _usage(parts: Sequence[Part], request: ModelRequest) -> Usage:
    """An estimate over what is new since the last reply, so that a long history costs nothing to count."""
    new = len(request.instructions)
    for place in range(len(request.messages) - 1, max(-1, len(request.messages) - 1 - NEW_MESSAGES), -1):
        message = request.messages[place]
        if message.role == "assistant":
            break
        new += sum(map(_length, message.parts))
    return Usage(input=_tokens(new), output=_tokens(sum(map(_length, parts))), estimated=True)


def _length(part: Part) -> int:
    match part:
        case Text() | Thinking():
            return len(part.text)
        case ToolCall():
            return len(part.args_text)
        case ToolResult():
            return len(part.content if isinstance(part.content, str) else str(part.content))
        case _:
            return 0


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)
