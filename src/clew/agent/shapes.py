"""The shapes that arguments of the façade may take, and the checks they share. No behaviour of agents lives here."""

import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from typing_extensions import TypeVar

from clew.core.messages import Message, Part
from clew.core.values import check_text
from clew.errors import UsageError
from clew.ports import Model

_V = TypeVar("_V")

JSON: TypeAlias = Any
Args: TypeAlias = Mapping[str, Any]
Duration: TypeAlias = float | timedelta
Maybe: TypeAlias = _V | Awaitable[_V]
ModelLike: TypeAlias = str | Model | Sequence[str | Model]
Input: TypeAlias = str | Sequence[str | Part | Message]
When: TypeAlias = Literal["asap", "idle"]
Until: TypeAlias = Literal["settled", "done"]
OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "steer"]
OnChange: TypeAlias = Literal["warn", "fail"] | Callable[[Any], Literal["warn", "fail"]]
OnToolError: TypeAlias = Literal["tell", "stop"] | int | Callable[..., Any]

_AGENT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
LONGEST = 36_525 * 86_400  # seconds; a store counts microseconds in 64 bits


def agent_name(name: object) -> str:
    """The name itself. Raises UsageError for one that rows, command lines and addresses could not carry."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"an agent needs a name, not {name!r}: say Agent('meteo', model=…)")
    if not _AGENT_NAME.fullmatch(name):
        raise UsageError(f"agent name {name!r}: use 1 to 128 of A-Z a-z 0-9 _ . -")
    return name


def tool_name(name: object) -> str:
    """The name itself. Raises UsageError for one that no provider takes."""
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise UsageError(f"tool name {name!r}: use 1 to 64 of A-Z a-z 0-9 _ -, or give another by name=")
    return name


def provider_and_name(model: str) -> tuple[str, str]:
    """The two halves of "provider:name". Raises UsageError for text that has not both."""
    provider, _, name = model.partition(":")
    if not provider.strip() or not name.strip():
        raise UsageError(f"model {model!r} names no provider: say 'provider:name', as in 'openai:gpt-5-mini'")
    return provider, name


def model_list(model: object) -> tuple[str | Model, ...]:
    """The models of an agent in the order they are tried, each checked for its form."""
    if isinstance(model, str | Model):
        models: tuple[object, ...] = (model,)
    elif isinstance(model, Sequence) and model:
        models = tuple(model)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    else:
        raise UsageError(f"model={model!r}: say 'provider:name', give a Model, or a list of these to fall over")
    checked: list[str | Model] = []
    for one in models:
        if isinstance(one, str):
            provider_and_name(one)
        elif not isinstance(one, Model):
            raise UsageError(f"{one!r} is no model: say 'provider:name' or give an object with name and stream")
        checked.append(one)
    return tuple(checked)


def in_seconds(duration: object, what: str) -> float | None:
    """A positive, finite duration in seconds. `what` names it in the UsageError for anything else."""
    if duration is None:
        return None
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"{what}={duration!r}: give seconds or a timedelta")
    if not math.isfinite(seconds) or seconds <= 0:
        raise UsageError(f"{what}={duration!r}: it must be more than zero and finite, or None for none")
    if seconds > LONGEST:
        raise UsageError(f"{what}={duration!r}: a hundred years is the most, or None for none")
    return float(seconds)


def whole(number: object, what: str) -> int:
    """A count of zero or more. `what` names it in the UsageError for anything else."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise UsageError(f"{what}={number!r}: give a whole number, zero or more")
    return number


def valid_text(text: str, what: str) -> None:
    """Raises UsageError, naming it by `what`, for text that no journal could hold."""
    try:
        check_text(text)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from error


def one_of(value: str, allowed: Collection[str], what: str) -> None:
    if value not in allowed:
        raise UsageError(f"{what}={value!r}: use {' or '.join(map(repr, allowed))}")


def label(thing: object) -> str:
    """The name that stands for a piece of user code in a fingerprint: the same in every process."""
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    return name.replace("<locals>.", "")
