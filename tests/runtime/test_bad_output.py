"""What models and tools give that no journal could hold: told in words, and nothing is lost."""

import json
import resource
from collections.abc import AsyncIterator
from typing import Any

import pydantic
import pytest

from clew import Limits, ToolOutput, tool
from clew.core import entries as e
from clew.core.outcomes import Failed
from clew.errors import UsageError
from clew.messages import Text, ToolCall
from clew.ports import Fragment, ModelReply
from clew.testing import ScriptedModel, call
from tests.runtime.world import Fragments, Stop, World, agent, check_run, of, results, seen

MIB = 1024 * 1024


@tool(effect="read")
def look() -> str:
    return "blue"


@pytest.mark.proves("J6")
@pytest.mark.parametrize("effect", ["read", "once"])
async def test_a_result_of_twenty_megabytes_succeeded_and_says_that_it_was_too_large_to_keep(
    world: World, effect: Any
) -> None:
    ran = 0

    @tool(effect=effect)
    def dump() -> str:
        nonlocal ran
        ran += 1
        return "x" * 20_000_000

    rt = await world.open()
    run = await rt.start(agent([[call("dump"), call("look")], "Done."], dump, look), "Go", run_id="r")
    result = await run.result()
    told = results(result.messages)["1.tool.1"]
    assert (told.is_error, ran, result.text) == (False, 1, "Done.")
    assert "succeeded" in told.content
    assert "too large to keep" in told.content
    assert sum(map(len, await rt.store.read_raw("r"))) < 10_000
    await check_run(run)


