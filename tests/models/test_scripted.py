"""Models without a network: the same replies in any process, streamed as real ones are."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from clew.core.messages import Message, Text, Thinking, ToolCall, ToolResult, Transcript, Usage
from clew.errors import ModelError, UsageError
from clew.ports import Fragment, Model, ModelReply, ModelRequest
from clew.testing import FunctionModel, ScriptedModel, call, slow


async def asked(model: Model, ordinal: int = 0, **request: Any) -> tuple[list[Fragment], ModelReply]:
    pieces = [piece async for piece in model.stream(ModelRequest(ordinal=ordinal, **request))]
    *fragments, reply = pieces
    assert isinstance(reply, ModelReply)
    return [piece for piece in fragments if isinstance(piece, Fragment)], reply


class TestScript:
    async def test_reply_n_is_for_step_n_whoever_asks(self) -> None:
        script = ["one", "two", "three"]
        model = ScriptedModel(script)
        assert [(await asked(model, n))[1].text for n in (2, 0, 0)] == ["three", "one", "one"]
        assert (await asked(ScriptedModel(script), 1))[1].text == "two"

    async def test_it_tells_what_it_was_asked(self) -> None:
        model = ScriptedModel(["one"])
        assert (model.count, model.requests) == (0, [])
        await asked(model, run_id="r", step="1.model")
        assert (model.count, model.requests[0].run_id) == (1, "r")
        assert repr(model) == "ScriptedModel(1 replies, asked 1 times)"

    async def test_text_comes_in_a_few_fragments(self) -> None:
        fragments, reply = await asked(ScriptedModel(["It is sunny."]))
        assert 1 < len(fragments) <= 4
        assert "".join(piece.text for piece in fragments) == reply.text == "It is sunny."
        assert reply.finish == "stop"

    async def test_text_and_calls_are_one_reply(self) -> None:
        script = [["I pay.", call("pay", {"n": 1}), call("pay", {"n": 2}, "c2")]]
        fragments, reply = await asked(ScriptedModel(script), 0)
        assert reply.finish == "tool_calls"
        assert reply.text == "I pay."
        assert [(one.tool, one.args, one.provider_id) for one in reply.calls] == [
            ("pay", {"n": 1}, "call_0_1"),
            ("pay", {"n": 2}, "c2"),
        ]
        assert [(piece.kind, piece.part, piece.text) for piece in fragments[-2:]] == [
            ("tool_args", 1, '{"n": 1}'),
            ("tool_args", 2, '{"n": 2}'),
        ]

    async def test_a_call_alone_is_a_reply(self) -> None:
        assert (await asked(ScriptedModel([call("pay")])))[1].calls[0].args == {}

    async def test_a_whole_reply_is_given_as_it_is(self) -> None:
        whole = ModelReply(parts=(Thinking("hm"), Text("x")), usage=Usage(1, 2), finish="length")
        fragments, reply = await asked(ScriptedModel([whole]))
        assert reply is whole
        assert [(piece.kind, piece.part) for piece in fragments] == [("thinking", 0), ("thinking", 0), ("text", 1)]

    async def test_an_empty_text_has_no_fragments(self) -> None:
        assert await asked(ScriptedModel([""])) == ([], ModelReply(parts=(Text(""),), usage=Usage(estimated=True)))

    async def test_exceptions_are_raised(self) -> None:
        error = ModelError("rate_limited", retry_after=1)
        model = ScriptedModel([error, KeyError("x")])
        for _ in range(2):
            with pytest.raises(ModelError) as caught:
                await asked(model)
            assert caught.value is error
        with pytest.raises(KeyError):
            await asked(model, 1)

    async def test_past_the_end(self) -> None:
        with pytest.raises(ModelError, match="the script has 1 replies, and the run asks for number 2") as caught:
            await asked(ScriptedModel(["x"]), 1)
        assert caught.value.kind == "invalid_request"

    async def test_slow_ones_take_their_time(self) -> None:
        began = asyncio.get_running_loop().time()
        pieces: list[float] = []
        async for _ in ScriptedModel([slow(slow("four words are enough", 0.02), 0.02)]).stream(ModelRequest()):
            pieces.append(asyncio.get_running_loop().time() - began)  # noqa: PERF401
        assert pieces[0] < pieces[-1]
        assert pieces[-1] >= 0.039
        for line in (slow(ModelError("timeout"), 0.01), slow(ModelReply(), 0.01)):
            begun = asyncio.get_running_loop().time()
            with suppress(ModelError):
                await asked(ScriptedModel([line]))
            assert asyncio.get_running_loop().time() - begun >= 0.009

    async def test_a_stream_can_be_left(self) -> None:
        for model in (ScriptedModel([slow("text", 60)]), FunctionModel(lambda messages, tools: slow("text", 60))):
            stream: Any = model.stream(ModelRequest())
            assert isinstance(await anext(stream), Fragment)
            await stream.aclose()

    async def test_tokens_are_counted_over_what_is_new(self) -> None:
        old = [Message.user("x" * 4000), Message.assistant("y" * 4000)]
        new = [
            Message("tool", (ToolResult("1.tool.1", "r" * 8), ToolResult("1.tool.2", {"a": 1}))),
            Message.user("four"),
        ]
        _, reply = await asked(ScriptedModel(["12345678"]), messages=Transcript([*old, *new]), instructions="1234")
        assert reply.usage == Usage(input=(4 + 8 + len("{'a': 1}") + 4) // 4, output=2, estimated=True)

    @pytest.mark.parametrize("line", [3, None, [3], [["x"]], {"text": "x"}, slow(3, 1)])  # type: ignore[arg-type]
    def test_what_no_model_says(self, line: Any) -> None:
        with pytest.raises(UsageError, match="a reply"):
            ScriptedModel(["fine", line])

    def test_a_text_is_no_script(self) -> None:
        with pytest.raises(UsageError, match=r"ScriptedModel\(\['Hello\.'\]\)"):
            ScriptedModel("Hello.")

    def test_both_are_models(self) -> None:
        assert isinstance(ScriptedModel([]), Model)
        assert isinstance(FunctionModel(lambda messages, tools: ""), Model)


class TestCalls:
    def test_arguments_are_sent_as_json(self) -> None:
        assert json.loads(call("pay", {"to": "Åsa", "n": 1.5}).args_text) == {"to": "Åsa", "n": 1.5}
        assert call("pay", "not json").args_text == "not json"
        assert call("pay", id="c1") == ToolCall("c1", provider_id="c1", tool="pay", args_text="{}")

    def test_what_is_no_json(self) -> None:
        with pytest.raises(UsageError, match=r"'pay'.*a model sends JSON"):
            call("pay", {"x": object()})

    @pytest.mark.parametrize("seconds", [-1, float("nan")])
    def test_time_goes_forward(self, seconds: float) -> None:
        with pytest.raises(UsageError, match="give seconds"):
            slow("x", seconds)


class TestFunction:
    async def test_it_is_asked_with_messages_and_tools(self) -> None:
        def echo(messages: list[Message], tools: list[Any]) -> str:
            return f"{messages[-1].text} {len(tools)}"

        model = FunctionModel(echo)
        assert (await asked(model, messages=[Message.user("hi")]))[1].text == "hi 0"
        assert (model.name, model.count) == ("function", 1)

    async def test_it_may_be_async_and_give_any_line(self) -> None:
        async def calls(messages: list[Message], tools: list[Any]) -> list[str | ToolCall]:
            return ["now", call("pay")]

        assert (await asked(FunctionModel(calls)))[1].finish == "tool_calls"

    async def test_what_it_gives_is_checked(self) -> None:
        with pytest.raises(UsageError, match="a reply is text"):
            await asked(FunctionModel(lambda messages, tools: 3))  # type: ignore[arg-type, return-value]
