"""L1, T9, item 6: what middleware may change around a model call and a tool, and where it stands beside the commits."""

import logging
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from clew import Message, Middleware, ModelReply, ModelRequest, Result, RunContext, StateKey, ToolCall, ToolOutput, tool
from clew.core import entries as e
from clew.core.values import digest
from clew.messages import Text
from clew.testing import ScriptedModel, call, crash_points
from tests.runtime.test_policy import _stores
from tests.runtime.world import Stop, World, agent, check_run, kinds, of, results, until

Ctx = RunContext[Any]
COUNT = StateKey("count", int, default=0)
HOOKS = (
    "on_input",
    "on_attach",
    "before_model",
    "after_model",
    "before_tool",
    "after_tool",
    "on_turn_end",
    "on_finish",
)


@tool(effect="once")
def pay(amount: int = 1) -> str:
    return f"paid {amount}"


class Listing(Middleware):
    """Writes down when it is called."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    async def on_input(self, ctx: Ctx, messages: list[Message]) -> None:
        self.log.append(f"{self.name} on_input")

    async def on_attach(self, ctx: Ctx) -> None:
        self.log.append(f"{self.name} on_attach")

    async def before_model(self, ctx: Ctx, request: ModelRequest) -> None:
        self.log.append(f"{self.name} before_model {request.step}")

    async def after_model(self, ctx: Ctx, reply: ModelReply) -> None:
        self.log.append(f"{self.name} after_model")

    async def before_tool(self, ctx: Ctx, call: ToolCall) -> None:
        self.log.append(f"{self.name} before_tool {call.id}")

    async def after_tool(self, ctx: Ctx, call: ToolCall, output: ToolOutput) -> None:
        self.log.append(f"{self.name} after_tool {call.id}")

    async def on_turn_end(self, ctx: Ctx) -> None:
        self.log.append(f"{self.name} on_turn_end {ctx.turn}")

    async def on_finish(self, ctx: Ctx, result: Result[Any]) -> None:
        self.log.append(f"{self.name} on_finish {result.reason}")


@pytest.mark.proves("L1")
async def test_hooks_run_in_the_order_of_registration_around_each_station_of_a_turn(world: World) -> None:
    log: list[str] = []
    rt = await world.open()
    who = agent([[call("pay")], "Done."], pay, middleware=[Listing("a", log), Listing("b", log)])
    run = await rt.start(who, "Go")
    await run.result()
    await until(lambda: len(log) == 20)
    stations = ["on_attach", "on_input", "before_model 1.model", "after_model", "before_tool 1.tool.1"]
    stations += ["after_tool 1.tool.1", "on_turn_end 1", "before_model 2.model", "after_model", "on_finish natural"]
    assert log == [f"{name} {station}" for station in stations for name in "ab"]
    assert kinds(await check_run(run)) == [
        "run_started",
        "driver_attached",
        "state_changed",
        "model_replied",
        "tool_started",
        "tool_returned",
        "state_changed",
        "model_replied",
        "run_finished",
    ]
    marks = [entry.step for entry in of(await run.entries(), e.StateChanged)]
    assert marks == ["input", "1.end"]


@pytest.mark.proves("L1")
async def test_middleware_without_hooks_leaves_no_trace(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay, middleware=[Middleware()]), "Go")
    await run.result()
    assert kinds(await check_run(run)) == [
        "run_started",
        "driver_attached",
        "model_replied",
        "tool_started",
        "tool_returned",
        "model_replied",
        "run_finished",
    ]


# --- what they may rewrite --------------------------------------------------------------------------------------------


class Shouting(Middleware):
    async def on_input(self, ctx: Ctx, messages: list[Message]) -> list[Message]:
        return [Message.user(message.text.upper()) for message in messages]

    async def after_model(self, ctx: Ctx, reply: ModelReply) -> ModelReply | None:
        return replace(reply, parts=(Text(reply.text.upper()),)) if reply.text else None


class Asking(Middleware):
    async def on_input(self, ctx: Ctx, messages: list[Message]) -> list[Message]:
        return [Message.user(messages[0].text + "?")]


@pytest.mark.proves("L1", "L3")
async def test_the_input_and_the_reply_may_be_rewritten_one_hook_behind_the_other(world: World) -> None:
    model = ScriptedModel(["done."])
    rt = await world.open()
    run = await rt.start(agent(model, middleware=[Shouting(), Asking()]), "go")
    result = await run.result()
    assert [m.text for m in model.requests[0].messages] == ["GO?"]
    assert (result.output, [m.text for m in result.messages]) == ("DONE.", ["GO?", "DONE."])
    entries = await check_run(run)
    assert entries[0].input[0].text == "go"  # what came in stands
    [rewritten] = of(entries, e.InputRewritten)
    assert (rewritten.by, rewritten.messages[0].text) == ("Shouting, Asking", "GO?")
    assert of(entries, e.ModelReplied)[0].rewritten_by == "Shouting"


class Budget(Middleware):
    async def before_model(self, ctx: Ctx, request: ModelRequest) -> ModelRequest | None:
        if request.step != "1.model":
            return None
        settings = {**request.settings, "temperature": 0.5}
        return replace(request, instructions="Be brief.", settings=settings, messages=request.messages[-1:])


@pytest.mark.proves("L1")
@pytest.mark.parametrize("recorded", [True, False])
async def test_the_request_may_be_changed_for_one_call_and_its_digest_is_journaled(
    world: World, recorded: bool
) -> None:
    model = ScriptedModel([[call("pay")], "Done."])
    rt = await world.open()
    who = agent(model, pay, middleware=[Budget()], instructions="Be long.", record_requests=recorded)
    run = await rt.start(who, "Go")
    await run.result()
    first, second = of(await check_run(run), e.ModelReplied)
    assert [request.instructions for request in model.requests] == ["Be brief.", "Be long."]
    assert (first.request.settings, second.request.settings) == ({"temperature": 0.5}, {})
    asked = model.requests[0]
    sent = [asked.instructions, asked.settings, asked.tools, asked.output_schema, list(asked.messages)]
    assert first.request.digest == digest(sent)
    assert second.request.digest == ""  # the journal itself says what was sent
    for reply, request in ((first, asked), (second, model.requests[1])):
        if not recorded:
            assert reply.request.blob is None
            continue
        name = reply.request.blob["$blob"]
        whole = msgspec.json.decode((await rt.store.blobs([name]))[name])
        assert whole[0] == request.instructions
        assert [message["role"] for message in whole[1]] == [message.role for message in request.messages]


class Doubling(Middleware):
    async def before_tool(self, ctx: Ctx, call: ToolCall) -> ToolCall | None:
        return call.with_args({"amount": call.args["amount"] * 2}) if "amount" in call.args else None


class Answering(Middleware):
    async def before_tool(self, ctx: Ctx, call: ToolCall) -> ToolOutput | None:
        ctx.state.update(COUNT, ctx.state[COUNT] + 1)
        return ToolOutput({"cached": call.args["amount"]})


class Hiding(Middleware):
    async def after_tool(self, ctx: Ctx, call: ToolCall, output: ToolOutput) -> ToolOutput:
        return replace(output, content=f"{output.content} (seen)")


@pytest.mark.proves("L1")
async def test_arguments_may_be_rewritten_and_what_runs_is_what_the_verdict_states(world: World) -> None:
    rt = await world.open()
    calls = [call("pay", {"amount": 5}), call("pay")]
    run = await rt.start(agent([calls, "Done."], pay, middleware=[Doubling(), Doubling()]), "Go")
    result = await run.result()
    assert [results(result.messages)[f"1.tool.{n}"].content for n in (1, 2)] == ["paid 20", "paid 1"]
    [one] = of(await check_run(run), e.CallJudged)
    assert (one.verdict, one.args, one.args_rewritten_by) == ("allow", {"amount": 20}, "Doubling, Doubling")


@pytest.mark.proves("L1", "T9")
async def test_middleware_may_answer_a_call_itself(world: World) -> None:
    rt = await world.open()
    who = agent([[call("pay", {"amount": 5})], "Done."], pay, middleware=[Answering(), Doubling()])
    run = await rt.start(who, "Go")
    result = await run.result()
    assert results(result.messages)["1.tool.1"].content == {"cached": 5}
    entries = await check_run(run)
    [judged], [returned] = of(entries, e.CallJudged), of(entries, e.ToolReturned)
    assert (judged.verdict, judged.rule) == ("answer", "middleware:Answering")
    assert (returned.source, returned.state[0].value) == ("middleware", 1)
    assert not of(entries, e.ToolStarted)


@pytest.mark.proves("L1")
async def test_a_result_may_be_rewritten(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay, middleware=[Hiding(), Hiding()]), "Go")
    result = await run.result()
    assert results(result.messages)["1.tool.1"].content == "paid 1 (seen) (seen)"
    [returned] = of(await check_run(run), e.ToolReturned)
    assert (returned.rewritten_by, returned.source) == ("Hiding, Hiding", "ran")


@pytest.mark.proves("L8")
async def test_rewritten_arguments_that_do_not_validate_are_an_error_result(world: World) -> None:
    class Wrong(Middleware):
        async def before_tool(self, ctx: Ctx, call: ToolCall) -> ToolCall:
            return call.with_args({"amount": "much"})

    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay, middleware=[Wrong()]), "Go")
    result = await run.result()
    found = results(result.messages)["1.tool.1"]
    assert found.is_error
    assert "invalid arguments: amount" in found.content
    assert not of(await check_run(run), e.ToolStarted)


# --- what else they may do --------------------------------------------------------------------------------------------


class Noting(Middleware):
    """Counts, notes and shows in every hook that may."""

    async def _all(self, ctx: Ctx, where: str) -> None:
        ctx.state.update(COUNT, ctx.state[COUNT] + 1)
        await ctx.note("place", where)
        ctx.emit({"at": where})

    async def on_input(self, ctx: Ctx, messages: list[Message]) -> None:
        await self._all(ctx, "on_input")

    async def before_model(self, ctx: Ctx, request: ModelRequest) -> None:
        await self._all(ctx, "before_model")

    async def after_model(self, ctx: Ctx, reply: ModelReply) -> None:
        await self._all(ctx, "after_model")

    async def before_tool(self, ctx: Ctx, call: ToolCall) -> None:
        await self._all(ctx, "before_tool")

    async def after_tool(self, ctx: Ctx, call: ToolCall, output: ToolOutput) -> None:
        await self._all(ctx, "after_tool")

    async def on_turn_end(self, ctx: Ctx) -> None:
        await self._all(ctx, "on_turn_end")


NOTED = ["on_input", "before_model", "after_model", "before_tool", "after_tool", "on_turn_end"]
NOTED += ["before_model", "after_model"]


@pytest.mark.proves("T9")
async def test_hooks_bring_state_notes_and_progress_committed_with_what_they_stand_at(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay, middleware=[Noting()]), "Go")
    await run.result()
    entries = await check_run(run)
    assert [note.value for note in of(entries, e.Noted)] == NOTED
    assert await run.state(COUNT) == len(NOTED)
    by_batch: dict[int, list[str]] = {}
    for entry in entries:
        by_batch.setdefault(entry.batch, []).append(entry.value if isinstance(entry, e.Noted) else entry.kind)
    batches = list(by_batch.values())
    assert next(batch for batch in batches if "model_replied" in batch)[0:3] == [
        "model_replied",
        "before_model",
        "state_changed",
    ]
    assert any({"tool_returned", "after_tool"} <= set(batch) for batch in batches)


@pytest.mark.proves("T9")
async def test_notes_and_state_of_middleware_are_the_same_after_a_crash_at_every_point(
    kind: str, tmp_path: Any
) -> None:
    @tool(effect="idempotent")
    def work() -> str:
        return "worked"

    who = agent([[call("work")], "Done."], work, middleware=[Noting(), Shouting()])
    report = await crash_points(who, "Go", **_stores(kind, tmp_path))
    assert report.ok, str(report)


@pytest.mark.proves("L9")
@pytest.mark.parametrize("where", ["before_model", "after_model", "before_tool", "after_tool", "on_turn_end"])
async def test_middleware_may_ask_for_the_end_and_the_siblings_finish(world: World, where: str) -> None:
    async def end(self: Any, ctx: Ctx, *about: Any) -> None:
        # Of two calls the first, of the requests the second.
        if all(getattr(one, "id", "1.tool.1") == "1.tool.1" for one in about) and (
            where != "before_model" or about[0].step == "2.model"
        ):
            ctx.end()

    ending: Middleware = type("Ending", (Middleware,), {where: end})()
    model = ScriptedModel([[call("pay", {"amount": 1}), call("pay", {"amount": 2})], "never"])
    rt = await world.open()
    run = await rt.start(agent(model, pay, middleware=[ending]), "Go")
    result = await run.result()
    assert (result.reason, model.count) == ("behavior_requested", 1)
    assert [found.content for found in results(result.messages).values()] == ["paid 1", "paid 2"]
    await check_run(run)


@pytest.mark.proves("L2")
async def test_on_attach_runs_at_each_activation_and_on_input_never_again(world: World) -> None:
    log: list[str] = []
    held = Stop()

    @tool(effect="read")
    async def wait() -> str:
        if held.passed == 0:
            await held.arrive()
        return "waited"

    who = agent([[call("wait")], "Done."], wait, middleware=[Listing("a", log)])
    rt = await world.open(who)
    await rt.start(who, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    second = await world.open(who)
    await (await second.get("r")).result()
    await until(lambda: "a on_finish natural" in log)
    counts = {hook: sum(line.startswith(f"a {hook}") for line in log) for hook in HOOKS}
    assert (counts["on_attach"], counts["on_input"], counts["on_turn_end"], counts["on_finish"]) == (2, 1, 1, 1)


@pytest.mark.proves("J8")
async def test_on_finish_comes_behind_the_end_and_what_it_raises_changes_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[Any] = []

    class Failing(Middleware):
        async def on_finish(self, ctx: Ctx, result: Result[Any]) -> None:
            log.append((result.output, (await rt.store.info(ctx.run_id)).status))
            raise RuntimeError("too late")

    rt = await world.open()
    who = agent(["Done."], middleware=[Failing(), Listing("b", second := [])])
    with caplog.at_level(logging.ERROR, "clew.hands"):
        run = await rt.start(who, "Go")
        assert (await run.result()).output == "Done."
        await until(lambda: "b on_finish natural" in second)
        await until(lambda: "too late" in caplog.text)
    assert log == [("Done.", "done")]
    await check_run(run)
