"""Item 9: what an agent wants done after a tool has failed, `on_tool_error`, with counts that the fold restores."""

import asyncio
from typing import Any

import pytest

from clew import RunContext, ToolError, tool
from clew.core import entries as e
from clew.core.outcomes import Failed
from clew.errors import UsageError
from clew.policy import deny
from clew.testing import ScriptedModel, call, crash_points
from clew.tools import Tell
from tests.runtime.test_policy import _stores
from tests.runtime.world import Stop, World, agent, check_run, of, results


@tool(effect="read")
def flaky(fail: bool = True) -> str:
    if fail:
        raise ToolError("the line is dead")
    return "fine"


@tool(effect="read")
def other(fail: bool = True) -> str:
    return flaky(fail=fail)


BAD, GOOD = call("flaky"), call("flaky", {"fail": False})


async def ran(world: World, script: list[Any], on_tool_error: Any, **given: Any) -> tuple[Any, ScriptedModel, Any]:
    model = ScriptedModel(script)
    rt = await world.open()
    run = await rt.start(agent(model, flaky, other, on_tool_error=on_tool_error, **given), "Go")
    result = await run.result()
    await check_run(run)
    return result, model, run


@pytest.mark.proves("T8")
async def test_by_default_the_model_is_told(world: World) -> None:
    result, model, _ = await ran(world, [[BAD], [BAD], "Fine."], "tell")
    assert (result.output, model.count) == ("Fine.", 3)
    assert results(result.messages)["2.tool.1"].content == "the line is dead"


@pytest.mark.proves("T8", "J8")
async def test_stop_ends_the_run_with_what_the_tool_said_and_its_siblings_are_answered(world: World) -> None:
    result, model, run = await ran(world, [[GOOD, BAD], "never"], "stop")
    assert isinstance(result.outcome, Failed)
    assert (result.outcome.class_, model.count) == ("tool_failed", 1)
    assert "the line is dead" in result.detail
    assert results(result.messages)["1.tool.1"].content in ("fine", "not run: the run is ending")
    assert of(await run.entries(), e.ToolFailed)[0].class_ == "tool_error"


@pytest.mark.proves("T8")
async def test_so_many_failures_of_one_tool_in_a_row_end_the_run(world: World) -> None:
    script = [[BAD], [GOOD], [BAD], [call("other")], [BAD], "never"]
    result, model, _ = await ran(world, script, 2)
    assert (result.outcome.class_, model.count) == ("tool_failed", 5)  # a success between, and another tool
    result, model, _ = await ran(world, [[BAD], [GOOD], [BAD], [GOOD], "Fine."], 2)
    assert result.output == "Fine."


