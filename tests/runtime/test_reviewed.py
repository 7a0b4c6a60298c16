"""What a review of the foundation broke: each of these was found by breaking it."""

import asyncio
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from clew import ClientTool, Message, ModelSettings, tool
from clew.core import entries as e
from clew.core.messages import RawReply
from clew.core.outcomes import Cancelled
from clew.core.values import MAX_DEPTH
from clew.errors import ModelError, NotFound, OutcomeUnknown, RunEnded, StoreUnavailable, UsageError
from clew.messages import Data, Media, Text, ToolResult
from clew.ports import Fragment, ModelReply
from clew.testing import FunctionModel, ScriptedModel, call
from tests.runtime.world import Fragments, Stop, World, agent, becomes, check_run, gate_of, has, kinds, look, of, until


def nested(levels: int) -> Any:
    value: Any = "core"
    for _ in range(levels):
        value = [value]
    return value


# --- cancelled from inside --------------------------------------------------------------------------------------------


@pytest.mark.proves("T8", "T2")
@pytest.mark.parametrize(("effect", "told"), [("read", "done"), ("once", "done")])
async def test_a_body_that_cancels_its_own_task_and_returns_has_returned(world: World, effect: Any, told: str) -> None:
    ran: list[str] = []

    @tool(effect=effect)
    async def odd() -> str:
        ran.append("odd")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    rt = await world.open()
    run = await rt.start(agent([[call("odd")], "Over."], odd), "Go")
    assert (await run.result()).text == "Over."
    assert ran == ["odd"]
    [returned] = of(await check_run(run), e.ToolReturned)
    assert returned.content == told


@pytest.mark.proves("T8", "L1")
async def test_a_model_whose_own_task_is_cancelled_is_asked_again_as_after_any_failure(world: World) -> None:
    asked: list[int] = []

    def reply(messages: Any, _tools: Any) -> str:
        asked.append(len(messages))
        if len(asked) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return "Hello."

    rt = await world.open()
    run = await rt.start(agent(FunctionModel(reply)), "Go")
    waiting = asyncio.create_task(run.result())
    while not waiting.done():
        await world.clock.advance(1)
    assert (await waiting).text == "Hello."
    assert len(asked) <= 2
    await check_run(run)


# --- depth, values, limits --------------------------------------------------------------------------------------------


@pytest.mark.proves("T8", "Z2")
@pytest.mark.parametrize("part", [Data("chart", nested(100_000)), Data("chart", nested(MAX_DEPTH + 1))])
async def test_input_that_nests_too_deeply_is_refused(world: World, part: Data) -> None:
    rt = await world.open()
    with pytest.raises(UsageError, match="nests deeper"):
        await rt.start(agent(["Hi."]), [Message.user(part)], run_id="r")
    with pytest.raises(NotFound):
        await rt.get("r")


@pytest.mark.proves("T8", "J7")
async def test_a_raw_item_that_nests_too_deeply_fails_the_run_and_not_the_store(world: World) -> None:
    deep = RawReply("acme", "large", (msgspec.Raw(b"[" * 900 + b"]" * 900),))
    rt = await world.open()
    run = await rt.start(agent([ModelReply(parts=(Text("Hi."),), raw=deep)]), "Go", run_id="r")
    result = await run.result()
    assert "levels deep" in result.detail
    await world.kill(rt)
    again = await world.open(agent(["Hi."]))
    assert (await (await again.get("r")).result()).reason == "error"


@pytest.mark.proves("Z1", "L3")
async def test_raw_items_that_are_no_text_are_not_stored(world: World) -> None:
    odd = RawReply("acme", "large", (msgspec.Raw(b'"\xff\xfe"'),))
    rt = await world.open()
    run = await rt.start(agent([ModelReply(parts=(Text("Hi."),), raw=odd)]), "Go")
    assert "cannot be stored" in (await run.result()).detail


