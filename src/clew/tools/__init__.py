"""Ready tool sources, and what `verify` may find of a call in doubt."""

from clew.agent import Done, NotDone, Unknown

__all__ = ["Done", "NotDone", "Unknown"]
