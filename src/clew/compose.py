"""Builds concrete things from names: a store from its URL, a model from `provider:name`, deps from what was given."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from clew.core.values import check_text
from clew.errors import UsageError
from clew.ports import Clock, Model, RunInfo, Store
from clew.runtime.user_code import call

if TYPE_CHECKING:
    from clew.agent import ModelLike
    from clew.runtime.station import Deps

DEFAULT_STORE = "sqlite:///clew.db"


def open_store(store: "str | Store | None", clock: Clock | None) -> Store:
    """The store that a URL names; `None` is what `CLEW_STORE` says, else a file in the working directory."""
    if store is None:
        store = os.environ.get("CLEW_STORE") or DEFAULT_STORE
    if not isinstance(store, str):
        if not (hasattr(store, "commit") and hasattr(store, "claim")):
            raise UsageError(f"{store!r} is no store: use memory://, sqlite:///path, postgresql://…, or a Store")
        return store
    scheme, separator, rest = store.partition("://")
    if not separator:
        raise UsageError(f"{store!r} is no store URL: use memory://, sqlite:///path or postgresql://…")
    if scheme == "memory":
        from clew.stores.memory import MemoryStore

        return MemoryStore(clock=clock)
    if scheme == "sqlite":
        from clew.stores.sqlite import SqliteStore

        return SqliteStore(_sqlite_path(store, rest), clock=clock)
    if scheme in ("postgresql", "postgres"):
        raise UsageError("the Postgres store comes with a later release of Clew: use sqlite:///path")
    raise UsageError(f"no store is called {scheme!r}: use memory://, sqlite:///path or postgresql://…")


def _sqlite_path(url: str, rest: str) -> str:
    """`sqlite:///a.db` is relative to the working directory, `sqlite:////a.db` is absolute."""
    path = unquote(rest)[1:]
    if not rest.startswith("/") or not path or "?" in rest or "\x00" in path or not _is_text(path):
        raise UsageError(f"{url!r} names no file: use sqlite:///clew.db, or sqlite:////absolute/path.db")
    return path


def _is_text(path: str) -> bool:
    try:
        check_text(path)
    except UsageError:
        return False
    return True


def resolve_model(model: object) -> Model:
    """The model that a name, an object or a list of these stands for."""
    from clew.models import resolve

    if isinstance(model, Sequence) and not isinstance(model, str) and len(cast("Sequence[object]", model)) > 1:
        raise UsageError("a list of models (fall-over) comes with a later release: give one model")
    return resolve(cast("ModelLike", model))


def deps_maker(deps: object, info: Callable[[str], Any]) -> "Deps":
    """What opens deps for one activation: the object itself, or what a function of the run's row makes."""
    if not callable(deps) or isinstance(deps, type):

        async def given(_run: str, _stack: AsyncExitStack) -> object:
            return deps

        return given

    async def made(run: str, stack: AsyncExitStack) -> object:
        row: RunInfo = await info(run)
        value: object = await call(cast("Callable[[RunInfo], Any]", deps), row)
        if isinstance(value, AbstractAsyncContextManager):
            return await stack.enter_async_context(cast("AbstractAsyncContextManager[object]", value))
        return value

    return made
