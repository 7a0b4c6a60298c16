"""Item 6, L1: middleware that raises, hangs, or returns what it must not: the first error wins, and nothing is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from clew import Middleware, ModelReply, Result, ToolCall, ToolOutput, tool
from clew.core import entries as e
from clew.core.outcomes import Failed
from clew.messages import Usage
from clew.testing import call
from tests.runtime.test_middleware import COUNT, HOOKS, Ctx, Listing, pay
from tests.runtime.world import World, agent, check_run, of, results, seen


def failing(hook: str, failure: Callable[[], Any]) -> Middleware:
    async def fail(self: Any, *_: object) -> Any:
        return failure()

    made: Middleware = type("Bad", (Middleware,), {hook: fail})()
    return made


def _raise() -> Any:
    raise RuntimeError("no such luck")


def _exit() -> Any:
    raise SystemExit("no such luck")


@pytest.mark.proves("J8")
@pytest.mark.parametrize("failure", [_raise, _exit, lambda: 7], ids=["raises", "exits", "wrong type"])
@pytest.mark.parametrize("hook", ["on_input", "before_model", "after_model", "on_turn_end"])
async def test_an_error_of_middleware_ends_the_run_and_says_whose(world: World, hook: str, failure: Any) -> None:
    after: list[str] = []
    reply = ModelReply(parts=(call("pay", id="x"),), usage=Usage(input=5), finish="tool_calls")
    rt = await world.open()
    who = agent([reply, "Done."], pay, middleware=[failing(hook, failure), Listing("b", after)])
    run = await rt.start(who, "Go")
    result = await run.result()
    if hook == "on_turn_end" and failure not in (_raise, _exit):
        assert result.ok  # nothing that it returns is asked for
        return
    assert result.reason == "error"
    assert isinstance(result.outcome, Failed)
    assert result.outcome.class_ == "middleware"
    assert f"Bad.{hook}" in result.detail
    assert ("no such luck" in result.detail) == (failure in (_raise, _exit))
    assert f"b {hook}" not in [line.rsplit(" ", 1)[0] if line.count(" ") > 1 else line for line in after]
    entries = await check_run(run)
    [failed] = of(entries, e.ModelFailed)
    assert failed.class_ == "middleware"
    assert (failed.usage is not None) == (hook == "after_model")  # what was paid for counts
    assert len(of(entries, e.ModelReplied)) == (hook == "on_turn_end")


@pytest.mark.proves("T10")
@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (_raise, "no such luck"),
        (_exit, "no such luck"),
        (lambda: "pay", "return a ToolCall or ToolOutput"),
        (lambda: ToolCall("1.tool.1", tool="shell"), "only the arguments"),
        (lambda: ToolCall("1.tool.1", tool="pay", args_text="{"), "cannot be read"),
        (lambda: ToolOutput(object()), "cannot be stored"),
    ],
    ids=["raises", "exits", "wrong type", "another tool", "no json", "unstorable"],
)
async def test_an_error_before_a_tool_denies_the_call(world: World, failure: Any, why: str) -> None:
    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay, middleware=[failing("before_tool", failure)]), "Go")
    result = await run.result()
    found = results(result.messages)["1.tool.1"]
    assert (found.is_error, result.text) == (True, "Done.")
    assert why in found.content
    entries = await check_run(run)
    assert of(entries, e.CallJudged)[0].verdict == "deny"
    assert not of(entries, e.ToolStarted)


@pytest.mark.proves("L1")
@pytest.mark.parametrize("failure", [_raise, _exit, lambda: "x"], ids=["raises", "exits", "wrong type"])
async def test_an_error_behind_a_tool_lets_nothing_of_its_result_through(world: World, failure: Any) -> None:
    @tool(effect="once")
    def leak() -> str:
        return "the password is swordfish"

    rt = await world.open()
    run = await rt.start(agent([[call("leak")], "Done."], leak, middleware=[failing("after_tool", failure)]), "Go")
    result = await run.result()
    found = results(result.messages)["1.tool.1"]
    assert found.is_error
    assert "the tool ran, but middleware failed" in found.content
    assert "swordfish" not in str(await run.entries())
    [failed] = of(await check_run(run), e.ToolFailed)
    assert (failed.class_, failed.source) == ("middleware", "middleware")


@pytest.mark.proves("C1")
@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook != "on_finish"])
async def test_middleware_that_hangs_does_not_keep_a_run_from_being_cancelled(world: World, hook: str) -> None:
    began = asyncio.Event()

    async def hang(self: Any, *_: object) -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    made: Middleware = type("Hanging", (Middleware,), {hook: hang})()
    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay, middleware=[made]), "Go")
    await began.wait()
    await run.cancel()
    assert (await run.result()).reason == "cancelled"
    await check_run(run)


@pytest.mark.proves("J8")
async def test_middleware_that_hangs_behind_the_end_keeps_nobody_waiting(world: World) -> None:
    began = asyncio.Event()

    class Hanging(Middleware):
        async def on_finish(self, ctx: Ctx, result: Result[Any]) -> None:
            began.set()
            await asyncio.get_running_loop().create_future()

    rt = await world.open()
    run = await rt.start(agent(["Done."], middleware=[Hanging()]), "Go")
    assert (await run.result()).output == "Done."
    await began.wait()


@pytest.mark.proves("T9")
@pytest.mark.parametrize("verb", ["state", "note", "end"])
async def test_on_attach_may_change_nothing(world: World, verb: str) -> None:
    class Changing(Middleware):
        async def on_attach(self, ctx: Ctx) -> None:
            match verb:
                case "state":
                    ctx.state.update(COUNT, 1)
                case "note":
                    await ctx.note("x", 1)
                case _:
                    ctx.end()

    rt = await world.open()
    run = await rt.start(agent(["Done."], middleware=[Changing()]), "Go")
    result = await run.result()
    assert result.reason == "error"
    assert "on_attach" in result.detail
    assert "must change nothing" in result.detail


@pytest.mark.proves("C1")
async def test_a_cancel_while_a_reply_is_looked_at_keeps_what_was_streamed(world: World) -> None:
    class Hanging(Middleware):
        async def after_model(self, ctx: Ctx, reply: ModelReply) -> None:
            await asyncio.get_running_loop().create_future()

    rt = await world.open()
    run = await rt.start(agent(["A long answer."], middleware=[Hanging()]), "Go")
    async for item in run.watch():
        if getattr(item, "text", "").endswith("answer."):
            break
    await run.cancel()
    result = await run.result()
    assert (result.reason, result.messages[-1].text) == ("cancelled", "A long answer.")
    assert of(await check_run(run), e.ModelReplied)[0].finish == "cut_off"
    await seen(run, "run_finished")
