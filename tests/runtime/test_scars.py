"""What bit a throwaway spike of this design: each of these happened once."""

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from clew import Fatal, Limits, Message, Runtime, tool
from clew.core import entries as e
from clew.core.letters import CancelLetter, MessageLetter
from clew.core.outcomes import Failed
from clew.core.records import Owner
from clew.errors import ModelError, RunEnded
from clew.messages import Data, Refusal, Text, Thinking, ToolCall
from clew.ports import Fragment, ModelReply
from clew.testing import ScriptedModel, call
from tests.runtime.world import (
    Fragments,
    Stop,
    World,
    agent,
    becomes,
    check_run,
    check_transcript,
    gate_of,
    kinds,
    of,
    results,
    seen,
    until,
)


@tool(effect="read")
def look() -> str:
    return "blue"


# --- Fatal and a crash ------------------------------------------------------------------------------------------------


@pytest.mark.proves("T8", "T3", "T2")
@pytest.mark.parametrize("effect", ["read", "once"])
async def test_a_fatal_sibling_and_a_crash_run_no_open_call_again(world: World, effect: Any) -> None:
    ran: list[str] = []
    held = Stop()

    @tool(effect=effect)
    async def act() -> str:
        ran.append("act")
        await held.arrive()
        return "done"

    @tool(effect="read")
    async def fatal() -> str:
        await held.reached()
        raise Fatal("the bank is closed")

    actor = agent([[call("act"), call("fatal")], "never"], act, fatal)
    rt = await world.open(actor)
    run = await rt.start(actor, "Go", run_id="r")
    await seen(run, "tool_failed")
    await world.kill(rt)
    second = await world.open(actor)
    result = await (await second.get("r")).result()
    assert ran == ["act"]
    assert result.outcome == Failed("fatal", "the bank is closed")
    told = results(result.messages)["1.tool.1"]
    assert told.is_error
    assert told.content.startswith("not run" if effect == "read" else "outcome unknown")
    await check_run(await second.get("r"))


# --- what a tool may raise --------------------------------------------------------------------------------------------


class Own(BaseException):
    pass


OF_ITS_OWN: dict[str, Callable[[], BaseException]] = {
    "CancelledError": asyncio.CancelledError,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "Own": lambda: Own("mine"),
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "TimeoutError": TimeoutError,
    "ExceptionGroup": lambda: BaseExceptionGroup("several", [SystemExit(3), ValueError("x")]),
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
}


@pytest.mark.proves("T8", "T2")
@pytest.mark.parametrize("effect", ["read", "once"])
@pytest.mark.parametrize("form", ["async", "sync"])
@pytest.mark.parametrize("name", OF_ITS_OWN)
async def test_whatever_a_tool_raises_is_an_answer_and_is_not_run_again(
    world: World, name: str, form: str, effect: Any
) -> None:
    ran = 0

    @tool(effect=effect, name="fail", on_doubt="report")
    async def fail() -> str:
        nonlocal ran
        ran += 1
        raise OF_ITS_OWN[name]()

    @tool(effect=effect, name="fail", on_doubt="report")
    def fail_in_thread() -> str:
        nonlocal ran
        ran += 1
        raise OF_ITS_OWN[name]()

    rt = await world.open()
    tools = [fail if form == "async" else fail_in_thread, look]
    run = await rt.start(agent([[call("fail"), call("look")], "Done."], *tools), "Go")
    result = await run.result()
    assert (ran, result.text) == (1, "Done.")
    told = results(result.messages)
    assert told["1.tool.1"].is_error
    assert told["1.tool.2"].content == "blue"
    shown = {"Own": "mine", "ExceptionGroup": "several"}.get(name, name)
    assert shown in told["1.tool.1"].content
    assert len(await check_run(run)) <= 10


@pytest.mark.proves("T8", "L10")
@pytest.mark.parametrize("name", ["CancelledError", "SystemExit", "Own", "KeyError"])
async def test_whatever_a_model_raises_ends_or_retries_the_run_and_not_the_process(world: World, name: str) -> None:
    errors = {**OF_ITS_OWN, "KeyError": lambda: KeyError("choices")}
    model = Fragments(["It is ", errors[name]()], ["Sunny.", ModelReply(parts=(Text("Sunny."),))])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    failed = of(await seen(run, "model_failed"), e.ModelFailed)[0]
    await world.clock.advance(60)
    result = await run.result()
    transient = failed.class_ == "interrupted"
    assert transient is (name == "CancelledError")
    assert result.reason == ("natural" if transient else "error")
    await check_run(run)


