"""LangChain's `create_agent` with LangGraph's SQLite checkpointer, or with none.

`sqlite-sync` waits for each checkpoint and so loses nothing; `sqlite-async` does not. `-delta` opts in to the beta
DeltaChannel, which stores new messages only; the default stores the whole history at every superstep.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware.types import AgentState
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph.message import _messages_delta_reducer

from bench import workload
from bench.workload import FINAL, SYSTEM, TOOL, Spec, decide

VARIANTS = ("memory", "sqlite-sync", "sqlite-async", "sqlite-sync-delta", "sqlite-async-delta")


class Scripted(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_options: Any) -> Any:
        return self

    def _reply(self, messages: list[Any]) -> AIMessage:
        first = next(message for message in messages if message.type == "human").content
        last = messages[-1]
        decided = decide(first, last.tool_call_id if isinstance(last, ToolMessage) else None, len(messages))
        if decided is None:
            return AIMessage(content=FINAL)
        text, calls = decided
        asked = [{"name": TOOL, "args": args, "id": call, "type": "tool_call"} for call, args in calls]
        return AIMessage(content=text, tool_calls=asked)

    def _generate(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **_options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    async def _agenerate(self, messages: list[Any], *_given: Any, **_options: Any) -> ChatResult:
        return self._generate(messages)

    async def _astream(self, messages: list[Any], *_given: Any, **_options: Any) -> AsyncIterator[ChatGenerationChunk]:
        reply = self._reply(messages)
        yield ChatGenerationChunk(message=AIMessageChunk(content=reply.content[:10]))
        chunks = [
            {"name": call["name"], "args": json.dumps(call["args"]), "id": call["id"], "index": place}
            for place, call in enumerate(reply.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk(content=reply.content[10:], tool_call_chunks=chunks))


@tool(TOOL)
async def lookup(query: str, page: int, limit: int) -> str:
    """Look up one page of the order archive and return its text."""
    return workload.lookup(page, limit)


class DeltaState(AgentState):
    messages: Annotated[list, DeltaChannel(_messages_delta_reducer)]


class Peer:
    def __init__(self, variant: str, folder: Path) -> None:
        self._variant = variant
        self._path = folder / "langgraph.db"
        self._opening: Any = None

    async def setup(self) -> None:
        saver = None
        if self._variant != "memory":
            self._opening = AsyncSqliteSaver.from_conn_string(str(self._path))
            saver = await self._opening.__aenter__()
            await saver.setup()
        schema = DeltaState if self._variant.endswith("-delta") else None
        self._agent = create_agent(Scripted(), [lookup], system_prompt=SYSTEM, checkpointer=saver, state_schema=schema)

    def _options(self, run: str) -> dict[str, Any]:
        options: dict[str, Any] = {"config": {"configurable": {"thread_id": run}, "recursion_limit": 100_000}}
        if self._opening is not None:
            options["durability"] = "async" if "async" in self._variant else "sync"
        return options

    async def run(self, run: str, spec: Spec) -> int:
        state = await self._agent.ainvoke({"messages": [("user", spec.prompt())]}, **self._options(run))
        return len(state["messages"])

    async def resume(self, run: str) -> int:
        state = await self._agent.ainvoke(None, **self._options(run))
        return len(state["messages"])

    async def first_event(self, run: str, spec: Spec) -> AsyncIterator[object]:
        given = {"messages": [("user", spec.prompt())]}
        async for piece in self._agent.astream(given, stream_mode="messages", **self._options(run)):
            yield piece

    async def close(self) -> None:
        if self._opening is not None:
            await self._opening.__aexit__(None, None, None)
