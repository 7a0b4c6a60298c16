"""A batch of which nobody knows whether it was written: what it held is written whole, and nothing is paid twice."""

from typing import Any

import pytest

from clew import Middleware, StateKey, ToolContext, tool
from clew.core import entries as e
from clew.errors import OutcomeUnknown
from clew.testing import ScriptedModel, call
from clew.tools import Done
from tests.runtime.world import World, agent, check_run, gate_of, has, of

COUNT = StateKey("count", int, default=0, merge="add")


@pytest.mark.proves("T9", "J7")
@pytest.mark.parametrize("written", [False, True])
async def test_the_state_of_a_result_stays_with_it(world: World, *, written: bool) -> None:
    ran: list[str] = []

    @tool
    async def count(ctx: ToolContext) -> str:
        ran.append("count")
        ctx.state.update(COUNT, 1)
        return "counted"

    rt = await world.open()
    gate_of(rt).fail(has("tool_returned"), OutcomeUnknown("cut"), written=written)
    run = await rt.start(agent([[call("count")], "Over."], count), "Go")
    assert (await run.result()).text == "Over."
    assert await run.state(COUNT) == 1
    assert ran == ["count"]
    await check_run(run)


@pytest.mark.proves("T9", "J7")
@pytest.mark.parametrize("written", [False, True])
async def test_a_paid_reply_stays_with_what_middleware_wrote_beside_it(world: World, *, written: bool) -> None:
    class Counting(Middleware):
        async def before_model(self, ctx: Any, request: Any) -> None:
            ctx.state.update(COUNT, 1)

        async def after_model(self, ctx: Any, reply: Any) -> None:
            await ctx.note("seen", "it")

    model = ScriptedModel(["Over."])
    rt = await world.open()
    gate_of(rt).fail(has("model_replied"), OutcomeUnknown("cut"), written=written)
    run = await rt.start(agent(model, middleware=[Counting()]), "Go")
    assert (await run.result()).text == "Over."
    assert model.count == 1
    assert await run.state(COUNT) == 1
    assert len(of(await check_run(run), e.Noted)) == 1


@pytest.mark.proves("T2", "T5", "J7")
@pytest.mark.parametrize("written", [False, True])
async def test_the_value_that_verify_found_of_a_step_stays_with_its_finding(world: World, *, written: bool) -> None:
    def transfer() -> str:
        raise AssertionError("it is never made again")

    @tool(steps_only=True, verify=lambda _ctx: Done("receipt 7"))
    async def pay(ctx: ToolContext) -> str:
        return await ctx.once_step("transfer", transfer)

    payer = agent([[call("pay")], "Over."], pay)
    rt = await world.open(payer)
    begun = gate_of(rt)
    held = begun.hold(has("step_started"))
    await rt.start(payer, "Go", run_id="r")
    await held.reached()
    # The intent is written, and its process dies before the step begins.
    await begun.inner.commit(begun.batches[-1])
    await world.kill(rt)
    again = await world.open(payer)
    gate_of(again).fail(has("doubt_resolved"), OutcomeUnknown("cut"), written=written)
    run = await again.get("r")
    result = await run.result()
    assert (result.status, result.text) == ("done", "Over.")
    [returned] = of(await check_run(run), e.ToolReturned)
    assert returned.content == "receipt 7"