# --- ids, surrogates, NaN ---------------------------------------------------------------------------------------------


@pytest.mark.proves("T1", "L4")
async def test_a_provider_id_that_repeats_leaves_every_call_answerable(world: World) -> None:
    @tool(effect="once")
    async def act(n: int) -> int:
        return n

    same = [call("act", {"n": n}, "call_0") for n in range(3)]
    model = ScriptedModel([same, same, "Done."])
    rt = await world.open()
    run = await rt.start(agent(model, act), "Go")
    result = await run.result()
    found = results(result.messages)
    assert [found[f"{turn}.tool.{n + 1}"].content for turn in (1, 2) for n in range(3)] == [0, 1, 2] * 2
    check_transcript(model.requests[2].messages)
    await check_run(run)


BROKEN = "a\ud800b"
SURROGATES: dict[str, list[Any]] = {
    "text": [Text(BROKEN)],
    "thinking": [Thinking(BROKEN, signature="sig"), Text("ok")],
    "signature": [Thinking("hm", signature=BROKEN), Text("ok")],
    "args": [ToolCall("c", provider_id="c", tool="say", args_text=f'{{"what": "{BROKEN}"}}')],
    "escaped args": [ToolCall("c", provider_id="c", tool="say", args_text='{"what": "a\\ud800b"}')],
    "tool": [ToolCall("c", provider_id="c", tool=BROKEN, args_text="{}")],
    "provider id": [ToolCall("c", provider_id=BROKEN, tool="say", args_text='{"what": "x"}')],
    "refusal": [Refusal(BROKEN)],
    "data": [Text("ok"), Data("chart", {"title": BROKEN})],
}


@pytest.mark.proves("T8", "Z2")
@pytest.mark.parametrize("where", SURROGATES)
async def test_a_lone_surrogate_in_a_reply_does_not_stop_the_run(world: World, where: str) -> None:
    said: list[str] = []

    @tool(effect="once")
    def say(what: str) -> str:
        said.append(what)
        return what

    parts = tuple(SURROGATES[where])
    calls = any(isinstance(part, ToolCall) for part in parts)
    model = ScriptedModel([ModelReply(parts=parts, finish="tool_calls" if calls else "stop"), "Done."])
    rt = await world.open()
    run = await rt.start(agent(model, say), "Go", run_id="r")
    result = await run.result()
    assert result.status == "done"
    assert result.reason == "natural"
    assert model.count == (2 if calls else 1)
    entries = await check_run(run)
    assert len(of(entries, e.DriverAttached)) == 1
    for raw in await rt.store.read_raw("r"):
        raw.decode()


@pytest.mark.proves("T8", "Z2")
async def test_a_lone_surrogate_in_a_stream_reaches_no_watcher_as_it_is(world: World) -> None:
    held = Stop()
    model = Fragments([Fragment("text", "a\ud800"), Fragment("text", "b"), held])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    await held.reached()
    await run.cancel()
    said = of(await seen(run, "run_finished"), e.ModelReplied)[0]
    assert said.text == "a?b"


@pytest.mark.proves("Z1", "L2")
@pytest.mark.parametrize("cost", [Decimal("NaN"), Decimal("Infinity"), Decimal("sNaN"), float("nan"), "cheap"])
async def test_a_cost_that_is_no_amount_is_no_cost(world: World, cost: Any) -> None:
    bad = ModelReply(parts=(call("look", id="a"),), cost=cost, finish="tool_calls")
    good = ModelReply(parts=(Text("Done."),), cost=Decimal("0.10"))
    rt = await world.open()
    run = await rt.start(agent([bad, good], look, limits=Limits(cost=1.0)), "Go", run_id="r")
    result = await run.result()
    assert (result.text, result.cost) == ("Done.", Decimal("0.10"))
    assert (await run.info()).cost == Decimal("0.10")
    assert of(await check_run(run), e.ModelReplied)[0].cost is None


# --- rows, timers, letters --------------------------------------------------------------------------------------------


