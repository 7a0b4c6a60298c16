"""C: a cancel is durable, is honoured wherever the run is, and leaves a journal that can be gone on from."""

import asyncio
import threading
from typing import Any

import pytest

from clew import tool
from clew.core import entries as e
from clew.core.letters import CancelLetter
from clew.core.outcomes import Cancelled
from clew.errors import ModelError, NotFound, RunEnded
from clew.ports import Fragment, ModelReply
from clew.testing import ScriptedModel, call
from tests.runtime.world import (
    Fragments,
    Stop,
    World,
    agent,
    becomes,
    check_run,
    gate_of,
    has,
    kinds,
    of,
    results,
    seen,
)


@tool(effect="read")
def look() -> str:
    return "blue"


# --- in the model -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("C1", "C2")
async def test_in_a_stream_what_was_said_is_kept_and_half_a_call_is_dropped(world: World) -> None:
    held = Stop()
    said = [Fragment("thinking", "Hm", 0), Fragment("text", "It is ", 1), Fragment("text", "sun", 1)]
    model = Fragments([*said, Fragment("tool_args", '{"at": "sk', 2), held])
    rt = await world.open()
    run = await rt.start(agent(model, look), "Rain?", run_id="r")
    await held.reached()
    await run.cancel(reason="enough", by="ann")
    result = await run.result()
    assert result.outcome == Cancelled(by="ann", reason="enough")
    assert (result.reason, result.text) == ("cancelled", "It is sun")
    entries = await check_run(run)
    reply = of(entries, e.ModelReplied)[0]
    assert reply.finish == "cut_off"
    assert [part.kind for part in reply.parts] == ["thinking", "text"]
    assert reply.usage.estimated
    assert reply.usage.output > 0
    assert of(entries, e.CancelRequested)[0].reason == "enough"


@pytest.mark.proves("C1", "C2")
async def test_before_the_first_word_there_is_nothing_to_keep(world: World) -> None:
    held = Stop()
    rt = await world.open()
    run = await rt.start(agent(Fragments([held, "never"])), "Rain?")
    await held.reached()
    await run.cancel()
    assert (await run.result()).reason == "cancelled"
    assert kinds(await check_run(run)) == ["run_started", "driver_attached", "cancel_requested", "run_finished"]


@pytest.mark.proves("C1")
async def test_a_model_that_does_not_stop_is_left_behind_after_the_grace(world: World) -> None:
    stubborn = asyncio.Event()

    class Stubborn:
        name = "stubborn"

        async def stream(self, _request: Any) -> Any:
            yield Fragment("text", "I will ")
            while not stubborn.is_set():
                try:
                    await stubborn.wait()
                except asyncio.CancelledError:
                    continue
            yield ModelReply()

    rt = await world.open()
    run = await rt.start(agent(Stubborn()), "Rain?")
    async for item in run.watch():
        if item.kind == "text":
            break
    await run.cancel()
    assert (await run.result()).reason == "cancelled"
    stubborn.set()
    await check_run(run)


@pytest.mark.proves("C1")
@pytest.mark.parametrize("wait", [1.0, 1000.0], ids=["in memory", "parked"])
async def test_while_it_waits_to_try_again(world: World, wait: float) -> None:
    model = ScriptedModel([ModelError("rate_limited", "later", retry_after=wait), "never"])
    rt = await world.open()
    run = await rt.start(agent(model), "Rain?", run_id="r")
    await seen(run, "model_failed")
    if wait > 5:
        await becomes(rt, "r", lambda info: info.status == "waiting")
    await run.cancel()
    assert (await run.result()).reason == "cancelled"
    await world.clock.advance(2000)
    await check_run(run)
    assert model.count == 1


# --- in tools ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("C1", "C2", "L4", "T2")
@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_a_running_tool_is_cancelled_and_its_call_answered(world: World, effect: Any) -> None:
    held, cleaned = Stop(), asyncio.Event()

    @tool(effect=effect)
    async def act() -> str:
        try:
            await held.arrive()
        finally:
            cleaned.set()
        return "done"

    model = ScriptedModel([[call("look"), call("act")], "never"])
    rt = await world.open()
    run = await rt.start(agent(model, look, act), "Go")
    await seen(run, "tool_returned")
    await held.reached()
    await run.cancel()
    result = await run.result()
    assert cleaned.is_set()
    found = results(result.messages)
    assert found["1.tool.1"].content == "blue"
    assert found["1.tool.2"].is_error
    assert found["1.tool.2"].content.startswith("outcome unknown" if effect == "once" else "cancelled")
    assert model.count == 1
    await check_run(run)


