"""L6, L10, L11: replies that were cut off at their length are taken up again; streams that broke are said anew."""

from typing import Any

import pytest

from clew import Limits, Middleware, ModelReply, RunContext, tool
from clew.core import entries as e
from clew.core.deltas import ResetDelta, TextDelta
from clew.core.outcomes import Failed
from clew.errors import ModelError
from clew.messages import Text, Thinking, Usage
from clew.testing import ScriptedModel, call, crash_points
from tests.runtime.test_policy import _stores
from tests.runtime.world import Fragments, Stop, World, agent, becomes, check_run, gate_of, has, of, results, seen


@tool(effect="read")
def look() -> str:
    return "blue"


def cut(*said: Any) -> ModelReply:
    parts = tuple(Text(one) if isinstance(one, str) else one for one in said)
    return ModelReply(parts=parts, finish="length", usage=Usage(input=10, output=5))


# --- L6 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("L6")
async def test_cut_off_text_is_taken_up_again_and_joined(world: World) -> None:
    model = ScriptedModel([cut("Once upon "), cut("a time there "), "was a fox."])
    rt = await world.open()
    run = await rt.start(agent(model), "Go", run_id="r")
    result = await run.result()
    assert (result.output, result.turns) == ("Once upon a time there was a fox.", 1)
    entries = of(await check_run(run), e.ModelReplied)
    assert [(x.step, x.continues) for x in entries] == [
        ("1.model", None),
        ("1.model.2", "1.model"),
        ("1.model.3", "1.model"),
    ]
    assert [m.text for m in result.messages] == ["Go", "Once upon a time there was a fox."]
    assert [m.id for m in result.messages] == ["r:1", f"r:{entries[0].seq}"]
    assert result.messages[1].produced_by == ("r", 1)
    asked = [[m.text for m in request.messages] for request in model.requests]
    assert asked[0] == ["Go"]
    assert asked[1][:2] == ["Go", "Once upon "]
    assert asked[2][:2] == ["Go", "Once upon a time there "]
    assert all("cut off" in said[2] for said in asked[1:])
    assert result.usage.output >= 10


@pytest.mark.proves("L6")
@pytest.mark.parametrize("most", [0, 1, 2])
async def test_at_most_so_many_times(world: World, most: int) -> None:
    model = ScriptedModel([cut(f"{n} ") for n in range(9)])
    rt = await world.open()
    run = await rt.start(agent(model, max_continuations=most), "Go")
    result = await run.result()
    assert model.count == most + 1
    assert (result.output, result.reason) == ("".join(f"{n} " for n in range(most + 1)), "natural")


@pytest.mark.proves("L6")
async def test_a_reply_that_was_taken_up_may_call_tools_and_the_next_is_taken_up_again(world: World) -> None:
    model = ScriptedModel([cut("Let me "), ["look.", call("look")], cut("It is "), "blue."])
    rt = await world.open()
    run = await rt.start(agent(model, look), "Go")
    result = await run.result()
    assert [m.text for m in result.messages if m.role == "assistant"] == ["Let me look.", "It is blue."]
    assert results(result.messages)["1.tool.1"].content == "blue"
    assert (result.turns, result.output) == (2, "It is blue.")
    assert [x.step for x in of(await check_run(run), e.ModelReplied)] == [
        "1.model",
        "1.model.2",
        "2.model",
        "2.model.2",
    ]


@pytest.mark.proves("L6", "L4")
async def test_calls_of_a_cut_off_reply_are_answered_with_errors_and_it_is_not_taken_up(world: World) -> None:
    model = ScriptedModel([cut("I look. ", call("look", id="a"), call("look", "{", id="b")), "Fine."])
    rt = await world.open()
    run = await rt.start(agent(model, look, limits=Limits(tool="look")), "Go")
    result = await run.result()
    found = results(result.messages)
    assert [found[f"1.tool.{n}"].is_error for n in (1, 2)] == [True, True]
    assert "cut off" in found["1.tool.1"].content
    assert (result.output, result.turns) == ("Fine.", 2)
    assert [x.step for x in of(await check_run(run), e.ModelReplied)] == ["1.model", "2.model"]


@pytest.mark.proves("L6", "T4")
async def test_what_was_said_so_far_survives_a_crash_at_every_point(kind: str, tmp_path: Any) -> None:
    who = agent([cut("Once "), cut("upon "), ["a time ", call("look")], cut("there "), "was."], look)
    report = await crash_points(who, "Go", **_stores(kind, tmp_path))
    assert report.ok, str(report)


