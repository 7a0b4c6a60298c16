"""L2, L9: what stops a run before it has an answer, and what a person may do about a limit; over crashes as well."""

from decimal import Decimal
from typing import Any

import pytest

from clew import Approve, Edit, Limits, Reject, Respond, tool
from clew.core import entries as e
from clew.core.outcomes import Stopped
from clew.errors import AlreadyDecided, ModelError, UsageError
from clew.messages import Text, Usage
from clew.ports import ModelReply
from clew.testing import ScriptedModel, call, crash_points
from tests.runtime.test_policy import _stores
from tests.runtime.world import Stop, World, agent, becomes, check_run, kinds, of, results


@tool(effect="read")
def look(at: str = "sky") -> str:
    return f"{at}: blue"


@tool(effect="read")
def submit(answer: str = "") -> str:
    return f"got {answer}"


def costly(*said: Any) -> ModelReply:
    parts = tuple(Text(one) if isinstance(one, str) else one for one in said)
    return ModelReply(parts=parts, usage=Usage(input=100, output=10), cost=Decimal("0.50"))


def looking(turns: int) -> list[Any]:
    return [costly(call("look", {"at": str(n)}, id=f"c{n}")) for n in range(turns)]


# --- conditions -------------------------------------------------------------------------------------------------------

CONDITIONS: list[tuple[str, Limits, list[Any], int]] = [
    ("tool", Limits(tool="submit"), [[call("look"), call("submit", {"answer": "7"})], "never"], 1),
    ("text", Limits(text=r"FINAL:\s*\d"), [["FINAL: 7", call("look")], "never"], 1),
    ("repeats", Limits(repeats=3), [[call("look")], [call("look")], [call("look")], "never"], 3),
    ("repeats", Limits(repeats=2), [[call("look")], [call("submit")], [call("look")], "never"], 3),
]


@pytest.mark.proves("L9")
@pytest.mark.parametrize(("code", "limits", "script", "asked"), CONDITIONS)
async def test_a_condition_that_is_met_ends_the_run_behind_the_results_of_its_turn(
    world: World, code: str, limits: Limits, script: list[Any], asked: int
) -> None:
    model = ScriptedModel(script)
    rt = await world.open()
    run = await rt.start(agent(model, look, submit, limits=limits), "Go")
    result = await run.result()
    assert (result.reason, model.count) == (f"stopped:{code}", asked)
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.detail
    assert not any(found.is_error for found in results(result.messages).values())
    await check_run(run)


