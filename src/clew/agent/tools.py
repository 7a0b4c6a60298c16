"""What `@tool` makes of a function: a declaration for the runtime, a schema for the model, checks at the border."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, isroutine, unwrap
from types import FrameType, NoneType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, cast, get_args, overload

import typing_extensions
from msgspec import Struct
from typing_extensions import TypeVar

from clew.agent import schema as schemas
from clew.agent.answers import Done, NotDone, ToolOutput, Unknown
from clew.agent.context import RunContext, ToolContext
from clew.agent.docs import ToolDocs, read_docs
from clew.agent.shapes import Args, Duration, Maybe, in_seconds, one_of, tool_name, valid_text, whole
from clew.core.spec import EffectKind, OnDoubt, OnExpire, ToolSpec
from clew.errors import UsageError

if TYPE_CHECKING:
    from clew.agent.definition import Agent
    from clew.agent.schema import Adapter

_P = ParamSpec("_P")
_T = TypeVar("_T")
_D0 = TypeVar("_D0")
_D_contra = TypeVar("_D_contra", contravariant=True, default=Any)
_PT = typing_extensions.ParamSpec("_PT", default=...)
_R_co = TypeVar("_R_co", covariant=True, default=Any)

Approval = bool | Callable[[RunContext[Any], Args], Maybe[bool]]
Verify = Callable[[ToolContext[Any]], Maybe[Done | NotDone | Unknown]]
ActionKey = str | Callable[[RunContext[Any], Args], str]
RetryOn = type[BaseException] | Sequence[type[BaseException]]

_AS_THEY_ARE = frozenset({str, int, bool, float, type(None)})


class ToolOptions(Struct, frozen=True, kw_only=True):
    """What was declared of a tool beside its function; durations as given."""

    effect: EffectKind = "once"
    needs_approval: Approval = False
    verify: Verify | None = None
    on_doubt: OnDoubt = "ask"
    expires: Duration | None = None
    on_expire: OnExpire = "reject"
    timeout: Duration | None = None
    retries: int = 0
    retry_on: RetryOn = ()
    steps_only: bool = False
    sequential: bool = False
    action_key: ActionKey | None = None
    name: str | None = None
    description: str | None = None


class Tool(Generic[_D_contra, _PT, _R_co]):
    """A function that a model may call. Calling the tool calls the function, unchecked, as any Python code would."""

    def __init__(self, fn: Callable[_PT, _R_co], options: ToolOptions, frame: FrameType | None = None) -> None:
        self.fn = fn
        self.options = options
        self.name = tool_name(_name_of(fn) if options.name is None else options.name)
        _check_function(fn, self.name)
        _check_options(options, self.name)
        self.signature = schemas.read_signature(fn, self.name, frame)
        schemas.check_signature(self.signature, self.name)
        valid_text(fn.__doc__ or "", f"tool {self.name!r}: docstring")
        self.takes_context = self.signature.takes_context
        # A decorator around an async function hands its coroutine on, though it is itself a plain function.
        self.is_async = iscoroutinefunction(fn) or iscoroutinefunction(unwrap(fn))
        self.needs_approval = options.needs_approval
        self.verify = options.verify
        self.retry_on = _exceptions(options.retry_on, self.name)
        self.action_key = options.action_key
        self.timeout = in_seconds(options.timeout, f"tool {self.name!r}: timeout")
        self.agent: Agent[Any, Any] | None = None
        self._returns = _plain_part(self.signature.returns)
        self._as_they_are = _AS_THEY_ARE if schemas.is_plain(self._returns) else frozenset[type]()
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn

    def __call__(self, /, *args: _PT.args, **kwargs: _PT.kwargs) -> _R_co:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, effect={self.options.effect!r})"

    @cached_property
    def _docs(self) -> ToolDocs:
        return read_docs(self.fn)

    @property
    def description(self) -> str:
        return self._docs.description if self.options.description is None else self.options.description

    @cached_property
    def _arguments(self) -> Adapter:
        return schemas.arguments_adapter(self.signature, self.name, self._docs.parameters)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, for the model."""
        return schemas.json_schema(self._arguments)

    @cached_property
    def spec(self) -> ToolSpec:
        """The declaration as data, as it stands in an agent's fingerprint."""
        options = self.options
        return ToolSpec(
            name=self.name,
            description=self.description,
            schema=self.schema,
            effect=options.effect,
            needs_approval=options.needs_approval is not False,
            verifies=options.verify is not None,
            on_doubt=options.on_doubt,
            expires=in_seconds(options.expires, "expires"),
            on_expire=options.on_expire,
            timeout=self.timeout,
            retries=options.retries,
            steps_only=options.steps_only,
            sequential=options.sequential,
        )

    @cached_property
    def _validate(self) -> Callable[[Any], dict[str, Any]]:
        return self._arguments.validator.validate_python

    def validate(self, args: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function. Raises ValueError with a text for the model, a line for each problem."""
        try:
            return self._validate(args)
        except ValueError as error:
            names = tuple(one.name for one in self.signature.parameters)
            raise ValueError(schemas.problems(error, names)) from error

    def dump(self, value: object) -> Any:
        """The result as JSON-able data, NaN kept. Raises UsageError for what cannot be dumped."""
        if type(value) in self._as_they_are:
            return value
        try:
            return self._dump(value)
        except ValueError as error:
            raise UsageError(
                f"tool {self.name!r} returned a value of type {type(value).__name__}, which cannot be dumped as JSON "
                f"({schemas.one_line(error)}): return text, numbers, lists, mappings or a pydantic model"
            ) from error

    @cached_property
    def _dump(self) -> Callable[[object], Any]:
        """By the return hint where it says more than the value does, else by what the value is."""
        return schemas.to_json if schemas.is_plain(self._returns) else schemas.dumper(self._returns)


def _name_of(fn: object) -> object:
    return getattr(fn, "__name__", None) or type(fn).__name__


def _check_function(fn: object, tool: str) -> None:
    if not isroutine(fn):
        raise UsageError(f"tool {tool!r}: @tool takes a function, not a {type(fn).__name__}")
    if isgeneratorfunction(fn) or isasyncgenfunction(fn):
        raise UsageError(f"tool {tool!r} is a generator: return one value, and show progress by ctx.emit")


def _check_options(options: ToolOptions, tool: str) -> None:
    named = f"tool {tool!r}: "
    one_of(options.effect, get_args(EffectKind), f"{named}effect")
    one_of(options.on_doubt, get_args(OnDoubt), f"{named}on_doubt")
    one_of(options.on_expire, get_args(OnExpire), f"{named}on_expire")
    in_seconds(options.expires, f"{named}expires")
    whole(options.retries, f"{named}retries")
    valid_text(options.description or "", f"{named}description")
    for what, also in (("verify", NoneType), ("needs_approval", bool), ("action_key", str | None)):
        given = getattr(options, what)
        if not (callable(given) or isinstance(given, also)):
            raise UsageError(f"{named}{what}={given!r}: give a function")
    if options.retries and options.effect == "once" and options.verify is None and not options.retry_on:
        raise UsageError(
            f"{named}retries={options.retries} would repeat a call whose effect is 'once' without knowing whether it "
            "happened: give verify= or retry_on=, or say effect='idempotent' if it may run again"
        )


def _exceptions(retry_on: object, tool: str) -> tuple[type[BaseException], ...]:
    several = isinstance(retry_on, list | tuple)
    given = tuple(cast("Sequence[object]", retry_on if several else (retry_on,)))
    for one in given:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise UsageError(f"tool {tool!r}: retry_on names exception classes, not {one!r}")
    return cast("tuple[type[BaseException], ...]", given)


def _plain_part(hint: Any) -> Any:
    """What a return hint says of the content: ToolOutput says nothing of it."""
    if hint is ToolOutput:
        return Any
    parts = get_args(hint)
    return Any if ToolOutput in parts else hint


class Decorator(Protocol):
    """What `tool(…)` gives: it makes a Tool of a function, with the deps its context asks for."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[ToolContext[_D0], _P], _T], /
    ) -> Tool[_D0, Concatenate[ToolContext[_D0], _P], _T]: ...
    @overload
    def __call__(self, fn: Callable[_P, _T], /) -> Tool[object, _P, _T]: ...


