"""W7, W2, W6: a body asks and sleeps. It lets go, the run holds nothing, and the answer meets the body run anew."""

import asyncio
from datetime import timedelta
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from clew import Approve, Edit, Reject, Respond, ToolContext, tool
from clew.app import Run
from clew.core import entries as e
from clew.errors import AlreadyDecided, Conflict, Rejected, UsageError
from clew.testing import call, crash_points
from tests.runtime.world import World, agent, asked, becomes, check_run, gate_of, has, of, results

CALL = "1.tool.1"
EFFECTS = pytest.mark.parametrize("effect", ["read", "once"])


class Size(BaseModel):
    cups: int
    milk: bool = False


def one(tool: Any) -> Any:
    return agent([[call(tool.name)], "Done."], tool)


async def told(run: Run[Any]) -> tuple[bool, Any]:
    result = await run.result(until="done")
    assert result.text == "Done.", result
    await check_run(run)
    found = results(result.messages)[CALL]
    return found.is_error, found.content


async def begun(world: World, tool: Any) -> Run[Any]:
    rt = await world.open(one(tool))
    return await rt.start(one(tool), "Go", run_id="r")


# --- asking -----------------------------------------------------------------------------------------------------------

TYPED: dict[str, tuple[Any, Any, Any, Any]] = {
    "text": (str, "two", "two", 2),
    "number": (int, 2, 2, "many"),
    "yes or no": (bool, True, True, "perhaps"),
    "choice": (Literal["tea", "milk"], "tea", "tea", "beer"),
    "model": (Size, {"cups": 2}, Size(cups=2), {"cups": "many"}),
    "list": (list[int], [1, 2], [1, 2], [1, "x"]),
    "schema": ({"type": "object", "required": ["a"]}, {"a": 1}, {"a": 1}, {"b": 1}),
}


@pytest.mark.proves("W7", "W2", "W3", "W1")
@EFFECTS
@pytest.mark.parametrize("name", TYPED)
async def test_an_answer_is_of_the_type_that_was_asked_for(world: World, name: str, effect: Any) -> None:
    schema, given, expected, wrong = TYPED[name]
    got: list[Any] = []

    @tool(effect=effect)
    async def order(ctx: ToolContext[Any]) -> str:
        got.append("entered")
        got.append(await ctx.ask("How much?", schema))
        return "ordered"

    run = await begun(world, order)
    (ticket,) = await asked(run, "question")
    assert (ticket.id, ticket.kind, ticket.prompt, ticket.call) == (CALL, "question", "How much?", CALL)
    assert ticket.schema
    info = await run.info()
    assert (info.status, info.reasons) == ("waiting", ("user_input",))
    assert (await run._runtime.store.lease("r")).owner is None
    with pytest.raises(UsageError):
        await run.decide(ticket, Respond(wrong))
    for unfit in (Approve(), Edit({"cups": 2})):
        with pytest.raises(UsageError, match="question"):
            await run.decide(ticket, unfit)
    assert await asked(run, "question") == [ticket]
    assert of(await run.entries(), e.DecisionMade) == []
    await run.decide(ticket, Respond(given), by="ann")
    assert await told(run) == (False, "ordered")
    assert got == ["entered", "entered", expected]
    assert type(got[-1]) is type(expected)
    intents = [x.attempt for x in of(await run.entries(), e.ToolStarted)]
    assert intents == ([1, 1] if effect == "once" else [])  # each entering says that it starts


@pytest.mark.proves("W7", "W2")
@EFFECTS
@pytest.mark.parametrize("catches", [True, False])
async def test_a_question_that_is_turned_down_raises(world: World, effect: Any, catches: bool) -> None:
    @tool(effect=effect)
    async def order(ctx: ToolContext[Any]) -> str:
        try:
            return await ctx.ask("How much?")
        except Rejected as error:
            if catches:
                return f"none: {error}"
            raise

    run = await begun(world, order)
    (ticket,) = await asked(run, "question")
    await run.decide(ticket, Reject("we are closed"))
    is_error, content = await told(run)
    assert is_error is not catches
    assert "we are closed" in content
    assert of(await run.entries(), e.DoubtResolved) == []  # a ToolError says that nothing happened


