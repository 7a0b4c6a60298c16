"""What an agent declared, as data: written once per version, its digest is the agent's fingerprint."""

from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from clew.core.limits import Limits
from clew.core.values import Digest, Value, digest

MOST_MONEY, LEAST_MONEY = 12, 24  # digits before and behind the point: what is beyond is no price

EffectKind = Literal["once", "idempotent", "read"]
OnDoubt = Literal["ask", "report", "retry"]
OnExpire = Literal["reject", "approve", "cancel", "escalate"]


class ToolSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool as the model and the rules see it."""

    name: str
    description: str = ""
    schema: dict[str, Any] = {}
    effect: EffectKind = "once"
    needs_approval: bool = False
    verifies: bool = False
    on_doubt: OnDoubt = "ask"
    expires: float | None = None
    on_expire: OnExpire = "reject"
    timeout: float | None = None
    retries: int = 0
    steps_only: bool = False
    sequential: bool = False
    client: bool = False

    @property
    def digest(self) -> Digest:
        return digest(self.schema)


class AgentSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An agent as the core sees it. `instructions` is empty if a function makes them for each request."""

    name: str
    instructions: str = ""
    dynamic_instructions: bool = False
    model: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    output_schema: dict[str, Any] | None = None
    output_retries: int = 2
    max_continuations: int = 2
    on_tool_error: str = "tell"
    settings: dict[str, Value] = {}
    limits: Limits = Limits()
    policy: tuple[str, ...] = ()
    middleware: tuple[str, ...] = ()
    context: str = ""
    skills: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> Digest:
        return digest(self)

    def tool(self, name: str) -> ToolSpec | None:
        for tool in self.tools:
            if tool.name == name:
                return tool
        return None


class ModelSettings(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a model is asked; what is not given is the provider's default. `extra` goes to it as it is."""

    temperature: float | None = None
    max_tokens: int | None = None
    thinking: Literal["low", "medium", "high"] | int | None = None
    tool_choice: str | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    extra: dict[str, Any] | None = None

    def given(self) -> dict[str, Value]:
        """Only what was said, for the journal and for merging: agent < start < request."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}


def changes(old: AgentSpec, new: AgentSpec) -> tuple[str, ...]:
    """Names of what differs between two versions of an agent, tools by name."""
    fields = [
        name for name in AgentSpec.__struct_fields__ if name != "tools" and getattr(old, name) != getattr(new, name)
    ]
    before = {tool.name: tool for tool in old.tools}
    after = {tool.name: tool for tool in new.tools}
    tools = [f"tool:{name}" for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    return (*fields, *tools)


def money(value: object) -> Decimal | None:
    """A price as a finite decimal, or None: a provider that reports NaN, or no number, has reported nothing."""
    if value is None:
        return None
    try:
        amount = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and amount.adjusted() <= MOST_MONEY and _digits_behind(amount) else None


def _digits_behind(amount: Decimal) -> bool:
    exponent = amount.as_tuple().exponent
    return isinstance(exponent, int) and -exponent <= LEAST_MONEY
