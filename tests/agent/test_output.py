"""Final answers: text taken for a value, told what is wrong, and through the journal and back."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from clew import Agent
from clew.errors import UsageError


class Invoice(BaseModel):
    number: str
    total: float = Field(gt=0)


class Refusal(BaseModel):
    why: str


@dataclass
class Point:
    x: float
    y: float


def agent(output_type: Any) -> Agent[object, Any]:
    return Agent("a", model="m:x", output_type=output_type)


@pytest.mark.parametrize(
    ("output_type", "text", "value"),
    [
        (str, ' {"x": 1} ', ' {"x": 1} '),
        (Invoice, '{"number": "A-1", "total": 3}', Invoice(number="A-1", total=3)),
        (Invoice, '```json\n{"number": "A-1",\n "total": 3}\n```', Invoice(number="A-1", total=3)),
        (Invoice, '\n```\n{"number": "A-1", "total": 3}```  ', Invoice(number="A-1", total=3)),
        (Invoice | Refusal, '{"why": "no"}', Refusal(why="no")),
        (list[Invoice], '[{"number": "A", "total": 1}]', [Invoice(number="A", total=1)]),
        (Literal["spam", "ham"], '"spam"', "spam"),
        (Literal["spam", "ham"], " spam\n", "spam"),
        (int, "42", 42),
        (bool, "true", True),
        (int | None, "null", None),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Invoice | str, "I would rather not.", "I would rather not."),
    ],
)
def test_what_a_reply_says(output_type: Any, text: str, value: object) -> None:
    made = agent(output_type)
    assert made.parse_output(text) == value
    assert made.load_output(made.dump_output(value)) == value


@pytest.mark.parametrize(
    ("output_type", "text", "said"),
    [
        (Invoice, "Sorry.", "Invalid JSON"),
        (Invoice, "", "Invalid JSON"),
        (Invoice, '{"number": "A"}', "total: is required"),
        (Invoice, '{"number": "A", "total": -1}', "total: Input should be greater than 0"),
        (list[Invoice], '[{"number": 1, "total": 1}]', "0.number: Input should be a valid string"),
        (Literal["spam", "ham"], "eggs", "Invalid JSON"),
        (int, "12 apples", "Invalid JSON"),
    ],
)
def test_what_is_wrong_is_told_to_the_model(output_type: Any, text: str, said: str) -> None:
    with pytest.raises(ValueError, match="The answer is not what was asked for:\n") as caught:
        agent(output_type).parse_output(text)
    assert said in str(caught.value)
    assert "http" not in str(caught.value)


def test_schemas() -> None:
    assert agent(str).output_schema is None
    assert agent(list[int]).output_schema == {"type": "array", "items": {"type": "integer"}}
    both = agent(Invoice | Refusal).output_schema
    assert both is not None
    assert both["anyOf"] == [{"$ref": "#/$defs/Invoice"}, {"$ref": "#/$defs/Refusal"}]


def test_nan_is_kept() -> None:
    dumped = agent(list[float]).dump_output([math.nan])
    assert math.isnan(dumped[0])


def test_what_cannot_be_dumped_or_loaded_is_named() -> None:
    with pytest.raises(UsageError, match="agent 'a': its output, a object, cannot be dumped"):
        agent(dict[str, Any]).dump_output(object())
    with pytest.raises(ValueError, match="a stored output of agent 'a' is none of its output_type: why: is required"):
        agent(Refusal).load_output({"reason": "x"})
