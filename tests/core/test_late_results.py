"""What a worker that lost its run says late: of which attempt it speaks, and whether the call waits for it."""

import pytest

from clew.core import entries as e
from clew.core.calls import RETRY, Call, is_outdated
from clew.core.effects import Close, Verify
from clew.core.messages import ToolCall
from clew.core.rules import next_effects
from clew.core.spec import AgentSpec, ToolSpec
from clew.core.state import Known, State
from tests.core.build import FP, attached, call, folded, intent, only, recorded, reply, returned, started, then

SPEC = AgentSpec(name="clerk", tools=(ToolSpec(name="pay", effect="once", verifies=True, retries=2),))
KNOWN = Known(specs={FP: SPEC})


def late(attempt: int, *, value: str | None = None, error: str | None = None) -> e.LateResultReceived:
    step = "1.tool.1"
    return e.LateResultReceived(step=step, call=step, from_epoch=1, attempt=attempt, value=value, error=error)


def taken_over() -> State:
    """The first attempt was found not to have happened; its worker was frozen, and may say something yet."""
    asked = (started(), attached(), reply(call("1.tool.1", "pay")), intent("1.tool.1"), attached(2))
    again = e.DoubtResolved(step="1.tool.1", call="1.tool.1", how="verify", finding="not_done", rule=RETRY)
    return folded(*asked, again, known=KNOWN)


def closing(state: State) -> e.Entry:
    """What is written once nobody verifies it any more."""
    effect = only(next_effects(state))
    assert isinstance(effect, Close)
    return effect.entry


def doubtful_again(*entries: e.Entry) -> State:
    return then(taken_over(), *entries, intent("1.tool.1", attempt=2), attached(3))


@pytest.mark.proves("T11")
def test_that_an_older_attempt_failed_says_nothing_of_this_one() -> None:
    error = late(1, error="tool_error: closed")
    for state in (doubtful_again(error), then(doubtful_again(), error)):
        assert next_effects(state) == (Verify("1.tool.1", "1.tool.1"),)


@pytest.mark.proves("T11")
def test_that_this_one_failed_closes_its_doubt() -> None:
    state = then(doubtful_again(), late(2, error="tool_error: closed"))
    found = closing(state)
    assert isinstance(found, e.DoubtResolved)
    assert (found.how, found.finding) == ("late", "not_done")
    failure = recorded(then(state, found))
    assert isinstance(failure, e.ToolFailed)
    assert (failure.class_, failure.source, failure.message) == ("late", "late", "tool_error: closed")


@pytest.mark.proves("T11")
def test_that_an_older_attempt_happened_is_the_answer() -> None:
    state = then(doubtful_again(), late(1, value="paid"))
    found = closing(state)
    assert isinstance(found, e.DoubtResolved)
    assert (found.how, found.finding) == ("late", "done")


@pytest.mark.proves("T2", "T11")
def test_what_turns_out_to_have_happened_does_not_happen_again() -> None:
    state = then(taken_over(), late(1, value="paid"))
    assert recorded(state) == returned("1.tool.1", "paid", source="late")


@pytest.mark.proves("T11")
def test_that_an_older_try_of_a_step_failed_says_nothing_of_the_one_in_hand() -> None:
    mail = "1.tool.1:mail"
    begun = e.StepStarted(step=mail, call="1.tool.1", name="mail", epoch=2)
    found = Call(request=ToolCall("1.tool.1"), fingerprint=FP, steps=(begun,))

    def failed(epoch: int, step: str = mail) -> e.LateResultReceived:
        return e.LateResultReceived(step=step, call="1.tool.1", from_epoch=epoch, error="OSError: closed")

    assert is_outdated(found, failed(1))
    assert not is_outdated(found, failed(2))
    assert not is_outdated(found, failed(1, "1.tool.1:other"))
