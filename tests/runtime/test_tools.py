"""T: how often a tool runs, with what, at whose side, and what becomes of whatever it does."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from clew import Fatal, ToolContext, ToolError, ToolOutput, tool
from clew.core import entries as e
from clew.core.outcomes import Failed
from clew.core.rules import PARALLEL_CALLS
from clew.messages import ToolCall
from clew.runtime.user_code import THREADS
from clew.testing import ScriptedModel, call
from tests.runtime.world import Stop, World, agent, check_run, gate_of, has, of, results, seen, until


class Ledger:
    """What was really done, in the order in which it began; one of the tools can be held in its first run."""

    def __init__(self, effect: Any = "read") -> None:
        self.ran: list[str] = []
        self.keys: list[str] = []
        self.held = Stop()

        @tool(effect=effect, on_doubt="report")
        async def act(ctx: ToolContext[object], what: str) -> str:
            self.ran.append(what)
            self.keys.append(ctx.idempotency_key)
            if what == "C" and not self.held.passed:
                await self.held.arrive()
            return f"did {what}"

        self.tool = act

    def agent(self, *what: str, **given: Any) -> Any:
        self.model = ScriptedModel([[call("act", {"what": name}) for name in what], "Done."])
        return agent(self.model, self.tool, **given)


# --- T1, T3, T4 -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T1", "T2", "T3", "T4", "C2", "J2")
@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_two_finished_calls_and_one_running_one_then_a_crash(world: World, effect: str) -> None:
    ledger = Ledger(effect)
    actor = ledger.agent("A", "B", "C")
    rt = await world.open(actor)
    run = await rt.start(actor, "Go", run_id="r")
    await seen(run, "tool_returned", "tool_returned")
    await ledger.held.reached()
    await world.kill(rt)
    second = await world.open(actor)
    run = await second.get("r")
    result = await run.result()
    once = effect == "once"
    assert sorted(ledger.ran) == (["A", "B", "C"] if once else ["A", "B", "C", "C"])
    assert ledger.keys[-1] == "r:1.tool.3"
    assert len(set(ledger.keys)) == 3
    assert ledger.model.count == 2
    found = results(result.messages)
    assert [found[f"1.tool.{n}"].content for n in (1, 2)] == ["did A", "did B"]
    entries = await check_run(run)
    if once:
        assert found["1.tool.3"].is_error
        assert found["1.tool.3"].content.startswith("outcome unknown")
        doubt = of(entries, e.DoubtResolved)[0]
        assert (doubt.call, doubt.how, doubt.finding, doubt.rule) == ("1.tool.3", "policy", "unknown", "report")
    else:
        assert found["1.tool.3"].content == "did C"
    assert result.text == "Done."


@pytest.mark.proves("T3", "T2")
async def test_a_crash_between_body_and_commit_repeats_a_read_and_doubts_a_once(world: World) -> None:
    ran: list[str] = []

    @tool(effect="read")
    def look() -> str:
        ran.append("look")
        return "blue"

    @tool(effect="once", on_doubt="report")
    def pay() -> str:
        ran.append("pay")
        return "paid"

    actor = agent([[call("look"), call("pay")], "Done."], look, pay)
    rt = await world.open(actor)
    results_commit = gate_of(rt).hold(has("tool_returned"))
    await rt.start(actor, "Go", run_id="r")
    await results_commit.reached()
    await until(lambda: "pay" in ran)
    await world.kill(rt)
    result = await (await (await world.open(actor)).get("r")).result()
    assert ran.count("pay") == 1
    assert ran.count("look") <= 2
    assert "outcome unknown" in results(result.messages)["1.tool.2"].content


@pytest.mark.proves("T3", "T2")
async def test_a_call_without_an_intent_simply_starts_after_a_crash(world: World) -> None:
    ran: list[str] = []

    @tool(effect="once", sequential=True, on_doubt="report")
    async def pay(bill: str) -> str:
        ran.append(bill)
        if bill == "a":
            await held.arrive()
        return bill

    held = Stop()
    actor = agent([[call("pay", {"bill": bill}) for bill in "ab"], "Done."], pay)
    rt = await world.open(actor)
    await rt.start(actor, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    result = await (await (await world.open(actor)).get("r")).result()
    assert ran == ["a", "b"]
    assert [results(result.messages)[f"1.tool.{n}"].is_error for n in (1, 2)] == [True, False]


@pytest.mark.proves("T4", "J2")
async def test_a_committed_reply_is_never_asked_for_again_and_an_uncommitted_one_is(world: World) -> None:
    model = ScriptedModel([[call("act", {"what": "C"})], "Done."])
    ledger = Ledger()
    actor = agent(model, ledger.tool)
    rt = await world.open(actor)
    reply = gate_of(rt).hold(has("model_replied"))
    await rt.start(actor, "Go", run_id="r")
    await reply.reached()
    await world.kill(rt)
    assert model.count == 1
    second = await world.open(actor)
    await ledger.held.reached()
    assert model.count == 2  # the first answer was never durable
    await world.kill(second)
    third = await world.open(actor)
    assert (await (await third.get("r")).result()).text == "Done."
    assert [request.ordinal for request in model.requests] == [0, 0, 1]


@pytest.mark.proves("T1")
async def test_call_ids_are_ours_and_the_providers_goes_back_to_it(world: World) -> None:
    ledger = Ledger()
    model = ScriptedModel([[call("act", {"what": "A"}, "toolu_1")], [call("act", {"what": "B"}, "toolu_1")], "Done."])
    rt = await world.open()
    run = await rt.start(agent(model, ledger.tool), "Go", run_id="r")
    await run.result()
    assert ledger.keys == ["r:1.tool.1", "r:2.tool.1"]
    asked = [part for m in model.requests[2].messages for part in m.parts if isinstance(part, ToolCall)]
    assert [(part.call, part.provider_id) for part in asked] == [("1.tool.1", "toolu_1"), ("2.tool.1", "toolu_1")]


@pytest.mark.proves("T1", "T7")
async def test_attempts_share_a_key_and_are_numbered(world: World) -> None:
    tries: list[tuple[int, str]] = []

    @tool(effect="idempotent", retries=2)
    async def flaky(ctx: ToolContext[object]) -> str:
        tries.append((ctx.attempt, ctx.idempotency_key))
        if len(tries) < 3:
            raise ConnectionError("reset")
        return "through"

    rt = await world.open()
    run = await rt.start(agent([[call("flaky")], "Done."], flaky), "Go", run_id="r")
    await seen(run, "tool_failed")
    await world.clock.advance(60)
    await seen(run, "tool_failed", "tool_failed")
    await world.clock.advance(60)
    await run.result()
    assert tries == [(n, "r:1.tool.1") for n in (1, 2, 3)]
    entries = await check_run(run)
    assert [(x.attempt, x.final, x.class_) for x in of(entries, e.ToolFailed)] == [
        (1, False, "ConnectionError"),
        (2, False, "ConnectionError"),
    ]
    assert of(entries, e.ToolReturned)[0].attempt == 3


@pytest.mark.proves("T3", "T7")
async def test_a_crash_is_no_attempt_and_a_retry_survives_it(world: World) -> None:
    tries: list[int] = []

    @tool(effect="idempotent", retries=1)
    async def flaky(ctx: ToolContext[object]) -> str:
        tries.append(ctx.attempt)
        if len(tries) == 1:
            await held.arrive()
        if len(tries) == 2:
            raise ConnectionError("reset")
        return "through"

    held = Stop()
    actor = agent([[call("flaky")], "Done."], flaky)
    rt = await world.open(actor)
    await rt.start(actor, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    second = await world.open(actor)
    await seen(await second.get("r"), "tool_failed")
    await world.kill(second)
    third = await world.open(actor)
    await world.clock.advance(60)
    assert (await (await third.get("r")).result()).text == "Done."
    assert tries == [1, 1, 2]


# --- T6 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T6")
async def test_calls_of_a_turn_run_side_by_side_up_to_a_limit(world: World) -> None:
    running, most = 0, 0
    full, go = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def work(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == PARALLEL_CALLS:
            full.set()
        await go.wait()
        running -= 1
        return n

    rt = await world.open()
    calls = [call("work", {"n": n}) for n in range(PARALLEL_CALLS + 5)]
    run = await rt.start(agent([calls, "Done."], work), "Go")
    await full.wait()
    go.set()
    result = await run.result()
    assert most == PARALLEL_CALLS
    assert [m.parts[0].content for m in result.messages if m.role == "tool"] == list(range(PARALLEL_CALLS + 5))


@pytest.mark.proves("T6")
async def test_sequential_calls_run_alone_and_in_order(world: World) -> None:
    log: list[str] = []

    def recorder(name: str, *, sequential: bool) -> Any:
        @tool(effect="read", name=name, sequential=sequential)
        async def body() -> str:
            log.append(f"+{name}")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            log.append(f"-{name}")
            return name

        return body

    names = ["a", "s1", "b", "s2"]
    tools = [recorder(name, sequential=name.startswith("s")) for name in names]
    rt = await world.open()
    run = await rt.start(agent([[call(name) for name in names], "Done."], *tools), "Go")
    await run.result()
    assert log == [mark + name for name in names for mark in "+-"]


@pytest.mark.proves("T6", "J4")
async def test_results_that_are_ready_together_share_a_commit(world: World) -> None:
    gathered = asyncio.Barrier(6)

    @tool(effect="read")
    async def meet() -> str:
        await gathered.wait()
        return "met"

    rt = await world.open()
    run = await rt.start(agent([[call("meet")] * 6, "Done."], meet), "Go")
    await run.result()
    batches = {entry.batch for entry in of(await check_run(run), e.ToolReturned)}
    assert len(batches) == 1


# --- T8 ---------------------------------------------------------------------------------------------------------------


def failing(error: Callable[[], BaseException], form: str, effect: str = "read") -> Any:
    if form == "async":

        @tool(effect=effect, name="fail", on_doubt="report")
        async def body() -> str:
            raise error()

        return body

    @tool(effect=effect, name="fail", on_doubt="report")
    def sync_body() -> str:
        raise error()

    return sync_body


@tool(effect="read")
def look() -> str:
    return "blue"


@pytest.mark.proves("T8")
@pytest.mark.parametrize("form", ["async", "sync"])
async def test_an_exception_is_an_error_result_of_type_and_message_without_paths_and_secrets(
    world: World, form: str
) -> None:
    text = "cannot open /home/ann/secret/bills.db with token=abc123 for https://ann:pw@example.org/x"
    rt = await world.open()
    run = await rt.start(
        agent([[call("fail"), call("look")], "Done."], failing(lambda: OSError(text), form), look), "Go"
    )
    result = await run.result()
    told = results(result.messages)["1.tool.1"]
    assert told.is_error
    assert told.content.startswith("OSError: cannot open")
    for secret in ("/home/ann", "abc123", "ann:pw"):
        assert secret not in told.content
    failed = of(await check_run(run), e.ToolFailed)[0]
    assert failed.class_ == "OSError"
    assert results(result.messages)["1.tool.2"].content == "blue"


@pytest.mark.proves("T8", "T2")
async def test_an_exception_of_a_once_tool_is_doubt_and_a_tool_error_is_not(world: World) -> None:
    rt = await world.open()
    for number, (error, said) in enumerate(
        [(OSError("reset"), "outcome unknown"), (ToolError("no funds"), "no funds")]
    ):
        tools = failing(lambda error=error: error, "async", "once")
        run = await rt.start(agent([[call("fail")], "Done."], tools, name=f"payer{number}"), "Go")
        result = await run.result()
        assert results(result.messages)["1.tool.1"].content.startswith(said)
        doubts = of(await check_run(run), e.DoubtResolved)
        assert [doubt.finding for doubt in doubts] == (["unknown"] if number == 0 else [])


@pytest.mark.proves("T8")
async def test_fatal_ends_the_run_after_the_siblings_that_had_started(world: World) -> None:
    ran: list[str] = []
    held = Stop()

    @tool(effect="once")
    async def pay() -> str:
        await held.arrive()
        ran.append("pay")
        return "paid"

    @tool(effect="once", sequential=True)
    async def late() -> str:
        ran.append("late")
        return "late"

    @tool(effect="read")
    async def fatal() -> str:
        await held.reached()
        raise Fatal("the bank is closed")

    rt = await world.open()
    run = await rt.start(agent([[call("pay"), call("fatal"), call("late")], "never"], pay, fatal, late), "Go")
    await seen(run, "tool_failed")
    held.let_go()
    result = await run.result()
    assert (result.outcome, ran) == (Failed("fatal", "the bank is closed"), ["pay"])
    found = results(result.messages)
    assert found["1.tool.1"].content == "paid"
    assert found["1.tool.3"].content.startswith("not run")
    await check_run(run)


@pytest.mark.proves("T8")
async def test_sync_tools_run_in_capped_daemon_threads(world: World) -> None:
    threads: set[threading.Thread] = set()
    gathered = threading.Barrier(PARALLEL_CALLS)

    @tool(effect="read")
    def meet() -> str:
        threads.add(threading.current_thread())
        gathered.wait(timeout=5)
        return "met"

    rt = await world.open()
    await (await rt.start(agent([[call("meet")] * PARALLEL_CALLS, "Done."], meet), "Go")).result()
    assert threading.main_thread() not in threads
    assert all(thread.daemon for thread in threads)
    assert PARALLEL_CALLS == len(threads) <= THREADS


@pytest.mark.proves("T8")
async def test_a_result_that_cannot_be_stored_is_told_and_the_tool_is_not_run_again(world: World) -> None:
    ran: list[str] = []
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    values = {"deep": deep, "surrogate": "a\ud800b", "key": {1: "a"}, "object": object(), "set of": {object()}}

    @tool(effect="once")
    def give(what: str) -> Any:
        ran.append(what)
        return values[what]

    model = ScriptedModel([[call("give", {"what": what}) for what in values], "Done."])
    rt = await world.open()
    run = await rt.start(agent(model, give), "Go")
    result = await run.result()
    assert sorted(ran) == sorted(values)
    found = results(result.messages)
    assert result.text == "Done."
    for place in (1, 2, 4, 5):
        told = found[f"1.tool.{place}"]
        assert told.is_error, place
        assert "the tool ran, but what it returned cannot be stored" in told.content
    await check_run(run)


@pytest.mark.proves("T8", "Z1")
async def test_numbers_that_json_cannot_say_are_kept_as_they_are(world: World) -> None:
    values = [float("nan"), float("inf"), float("-inf"), 2**64, -(2**53) - 1, 0.1]

    @tool(effect="read")
    def numbers() -> list[float]:
        return values

    rt = await world.open()
    run = await rt.start(agent([[call("numbers")], "Done."], numbers), "Go")
    await run.result()
    content = of(await check_run(run), e.ToolReturned)[0].content
    assert content[:5] == [{"$number": n} for n in ("NaN", "Infinity", "-Infinity", str(2**64), str(-(2**53) - 1))]
    assert content[5] == 0.1


@pytest.mark.proves("T8")
async def test_a_tool_output_gives_content_artifacts_and_metadata(world: World) -> None:
    @tool(effect="read")
    def report() -> ToolOutput:
        return ToolOutput({"rows": 2}, artifacts=[{"name": "a.csv"}], metadata={"took": float("nan")})

    rt = await world.open()
    run = await rt.start(agent([[call("report")], "Done."], report), "Go")
    await run.result()
    found = of(await check_run(run), e.ToolReturned)[0]
    assert (found.content, found.artifacts) == ({"rows": 2}, ({"name": "a.csv"},))
    assert found.metadata == {"took": {"$number": "NaN"}}


@pytest.mark.proves("T7", "T8")
@pytest.mark.parametrize("effect", ["read", "once"])
async def test_a_timeout_is_enforced(world: World, effect: Any) -> None:
    @tool(effect=effect, timeout=0.05, on_doubt="report")
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    rt = await world.open()
    run = await rt.start(agent([[call("hang"), call("look")], "Done."], hang, look), "Go")
    result = await run.result()
    told = results(result.messages)["1.tool.1"]
    assert told.is_error
    assert ("Timeout" in told.content) or ("outcome unknown" in told.content)
    failed = of(await check_run(run), e.ToolFailed)
    expected = [("timeout", True, "ran")]
    if effect == "once":
        expected = [("timeout", False, "doubt"), ("outcome_unknown", True, "doubt")]
    assert [(x.class_, x.final, x.source) for x in failed] == expected
    assert result.text == "Done."