@pytest.mark.proves("C1", "C2")
async def test_a_tool_that_ends_well_within_the_grace_has_its_result_kept(world: World) -> None:
    held = Stop()

    @tool(effect="once")
    async def act() -> str:
        try:
            await held.arrive()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "rolled back"

    rt = await world.open()
    run = await rt.start(agent([[call("act")], "never"], act), "Go")
    await held.reached()
    await run.cancel()
    result = await run.result()
    assert (result.reason, results(result.messages)["1.tool.1"].content) == ("cancelled", "rolled back")


@pytest.mark.proves("C1", "C2", "T8")
@pytest.mark.parametrize("form", ["async", "sync"])
async def test_a_tool_that_never_returns_is_left_behind(world: World, form: str) -> None:
    began, go, release = asyncio.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool(effect="once", name="hang")
    async def hang() -> str:
        began.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    @tool(effect="once", name="hang")
    def hang_in_thread() -> str:
        loop.call_soon_threadsafe(began.set)
        release.wait(10)
        return "late"

    rt = await world.open()
    run = await rt.start(agent([[call("hang")], "never"], hang if form == "async" else hang_in_thread), "Go")
    await began.wait()
    await run.cancel(reason="too long")
    result = await run.result()
    go.set()
    release.set()
    assert result.outcome == Cancelled(reason="too long")
    assert results(result.messages)["1.tool.1"].content.startswith("outcome unknown")
    await check_run(run)


@pytest.mark.proves("C1", "C2")
async def test_calls_that_had_not_started_never_start(world: World) -> None:
    held, ran = Stop(), []

    @tool(effect="once", sequential=True)
    async def act(n: int) -> int:
        ran.append(n)
        if n == 1:
            await held.arrive()
        return n

    rt = await world.open()
    run = await rt.start(agent([[call("act", {"n": n}) for n in (1, 2, 3)], "never"], act), "Go")
    await held.reached()
    await run.cancel()
    found = results((await run.result()).messages)
    assert ran == [1]
    assert [found[f"1.tool.{n}"].content for n in (2, 3)] == ["cancelled", "cancelled"]
    await check_run(run)


# --- by whom, and when ------------------------------------------------------------------------------------------------


@pytest.mark.proves("C1")
async def test_a_run_nobody_drives_is_ended_by_whoever_cancels_without_agent_code(world: World) -> None:
    model = ScriptedModel(["never"])
    starter = await world.open(drive=False)
    await starter.start(agent(model), "Rain?", run_id="r")
    await world.kill(starter)
    other = await world.open(drive=False)
    await other.cancel("r", reason="enough")
    run = await other.get("r")
    assert (await run.info()).outcome == Cancelled(reason="enough")
    assert (await run.result()).reason == "cancelled"
    await check_run(run)
    assert model.count == 0


@pytest.mark.proves("C1")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_another_process_cancels_a_run_at_work(world: World) -> None:
    held = Stop()
    rt = await world.open()
    run = await rt.start(agent(Fragments(["It is ", held])), "Rain?", run_id="r")
    await held.reached()
    other = await world.open(drive=False)
    await other.cancel("r")
    assert (await run.result()).text == "It is "
    assert (await (await other.get("r")).result()).reason == "cancelled"
    await check_run(run)


@pytest.mark.proves("C1", "C2", "T2")
async def test_a_run_whose_driver_died_in_a_tool_is_ended_by_whoever_cancels(world: World) -> None:
    held = Stop()

    @tool(effect="once")
    async def pay() -> str:
        await held.arrive()
        return "paid"

    payer = agent([[call("pay"), call("look")], "never"], pay, look)
    rt = await world.open(payer)
    run = await rt.start(payer, "Go", run_id="r")
    await seen(run, "tool_returned")
    await world.kill(rt)
    other = await world.open(drive=False)
    await other.cancel("r")
    result = await (await other.get("r")).result()
    found = results(result.messages)
    assert (result.reason, found["1.tool.2"].content) == ("cancelled", "blue")
    assert found["1.tool.1"].content.startswith("outcome unknown")
    await check_run(await other.get("r"))