@pytest.mark.proves("R1", "J1")
async def test_a_claimed_run_does_not_stay_waiting_in_its_row(world: World) -> None:
    held = Stop()
    later = ModelError("rate_limited", "later", retry_after=60.0)
    model = Fragments([later], [held, ModelReply(parts=(Text("Sunny."),))])
    rt = await world.open()
    run = await rt.start(agent(model), "Rain?", run_id="r")
    info = await becomes(rt, "r", lambda info: info.status == "waiting")
    assert info.waiting_since is not None
    await world.clock.advance(61)
    await held.reached()
    info = await run.info()
    assert (info.status, info.reasons, info.wake_at, info.waiting_since) == ("running", (), None, None)
    waiting = asyncio.create_task(run.result())
    assert [x.run_id async for x in rt.runs(status="waiting")] == []
    held.let_go()
    assert (await waiting).text == "Sunny."


@pytest.mark.proves("T7", "T6", "L10")
async def test_a_retry_that_is_due_does_not_sleep_while_a_sibling_runs(world: World) -> None:
    tries = 0
    held, again = Stop(), asyncio.Event()

    @tool(effect="read")
    async def hold() -> str:
        await held.arrive()
        return "held"

    @tool(effect="read", retries=1)
    async def flaky() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ConnectionError("reset")
        again.set()
        return "through"

    rt = await world.open()
    run = await rt.start(agent([[call("hold"), call("flaky")], "Done."], hold, flaky), "Go")
    await seen(run, "tool_failed")
    await held.reached()
    await world.clock.advance(5)
    async with asyncio.timeout(5):
        await again.wait()  # while `hold` still runs
    await seen(run, "tool_returned")
    held.let_go()
    assert (await run.result()).text == "Done."


@pytest.mark.proves("T7", "R1")
async def test_a_long_retry_is_not_parked_while_a_sibling_runs_and_is_taken_up_afterwards(world: World) -> None:
    tries = 0
    held = Stop()

    @tool(effect="read")
    async def hold() -> str:
        await held.arrive()
        return "held"

    @tool(effect="read", retries=9)
    async def flaky() -> str:
        nonlocal tries
        tries += 1
        if tries <= 6:
            raise ConnectionError("reset")
        return "through"

    flaky_agent = agent([[call("hold"), call("flaky")], "Done."], hold, flaky)
    rt = await world.open(flaky_agent)
    run = await rt.start(flaky_agent, "Go", run_id="r")
    after = 0
    for _ in range(5):
        after = (await seen(run, "tool_failed", after=after))[-1].seq
        await world.clock.advance(61)
    await seen(run, "tool_failed", after=after)
    assert (await run.info()).status == "running"
    held.let_go()
    await becomes(rt, "r", lambda info: info.status == "waiting")
    await world.clock.advance(61)
    assert (await run.result()).text == "Done."
    await check_run(run)


@pytest.mark.proves("J1", "R0")
async def test_letters_of_a_cancelled_run_do_not_wake_anybody_for_ever(world: World) -> None:
    held = Stop()
    meteo = agent(Fragments(["It ", held]))
    rt = await world.open(meteo)
    run = await rt.start(meteo, "Rain?", run_id="r")
    await held.reached()
    place = await world.opened_store()
    await place.post("r", MessageLetter(messages=(Message.user("Hello?"),), when="idle"))
    await run.cancel()
    for _ in range(3):
        with contextlib.suppress(RunEnded):
            await place.post("r", CancelLetter())
    await run.result()
    away = Owner(host="away", boot="another", pid=1, start=1)
    for _ in range(3):
        await world.clock.advance(3600)
        assert await place.claim(away, lease=1) == []
    assert await place.next_wake() is None
    assert (await place.lease("r")).owner is None
    claims = gate_of(rt).calls["claim"]
    entries = await run.entries()
    assert kinds(entries)[-1] == "run_finished"
    await rt.start(agent(["Hi."], name="other"), "Hi")
    assert await run.entries() == entries
    assert gate_of(rt).calls["claim"] <= claims + 3


# --- leases in real time ----------------------------------------------------------------------------------------------


