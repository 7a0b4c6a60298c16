"""E: watching: history, then what comes, without gap or repeat, and never in the way of a run."""

import asyncio
import threading
from typing import Any

import pytest

from clew import ToolContext, tool
from clew.core import entries as e
from clew.core.deltas import ProgressDelta, ResetDelta, TextDelta
from clew.core.snapshots import Snapshot
from clew.errors import ModelError, NotFound
from clew.messages import Text, Thinking
from clew.ports import Fragment, ModelReply
from clew.testing import ScriptedModel, call
from tests.runtime.world import Fragments, Stop, World, agent, becomes, gate_of, has, kinds, of, seen


@tool(effect="read")
def look() -> str:
    return "blue"


def seqs(items: list[Any]) -> list[int]:
    return [item.seq for item in items if isinstance(getattr(item, "seq", None), int)]


async def all_of(watching: Any) -> list[Any]:
    return [item async for item in watching]


# --- E1 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("E1")
async def test_history_then_live_without_gap_or_repeat_from_wherever_one_joins(world: World) -> None:
    stops = [Stop() for _ in range(3)]

    @tool(effect="read")
    async def wait(n: int) -> int:
        await stops[n].arrive()
        return n

    rt = await world.open()
    other = await world.open(drive=False)
    script = [*([call("wait", {"n": n})] for n in range(3)), "Done."]
    run = await rt.start(agent(script, wait), "Go", run_id="r")
    watchers: list[tuple[int, asyncio.Task[list[Any]]]] = []
    for stop in stops:
        await stop.reached()
        for where in (run, await other.get("r")):
            watchers += [(after, asyncio.create_task(all_of(where.watch(after)))) for after in (0, 2, 5, 40)]
        await asyncio.sleep(0)
        stop.let_go()
    await run.result()
    total = len(await run.entries())
    watchers += [(after, asyncio.create_task(all_of(run.watch(after)))) for after in (0, 4, total - 1)]
    for after, watcher in watchers:
        if after >= total:
            watcher.cancel()  # it watches for what will never come
            continue
        assert seqs(await watcher) == list(range(after + 1, total + 1))


@pytest.mark.proves("E1")
async def test_fragments_carry_their_place_and_a_late_watcher_gets_the_text_so_far_once(world: World) -> None:
    first, second = Stop(), Stop()
    whole = ModelReply(parts=(Thinking("Hm."), Text("It is sunny.")))
    pieces = [Fragment("thinking", "Hm.", 0), Fragment("text", "It ", 1), Fragment("text", "is ", 1), first]
    model = Fragments([*pieces, Fragment("text", "sunny.", 1), second, whole])
    rt = await world.open()
    run = await rt.start(agent(model), "Rain?")
    early = asyncio.create_task(all_of(run.watch()))
    await first.reached()
    late = run.watch(after=2)
    said = [await anext(late), await anext(late)]
    assert [(d.kind, d.text, d.part, d.offset) for d in said] == [("thinking", "Hm.", 0, 0), ("text", "It is ", 1, 0)]
    assert {(d.step, d.epoch, d.attempt) for d in said} == {("1.model", 1, 1)}
    first.let_go()
    await second.reached()
    rest = await anext(late)
    assert (rest.text, rest.part, rest.offset) == ("sunny.", 1, 6)
    second.let_go()
    assert kinds([item async for item in late]) == ["model_replied", "run_finished"]
    texts: dict[int, str] = {}
    for item in await early:
        if item.kind in ("text", "thinking"):
            assert item.offset == len(texts.get(item.part, ""))
            texts[item.part] = texts.get(item.part, "") + item.text
    assert texts == {0: "Hm.", 1: "It is sunny."}


@pytest.mark.proves("E1", "L11")
async def test_a_newer_attempt_voids_what_the_older_one_said(world: World) -> None:
    broken, again = Stop(), Stop()
    error = ModelError("interrupted", "the stream broke", retry_after=0.0)
    model = Fragments(["Rai", broken, error], ["Sun", again, "ny.", ModelReply(parts=(Text("Sunny."),))])
    rt = await world.open()
    run = await rt.start(agent(model), "Rain?")
    screen: dict[str, tuple[tuple[int, int], str]] = {}
    async for item in run.watch():
        match item:
            case TextDelta():
                mark, text = screen.get(item.step, ((0, 0), ""))
                newer = (item.epoch, item.attempt)
                screen[item.step] = (newer, item.text if newer > mark else text + item.text)
                assert newer >= mark
            case ResetDelta():
                screen[item.step] = ((item.epoch, item.attempt), "")
            case _:
                pass
        for stop in (broken, again):
            if stop.passed:
                stop.let_go()
    assert screen["1.model"] == ((1, 2), "Sunny.")
    assert of(await run.entries(), e.ModelReplied)[0].text == "Sunny."


