"""T9: what tools keep in the state of a run or thread: with their result or not at all, and the same in any order."""

import asyncio
import itertools
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from clew import Middleware, ModelRequest, RunContext, StateKey, ToolContext, ToolError, ToolOutput, tool
from clew.core import entries as e
from clew.core.values import INLINE_LIMIT
from clew.errors import UsageError
from clew.testing import call as call_
from clew.testing import crash_points
from tests.runtime.test_policy import _stores
from tests.runtime.world import Stop, World, agent, becomes, check_run, of, results


class Item(BaseModel):
    name: str
    count: int = 1


def both(old: list[str], new: list[str]) -> list[str]:
    return [*old, *new]


def at_most_three(old: list[str], new: list[str]) -> list[str]:
    if len(old) + len(new) > 3:
        raise ValueError("the basket is full")
    return [*old, *new]


CART = StateKey("cart", list[Item], default=[], scope="thread", merge="replace")
COUNT = StateKey("count", int, default=0, merge="add")
TEN = StateKey("ten", int, default=10, merge="add")
SUM = StateKey("sum", float, default=0.1, merge="add")
WORDS = StateKey("words", list[str], default=[], merge="add")
NAMES = StateKey("names", list[str], merge=both)
LAST = StateKey("last", str, merge="replace")
FULL = StateKey("full", list[str], default=[], merge=at_most_three)


@tool(effect="idempotent")
async def shop(ctx: ToolContext[Any], item: str) -> int:
    ctx.state.update(CART, [*ctx.state[CART], Item(name=item)])
    assert ctx.state[CART][-1].name == item  # what one wrote oneself is seen at once
    return len(ctx.state[CART])


@tool(effect="read")
def cart(ctx: ToolContext[Any]) -> list[str]:
    return [item.name for item in ctx.state[CART]]


# --- typed, committed, read, restored ---------------------------------------------------------------------------------


@pytest.mark.proves("T9")
async def test_a_key_is_typed_committed_with_the_result_and_read_from_outside(world: World) -> None:
    rt = await world.open()
    who = agent([[call_("shop", {"item": "tea"})], [call_("cart")], "Done."], shop, cart)
    run = await rt.start(who, "Go", run_id="r")
    result = await run.result()
    assert results(result.messages)["2.tool.1"].content == ["tea"]
    [returned, _] = of(await check_run(run), e.ToolReturned)
    [op] = returned.state
    assert (op.op, op.key, op.scope, op.value) == ("set", "cart", "thread", [{"name": "tea", "count": 1}])
    assert await run.state(CART) == [Item(name="tea")]
    assert (await run.state())["cart"] == [{"name": "tea", "count": 1}]
    assert await run.state(COUNT) == 0  # its default
    with pytest.raises(UsageError, match="'last' has no value yet"):
        await run.state(LAST)


@pytest.mark.proves("T9", "B1")
async def test_the_thread_keeps_its_keys_for_the_next_run_and_a_run_does_not(world: World) -> None:
    @tool(effect="read")
    def count(ctx: ToolContext[Any]) -> int:
        ctx.state.update(COUNT, 1)
        return ctx.state[COUNT]

    calls = [call_("shop", {"item": "tea"}), call_("count")]
    rt = await world.open()
    who = agent([calls, "Done."], shop, count, cart)
    first = await rt.start(who, "Go", thread_id="t")
    await first.result()
    second = await rt.start(who, "Go", thread_id="t")
    result = await second.result()
    assert results(result.messages)["1.tool.2"].content == 1
    assert [item.name for item in await second.state(CART)] == ["tea", "tea"]
    assert [item.name for item in await rt.thread("t").state(CART)] == ["tea", "tea"]
    assert (await first.state(COUNT), await second.state(COUNT)) == (1, 1)


@pytest.mark.proves("T9")
async def test_keys_of_one_name_in_both_scopes_are_two(world: World) -> None:
    mine, ours = StateKey("x", int, default=1, merge="add"), StateKey("x", int, default=5, scope="thread", merge="add")
    kept = StateKey("y", list[str], default=[], merge=both)
    shared = StateKey("y", list[str], default=[], scope="thread", merge=both)

    @tool(effect="read")
    def write(n: int) -> ToolOutput:
        return ToolOutput(n, state={mine: n, ours: 10 * n, kept: ["run"], shared: ["thread"]})

    rt = await world.open()
    calls = [call_("write", {"n": 1}), call_("write", {"n": 2})]
    run = await rt.start(agent([calls, "Done."], write), "Go")
    await run.result()
    assert (await run.state(mine), await run.state(ours)) == (4, 35)
    assert (await run.state(kept), await run.state(shared)) == (["run"] * 2, ["thread"] * 2)


