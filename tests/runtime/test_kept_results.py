"""What a driver keeps of its facts when it has to read its own run anew."""

import pytest

from clew.core.entries import Entry
from clew.runtime.flight import Done
from clew.runtime.recovery import still_news
from tests.core.build import attached, call, failed, intent, raised, reply, resolved, returned, running

ONE = "1.tool.1"
AGAIN = resolved(ONE, rule="retry")


@pytest.mark.proves("J7", "T11")
@pytest.mark.parametrize(
    ("before", "attempt"),
    [((), 1), ((attached(2), AGAIN), 2), ((raised(ONE), AGAIN), 2), ((raised(ONE), AGAIN, attached(2)), 2)],
    ids=["first", "after a crash", "after a raise", "after both"],
)
def test_a_result_in_hand_is_kept_whichever_attempt_it_is_of(before: tuple[Entry, ...], attempt: int) -> None:
    state = running(reply(call(ONE, "order")), intent(ONE), *before)
    for entry in (returned(ONE, attempt=attempt), failed(ONE, attempt=attempt)):
        assert still_news(state, Done((entry,))).entries == (entry,)
    assert still_news(state, Done((returned(ONE, attempt=attempt + 1),))).entries == ()
