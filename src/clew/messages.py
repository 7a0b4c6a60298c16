"""The transcript, for users: messages and what they are made of."""

from clew.core.messages import (
    Data,
    Media,
    Message,
    Part,
    RawReply,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)

__all__ = [
    "Data",
    "Media",
    "Message",
    "Part",
    "RawReply",
    "Refusal",
    "Role",
    "Text",
    "Thinking",
    "ToolCall",
    "ToolResult",
    "Usage",
]
