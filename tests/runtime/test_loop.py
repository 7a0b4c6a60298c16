"""L: one turn after another, within its limits, and what is said of it in the journal."""

import random
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from clew import Limits, ToolContext, tool
from clew.core import entries as e
from clew.core.messages import RawReply
from clew.core.outcomes import Completed, Stopped
from clew.errors import ModelError
from clew.messages import Text, Thinking, ToolCall, Usage
from clew.ports import ModelReply
from clew.testing import ScriptedModel, call
from tests.runtime.world import (
    Stop,
    World,
    agent,
    becomes,
    check_run,
    check_transcript,
    gate_of,
    has,
    kinds,
    of,
    results,
    seen,
)


@tool(effect="read")
def look(at: str = "sky") -> str:
    return f"{at}: blue"


@tool(effect="once")
def pay(bill: str) -> str:
    return f"paid {bill}"


# --- L1 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("L1", "T2")
async def test_a_turn_is_reply_then_results_and_an_allow_writes_nothing_of_its_own(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent([[call("look"), call("pay", {"bill": "a"})], "Done."], look, pay), "Go")
    await run.result()
    entries = await check_run(run)
    assert kinds(entries)[:4] == ["run_started", "driver_attached", "model_replied", "tool_started"]
    assert sorted(kinds(entries)[4:6]) == ["tool_returned", "tool_returned"]
    assert kinds(entries)[6:] == ["model_replied", "run_finished"]
    reply, intent = entries[2:4]
    assert reply.batch == intent.batch  # the intent of what starts now rides in the reply's own commit
    assert (intent.call, intent.key, intent.effect) == ("1.tool.2", f"{run.id}:1.tool.2", "once")


@pytest.mark.proves("L1")
async def test_each_result_is_committed_as_it_comes(world: World) -> None:
    held = Stop()

    @tool(effect="read")
    async def wait() -> str:
        await held.arrive()
        return "waited"

    rt = await world.open()
    run = await rt.start(agent([[call("wait"), call("look")], "Done."], wait, look), "Go")
    found = await seen(run, "tool_returned")
    assert of(found, e.ToolReturned)[0].call == "1.tool.2"
    await held.reached()
    held.let_go()
    result = await run.result()
    await check_run(run)
    assert [m.parts[0].call for m in result.messages if m.role == "tool"] == ["1.tool.1", "1.tool.2"]


@pytest.mark.proves("L1", "T2", "T6")
async def test_an_intent_is_written_only_for_a_call_that_starts(world: World) -> None:
    held = Stop()

    @tool(effect="once", sequential=True)
    async def send(to: str) -> str:
        if to == "a":
            await held.arrive()
        return to

    rt = await world.open()
    run = await rt.start(agent([[call("send", {"to": to}) for to in "abc"], "Done."], send), "Go")
    await held.reached()
    assert [x.call for x in of(await run.entries(), e.ToolStarted)] == ["1.tool.1"]
    held.let_go()
    await run.result()
    flow = [(x.kind, x.step) for x in await check_run(run) if x.kind in ("tool_started", "tool_returned")]
    assert flow == [(kind, f"1.tool.{n}") for n in (1, 2, 3) for kind in ("tool_started", "tool_returned")]


@pytest.mark.proves("L1", "T2")
async def test_no_body_starts_before_its_intent_is_committed(world: World) -> None:
    began: list[str] = []

    @tool(effect="once")
    def charge() -> str:
        began.append("charge")
        return "charged"

    rt = await world.open()
    commit = gate_of(rt).hold(has("tool_started"))
    run = await rt.start(agent([[call("charge")], "Done."], charge), "Go")
    await commit.reached()
    assert began == []
    commit.let_go()
    await run.result()
    assert began == ["charge"]


# --- L2, L5 -----------------------------------------------------------------------------------------------------------


def costly(said: Any, dollars: str = "0.50") -> ModelReply:
    parts = (Text(said),) if isinstance(said, str) else tuple(said)
    return ModelReply(parts=parts, usage=Usage(input=100, output=10), cost=Decimal(dollars))


LOOPS = [costly([call("look", id="x")]) for _ in range(9)]


@pytest.mark.proves("L2", "L9")
@pytest.mark.parametrize(
    ("limits", "code", "asked"),
    [
        (Limits(turns=3), "turns", 3),
        (Limits(tool_calls=2), "tool_calls", 2),
        (Limits(tokens=220), "tokens", 2),
        (Limits(cost=1.0), "cost", 2),
        (Limits(turns=0), "turns", 0),
    ],
    ids=["turns", "calls", "tokens", "cost", "none at all"],
)
async def test_a_limit_stops_the_run_before_more_is_spent(world: World, limits: Limits, code: str, asked: int) -> None:
    model = ScriptedModel(LOOPS)
    rt = await world.open()
    run = await rt.start(agent(model, look), "Go", limits=limits)
    result = await run.result()
    assert (result.reason, model.count) == (f"stopped:{code}", asked)
    await check_run(run)


