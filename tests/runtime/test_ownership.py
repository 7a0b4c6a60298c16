"""R: who may drive a run, how long, and what becomes of it when that process dies, leaves or has changed."""

import asyncio
import os

import pytest

from clew import ToolContext, tool
from clew.core import entries as e
from clew.errors import JournalCorrupt, ModelError, RunBusy, RunEnded
from clew.messages import Text
from clew.ports import ModelReply
from clew.stores.owners import this_process
from clew.testing import ScriptedModel, call
from tests.runtime.world import (
    LEASE,
    Fragments,
    Stop,
    Work,
    World,
    agent,
    becomes,
    check_run,
    gate_of,
    has,
    kinds,
    look,
    of,
    results,
    seen,
)

# --- R1 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("R1")
async def test_one_drives_and_the_other_is_told_who(world: World) -> None:
    work = Work()
    rt, other = await world.open(work.agent, drive=False), await world.open(work.agent, drive=False)
    await rt.start(work.agent, "Go", run_id="r")
    driving = asyncio.create_task(rt.drive("r"))
    await work.held.reached()
    with pytest.raises(RunBusy, match=rf"'r' is being driven by process {os.getpid()} on"):
        await other.drive("r")
    with pytest.raises(RunBusy, match=r"'r' is being driven by this process.*result"):
        await rt.drive("r")
    work.held.let_go()
    run = await driving
    assert (await run.result()).text == "Done."
    assert (work.ran, work.model.count) == (1, 2)
    with pytest.raises(RunEnded, match="'r' is finished"):
        await rt.drive("r")


@pytest.mark.proves("R1", "J1", "J8")
async def test_a_driver_that_was_taken_over_appends_nothing(world: World) -> None:
    work = Work("once", on_doubt="report")
    work.held.let_go()
    rt = await world.open(work.agent, drive=False)
    stale = gate_of(rt).hold(has("tool_returned"))
    await rt.start(work.agent, "Go", run_id="r")
    driving = asyncio.create_task(rt.drive("r"))
    await stale.reached()
    await world.clock.advance(31)
    second = await world.open(work.agent)
    run = await second.get("r")
    result = await run.result()
    before = await run.entries()
    stale.let_go()
    await driving
    assert await run.entries() == before
    assert work.ran == 1
    assert results(result.messages)["1.tool.1"].content.startswith("outcome unknown")
    await check_run(run)


@pytest.mark.proves("R1", "J1")
async def test_a_claim_alone_fences_the_driver_before(world: World) -> None:
    work = Work("once")
    work.held.let_go()
    rt = await world.open(work.agent, drive=False)
    stale = gate_of(rt).hold(has("tool_returned"))
    run = await rt.start(work.agent, "Go", run_id="r")
    driving = asyncio.create_task(rt.drive("r"))
    await stale.reached()
    await world.clock.advance(31)
    second = await world.open(work.agent, drive=False)
    attaching = gate_of(second).hold(has("driver_attached"))
    taking = asyncio.create_task(second.drive("r"))
    await attaching.reached()
    before = await run.entries()
    stale.let_go()
    await driving
    assert await run.entries() == before
    attaching.let_go()
    await taking
    await check_run(run)


@pytest.mark.proves("R1", "T11")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)  # memory is of one process
async def test_what_a_fenced_driver_knows_reaches_the_new_one_as_a_late_result(world: World) -> None:
    held = Stop()
    script = [ModelReply(parts=(call("work", id="a"),))], [held, ModelReply(parts=(Text("Done."),))]
    work = Work("once", Fragments(*script), on_doubt="report")
    work.held.let_go()
    rt = await world.open(work.agent, drive=False)
    stale = gate_of(rt).hold(has("tool_returned"))
    await rt.start(work.agent, "Go", run_id="r")
    driving = asyncio.create_task(rt.drive("r"))
    await stale.reached()
    await world.clock.advance(31)
    second = await world.open(work.agent)
    await held.reached()
    stale.let_go()
    await driving
    run = await second.get("r")
    late = of(await seen(run, "late_result_received"), e.LateResultReceived)[0]
    assert (late.call, late.from_epoch, late.value, late.error) == ("1.tool.1", 1, "worked", None)
    held.let_go()
    assert (await run.result()).text == "Done."
    assert work.ran == 1
    await check_run(run)


@pytest.mark.proves("R1")
async def test_nothing_starts_under_a_lease_that_could_not_be_confirmed(world: World) -> None:
    ran: list[str] = []

    @tool(effect="read", sequential=True)
    async def late(what: str) -> str:
        ran.append(what)
        if what == "a":
            await world.clock.advance(21)  # two thirds of the lease, and the store cannot be asked
        return what

    later = agent([[call("late", {"what": w}) for w in "ab"], "Done."], late)
    rt = await world.open(later, drive=False)
    gate_of(rt).renew = lambda *_: set()  # type: ignore[method-assign]
    run = await rt.start(later, "Go", run_id="r")
    await rt.drive("r")
    assert ran == ["a"]
    assert kinds(await run.entries())[-1] == "tool_returned"
    await world.kill(rt)
    second = await world.open(later)
    assert (await (await second.get("r")).result()).text == "Done."
    assert ran == ["a", "b"]