@pytest.mark.proves("W7")
async def test_questions_are_told_apart_by_name_or_prompt_and_use(world: World) -> None:
    @tool(effect="read")
    async def order(ctx: ToolContext[Any]) -> list[str]:
        got = [await ctx.ask(f"Cup {n}?") for n in (1, 2)]
        got += [await ctx.ask("Again?") for _ in range(2)]
        got += [await ctx.ask(f"At {n}?", name="time") for n in (1, 2)]
        return got

    run = await begun(world, order)
    old: list[Any] = []
    for number in range(1, 7):
        (ticket,) = await asked(run, "question", but=old)
        old.append(ticket)
        assert ticket.id == (CALL if number == 1 else f"{CALL}~{number}")
        await run.decide(ticket, Respond(f"a{number}"))
    assert await told(run) == (False, [f"a{n}" for n in range(1, 7)])
    steps = [x.step or "" for x in of(await run.entries(), e.TicketOpened)]
    assert len(set(steps)) == 6
    assert steps[3] == f"{steps[2]}#2"
    assert steps[4:] == ["1.tool.1:time", "1.tool.1:time#2"]


@pytest.mark.proves("W7", "W2")
@EFFECTS
@pytest.mark.parametrize("first", [0, 1, 2])
async def test_questions_side_by_side_are_opened_together_and_answered_in_any_order(
    world: World, effect: Any, first: int
) -> None:
    entered = 0

    @tool(effect=effect)
    async def order(ctx: ToolContext[Any]) -> list[str]:
        nonlocal entered
        entered += 1
        async with asyncio.TaskGroup() as group:
            asks = [group.create_task(ctx.ask(f"Cup {n}?", name=f"cup {n}")) for n in range(3)]
        return [one.result() for one in asks]

    run = await begun(world, order)
    tickets = await asked(run, *["question"] * 3)
    assert [x.id for x in tickets] == [CALL, f"{CALL}~2", f"{CALL}~3"]
    assert len({x.batch for x in of(await run.entries(), e.TicketOpened)}) == 1
    left, old = list(tickets), list[Any]()
    for number in range(3):
        ticket = left.pop((first + number) % len(left))
        old.append(ticket)
        await run.decide(ticket, Respond(ticket.prompt[-2]))
        if left:
            assert await asked(run, *["question"] * len(left), but=old) == left
    assert await told(run) == (False, ["0", "1", "2"])
    assert {x.ticket for x in of(await run.entries(), e.TicketOpened)} == {x.id for x in tickets}
    assert entered <= 4


@pytest.mark.proves("W7", "W3", "T2")
@EFFECTS
async def test_a_question_survives_everybody_and_is_answered_while_nobody_lives(world: World, effect: Any) -> None:
    @tool(effect=effect)
    async def order(ctx: ToolContext[Any]) -> str:
        return await ctx.ask("How much?")

    run = await begun(world, order)
    (ticket,) = await asked(run, "question")
    await world.kill(run._runtime)
    second = await world.open(one(order))
    assert await asked(await second.get("r"), "question") == [ticket]
    await world.kill(second)
    desk = await world.open(drive=False)
    await desk.decide(ticket.ref, Respond("two"), by="ann")
    with pytest.raises(AlreadyDecided, match="ann"):
        await desk.decide(ticket.ref, Respond("three"), by="bob")
    await desk.close()
    run = await (await world.open(one(order))).get("r")
    assert await told(run) == (False, "two")
    assert of(await run.entries(), e.DoubtResolved) == []  # a body that let go is not in doubt


@pytest.mark.proves("W6", "W2")
async def test_a_question_expires(world: World) -> None:
    @tool(effect="once")
    async def order(ctx: ToolContext[Any]) -> str:
        try:
            return await ctx.ask("How much?", expires=timedelta(minutes=1))
        except Rejected as error:
            return f"none: {error}"

    run = await begun(world, order)
    (ticket,) = await asked(run, "question")
    assert ticket.expires_at == ticket.opened_at + 60_000_000
    await world.clock.advance(60)
    assert await told(run) == (False, "none: nobody answered in time")
    with pytest.raises(Conflict):
        await run.decide(ticket, Respond("two"))


@pytest.mark.proves("W6")
async def test_the_expiry_of_a_question_may_cancel_the_run(world: World) -> None:
    @tool(effect="once")
    async def order(ctx: ToolContext[Any]) -> str:
        return await ctx.ask("How much?", expires=60, on_expire="cancel")

    run = await begun(world, order)
    await asked(run, "question")
    await world.clock.advance(60)
    assert (await run.result(until="done")).reason.startswith("cancelled")
    await check_run(run)


@pytest.mark.proves("W6")
async def test_a_question_that_is_escalated_stays_until_somebody_answers(world: World) -> None:
    @tool(effect="once")
    async def order(ctx: ToolContext[Any]) -> str:
        return await ctx.ask("How much?", expires=60, on_expire="escalate")

    run = await begun(world, order)
    (first,) = await asked(run, "question")
    await world.clock.advance(60)
    (ticket,) = await asked(run, "question", but=[first])
    assert (ticket.id, ticket.expires_at, ticket.reason) == (f"{CALL}~2", None, "escalated")
    await world.clock.advance(10**6)
    await run.decide(ticket, Respond("two"))
    assert await told(run) == (False, "two")


