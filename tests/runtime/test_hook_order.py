"""L1: the order of hooks, effects, commits and entries in a turn, and what runs again behind a crash at each point.

The tables stand in docs/middleware.md between two marks. What this module finds is what they must say; with
CLEW_WRITE_DOCS set they are written anew.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from clew import Message, Middleware, ModelReply, ModelRequest, Result, RunContext, ToolCall, ToolOutput, tool
from clew.ports import Batch
from clew.testing import ScriptedModel, call
from clew.tools import NotDone
from tests.runtime.world import Stop, World, agent, check_run, gate_of, kinds, until

PAGE = Path(__file__).parents[2] / "docs" / "middleware.md"
BEGIN, END = "<!-- hooks -->\n", "<!-- /hooks -->\n"
COMMIT = "commit "
Ctx = RunContext[Any]


class Recorder(Middleware):
    """Every hook, and what it stands at."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def on_input(self, ctx: Ctx, messages: list[Message]) -> None:
        self.log.append("`on_input`")

    async def on_attach(self, ctx: Ctx) -> None:
        self.log.append("`on_attach`")

    async def before_model(self, ctx: Ctx, request: ModelRequest) -> None:
        self.log.append(f"`before_model` ({request.step})")

    async def after_model(self, ctx: Ctx, reply: ModelReply) -> None:
        self.log.append(f"`after_model` ({ctx.turn + 1}.model)")

    async def before_tool(self, ctx: Ctx, call: ToolCall) -> None:
        self.log.append("`before_tool`")

    async def after_tool(self, ctx: Ctx, call: ToolCall, output: ToolOutput) -> None:
        self.log.append("`after_tool`")

    async def on_turn_end(self, ctx: Ctx) -> None:
        self.log.append("`on_turn_end`")

    async def on_finish(self, ctx: Ctx, result: Result[Any]) -> None:
        self.log.append("`on_finish`")


class Talking(ScriptedModel):
    def __init__(self, script: list[Any], log: list[str]) -> None:
        super().__init__(script)
        self.log = log

    def stream(self, request: ModelRequest, /) -> Any:
        self.log.append(f"the model ({request.step})")
        return super().stream(request)


def made(log: list[str]) -> Any:
    """An agent whose every move is written down."""

    def policy(ctx: Ctx, one: ToolCall) -> None:
        log.append("the policy")

    def verify(ctx: Any) -> NotDone:
        log.append("`verify`")
        return NotDone()

    @tool(effect="once", verify=verify)
    def pay() -> str:
        log.append("the tool")
        return "paid"

    model = Talking([[call("pay")], "Done."], log)
    return agent(model, pay, policy=[policy], middleware=[Recorder(log)])


def noted(log: list[str], batch: Batch) -> None:
    names = list(dict.fromkeys(entry.kind for entry in batch.entries))
    log.append(COMMIT + ", ".join(f"`{name}`" for name in names))


async def lived(world: World, run_id: str, crash: int | None, *, made_first: bool) -> tuple[list[str], list[str]]:
    """What the first process did, which dies at its nth commit, and what the second did."""
    first: list[str] = []
    second: list[str] = []
    rt = await world.open(made(first))
    gate = gate_of(rt)
    stop = Stop()

    async def before(batch: Batch) -> None:
        if len(gate.batches) == crash and not made_first:
            await stop.arrive()

    async def after(batch: Batch) -> None:
        noted(first, batch)
        if len(gate.batches) == crash and made_first:
            await stop.arrive()

    gate.before, gate.after = before, after
    run = await rt.start(rt.agents["meteo"], "Go", run_id=run_id)
    if crash is None:
        await run.result(until="done")
        await until(lambda: first[-1] == "`on_finish`")
        await check_run(run)
        await rt.close()
        return first, second
    await stop.reached()
    await world.kill(rt)
    await world.clock.advance(5)
    other = world.runtime(made(second))

    async def told(batch: Batch) -> None:
        noted(second, batch)

    gate_of(other).after = told
    await other.open()
    run = await other.get(run_id)
    await run.result(until="done")
    if second:
        await until(lambda: second[-1] == "`on_finish`")
    await check_run(run)
    await other.close()
    return first, second


def turn_table(calm: list[str], started: list[str]) -> list[str]:
    lines = ["| | what runs | then is committed |", "| --- | --- | --- |", f"| 0 | `start` | {_code(started)} |"]
    number, ran = 0, []
    for event in calm:
        if event.startswith(COMMIT):
            number += 1
            lines.append(f"| {number} | {', '.join(ran)} | {event.removeprefix(COMMIT)} |")
            ran = []
        else:
            ran.append(event)
    return [*lines, f"| | {', '.join(ran)} | |"]


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


async def crash_table(world: World, commits: int) -> list[str]:
    lines = [
        "| the process dies | what had run, and the next one runs again | what the next one commits |",
        "| --- | --- | --- |",
    ]
    for number in range(1, commits + 1):
        for made_first in (False, True):
            if made_first and number < commits:
                continue  # the same as right before the next one, but for what runs between them
            first, second = await lived(world, f"r{number}{made_first}", number, made_first=made_first)
            before = Counter(event for event in first if not event.startswith(COMMIT))
            again = [event for event in second if before[event]]
            committed = [event.removeprefix(COMMIT) for event in second if event.startswith(COMMIT)]
            where = f"after commit {number}" if made_first else f"before commit {number}"
            lines.append(f"| {where} | {', '.join(again) or 'nothing'} | {' · '.join(committed) or 'nothing'} |")
    return lines


@pytest.mark.proves("L1", "T3", "T4")
async def test_the_tables_of_the_page_say_what_happens(world: World) -> None:
    calm, _ = await lived(world, "calm", None, made_first=False)
    store = await world.opened_store()
    entries = await store.read("calm")
    commits = sum(event.startswith(COMMIT) for event in calm)
    started = kinds([entry for entry in entries if entry.batch == 1])
    found = "\n".join([*turn_table(calm, started), "", *await crash_table(world, commits), ""])
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    told, _, tail = rest.partition(END)
    if os.environ.get("CLEW_WRITE_DOCS"):
        PAGE.write_text(f"{head}{BEGIN}\n{found}\n{END}{tail}", encoding="utf-8")
    else:
        assert told.strip() == found.strip()


@pytest.mark.proves("L1")
async def test_no_crash_runs_on_input_again_once_its_mark_is_committed(world: World) -> None:
    calm, _ = await lived(world, "calm", None, made_first=False)
    for number in range(1, sum(event.startswith(COMMIT) for event in calm) + 1):
        first, second = await lived(world, f"r{number}", number, made_first=False)
        times = (first + second).count("`on_input`")
        assert times == (2 if number == 1 else 1)
        assert (first + second).count("`on_finish`") == 1