@overload
def tool(
    fn: Callable[Concatenate[ToolContext[_D0], _P], _T], /
) -> Tool[_D0, Concatenate[ToolContext[_D0], _P], _T]: ...
@overload
def tool(fn: Callable[_P, _T], /) -> Tool[object, _P, _T]: ...
@overload
def tool(
    *,
    effect: EffectKind = "once",
    needs_approval: Approval = False,
    verify: Verify | None = None,
    on_doubt: OnDoubt = "ask",
    expires: Duration | None = None,
    on_expire: OnExpire = "reject",
    timeout: Duration | None = None,
    retries: int = 0,
    retry_on: RetryOn = (),
    steps_only: bool = False,
    sequential: bool = False,
    action_key: ActionKey | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Decorator: ...
def tool(fn: Any = None, /, **options: Any) -> Any:
    """Make a tool of a function, for agents.

    `effect` says how often it may happen: "once" (never silently twice), "idempotent" (again, with the same key) or
    "read" (as often as need be). A tool that raises is an answer to the model; `Fatal` ends the run. Raises UsageError,
    where it is defined, for a function or an option that cannot work.
    """
    try:
        declared = ToolOptions(**options)
    except TypeError as error:
        raise UsageError(f"@tool: {error}: its options are {', '.join(ToolOptions.__struct_fields__)}") from error
    if fn is not None:
        return Tool(fn, declared, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def decorate(fn: Callable[..., Any], /) -> Tool[Any, ..., Any]:
        return Tool(fn, declared, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    return decorate
