"""What tools are handed: facts, verbs that the runtime performs, state keys."""

from typing import Any

import pytest

from clew import RunContext, StateKey, ToolContext, ToolOutput
from clew.agent import NoVerbs
from clew.errors import Unsupported, UsageError
from clew.testing import tool_context
from clew.tools import Done, NotDone, Unknown

KEY = StateKey("cart", list[str], default=[], scope="thread")


def test_a_context_for_a_test_of_one_tool() -> None:
    seen: list[object] = []
    ctx = tool_context({"bank": 1}, run_id="r", attempt=2, metadata={"user": "ann"}, emit=seen.append)
    ctx.emit({"done": 1})
    assert seen == [{"done": 1}]
    assert (ctx.deps, ctx.run_id, ctx.thread_id, ctx.turn, ctx.attempt) == ({"bank": 1}, "r", "r", 1, 2)
    assert (ctx.call_id, ctx.step_id, ctx.idempotency_key) == ("1.tool.1", "1.tool.1", "r:1.tool.1")
    assert ctx.metadata == {"user": "ann"}
    assert not ctx.letting_go
    assert ctx.decision is None


def test_nobody_listens() -> None:
    tool_context(None).emit(1)


def test_deps_are_not_shown() -> None:
    assert "secret" not in repr(tool_context("secret"))
    assert "secret" not in repr(RunContext(deps="secret"))


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        tool_context(1).deps = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("step", ("name", print)),
        ("once_step", ("name", print)),
        ("ask", ("Sure?", bool)),
        ("sleep", (1,)),
        ("note", ("kind", 1)),
    ],
)
async def test_verbs_are_for_the_body_of_a_tool(verb: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=f"ctx.{verb} is for the async body of a tool"):
        await getattr(tool_context(None), verb)(*args)


def test_a_plain_context_asks_for_no_end() -> None:
    with pytest.raises(UsageError, match=r"ctx.end is for the async body of a tool"):
        tool_context(None).end()


@pytest.mark.parametrize(("verb", "args"), [("run", (None, "x")), ("background", (None,))])
async def test_verbs_of_a_later_release_say_which(verb: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(Unsupported, match=f"ctx.{verb} comes with the release on"):
        await getattr(tool_context(None), verb)(*args)


def test_state_of_a_plain_context_is_empty_and_stays_so() -> None:
    state = tool_context(None).state
    assert state[KEY] == []
    assert KEY not in state
    with pytest.raises(UsageError, match=r"state key 'n' has no value yet, and no default"):
        state[StateKey("n", int)]
    with pytest.raises(UsageError, match=r"ctx.state.update is for the async body of a tool"):
        state.update(KEY, ["a"])


async def test_verbs_go_to_what_the_runtime_gave() -> None:
    class Verbs(NoVerbs):
        async def step(self, name: str, effect: str, fn: Any, args: Any, kwargs: Any) -> Any:
            return name, effect, fn(*args, **kwargs)

        async def ask(self, question: Any) -> Any:
            return question

    ctx = ToolContext(deps=None, verbs=Verbs())
    assert await ctx.step("a", max, 1, 2) == ("a", "idempotent", 2)
    assert await ctx.once_step("b", int, "3") == ("b", "once", 3)
    question: Any = await ctx.ask("How many?", int, name="n", expires=5, on_expire="cancel")
    assert (question.prompt, question.schema, question.name) == ("How many?", int, "n")
    assert (question.expires, question.on_expire) == (5, "cancel")
    unsaid: Any = await ctx.ask("Name?")
    assert (unsaid.schema, unsaid.name, unsaid.on_expire) == (str, None, "reject")


class TestStateKeys:
    def test_what_is_declared(self) -> None:
        assert (KEY.name, KEY.type, KEY.default, KEY.scope, KEY.merge) == ("cart", list[str], [], "thread", "replace")
        assert KEY.has_default
        assert not StateKey("n", int).has_default
        assert repr(StateKey("best", int, merge=max)) == "StateKey('best', int, scope='run', merge='max')"

    @pytest.mark.parametrize(
        ("name", "options", "said"),
        [
            ("", {}, "a state key needs a name"),
            ("x", {"scope": "world"}, r"StateKey\('x'\): scope='world'"),
            ("x", {"merge": "sum"}, r"StateKey\('x'\): merge='sum': use 'replace' or 'add'"),
        ],
    )
    def test_what_cannot_be(self, name: str, options: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            StateKey(name, int, **options)


def test_values_that_pass_between_user_code_and_runtime() -> None:
    output = ToolOutput("ok", state={KEY: ["a"]}, end=True)
    assert (output.content, output.end, output.artifacts, output.metadata) == ("ok", True, (), {})
    assert Done(3).value == 3
    assert (NotDone(), Unknown()) == (NotDone(), Unknown())
