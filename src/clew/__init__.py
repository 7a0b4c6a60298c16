"""Clew: a durable agent runtime. The public names, each loaded when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.agent import Agent, ClientTool, RunContext, StateKey, Tool, ToolContext, ToolOutput, tool
    from clew.app import Diff, Result, Run, Runtime
    from clew.core.deltas import Delta
    from clew.core.entries import Entry
    from clew.core.limits import Limits
    from clew.core.messages import Message, ToolCall
    from clew.core.spec import ModelSettings
    from clew.core.tickets import Approve, Decision, Edit, Reject, Respond, Ticket
    from clew.errors import Fatal, ToolError
    from clew.policy import Middleware
    from clew.ports import ModelReply, ModelRequest, RunInfo

__all__ = [
    "Agent",
    "Approve",
    "ClientTool",
    "Decision",
    "Delta",
    "Diff",
    "Edit",
    "Entry",
    "Fatal",
    "Limits",
    "Message",
    "Middleware",
    "ModelReply",
    "ModelRequest",
    "ModelSettings",
    "Reject",
    "Respond",
    "Result",
    "Run",
    "RunContext",
    "RunInfo",
    "Runtime",
    "StateKey",
    "Ticket",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "tool",
]

_HOMES = {
    "clew.agent": ("Agent", "ClientTool", "RunContext", "StateKey", "Tool", "ToolContext", "ToolOutput", "tool"),
    "clew.app": ("Diff", "Result", "Run", "Runtime"),
    "clew.core.deltas": ("Delta",),
    "clew.core.entries": ("Entry",),
    "clew.core.limits": ("Limits",),
    "clew.core.messages": ("Message", "ToolCall"),
    "clew.core.spec": ("ModelSettings",),
    "clew.core.tickets": ("Approve", "Decision", "Edit", "Reject", "Respond", "Ticket"),
    "clew.errors": ("Fatal", "ToolError"),
    "clew.policy": ("Middleware",),
    "clew.ports": ("ModelReply", "ModelRequest", "RunInfo"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'clew' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
