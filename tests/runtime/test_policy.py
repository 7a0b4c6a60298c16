"""T10, L1: what may run. Rules and functions say so before a body starts, and what they say is a fact."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from clew import Approve, Edit, Middleware, Reject, RunContext, ToolCall, tool
from clew.core import entries as e
from clew.policy import Verdict, allow, answer, ask, block, deny, gt
from clew.testing import ScriptedModel, call, crash_points
from tests.runtime.world import (
    Stop,
    World,
    agent,
    becomes,
    check_run,
    of,
    results,
)

RAN: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool(effect="once")
def pay(amount: int = 1) -> str:
    RAN["pay"] += 1
    return f"paid {amount}"


@tool(effect="read")
def look(at: str = "sky") -> str:
    RAN["look"] += 1
    return f"{at}: blue"


async def judged(world: World, policy: Any, *calls: ToolCall, **given: Any) -> tuple[Any, list[Any]]:
    """A run of these calls under this policy: its result, and its entries."""
    rt = await world.open()
    who = agent([list(calls) or [call("pay", {"amount": 5})], "Done."], pay, look, policy=policy, **given)
    run = await rt.start(who, "Go", run_id="r")
    result = await run.result()
    return result, await run.entries()


# --- the verdicts -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("T10")
async def test_a_denied_call_is_an_error_result_that_says_why_and_its_siblings_run(world: World) -> None:
    policy = [deny("pay", "not on Sundays", amount=gt(3)), allow("look")]
    result, entries = await judged(world, policy, call("pay", {"amount": 5}), call("pay", {"amount": 2}), call("look"))
    found = results(result.messages)
    assert (found["1.tool.1"].is_error, found["1.tool.1"].content) == (True, "not on Sundays")
    assert (found["1.tool.2"].content, found["1.tool.3"].content) == ("paid 2", "sky: blue")
    one = of(entries, e.CallJudged)[0]
    assert (one.call, one.tool, one.verdict, one.reason) == ("1.tool.1", "pay", "deny", "not on Sundays")
    assert one.rule == 'deny("pay", "not on Sundays", amount=gt(3))'
    assert one.args == {"amount": 5}
    assert (RAN["pay"], result.text) == (1, "Done.")


@pytest.mark.proves("T10")
async def test_an_answer_is_the_result_and_nothing_runs(world: World) -> None:
    result, entries = await judged(world, [answer("pay", {"paid": False}, "a dry run")])
    assert results(result.messages)["1.tool.1"].content == {"paid": False}
    [returned] = of(entries, e.ToolReturned)
    assert (returned.source, RAN["pay"]) == ("policy", 0)
    assert not of(entries, e.ToolStarted)


@pytest.mark.proves("T10", "L4")
async def test_a_block_ends_the_run_and_the_siblings_are_answered(world: World) -> None:
    result, entries = await judged(world, [block("pay", "frozen account")], call("look"), call("pay"), call("look"))
    assert (result.reason, result.ok) == ("blocked:frozen account", False)
    assert len(of(entries, e.ModelReplied)) == 1
    found = results(result.messages)
    assert set(found) == {"1.tool.1", "1.tool.2", "1.tool.3"}
    assert "frozen account" in found["1.tool.2"].content
    assert RAN["pay"] == 0
    await check_run(await (await world.open()).get("r"))


@pytest.mark.proves("T10", "W2")
@pytest.mark.parametrize(("decision", "told"), [(Approve(), "paid 5"), (Reject("too much"), "too much")])
async def test_an_ask_opens_a_ticket_and_waits_for_a_person(world: World, decision: Any, told: str) -> None:
    rt = await world.open()
    who = agent([[call("pay", {"amount": 5})], "Done."], pay, policy=[ask("pay", "above my station", amount=gt(3))])
    run = await rt.start(who, "Go")
    waiting = await run.result()
    assert (waiting.status, waiting.reason) == ("waiting", "tool_permission")
    [ticket] = waiting.tickets
    assert (ticket.kind, ticket.tool, ticket.args, ticket.reason) == (
        "approval",
        "pay",
        {"amount": 5},
        "above my station",
    )
    assert RAN["pay"] == 0
    await run.decide(ticket, decision)
    result = await run.result()
    assert results(result.messages)["1.tool.1"].content == told
    await check_run(run)


ORDERED = (block, deny, ask, lambda tool, reason: answer(tool, "canned", reason), allow)


@pytest.mark.proves("T10")
@pytest.mark.parametrize("strongest", range(5))
async def test_the_order_is_block_deny_ask_answer_allow_however_they_are_listed(world: World, strongest: int) -> None:
    rules = [make("pay", "because") for make in ORDERED[strongest:]]
    result, entries = await judged(world, list(reversed(rules)))
    [one] = of(entries, e.CallJudged)
    assert one.verdict == ("block", "deny", "ask", "answer", "allow")[strongest]
    assert one.rule == str(rules[0])
    assert RAN["pay"] == (strongest == 4)
    assert result.status == ("waiting" if strongest == 2 else "done")


@pytest.mark.proves("T10")
async def test_rules_and_functions_weigh_the_same(world: World) -> None:
    def night(ctx: RunContext[Any], one: ToolCall) -> Verdict | None:
        return deny(one.tool, "not at night")

    result, entries = await judged(world, [ask("pay"), night, allow("*")])
    [one] = of(entries, e.CallJudged)
    assert (one.verdict, one.reason) == ("deny", "not at night")
    assert "night" in one.rule
    assert results(result.messages)["1.tool.1"].is_error


# --- functions --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T10")
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_sees_the_run_and_the_call(world: World, is_async: bool) -> None:
    asked: list[Any] = []

    def plain(ctx: RunContext[Any], one: ToolCall) -> Verdict | None:
        asked.append((ctx.deps, ctx.run_id, ctx.turn, ctx.metadata, one.id, one.tool, one.args))
        return None

    async def waits(ctx: RunContext[Any], one: ToolCall) -> Verdict | None:
        await asyncio.sleep(0)
        return plain(ctx, one)

    rt = await world.open(deps="bank")
    who = agent([[call("pay", {"amount": 5})], "Done."], pay, policy=[waits if is_async else plain])
    run = await rt.start(who, "Go", run_id="r", metadata={"user": "ada"})
    assert (await run.result()).text == "Done."
    assert asked == [("bank", "r", 1, {"user": "ada"}, "1.tool.1", "pay", {"amount": 5})]
    assert not of(await run.entries(), e.CallJudged)  # nobody had anything to say


def _raises(ctx: Any, one: Any) -> Any:
    raise RuntimeError("the rule book is lost")


async def _raises_later(ctx: Any, one: Any) -> Any:
    await asyncio.sleep(0)
    raise RuntimeError("the rule book is lost")


def _exits(ctx: Any, one: Any) -> Any:
    raise SystemExit("the rule book is lost")


def _cancels(ctx: Any, one: Any) -> Any:
    raise asyncio.CancelledError("the rule book is lost")


async def _cancels_later(ctx: Any, one: Any) -> Any:
    raise asyncio.CancelledError


async def _takes_too_little(ctx: Any) -> Any:
    return None


@pytest.mark.proves("T10")
@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (_raises, "the rule book is lost"),
        (_raises_later, "the rule book is lost"),
        (_exits, "the rule book is lost"),
        (_cancels, "cancelled"),
        (_cancels_later, "cancelled"),
        (_takes_too_little, "TypeError"),
        (lambda ctx, one: True, "a bool, which is no verdict"),
        (lambda ctx, one: False, "a bool, which is no verdict"),
        (lambda ctx, one: "deny", "a str, which is no verdict"),
        (lambda ctx, one: Verdict("nonsense"), "no verdict"),  # type: ignore[arg-type]
        (lambda ctx, one: Verdict("deny", object()), "no verdict"),  # type: ignore[arg-type]
        (lambda ctx, one: Verdict("answer", value=object()), "cannot be stored"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_policy_that_raises_or_says_no_verdict_denies(world: World, policy: Any, why: str) -> None:
    result, entries = await judged(world, [policy], call("pay"), call("look"))
    assert (result.text, dict(RAN)) == ("Done.", {})
    for one in of(entries, e.CallJudged):
        assert one.verdict == "deny"
        assert one.reason
        assert why.lower() in one.reason.lower()
    assert len(of(entries, e.CallJudged)) == 2
    assert all(found.is_error for found in results(result.messages).values())


@pytest.mark.proves("T10")
async def test_an_approval_that_cannot_be_found_out_is_asked_for(world: World) -> None:
    def unsure(ctx: RunContext[Any], args: Any) -> bool:
        raise KeyError("amount")

    @tool(effect="once", needs_approval=unsure)
    def charge(cents: int) -> str:
        return f"charged {cents}"

    rt = await world.open()
    run = await rt.start(agent([[call("charge", {"cents": 5})], "Done."], charge), "Go")
    waiting = await run.result()
    assert [ticket.kind for ticket in waiting.tickets] == ["approval"]
    [one] = of(await run.entries(), e.CallJudged)
    assert (one.verdict, one.rule) == ("ask", "needs_approval")
    assert "KeyError" in (one.reason or "")
    await run.decide(waiting.tickets[0], Approve())
    assert results((await run.result()).messages)["1.tool.1"].content == "charged 5"


@pytest.mark.proves("T10")
@pytest.mark.parametrize("answer_", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
async def test_needs_approval_is_given_validated_arguments(world: World, answer_: bool, is_async: bool) -> None:
    asked: list[Any] = []

    def plain(ctx: RunContext[Any], args: Any) -> bool:
        asked.append(args["cents"])
        return answer_

    async def waits(ctx: RunContext[Any], args: Any) -> bool:
        return plain(ctx, args)

    @tool(effect="once", needs_approval=waits if is_async else plain)
    def charge(cents: int = 7) -> str:
        return f"charged {cents}"

    rt = await world.open()
    run = await rt.start(agent([[call("charge")], "Done."], charge), "Go")
    result = await run.result()
    assert asked == [7]  # with what the model left to its default
    assert result.status == ("waiting" if answer_ else "done")


# --- edits, memory, crashes -------------------------------------------------------------------------------------------


@pytest.mark.proves("T10", "W2")
@pytest.mark.parametrize(
    ("amount", "told", "reason"),
    [(50, "paid 50", "natural"), (500, "too much", "natural"), (5_000, "alarm", "blocked:alarm")],
)
async def test_edited_arguments_are_judged_again_for_what_forbids(
    world: World, amount: int, told: str, reason: str
) -> None:
    policy = [ask("pay"), deny("pay", "too much", amount=gt(100)), block("pay", "alarm", amount=gt(1_000))]
    rt = await world.open()
    run = await rt.start(agent([[call("pay", {"amount": 5})], "Done."], pay, policy=policy), "Go")
    [ticket] = (await run.result()).tickets
    await run.decide(ticket, Edit({"amount": amount}))
    result = await run.result()
    assert result.reason == reason
    assert told in results(result.messages)["1.tool.1"].content
    assert RAN["pay"] == (told == "paid 50")
    assert of(await check_run(run), e.CallJudged)[-1].args == {"amount": amount}


@pytest.mark.proves("T10", "W5")
async def test_what_is_denied_is_denied_also_where_an_approval_is_remembered(world: World) -> None:
    closed: list[bool] = []

    def closing(ctx: RunContext[Any], one: ToolCall) -> Verdict | None:
        return deny("pay", "closed now") if closed else None

    rt = await world.open()
    who = agent([[call("pay")], [call("pay")], [call("pay")], "Done."], pay, policy=[ask("pay"), closing])
    run = await rt.start(who, "Go")

    await run.decide((await run.result()).tickets[0], Approve(remember="run"))
    result = await run.result()
    assert RAN["pay"] == 3  # remembered: asked once

    closed.append(True)
    second = await rt.start(who, "Go")
    result = await second.result()
    assert all("closed now" in found.content for found in results(result.messages).values())
    assert RAN["pay"] == 3


@pytest.mark.proves("T10", "T3")
@pytest.mark.parametrize("slow", [False, True])
async def test_a_verdict_holds_over_a_crash_at_every_point(kind: str, tmp_path: Any, slow: bool) -> None:
    async def waits(ctx: RunContext[Any], one: ToolCall) -> Verdict | None:
        await asyncio.sleep(0)
        return deny("pay", "too much") if one.args.get("amount") == 9 else None

    policy = [answer("look", "canned", at="sea"), *([waits] if slow else [deny("pay", "too much", amount=9)])]
    calls = [call("pay", {"amount": 9}), call("look", {"at": "sea"}), call("look")]
    who = agent([calls, "Done."], pay, look, policy=policy)
    report = await crash_points(who, "Go", **_stores(kind, tmp_path))
    assert report.ok, str(report)
    assert report.points > 8


@pytest.mark.proves("T10")
async def test_a_verdict_that_is_committed_is_not_asked_for_again(world: World) -> None:
    asked: list[str] = []
    held = Stop()

    def counted(ctx: RunContext[Any], one: ToolCall) -> Verdict | None:
        asked.append(one.id)
        return ask("pay", "first time") if len(asked) == 1 else block("pay", "second time")

    who = agent([[call("pay")], "Done."], pay, policy=[counted])
    rt = await world.open(who)
    run = await rt.start(who, "Go", run_id="r")
    [ticket] = (await run.result()).tickets
    await world.kill(rt)
    second = await world.open(who)
    run = await second.get("r")
    await run.decide(ticket, Approve())
    assert (await run.result()).text == "Done."
    assert (asked, RAN["pay"], held.passed) == (["1.tool.1"], 1, 0)


def _stores(kind: str, path: Any) -> dict[str, Callable[[Any], Any]]:
    """Where a crash test keeps its trials."""
    if kind == "memory":
        return {}
    from clew.stores.sqlite import SqliteStore

    numbers = iter(range(10_000))
    return {"store": lambda clock: SqliteStore(str(path / f"{next(numbers)}.db"), clock=clock)}


class Rewriting(Middleware):
    async def before_tool(self, ctx: RunContext[Any], call: ToolCall) -> ToolCall:
        return call.with_args({"amount": 50})


@pytest.mark.proves("L1", "T10")
async def test_what_middleware_makes_of_arguments_is_what_is_judged_approved_and_run(world: World) -> None:
    model = ScriptedModel([[call("pay", {"amount": 5})], "Done."])
    rt = await world.open()
    run = await rt.start(agent(model, pay, policy=[ask("pay", amount=gt(10))], middleware=[Rewriting()]), "Go")
    waiting = await run.result()
    assert waiting.tickets[0].args == {"amount": 50}
    await run.decide(waiting.tickets[0], Approve())
    result = await run.result()
    assert results(result.messages)["1.tool.1"].content == "paid 50"
    [one] = of(await check_run(run), e.CallJudged)
    assert (one.args, one.args_rewritten_by) == ({"amount": 50}, "Rewriting")
    assert result.messages[1].parts[0].args == {"amount": 5}  # what the model said stands
    await becomes(rt, run.id, lambda info: info.status == "done")