@pytest.mark.proves("E1", "J2")
async def test_a_watcher_goes_on_over_a_takeover_by_another_process(world: World) -> None:
    held = Stop()
    model = Fragments(["It is ", held], ["unused"])
    meteo = agent(model)
    rt = await world.open(meteo)
    await rt.start(meteo, "Rain?", run_id="r")
    await held.reached()
    reader = await world.open(drive=False)
    watching = asyncio.create_task(all_of((await reader.get("r")).watch()))
    await world.kill(rt)
    second = await world.open(meteo.replace(model=ScriptedModel(["Sunny."])))
    await (await second.get("r")).result()
    items = await watching
    assert seqs(items) == list(range(1, len(seqs(items)) + 1))
    assert kinds([i for i in items if hasattr(i, "seq")])[-2:] == ["model_replied", "run_finished"]


@pytest.mark.proves("E1")
async def test_watching_goes_on_through_waits_unless_asked_not_to(world: World) -> None:
    meteo = agent([ModelError("rate_limited", "later", retry_after=60.0), [call("look")], "Sunny."], look)
    rt = await world.open(meteo)
    run = await rt.start(meteo, "Rain?", run_id="r")
    whole = asyncio.create_task(all_of(run.watch()))
    await becomes(rt, "r", lambda info: info.status == "waiting")
    await rt.pause("r")
    await world.clock.advance(61)
    await becomes(rt, "r", lambda info: "paused" in info.reasons)
    assert kinds([i async for i in run.watch(until="settled") if hasattr(i, "seq")])[-1] != "run_finished"
    assert not whole.done()
    await rt.unpause("r")
    await run.result()
    assert (await whole)[-1].kind == "run_finished"


@pytest.mark.proves("E1")
async def test_the_words_of_a_run_are_those_of_its_journal(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent([["Let me look.", call("look")], "It is a sunny day."], look), "Rain?")
    said = "".join([piece async for piece in run.text()])
    assert said == "Let me look.It is a sunny day."
    assert "".join([piece async for piece in run.text()]) == said


@pytest.mark.proves("E1")
async def test_progress_of_a_tool_is_shown_and_not_kept(world: World) -> None:
    held = Stop()

    @tool(effect="read")
    async def load(ctx: ToolContext[object]) -> str:
        ctx.emit({"percent": 50})
        await held.arrive()
        return "loaded"

    rt = await world.open()
    run = await rt.start(agent([[call("load")], "Done."], load), "Go")
    async for item in run.watch():
        if isinstance(item, ProgressDelta):
            assert (item.step, item.value) == ("1.tool.1", {"percent": 50})
            break
    held.let_go()
    await run.result()
    assert "progress" not in kinds(await run.entries())


@pytest.mark.proves("E1", "T8")
async def test_progress_may_be_shown_from_a_thread(world: World) -> None:
    asyncio.get_running_loop().set_debug(True)  # which refuses what only the loop's own thread may do
    go, shown = threading.Event(), threading.Event()

    @tool(effect="read")
    def load(ctx: ToolContext[object]) -> str:
        go.wait(5)
        ctx.emit({"percent": 50})
        return "seen" if shown.wait(5) else "not seen"

    rt = await world.open()
    run = await rt.start(agent([[call("load")], "Done."], load), "Go")
    after = (await seen(run, "model_replied"))[-1].seq
    watching = run.watch(after)
    waiting = asyncio.ensure_future(anext(watching))
    for _ in range(50):
        await asyncio.sleep(0)  # until it waits for what comes
    go.set()
    assert isinstance(await waiting, ProgressDelta)
    shown.set()
    await run.result()
    assert of(await run.entries(), e.ToolReturned)[0].content == "seen"


@pytest.mark.proves("E1")
async def test_watching_a_run_that_is_not_there_says_so(world: World) -> None:
    rt = await world.open()
    with pytest.raises(NotFound, match="'nobody'"):
        await rt.get("nobody")
    gone = (await rt.start(agent(["Hi."]), "Hi")).watch()
    assert (await anext(gone)).kind == "run_started"


