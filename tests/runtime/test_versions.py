"""R2: an agent that changed while its runs waited."""

from typing import Any

import pytest

from clew.core import entries as e
from clew.core.outcomes import Failed
from clew.testing import ScriptedModel
from tests.runtime.world import (
    Work,
    World,
    agent,
    check_run,
    kinds,
    look,
    of,
    results,
)


async def deployed(world: World, work: Work, newer: Any) -> Any:
    """Run r, begun under one version of its agent and held in a tool, taken up under another."""
    rt = await world.open(work.agent)
    await rt.start(work.agent, "Go", run_id="r")
    await work.held.reached()
    await world.kill(rt)
    work.held.let_go()
    return await (await world.open(newer)).get("r")


@pytest.mark.proves("R2")
async def test_a_changed_agent_is_an_entry_and_the_run_goes_on(world: World) -> None:
    work = Work(instructions="Be brief.")
    run = await deployed(world, work, work.agent.replace(instructions="Be long."))
    assert (await run.result()).text == "Done."
    first, second = of(await check_run(run), e.DriverAttached)
    assert first.changed == ()
    assert second.changed == ("instructions",)
    assert first.fingerprint != second.fingerprint
    assert work.model.requests[-1].instructions == "Be long."


@pytest.mark.proves("R2")
async def test_an_agent_that_says_so_fails_the_run_instead(world: World) -> None:
    work = Work(instructions="Be brief.")
    run = await deployed(world, work, work.agent.replace(instructions="Be long.", on_change="fail"))
    outcome = (await run.result()).outcome
    assert isinstance(outcome, Failed)
    assert outcome.class_ == "agent_changed"
    assert "instructions" in outcome.message
    assert (work.ran, work.model.count) == (1, 1)
    entries = await run.entries()
    assert kinds(entries).count("run_finished") == 1


@pytest.mark.proves("R2")
@pytest.mark.parametrize(("answer", "text"), [("warn", "natural"), ("fail", "error"), (KeyError("x"), "error")])
async def test_a_function_decides_by_what_has_changed(world: World, answer: Any, text: str) -> None:
    asked: list[Any] = []

    def decide(changed: Any) -> Any:
        asked.append(tuple(changed))
        if isinstance(answer, Exception):
            raise answer
        return answer

    work = Work()
    newer = work.agent.replace(instructions="Be long.", tools=[work.tool], on_change=decide)
    run = await deployed(world, work, newer)
    assert (await run.result()).reason == text
    assert asked == [("instructions", "tool:look")]


@pytest.mark.proves("R2", "T2")
async def test_an_open_call_to_a_tool_that_is_gone_is_answered_so(world: World) -> None:
    work = Work()
    run = await deployed(world, work, agent(ScriptedModel([[], "Done."]), look))
    result = await run.result()
    told = results(result.messages)["1.tool.1"]
    assert told.is_error
    assert "'work' is not there any more" in told.content
    assert result.text == "Done."
    assert work.ran == 1
    await check_run(run)


@pytest.mark.proves("T2", "R2")
@pytest.mark.parametrize(("before", "after", "ran"), [("once", "read", 1), ("read", "once", 2)])
async def test_a_call_keeps_the_declaration_under_which_it_was_asked_for(
    world: World, before: str, after: str, ran: int
) -> None:
    old = Work(before, on_doubt="report")
    new = Work(after, old.model, on_doubt="report")
    new.held.let_go()
    run = await deployed(world, old, new.agent)
    result = await run.result()
    assert old.ran + new.ran == ran
    assert results(result.messages)["1.tool.1"].is_error is (before == "once")
    await check_run(run)


@pytest.mark.proves("R2", "J5")
async def test_a_run_whose_agent_is_gone_is_left_for_a_process_that_has_it(world: World) -> None:
    meteo, other = agent(["Sunny."]), agent(["Hi."], name="other")
    starter = await world.open(drive=False)
    await starter.start(meteo, "Rain?", run_id="r")
    rt = await world.open(other)
    assert (await (await rt.start(other, "Hi")).result()).ok
    lease = await rt.store.lease("r")
    assert (lease.epoch, lease.unclean) == (0, 0)
    assert kinds(await rt.store.read("r")) == ["run_started"]
    second = await world.open(meteo)
    assert (await (await second.get("r")).result()).text == "Sunny."
