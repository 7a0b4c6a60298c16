"""The agent as a user writes it: frozen, typed by the deps it needs and the output it gives."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, cast, overload

from typing_extensions import TypeForm, TypeVar

from clew.agent.declaration import Decide, Declaration, Instructions, Policy, Remote, declare, model_names, spec_of
from clew.agent.output import OutputType
from clew.agent.shapes import JSON, Duration, Input, ModelLike, OnChange, OnToolError, in_seconds, model_list
from clew.agent.tools import Tool, ToolOptions
from clew.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from clew.agent.answers import ClientTool
    from clew.app import Result
    from clew.core.limits import Limits
    from clew.core.spec import AgentSpec, ModelSettings
    from clew.core.values import Digest
    from clew.policy import Middleware
    from clew.ports import Model

_D = TypeVar("_D", default=object)
_Out = TypeVar("_Out", default=str)
_DA = TypeVar("_DA", contravariant=True, default=object)
_OA = TypeVar("_OA", covariant=True, default=str)


class Agent(Generic[_DA, _OA]):
    """What may run: a model, instructions, tools and limits, under a name. Frozen: `replace` makes a changed copy.

    Raises UsageError, where it is defined, for what could not run.
    """

    # What mentions a type variable defaults to `...` in an overload: checkers would solve from a real default.
    @overload
    def __init__(
        self,
        name: str,
        *,
        model: ModelLike,
        deps_type: TypeForm[_DA] = ...,
        instructions: Instructions[_DA] = ...,
        tools: Sequence[Tool[_DA]] = ...,
        output_retries: int = 2,
        max_continuations: int = 2,
        on_tool_error: OnToolError = "tell",
        require_by: bool = False,
        limits: Limits = ...,
        policy: Sequence[Policy[_DA]] = ...,
        middleware: Sequence[Middleware] = (),
        context: Any = None,
        skills: Sequence[str] = (),
        skill_prompt: Any = "catalogue",
        client_tools: Sequence[ClientTool] = (),
        handoffs: Sequence[Agent[_DA, str] | str] = ...,
        model_settings: ModelSettings | None = None,
        on_change: OnChange = "warn",
        record_requests: bool = False,
        description: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        model: ModelLike,
        deps_type: TypeForm[_DA] = ...,
        instructions: Instructions[_DA] = ...,
        tools: Sequence[Tool[_DA]] = ...,
        output_type: TypeForm[_OA],
        output_retries: int = 2,
        max_continuations: int = 2,
        on_tool_error: OnToolError = "tell",
        require_by: bool = False,
        limits: Limits = ...,
        policy: Sequence[Policy[_DA]] = ...,
        middleware: Sequence[Middleware] = (),
        context: Any = None,
        skills: Sequence[str] = (),
        skill_prompt: Any = "catalogue",
        client_tools: Sequence[ClientTool] = (),
        handoffs: Sequence[Agent[_DA, _OA] | str] = ...,
        model_settings: ModelSettings | None = None,
        on_change: OnChange = "warn",
        record_requests: bool = False,
        description: str = "",
    ) -> None: ...
    def __init__(self, name: str = "", **given: Any) -> None:
        declared = declare(name, given)
        self.__dict__.update(declared=declared, _output=OutputType(declared.output_type, declared.name), remote_at=None)

    # What the runtime and inspectors read; set once, above.
    declared: Declaration
    remote_at: Remote | None
    _output: OutputType

    def __setattr__(self, name: str, value: object) -> None:
        # An AttributeError: typing sets an attribute on what Agent[Deps, Out](…) makes, and forgives only that.
        raise AttributeError(f"an agent is frozen: agent.replace({name}=…) makes a changed copy")

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={', '.join(model_names(self.models))!r})"

    # --- what was declared --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def description(self) -> str:
        return self.declared.description

    @property
    def model(self) -> ModelLike:
        return cast("ModelLike", self.declared.model)

    @cached_property
    def models(self) -> tuple[str | Model, ...]:
        """In the order they are tried."""
        return model_list(self.declared.model)

    @property
    def instructions(self) -> Instructions[_DA]:
        return cast("Instructions[_DA]", self.declared.instructions)

    @property
    def tools(self) -> tuple[Tool[_DA], ...]:
        return tuple(self.declared.tools)

    @cached_property
    def _tools_by_name(self) -> dict[str, Tool[_DA]]:
        return {tool.name: tool for tool in self.tools}

    def tool(self, name: str) -> Tool[_DA] | None:
        """The tool of that name, if it is one with a body."""
        return self._tools_by_name.get(name)

    @property
    def client_tools(self) -> tuple[ClientTool, ...]:
        return tuple(self.declared.client_tools)

    @property
    def limits(self) -> Limits:
        return self.declared.limits

    @property
    def model_settings(self) -> ModelSettings | None:
        return self.declared.model_settings

    @property
    def policy(self) -> tuple[Policy[_DA], ...]:
        return tuple(self.declared.policy)

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        return tuple(self.declared.middleware)

    @property
    def handoffs(self) -> tuple[Agent[_DA, _OA] | str, ...]:
        return tuple(self.declared.handoffs)

    @property
    def skills(self) -> tuple[str, ...]:
        return tuple(self.declared.skills)

    @property
    def on_change(self) -> OnChange:
        return self.declared.on_change

    @property
    def on_tool_error(self) -> OnToolError:
        return self.declared.on_tool_error

    # --- as data ------------------------------------------------------------------------------------------------------

    @cached_property
    def spec(self) -> AgentSpec:
        """The agent as the core sees it. Raises Unsupported for one that runs elsewhere."""
        if self.remote_at is not None:
            _later(f"agent {self.name!r} runs at {self.remote_at.url}: remote agents")
        return spec_of(self.declared, self._output)

    @cached_property
    def fingerprint(self) -> Digest:
        return self.spec.fingerprint

    @property
    def output_type(self) -> Any:
        return self.declared.output_type

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the output; None for text."""
        return self._output.schema

    def parse_output(self, text: str) -> _OA:
        """The output that a reply's text says. Raises ValueError with a text for the model."""
        return cast("_OA", self._output.parse(text))

    def dump_output(self, value: Any) -> JSON:
        """The output as JSON-able data. Raises UsageError for what cannot be dumped."""
        return self._output.dump(value)

    def load_output(self, data: JSON) -> _OA:
        """The output back from what `dump_output` made of it. Raises ValueError if its type has changed too much."""
        return cast("_OA", self._output.load(data))

    # --- copies and relatives -----------------------------------------------------------------------------------------

    def replace(self, **changes: Any) -> Self:
        """A copy in which the named parameters are changed, also `name`."""
        given = {field: getattr(self.declared, field) for field in Declaration.__struct_fields__} | changes
        copy = type(self)(given.pop("name"), **given)
        copy.__dict__["remote_at"] = self.remote_at
        return copy

    def as_tool(
        self, *, name: str | None = None, description: str | None = None, needs_approval: bool = False
    ) -> Tool[_DA, [str], Awaitable[_OA]]:
        """A tool by which another agent asks this one. Child runs come later: until then a call raises Unsupported."""
        agent = self.name

        async def ask(input: str) -> Any:
            del input
            _later(f"agent {agent!r} as a tool: child runs")

        options = ToolOptions(
            effect="idempotent",
            needs_approval=needs_approval,
            name=agent if name is None else name,
            description=self.description if description is None else description,
        )
        made: Tool[Any, [str], Awaitable[Any]] = Tool(ask, options)
        made.agent = self
        return made

    @staticmethod
    def remote(
        url: str,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        allow_private: bool = False,
    ) -> Agent[object, str]:
        """An agent that runs elsewhere. Backends come later: until then to start it raises Unsupported."""
        parts = re.fullmatch(r"https?://([^/?#\s]+)([^?#\s]*)\S*", url)
        if parts is None:
            raise UsageError(f"Agent.remote({url!r}): give an http or https address")
        last = parts[2].rstrip("/").rpartition("/")[2] or parts[1]
        agent = Agent(name or re.sub(r"[^A-Za-z0-9_.-]", "-", last), model="remote:a2a")
        seconds = in_seconds(timeout, "Agent.remote: timeout")
        agent.__dict__["remote_at"] = Remote(url, dict(headers or {}), seconds, allow_private)
        return agent

    # --- in memory ----------------------------------------------------------------------------------------------------

    @overload
    async def run(
        self: Agent[object, _Out],
        input: Input,
        *,
        deps: None = None,
        model: ModelLike | None = None,
        decide: Decide | None = None,
        limits: Limits | None = None,
        model_settings: ModelSettings | None = None,
        metadata: Mapping[str, JSON] | None = None,
    ) -> Result[_Out]: ...
    @overload
    async def run(
        self: Agent[_D, _Out],
        input: Input,
        *,
        deps: _D,
        model: ModelLike | None = None,
        decide: Decide | None = None,
        limits: Limits | None = None,
        model_settings: ModelSettings | None = None,
        metadata: Mapping[str, JSON] | None = None,
    ) -> Result[_Out]: ...
    async def run(self, input: Input, **options: Any) -> Any:
        """The settled result of a run in memory. `decide` answers tickets on the spot."""
        from clew.app import run_agent

        return await run_agent(self, input, **options)

    @overload
    def run_sync(
        self: Agent[object, _Out],
        input: Input,
        *,
        deps: None = None,
        model: ModelLike | None = None,
        decide: Decide | None = None,
        limits: Limits | None = None,
        model_settings: ModelSettings | None = None,
        metadata: Mapping[str, JSON] | None = None,
    ) -> Result[_Out]: ...
    @overload
    def run_sync(
        self: Agent[_D, _Out],
        input: Input,
        *,
        deps: _D,
        model: ModelLike | None = None,
        decide: Decide | None = None,
        limits: Limits | None = None,
        model_settings: ModelSettings | None = None,
        metadata: Mapping[str, JSON] | None = None,
    ) -> Result[_Out]: ...
    def run_sync(self, input: Input, **options: Any) -> Any:
        """As `run`, for code without an event loop; works in notebooks as well."""
        from clew.app import run_agent_sync

        return run_agent_sync(self, input, **options)


def _later(what: str) -> NoReturn:
    raise Unsupported(f"{what} come with the release on agents that work together")
