"""B: what a run goes on from, and what of it crosses."""

import asyncio
import sys
from typing import Any

import msgspec
import pytest

from clew import Agent, Limits, Message, codec, tool
from clew.core import entries as e
from clew.core.outcomes import Cancelled, Stopped
from clew.core.snapshots import snapshot
from clew.core.values import blob_form
from clew.messages import Usage
from clew.ports import NewRun
from clew.runtime.plan import stamped
from clew.testing import ScriptedModel, call
from tests.runtime.world import LEASE, Stop, World, agent, check_run, check_transcript, kinds, of, results, seen


def based(
    run: str, who: Agent[Any, Any], base: e.Base | None, *said: str, blobs: Any = None, name: str | None = None
) -> NewRun:
    """A run that goes on from a position, apart from any thread; forks will make such."""
    started = e.RunStarted(
        input=tuple(Message.user(text) for text in said),
        agent=who.name if name is None else name,
        fingerprint=who.fingerprint,
        limits=who.limits,
        base=base,
        root=run,
        origin="fork",
        start_digest=f"sha256:{run}",
    )
    spec = {who.fingerprint: codec.encode_spec(who.spec)}
    return stamped(NewRun(run=run, entries=(started,), blobs={**spec, **(blobs or {})}), 1)


class Bank:
    """A base with open calls: looked (done), looking (read, held), paying (once, held)."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.held = Stop()

        @tool(effect="read")
        async def look(at: str) -> str:
            self.ran.append(f"look {at}")
            if at == "held":
                await self.held.arrive()
            return f"saw {at}"

        @tool(effect="once", on_doubt="report")
        async def pay(bill: str) -> str:
            self.ran.append(f"pay {bill}")
            await self.held.arrive()
            return f"paid {bill}"

        script = [[call("look", {"at": "sky"}), call("look", {"at": "held"}), call("pay", {"bill": "a"})], "Done."]
        self.model = ScriptedModel(script)
        self.agent = agent(self.model, look, pay)

    async def position(self, world: World) -> tuple[Any, int]:
        """A runtime, and the place in run "base" where one call is finished and two are open."""
        rt = await world.open(self.agent)
        run = await rt.start(self.agent, "Go", run_id="base")
        found = await seen(run, "tool_returned")
        await self.held.reached()
        assert kinds(found) == ["run_started", "driver_attached", "model_replied", "tool_started", "tool_returned"]
        return rt, found[-1].seq


@pytest.mark.proves("B1", "B5")
async def test_the_conversation_crosses_and_the_runs_own_affairs_do_not(world: World) -> None:
    @tool(effect="read")
    def look() -> str:
        return "blue"

    first = agent([[call("look")], "One."], look, limits=Limits(turns=2))
    second = agent(["Two."], look, limits=Limits(turns=1), name="pilot")
    rt = await world.open()
    one = await (await rt.start(first, "First", run_id="one", thread_id="t", metadata={"a": 1})).result()
    run = await rt.start(second, "Second", run_id="two", thread_id="t")
    two = await run.result()
    assert [m.text for m in two.messages if m.role != "tool"] == ["First", "", "One.", "Second", "Two."]
    assert two.messages[:4] == one.messages  # the same ids, the same makers
    entries = await check_run(run)
    assert of(entries, e.RunStarted)[0].base == e.BaseAt("one", 6)
    assert [entry.seq for entry in entries] == [1, 2, 3, 4]
    assert of(entries, e.ModelReplied)[0].step == "1.model"
    assert two.turns == 1
    assert two.usage.requests == 1
    info = await run.info()
    assert (info.turns, info.calls, info.usage, info.inherited_usage) == (1, 0, two.usage, one.usage)
    assert info.metadata == {}
    assert len([entry async for entry in run.watch() if hasattr(entry, "seq")]) == 4


@pytest.mark.proves("B1", "C2")
@pytest.mark.parametrize("how", ["cancel", "limit"])
async def test_how_the_base_ended_is_the_bases_own_affair(world: World, how: str) -> None:
    held = Stop()

    @tool(effect="read")
    async def look() -> str:
        await held.arrive()
        return "blue"

    first = agent([[call("look")], "One."], look, limits=Limits(turns=1 if how == "limit" else 9))
    rt = await world.open()
    run = await rt.start(first, "First", run_id="one", thread_id="t")
    await held.reached()
    if how == "cancel":
        await run.cancel(reason="enough")
    held.let_go()
    assert (await run.result()).outcome == (
        Cancelled(reason="enough") if how == "cancel" else Stopped("turns", "1 of 1")
    )
    two = await (await rt.start(agent(["Two."], look, name="pilot"), "Second", thread_id="t")).result()
    assert (two.reason, two.text) == ("natural", "Two.")
    check_transcript(two.messages)


@pytest.mark.proves("B2", "B1", "T1", "T2")
async def test_an_open_call_is_judged_anew_and_a_started_once_call_is_never_started(world: World) -> None:
    bank = Bank()
    rt, seq = await bank.position(world)
    place = await world.opened_store()
    fork_model = ScriptedModel(["Forked."])
    forked = bank.agent.replace(model=fork_model)
    bank.held.let_go()
    base = await (await rt.get("base")).result()
    await rt.close()
    bank.ran.clear()
    await place.start(based("fork", forked, e.BaseAt("base", seq)))
    second = await world.open(forked)
    run = await second.get("fork")
    await seen(run, "tool_returned")
    await world.clock.advance(LEASE + 1)  # the driver of the base may be at it until then
    result = await run.result()
    assert bank.ran == ["look held"]
    entries = await run.entries()
    assert [x.step for x in of(entries, e.ToolReturned)] == ["1.tool.2"]
    assert of(entries, e.ToolStarted) == []
    assert [(x.step, x.class_) for x in of(entries, e.ToolFailed)] == [("1.tool.3", "outcome_unknown")]
    found = results(result.messages)
    assert [found[f"1.tool.{n}"].is_error for n in (1, 2, 3)] == [False, False, True]
    assert "outcome unknown" in found["1.tool.3"].content
    check_transcript(result.messages)
    assert of(entries, e.ModelReplied)[0].step == "2.model"
    assert (base.text, result.text, fork_model.count) == ("Done.", "Forked.", 1)


@pytest.mark.proves("B3", "L4")
async def test_new_input_answers_what_is_open_in_call_order(world: World) -> None:
    bank = Bank()
    rt, seq = await bank.position(world)
    place = await world.opened_store()
    await world.kill(rt)
    bank.ran.clear()
    forked = bank.agent.replace(model=ScriptedModel(["Forked."]))
    await place.start(based("fork", forked, e.BaseAt("base", seq), "Never mind, do this."))
    bank.held.let_go()
    run = await (await world.open(forked)).get("fork")
    result = await run.result()
    assert not [ran for ran in bank.ran if ran == "look sky"]
    found = [m for m in result.messages if m.role == "tool"]
    assert [m.parts[0].call for m in found] == ["1.tool.1", "1.tool.2", "1.tool.3"]
    assert found[0].parts[0].content == "saw sky"
    assert found[1].parts[0].content == "not run: the conversation went another way"
    assert found[2].parts[0].content.startswith("outcome unknown")
    assert [m.text for m in result.messages][-2:] == ["Never mind, do this.", "Forked."]
    check_transcript(result.messages)


@pytest.mark.proves("B2")
async def test_a_once_call_whose_intent_came_after_the_position_starts_in_the_new_run(world: World) -> None:
    ran: list[str] = []

    @tool(effect="once", sequential=True)
    def pay(bill: str) -> str:
        ran.append(bill)
        return f"paid {bill}"

    payer = agent([[call("pay", {"bill": "a"}), call("pay", {"bill": "b"})], "Done."], pay)
    rt = await world.open(payer)
    run = await rt.start(payer, "Go", run_id="base")
    await run.result()
    first = of(await run.entries(), e.ToolReturned)[0]
    started = [entry.seq for entry in of(await run.entries(), e.ToolStarted)]
    assert started[0] < first.seq < started[1]
    await rt.close()
    ran.clear()
    await (await world.opened_store()).start(based("fork", payer, e.BaseAt("base", first.seq)))
    second = await world.open(payer.replace(model=ScriptedModel(["Forked."])))
    result = await (await second.get("fork")).result()
    assert ran == ["b"]
    assert [results(result.messages)[f"1.tool.{n}"].content for n in (1, 2)] == ["paid a", "paid b"]


@pytest.mark.proves("B4")
@pytest.mark.parametrize("form", ["nothing", "position", "snapshot"])
async def test_every_form_of_base_is_read(world: World, form: str) -> None:
    meteo = agent(["One."])
    rt = await world.open(meteo)
    one = await (await rt.start(meteo, "First", run_id="one")).result()
    blobs: dict[str, bytes] = {}
    base: e.Base | None = None
    if form == "position":
        base = e.BaseAt("one", 4)
    if form == "snapshot":
        data = msgspec.json.encode(snapshot(await rt.state_of("one")))
        reference, digest = blob_form(data, "application/json")
        blobs[digest] = data
        base = e.BaseSnapshot(blob=reference)
    await rt.close()
    goes_on = meteo.replace(model=ScriptedModel(["Two."]))
    await (await world.opened_store()).start(based("two", goes_on, base, "Second", blobs=blobs))
    second = await world.open(goes_on)
    two = await (await second.get("two")).result()
    assert two.messages[:-2] == (() if base is None else one.messages)
    assert [m.text for m in two.messages[-2:]] == ["Second", "Two."]
    info = await second.store.info("two")
    assert info.inherited_usage == (Usage() if base is None else one.usage)


@pytest.mark.proves("B5")
async def test_a_base_two_thousand_deep_opens(world: World) -> None:
    deep, meteo = 2_000, agent(["Deep."])
    place = await world.opened_store()
    elsewhere = meteo.replace(name="elsewhere")
    await place.start(based("run-0", elsewhere, None, "0"))
    for first in range(1, deep, 250):
        async with asyncio.TaskGroup() as group:
            for n in range(first, min(first + 250, deep)):
                group.create_task(place.start(based(f"run-{n}", elsewhere, e.BaseAt(f"run-{n - 1}", 1), str(n))))
    await place.start(based("top", meteo, e.BaseAt(f"run-{deep - 1}", 1), "top"))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        rt = await world.open(meteo)
        result = await (await rt.get("top")).result()
    finally:
        sys.setrecursionlimit(limit)
    assert len(result.messages) == deep + 2
    assert [m.text for m in result.messages[:3]] == ["0", "1", "2"]
    assert result.text == "Deep."


@pytest.mark.proves("B5", "J9")
async def test_a_thread_of_many_runs_is_one_conversation_with_one_journal_each(world: World) -> None:
    rt = await world.open()
    for n in range(10):
        run = await rt.start(agent([f"Answer {n}."]), f"Question {n}", run_id=f"r{n}", thread_id="t")
        await run.result()
        assert (await run.entries())[0].seq == 1
    messages = await rt.thread("t").messages()
    assert [m.text for m in messages] == [text for n in range(10) for text in (f"Question {n}", f"Answer {n}.")]
    assert [m.id.partition(":")[0] for m in messages] == [f"r{n}" for n in range(10) for _ in range(2)]
