"""Verbs whose names are settled and whose work comes with later releases: each says so when it is called."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, overload

from typing_extensions import TypeVar

from clew.agent import Agent, Duration, ModelLike
from clew.app.result import Diff, Finding, Pruned, Queued
from clew.app.run import Run
from clew.core.limits import Limits
from clew.core.messages import ToolCall
from clew.errors import Unsupported
from clew.runtime.plan import Input

_Out = TypeVar("_Out", default=str)
ToolMode = Literal["live", "recorded", "dry"]
OnMiss = Literal["ask", "live", "fail"]
Modes = ToolMode | Mapping[str, ToolMode | Callable[..., Any]]
Missing = OnMiss | Callable[[ToolCall], Any]


class Later:
    """The part of Runtime that is a promise."""

    async def queued(self, run_id: str) -> list[Queued]:
        _later("rt.queued", _PEOPLE)

    async def edit(self, message_id: str, input: Input) -> Queued:
        _later("rt.edit", _PEOPLE)

    async def withdraw(self, message_id: str) -> None:
        _later("rt.withdraw", _PEOPLE)

    @overload
    async def fork(
        self,
        origin: str,
        *,
        agent: Agent[Any, _Out],
        at: int | str | None = None,
        model: ModelLike | None = None,
        instructions: str | None = None,
        input: Input | None = None,
        tools: Modes = "live",
        on_miss: Missing = "ask",
        run_id: str | None = None,
        thread_id: str | None = None,
        limits: Limits | None = None,
    ) -> Run[_Out]: ...
    @overload
    async def fork(
        self,
        origin: str,
        *,
        agent: None = None,
        at: int | str | None = None,
        model: ModelLike | None = None,
        instructions: str | None = None,
        input: Input | None = None,
        tools: Modes = "live",
        on_miss: Missing = "ask",
        run_id: str | None = None,
        thread_id: str | None = None,
        limits: Limits | None = None,
    ) -> Run[Any]: ...
    async def fork(self, origin: str, **given: Any) -> Run[Any]:
        _later("rt.fork", _FORKS)

    async def replay(
        self,
        origin: str,
        *,
        at: int | str | None = None,
        agent: Agent[Any, Any] | None = None,
        model: ModelLike | None = None,
        instructions: str | None = None,
        input: Input | None = None,
        tools: Modes = "recorded",
        on_miss: Missing = "ask",
        run_id: str | None = None,
        thread_id: str | None = None,
        limits: Limits | None = None,
    ) -> Run[Any]:
        _later("rt.replay", _FORKS)

    async def diff(self, a: str, b: str) -> Diff:
        _later("rt.diff", _FORKS)

    async def prune(
        self,
        *,
        older_than: Duration | None = None,
        keep: int | None = None,
        status: str | None = None,
        thread_id: str | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        _later("rt.prune", _POSTGRES)

    async def check(self, *agents: Agent[Any, Any]) -> list[Finding]:
        _later("rt.check", _POSTGRES)

    async def export(self, run_id: str, file: str | Path) -> None:
        _later("rt.export", _FORKS)

    async def import_(self, file: str | Path) -> Run[Any]:
        _later("rt.import_", _FORKS)


_PEOPLE = "the release on people in the loop"
_FORKS = "the release on threads and forks"
_POSTGRES = "the release on many workers"


def _later(verb: str, release: str) -> NoReturn:
    raise Unsupported(f"{verb} comes with {release}: this version of Clew does not have it yet")
