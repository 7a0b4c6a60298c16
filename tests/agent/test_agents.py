"""What `Agent` makes of a declaration, and what it refuses."""

import copy
from typing import Any

import pytest

from clew import Agent, ClientTool, Limits, ModelSettings, RunContext, ToolCall, policy, tool
from clew.core.spec import AgentSpec
from clew.errors import Unsupported, UsageError
from clew.testing import ScriptedModel

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


@tool(effect="read")
def look(q: str) -> str:
    """Look."""
    return q


@tool
def pay(amount: int) -> str:
    return ""


def instructions(ctx: RunContext[object]) -> str:
    return ctx.run_id


class Quiet(policy.Middleware):
    pass


def night(ctx: RunContext[object], call: ToolCall) -> policy.Verdict | None:
    return None


class TestSpec:
    def test_everything_declared_is_data(self) -> None:
        pick = ClientTool("pick", SCHEMA, "Picks.")
        agent = Agent(
            "clerk",
            model=["openai:x", ScriptedModel([])],
            instructions="Be brief.",
            tools=[look, pay],
            client_tools=[pick],
            output_type=int,
            limits=Limits(turns=3),
            model_settings=ModelSettings(temperature=0.5, stop=("x",)),
            policy=[policy.deny("shell", command="rm *"), night],
            middleware=[Quiet()],
            handoffs=[Agent("other", model="m:x", output_type=int), "sales"],
            skills=["skills/a"],
            on_tool_error=3,
        )
        assert agent.spec == AgentSpec(
            name="clerk",
            instructions="Be brief.",
            model=("openai:x", "scripted"),
            tools=(look.spec, pay.spec, pick.spec),
            output_schema={"type": "integer"},
            on_tool_error="3",
            settings={"temperature": 0.5, "stop": ["x"]},
            limits=Limits(turns=3),
            policy=('deny("shell", command="rm *")', "night"),
            middleware=("Quiet",),
            skills=("skills/a",),
            handoffs=("other", "sales"),
        )
        assert agent.spec.tool("pick") == pick.spec
        assert pick.spec.client
        assert agent.fingerprint == agent.spec.fingerprint
        assert agent.tool("pay") is pay
        assert agent.tool("pick") is None
        assert agent.tool("nowhere") is None

    def test_instructions_that_are_made_are_not_kept(self) -> None:
        spec = Agent("a", model="m:x", instructions=instructions).spec
        assert (spec.instructions, spec.dynamic_instructions) == ("", True)

    def test_the_fingerprint_is_of_what_is_declared(self) -> None:
        one = Agent("a", model="m:x", tools=[look])
        assert one.fingerprint == Agent("a", model="m:x", tools=[look]).fingerprint
        assert one.fingerprint != one.replace(instructions="other").fingerprint
        assert one.fingerprint != one.replace(tools=[pay]).fingerprint

    def test_output_schema_is_none_for_text(self) -> None:
        assert Agent("a", model="m:x").output_schema is None


class TestCopies:
    def test_frozen(self) -> None:
        agent = Agent("a", model="m:x")
        with pytest.raises(AttributeError, match=r"agent\.replace\(name=…\)"):
            agent.name = "b"  # type: ignore[misc]
        with pytest.raises(AttributeError, match="frozen"):
            agent.anything = 1  # type: ignore[attr-defined]

    def test_replace_makes_a_changed_copy(self) -> None:
        agent = Agent("a", model="m:x", tools=[look], instructions="x")
        other = agent.replace(model="m:y", name="b")
        assert (other.name, other.models, other.tools, other.instructions) == ("b", ("m:y",), (look,), "x")
        assert (agent.name, agent.models) == ("a", ("m:x",))
        with pytest.raises(UsageError, match="colour"):
            agent.replace(colour="red")

    def test_type_arguments_and_copies_work_at_run_time(self) -> None:
        assert Agent[int, str]("a", model="m:x").name == "a"
        assert Agent[int]("a", model="m:x").name == "a"
        assert copy.deepcopy(Agent("a", model="m:x")).name == "a"

    def test_lists_given_are_not_shared(self) -> None:
        tools = [look]
        agent = Agent("a", model="m:x", tools=tools)
        tools.clear()
        assert agent.tools == (look,)

    def test_it_shows_name_and_models(self) -> None:
        assert repr(Agent("a", model=["m:x", "n:y"])) == "Agent('a', model='m:x, n:y')"


