"""What a user writes: agents, tools, and what their functions are handed."""

from clew.agent.answers import ClientTool, Done, NotDone, ToolOutput, Unknown
from clew.agent.context import LaterVerbs, Question, RunContext, State, StateKey, ToolContext, ToolVerbs
from clew.agent.declaration import Decide, Declaration, Remote
from clew.agent.definition import Agent
from clew.agent.shapes import JSON, Args, Duration, Input, Maybe, ModelLike, OnBusy, OnChange, Until, When
from clew.agent.tools import Tool, ToolOptions, tool

__all__ = [
    "JSON",
    "Agent",
    "Args",
    "ClientTool",
    "Decide",
    "Declaration",
    "Done",
    "Duration",
    "Input",
    "LaterVerbs",
    "Maybe",
    "ModelLike",
    "NotDone",
    "OnBusy",
    "OnChange",
    "Question",
    "Remote",
    "RunContext",
    "State",
    "StateKey",
    "Tool",
    "ToolContext",
    "ToolOptions",
    "ToolOutput",
    "ToolVerbs",
    "Unknown",
    "Until",
    "When",
    "tool",
]