@pytest.mark.proves("L6", "L9")
async def test_a_pattern_is_looked_for_in_the_whole_reply(world: World) -> None:
    model = ScriptedModel([cut("FIN"), ["AL", call("look")], "never"])
    rt = await world.open()
    run = await rt.start(agent(model, look, limits=Limits(text="FINAL")), "Go")
    assert ((await run.result()).reason, model.count) == ("stopped:text", 2)


@pytest.mark.proves("L6", "L10")
async def test_a_continuation_that_fails_is_tried_again(world: World) -> None:
    busy = ModelError("overloaded", "busy", retry_after=0.0)
    model = ScriptedModel([cut("Once "), busy, "upon a time."])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    result = await run.result()
    assert result.output == "Once upon a time."
    assert [(x.step, x.attempt) for x in of(await check_run(run), e.ModelFailed)] == [("1.model.2", 1)]


@pytest.mark.proves("L6", "W10")
async def test_a_message_that_comes_meanwhile_is_answered_instead(world: World) -> None:
    held = Stop()
    model = Fragments([cut("Once ")], [held, "never", cut("upon")], ["Stopped.", ModelReply(parts=(Text("Stopped."),))])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    await held.reached()
    await run.send("Stop!")
    held.let_go()
    result = await run.result()
    assert result.output == "Stopped."
    assert "Stop!" in [m.text for m in result.messages]
    await check_run(run)


@pytest.mark.proves("L6", "L7")
async def test_an_empty_continuation_is_a_failure_that_is_tried_again(world: World) -> None:
    model = ScriptedModel([cut("Once "), ModelReply(), "upon a time."])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    await seen(run, "model_failed")
    await world.clock.advance(5)
    result = await run.result()
    assert (result.output, result.turns) == ("Once upon a time.", 1)
    [failed] = of(await check_run(run), e.ModelFailed)
    assert (failed.class_, failed.step) == ("provider", "1.model.2")


# --- L11: what watchers are left with ---------------------------------------------------------------------------------


class Listener:
    """Keeps what a watcher would have on the screen: fragments by step, void when reset or told by an entry."""

    def __init__(self) -> None:
        self.said: dict[str, dict[int, str]] = {}
        self.committed: dict[str, str] = {}
        self.resets = 0

    def hear(self, item: Any) -> None:
        match item:
            case ResetDelta():
                self.resets += 1
                self.said[item.step] = {}
            case TextDelta():
                parts = self.said.setdefault(item.step, {})
                assert len(parts.get(item.part, "")) == item.offset
                parts[item.part] = parts.get(item.part, "") + item.text
            case e.ModelReplied():
                heard = "".join(self.said.get(item.step or "", {}).values())
                assert heard in ("", item.text)
                self.committed[item.step or ""] = item.text
            case _:
                pass


@pytest.mark.proves("L6", "L11")
async def test_what_watchers_heard_is_what_the_journal_says(world: World) -> None:
    broken = ["Once upon a ", ModelError("interrupted", "the line broke", retry_after=0.0)]
    first = ["Once ", "upon ", cut("Once upon ")]
    second = ["a ", Stop(), "time.", ModelReply(parts=(Text("a time."),))]
    model = Fragments(broken, first, second)
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    listener = Listener()
    async for item in run.watch():
        listener.hear(item)
        if listener.said.get("1.model.2"):
            second[1].let_go()
        if getattr(item, "kind", "") == "run_finished":
            break
    result = await run.result()
    assert listener.committed == {"1.model": "Once upon ", "1.model.2": "a time."}
    assert result.output == "".join(listener.committed.values())


@pytest.mark.proves("L11")
async def test_text_gives_the_whole_answer_once(world: World) -> None:
    model = Fragments(
        ["Once ", cut("Once ")],
        ["upon ", cut("upon ")],
        ["a time.", ModelReply(parts=(Text("a time."),))],
    )
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    assert "".join([piece async for piece in run.text()]) == "Once upon a time."


