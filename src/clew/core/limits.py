"""How much a run may do, and whether it may still do it: checked before money is spent."""

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from clew.core.outcomes import Stopped
from clew.errors import UsageError

if TYPE_CHECKING:
    from clew.core.state import State


WHOLE = frozenset({"turns", "tool_calls", "tokens", "model_errors", "repeats", "depth"})


class Limits(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run may use up. `None` is no limit. `seconds` is driven time: waits do not count."""

    turns: int | None = 50
    tool_calls: int | None = None
    tokens: int | None = None
    cost: Decimal | float | None = None
    seconds: float | None = None
    model_errors: int | None = 5
    repeats: int | None = None
    tool: str | None = None
    text: str | None = None
    depth: int | None = 5
    on_limit: Literal["stop", "ask"] = "stop"

    def __post_init__(self) -> None:
        for name in ("turns", "tool_calls", "tokens", "cost", "seconds", "model_errors", "repeats", "depth"):
            amount = getattr(self, name)
            if amount is not None and name in WHOLE and type(amount) is not int:
                raise UsageError(f"Limits({name}={amount!r}): a whole number, or None for no limit")
            if amount is not None and not (math.isfinite(amount) and amount >= 0):
                raise UsageError(f"Limits({name}={amount}): a limit is zero or more, or None for no limit")
        if isinstance(self.cost, int | float):
            force_setattr(self, "cost", Decimal(str(self.cost)))
        if self.on_limit not in ("stop", "ask"):
            raise UsageError(f"Limits(on_limit={self.on_limit!r}): use 'stop' or 'ask'")


def exceeded(state: "State") -> Stopped | None:
    """The limit that forbids another model call, if one does."""
    limits = state.limits
    spent: tuple[tuple[str, Decimal | float, Decimal | float | None], ...] = (
        ("turns", state.turn - state.first_turn, limits.turns),
        ("tool_calls", state.call_count, limits.tool_calls),
        ("tokens", state.usage.input + state.usage.output, limits.tokens),
        ("cost", state.cost or Decimal(0), limits.cost),
        ("seconds", state.driven / 1_000_000, limits.seconds),
        ("model_errors", state.model.errors, limits.model_errors),
    )
    for code, used, allowed in spent:
        if allowed is not None and used >= allowed:
            return Stopped(code=code, detail=f"{used} of {allowed}")
    return None