@pytest.mark.proves("C1", "J1")
async def test_a_cancel_that_is_durable_before_the_end_wins(world: World) -> None:
    rt = await world.open()
    end = gate_of(rt).hold(has("run_finished"))
    run = await rt.start(agent(["Sunny."]), "Rain?", run_id="r")
    await end.reached()
    await (await world.opened_store()).post("r", CancelLetter(reason="enough"))
    end.let_go()
    result = await run.result()
    assert result.outcome == Cancelled(reason="enough")
    assert result.text == "Sunny."  # paid for, and kept
    await check_run(run)


@pytest.mark.proves("C1", "J8")
async def test_a_cancel_after_the_end_is_told_so(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent(["Sunny."]), "Rain?", run_id="r")
    await run.result()
    with pytest.raises(RunEnded, match="'r' is finished"):
        await run.cancel()
    assert (await run.result()).reason == "natural"
    with pytest.raises(NotFound, match="'nobody'"):
        await rt.cancel("nobody")


@pytest.mark.proves("C1", "J8")
async def test_the_first_of_several_cancels_stands(world: World) -> None:
    held = Stop()
    rt = await world.open()
    reply = gate_of(rt).hold(has("model_replied"))
    run = await rt.start(agent([[call("look")], "never"], look), "Rain?")
    await reply.reached()
    for reason in ("first", "second", "third"):
        await run.cancel(reason=reason)
    reply.let_go()
    assert (await run.result()).outcome == Cancelled(reason="first")
    assert len(of(await check_run(run), e.RunFinished)) == 1
    held.let_go()


@pytest.mark.proves("C2")
async def test_a_cancelled_run_never_comes_back(world: World) -> None:
    held = Stop()
    model = Fragments(["It is ", held], ["never"])
    meteo = agent(model)
    rt = await world.open(meteo)
    run = await rt.start(meteo, "Rain?", run_id="r")
    await held.reached()
    await run.cancel()
    await run.result()
    before = await run.entries()
    await rt.close()
    await world.clock.advance(1000)
    second = await world.open(meteo)
    await (await second.start(meteo.replace(model=ScriptedModel(["Hi."]), name="other"), "Hi")).result()
    with pytest.raises(RunEnded):
        await second.drive("r")
    assert await (await second.get("r")).entries() == before
    assert model.count == 1


@pytest.mark.proves("C1", "W12")
async def test_a_paused_run_can_be_cancelled(world: World) -> None:
    held = Stop()

    @tool(effect="read")
    async def wait() -> str:
        await held.arrive()
        return "waited"

    model = ScriptedModel([[call("wait")], "never"])
    rt = await world.open()
    run = await rt.start(agent(model, wait), "Go", run_id="r")
    await held.reached()
    await rt.pause("r")
    held.let_go()
    info = await becomes(rt, "r", lambda info: info.status == "waiting")
    assert info.reason == "paused"
    await run.cancel()
    assert (await run.result()).reason == "cancelled"
    assert model.count == 1
    await check_run(run)


@pytest.mark.proves("C1", "C2", "J1", "L4", "J8")
async def test_a_cancel_at_every_commit_ends_the_run_once_with_a_whole_transcript(world: World) -> None:
    @tool(effect="once")
    async def pay(bill: str) -> str:
        return f"paid {bill}"

    script = [[call("look"), call("pay", {"bill": "a"})], [call("pay", {"bill": "b"})], "Done."]
    rt = await world.open()
    gate = gate_of(rt)
    payer = agent(script, look, pay)
    await (await rt.start(payer, "Go")).result()
    commits = len(gate.batches)
    assert commits >= 4
    for moment in ("before", "after"):
        for number in range(commits):
            run_id = f"{moment}-{number}"
            count = 0

            async def strike(batch: Any, run_id: str = run_id, number: int = number) -> None:
                nonlocal count
                if batch.run == run_id:
                    if count == number:
                        await gate.inner.post(run_id, CancelLetter())
                    count += 1

            gate.before = strike if moment == "before" else None
            last = moment == "after" and number == commits - 1
            gate.after = strike if moment == "after" and not last else None
            run = await rt.start(payer, "Go", run_id=run_id)
            result = await run.result()
            assert result.reason == ("natural" if last else "cancelled"), run_id
            await check_run(run)