@pytest.mark.proves("Z1", "J6", "J9")
async def test_values_in_an_input_are_shown_as_given_before_and_after_a_restart(world: World) -> None:
    shown: list[Any] = []
    given = {"n": float("inf"), "big": 2**70, "b": b"ab", "$blob": "sha256:of-another", "long": "x" * 100_000}
    parts = [Data("chart", given), Media("image/png", blob=b"\x89PNG" * 40_000)]

    def reply(messages: list[Message], _tools: Any) -> Any:
        shown.append([(part.value if isinstance(part, Data) else part.blob) for part in messages[0].parts])  # type: ignore[union-attr]
        return [call("look")] if len(shown) == 1 else "Done."

    seer = agent(FunctionModel(reply), look)
    rt = await world.open(seer)
    results = gate_of(rt).hold(has("tool_returned"))
    await rt.start(seer, [Message.user(*parts)], run_id="r")
    await results.reached()
    await world.kill(rt)
    again = await world.open(seer)
    await (await again.get("r")).result()
    assert shown == [[given, b"\x89PNG" * 40_000]] * 2
    [started] = of(await again.store.read("r"), e.RunStarted)
    assert len(msgspec.json.encode(started)) < 10_000


@pytest.mark.proves("J8", "Z1")
async def test_a_result_that_is_given_in_one_of_our_forms_stays_what_it_was(world: World) -> None:
    odd = {"$bytes": "!!", "$number": "abc"}
    seen: list[Any] = []

    def reply(messages: list[Message], _tools: Any) -> str:
        seen.append(messages[2].parts[0].content)  # type: ignore[union-attr]
        return "Done."

    history = [Message.user("Go"), Message.assistant(call("look", id="a")), Message("tool", (ToolResult("a", odd),))]
    rt = await world.open()
    run = await rt.start(agent(FunctionModel(reply), look), [*history, Message.user("And?")])
    assert (await run.result()).text == "Done."
    assert seen == [odd]


async def test_metadata_has_a_limit(world: World) -> None:
    rt = await world.open()
    with pytest.raises(UsageError, match=r"metadata has \d+ bytes"):
        await rt.start(agent(["Hi."]), "Go", metadata={"a": "x" * 100_000})


@pytest.mark.proves("J8")
@pytest.mark.parametrize("cost", [Decimal("9e999999999"), Decimal("1e-999999")])
async def test_a_cost_out_of_this_world_is_no_cost(world: World, cost: Decimal) -> None:
    rt = await world.open()
    run = await rt.start(agent([ModelReply(parts=(Text("Hi."),), cost=cost)]), "Go")
    result = await run.result()
    assert (result.text, result.cost) == ("Hi.", None)
    await check_run(run)


# --- stores in trouble ------------------------------------------------------------------------------------------------


@pytest.mark.proves("J7")
async def test_a_store_that_is_away_while_a_large_value_is_read_fails_no_run(world: World) -> None:
    @tool(effect="read")
    def long() -> str:
        return "x" * 100_000

    rt = await world.open()
    gate = gate_of(rt)
    whole, refused = gate.inner.blobs, []

    async def blobs(digests: Any) -> Any:
        if len(refused) < 3:
            refused.append(digests)
            raise StoreUnavailable("not now")
        return await whole(digests)

    gate.blobs = blobs  # type: ignore[attr-defined]
    run = await rt.start(agent([[call("long")], "Done."], long), "Go")
    assert (await run.result()).text == "Done."
    assert len(refused) == 3


@pytest.mark.proves("J7", "R3")
async def test_a_run_that_cannot_be_read_for_a_while_has_killed_nobody(world: World) -> None:
    waiting = agent(["Done."])
    rt = await world.open(waiting, drive=False)
    await rt.start(waiting, "Go", run_id="r")
    await world.kill(rt)
    second = world.runtime(waiting)
    gate, refused = gate_of(second), []

    async def read(run: str, *args: Any, **given: Any) -> Any:
        if len(refused) < 7:
            refused.append(run)
            raise StoreUnavailable("not now")
        return await gate.inner.read(run, *args, **given)

    gate.read = read  # type: ignore[attr-defined]
    await second.open()
    while (info := await second.store.info("r")).status != "done" and not info.quarantined:
        await world.clock.advance(1)
    assert (len(refused), info.quarantined) == (7, False)
    assert (await second.store.lease("r")).unclean == 0


