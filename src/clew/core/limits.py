"""How much a run may do, and whether it may still do it: checked before money is spent."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, ValidationError, convert
from msgspec.structs import force_setattr, replace

from clew.core.outcomes import Stopped
from clew.core.values import MAX_SAFE_INTEGER
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
        for name in (*sorted(WHOLE), "cost", "seconds"):
            amount = getattr(self, name)
            if amount is not None:
                _check_amount(name, amount)
        if isinstance(self.cost, int | float):
            force_setattr(self, "cost", Decimal(str(self.cost)))
        _check_conditions(self)
        if self.on_limit not in ("stop", "ask"):
            raise UsageError(f"Limits(on_limit={self.on_limit!r}): use 'stop' or 'ask'")


def _check_conditions(limits: Limits) -> None:
    for name in ("tool", "text"):
        if not isinstance(getattr(limits, name), str | None):
            raise UsageError(f"Limits({name}={getattr(limits, name)!r}): text, or None for no such condition")
    try:
        re.compile(limits.text or "")
    except re.error as error:
        raise UsageError(f"Limits(text={limits.text!r}) is no regular expression: {error}") from error


def _check_amount(name: str, amount: Decimal | float) -> None:
    if name in WHOLE and type(amount) is not int:
        raise UsageError(f"Limits({name}={amount!r}): a whole number, or None for no limit")
    finite = not isinstance(amount, Decimal) or amount.is_finite()
    if not (finite and 0 <= amount <= MAX_SAFE_INTEGER):
        raise UsageError(f"Limits({name}={amount}): a limit is zero to 2^53, or None for no limit")


def exceeded(state: "State", *, same_turn: bool = False) -> Stopped | None:
    """The limit that forbids another model call, if one does; in the same turn, no limit of turns."""
    limits = state.limits
    spent: tuple[tuple[str, Decimal | float, Decimal | float | None], ...] = (
        ("turns", state.turn - state.first_turn, None if same_turn else limits.turns),
        ("tool_calls", state.call_count, limits.tool_calls),
        ("tokens", state.usage.input + state.usage.output, limits.tokens),
        ("cost", state.cost or Decimal(0), limits.cost),
        ("seconds", state.driven / 1_000_000, limits.seconds),
        ("model_errors", state.model.errors, limits.model_errors),
    )
    for code, used, allowed in spent:
        if allowed is not None and used >= allowed:
            return Stopped(code=code, detail=f"{used} of {allowed}")
    if limits.repeats is not None and state.course.recent:
        same = state.course.recent.count(state.course.recent[-1])
        if same >= max(limits.repeats, 1):
            return Stopped(code="repeats", detail=f"the same reply {same} times")
    return state.course.stop


def raised(state: "State", code: str) -> Limits:
    """The limits with the amount that the run began with once more; a condition that was met counts no longer."""
    assert state.started is not None
    limits, began = state.limits, state.started.limits
    if code in ("tool", "text"):
        return replace(limits, **{code: None})
    return replace(limits, **{code: getattr(limits, code) + (getattr(began, code) or 1)})


def edited(limits: Limits, args: Mapping[str, Any]) -> Limits:
    """The limits with some of them changed. Raises UsageError for what is no limit."""
    unknown = set(args) - set(Limits.__struct_fields__)
    if unknown:
        raise UsageError(f"there is no limit {sorted(unknown)}: they are {', '.join(Limits.__struct_fields__)}")
    try:
        given = convert(dict(args), Limits, strict=False)
    except ValidationError as error:
        raise UsageError(f"these are no limits: {error}") from error
    return replace(limits, **{name: getattr(given, name) for name in args})


_NUMBER = {"type": ["number", "null"], "minimum": 0}
_WHOLE = {"type": ["integer", "null"], "minimum": 0}
_TEXT = {"type": ["string", "null"]}
# What an Edit of a limit may hold.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        **dict.fromkeys(sorted(WHOLE), _WHOLE),
        "cost": {"type": ["number", "string", "null"]},
        "seconds": _NUMBER,
        "tool": _TEXT,
        "text": _TEXT,
        "on_limit": {"enum": ["stop", "ask"]},
    },
}
