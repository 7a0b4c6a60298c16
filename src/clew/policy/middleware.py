"""Middleware: user code around a run's model calls and tools. A hook returns the new value, or None to leave it."""

from typing import TYPE_CHECKING, Any

from clew.agent import RunContext, ToolOutput
from clew.core.messages import Message, ToolCall
from clew.ports import ModelReply, ModelRequest

if TYPE_CHECKING:
    from clew.app import Result


class Middleware:
    """Hooks in registration order; each does nothing unless overridden. What a hook changes is written down."""

    async def on_input(self, ctx: RunContext[Any], messages: list[Message]) -> list[Message] | None:
        """Once a run, also after a crash: rewrite what came in."""

    async def on_attach(self, ctx: RunContext[Any]) -> None:
        """Each time a process takes the run up. It must change nothing outside."""

    async def before_model(self, ctx: RunContext[Any], request: ModelRequest) -> ModelRequest | None:
        """Change the request of one model call."""

    async def after_model(self, ctx: RunContext[Any], reply: ModelReply) -> ModelReply | None:
        """Change a reply before it is committed."""

    async def before_tool(self, ctx: RunContext[Any], call: ToolCall) -> ToolCall | ToolOutput | None:
        """Change the arguments of a call before it is judged, or answer it."""

    async def after_tool(self, ctx: RunContext[Any], call: ToolCall, output: ToolOutput) -> ToolOutput | None:
        """Change a result before it is committed."""

    async def on_turn_end(self, ctx: RunContext[Any]) -> None:
        """When all results of a turn are committed."""

    async def on_finish(self, ctx: RunContext[Any], result: "Result[Any]") -> None:
        """Once, after the end is committed, unless the process dies in it."""