@pytest.mark.proves("R1", "J8")
async def test_a_look_for_work_that_fails_oddly_is_made_again(world: World) -> None:
    later = agent(["Done."])
    rt = world.runtime(later)
    gate, failed = gate_of(rt), []
    whole = gate.inner.claim

    async def claim(*args: Any, **given: Any) -> Any:
        if not failed:
            failed.append(given)
            raise OSError(24, "Too many open files")
        return await whole(*args, **given)

    gate.claim = claim  # type: ignore[attr-defined]
    await rt.open()
    await until(lambda: bool(failed))
    other = await world.open(drive=False)
    await other.start(later, "Go", run_id="r")
    await becomes(rt, "r", lambda info: info.status == "done")


@pytest.mark.proves("R1", "T2", "J7")
async def test_a_run_given_up_unawares_is_driven_once(world: World) -> None:
    """The release is written, its answer lost, and the run claimed again before its driver could ask."""
    ran: list[str] = []
    held = Stop()

    @tool(effect="once")
    async def pay() -> str:
        ran.append("pay")
        await held.arrive()
        return "paid"

    script = ScriptedModel([ModelError("rate_limited", retry_after=60), [call("pay")], "Done."])
    rt = await world.open()
    gate = gate_of(rt)
    lost: list[Any] = []
    back = asyncio.Event()
    retake = gate.inner.retake

    async def after(batch: Any) -> None:
        if batch.lease == "release" and not lost:
            lost.append(batch)
            raise OutcomeUnknown("the connection was cut in commit")

    async def retaken(*args: Any, **given: Any) -> Any:
        if not back.is_set():
            raise StoreUnavailable("not now")
        return await retake(*args, **given)

    gate.after = after
    gate.retake = retaken  # type: ignore[attr-defined]
    run = await rt.start(agent(script, pay), "Go", run_id="r")
    await until(lambda: bool(lost))
    claimed = gate.inner.lease
    await world.clock.advance(61)
    for _ in range(200):
        await asyncio.sleep(0)
        if (await claimed("r")).epoch > 1:
            break
    back.set()
    await held.reached()
    held.let_go()
    assert (await run.result()).text == "Done."
    assert ran == ["pay"]
    await check_run(run)


# --- cancel, watch, send ----------------------------------------------------------------------------------------------


@pytest.mark.proves("C1", "R2")
async def test_a_cancel_that_came_first_wins_over_a_changed_agent(world: World) -> None:
    rt = await world.open(drive=False)
    old = agent(["Done."], on_change="fail")
    run = await rt.start(old, "Go", run_id="r")
    await rt.store.post("r", e_cancel())
    await world.kill(rt)
    second = await world.open(agent(["Done."], on_change="fail", instructions="Other."))
    result = await (await second.get("r")).result()
    assert isinstance(result.outcome, Cancelled)
    assert run.id == "r"


def e_cancel() -> Any:
    from clew.core.letters import CancelLetter

    return CancelLetter(reason="enough")


@pytest.mark.proves("C2")
async def test_words_of_a_stream_that_does_not_close_are_kept_by_a_cancel(world: World) -> None:
    hung = Stop()

    class Stubborn(Fragments):
        async def stream(self, request: Any, /) -> Any:
            yield Fragment("text", "Once upon")
            try:
                await hung.arrive()
            finally:
                await asyncio.Event().wait()

    rt = await world.open(grace=0.05)
    run = await rt.start(agent(Stubborn()), "Go", run_id="r")
    await hung.reached()
    await run.cancel()
    result = await run.result()
    assert result.text == "Once upon"
    assert of(await check_run(run), e.ModelReplied)[0].finish == "cut_off"


@pytest.mark.proves("E1")
@pytest.mark.parametrize("after", [4, 9])
async def test_watching_a_finished_run_from_its_end_ends(world: World, after: int) -> None:
    rt = await world.open()
    run = await rt.start(agent(["Done."]), "Go")
    await run.result()
    assert len(await run.entries()) == 4
    async with asyncio.timeout(5):
        assert [item async for item in run.watch(after)] == []


