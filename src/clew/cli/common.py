"""What every command shares: --store, --json, --debug, and a Runtime that is opened on that store."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import click

from clew.app import Runtime
from clew.compose import DEFAULT_STORE
from clew.errors import ClewError, NotFound, UsageError
from clew.ports import RunFilter, Store

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

NEAR = 1_000  # the newest runs, among which a name is looked for that is not quite right
FILE = "sqlite:///"


@dataclass
class Common:
    """What was said before or behind the command's name."""

    store: str | None = None
    json: bool = False
    debug: bool = False

    @property
    def url(self) -> str:
        return self.store or os.environ.get("CLEW_STORE") or DEFAULT_STORE

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[Runtime]:
        """A Runtime that drives nothing, on a store that exists."""
        self._check_there()
        async with Runtime(self.url, drive=False) as runtime:
            yield runtime

    def _check_there(self) -> None:
        url = self.url
        if url.startswith("memory:"):
            raise UsageError(
                "memory:// is of one process and holds nothing here: name a file, --store sqlite:///clew.db"
            )
        path = Path(unquote(url.removeprefix(FILE)))
        if url.startswith(FILE) and not path.exists():
            raise NotFound(
                f"there is no store {path}: `clew run` and `clew worker` make one, as does Runtime({url!r}); "
                "or name another with --store or CLEW_STORE"
            )


def shared(command: F) -> F:
    """The options that may stand before or behind a command's name."""
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, callback=_noted, help="Tracebacks and log lines."),
        click.option("--json", is_flag=True, expose_value=False, callback=_noted, help="JSON, see `clew schema`."),
        click.option(
            "--store",
            metavar="URL",
            expose_value=False,
            callback=_noted,
            help="Where runs are kept: CLEW_STORE, else sqlite:///clew.db.",
        ),
    ):
        command = option(command)
    return command


def _noted(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    if value:
        setattr(ctx.ensure_object(Common), str(option.name), value)
        if option.name == "debug":
            logging.getLogger("clew").setLevel(logging.DEBUG)


def perform(work: Coroutine[Any, Any, T]) -> T:
    """The one place where a command enters an event loop."""
    return asyncio.run(work)


async def found(store: Store, run: str, *, whole: bool = False) -> str:
    """The id of a run that was named whole, by its beginning, or not quite: then the error says which is near.

    A beginning is looked for among the newest runs, so that an old one may have it too: `whole` is for what cannot be
    undone.
    """
    try:
        return (await store.info(run)).run_id
    except NotFound as error:
        names = [info.run_id for info in await store.runs(RunFilter(limit=NEAR))]
        beginning = [name for name in names if name.startswith(run)]
        if len(beginning) == 1 and run and not whole:
            return beginning[0]
        near = beginning[:3] or get_close_matches(run, names, 3)
        hint = f"did you mean {', '.join(near)}?" if near else "`clew runs` lists them"
        raise NotFound(f"there is no run {run!r}: {hint}") from error


def complete_run(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of runs that begin so, for a shell."""

    async def names() -> list[str]:
        async with ctx.ensure_object(Common).reading() as runtime:
            return [info.run_id async for info in runtime.runs(limit=NEAR) if info.run_id.startswith(incomplete)]

    try:
        return perform(names())
    except ClewError:
        return []  # a shell that completes is no place for sentences


def run_argument(command: F) -> F:
    return click.argument("run", shell_complete=complete_run)(command)