@pytest.mark.proves("R1")
async def test_a_waiting_run_holds_no_lease(world: World) -> None:
    meteo = agent([ModelError("rate_limited", "later", retry_after=60.0), "Sunny."])
    rt = await world.open(meteo)
    run = await rt.start(meteo, "Rain?", run_id="r")
    info = await becomes(rt, "r", lambda info: info.status == "waiting")
    assert (info.reason, info.wake_at) == ("rate_limit", world.clock.now() + 60_000_000)
    lease = await rt.store.lease("r")
    assert (lease.owner, lease.alive) == (None, False)
    await world.clock.advance(61)
    assert (await run.result()).text == "Sunny."
    assert (await rt.store.lease("r")).unclean == 0


@pytest.mark.proves("R1", "J2")
async def test_opening_recovers_every_run_that_can_go_on(world: World) -> None:
    starter = await world.open(drive=False)
    meteo = agent([[call("look")], "Done."], look)
    for n in range(30):
        await starter.start(meteo, "Go", run_id=f"r{n}")
    await world.kill(starter)
    rt = await world.open(meteo, concurrency=4)
    for n in range(30):
        assert (await (await rt.get(f"r{n}")).result()).text == "Done."
    assert [info.status async for info in rt.runs()] == ["done"] * 30


@pytest.mark.proves("R1")
async def test_a_process_drives_no_more_at_a_time_than_it_was_told_to(world: World) -> None:
    active, most, two, go = 0, 0, asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def work() -> str:
        nonlocal active, most
        active += 1
        most = max(most, active)
        if active == 2:
            two.set()
        await go.wait()
        active -= 1
        return "worked"

    worker = agent([[call("work")], "Done."], work)
    rt = await world.open(worker, concurrency=2)
    runs = [await rt.start(worker, "Go") for _ in range(6)]
    await two.wait()
    go.set()
    for run in runs:
        await run.result()
    assert most == 2


# --- R3 ---------------------------------------------------------------------------------------------------------------


async def dies(world: World, work: Work, times: int) -> None:
    """A process takes the run up, gets as far as the tool, and dies there: so often."""
    for _ in range(times):
        work.held = Stop()
        rt = await world.open(work.agent)
        await work.held.reached()
        await world.kill(rt)


@pytest.mark.proves("R3")
async def test_a_run_that_kills_its_drivers_is_quarantined_after_five_deaths_in_one_place(world: World) -> None:
    work = Work()
    starter = await world.open(drive=False)
    await starter.start(work.agent, "Go", run_id="r")
    await starter.start(agent(["Hi."], name="other"), "Hi", run_id="healthy")
    await dies(world, work, 3)
    lease = await starter.store.lease("r")
    assert lease.unclean == 2
    await dies(world, work, 2)
    assert not (await starter.store.info("r")).quarantined
    rt = await world.open(work.agent, agent(["Hi."], name="other"))
    assert (await (await rt.get("healthy")).result()).ok
    await becomes(rt, "r", lambda info: info.quarantined)
    assert work.ran == 5
    with pytest.raises(JournalCorrupt, match=r"'r' is quarantined.*clew quarantine release r"):
        await (await rt.get("r")).result()
    with pytest.raises(JournalCorrupt, match="quarantine"):
        await rt.drive("r")
    assert [info.run_id async for info in rt.runs(status="quarantined")] == ["r"]
    work.held = Stop()
    work.held.let_go()
    await rt.store.quarantine("r", on=False)
    assert (await (await rt.get("r")).result()).text == "Done."
    await check_run(await rt.get("r"))


@pytest.mark.proves("R3")
async def test_progress_resets_the_count(world: World) -> None:
    stops = [Stop() for _ in range(8)]

    @tool(effect="read", sequential=True)
    async def work(n: int) -> int:
        await stops[n].arrive()
        return n

    worker = agent([[call("work", {"n": n}) for n in range(8)], "Done."], work)
    starter = await world.open(drive=False)
    await starter.start(worker, "Go", run_id="r")
    for n in range(7):
        rt = await world.open(worker)
        await stops[n].reached()
        stops[n].let_go()
        await stops[n + 1].reached()
        assert (await rt.store.lease("r")).unclean <= 1
        await world.kill(rt)
    stops[7].let_go()
    rt = await world.open(worker)
    assert (await (await rt.get("r")).result()).text == "Done."