@pytest.mark.proves("L2")
async def test_driven_time_counts_and_waits_do_not(world: World) -> None:
    @tool(effect="read")
    async def work(seconds: int) -> str:
        await world.clock.advance(seconds)
        return "worked"

    waits = ModelError("rate_limited", "later", retry_after=1000.0)
    model = ScriptedModel([[call("work", {"seconds": 15})], waits, [call("work", {"seconds": 15})], "never"])
    rt = await world.open()
    run = await rt.start(agent(model, work, limits=Limits(seconds=20)), "Go")
    await becomes(rt, run.id, lambda info: info.status == "waiting")
    await world.clock.advance(1001)
    result = await run.result()
    assert (result.reason, model.count) == ("stopped:seconds", 3)


@pytest.mark.proves("L2", "T4")
async def test_a_run_resumed_at_its_limit_calls_no_model(world: World) -> None:
    held = Stop()

    @tool(effect="read")
    async def wait() -> str:
        if held.passed == 0:
            await held.arrive()
        return "waited"

    model = ScriptedModel([costly([call("wait", id="x")]), "never"])
    waiter = agent(model, wait, limits=Limits(turns=1))
    rt = await world.open(waiter)
    await rt.start(waiter, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    second = await world.open(waiter.replace(limits=Limits(turns=50)))  # a deploy does not raise the limit of a run
    run = await second.get("r")
    result = await run.result()
    assert (result.outcome, model.count) == (Stopped("turns", "1 of 1"), 1)
    assert (result.turns, result.cost, result.usage.input) == (1, Decimal("0.50"), 100)
    info = await run.info()
    assert (info.turns, info.calls, info.cost, info.usage) == (1, 1, Decimal("0.50"), result.usage)


@pytest.mark.proves("L2", "L7")
async def test_what_failed_attempts_cost_counts(world: World) -> None:
    empty = ModelReply(usage=Usage(input=100), cost=Decimal("0.75"))
    model = ScriptedModel([empty, "never"])
    rt = await world.open()
    run = await rt.start(agent(model, limits=Limits(cost=0.5)), "Go")
    result = await run.result()
    assert (result.reason, model.count, result.cost) == ("stopped:cost", 1, Decimal("0.75"))


@pytest.mark.proves("L5")
async def test_a_final_answer_on_the_last_turn_succeeds(world: World) -> None:
    rt = await world.open()
    result = await (await rt.start(agent([[call("look")], "Sunny."], look, limits=Limits(turns=2)), "Go")).result()
    assert (result.outcome, result.output, result.turns) == (Completed(), "Sunny.", 2)


@pytest.mark.proves("L2", "L10")
async def test_errors_in_a_row_end_the_run_and_an_answer_between_them_starts_the_count_anew(world: World) -> None:
    bad = ModelError("overloaded", "busy", retry_after=0.0)
    model = ScriptedModel([bad, [call("look")], bad, bad, "never"])
    rt = await world.open()
    run = await rt.start(agent(model, look, limits=Limits(model_errors=2)), "Go")
    result = await run.result()
    assert (result.reason, model.count) == ("stopped:model_errors", 4)
    failures = of(await check_run(run), e.ModelFailed)
    assert [(x.step, x.attempt, x.class_) for x in failures] == [
        ("1.model", 1, "overloaded"),
        ("2.model", 1, "overloaded"),
        ("2.model", 2, "overloaded"),
    ]


# --- L3, L4 -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("L3")
async def test_text_thinking_and_calls_are_one_message_and_raw_items_are_kept_byte_for_byte(world: World) -> None:
    items = (msgspec.Raw(b'{"id":"x",  "n":1.0, "s":"\\u00e9"}'), msgspec.Raw(b'[1e2, "\xc3\xa9"]'))
    thought = Thinking("Hmm.", signature="sig==")
    asked = ToolCall("c", provider_id="call_abc", tool="look", args_text='{ "at": "sky" }')
    parts = (thought, Text("Let me look."), asked, Text("And wait."))
    reply = ModelReply(parts=parts, raw=RawReply("acme", "large", items), finish="tool_calls")
    rt = await world.open()
    run = await rt.start(agent([reply, "Done."], look), "Go", run_id="r")
    result = await run.result()
    said = result.messages[1]
    assert said.parts == (thought, parts[1], ToolCall("1.tool.1", "call_abc", "look", '{ "at": "sky" }'), parts[3])
    assert said.text == "Let me look.And wait."
    raw = of(await (await world.opened_store()).read("r"), e.ModelReplied)[0].raw
    assert raw is not None
    assert (raw.provider, raw.model, [bytes(item) for item in raw.items]) == (
        "acme",
        "large",
        [bytes(item) for item in items],
    )


@pytest.mark.proves("L4", "T6")
@pytest.mark.parametrize("seed", range(4))
async def test_results_stand_in_call_order_whatever_order_they_come_in(world: World, seed: int) -> None:
    stops = [Stop() for _ in range(8)]

    @tool(effect="read")
    async def wait(n: int) -> int:
        await stops[n].arrive()
        return n

    model = ScriptedModel([[call("wait", {"n": n}) for n in range(8)], "Done."])
    rt = await world.open()
    run = await rt.start(agent(model, wait), "Go")
    order = list(range(8))
    random.Random(seed).shuffle(order)
    done = 0
    for n in order:
        await stops[n].reached()
        stops[n].let_go()
        done = (await seen(run, "tool_returned", after=done))[-1].seq
    result = await run.result()
    came = [int(x.call.rpartition(".")[2]) - 1 for x in of(await check_run(run), e.ToolReturned)]
    assert came == order
    assert [m.parts[0].content for m in result.messages if m.role == "tool"] == list(range(8))
    check_transcript(model.requests[1].messages)


# --- L7, L8 -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("L7", "L10")
@pytest.mark.parametrize("empty", [ModelReply(), ModelReply(parts=(Text(""), Thinking("")))], ids=["no parts", "blank"])
async def test_an_empty_reply_is_a_failure_that_is_tried_again_and_no_turn(world: World, empty: ModelReply) -> None:
    model = ScriptedModel([empty, "Sunny."])
    rt = await world.open()
    run = await rt.start(agent(model, limits=Limits(turns=1)), "Go")
    failed = of(await seen(run, "model_failed"), e.ModelFailed)[0]
    assert (failed.class_, failed.step, failed.attempt) == ("provider", "1.model", 1)
    assert failed.retry_at is not None
    await world.clock.advance(5)
    result = await run.result()
    assert (result.text, result.turns) == ("Sunny.", 1)
    assert [m.text for m in result.messages] == ["Go", "Sunny."]


@pytest.mark.proves("L7")
async def test_empty_replies_do_not_go_on_for_ever(world: World) -> None:
    model = ScriptedModel([ModelReply() for _ in range(9)])
    rt = await world.open()
    run = await rt.start(agent(model, limits=Limits(model_errors=3)), "Go")
    for _ in range(3):
        await world.clock.advance(60)
        await run.result(timeout=0.05)
    assert ((await run.result()).reason, model.count) == ("stopped:model_errors", 3)


@pytest.mark.proves("L8")
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (call("look", '{"at": "sk'), "invalid arguments"),
        (call("look", '["sky"]'), "must be a JSON object, not list"),
        (call("look", "null"), "must be a JSON object"),
        (call("look", '{"at": 7}'), "at"),
        (call("look", '{"ta": "sky"}'), "ta"),
        (call("pay", "{}"), "bill"),
        (call("dream", "{}"), "there is no tool 'dream': use one of look, pay"),
        (call("", "{}"), "there is no tool ''"),
    ],
    ids=["cut off", "a list", "null", "type", "unexpected", "missing", "unknown tool", "no name"],
)
async def test_bad_arguments_are_told_to_the_model_and_the_siblings_run(world: World, asked: Any, told: str) -> None:
    ran: list[str] = []

    @tool(effect="read", name="look")
    def looking(at: str = "sky") -> str:
        ran.append(at)
        return f"{at}: blue"

    model = ScriptedModel([[asked, call("look", {"at": "sea"})], "Done."])
    rt = await world.open()
    run = await rt.start(agent(model, looking, pay), "Go")
    result = await run.result()
    assert ran == ["sea"]
    found = results(result.messages)
    assert found["1.tool.1"].is_error
    assert told in found["1.tool.1"].content
    assert found["1.tool.2"].content == "sea: blue"
    assert result.text == "Done."
    await check_run(run)


