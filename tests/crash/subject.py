"""The agent that is killed: a model that is a function of the conversation, and tools whose effects are in a ledger.

The first message is the plan: `pay+put+look;grind` is a turn of three calls, a turn of one, and a final answer.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from clew import Agent, Message, ModelReply, ModelRequest, ToolCall, ToolContext, tool
from clew.core.messages import Text, ToolResult, text_of
from clew.core.values import digest
from clew.ports import Fragment
from tests.crash.ledger import Pen
from tests.crash.phases import Stage

NAME = "subject"
TOOLS = ("pay", "put", "look", "grind")
ONCE = frozenset({"pay", "pry"})
FRAGMENTS = 4


def reply_to(messages: Sequence[Message]) -> tuple[Text | ToolCall, ...]:
    """What the model says, for whatever was said so far: the same in every process."""
    turn = sum(message.role == "assistant" for message in messages)
    plan = text_of(messages[0].parts).split(";")
    if turn >= len(plan):
        results = [[part.call, part.is_error] for m in messages for part in m.parts if isinstance(part, ToolResult)]
        return (Text(f"Done after {turn} turns and {len(results)} calls: {digest(results)}"),)  # type: ignore[arg-type]
    calls = [
        ToolCall(f"c{turn}{place}", f"c{turn}{place}", name, f'{{"n": {turn * 10 + place}}}')
        for place, name in enumerate(plan[turn].split("+"))
    ]
    return (Text(f"Turn {turn + 1} of {len(plan)}: I call {plan[turn]} now."), *calls)


class PlanModel:
    name = "plan"

    def __init__(self, pen: Pen, stage: Stage) -> None:
        self._pen = pen
        self._stage = stage

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        run, step = request.run_id, request.step
        self._pen.write("asked", run, step, os.getpid())
        parts = reply_to(request.messages)
        said = text_of(parts)
        with self._stage.board.inside("stream", f"{run}:{step}"):
            for place in range(FRAGMENTS):
                yield Fragment("text", said[place * len(said) // FRAGMENTS : (place + 1) * len(said) // FRAGMENTS])
                await self._stage.reach("stream", run, step)
                await asyncio.sleep(0)
        calls = any(isinstance(part, ToolCall) for part in parts)
        self._stage.board.enter("reply", f"{run}:{step}")
        yield ModelReply(parts=parts, finish="tool_calls" if calls else "stop")


class Tools:
    """Bodies that say in the ledger when they begin and when they have ended."""

    def __init__(self, pen: Pen, stage: Stage, folder: Path) -> None:
        self._pen = pen
        self._stage = stage
        self._folder = folder
        self._held = threading.Event()
        self.all = (
            tool(on_doubt="report")(self.pay),
            tool(effect="idempotent")(self.put),
            tool(effect="read")(self.look),
            tool(effect="idempotent")(self.grind),
            tool(on_doubt="report")(self.pry),
            tool(effect="idempotent")(self.hog),
            tool(effect="idempotent")(self.hang),
        )

    def _begin(self, ctx: ToolContext) -> str:
        what = f"{ctx.run_id}:{ctx.step_id}"
        self._stage.board.enter("body", what)
        self._stage.board.leave("intent", what)
        self._pen.write("began", ctx.run_id, ctx.step_id, os.getpid(), ctx.idempotency_key, ctx.tool)
        return what

    def _end(self, ctx: ToolContext, what: str) -> str:
        value = f"{os.getpid()}-{time.monotonic_ns()}"
        self._pen.write("ended", ctx.run_id, ctx.step_id, os.getpid(), value)
        self._stage.board.enter("result", what)
        self._stage.board.leave("body", what)
        return value

    async def _perform(self, ctx: ToolContext) -> str:
        what = self._begin(ctx)
        await self._stage.reach("body", ctx.run_id, ctx.step_id)
        value = self._end(ctx, what)
        await self._stage.reach("result", ctx.run_id, ctx.step_id)
        return value

    def _perform_at_once(self, ctx: ToolContext) -> str:
        what = self._begin(ctx)
        self._stage.reach_at_once("body", ctx.run_id, ctx.step_id)
        value = self._end(ctx, what)
        self._stage.reach_at_once("result", ctx.run_id, ctx.step_id)
        return value

    async def pay(self, ctx: ToolContext, n: int) -> str:
        """Once."""
        return await self._perform(ctx)

    async def put(self, ctx: ToolContext, n: int) -> str:
        """As often as you like, by its key."""
        return await self._perform(ctx)

    async def look(self, ctx: ToolContext, n: int) -> str:
        """Reads."""
        return await self._perform(ctx)

    def grind(self, ctx: ToolContext, n: int) -> str:
        """Idempotent, in a thread."""
        return self._perform_at_once(ctx)

    def pry(self, ctx: ToolContext, n: int) -> str:
        """Once, in a thread."""
        return self._perform_at_once(ctx)

    async def hog(self, ctx: ToolContext, n: int) -> str:
        """Blocks the event loop until a file says that it may go on."""
        what = self._begin(ctx)
        self._stage.say("at", "body", ctx.run_id, ctx.step_id)
        while not (self._folder / "let-go").exists():
            time.sleep(0.005)  # noqa: ASYNC251
        return self._end(ctx, what)

    def hang(self, ctx: ToolContext, n: int) -> str:
        """Never returns."""
        self._begin(ctx)
        self._stage.say("at", "body", ctx.run_id, ctx.step_id)
        self._held.wait()
        raise AssertionError("nobody lets it go")


def subject(pen: Pen, stage: Stage, folder: Path) -> Agent:
    return Agent(NAME, model=PlanModel(pen, stage), tools=Tools(pen, stage, folder).all)
