"""What rules look back on: failures, repeats, and who wrote which state key."""

import pytest

from clew.core import entries as e
from clew.core.course import Course, Writes, failed, replied, succeeded, wrote
from tests.core import build
from tests.core.build import call, reply, returned, running, then

ASKED = reply(call("1.tool.1"), call("1.tool.2"), call("1.tool.3", "send"))


def test_a_success_clears_the_failures_of_its_tool_alone() -> None:
    course = Course(failing={"look": 2, "send": 1})
    assert succeeded(course, "look").failing == {"send": 1}
    assert succeeded(course, "pay") is course


def test_the_failure_that_stops_the_run_is_the_one_that_is_kept() -> None:
    first = failed(Course(), "look", build.failed("1.tool.1", "a", stop=True))
    assert failed(first, "look", build.failed("1.tool.2", "b")) is first
    assert failed(Course(), "look", build.failed("1.tool.1", source="policy")) == Course()


def test_replies_are_remembered_only_where_somebody_counts_them() -> None:
    course = Course()
    assert replied(course, reply("a"), "a", None) is course
    counted = replied(replied(course, reply("a"), "a", 2), reply("a"), "a", 2)
    assert len(set(counted.recent)) == 1
    assert len(counted.recent) == 2
    assert replied(counted, reply("b"), "b", 2).recent[0] == counted.recent[0]
    assert len(replied(counted, reply("b"), "b", 2).recent) == 2


@pytest.mark.proves("T9")
def test_what_each_call_of_a_turn_gave_is_known_with_what_was_there_before() -> None:
    first = e.Op(op="set", key="cart", value=["a"])
    merged = e.Op(op="set", key="cart", value=["a", "b"], writers=("1.tool.1", "1.tool.2"), given=(["b"],))
    state = running(ASKED, returned("1.tool.1", state=(first,)), returned("1.tool.2", state=(merged,)))
    writes = state.course.writes["run", "cart"]
    assert (writes.existed, writes.before) == (False, None)
    assert writes.given == {"1.tool.1": ["a"], "1.tool.2": ["b"]}
    # In the next turn nobody has written yet.
    state = then(state, returned("1.tool.3"), reply(call("2.tool.1")))
    assert state.course.writes == {}
    state = then(state, returned("2.tool.1", state=(e.Op(op="set", key="cart", value=[]),)))
    assert state.course.writes["run", "cart"] == Writes(["a", "b"], True, {"2.tool.1": []})


@pytest.mark.proves("T9")
def test_keys_of_one_name_in_two_scopes_are_two() -> None:
    known = {"run": {"n": 1}, "thread": {"n": 2}}
    ops = (e.Op(op="set", key="n", value=3), e.Op(op="set", key="n", scope="thread", value=4))
    writes = wrote(Course(), known, "1.tool.1", ops).writes
    assert writes == {
        ("run", "n"): Writes(1, True, {"1.tool.1": 3}),
        ("thread", "n"): Writes(2, True, {"1.tool.1": 4}),
    }


@pytest.mark.proves("T9")
def test_sums_and_what_middleware_writes_need_no_order() -> None:
    add = e.Op(op="add", key="n", value=1)
    assert wrote(Course(), {"run": {}, "thread": {}}, "1.tool.1", (add,)) == Course()
    state = running(ASKED, e.StateChanged(ops=(e.Op(op="set", key="n", value=1),)))
    assert (state.run_state, state.course.writes) == ({"n": 1}, {})


def test_a_failure_may_leave_state_and_is_counted() -> None:
    add = e.Op(op="set", key="n", value=1)
    state = running(ASKED, build.failed("1.tool.1", state=(add,)), returned("1.tool.2", state=(add,)))
    assert state.run_state == {"n": 1}
    assert state.course.failing == {}
    assert set(state.course.writes["run", "n"].given) == {"1.tool.1", "1.tool.2"}