@pytest.mark.proves("L8")
async def test_a_schema_that_a_deploy_changed_is_held_against_open_calls_too(world: World) -> None:
    held = Stop()

    @tool(effect="read", name="look")
    async def old(at: str) -> str:
        await held.arrive()
        return at

    @tool(effect="read", name="look")
    async def new(ctx: ToolContext[object], at: str, zone: str) -> str:
        return f"{at} {zone}"

    model = ScriptedModel([[call("look", {"at": "sky"})], "Done."])
    rt = await world.open(agent(model, old))
    await rt.start(agent(model, old), "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    second = await world.open(agent(model, new))
    result = await (await second.get("r")).result()
    found = results(result.messages)["1.tool.1"]
    assert found.is_error
    assert "zone" in found.content


@pytest.mark.proves("L6")
async def test_calls_of_a_reply_cut_off_at_its_length_are_not_run(world: World) -> None:
    ran: list[str] = []

    @tool(effect="read")
    def mark() -> str:
        ran.append("mark")
        return "marked"

    reply = ModelReply(parts=(call("mark", id="a"), call("mark", "{", id="b")), finish="length")
    rt = await world.open()
    run = await rt.start(agent([reply, "Done."], mark), "Go")
    result = await run.result()
    assert ran == []
    assert all(found.is_error for found in results(result.messages).values())
    await check_run(run)