@pytest.mark.proves("J1")
async def test_a_message_that_is_known_is_known_after_the_end(world: World) -> None:
    held = Stop()
    rt = await world.open()
    run = await rt.start(
        agent(Fragments([held, ModelReply(parts=(Text("Hi."),))], ["So.", ModelReply(parts=(Text("So."),))])), "Go"
    )
    await held.reached()
    first = await rt.send(run.id, "And?", message_id="m1")
    held.let_go()
    await run.result()
    assert (await rt.send(run.id, "And?", message_id="m1")).id == first.id
    with pytest.raises(RunEnded):
        await rt.send(run.id, "And?", message_id="m2")


# --- what stands in the journal ---------------------------------------------------------------------------------------


@pytest.mark.proves("J9", "R2")
async def test_the_request_is_told_as_it_was_sent(world: World) -> None:
    settings = ModelSettings(temperature=0.5)
    pick = ClientTool("pick", {"type": "object"})
    rt = await world.open()
    made = agent(["Hi."], look, instructions=lambda ctx: f"You are {ctx.agent}.")
    run = await rt.start(made, "Go", model_settings=settings, client_tools=[pick])
    await run.result()
    [replied] = of(await run.entries(), e.ModelReplied)
    assert replied.request is not None
    assert (replied.request.tools, replied.request.messages, replied.request.settings) == (2, 1, {"temperature": 0.5})
    assert replied.request.digest.startswith("sha256:")


@pytest.mark.proves("R2")
async def test_the_row_follows_a_deploy(world: World) -> None:
    rt = await world.open(drive=False)
    await rt.start(agent(["Done."]), "Go", run_id="r")
    await world.kill(rt)
    newer = agent(["Done."], instructions="Other.")
    second = await world.open(newer)
    info = await becomes(second, "r", lambda info: info.status == "done")
    assert info.fingerprint == newer.fingerprint


@pytest.mark.proves("T8")
async def test_an_exception_called_fatal_is_not_ours(world: World) -> None:
    class fatal(Exception):  # noqa: N801
        pass

    @tool(effect="read")
    def burn() -> str:
        raise fatal("hot")

    rt = await world.open()
    run = await rt.start(agent([[call("burn")], "Done."], burn), "Go")
    assert (await run.result()).text == "Done."


@pytest.mark.proves("T8")
async def test_state_that_a_tool_gives_is_kept(world: World) -> None:
    from clew import StateKey, ToolOutput

    key = StateKey("count", int, default=0)

    @tool(effect="read")
    def add() -> ToolOutput:
        return ToolOutput("ok", state={key: 1})

    rt = await world.open()
    run = await rt.start(agent([[call("add")], "Done."], add), "Go")
    await run.result()
    assert await run.state(key) == 1
    assert [op.key for op in of(await run.entries(), e.ToolReturned)[0].state] == ["count"]


@pytest.mark.proves("T8")
async def test_an_async_wrapper_around_a_plain_function_runs(world: World) -> None:
    import functools

    ran: list[str] = []

    def plain() -> str:
        ran.append("plain")
        return "blue"

    @functools.wraps(plain)
    async def wrapped() -> str:
        return plain()

    rt = await world.open()
    run = await rt.start(agent([[call("plain")], "Done."], tool(effect="read")(wrapped)), "Go")
    await run.result()
    assert (ran, of(await run.entries(), e.ToolReturned)[0].content) == (["plain"], "blue")


@pytest.mark.proves("R3")
async def test_deps_that_cannot_be_made_do_not_fill_the_journal(world: World) -> None:
    tried: list[str] = []

    def deps(info: Any) -> Any:
        tried.append(info.run_id)
        raise OSError("no database")

    waiting = agent(["Done."], look)
    rt = await world.open(waiting, deps=deps)
    await rt.start(waiting, "Go", run_id="r")
    for _ in range(5):
        await until(lambda: bool(tried))
        tried.clear()
        await until_free(rt)
        await world.clock.advance(6)
    assert kinds(await rt.store.read("r")) == ["run_started", "driver_attached"]
    await rt.cancel("r")
    assert (await rt.store.info("r")).reason == "cancelled"


async def until_free(rt: Any) -> None:
    await becomes(rt, "r", lambda _: not rt.driving)
