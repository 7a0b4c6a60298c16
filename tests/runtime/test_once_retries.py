"""T7: a retry of what must not run twice has an intent of its own, written when it starts and not while it waits."""

import pytest

from clew import ToolContext, ToolError, tool
from clew.core import entries as e
from clew.testing import call
from tests.runtime.world import Stop, World, agent, check_run, of, seen


@pytest.mark.proves("T1", "T7")
async def test_the_intent_of_a_retry_is_written_once_its_pause_is_over(world: World) -> None:
    tries: list[int] = []
    held = Stop()

    @tool(effect="once", retries=2, retry_on=(ConnectionError,))
    async def pay(ctx: ToolContext[object]) -> str:
        tries.append(ctx.attempt)
        if len(tries) == 1:
            raise ConnectionError("reset before anything was sent")
        if len(tries) == 2:
            raise ToolError("come again", retry=True)
        await held.arrive()
        return "paid"

    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay), "Go", run_id="r")
    for failures in (1, 2):
        await seen(run, *["tool_failed"] * failures)
        entries = await run.entries()
        assert len(of(entries, e.ToolStarted)) == failures
        await world.clock.advance(60)
    await held.reached()
    assert len(of(await run.entries(), e.ToolStarted)) == 3
    held.let_go()
    assert (await run.result()).text == "Done."
    entries = await check_run(run)
    for failure, started in zip(of(entries, e.ToolFailed), of(entries, e.ToolStarted)[1:], strict=True):
        assert failure.retry_at is not None
        assert (started.at >= failure.retry_at, started.attempt) == (True, failure.attempt + 1)
    assert tries == [1, 2, 3]


@pytest.mark.proves("T1", "T2", "T7")
async def test_a_crash_while_a_retry_waits_leaves_no_doubt(world: World) -> None:
    tries: list[int] = []

    @tool(effect="once", retries=1, retry_on=(ConnectionError,))
    async def pay(ctx: ToolContext[object]) -> str:
        tries.append(ctx.attempt)
        if len(tries) == 1:
            raise ConnectionError("reset before anything was sent")
        return "paid"

    actor = agent([[call("pay")], "Done."], pay)
    rt = await world.open(actor)
    await seen(await rt.start(actor, "Go", run_id="r"), "tool_failed")
    await world.kill(rt)
    second = await world.open(actor)
    await world.clock.advance(60)
    run = await second.get("r")
    assert (await run.result()).text == "Done."
    assert tries == [1, 2]
    assert not of(await check_run(run), e.DoubtResolved)
