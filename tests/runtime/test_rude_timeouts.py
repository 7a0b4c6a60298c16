"""Bodies that swallow the end of their time: the run goes on without them, and what they come to is evidence."""

import asyncio
from typing import Any

import pytest

from clew import tool
from clew.core import entries as e
from clew.testing import call
from tests.runtime.world import LEASE, World, agent, check_run, of, results, seen


class Rude:
    """A tool that goes on for as long as it likes."""

    def __init__(self, **options: Any) -> None:
        self.go = asyncio.Event()

        @tool(timeout=0.05, **options)
        async def pay() -> str:
            while not self.go.is_set():
                try:
                    await self.go.wait()
                except asyncio.CancelledError:
                    continue
            return "paid"

        self.tool = pay


@pytest.mark.proves("T7", "T8")
async def test_a_body_that_swallows_the_end_of_its_time_is_left_behind(world: World) -> None:
    rude = Rude(effect="read")
    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], rude.tool), "Go")
    try:
        async with asyncio.timeout(5):
            result = await run.result()
    finally:
        rude.go.set()
    assert result.text == "Done."
    told = results(result.messages)["1.tool.1"]
    assert told.is_error
    assert "Timeout" in told.content
    [failed] = of(await check_run(run), e.ToolFailed)
    assert (failed.class_, failed.final, failed.source) == ("timeout", True, "ran")


@pytest.mark.proves("T2", "T7", "T11")
async def test_a_once_body_that_ends_after_its_time_settles_its_doubt(world: World) -> None:
    rude = Rude(effect="once")
    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], rude.tool), "Go")
    try:
        [*_, failed] = of(await seen(run, "tool_failed"), e.ToolFailed)
    finally:
        rude.go.set()
    assert (failed.class_, failed.final, failed.source) == ("timeout", False, "doubt")
    async with asyncio.timeout(5):
        await seen(run, "run_finished")
    result = await run.result()
    told = results(result.messages)["1.tool.1"]
    assert (told.is_error, told.content) == (False, "paid")
    entries = await check_run(run)
    assert [(x.how, x.finding) for x in of(entries, e.DoubtResolved)] == [("late", "done")]
    assert of(entries, e.TicketOpened) == []


@pytest.mark.proves("T2", "T7", "T11")
async def test_nobody_is_asked_while_a_body_that_was_left_behind_may_be_at_it(world: World) -> None:
    rude = Rude(effect="once")
    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], rude.tool), "Go")
    try:
        await seen(run, "tool_failed")
        assert of(await run.entries(), e.TicketOpened) == []
        await world.clock.advance(LEASE + 1)
        await seen(run, "ticket_opened")
    finally:
        rude.go.set()
    await seen(run, "run_finished")
