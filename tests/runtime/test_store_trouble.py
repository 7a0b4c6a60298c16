"""J7: a store that refuses, whose answer is lost, or that holds what cannot be read."""

import asyncio
from typing import Any

import pytest

from clew import tool
from clew.core import entries as e
from clew.core.outcomes import Cancelled
from clew.errors import (
    JournalCorrupt,
    OutcomeUnknown,
    StaleWriter,
    StoreUnavailable,
)
from clew.testing import ScriptedModel, call
from tests.runtime.world import World, agent, check_run, gate_of, has, kinds, of, results

UNAVAILABLE = StoreUnavailable("the disk is full")
LOST = OutcomeUnknown("the connection was cut in commit")


@tool(effect="read")
def look(at: str = "sky") -> str:
    return f"{at}: blue"


@pytest.mark.proves("J7", "T4")
async def test_a_reply_is_kept_while_the_store_refuses_and_is_not_asked_for_again(world: World) -> None:
    model = ScriptedModel(["Sunny."])
    rt = await world.open()
    hit = gate_of(rt).fail(has("model_replied"), UNAVAILABLE, UNAVAILABLE, UNAVAILABLE)
    run = await rt.start(agent(model), "Rain?", run_id="r")
    assert (await run.result()).text == "Sunny."
    assert model.count == 1
    assert hit[0] is hit[1] is hit[2]  # the same batch, tried again
    await check_run(run)


@pytest.mark.proves("J7", "J1", "R1")
async def test_a_driver_whose_commit_is_refused_acts_on_nothing_of_it(world: World) -> None:
    ran: list[str] = []

    @tool(effect="read")
    def mark() -> str:
        ran.append("mark")
        return "marked"

    marker = agent([[call("mark")], "Done."], mark)
    rt = await world.open(marker, drive=False)
    gate_of(rt).fail(has("model_replied"), StaleWriter("another process has it"))
    run = await rt.start(marker, "Go", run_id="r")
    await rt.drive("r")
    assert ran == []
    assert kinds(await run.entries()) == ["run_started", "driver_attached"]


@pytest.mark.proves("J7", "R1")
async def test_a_driver_whose_store_is_away_longer_than_its_lease_stops_and_starts_nothing(world: World) -> None:
    ran: list[str] = []

    @tool(effect="read")
    def mark() -> str:
        ran.append("mark")
        return "marked"

    marker = agent([[call("mark")], "Done."], mark)
    rt = await world.open(marker, drive=False)
    gate = gate_of(rt)
    away = asyncio.Event()

    async def refuse(batch: Any) -> None:
        if has("model_replied")(batch):
            away.set()
            raise UNAVAILABLE

    gate.before = refuse
    gate.renew = lambda *_: (_ for _ in ()).throw(UNAVAILABLE)  # type: ignore[method-assign]
    await rt.start(marker, "Go", run_id="r")
    driving = asyncio.create_task(rt.drive("r"))
    await away.wait()
    await world.clock.advance(25)
    await driving
    assert ran == []
    assert kinds(await (await world.opened_store()).read("r")) == ["run_started", "driver_attached"]
    await world.kill(rt)
    second = await world.open(marker)
    assert (await (await second.get("r")).result()).text == "Done."


@pytest.mark.proves("J7", "T4")
@pytest.mark.parametrize("written", [True, False], ids=["written", "not written"])
async def test_an_unknown_outcome_is_settled_under_a_new_epoch_and_the_reply_is_kept(
    world: World, written: bool
) -> None:
    model = ScriptedModel([[call("look")], "Sunny."])
    rt = await world.open()
    hit = gate_of(rt).fail(has("model_replied"), LOST, written=written)
    run = await rt.start(agent(model, look), "Rain?", run_id="r")
    assert (await run.result()).text == "Sunny."
    assert (len(hit), model.count) == (1, 2)
    entries = await check_run(run)
    [replied, *_] = of(entries, e.ModelReplied)
    assert (replied.epoch, entries[-1].epoch) == (1 if written else 2, 2)
    assert len(of(entries, e.DriverAttached)) == 1, "the process is the same, and so are the bodies it runs"


