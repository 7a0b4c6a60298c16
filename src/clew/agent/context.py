"""What user code is handed while it runs: facts about the run and the call, and verbs that the runtime performs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, Protocol, cast, overload

from msgspec import Struct
from typing_extensions import TypeForm, TypeVar

from clew.agent.shapes import JSON, Duration, Input
from clew.core.tickets import Decision
from clew.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from clew.agent.definition import Agent
    from clew.agent.keys import StateKey
    from clew.agent.tools import Tool
    from clew.app import Result
    from clew.core.values import Value

_D_co = TypeVar("_D_co", covariant=True, default=object)
_Out = TypeVar("_Out", default=str)
_P = ParamSpec("_P")
_T = TypeVar("_T")

AskExpiry = Literal["reject", "cancel", "escalate"]


class Question(Struct, frozen=True, kw_only=True):
    """What a tool asks of a person. `name`, else the prompt, tells it apart from the tool's other questions."""

    prompt: str
    schema: Any = str
    name: str | None = None
    expires: Duration | None = None
    on_expire: AskExpiry = "reject"


class ToolVerbs(Protocol):
    """What the runtime does for a context. What is awaited may be refused before: a sync body awaits nothing."""

    @property
    def letting_go(self) -> bool: ...
    def step(
        self,
        name: str,
        effect: Literal["once", "idempotent"],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Awaitable[Any]: ...
    def ask(self, question: Question) -> Awaitable[Any]: ...
    def sleep(self, duration: Duration) -> Awaitable[None]: ...
    def run(self, agent: Agent[Any, Any], input: Input, name: str | None) -> Awaitable[Any]: ...
    def background(self, target: Any, args: dict[str, Any]) -> Awaitable[str]: ...
    def note(self, kind: str, value: Value) -> Awaitable[None]: ...
    def emit(self, value: JSON) -> None: ...
    def state_value(self, key: StateKey[Any]) -> Any: ...
    def state_has(self, key: StateKey[Any]) -> bool: ...
    def state_update(self, key: StateKey[Any], value: Any) -> None: ...
    def end(self) -> None: ...


class NoVerbs:
    """What a context can do where nothing may be done: in instructions, policies, and tests."""

    letting_go = False

    def __init__(self, emit: Callable[[JSON], None] | None = None) -> None:
        self._emit = emit

    def emit(self, value: JSON) -> None:
        if self._emit is not None:
            self._emit(value)

    def step(
        self,
        name: str,
        effect: Literal["once", "idempotent"],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Awaitable[Any]:
        del name, fn, args, kwargs
        _not_here("ctx.step" if effect == "idempotent" else "ctx.once_step")

    def ask(self, question: Question) -> Awaitable[Any]:
        del question
        _not_here("ctx.ask")

    def sleep(self, duration: Duration) -> Awaitable[None]:
        del duration
        _not_here("ctx.sleep")

    def run(self, agent: Agent[Any, Any], input: Input, name: str | None) -> Awaitable[Any]:
        del agent, input, name
        later("ctx.run")

    def background(self, target: Any, args: dict[str, Any]) -> Awaitable[str]:
        del target, args
        later("ctx.background")

    def note(self, kind: str, value: Value) -> Awaitable[None]:
        del kind, value
        _not_here("ctx.note")

    def state_value(self, key: StateKey[Any]) -> Any:
        if not key.has_default:
            raise UsageError(f"state key {key.name!r} has no value yet, and no default: StateKey(…, default=…)")
        return deepcopy(key.default)  # one value for every run: what a body does to its own must not be seen by others

    def state_has(self, key: StateKey[Any]) -> bool:
        del key
        return False

    def state_update(self, key: StateKey[Any], value: Any) -> None:
        del key, value
        _not_here("ctx.state.update")

    def end(self) -> None:
        _not_here("ctx.end")


def _not_here(verb: str) -> NoReturn:
    raise UsageError(f"{verb} is for the async body of a tool: it cannot be called here")


def later(verb: str) -> NoReturn:
    raise Unsupported(
        f"{verb} comes with the release on agents that work together: this version of Clew does not have it yet"
    )


class State:
    """The state of a run, read by key; what a tool updates is committed with its result."""

    __slots__ = ("_verbs",)

    def __init__(self, verbs: ToolVerbs) -> None:
        self._verbs = verbs

    def __getitem__(self, key: StateKey[_T], /) -> _T:
        return cast("_T", self._verbs.state_value(key))

    def __contains__(self, key: StateKey[Any], /) -> bool:
        return self._verbs.state_has(key)

    def update(self, key: StateKey[_T], value: _T, /) -> None:
        self._verbs.state_update(key, value)


class RunContext(Struct, Generic[_D_co], frozen=True, eq=False, kw_only=True):
    """What functions of an agent are told about the run. `deps` are this process's, `metadata` is the run's."""

    deps: _D_co
    run_id: str = ""
    thread_id: str = ""
    agent: str = ""
    turn: int = 0
    metadata: Mapping[str, JSON] = {}
    verbs: ToolVerbs = NoVerbs()

    @property
    def state(self) -> State:
        return State(self.verbs)

    def note(self, kind: str, value: JSON = None, /) -> Awaitable[None]:
        """Write a remark into the journal; it changes nothing else. For tools and middleware."""
        return self.verbs.note(kind, value)

    def emit(self, value: JSON, /) -> None:
        """Show progress to whoever watches now; it is not kept."""
        self.verbs.emit(value)

    def end(self) -> None:
        """Ask for the end of the run, once what is under way has finished. For tools and middleware."""
        self.verbs.end()

    def __repr__(self) -> str:
        # Deps hold clients and keys: they are never shown.
        return f"{type(self).__name__}(run_id={self.run_id!r}, agent={self.agent!r}, turn={self.turn})"


class ToolContext(RunContext[_D_co], Generic[_D_co], frozen=True, eq=False, kw_only=True):
    """What a tool is told about its call. `attempt` counts from 1; `idempotency_key` is the same for all attempts."""

    tool: str = ""
    args: Mapping[str, Any] = {}
    call_id: str = ""
    step_id: str = ""
    attempt: int = 1
    idempotency_key: str = ""
    decision: Decision | None = None

    @property
    def letting_go(self) -> bool:
        """True while the body is unwound to wait: it will run again, so `finally` must not undo its work."""
        return self.verbs.letting_go

    @overload
    async def step(self, name: str, fn: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...
    @overload
    async def step(self, name: str, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...
    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`fn`'s value, committed: when the body runs again it is given back without calling `fn`."""
        return self.verbs.step(name, "idempotent", fn, args, kwargs)

    @overload
    async def once_step(
        self, name: str, fn: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T: ...
    @overload
    async def once_step(self, name: str, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...
    def once_step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """As `step`, for what must not happen twice: its intent is committed before `fn` is called."""
        return self.verbs.step(name, "once", fn, args, kwargs)

    @overload
    async def ask(
        self,
        prompt: str,
        *,
        name: str | None = None,
        expires: Duration | None = None,
        on_expire: AskExpiry = "reject",
    ) -> str: ...
    @overload
    async def ask(
        self,
        prompt: str,
        schema: TypeForm[_T],
        *,
        name: str | None = None,
        expires: Duration | None = None,
        on_expire: AskExpiry = "reject",
    ) -> _T: ...
    @overload
    async def ask(
        self,
        prompt: str,
        schema: Mapping[str, Any],
        *,
        name: str | None = None,
        expires: Duration | None = None,
        on_expire: AskExpiry = "reject",
    ) -> Any: ...
    def ask(
        self,
        prompt: str,
        schema: Any = str,
        *,
        name: str | None = None,
        expires: Duration | None = None,
        on_expire: AskExpiry = "reject",
    ) -> Any:
        """A person's answer, of the type asked for. Raises Rejected if turned down or out of time."""
        question = Question(prompt=prompt, schema=schema, name=name, expires=expires, on_expire=on_expire)
        return self.verbs.ask(question)

    def sleep(self, duration: Duration, /) -> Awaitable[None]:
        """Wait durably: the run holds no task and no lease meanwhile."""
        return self.verbs.sleep(duration)

    async def run(self, agent: Agent[Any, _Out], input: Input, *, name: str | None = None) -> Result[_Out]:
        """The result of a child run, found again after a crash."""
        return cast("Result[_Out]", await self.verbs.run(agent, input, name))

    async def background(self, target: Tool[Any, ..., Any] | Agent[Any, Any], /, **args: Any) -> str:
        """Start a tool or agent beside this run; the id of its run. Its result comes as a message."""
        return await self.verbs.background(target, args)