@pytest.mark.proves("R3")
async def test_claims_in_one_place_back_off_but_not_for_who_names_the_run(world: World) -> None:
    work = Work()
    starter = await world.open(work.agent, drive=False)
    await starter.start(work.agent, "Go", run_id="r")
    await dies(world, work, 4)
    lease = await starter.store.lease("r")
    assert lease.unclean == 3
    assert lease.not_before <= world.clock.now()
    rt = await world.open(work.agent, drive=False)
    work.held = Stop()
    driving = asyncio.create_task(rt.drive("r"))
    await work.held.reached()
    pauses = (await rt.store.lease("r")).not_before - world.clock.now()
    assert 4_000_000 <= pauses <= 8_000_000  # half a second, doubled with each death
    place = await world.opened_store()
    await place.give_back("r", (await place.lease("r")).epoch)
    looking = await world.open(work.agent)
    assert await looking.store.claim(this_process(), lease=1, agents=["meteo"]) == []
    work.held.let_go()
    await asyncio.wait([driving])
    await world.clock.advance(10)
    assert (await (await looking.get("r")).result()).text == "Done."


@pytest.mark.proves("R3")
async def test_a_process_drives_one_suspect_at_a_time_and_the_healthy_beside_it(world: World) -> None:
    active, most, dying, held = set[str](), 0, True, Stop()
    gathered = asyncio.Barrier(3)

    @tool(effect="read")
    async def work(ctx: ToolContext[object]) -> str:
        nonlocal most
        active.add(ctx.run_id)
        most = max(most, len(active))
        try:
            if dying:
                await gathered.wait()
                held_all.set()
                await asyncio.Event().wait()
            if not held.passed:
                await held.arrive()
        finally:
            active.discard(ctx.run_id)
        return "worked"

    held_all = asyncio.Event()
    worker, healthy = agent([[call("work")], "Done."], work), agent(["Hi."], name="healthy")
    starter = await world.open(drive=False)
    for n in range(3):
        await starter.start(worker, "Go", run_id=f"r{n}")
    for _ in range(2):
        rt = await world.open(worker)
        await held_all.wait()
        held_all.clear()
        await world.kill(rt)
    most, dying = 0, False
    rt = await world.open(worker, healthy)
    await held.reached()
    assert (await (await rt.start(healthy, "Hi")).result()).ok
    assert len(active) == 1
    held.let_go()
    for n in range(3):
        assert (await (await rt.get(f"r{n}")).result()).text == "Done."
    assert most == 1


# --- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("R1", "R3")
async def test_leaving_lets_a_step_end_within_the_grace_and_gives_the_run_back_clean(world: World) -> None:
    work = Work("once")
    rt = await world.open(work.agent, grace=5)
    await rt.start(work.agent, "Go", run_id="r")
    await work.held.reached()
    leaving = asyncio.create_task(rt.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not leaving.done()
    work.held.let_go()
    await leaving
    place = await world.opened_store()
    assert kinds(await place.read("r"))[-1] == "tool_returned"
    lease = await place.lease("r")
    assert (lease.owner, lease.unclean, work.model.count) == (None, 0, 1)
    second = await world.open(work.agent)  # at once: nobody holds it
    assert (await (await second.get("r")).result()).text == "Done."
    assert work.ran == 1


@pytest.mark.proves("R1", "R3", "T2")
@pytest.mark.parametrize("effect", ["read", "once"])
async def test_what_does_not_end_within_the_grace_is_left_and_the_next_process_sees_to_it(
    world: World, effect: str
) -> None:
    work = Work(effect, on_doubt="report")
    rt = await world.open(work.agent, grace=0.05)
    await rt.start(work.agent, "Go", run_id="r")
    await work.held.reached()
    await rt.close()
    work.held.let_go()
    second = await world.open(work.agent)
    await world.clock.advance(LEASE + 1)  # the body that was left behind may be at it until then
    result = await (await second.get("r")).result()
    assert work.ran == (1 if effect == "once" else 2)
    assert results(result.messages)["1.tool.1"].is_error is (effect == "once")
    assert (await second.store.lease("r")).unclean == 0
    await check_run(await second.get("r"))


@pytest.mark.proves("R1", "C2")
async def test_a_reply_cut_off_by_leaving_is_no_reply(world: World) -> None:
    held = Stop()
    model = Fragments(["It is ", held, "never"])
    meteo = agent(model)
    rt = await world.open(meteo, grace=0.05)
    await rt.start(meteo, "Rain?", run_id="r")
    await held.reached()
    await rt.close()
    second = await world.open(meteo.replace(model=ScriptedModel(["Sunny."])))
    run = await second.get("r")
    assert (await run.result()).text == "Sunny."
    assert [x.text for x in of(await check_run(run), e.ModelReplied)] == ["Sunny."]


# --- R4 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("R4")
async def test_time_never_decreases_in_a_journal_though_the_clock_was_set_back(world: World) -> None:
    work = Work()
    rt = await world.open(work.agent)
    await rt.start(work.agent, "Go", run_id="r")
    await work.held.reached()
    await world.kill(rt)
    now = world.clock.now()
    boot = world.clock.boottime
    world.clock._now -= 86_400_000_000
    world.clock.boottime = lambda: boot() + 86_400_000_000  # type: ignore[method-assign]
    work.held.let_go()
    second = await world.open(work.agent)
    run = await second.get("r")
    await run.result()
    ats = [entry.at for entry in await check_run(run)]
    assert ats == sorted(ats)
    assert world.clock.now() < ats[-1] <= now
