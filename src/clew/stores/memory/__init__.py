"""The reference store: everything in this process, encoded as a database would keep it, gone when it ends."""

from clew.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