class TestRelatives:
    async def test_an_agent_as_a_tool_is_a_promise(self) -> None:
        agent = Agent("researcher", model="m:x", description="Finds out.")
        made = agent.as_tool(needs_approval=True)
        assert (made.name, made.description, made.agent) == ("researcher", "Finds out.", agent)
        assert made.spec.needs_approval
        assert made.schema["required"] == ["input"]
        assert agent.as_tool(name="ask", description="Asks.").spec.description == "Asks."
        with pytest.raises(Unsupported, match="child runs come with the release on agents"):
            await made("x")

    def test_a_dotted_name_needs_another_as_a_tool(self) -> None:
        with pytest.raises(UsageError, match="name="):
            Agent("my.agent", model="m:x").as_tool()

    @pytest.mark.parametrize(
        ("url", "name"),
        [
            ("https://agents.example/a", "a"),
            ("http://agents.example:8080", "agents.example-8080"),
            ("https://x.example/deep/b/?q=1", "b"),
        ],
    )
    def test_a_remote_agent_is_data(self, url: str, name: str) -> None:
        agent = Agent.remote(url, timeout=3, headers={"authorization": "key"})
        assert agent.name == name
        assert agent.remote_at is not None
        assert (agent.remote_at.url, agent.remote_at.timeout, agent.remote_at.allow_private) == (url, 3.0, False)
        assert "key" not in repr(agent)
        with pytest.raises(Unsupported, match=f"agent '{name}' runs at .* come with the release on agents"):
            assert agent.spec
        assert agent.replace(description="x").remote_at == agent.remote_at

    @pytest.mark.parametrize("url", ["", "ftp://x/y", "agents.example", "https://"])
    def test_a_remote_agent_needs_an_address(self, url: str) -> None:
        with pytest.raises(UsageError, match="give an http or https address"):
            Agent.remote(url)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "agent 'a' needs a model"),
    ({"model": "gpt-5"}, "agent 'a': model 'gpt-5' names no provider: say 'provider:name'"),
    ({"model": ":x"}, "names no provider"),
    ({"model": "openai:"}, "names no provider"),
    ({"model": []}, r"model=\[\]: say 'provider:name'"),
    ({"model": 3}, "model=3"),
    ({"model": ["openai:x", 3]}, "3 is no model"),
    ({"tools": [lambda: 1]}, "is a plain function: decorate it with @tool"),
    ({"tools": [look, look]}, "two tools are called 'look'"),
    ({"tools": look}, "tools=.*: give a list"),
    ({"tools": "look"}, "tools='look': give a list"),
    ({"tools": ["look"]}, "tools= takes what @tool makes"),
    ({"tools": [look], "client_tools": [ClientTool("look", SCHEMA)]}, "two tools are called 'look' .Tool, ClientTool."),
    ({"client_tools": [look]}, r"client_tools= takes ClientTool\(name, schema\)"),
    ({"output_retries": -1}, "agent 'a': output_retries=-1: give a whole number"),
    ({"max_continuations": 1.5}, "max_continuations=1.5"),
    ({"on_change": "explode"}, "on_change='explode': use 'warn' or 'fail'"),
    ({"on_tool_error": "panic"}, "on_tool_error='panic': use 'tell' or 'stop'"),
    ({"on_tool_error": -1}, "on_tool_error=-1"),
    ({"instructions": 3}, "instructions= takes text"),
    ({"instructions": "\ud800"}, "agent 'a': instructions: text holds a lone surrogate"),
    ({"limits": {"turns": 3}}, r"limits={'turns': 3}: give clew.Limits\(…\)"),
    ({"model_settings": {}}, r"give clew.ModelSettings\(…\)"),
    ({"policy": ["deny shell"]}, "policy= takes rules"),
    ({"middleware": [Quiet]}, "middleware= takes objects of a Middleware class"),
    ({"handoffs": [3]}, "handoffs= takes agents and names"),
    ({"output_type": object()}, "agent 'a': output_type: .*has no schema.*: use what pydantic can validate"),
    ({"colour": "red"}, "agent 'a': .*colour.*its parameters are name, model"),
]


@pytest.mark.parametrize(("given", "said"), BAD)
def test_what_cannot_run_is_refused_where_it_is_defined(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Agent("a", **({"model": "m:x"} | given))


@pytest.mark.parametrize("name", ["", None, 3, "a b", "a/b", "a:b", "é", "x" * 129])
def test_a_name_that_is_none(name: Any) -> None:
    with pytest.raises(UsageError, match="agent"):
        Agent(name, model="m:x")


def test_no_name_at_all() -> None:
    with pytest.raises(UsageError, match="an agent needs a name"):
        Agent(model="m:x")  # type: ignore[call-overload]


def test_a_provider_that_nobody_knows_is_no_error_yet() -> None:
    assert Agent("a", model="nobody:x").spec.model == ("nobody:x",)


@pytest.mark.parametrize(
    ("name", "schema", "said"),
    [
        ("a b", SCHEMA, "tool name"),
        ("a", {"type": "string"}, "client tool 'a': schema= must be the JSON schema of an object"),
        ("a", {"properties": {"x": object()}}, "client tool 'a': schema= is not JSON"),
    ],
)
def test_a_client_tool_that_cannot_be_shown(name: str, schema: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ClientTool(name, schema)
