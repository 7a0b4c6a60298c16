"""L1: where verdicts stand beside the commits, and that a plain allow costs nothing."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from clew import RunContext, ToolCall, tool
from clew.core import entries as e
from clew.policy import Rule, Verdict, allow, answer, deny, gt
from clew.testing import call
from tests.runtime.test_policy import RAN, judged, look, nothing_ran, pay
from tests.runtime.world import Stop, World, agent, check_run, gate_of, has, kinds, of, results, seen, until

__all__ = ["nothing_ran"]  # a fixture


@pytest.mark.proves("L1")
async def test_reply_immediate_verdicts_and_intents_share_one_commit(world: World) -> None:
    def quick(ctx: RunContext[Any], one: ToolCall) -> Verdict | None:
        return Verdict("allow", "small") if one.args.get("amount") == 2 else None

    policy = [deny("pay", amount=gt(100)), allow("pay", amount=5), answer("look", "canned", at="sea"), quick]
    calls = [call("pay", {"amount": n}) for n in (500, 5, 2)] + [call("look", {"at": "sea"})]
    _, entries = await judged(world, policy, *calls)
    [first, _] = of(entries, e.ModelReplied)
    batch = [entry for entry in entries if entry.batch == first.batch]
    assert kinds(batch)[0] == "model_replied"
    assert Counter(kinds(batch)) == {
        "model_replied": 1,
        "call_judged": 4,
        "tool_failed": 1,
        "tool_returned": 1,
        "tool_started": 2,
    }


@pytest.mark.proves("L1", "T10")
async def test_a_slow_function_has_the_reply_committed_first_and_alone_and_is_called_once(world: World) -> None:
    asked: list[str] = []
    go = threading.Event()

    def slow(ctx: RunContext[Any], one: ToolCall) -> Verdict | None:
        asked.append(one.id)
        go.wait(10)
        return deny("pay", "after much thought") if one.tool == "pay" else None

    rt = await world.open()
    who = agent([[call("pay"), call("look")], "Done."], pay, look, policy=[slow])
    run = await rt.start(who, "Go")
    found = await seen(run, "model_replied")  # while the function still thinks
    assert not go.is_set()
    go.set()
    result = await run.result()
    assert sorted(asked) == ["1.tool.1", "1.tool.2"]
    entries = await check_run(run)
    assert [x.kind for x in entries if x.batch == found[-1].batch] == ["model_replied"]
    assert "after much thought" in results(result.messages)["1.tool.1"].content
    assert (RAN["pay"], RAN["look"]) == (0, 1)


@pytest.mark.proves("L1", "T10")
async def test_an_async_function_is_called_once_behind_the_commit_of_the_reply(world: World) -> None:
    held = Stop()

    async def waits(ctx: RunContext[Any], one: ToolCall) -> Verdict | None:
        await held.arrive()
        return None

    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay, policy=[waits]), "Go")
    await held.reached()
    assert kinds(await run.entries()) == ["run_started", "driver_attached", "model_replied"]
    held.let_go()
    await run.result()
    assert held.passed == 1
    assert kinds(await check_run(run))[3:5] == ["tool_started", "tool_returned"]


@pytest.mark.proves("L1")
async def test_where_one_verdict_is_awaited_the_reply_is_alone_and_its_other_calls_go_on_at_once(world: World) -> None:
    held = Stop()

    async def waits(ctx: RunContext[Any], args: Any) -> bool:
        await held.arrive()
        return False

    @tool(effect="once", needs_approval=waits)
    def charge() -> str:
        return "charged"

    rt = await world.open()
    calls = [call("pay"), call("charge"), call("look", {"at": "sea"}), call("look", "{")]
    who = agent([calls, "Done."], pay, charge, look, policy=[deny("look", at="sea")])
    run = await rt.start(who, "Go")
    await held.reached()
    await seen(run, "tool_failed", "tool_failed", "tool_returned")
    assert RAN["pay"] == 1
    held.let_go()
    await run.result()
    entries = await check_run(run)
    [first, _] = of(entries, e.ModelReplied)
    assert [entry.kind for entry in entries if entry.batch == first.batch] == ["model_replied"]
    assert held.passed == 1


@pytest.mark.proves("C1", "T10")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_function_that_hangs_does_not_keep_a_run_from_being_cancelled(world: World, is_async: bool) -> None:
    go, began = threading.Event(), threading.Event()

    def hangs(ctx: RunContext[Any], one: ToolCall) -> None:
        began.set()
        go.wait(30)

    async def waits(ctx: RunContext[Any], one: ToolCall) -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay, policy=[waits if is_async else hangs]), "Go")
    await until(began.is_set)
    await run.cancel(reason="enough")
    result = await run.result()
    go.set()
    assert (result.reason, RAN["pay"]) == ("cancelled", 0)
    await check_run(run)


@pytest.mark.proves("L1")
@pytest.mark.parametrize(
    "given",
    [{}, {"policy": [allow("*")]}, {"policy": [deny("nothing")]}, {"policy": [lambda ctx, one: None]}],
    ids=["none", "allow rule", "no rule matches", "function"],
)
async def test_a_plain_allow_writes_nothing_and_costs_no_commit(world: World, given: Any) -> None:
    rt = await world.open()
    run = await rt.start(agent([[call("look"), call("pay")], [call("look")], "Done."], look, pay, **given), "Go")
    await run.result()
    entries = await check_run(run)
    told = [entry.kind for entry in entries if entry.kind != "call_judged"]
    assert Counter(told) == {
        "run_started": 1,
        "driver_attached": 1,
        "model_replied": 3,
        "tool_started": 1,
        "tool_returned": 3,
        "run_finished": 1,
    }
    named = given.get("policy", [None])[0]
    judged_ = of(entries, e.CallJudged)
    assert len(judged_) == (3 if isinstance(named, Rule) and named.kind == "allow" else 0)
    # Results that are ready together share a commit, so there is one commit or two for the first turn's.
    reply, last = [batch for batch in gate_of(rt).batches if has("model_replied")(batch)][0::2]
    assert {"model_replied", "tool_started"} <= {entry.kind for entry in reply.entries}
    assert {"model_replied", "run_finished"} == {entry.kind for entry in last.entries}
    assert len(gate_of(rt).batches) in (5, 6)
