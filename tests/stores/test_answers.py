"""What is wrong with a decision is said before it is stored."""

from typing import Any

import pytest

from clew.core.limits import SCHEMA
from clew.core.tickets import Edit, Ticket
from clew.stores.answers import misfit

TICKET = Ticket(id="limit", run_id="r", kind="limit", schema=SCHEMA)


@pytest.mark.proves("W2", "W3")
@pytest.mark.parametrize("args", [{"text": "("}, {"turns": 10**400}, {"turns": -1}, {"cost": "x"}, {}], ids=repr)
def test_an_edit_of_limits_that_no_run_could_go_on_with_is_refused(args: dict[str, Any]) -> None:
    assert misfit(TICKET, Edit(args)) is not None


def test_any_other_is_taken() -> None:
    assert misfit(TICKET, Edit({"turns": 9, "cost": "0.5", "text": "DONE", "tokens": None})) is None
