"""Clew: an agent with one tool, its model behind the Model port. `sqlite` is durable, `memory` the same without it."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from bench import workload
from bench.workload import FINAL, SYSTEM, TOOL, Spec, decide
from clew import Agent, Limits, Message, ModelReply, ModelRequest, Runtime, ToolCall, tool
from clew.compose import open_store
from clew.core.messages import Text, Usage
from clew.ports import Fragment

VARIANTS = ("sqlite", "memory")

_dump = msgspec.json.Encoder().encode  # a provider sends text: making it is no cost of Clew's


class Scripted:
    """Looks at the first message and at the last call, however long the conversation is."""

    name = "scripted"

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        messages = request.messages
        decided = decide(messages[0].text, _last_call(messages), len(messages))
        text, calls = (FINAL, []) if decided is None else decided
        yield Fragment("text", text)
        asked = [ToolCall(call, call, TOOL, _dump(args).decode()) for call, args in calls]
        finish = "tool_calls" if asked else "stop"
        yield ModelReply(parts=(Text(text), *asked), usage=Usage(input=100, output=30), finish=finish)


def _last_call(messages: Sequence[Message]) -> str | None:
    """The provider's id of the call that was answered last; results stand behind the reply that asked for them."""
    if messages[-1].role != "tool":
        return None
    place = len(messages) - 1
    while messages[place].role == "tool":
        place -= 1
    asked = messages[place].parts[-1]
    assert isinstance(asked, ToolCall)
    return asked.provider_id


@tool(name=TOOL, effect="read")
async def lookup(query: str, page: int, limit: int) -> str:
    """Look up one page of the order archive and return its text."""
    return workload.lookup(page, limit)


# As in any program: built with its imports, and before anything is measured.
AGENT = Agent("reader", model=Scripted(), instructions=SYSTEM, tools=[lookup], limits=Limits(turns=None))


class Peer:
    def __init__(self, variant: str, folder: Path) -> None:
        self._url = "memory://" if variant == "memory" else f"sqlite:///{folder / 'clew.db'}"
        # What is imported and derived on first use is part of the imports here, as it is for every peer.
        open_store(self._url, None)
        assert AGENT.fingerprint

    async def setup(self) -> None:
        self._runtime = Runtime(self._url, agents=[AGENT], concurrency=200)
        await self._runtime.open()

    async def run(self, run: str, spec: Spec) -> int:
        started = await self._runtime.start(AGENT, spec.prompt(), run_id=run)
        return len((await started.result()).messages)

    async def resume(self, run: str) -> int:
        """Opening the Runtime has taken the run up."""
        found = await self._runtime.get(run, AGENT)
        return len((await found.result()).messages)

    async def first_event(self, run: str, spec: Spec) -> AsyncIterator[object]:
        started = await self._runtime.start(AGENT, spec.prompt(), run_id=run)
        async for piece in started.text():
            yield piece

    async def close(self) -> None:
        await self._runtime.close()