@pytest.mark.proves("W7")
@pytest.mark.parametrize("prompt", ["", None, 3, b"x", "\ud800"])
async def test_what_is_no_question(world: World, prompt: Any) -> None:
    @tool(effect="read")
    async def order(ctx: ToolContext[Any]) -> str:
        with pytest.raises(UsageError):
            await ctx.ask(prompt)
        with pytest.raises(UsageError):
            await ctx.ask("How much?", name="a:b")
        with pytest.raises(UsageError):
            await ctx.ask("How much?", expires=-1)
        with pytest.raises(UsageError):
            await ctx.ask("How much?", expires=1e300)
        return "ok"

    assert await told(await begun(world, order)) == (False, "ok")


@pytest.mark.proves("W7")
@EFFECTS
async def test_verbs_that_wait_are_not_for_sync_tools(world: World, effect: Any) -> None:
    said: list[str] = []

    @tool(effect=effect)
    def order(ctx: ToolContext[Any]) -> str:
        for verb, args in (("ask", ("?",)), ("sleep", (1,)), ("step", ("s", print)), ("note", ("k", 1))):
            with pytest.raises(UsageError, match="needs an async tool") as refused:
                getattr(ctx, verb)(*args)
            said.append(str(refused.value))
        return "ok"

    assert await told(await begun(world, order)) == (False, "ok")
    assert len(said) == 4


# --- sleeping ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("W7", "T2", "T5", "R0")
@EFFECTS
async def test_a_sleep_survives_a_restart_of_everything_and_holds_nothing(world: World, effect: Any) -> None:
    entered: list[int] = []

    @tool(effect=effect)
    async def rest(ctx: ToolContext[Any]) -> str:
        entered.append(world.clock.now())
        await ctx.sleep(timedelta(hours=8))
        return "rested"

    run = await begun(world, rest)
    row = await becomes(run._runtime, "r", lambda row: row.status == "waiting")
    began = entered[0]
    assert (row.reasons, row.wake_at) == (("timer",), began + 8 * 3_600_000_000)
    assert (await run._runtime.store.lease("r")).owner is None
    assert run._runtime.driving == ()
    await world.kill(run._runtime)
    await world.clock.advance(3_600)
    rt = await world.open(one(rest))
    await world.clock.advance(6 * 3_600)
    assert (await (await rt.get("r")).info()).status == "waiting"
    await world.kill(rt)
    run = await (await world.open(one(rest))).get("r")
    await world.clock.advance(3_600)
    assert await told(run) == (False, "rested")
    assert len(entered) == 2
    assert entered[1] >= began + 8 * 3_600_000_000
    entries = await run.entries()
    (timer,) = of(entries, e.TimerSet)
    (fired,) = of(entries, e.TimerFired)
    assert (timer.timer, timer.why, fired.timer) == ("1.tool.1:sleep", "sleep", "1.tool.1:sleep")
    assert fired.at >= timer.due == row.wake_at


@pytest.mark.proves("W7")
async def test_sleeps_one_after_the_other_and_side_by_side(world: World) -> None:
    @tool(effect="once")
    async def rest(ctx: ToolContext[Any]) -> int:
        before = world.clock.now()
        for seconds in (0, 10, 20.5):
            await ctx.sleep(seconds)
        await asyncio.gather(ctx.sleep(5), ctx.sleep(30))
        return before

    run = await begun(world, rest)
    assert not (await world.passing(told(run)))[0]
    entries = await run.entries()
    assert [x.timer for x in of(entries, e.TimerSet)][:3] == [f"{CALL}:sleep{n}" for n in ("", "#2", "#3")]
    assert len({x.timer for x in of(entries, e.TimerSet)}) == len(of(entries, e.TimerFired)) == 5
    assert of(entries, e.DoubtResolved) == []
    assert entries[-1].at - entries[0].at >= 60_000_000


@pytest.mark.proves("W7", "T8")
@pytest.mark.parametrize(
    "duration", [-1, float("inf"), float("nan"), 1e300, 10**20, "1", None, True, timedelta(seconds=-1), timedelta.max]
)
async def test_durations_that_are_none(world: World, duration: Any) -> None:
    @tool(effect="read")
    async def rest(ctx: ToolContext[Any]) -> str:
        with pytest.raises(UsageError, match=r"ctx\.sleep"):
            await ctx.sleep(duration)
        return "awake"

    assert await told(await begun(world, rest)) == (False, "awake")


