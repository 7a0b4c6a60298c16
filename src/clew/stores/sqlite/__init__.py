"""The store in one SQLite file, shared by any number of processes of one host."""

from clew.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