@pytest.mark.proves("T8", "L2")
async def test_the_counts_survive_a_crash_and_are_those_of_the_run(world: World) -> None:
    held = Stop()

    @tool(effect="read")
    async def wait() -> str:
        if held.passed == 0:
            await held.arrive()
        return "waited"

    model = ScriptedModel([[BAD], [BAD], [call("wait")], [BAD], "never"])
    who = agent(model, flaky, wait, on_tool_error=3)
    rt = await world.open(who)
    await rt.start(who, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    second = await world.open(who)
    result = await (await second.get("r")).result()
    assert (result.outcome.class_, model.count) == ("tool_failed", 4)  # type: ignore[union-attr]


@pytest.mark.proves("T8")
@pytest.mark.parametrize("mode", ["stop", 2, lambda ctx, one, error: "stop"], ids=["stop", "two", "function"])
async def test_it_is_the_same_after_a_crash_at_every_point(kind: str, tmp_path: Any, mode: Any) -> None:
    who = agent([[BAD, GOOD], [BAD], [BAD], "never"], flaky, on_tool_error=mode)
    report = await crash_points(who, "Go", **_stores(kind, tmp_path))
    assert not report.repeated
    assert not report.wrong


# --- a function -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T8")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_function_is_given_the_run_the_call_and_the_error(world: World, is_async: bool) -> None:
    asked: list[Any] = []

    def plain(ctx: RunContext[Any], one: Any, error: Exception) -> Any:
        asked.append((ctx.turn, one.tool, one.args, type(error), str(error)))
        return Tell("Try the other line.")

    async def waits(ctx: RunContext[Any], one: Any, error: Exception) -> Any:
        await asyncio.sleep(0)
        return plain(ctx, one, error)

    result, _, run = await ran(world, [[BAD], "Fine."], waits if is_async else plain)
    assert asked == [(1, "flaky", {}, ToolError, "the line is dead")]
    found = results(result.messages)["1.tool.1"]
    assert (found.content, found.is_error, result.output) == ("Try the other line.", True, "Fine.")
    assert of(await run.entries(), e.ToolFailed)[0].message == "Try the other line."


@pytest.mark.proves("T8")
@pytest.mark.parametrize(
    ("said", "asked"),
    [("tell", 4), (None, 4), ("stop", 1), (1, 1), (2, 2), (Tell("again"), 4)],
    ids=str,
)
async def test_it_says_any_of_the_other_forms(world: World, said: Any, asked: int) -> None:
    _, model, _ = await ran(world, [[BAD], [BAD], [BAD], "Fine."], lambda ctx, one, error: said)
    assert model.count == asked


def _raise(*_: object) -> Any:
    raise RuntimeError("at my wits' end")


def _exit(*_: object) -> Any:
    raise SystemExit("at my wits' end")


@pytest.mark.proves("T8")
@pytest.mark.parametrize(
    ("recovery", "why"),
    [
        (_raise, "at my wits' end"),
        (_exit, "at my wits' end"),
        (lambda: "tell", "TypeError"),
        (lambda *_: True, "returned a bool"),
        (lambda *_: "shout", "returned a str"),
        (lambda *_: Tell(object()), "returned a Tell"),  # type: ignore[arg-type]
    ],
    ids=["raises", "exits", "arguments", "bool", "text", "tell"],
)
async def test_one_that_fails_stops_the_run_and_says_so(world: World, recovery: Any, why: str) -> None:
    result, model, _ = await ran(world, [[BAD], "never"], recovery)
    assert (result.outcome.class_, model.count) == ("tool_failed", 1)
    assert "the line is dead" in result.detail
    assert why in result.detail


@pytest.mark.proves("C1")
async def test_one_that_hangs_does_not_keep_a_run_from_being_cancelled(world: World) -> None:
    began = asyncio.Event()

    async def hangs(*_: object) -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    rt = await world.open()
    run = await rt.start(agent([[BAD], "never"], flaky, on_tool_error=hangs), "Go")
    await began.wait()
    await run.cancel()
    assert (await run.result()).reason == "cancelled"
    await check_run(run)


@pytest.mark.proves("T8")
async def test_a_function_may_have_any_name(world: World) -> None:
    def stop(*_: object) -> str:
        return "tell"

    stop.__qualname__ = "stop"
    result, _, _ = await ran(world, [[BAD], "Fine."], stop)
    assert result.output == "Fine."


# --- what is no failure of a tool -------------------------------------------------------------------------------------


@pytest.mark.proves("T8", "T10")
async def test_a_verdict_is_no_failure_of_the_tool(world: World) -> None:
    result, model, _ = await ran(world, [[GOOD], "Fine."], "stop", policy=[deny("flaky")])
    assert (result.output, model.count) == ("Fine.", 2)


@pytest.mark.proves("T7", "T8")
async def test_an_attempt_that_is_tried_again_is_no_failure_yet(world: World) -> None:
    tried: list[int] = []

    @tool(effect="idempotent", retries=1)
    def second_time() -> str:
        tried.append(1)
        if len(tried) == 1:
            raise RuntimeError("not yet")
        return "now"

    rt = await world.open()
    run = await rt.start(agent([[call("second_time")], "Fine."], second_time, on_tool_error="stop"), "Go")
    while not (await run.info()).finished_at:
        await world.clock.advance(1)
        await asyncio.sleep(0.01)
    assert (await run.result()).output == "Fine."


@pytest.mark.proves("L8", "T8")
@pytest.mark.parametrize(
    "asked", [call("flaky", "{"), call("flaky", {"fial": 1}), call("nothing")], ids=["json", "name", "tool"]
)
async def test_what_the_model_got_wrong_is_no_failure_of_the_tool(world: World, asked: Any) -> None:
    result, model, _ = await ran(world, [[asked], [asked], "Fine."], 1)
    assert (result.output, model.count) == ("Fine.", 3)


@pytest.mark.parametrize("mode", ["shout", -1, 0, 1.5, None, True])
def test_another_mode_is_refused_where_the_agent_is_defined(mode: Any) -> None:
    with pytest.raises(UsageError, match="on_tool_error"):
        agent(["Hi."], flaky, on_tool_error=mode)
