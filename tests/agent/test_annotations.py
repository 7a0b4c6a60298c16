"""Tools of a module whose annotations are text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from clew import Agent, ToolContext, tool
from clew.errors import UsageError

if TYPE_CHECKING:
    from decimal import Decimal


class Item(BaseModel):
    sku: str


@tool
def add(ctx: ToolContext[list[str]], item: Item, n: int = 1) -> Item:
    return item


def test_hints_resolve_in_the_module() -> None:
    assert add.takes_context
    assert add.validate({"item": {"sku": "a"}}) == {"item": Item(sku="a")}
    assert add.dump(Item(sku="a")) == {"sku": "a"}


def test_hints_resolve_in_the_surrounding_function() -> None:
    class Inner(BaseModel):
        x: int

    @tool
    def use(inner: Inner) -> str:
        return ""

    @tool(effect="read")
    def look(inner: Inner) -> str:
        return ""

    assert use.validate({"inner": {"x": 1}}) == look.validate({"inner": {"x": 1}})
    assert Agent("a", model="m:x", tools=[use, look]).spec.tool("use")


def test_a_type_that_only_the_checker_imports() -> None:
    with pytest.raises(UsageError, match=r"tool 'pay': .*'Decimal'.*import the type at run time"):

        @tool
        def pay(amount: Decimal) -> str:
            return ""