@pytest.mark.proves("J7", "T3")
@pytest.mark.parametrize("written", [True, False], ids=["written", "not written"])
@pytest.mark.parametrize("effect", ["read", "once"])
async def test_an_unknown_outcome_of_a_result_repeats_no_call(world: World, written: bool, effect: Any) -> None:
    ran: list[str] = []

    @tool(effect=effect)
    def mark() -> str:
        ran.append("mark")
        return "marked"

    rt = await world.open()
    gate_of(rt).fail(has("tool_returned"), LOST, written=written)
    run = await rt.start(agent([[call("mark")], "Done."], mark), "Go", run_id="r")
    result = await run.result()
    assert ran == ["mark"]
    assert results(result.messages)["1.tool.1"].content == "marked"
    await check_run(run)


@pytest.mark.proves("J7", "J8")
@pytest.mark.parametrize("written", [True, False], ids=["written", "not written"])
async def test_an_unknown_outcome_of_the_end_makes_one_end(world: World, written: bool) -> None:
    rt = await world.open()
    gate_of(rt).fail(has("run_finished"), LOST, written=written)
    run = await rt.start(agent(["Sunny."]), "Rain?", run_id="r")
    assert (await run.result()).text == "Sunny."
    await check_run(run)


@pytest.mark.proves("J7")
async def test_after_an_unknown_outcome_nothing_starts_until_the_run_is_taken_again(world: World) -> None:
    ran = asyncio.Event()

    @tool(effect="read")
    async def mark() -> str:
        ran.set()
        return "marked"

    rt = await world.open()
    gate = gate_of(rt)
    gate.fail(has("model_replied"), LOST, written=True)
    retake, asked, allowed = gate.inner.retake, asyncio.Event(), asyncio.Event()

    async def held(*args: Any, **given: Any) -> Any:
        asked.set()
        await allowed.wait()
        return await retake(*args, **given)

    gate.retake = held  # type: ignore[attr-defined]
    run = await rt.start(agent([[call("mark")], "Done."], mark), "Go", run_id="r")
    await asked.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not ran.is_set()
    allowed.set()
    assert (await run.result()).text == "Done."
    assert ran.is_set()


@pytest.mark.proves("J7")
async def test_a_batch_handed_over_survives_a_cancel(world: World) -> None:
    rt = await world.open()
    reply = gate_of(rt).hold(has("model_replied"))
    run = await rt.start(agent([[call("look")], "Sunny."], look), "Rain?", run_id="r")
    await reply.reached()
    await run.cancel(reason="enough")
    reply.let_go()
    result = await run.result()
    assert result.outcome == Cancelled(reason="enough")
    entries = await check_run(run)
    assert kinds(entries)[2] == "model_replied"


@pytest.mark.proves("J7", "R3")
async def test_a_corrupt_run_is_quarantined_and_the_others_go_on(world: World) -> None:
    starter = await world.open(drive=False)
    meteo = agent(["Sunny."])
    await starter.start(meteo, "Rain?", run_id="broken")
    await starter.start(meteo, "Rain?", run_id="whole")
    rt = world.runtime(meteo)
    gate = gate_of(rt)
    read = gate.inner.read

    async def broken(run: str, *args: Any, **given: Any) -> Any:
        if run == "broken":
            raise JournalCorrupt("run 'broken': entry 2 is no JSON")
        return await read(run, *args, **given)

    gate.read = broken  # type: ignore[attr-defined]
    await rt.open()
    assert (await (await rt.get("whole")).result()).ok
    with pytest.raises(JournalCorrupt, match=r"'broken' is quarantined.*clew quarantine release broken"):
        await (await rt.get("broken")).result()
    assert (await rt.store.info("broken")).quarantined