# --- letting go -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("W7")
@EFFECTS
async def test_finally_runs_at_each_letting_go_which_the_context_tells(world: World, effect: Any) -> None:
    left: list[bool] = []

    @tool(effect=effect)
    async def order(ctx: ToolContext[Any]) -> str:
        try:
            await ctx.sleep(60)
            return await ctx.ask("How much?")
        finally:
            left.append(ctx.letting_go)

    run = await begun(world, order)
    await becomes(run._runtime, "r", lambda row: row.status == "waiting")
    assert left == [True]
    await world.clock.advance(60)
    (ticket,) = await asked(run, "question")
    assert left == [True, True]
    await run.decide(ticket, Respond("two"))
    assert await told(run) == (False, "two")
    assert left == [True, True, False]


@pytest.mark.proves("W7", "T2")
@EFFECTS
async def test_what_a_body_returns_while_it_is_written_down_that_it_waits_is_thrown_away(
    world: World, effect: Any
) -> None:
    go = asyncio.Event()
    entered = 0

    @tool(effect=effect)
    async def order(ctx: ToolContext[Any]) -> str:
        nonlocal entered
        entered += 1
        asking = asyncio.ensure_future(ctx.ask("How much?"))
        if entered > 1:
            return await asking
        await go.wait()
        asking.cancel()
        return "invented"

    rt = await world.open(one(order))
    opening = gate_of(rt).hold(has("ticket_opened"))
    run = await rt.start(one(order), "Go", run_id="r")
    await opening.reached()
    go.set()
    await asyncio.sleep(0.01)
    opening.let_go()
    (ticket,) = await asked(run, "question")
    await run.decide(ticket, Respond("two"))
    assert await told(run) == (False, "two")
    assert entered == 2


@pytest.mark.proves("W7", "T5")
async def test_steps_notes_and_questions_of_one_body_are_each_there_once(world: World) -> None:
    ran: list[str] = []

    def work(what: str) -> str:
        ran.append(what)
        return what

    @tool(effect="once")
    async def order(ctx: ToolContext[Any]) -> str:
        a = await ctx.once_step("a", work, "tea")
        size = await ctx.ask("How much?", int)
        b = await ctx.step("b", work, f"{size} cups")
        await ctx.sleep(10)
        return f"{a}, {b}, {await ctx.ask('Sure?', bool)}"

    run = await begun(world, order)
    (ticket,) = await asked(run, "question")
    await run.decide(ticket, Respond(2))
    (ticket,) = await world.passing(asked(run, "question"))
    assert ticket.prompt == "Sure?"
    await run.decide(ticket, Respond(value=True))
    assert await told(run) == (False, "tea, 2 cups, True")
    assert ran == ["tea", "2 cups"]


@pytest.mark.proves("C1", "W7")
@EFFECTS
@pytest.mark.parametrize("at", ["ask", "sleep"])
async def test_a_cancel_ends_a_run_whose_body_has_let_go(world: World, at: str, effect: Any) -> None:
    @tool(effect=effect)
    async def order(ctx: ToolContext[Any]) -> str:
        if at == "sleep":
            await ctx.sleep(10**6)
        return await ctx.ask("How much?")

    run = await begun(world, order)
    await becomes(run._runtime, "r", lambda row: row.status == "waiting")
    await world.kill(run._runtime)
    desk = await world.open(drive=False)
    await desk.cancel("r")
    run = await desk.get("r")
    assert (await run.result(until="done")).reason.startswith("cancelled")
    assert [x async for x in desk.tickets()] == []
    entries = await check_run(run)
    assert [x.class_ for x in of(entries, e.ToolFailed)] == ["cancelled"]


@pytest.mark.proves("W7", "W3", "T5", "T2")
@pytest.mark.parametrize(
    ("effect", "options"), [("read", {}), ("once", {"steps_only": True}), ("once", {"on_doubt": "retry"})]
)
async def test_a_crash_anywhere_while_a_body_asks_and_sleeps_changes_nothing(
    world: World, effect: Any, options: Any
) -> None:
    def work(what: str) -> str:
        return what

    @tool(effect=effect, **options)
    async def order(ctx: ToolContext[Any]) -> str:
        a = await ctx.step("a", work, "tea")
        size = await ctx.ask("How much?", int)
        await ctx.sleep(100)
        sure, sugar = await asyncio.gather(ctx.ask("Sure?", bool), ctx.ask("Sugar?"))
        await ctx.note("ordered", size)
        return f"{a}, {size}, {sure}, {sugar}"

    def decide(ticket: Any) -> Any:
        return Respond({"How much?": 2, "Sure?": True, "Sugar?": "none"}[ticket.prompt])

    report = await crash_points(one(order), "Go", store=world.fresh, decide=decide)
    assert report.ok, report
    assert report.points > 15
