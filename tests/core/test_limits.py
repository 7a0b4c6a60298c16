"""How much a run may do."""

import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from clew.core import entries as e
from clew.core.limits import Limits, exceeded
from clew.core.outcomes import Stopped
from clew.errors import UsageError
from tests.core.build import attached, call, folded, reply, returned, running, started


@pytest.mark.parametrize(
    "name", ["turns", "tool_calls", "tokens", "cost", "seconds", "model_errors", "repeats", "depth"]
)
@pytest.mark.parametrize("amount", [-1, math.nan, math.inf])
def test_a_limit_is_zero_or_more(name: str, amount: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}="):
        Limits(**{name: amount})
    assert getattr(Limits(**{name: 0}), name) == 0


def test_a_limit_is_asked_about_or_stops() -> None:
    with pytest.raises(UsageError, match="on_limit='wait'"):
        Limits(on_limit="wait")  # type: ignore[arg-type]


def test_money_is_a_decimal_however_it_is_given() -> None:
    assert Limits(cost=0.1).cost == Decimal("0.1")
    assert Limits(cost=2).cost == Limits(cost=Decimal(2)).cost == Decimal(2)
    stored = msgspec.json.encode(Limits(cost=0.1))
    assert stored == b'{"cost":"0.1"}'
    assert msgspec.json.decode(stored, type=Limits) == Limits(cost=Decimal("0.1"))


ONE_TURN = (reply(call("1.tool.1"), cost=Decimal("0.5")), returned("1.tool.1"))
FAILED = e.ModelFailed(class_="timeout", retry_at=9)


@pytest.mark.proves("L2", "L9")
@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        (Limits(turns=1), Stopped("turns", "1 of 1")),
        (Limits(tool_calls=1), Stopped("tool_calls", "1 of 1")),
        (Limits(tokens=15), Stopped("tokens", "15 of 15")),
        (Limits(cost=Decimal("0.5")), Stopped("cost", "0.5 of 0.5")),
        (Limits(cost=0.3), Stopped("cost", "0.5 of 0.3")),
        (Limits(seconds=0.003), Stopped("seconds", "0.003 of 0.003")),
        (Limits(model_errors=1), Stopped("model_errors", "1 of 1")),
        (Limits(turns=2, tool_calls=2, tokens=16, cost=Decimal("0.51"), seconds=0.004, model_errors=2), None),
        (Limits(turns=None, model_errors=None), None),
    ],
    ids=repr,
)
def test_each_limit(limits: Limits, reached: Stopped | None) -> None:
    assert exceeded(running(*ONE_TURN, FAILED, limits=limits)) == reached


def test_what_costs_nothing_known_is_within_any_cost() -> None:
    assert exceeded(folded(started(limits=Limits(cost=1.5)), attached())) is None
    assert exceeded(folded(started(limits=Limits(cost=0)), attached())) == Stopped("cost", "0 of 0")
