"""A process that leaves: what it had not begun is begun by the next one, and no model hears of it."""

import asyncio
import threading
from typing import Any

import pytest

from clew import Middleware, ToolError, tool
from clew.core import entries as e
from clew.runtime.user_code import THREADS
from clew.testing import call
from tests.runtime.world import Stop, World, agent, check_run, of, results, until


@pytest.mark.proves("T7", "T8", "T3")
@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_a_call_for_which_no_thread_was_free_is_begun_by_the_next_process(world: World, effect: Any) -> None:
    go, ran, busy = threading.Event(), list[str](), list[int]()

    @tool(effect=effect)
    def work() -> str:
        ran.append("work")
        return "worked"

    @tool(effect="read")
    def fill() -> str:
        busy.append(1)
        go.wait(30)
        return "filled"

    filler = agent([[call("fill") for _ in range(10)], "Done."], fill, name="filler")
    worker = agent([[call("work")], "Done."], work, name="worker")
    rt = await world.open(worker, filler)
    try:
        for _ in range(THREADS // 10):
            await rt.start(filler, "Go")
        await until(lambda: len(busy) == THREADS)
        run = await rt.start(worker, "Go", run_id="r")
        await until(lambda: rt._station.threads._unclaimed < 0)  # it waits for a thread
        assert ran == []
        await rt.close()
        again = await world.open(worker)
        run = await again.get("r")
        async with asyncio.timeout(5):
            result = await run.result()
    finally:
        go.set()
    assert (result.status, result.text) == ("done", "Done.")
    [told] = results(result.messages).values()
    assert (told.content, told.is_error) == ("worked", False)
    assert ran == ["work"]
    assert of(await check_run(run), e.DoubtResolved) == []


@pytest.mark.proves("T2", "T3")
async def test_middleware_that_is_cut_off_by_a_leaving_process_has_not_failed(world: World) -> None:
    held = Stop()

    class Checks(Middleware):
        async def after_tool(self, ctx: Any, call: Any, output: Any) -> None:
            await held.arrive()

    @tool(effect="read")
    async def work() -> str:
        return "worked"

    worker = agent([[call("work")], "Done."], work, middleware=[Checks()])
    rt = await world.open(worker)
    await rt.start(worker, "Go", run_id="r")
    await held.reached()
    await rt.close()
    held.let_go()
    again = await world.open(worker)
    result = await (await again.get("r")).result()
    [told] = results(result.messages).values()
    assert (told.content, told.is_error) == ("worked", False)


@pytest.mark.proves("T2", "T3")
async def test_a_recovery_that_is_cut_off_by_a_leaving_process_has_not_said_stop(world: World) -> None:
    held = Stop()

    async def recover(*_said: Any) -> str:
        await held.arrive()
        return "tell"

    @tool(effect="read")
    async def fails() -> str:
        raise ToolError("the line is dead")

    desk = agent([[call("fails")], "Done."], fails, on_tool_error=recover)
    rt = await world.open(desk)
    run = await rt.start(desk, "Go", run_id="r")
    await held.reached()
    await rt.close()
    held.let_go()
    again = await world.open(desk)
    result = await (await again.get(run.id)).result()
    assert (result.status, result.text) == ("done", "Done.")