@pytest.mark.proves("J6")
async def test_a_large_result_is_stored_once_and_whole_and_the_model_sees_its_beginning_and_end(world: World) -> None:
    large = {"rows": ["ä" * 100] * 400, "nan": float("nan")}
    held = Stop()

    @tool(effect="once")
    async def fetch() -> dict[str, Any]:
        return large

    @tool(effect="read")
    async def wait() -> str:
        if not held.passed:
            await held.arrive()
        return "waited"

    model = ScriptedModel([[call("fetch"), call("fetch")], [call("wait")], "Done."])
    fetcher = agent(model, fetch, wait)
    rt = await world.open(fetcher)
    await rt.start(fetcher, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    second = await world.open(fetcher)
    run = await second.get("r")
    await run.result()
    one, two, _ = of(await check_run(run), e.ToolReturned)
    assert one.content == two.content
    assert set(one.content) == {"$blob", "size", "type"}
    assert one.content["size"] > 70_000
    assert sum(map(len, await second.store.read_raw("r"))) < 10_000
    digest = one.content["$blob"]
    whole = (await second.store.blobs([digest]))[digest].decode()
    assert json.loads(whole)["rows"] == large["rows"]
    shown = {results(request.messages)[f"1.tool.{n}"].content for request in model.requests[1:] for n in (1, 2)}
    assert len(model.requests) == 3  # the last by the process behind the crash
    [told] = shown  # the same text in every request, also of another process
    beginning, note, end = told.split("\n")
    assert whole.startswith(beginning)
    assert whole.endswith(end)
    left = len(whole) - len(beginning) - len(end)
    assert f"{left} of {len(whole)} characters" in note
    assert digest in note
    assert len(told) < 20_000


@pytest.mark.proves("J6")
async def test_a_result_that_was_read_by_few_bytes_too_many_is_shown_whole_if_nothing_would_be_left_out(
    world: World,
) -> None:
    @tool(effect="read")
    def text() -> str:
        return "\n" * 33_000 + "end"  # above 64 KiB as JSON, where each is two characters

    @tool(effect="read")
    def short() -> str:
        return "\x01" * 15_000  # six characters each

    model = ScriptedModel([[call("text"), call("short")], "Done."])
    rt = await world.open()
    run = await rt.start(agent(model, text, short), "Go")
    await run.result()
    shown = results(model.requests[1].messages)
    assert "17003 of 33003 characters" in shown["1.tool.1"].content
    assert shown["1.tool.1"].content.endswith("\nend")
    assert shown["1.tool.2"].content == "\x01" * 15_000


@pytest.mark.proves("J6")
@pytest.mark.parametrize("shape", ["text", "bytes", "list", "keys"])
async def test_a_result_of_a_gigabyte_takes_nothing_down(world: World, shape: str) -> None:
    piece = "x" * 1_000_000

    @tool(effect="once")
    def huge() -> Any:
        match shape:
            case "text":
                return "x" * 1_000_000_000
            case "bytes":
                return {"raw": "x" * 1_000_000_000}
            case "list":
                return [piece] * 1_000
            case _:
                return {f"{n}{piece}": [piece] for n in range(100)}

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rt = await world.open()
    run = await rt.start(agent([[call("huge")], "Done."], huge), "Go", run_id="r")
    result = await run.result()
    assert "too large to keep" in results(result.messages)["1.tool.1"].content
    assert result.text == "Done."
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2_500_000  # KiB: it is not copied about
    await check_run(run)


@pytest.mark.proves("J6", "L10")
@pytest.mark.parametrize("where", ["text", "args", "raw"])
async def test_a_reply_above_sixteen_mebibytes_is_a_permanent_model_error(world: World, where: str) -> None:
    import msgspec

    from clew.core.messages import RawReply

    huge = "x" * (16 * MIB + 1)
    parts: dict[str, Any] = {
        "text": (Text(huge[: 9 * MIB]), Text(huge[: 9 * MIB])),
        "args": (ToolCall("c", provider_id="c", tool="look", args_text=f'{{"x": "{huge}"}}'),),
        "raw": (Text("Hi."),),
    }
    raw = RawReply("acme", "large", (msgspec.Raw(b'"%s"' % huge.encode()),)) if where == "raw" else None
    model = ScriptedModel([ModelReply(parts=parts[where], raw=raw), "never"])
    rt = await world.open()
    run = await rt.start(agent(model, look), "Go", run_id="r")
    outcome = (await run.result()).outcome
    assert isinstance(outcome, Failed)
    assert outcome.class_ == "invalid_request"
    assert "16777216" in outcome.message
    assert model.count == 1
    assert sum(map(len, await rt.store.read_raw("r"))) < 10_000


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Picky(pydantic.BaseModel):
    name: str

    @pydantic.field_serializer("name")
    def _dump(self, _name: str) -> str:
        raise RuntimeError("the serialiser broke")


def circle() -> Any:
    ring: list[Any] = []
    ring.append(ring)
    return ring


ODD: dict[str, Any] = {
    "an exception without words": Rude(),
    "a serialiser that raises": Picky(name="x"),
    "a circle": circle(),
    "a lambda": lambda: 1,
    "a class": Picky,
    "an enormous integer": 10**6000,
    "a generator": (n for n in range(3)),
    "a dict of objects": {"a": {"b": object()}},
    "output with odd artifacts": ToolOutput("ok", artifacts=[object()]),
    "output with odd metadata": ToolOutput("ok", metadata={"a": object()}),
}


@pytest.mark.proves("T8", "T3")
@pytest.mark.parametrize("effect", ["read", "once"])
@pytest.mark.parametrize("what", ODD)
async def test_an_odd_result_is_told_to_the_model_once(world: World, what: str, effect: Any) -> None:
    ran = 0

    @tool(effect=effect, on_doubt="report")
    def give() -> Any:
        nonlocal ran
        ran += 1
        if isinstance(ODD[what], Exception):
            raise ODD[what]
        return ODD[what]

    rt = await world.open()
    run = await rt.start(agent([[call("give"), call("look")], "Done."], give, look), "Go")
    result = await run.result()
    assert (ran, result.text) == (1, "Done.")
    told = results(result.messages)
    assert told["1.tool.2"].content == "blue"
    if what != "a generator":
        assert told["1.tool.1"].is_error
    entries = await check_run(run)
    assert len(of(entries, e.DriverAttached)) == 1


@pytest.mark.proves("L8", "T8")
@pytest.mark.parametrize(
    "args",
    [
        '{"x": ' + "[" * 100_000,
        '{"x": ' + "[" * 500 + "]" * 500 + "}",
        '{"x": 1' + "0" * 6000 + "}",
        "{" * 50,
        '{"x": 1e999}',
    ],
    ids=["deep and cut off", "deep", "huge integer", "braces", "infinite"],
)
async def test_odd_arguments_are_told_to_the_model(world: World, args: str) -> None:
    @tool(effect="read")
    def take(x: Any) -> str:
        return "taken"

    rt = await world.open()
    run = await rt.start(agent([[call("take", args), call("look")], "Done."], take, look), "Go")
    result = await run.result()
    told = results(result.messages)
    assert (result.text, told["1.tool.2"].content) == ("Done.", "blue")
    if "1e999" not in args:
        assert told["1.tool.1"].is_error
        assert "invalid arguments" in told["1.tool.1"].content
        assert len(told["1.tool.1"].content) < 5_000
    await check_run(run)


class NoStream:
    name = "none"

    async def stream(self, _request: Any) -> Any:
        return ModelReply(parts=(Text("Hi."),))


def says(*pieces: Any) -> Any:
    class Says:
        name = "says"

        async def stream(self, _request: Any) -> AsyncIterator[Any]:
            for piece in pieces:
                yield piece

    return Says()


ODD_MODELS: dict[str, Any] = {
    "a coroutine instead of a stream": NoStream(),
    "text instead of fragments": says("Hi", "there"),
    "a dict instead of a reply": says({"text": "Hi"}),
    "nothing": says(),
    "fragments and no reply": says(Fragment("text", "Hi")),
    "text instead of parts": says(ModelReply(parts=("Hi",))),  # type: ignore[arg-type]
    "arguments that are no text": says(ModelReply(parts=(ToolCall("c", tool="look", args_text={"a": 1}),))),  # type: ignore[arg-type]
    "usage that is none": says(ModelReply(parts=(Text("Hi."),), usage={"input": 1})),  # type: ignore[arg-type]
    "a finish that is none": says(ModelReply(parts=(Text("Hi."),), finish="whenever")),  # type: ignore[arg-type]
}


@pytest.mark.proves("T8", "L7", "E2")
@pytest.mark.parametrize("what", ODD_MODELS)
async def test_an_odd_model_fails_the_run_in_words_and_no_watcher(world: World, what: str) -> None:
    rt = await world.open()
    run = await rt.start(agent(ODD_MODELS[what], look, limits=Limits(model_errors=1)), "Go", run_id="r")
    items = [item async for item in run.watch()]
    assert items[-1].kind == "run_finished"
    result = await run.result()
    assert result.reason in ("error", "stopped:model_errors")
    failed = of(await check_run(run), e.ModelFailed)
    assert len(failed) == 1
    assert failed[0].message
    assert failed[0].class_


@pytest.mark.proves("T8")
async def test_raw_items_that_are_no_json_fail_the_run_and_do_not_corrupt_its_journal(world: World) -> None:
    import msgspec

    from clew.core.messages import RawReply

    broken = RawReply("acme", "large", (msgspec.Raw(b'{"cut": "of'),))
    rt = await world.open()
    run = await rt.start(agent([ModelReply(parts=(Text("Hi."),), raw=broken)]), "Go")
    outcome = (await run.result()).outcome
    assert isinstance(outcome, Failed)
    assert "cannot be stored" in outcome.message
    await check_run(run)


@pytest.mark.proves("T8")
async def test_a_held_run_loses_nothing_to_the_bad_input_of_others(world: World) -> None:
    held = Stop()
    rt = await world.open()
    run = await rt.start(agent(Fragments([held, ModelReply(parts=(Text("Sunny."),))])), "Rain?", run_id="r")
    await held.reached()
    for bad in (42, "a\ud800", "x" * (16 * MIB + 1)):
        with pytest.raises(UsageError):
            await run.send(bad)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            await rt.start(agent(["Hi."], name="other"), bad)  # type: ignore[arg-type]
    held.let_go()
    assert (await run.result()).text == "Sunny."
    assert "model_replied" in [entry.kind for entry in await seen(run, "run_finished")]