@pytest.mark.proves("T9", "L2")
async def test_state_is_restored_by_another_process(world: World) -> None:
    held = Stop()

    @tool(effect="read")
    async def wait() -> str:
        if held.passed == 0:
            await held.arrive()
        return "waited"

    calls = [[call_("shop", {"item": "tea"})], [call_("wait")], [call_("shop", {"item": "milk"})], "Done."]
    who = agent(calls, shop, wait)
    rt = await world.open(who)
    await rt.start(who, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    second = await world.open(who)
    run = await second.get("r")
    await run.result()
    assert [item.name for item in await run.state(CART)] == ["tea", "milk"]


@pytest.mark.proves("T9", "T3")
async def test_state_is_the_same_after_a_crash_at_every_point(kind: str, tmp_path: Any) -> None:
    @tool(effect="idempotent")
    def add(n: int) -> ToolOutput:
        return ToolOutput(n, state={COUNT: n, WORDS: [str(n)], LAST: str(n)})

    @tool(effect="read")
    def tell(ctx: ToolContext[Any]) -> list[Any]:
        return [ctx.state[COUNT], ctx.state[WORDS], ctx.state[LAST]]

    who = agent([[call_("add", {"n": 1}), call_("add", {"n": 2})], [call_("tell")], "Done."], add, tell)
    report = await crash_points(who, "Go", **_stores(kind, tmp_path))
    assert report.ok, str(report)


# --- with the result, or not at all -----------------------------------------------------------------------------------


@pytest.mark.proves("T9")
@pytest.mark.parametrize("how", ["raises", "tool error", "result", "type", "output type", "other key"])
async def test_what_a_tool_that_failed_wrote_is_not_kept(world: World, how: str) -> None:
    @tool(effect="read")
    def fail(ctx: ToolContext[Any]) -> Any:
        ctx.state.update(COUNT, 7)
        match how:
            case "raises":
                raise RuntimeError("no")
            case "tool error":
                raise ToolError("no")
            case "result":
                return object()
            case "type":
                ctx.state.update(CART, [{"nome": "tea"}])  # type: ignore[list-item]
            case "output type":
                return ToolOutput("x", state={CART: "tea"})
            case _:
                return ToolOutput("x", state={"cart": []})  # type: ignore[dict-item]
        return "never"

    rt = await world.open()
    run = await rt.start(agent([[call_("fail")], "Done."], fail), "Go")
    result = await run.result()
    found = results(result.messages)["1.tool.1"]
    assert (found.is_error, result.text) == (True, "Done.")
    if "type" in how:
        assert "cart" in found.content
    assert await run.state() == {}
    await check_run(run)


@pytest.mark.proves("T9", "T7")
async def test_an_attempt_that_failed_leaves_nothing_and_the_next_one_begins_anew(world: World) -> None:
    tried: list[int] = []

    @tool(effect="idempotent", retries=2)
    async def count(ctx: ToolContext[Any]) -> int:
        ctx.state.update(COUNT, 1)
        tried.append(ctx.state[COUNT])
        if len(tried) < 3:
            raise RuntimeError("not yet")
        return ctx.state[COUNT]

    rt = await world.open()
    run = await rt.start(agent([[call_("count")], "Done."], count), "Go")
    for _ in range(2):
        await becomes(rt, run.id, lambda info: info.status != "done")
    while not (await run.info()).finished_at:
        await world.clock.advance(1)
        await asyncio.sleep(0.01)
    assert tried == [1, 1, 1]
    assert await run.state(COUNT) == 1


@pytest.mark.proves("T9")
async def test_a_merge_that_raises_is_an_error_result_of_the_call_that_gave_the_value(world: World) -> None:
    @tool(effect="read", sequential=True)
    def fill(n: int) -> ToolOutput:
        return ToolOutput(n, state={FULL: [str(n)] * n})

    rt = await world.open()
    calls = [call_("fill", {"n": n}) for n in (1, 2, 3)]
    run = await rt.start(agent([calls, "Done."], fill), "Go")
    result = await run.result()
    found = results(result.messages)
    assert (found["1.tool.1"].content, found["1.tool.2"].content) == (1, 2)
    assert found["1.tool.3"].is_error
    assert "the basket is full" in found["1.tool.3"].content
    assert await run.state(FULL) == ["1", "2", "2"]
    await check_run(run)


@pytest.mark.proves("T9")
async def test_a_key_whose_type_has_changed_is_an_error_result_and_ends_no_run(world: World) -> None:
    number, words = StateKey("k", int, default=0, merge="add"), StateKey("k", list[str], default=[], merge="add")

    @tool(effect="read", sequential=True)
    def write(of: str) -> ToolOutput:
        return ToolOutput(of, state={number: 1} if of == "number" else {words: ["a"]})

    rt = await world.open()
    calls = [call_("write", {"of": of}) for of in ("words", "number", "words")]
    run = await rt.start(agent([calls, "Done."], write), "Go")
    result = await run.result()
    assert [found.is_error for found in results(result.messages).values()] == [False, True, False]
    assert await run.state(words) == ["a", "a"]


# --- parallel writers -------------------------------------------------------------------------------------------------

ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.proves("T9")
@pytest.mark.parametrize("order", ORDERS)
async def test_parallel_writers_come_to_the_same_state_in_any_order_of_completion(
    world: World, order: tuple[int, ...]
) -> None:
    stops = [Stop() for _ in range(3)]

    @tool(effect="read")
    async def write(ctx: ToolContext[Any], n: int) -> ToolOutput:
        await stops[n].arrive()
        ctx.state.update(NAMES, [f"{n}a"])
        ctx.state.update(COUNT, n)
        state: dict[Any, Any] = {
            NAMES: [f"{n}b"],
            WORDS: [str(n)],
            LAST: f"by {n}",
            COUNT: 10,
            TEN: n,
            SUM: (0.2, 0.3, 0.7)[n],
        }
        return ToolOutput(n, state=state)

    rt = await world.open()
    calls = [call_("write", {"n": n}) for n in range(3)]
    run = await rt.start(agent([calls, "Done."], write), "Go")
    for n in order:
        await stops[n].reached()
        stops[n].let_go()
        await becomes(rt, run.id, lambda _info: True)
        await _answered(run, n)
    await run.result()
    assert await run.state(NAMES) == ["0a", "0b", "1a", "1b", "2a", "2b"]
    assert await run.state(WORDS) == ["0", "1", "2"]
    assert await run.state(LAST) == "by 2"
    assert (await run.state(COUNT), await run.state(TEN)) == (33, 13)
    assert await run.state(SUM) == 0.1 + 0.2 + 0.3 + 0.7
    last = of(await check_run(run), e.ToolReturned)[-1]
    by_key = {op.key: op for op in last.state}
    assert by_key["last"].writers == by_key["names"].writers == ("1.tool.1", "1.tool.2", "1.tool.3")
    assert by_key["count"].op == "add"


async def _answered(run: Any, n: int) -> None:
    async for item in run.watch():
        if getattr(item, "kind", "") == "tool_returned" and item.call == f"1.tool.{n + 1}":
            return


@pytest.mark.proves("T9")
async def test_writers_of_different_turns_are_no_rivals(world: World) -> None:
    @tool(effect="read")
    def write(word: str) -> ToolOutput:
        return ToolOutput(word, state={LAST: word, NAMES: [word]})

    rt = await world.open()
    run = await rt.start(agent([[call_("write", {"word": w})] for w in "ab"] + ["Done."], write), "Go")  # type: ignore[operator]
    await run.result()
    assert (await run.state(LAST), await run.state(NAMES)) == ("b", ["a", "b"])
    assert all(not op.writers for entry in of(await run.entries(), e.ToolReturned) for op in entry.state)


class Counting(Middleware):
    """Reads and writes where tools write, too."""

    async def before_model(self, ctx: RunContext[Any], request: ModelRequest) -> None:
        ctx.state.update(LAST, "before")
        ctx.state.update(NAMES, ["before"])

    async def before_tool(self, ctx: RunContext[Any], call: Any) -> None:
        ctx.state.update(NAMES, [f"judging {call.id}"])

    async def on_turn_end(self, ctx: RunContext[Any]) -> None:
        ctx.state.update(NAMES, ["end"])
        ctx.state.update(LAST, f"end after {ctx.state[LAST]}")


@pytest.mark.proves("T9")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_middleware_writes_behind_what_was_written_before_and_for_the_call_it_judges(
    world: World, order: tuple[int, ...]
) -> None:
    stops = [Stop(), Stop()]

    @tool(effect="read")
    async def write(n: int) -> ToolOutput:
        await stops[n].arrive()
        return ToolOutput(n, state={LAST: f"tool {n}", NAMES: [f"tool {n}"]})

    rt = await world.open()
    calls = [call_("write", {"n": n}) for n in range(2)]
    run = await rt.start(agent([calls, "Done."], write, middleware=[Counting()]), "Go")
    for n in order:
        await stops[n].reached()
        stops[n].let_go()
        await _answered(run, n)
    await run.result()
    assert await run.state(NAMES) == [
        "before",
        "judging 1.tool.1",
        "tool 0",
        "judging 1.tool.2",
        "tool 1",
        "end",
        "before",
    ]
    assert await run.state(LAST) == "before"
    by_hook = {entry.by: entry for entry in of(await check_run(run), e.StateChanged)}
    assert [op.value for op in by_hook["Counting.on_turn_end"].ops if op.key == "last"] == ["end after tool 1"]


# --- sizes and times --------------------------------------------------------------------------------------------------


@pytest.mark.proves("T9", "J6")
async def test_large_values_are_stored_aside_and_merged_all_the_same(world: World) -> None:
    @tool(effect="read")
    def write(n: int) -> ToolOutput:
        return ToolOutput(n, state={NAMES: [f"{n}" * INLINE_LIMIT]})

    @tool(effect="read")
    def sizes(ctx: ToolContext[Any]) -> list[int]:
        return [len(name) for name in ctx.state[NAMES]]

    turns: list[Any] = [[call_("write", {"n": n}), call_("write", {"n": n + 1})] for n in (1, 3)]
    who = agent([*turns, [call_("sizes")], "Done."], write, sizes)
    rt = await world.open(who)
    run = await rt.start(who, "Go", run_id="r")
    result = await run.result()
    assert results(result.messages)["3.tool.1"].content == [INLINE_LIMIT] * 4
    assert [name[0] for name in await run.state(NAMES)] == ["1", "2", "3", "4"]
    assert len((await run.state())["names"]) == 4
    assert sum(map(len, await rt.store.read_raw("r"))) < 20_000
    second = await rt.start(who, "Go")
    assert (await second.result()).ok


@pytest.mark.proves("T9")
async def test_decimals_and_models_come_back_as_what_they_were(world: World) -> None:
    money = StateKey("money", Decimal, default=Decimal("0.10"), merge=lambda a, b: a + b)

    @tool(effect="read")
    def earn(ctx: ToolContext[Any]) -> str:
        ctx.state.update(money, Decimal("0.20"))
        return str(ctx.state[money])

    rt = await world.open()
    run = await rt.start(agent([[call_("earn")], [call_("earn")], "Done."], earn), "Go")
    result = await run.result()
    assert [found.content for found in results(result.messages).values()] == ["0.30", "0.50"]
    assert await run.state(money) == Decimal("0.50")


@pytest.mark.proves("T9")
async def test_what_may_only_look_may_not_write(world: World) -> None:
    said: list[str] = []

    def nosy(ctx: RunContext[Any], one: Any) -> None:
        try:
            ctx.state.update(COUNT, 1)
        except UsageError as error:
            said.append(str(error))

    rt = await world.open()
    run = await rt.start(agent([[call_("cart")], "Done."], cart, policy=[nosy]), "Go")
    await run.result()
    assert "ctx.state.update" in said[0]
    assert await run.state() == {}


@pytest.mark.proves("T9")
async def test_a_default_that_a_body_changes_in_place_is_no_other_runs(world: World) -> None:
    names = StateKey("names", list[str], default=[])

    @tool(effect="read")
    async def spoil(ctx: ToolContext) -> int:
        ctx.state[names].append("ann")
        return len(ctx.state[names])

    rt = await world.open()
    for _ in range(2):
        run = await rt.start(agent([[call_("spoil")], "Done."], spoil), "Go")
        [told] = results((await run.result()).messages).values()
        assert told.content == 0
        assert await run.state(names) == []


@pytest.mark.proves("T9", "T10")
async def test_middleware_that_answers_a_call_gives_all_that_a_tool_may_give(world: World) -> None:
    seen = StateKey("seen", int, default=0, merge="add")

    class Answers(Middleware):
        async def before_tool(self, ctx: Any, call: Any) -> ToolOutput:
            return ToolOutput("told", state={seen: 2}, artifacts=["a.csv"], metadata={"rows": 2})

    @tool(effect="read")
    async def never() -> str:
        raise AssertionError("it does not run")

    rt = await world.open()
    run = await rt.start(agent([[call_("never")], "Done."], never, middleware=[Answers()]), "Go")
    await run.result()
    [returned] = of(await check_run(run), e.ToolReturned)
    assert (returned.content, returned.artifacts, returned.metadata) == ("told", ("a.csv",), {"rows": 2})
    assert await run.state(seen) == 2
