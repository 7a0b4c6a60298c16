"""What a user writes: agents, tools, and what their functions are handed."""

from clew.agent.answers import ClientTool, Done, NotDone, Tell, ToolOutput, Unknown
from clew.agent.context import NoVerbs, Question, RunContext, State, ToolContext, ToolVerbs
from clew.agent.declaration import Decide, Declaration, Remote
from clew.agent.definition import Agent
from clew.agent.keys import StateKey
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
    "Maybe",
    "ModelLike",
    "NoVerbs",
    "NotDone",
    "OnBusy",
    "OnChange",
    "Question",
    "Remote",
    "RunContext",
    "State",
    "StateKey",
    "Tell",
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
