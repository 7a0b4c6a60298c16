"""Ready tool sources, what `verify` may find of a call in doubt, and what `on_tool_error` may have the model told."""

from clew.agent import Done, NotDone, Tell, Unknown

__all__ = ["Done", "NotDone", "Tell", "Unknown"]
