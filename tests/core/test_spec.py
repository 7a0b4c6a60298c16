"""What an agent declared: its fingerprint, and what differs between two versions."""

from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from clew import codec
from clew.core.limits import Limits
from clew.core.spec import AgentSpec, ModelSettings, ToolSpec, changes, money
from clew.core.tickets import ALLOWED, Approve, Edit, Ticket
from clew.core.values import digest_bytes
from tests.core.build import SPEC, TOOLS


@pytest.mark.proves("R2")
def test_a_fingerprint_is_that_of_the_stored_bytes() -> None:
    stored = codec.encode_spec(SPEC)
    assert SPEC.fingerprint == digest_bytes(stored)
    assert codec.decode_spec(stored) == SPEC
    assert replace(SPEC, instructions="other").fingerprint != SPEC.fingerprint


def test_tools_by_name() -> None:
    assert SPEC.tool("pay") is TOOLS[2]
    assert SPEC.tool("fly") is None
    assert TOOLS[0].digest == TOOLS[1].digest != replace(TOOLS[0], schema={"type": "object"}).digest


@pytest.mark.proves("R2")
def test_what_differs() -> None:
    assert changes(SPEC, SPEC) == ()
    other = replace(
        SPEC,
        instructions="be kind",
        limits=Limits(turns=1),
        tools=(replace(TOOLS[0], timeout=3.0), *TOOLS[2:], ToolSpec(name="new")),
    )
    assert changes(SPEC, other) == ("instructions", "limits", "tool:look", "tool:new", "tool:send")


def test_only_settings_that_were_given_are_said() -> None:
    assert ModelSettings().given() == {}
    assert ModelSettings(temperature=0.0, seed=0, stop=("x",)).given() == {
        "temperature": 0.0,
        "stop": ("x",),
        "seed": 0,
    }


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (None, None),
        (Decimal("0.10"), Decimal("0.10")),
        (0.1, Decimal("0.1")),
        ("3", Decimal(3)),
        (float("nan"), None),
        (Decimal("Infinity"), None),
        ("free", None),
    ],
    ids=repr,
)
def test_money(value: Any, amount: Decimal | None) -> None:
    assert money(value) == amount


@pytest.mark.proves("W2")
def test_which_decision_answers_which_ticket() -> None:
    assert Edit in ALLOWED["approval"]
    assert Edit not in ALLOWED["doubt"]
    assert Approve not in ALLOWED["question"]


def test_a_ticket_is_named_with_its_run() -> None:
    assert Ticket(id="1.tool.1", run_id="run_1", kind="approval").ref == "run_1/1.tool.1"


def test_an_agent_is_found_by_defaults() -> None:
    assert AgentSpec(name="a") == AgentSpec(name="a", limits=Limits())
