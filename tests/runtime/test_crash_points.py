"""The crash kit on agents of every make, on both stores: nothing runs twice, nothing comes out differently."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from clew import Agent, ToolContext, ToolOutput, tool
from clew.errors import Fatal, ModelError, ToolError
from clew.stores.memory import MemoryStore
from clew.stores.sqlite import SqliteStore
from clew.testing import ScriptedModel, VirtualClock, call, crash_points
from clew.testing.faults import planted

Make = Callable[[VirtualClock], Any]


class Report(BaseModel):
    total: int


@tool(effect="read")
def look(what: str) -> str:
    return f"saw {what}"


@tool(effect="idempotent")
async def book(ctx: ToolContext, what: str) -> str:
    ctx.emit({"booking": what})
    return f"booked {what} as {ctx.idempotency_key}"


@tool(effect="once", on_doubt="report")
async def pay(invoice: str) -> str:
    return f"paid {invoice}"


@tool(effect="read", sequential=True)
async def alone(what: str) -> str:
    return f"alone with {what}"


@tool(effect="read", retries=2)
async def shaky(ctx: ToolContext) -> str:
    if ctx.attempt == 1:
        raise ToolError("try again", retry=True)
    return "steady"


@tool(effect="read")
async def wrong() -> str:
    raise ToolError("this cannot be")


@tool(effect="idempotent")
async def end() -> ToolOutput:
    return ToolOutput("enough", end=True)


@tool(effect="read")
async def fatal() -> str:
    raise Fatal("the world ended")


TOOLS = [look, book, pay, alone, shaky, wrong, end, fatal]

SCRIPTS: dict[str, list[Any]] = {
    "plain": ["Done."],
    "parallel": [
        ["At once.", call("look", {"what": "a"}), call("book", {"what": "b"}), call("pay", {"invoice": "c"})],
        "Done.",
    ],
    "in order": [[call("alone", {"what": "a"}), call("look", {"what": "b"}), call("alone", {"what": "c"})], "Done."],
    "failures": [
        ModelError("rate_limited", retry_after=2),
        [call("shaky", {}), call("wrong", {}), call("nosuch", {}), call("look", {"nonsense": 1})],
        ModelError("overloaded"),
        "Done.",
    ],
    "asked to end": [[call("end", {}), call("pay", {"invoice": "x"})], "never said"],
    "fatal": [[call("fatal", {}), call("book", {"what": "b"}), call("pay", {"invoice": "x"})], "never said"],
    "many turns": [[call("pay", {"invoice": str(n)})] for n in range(4)] + ["Done."],
    "model gives up": [[call("look", {"what": "a"})], ModelError("invalid_request", "no")],
}


def stores(tmp_path: Path) -> dict[str, Make]:
    files = iter(range(10_000))
    return {
        "memory": lambda clock: MemoryStore(clock=clock),
        "sqlite": lambda clock: SqliteStore(str(tmp_path / f"{next(files)}.db"), clock=clock),
    }


@pytest.mark.proves("J1", "J2", "J3", "J8", "L1", "L4", "T1", "T3", "T4", "T6", "R1")
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_crash_anywhere_changes_nothing(script: str, store: str, tmp_path: Path) -> None:
    agent = Agent("clerk", model="test:scripted", tools=TOOLS)

    report = await crash_points(agent, "Go.", model=ScriptedModel(SCRIPTS[script]), store=stores(tmp_path)[store])

    assert report.ok, report
    assert report.points >= 3


@pytest.mark.proves("J8", "L1")
async def test_a_typed_answer_survives_a_crash_anywhere() -> None:
    agent = Agent("clerk", model="test:scripted", tools=TOOLS, output_type=Report)
    script = ScriptedModel([[call("look", {"what": "a"})], "not it", '{"total": "x"}', '{"total": 3}'])

    report = await crash_points(agent, "Go.", model=script)

    assert report.ok, report


@pytest.mark.proves("J2", "J3")
@pytest.mark.parametrize("fault", ["intent-missing", "doubt-forgotten", "conflict-swallowed"])
async def test_the_kit_sees_what_a_fault_does(fault: str) -> None:
    agent = Agent("clerk", model="test:scripted", tools=TOOLS)
    script = ScriptedModel([[call("pay", {"invoice": "a"})], "Done."])
    with planted(fault):
        if fault == "conflict-swallowed":
            assert (await crash_points(agent, "Go.", model=script)).ok  # its test is at the store port
        else:
            report = await crash_points(agent, "Go.", model=script)
            assert report.repeated, report


@pytest.mark.proves("T3", "T4")
async def test_every_activation_of_a_run_may_die(request: pytest.FixtureRequest) -> None:
    from clew import Runtime
    from clew.testing.restless import Restless

    agent = Agent("clerk", model=ScriptedModel(SCRIPTS["parallel"]), tools=TOOLS)
    store = Restless(MemoryStore())
    async with Runtime(store, agents=[agent]) as rt:  # type: ignore[arg-type]
        result = await (await rt.start(agent, "Go.")).result()

    assert result.output == "Done."
    assert store.crashes >= 2
