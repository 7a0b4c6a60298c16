"""What an agent was declared with: the defaults, the checks where it is defined, and the form that the core sees."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from msgspec import Struct
from typing_extensions import TypeVar

from clew.agent.answers import ClientTool
from clew.agent.context import RunContext
from clew.agent.output import OutputType
from clew.agent.shapes import Maybe, OnChange, OnToolError, agent_name, label, model_list, one_of, valid_text, whole
from clew.agent.tools import Tool
from clew.core.limits import Limits
from clew.core.spec import AgentSpec, ModelSettings
from clew.core.tickets import Decision, Ticket
from clew.core.values import pack
from clew.errors import UsageError
from clew.ports import Model

if TYPE_CHECKING:
    from clew.core.messages import ToolCall
    from clew.policy import Rule, Verdict

_DA = TypeVar("_DA", contravariant=True, default=object)

Instructions: TypeAlias = str | Callable[[RunContext[_DA]], Maybe[str]]
Judge: TypeAlias = "Callable[[RunContext[_DA], ToolCall], Verdict | Awaitable[Verdict | None] | None]"
Policy: TypeAlias = "Rule | Judge[_DA]"
Decide: TypeAlias = Callable[[Ticket], Maybe[Decision | None]]

_LISTS = ("tools", "client_tools", "policy", "middleware", "skills", "handoffs")


class Remote(Struct, frozen=True):
    """Where an agent runs that is not ours: data, until a later release brings the backend for it."""

    url: str
    headers: Mapping[str, str] = {}
    timeout: float | None = None
    allow_private: bool = False


class Declaration(Struct, frozen=True, kw_only=True):
    """The parameters of an agent as they were given, and every default."""

    name: str
    model: Any
    deps_type: Any = object
    instructions: Any = ""
    tools: Sequence[Any] = ()
    output_type: Any = str
    output_retries: int = 2
    max_continuations: int = 2
    on_tool_error: OnToolError = "tell"
    require_by: bool = False
    limits: Limits = Limits()
    policy: Sequence[Any] = ()
    middleware: Sequence[Any] = ()
    context: Any = None
    skills: Sequence[str] = ()
    skill_prompt: Any = "catalogue"
    client_tools: Sequence[ClientTool] = ()
    handoffs: Sequence[Any] = ()
    model_settings: ModelSettings | None = None
    on_change: OnChange = "warn"
    record_requests: bool = False
    description: str = ""


def declare(name: object, given: dict[str, Any]) -> Declaration:
    """A declaration that can run. Raises UsageError for one that cannot."""
    named = f"agent {agent_name(name)!r}"
    if given.get("model") is None:
        raise UsageError(f"{named} needs a model: say model='provider:name'")
    lists: dict[str, Any] = {what: _as_tuple(given[what], f"{named}: {what}") for what in _LISTS if what in given}
    try:
        declared = Declaration(name=cast("str", name), **{**given, **lists})
    except TypeError as error:
        known = ", ".join(Declaration.__struct_fields__)
        raise UsageError(f"{named}: {error}: its parameters are {known}") from error
    _check_choices(declared, f"{named}: ")
    _check_tools(declared, f"{named}: ")
    _check_rest(declared, f"{named}: ")
    return declared


def _as_tuple(given: object, what: str) -> tuple[Any, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"{what}={given!r}: give a list")
    return tuple(given)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _check_choices(declared: Declaration, named: str) -> None:
    try:
        model_list(declared.model)
    except UsageError as error:
        raise UsageError(f"{named}{error}") from error
    whole(declared.output_retries, f"{named}output_retries")
    whole(declared.max_continuations, f"{named}max_continuations")
    if not (isinstance(declared.instructions, str) or callable(declared.instructions)):
        raise UsageError(f"{named}instructions= takes text, or a function of the RunContext")
    if not callable(declared.on_change):
        one_of(declared.on_change, ("warn", "fail"), f"{named}on_change")
    _check_recovery(declared.on_tool_error, f"{named}on_tool_error")
    valid_text(declared.instructions if isinstance(declared.instructions, str) else "", f"{named}instructions")
    for what, kind in (("limits", Limits), ("model_settings", ModelSettings | None)):
        if not isinstance(getattr(declared, what), kind):
            raise UsageError(f"{named}{what}={getattr(declared, what)!r}: give clew.{what.title().replace('_', '')}(…)")


def _check_recovery(mode: OnToolError, what: str) -> None:
    if isinstance(mode, int):
        whole(mode, what)
        if mode == 0:
            raise UsageError(f"{what}=0: how many failures in a row end a run? Say 'stop' for the first")
    elif not callable(mode):
        one_of(mode, ("tell", "stop"), what)


def _check_tools(declared: Declaration, named: str) -> None:
    seen: dict[str, str] = {}
    for kind, tools in ((Tool, declared.tools), (ClientTool, declared.client_tools)):
        for tool in cast("Sequence[object]", tools):
            if not isinstance(tool, kind):
                raise UsageError(f"{named}{_not_a_tool(tool, kind.__name__)}")
            name: str = tool.name
            if name in seen:
                raise UsageError(
                    f"{named}two tools are called {name!r} ({seen[name]}, {kind.__name__}): give one a name="
                )
            seen[name] = kind.__name__


def _check_rest(declared: Declaration, named: str) -> None:
    for rule in declared.policy:
        if not (callable(rule) or hasattr(rule, "kind")):
            raise UsageError(f"{named}policy= takes rules such as policy.deny('shell'), and functions, not {rule!r}")
    for one in declared.middleware:
        if isinstance(one, type) or not hasattr(one, "before_model"):
            raise UsageError(f"{named}middleware= takes objects of a Middleware class, not {one!r}")
    for other in declared.handoffs:
        if not (isinstance(other, str) or hasattr(other, "declared")):
            raise UsageError(f"{named}handoffs= takes agents and names of agents, not {other!r}")


def _not_a_tool(thing: object, wanted: str) -> str:
    if wanted == "ClientTool":
        return f"client_tools= takes ClientTool(name, schema), not {thing!r}"
    if callable(thing):
        return f"{label(thing)!r} is a plain function: decorate it with @tool"
    return f"tools= takes what @tool makes of a function, not {thing!r}"


def spec_of(declared: Declaration, output: OutputType) -> AgentSpec:
    """The agent as data. Functions are named, not kept: the digest is the same in every process."""
    instructions = declared.instructions
    on_tool_error = declared.on_tool_error
    settings = declared.model_settings
    return AgentSpec(
        name=declared.name,
        instructions=instructions if isinstance(instructions, str) else "",
        dynamic_instructions=not isinstance(instructions, str),
        model=model_names(model_list(declared.model)),
        tools=tuple(tool.spec for tool in (*declared.tools, *declared.client_tools)),
        output_schema=output.schema,
        output_retries=declared.output_retries,
        max_continuations=declared.max_continuations,
        on_tool_error=f"{label(on_tool_error)}()" if callable(on_tool_error) else str(on_tool_error),
        settings={} if settings is None else pack(settings.given()),
        limits=declared.limits,
        policy=tuple(label(one) if callable(one) else str(one) for one in declared.policy),
        middleware=tuple(map(label, declared.middleware)),
        context="" if declared.context is None else label(declared.context),
        skills=tuple(declared.skills),
        handoffs=tuple(one if isinstance(one, str) else one.name for one in declared.handoffs),
    )


def model_names(models: Iterable[str | Model]) -> tuple[str, ...]:
    return tuple(model if isinstance(model, str) else model.name for model in models)