@pytest.mark.proves("R1")
@pytest.mark.parametrize("effect", ["read", "once"])
async def test_a_tool_that_blocks_the_loop_past_its_lease_does_not_lose_the_run(
    kind: str, tmp_path: Path, effect: Any
) -> None:
    ran = 0

    @tool(effect=effect)
    async def block() -> str:
        nonlocal ran
        ran += 1
        time.sleep(1.2)  # noqa: ASYNC251  # what this test is about
        return "blocked"

    blocker = agent([[call("block")], "Done."], block)
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/clew.db"
    async with Runtime(url, agents=[blocker], lease=0.5) as rt:
        run = await rt.start(blocker, "Go", run_id="r")
        result = await run.result()
        entries = await check_run(run)
    assert (ran, result.text) == (1, "Done.")
    assert [entry.epoch for entry in entries] == [1] * len(entries)
    assert results(result.messages)["1.tool.1"].content == "blocked"


@pytest.mark.proves("T8", "R1")
def test_a_hung_thread_does_not_keep_the_process_from_its_exit(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import asyncio, threading
        from clew import Agent, Runtime, tool
        from clew.testing import ScriptedModel, call

        began = threading.Event()

        @tool(effect="read")
        def hang() -> str:
            began.set()
            threading.Event().wait()
            return "never"

        agent = Agent("hanging", model=ScriptedModel([[call("hang")], "never"]), tools=[hang])

        async def main() -> None:
            async with Runtime("sqlite:///{tmp_path}/clew.db", agents=[agent], grace=0.1) as rt:
                run = await rt.start(agent, "Go", run_id="r")
                await asyncio.to_thread(began.wait, 10)
            print("left", flush=True)

        asyncio.run(main())
        """
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
    assert time.monotonic() - began < 15


# --- deltas -----------------------------------------------------------------------------------------------------------


class Counted(str):
    """Text that counts how much of it is copied."""

    copied = 0

    def __add__(self, other: str) -> "Counted":
        Counted.copied += len(self) + len(other)
        return Counted(str(self) + other)

    def __getitem__(self, place: Any) -> str:
        found = str(self)[place]
        Counted.copied += len(found)
        return found


@pytest.mark.proves("E1", "E2", "J4")
@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_twenty_thousand_fragments_are_joined_once(world: World) -> None:
    many, word = 20_000, "word "
    Counted.copied = 0
    pieces = [Fragment("text", Counted(word)) for _ in range(many)]
    halves = [Stop(), Stop()]
    whole = ModelReply(parts=(Text(word * many),))
    model = Fragments([*pieces[: many // 2], halves[0], *pieces[many // 2 :], halves[1], whole])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    copied = {"early": 0, "late": 0}
    deltas = {"early": 0, "late": 0}

    async def watch(name: str) -> str:
        heard: list[str] = []
        async for item in run.watch():
            if item.kind == "text":
                deltas[name] += 1
                copied[name] += len(item.text)
                heard.append(item.text)
        return "".join(heard)

    early = asyncio.create_task(watch("early"))
    await halves[0].reached()
    late = asyncio.create_task(watch("late"))
    await asyncio.sleep(0)
    halves[0].let_go()
    await halves[1].reached()
    halves[1].let_go()
    await run.result()
    assert await early == await late == word * many
    assert copied == {"early": len(word) * many, "late": len(word) * many}  # each word once to each watcher
    assert deltas["late"] <= many // 2 + 2  # what came before it, in one piece
    assert Counted.copied <= 4 * len(word) * many


@pytest.mark.proves("E2", "J4")
@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_looking_at_a_long_stream_costs_what_is_new(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from clew.runtime import saying as place

    handled = 0
    joined = place._joined

    def counting(saying: Any, pieces: Any, offsets: Any) -> Any:
        nonlocal handled
        handled += len(pieces)
        return joined(saying, pieces, offsets)

    monkeypatch.setattr(place, "_joined", counting)
    many = 5_000
    midway = Stop()
    fragments = [Fragment("text", "x")] * (many // 2)
    model = Fragments([*fragments, midway, *fragments, ModelReply(parts=(Text("x" * many),))])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    watchers = [asyncio.create_task(_drained(run)) for _ in range(3)]
    await midway.reached()
    await until(lambda: handled == 3 * many // 2)
    midway.let_go()
    await run.result()
    await asyncio.wait(watchers)
    assert 0 < handled <= 3 * many
    assert of(await run.entries(), e.ModelReplied)[0].text == "x" * many


async def _drained(run: Any) -> int:
    return len([item async for item in run.watch()])