@pytest.mark.proves("L9", "L2")
@pytest.mark.parametrize(("code", "limits", "script", "asked"), CONDITIONS)
async def test_a_condition_survives_a_crash_between_the_act_and_the_stop(
    world: World, code: str, limits: Limits, script: list[Any], asked: int
) -> None:
    held = Stop()

    @tool(effect="read", name="look")
    async def wait(at: str = "sky") -> str:
        if model.count == asked and held.passed == 0:
            await held.arrive()
        return at

    @tool(effect="read", name="submit")
    async def other(answer: str = "") -> str:
        return answer

    model = ScriptedModel(script)
    who = agent(model, wait, other, limits=limits)
    rt = await world.open(who)
    await rt.start(who, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    second = await world.open(who.replace(limits=Limits()))
    run = await second.get("r")
    assert (await run.result()).reason == f"stopped:{code}"
    assert model.count == asked
    await check_run(run)


@pytest.mark.proves("L9")
async def test_what_meets_no_condition_goes_on(world: World) -> None:
    limits = Limits(tool="submit", text="^DONE$", repeats=2)
    script = [["DONE?", call("look", {"at": "a"})], [call("submit", "{")], [call("look", {"at": "b"})], "Fine."]
    rt = await world.open()
    run = await rt.start(agent(script, look, submit, limits=limits), "Go")
    result = await run.result()
    assert (result.reason, result.output) == ("natural", "Fine.")  # a call that failed has not submitted anything


@pytest.mark.proves("L9")
async def test_replies_repeated_beyond_the_window_are_none(world: World) -> None:
    others = [[call("look", {"at": str(n)})] for n in range(8)]
    rt = await world.open()
    who = agent([[call("look")], *others, [call("look")], "Fine."], look, limits=Limits(repeats=2))
    assert (await (await rt.start(who, "Go")).result()).reason == "natural"


@pytest.mark.proves("L5", "L9")
async def test_an_answer_counts_though_it_meets_a_condition(world: World) -> None:
    rt = await world.open()
    run = await rt.start(agent(["DONE"], look, limits=Limits(text="DONE", tokens=1)), "Go")
    result = await run.result()
    assert (result.reason, result.output) == ("natural", "DONE")


@pytest.mark.proves("L9", "T9")
async def test_a_tool_may_ask_for_the_end_and_its_siblings_finish(world: World) -> None:
    from clew import ToolOutput

    held = Stop()

    @tool(effect="read")
    async def wait() -> str:
        await held.arrive()
        return "waited"

    @tool(effect="read")
    def finish() -> ToolOutput:
        return ToolOutput("over", end=True)

    model = ScriptedModel([[call("wait"), call("finish")], "never"])
    rt = await world.open()
    run = await rt.start(agent(model, wait, finish), "Go")
    await held.reached()
    held.let_go()
    result = await run.result()
    assert (result.reason, model.count) == ("behavior_requested", 1)
    assert [found.content for found in results(result.messages).values()] == ["waited", "over"]


@pytest.mark.proves("L2", "L9")
async def test_limits_hold_over_a_crash_at_every_point(kind: str, tmp_path: Any) -> None:
    who = agent(ScriptedModel(looking(4)), look, limits=Limits(cost=1.0, tokens=1_000))
    report = await crash_points(who, "Go", **_stores(kind, tmp_path))
    assert report.ok, str(report)


# --- somebody is asked ------------------------------------------------------------------------------------------------

ASK: dict[str, Any] = {"on_limit": "ask"}


async def stopped_to_ask(world: World, limits: Limits, script: list[Any]) -> tuple[Any, Any, ScriptedModel]:
    model = ScriptedModel(script)
    rt = await world.open()
    run = await rt.start(agent(model, look, submit, limits=limits), "Go", run_id="r")
    result = await run.result()
    assert (result.status, result.reason) == ("waiting", "limit")
    [ticket] = result.tickets
    return run, ticket, model


@pytest.mark.proves("L9", "W1")
async def test_a_limit_may_open_a_ticket_that_says_which(world: World) -> None:
    run, ticket, model = await stopped_to_ask(world, Limits(turns=2, **ASK), looking(9))
    assert (ticket.id, ticket.kind, ticket.action, ticket.call) == ("limit", "limit", "limit:turns", None)
    assert "turns" in ticket.prompt
    assert "2 of 2" in ticket.prompt
    assert (model.count, kinds(await run.entries())[-1]) == (2, "ticket_opened")


@pytest.mark.proves("L9", "W2")
@pytest.mark.parametrize(
    ("limits", "code", "more"),
    [
        (Limits(turns=2, **ASK), "turns", 2),
        (Limits(tool_calls=2, **ASK), "tool_calls", 2),
        (Limits(tokens=220, **ASK), "tokens", 2),
        (Limits(cost=Decimal("1.0"), **ASK), "cost", 2),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_approving_gives_the_same_amount_once_more_and_asks_again_behind_it(
    world: World, limits: Limits, code: str, more: int
) -> None:
    run, ticket, model = await stopped_to_ask(world, limits, looking(9))
    spent = model.count
    await run.decide(ticket, Approve(), by="ada")
    result = await run.result()
    assert (result.reason, model.count) == ("limit", spent + more)
    [again] = result.tickets
    assert again.id == "limit~2"
    [changed] = of(await run.entries(), e.LimitsChanged)
    assert getattr(changed.limits, code) == 2 * getattr(limits, code)
    assert changed.by == "ada"
    await run.decide(again, Approve())
    assert (await run.result()).tickets[0].id == "limit~3"
    assert model.count == spent + 2 * more
    assert getattr((of(await run.entries(), e.LimitsChanged))[-1].limits, code) == 3 * getattr(limits, code)


@pytest.mark.proves("L9", "W2")
@pytest.mark.parametrize(("code", "limits", "script", "asked"), CONDITIONS)
async def test_approving_a_condition_lets_the_run_go_on(
    world: World, code: str, limits: Limits, script: list[Any], asked: int
) -> None:
    import msgspec

    limits = msgspec.structs.replace(limits, on_limit="ask")
    run, ticket, model = await stopped_to_ask(world, limits, [*script[:-1], "Fine."])
    assert (ticket.action, model.count) == (f"limit:{code}", asked)
    await run.decide(ticket, Approve())
    result = await run.result()
    assert (result.output, result.reason) == ("Fine.", "natural")


@pytest.mark.proves("L9", "W2")
async def test_an_edit_gives_new_limits(world: World) -> None:
    run, ticket, model = await stopped_to_ask(world, Limits(turns=2, **ASK), looking(9))
    await run.decide(ticket, Edit({"turns": 5, "on_limit": "stop", "cost": "9.75"}))
    result = await run.result()
    assert (result.reason, model.count) == ("stopped:turns", 5)
    limits = of(await check_run(run), e.LimitsChanged)[0].limits
    assert (limits.turns, limits.cost, limits.on_limit) == (5, Decimal("9.75"), "stop")


@pytest.mark.proves("L9", "W2")
async def test_rejecting_ends_the_run_as_the_limit_would(world: World) -> None:
    run, ticket, model = await stopped_to_ask(world, Limits(cost=Decimal("0.6"), **ASK), looking(9))
    await run.decide(ticket, Reject("enough"))
    result = await run.result()
    assert (result.outcome, model.count) == (Stopped("cost", "1.00 of 0.6"), 2)
    assert "limits_changed" not in kinds(await check_run(run))
    with pytest.raises(AlreadyDecided):
        await run.decide(ticket, Approve())


@pytest.mark.proves("W2")
@pytest.mark.parametrize(
    "decision",
    [
        Respond(5),
        Edit({}),
        Edit({"turns": -1}),
        Edit({"turns": 2.5}),
        Edit({"truns": 5}),
        Edit({"text": "("}),
        Edit({"cost": "much"}),
        Edit({"seconds": float("inf")}),
        Edit({"on_limit": "shout"}),
    ],
    ids=str,
)
async def test_what_is_no_limit_is_refused_before_it_is_stored(world: World, decision: Any) -> None:
    run, ticket, _ = await stopped_to_ask(world, Limits(turns=1, **ASK), looking(9))
    before = len(await run.entries())
    with pytest.raises(UsageError):
        await run.decide(ticket, decision)
    assert len(await run.entries()) == before
    await run.decide(ticket, Reject())
    assert (await run.result()).reason == "stopped:turns"


@pytest.mark.proves("L2", "L9", "W3")
async def test_the_question_and_its_answer_survive_processes(world: World) -> None:
    model = ScriptedModel(looking(9))
    who = agent(model, look, limits=Limits(turns=2, **ASK))
    rt = await world.open(who)
    run = await rt.start(who, "Go", run_id="r")
    [ticket] = (await run.result()).tickets
    await world.kill(rt)

    other = await world.open(who, drive=False)  # nobody lives who could drive it
    await other.decide(ticket.ref, Approve())
    second = await world.open(who)
    run = await second.get("r")
    await becomes(second, "r", lambda info: info.turns == 4)
    result = await run.result()
    assert (result.tickets[0].id, model.count) == ("limit~2", 4)
    await world.kill(second)

    third = await world.open(who)
    run = await third.get("r")
    assert (await run.result()).tickets[0].id == "limit~2"
    await run.cancel()
    result = await run.result()
    assert (result.reason, model.count) == ("cancelled", 4)
    await check_run(run)


@pytest.mark.proves("L9", "L10")
async def test_errors_in_a_row_may_be_asked_about_too(world: World) -> None:
    bad = ModelError("overloaded", "busy", retry_after=0.0)
    run, ticket, model = await stopped_to_ask(world, Limits(model_errors=2, **ASK), [bad, bad, bad, "Fine."])
    assert (ticket.action, model.count) == ("limit:model_errors", 2)
    await run.decide(ticket, Approve())
    result = await run.result()
    assert (result.output, model.count) == ("Fine.", 4)


@pytest.mark.proves("L2", "L6")
async def test_a_reply_that_goes_on_is_no_new_turn_but_costs(world: World) -> None:
    parts = [ModelReply(parts=(Text(text),), finish="length", cost=Decimal("0.5")) for text in "abc"]
    rt = await world.open()
    who = agent([*parts, "d"], look, limits=Limits(turns=1, cost=1.0), max_continuations=9)
    result = await (await rt.start(who, "Go")).result()
    assert result.reason == "stopped:cost"
    free = agent([*parts, "d"], look, name="free", limits=Limits(turns=1), max_continuations=9)
    assert (await (await rt.start(free, "Go")).result()).output == "abcd"