@pytest.mark.proves("L11", "T4")
async def test_a_stream_that_a_crash_broke_is_said_anew_and_watchers_are_told(world: World) -> None:
    held = Stop()
    model = Fragments(["Once upon ", held, "never"], ["A time.", ModelReply(parts=(Text("A time."),))])

    who = agent(model)
    rt = await world.open(who)
    await rt.start(who, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    again = agent(Fragments(["A time.", ModelReply(parts=(Text("A time."),))]))
    second = await world.open(again)
    run = await second.get("r")
    result = await run.result()
    assert result.output == "A time."
    [reply] = of(await check_run(run), e.ModelReplied)
    assert (reply.text, reply.epoch) == ("A time.", 2)


# --- L10 --------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("L10")
@pytest.mark.parametrize("class_", ["provider", "rate_limited", "overloaded", "timeout", "interrupted"])
async def test_a_transient_error_keeps_its_class_and_is_tried_again(world: World, class_: Any) -> None:
    model = ScriptedModel([ModelError(class_, "not now", retry_after=0.0), "Fine."])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    assert (await run.result()).output == "Fine."
    [failed] = of(await check_run(run), e.ModelFailed)
    assert (failed.class_, failed.message) == (class_, "not now")
    assert failed.retry_at is not None


@pytest.mark.proves("L10")
@pytest.mark.parametrize("class_", ["context_overflow", "invalid_request", "unauthorized", "not_found", "filtered"])
async def test_a_permanent_error_ends_the_run_with_its_class(world: World, class_: Any) -> None:
    model = ScriptedModel([ModelError(class_, "never"), "never"])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    result = await run.result()
    assert (result.outcome, model.count) == (Failed(class_, "never"), 1)


@pytest.mark.proves("L10", "W9")
async def test_a_long_wait_is_durable_and_holds_nothing(world: World) -> None:
    model = ScriptedModel([ModelError("rate_limited", "later", retry_after=600.0), "Fine."])
    who = agent(model)
    rt = await world.open(who)
    run = await rt.start(who, "Go", run_id="r")
    info = await becomes(rt, "r", lambda info: info.status == "waiting")
    assert info.reason == "rate_limit"
    assert info.wake_at is not None
    assert (await rt.store.lease("r")).owner is None
    await world.kill(rt, lapse=False)
    second = await world.open(who)
    await world.clock.advance(300)
    assert (model.count, (await second.store.info("r")).status) == (1, "waiting")
    await world.clock.advance(301)
    run = await second.get("r")
    assert (await run.result()).output == "Fine."
    assert model.count == 2


@pytest.mark.proves("L10")
async def test_waits_grow_from_attempt_to_attempt_and_are_told_in_the_journal(world: World) -> None:
    model = ScriptedModel([ModelError("overloaded", "busy")] * 4 + ["Fine."])
    rt = await world.open()
    run = await rt.start(agent(model), "Go")
    for attempt in range(1, 5):
        await seen(run, *["model_failed"] * attempt)
        await world.clock.advance(60)
    await run.result()
    failed = of(await check_run(run), e.ModelFailed)
    waits = [(x.retry_at or 0) - x.at for x in failed]
    assert [x.attempt for x in failed] == [1, 2, 3, 4]
    for n, wait in enumerate(waits):
        assert 250_000 * 2**n <= wait <= 750_000 * 2**n


@pytest.mark.proves("L1", "L6")
async def test_middleware_sees_each_piece_and_the_joined_answer_is_checked(world: World) -> None:
    pieces: list[str] = []

    class Listening(Middleware):
        async def after_model(self, ctx: RunContext[Any], reply: ModelReply) -> None:
            pieces.append(reply.text)

    rt = await world.open()
    who = agent([cut('{"a": '), '1, "b": 2}'], output_type=dict[str, int], middleware=[Listening()])
    result = await (await rt.start(who, "Go")).result()
    assert result.output == {"a": 1, "b": 2}
    assert pieces == ['{"a": ', '1, "b": 2}']


@pytest.mark.proves("L3", "L6")
async def test_thinking_and_parts_keep_their_order_where_a_reply_goes_on(world: World) -> None:
    model = ScriptedModel([cut(Thinking("Hm."), "One "), ModelReply(parts=(Thinking("So."), Text("two.")))])
    rt = await world.open()
    result = await (await rt.start(agent(model), "Go")).result()
    assert result.messages[1].parts == (Thinking("Hm."), Text("One "), Thinking("So."), Text("two."))
    assert result.output == "One two."


@pytest.mark.proves("J8")
async def test_the_last_piece_and_the_end_share_a_commit(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent([cut("a"), "b"]), "Go")
    await run.result()
    [last] = [batch for batch in gate_of(rt).batches if has("model_replied", "run_finished")(batch)]
    assert [entry.step for entry in last.entries if isinstance(entry, e.ModelReplied)] == ["1.model.2"]