# --- E2, E3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("E2")
async def test_slow_broken_and_absent_watchers_hold_up_nothing_and_a_slow_one_misses_nothing(world: World) -> None:
    held = Stop()
    pieces = [f"{n} " for n in range(300)]
    model = Fragments([held, *pieces, ModelReply(parts=(Text("".join(pieces)),))])
    rt = await world.open()
    run = await rt.start(agent(model), "Count", run_id="r")
    await held.reached()
    slow = run.watch()
    await anext(slow)

    async def breaks() -> None:
        async for _ in run.watch():
            raise ValueError("the page was closed")

    broken, cancelled = asyncio.create_task(breaks()), asyncio.create_task(all_of(run.watch()))
    await asyncio.sleep(0)
    cancelled.cancel()
    held.let_go()
    assert (await run.result()).ok
    with pytest.raises(ValueError, match="page was closed"):
        await broken
    assert seqs([item async for item in slow]) == [2, 3, 4]


@pytest.mark.proves("E3", "E1")
async def test_what_a_watcher_sees_is_committed_the_end_included(world: World) -> None:
    rt = await world.open()
    place = await world.opened_store()
    end = gate_of(rt).hold(has("run_finished"))
    run = await rt.start(agent([[call("look")], "Done."], look), "Go", run_id="r")
    watched: list[Any] = []

    async def watch() -> None:
        async for item in run.watch():
            if hasattr(item, "seq"):
                assert item in await place.read("r")
                watched.append(item)

    watching = asyncio.create_task(watch())
    await end.reached()
    for _ in range(20):
        await asyncio.sleep(0)
    assert "model_replied" in kinds(watched)
    assert kinds(watched)[-1] != "run_finished"
    assert (await place.info("r")).status != "done"
    end.let_go()
    await watching
    assert kinds(watched)[-1] == "run_finished"


@pytest.mark.proves("E3", "J8")
async def test_a_result_is_not_given_before_the_end_is_committed(world: World) -> None:
    rt = await world.open()
    end = gate_of(rt).hold(has("run_finished"))
    run = await rt.start(agent(["Sunny."]), "Rain?")
    waiting = asyncio.create_task(run.result())
    await end.reached()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert (await run.result(timeout=0.01)).status == "waiting"
    end.let_go()
    assert (await waiting).text == "Sunny."


# --- E4, E5 -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("E4")
async def test_all_runs_in_commit_order_and_on_from_any_cursor(world: World) -> None:
    rt = await world.open()
    other = await world.open(drive=False)
    meteo = agent([[call("look")], "Done."], look)
    found: list[tuple[str, str, Any]] = []

    async def collect(after: str | None, into: list[tuple[str, str, Any]], ends: int) -> None:
        async for cursor, run, entry in other.watch(after):
            into.append((cursor, run, entry))
            ends -= entry.kind == "run_finished"
            if not ends:
                return

    watching = asyncio.create_task(collect(None, found, 6))
    async with asyncio.TaskGroup() as group:
        for n in range(6):
            group.create_task(rt.start(meteo, "Go", run_id=f"r{n}", thread_id=f"t{n % 2}"))
    await watching
    for n in range(6):
        mine = [entry for _, run, entry in found if run == f"r{n}"]
        assert mine == await (await rt.get(f"r{n}")).entries()
    for place in (0, 7, len(found) - 2):
        rest: list[tuple[str, str, Any]] = []
        ends = sum(entry.kind == "run_finished" for _, _, entry in found[place + 1 :])
        await collect(found[place][0], rest, ends)
        assert [(run, entry.seq) for _, run, entry in rest] == [(run, x.seq) for _, run, x in found[place + 1 :]]
    one = other.watch(thread_id="t1")
    assert {(await anext(one))[1] for _ in range(12)} <= {"r1", "r3", "r5"}


@pytest.mark.proves("E5")
async def test_a_snapshot_then_what_comes_after_it(world: World) -> None:
    held = Stop()

    @tool(effect="read")
    async def wait() -> str:
        await held.arrive()
        return "waited"

    rt = await world.open()
    run = await rt.start(agent([[call("look"), call("wait")], "Done."], look, wait), "Go", run_id="r")
    await held.reached()
    items: list[Any] = []
    async for item in run.watch(snapshot=True):
        items.append(item)
        held.let_go()
    assert isinstance(items[0], Snapshot)
    assert not any(isinstance(item, Snapshot) for item in items[1:])
    assert (items[0].run, items[0].messages[0].text) == ("r", "Go")
    assert seqs(items[1:]) == list(range(items[0].seq + 1, len(await run.entries()) + 1))
