"""Whether all tasks that a body has started wait, as far as an event loop tells."""

import asyncio
import sys
from collections.abc import Collection
from contextvars import ContextVar
from typing import Any, TypeAlias

Tasks: TypeAlias = "Collection[asyncio.Task[Any] | None]"

_BODY: ContextVar[object] = ContextVar("clew_body", default=None)


def begin(body: object) -> "frozenset[asyncio.Task[Any]]":
    """Called in the task of a body before it runs: marks what it will start, or answers who was there before."""
    if sys.version_info >= (3, 12):
        _BODY.set(body)
        return frozenset()
    return frozenset(asyncio.all_tasks())


def all_wait(body: object, before: Tasks, waiting: Tasks, ours: Tasks) -> bool:
    """Whether every task of a body is one of those that wait.

    Where a task does not tell whose it is, those of others that came meanwhile count as well: it lets go a bit later.
    """
    for task in asyncio.all_tasks():
        if task in waiting or task in ours or task in before:
            continue
        if sys.version_info < (3, 12) or task.get_context().get(_BODY) is body:
            return False
    return True
