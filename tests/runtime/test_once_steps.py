"""T5, T2: a `once` step is never silently run twice: doubt is asked of the step. And crashes all over a body."""

import asyncio
from typing import Any

import pytest

from clew import Approve, Reject, Respond, ToolContext, ToolError, tool
from clew.core import entries as e
from clew.errors import StepFailed
from clew.testing import crash_points
from clew.tools import Done, NotDone, Unknown
from tests.runtime.test_steps import CALL, Counted, crashed, findings, one, told
from tests.runtime.world import Stop, World, asked, gate_of, has, of, seen

# --- once steps and doubt ---------------------------------------------------------------------------------------------


class Held:
    """A tool whose once step is held in its first attempt."""

    def __init__(self, effect: str = "idempotent", answer: Any = None, **options: Any) -> None:
        self.held = Stop()
        self.asked: list[ToolContext[Any]] = []
        self.ran: list[str] = []
        self.answer = answer

        async def verify(ctx: ToolContext[Any]) -> Any:
            self.asked.append(ctx)
            return self.answer

        if answer is not None:
            options["verify"] = verify

        async def pay(what: str) -> str:
            self.ran.append("pay")
            await self.held.arrive()
            return f"paid {what}"

        @tool(effect=effect, **options)
        async def order(ctx: ToolContext[Any]) -> str:
            self.ran.append("order")
            try:
                return await ctx.once_step("pay", pay, "tea")
            except (ToolError, StepFailed) as error:
                return f"{type(error).__name__}: {error}"

        self.agent = one(order)


@pytest.mark.proves("T5", "T2")
@pytest.mark.parametrize(("effect", "options"), [("idempotent", {}), ("once", {"steps_only": True})])
async def test_the_doubt_of_a_once_step_is_asked_of_the_step(world: World, effect: str, options: Any) -> None:
    work = Held(effect, Done("paid tea"), **options)
    run = await crashed(world, work.agent, work.held)
    assert await told(run) == (False, "paid tea")
    assert work.ran == ["order", "pay", "order"]
    assert await findings(run) == [("1.tool.1:pay", "verify", "done", "verify")]
    (ctx,) = work.asked
    assert (ctx.step_id, ctx.call_id, ctx.idempotency_key) == ("1.tool.1:pay", CALL, "r:1.tool.1:pay")
    assert [(x.step, x.value) for x in of(await run.entries(), e.StepRecorded)] == [("1.tool.1:pay", "paid tea")]


@pytest.mark.proves("T5", "T2")
@pytest.mark.parametrize(
    ("answer", "on_doubt", "ran", "content"),
    [
        (NotDone(), "ask", 2, "paid tea"),
        (Unknown(), "report", 1, "StepFailed"),
        (Unknown(), "retry", 2, "paid tea"),
        (None, "report", 1, "StepFailed"),
        (None, "retry", 2, "paid tea"),
    ],
)
async def test_what_else_becomes_of_a_step_in_doubt(
    world: World, answer: Any, on_doubt: Any, ran: int, content: str
) -> None:
    work = Held(answer=answer, on_doubt=on_doubt)
    run = await crashed(world, work.agent, work.held)
    is_error, said = await told(run)
    assert not is_error
    assert said.startswith(content)
    assert work.ran.count("pay") == ran
    assert all(step == "1.tool.1:pay" for step, *_ in await findings(run))


@pytest.mark.proves("T5", "T2", "W2")
@pytest.mark.parametrize(
    ("decision", "ran", "content"),
    [
        (Approve(), 2, "paid tea"),
        (Reject("it bounced"), 1, "ToolError: step 'pay' failed before: it bounced"),
        (Respond("paid by hand"), 1, "paid by hand"),
    ],
    ids=["approve", "reject", "respond"],
)
async def test_a_person_says_what_became_of_a_step(world: World, decision: Any, ran: int, content: str) -> None:
    work = Held("once", steps_only=True)
    run = await crashed(world, work.agent, work.held)
    (ticket,) = await asked(run, "doubt")
    assert "'pay'" in ticket.prompt
    await run.decide(ticket, decision)
    assert await told(run) == (False, content)
    assert work.ran.count("pay") == ran


@pytest.mark.proves("T5", "T2")
async def test_a_once_body_is_entered_again_only_if_it_is_all_steps(world: World) -> None:
    for steps_only in (True, False):
        work, held, ran = Counted(), Stop(), []

        @tool(effect="once", steps_only=steps_only, on_doubt="report", name="order")
        async def order(ctx: ToolContext[Any]) -> str:
            ran.append("order")  # noqa: B023
            value = await ctx.once_step("pay", work.pay, "tea")  # noqa: B023
            await held.arrive()  # noqa: B023
            return value

        actor = one(order).replace(name=f"payer-{steps_only}")
        rt = await world.open(actor)
        run = await rt.start(actor, "Go")
        await held.reached()
        await world.kill(rt)
        held.let_go()
        run = await (await world.open(actor)).get(run.id)
        is_error, content = await told(run)
        assert (ran, work.ran) == (["order"] * (2 if steps_only else 1), ["pay tea"])
        assert content == "paid tea" if steps_only else content.startswith("outcome unknown")
        assert is_error is not steps_only


@pytest.mark.proves("T5", "T11")
async def test_a_late_result_of_a_step_settles_its_doubt(world: World) -> None:
    work = Held()
    work.held.let_go()
    first = await world.open(work.agent, drive=False)
    commit = gate_of(first).hold(has("step_recorded"))
    await first.start(work.agent, "Go", run_id="r")
    driving = asyncio.create_task(first.drive("r"))
    await commit.reached()
    await world.clock.advance(30.5)
    run = await (await world.open(work.agent)).get("r")
    await seen(run, "driver_attached", "driver_attached")
    commit.let_go()
    await driving
    assert await told(run) == (False, "paid tea")
    assert work.ran.count("pay") == 1
    assert await findings(run) == [("1.tool.1:pay", "late", "done", "late_result")]


@pytest.mark.proves("T5", "T2", "T7")
@pytest.mark.parametrize("answer", [Done("paid tea"), NotDone()], ids=["done", "not done"])
async def test_a_once_step_that_a_timeout_cut_off_is_in_doubt_before_the_retry(world: World, answer: Any) -> None:
    work = Held(answer=answer, timeout=0.05, retries=1)
    rt = await world.open()
    run = await rt.start(work.agent, "Go", run_id="r")
    await seen(run, "tool_failed")
    work.held.let_go()
    assert await world.passing(told(run)) == (False, "paid tea")
    assert work.ran.count("pay") == (1 if answer == Done("paid tea") else 2)
    assert (await findings(run))[0][:2] == ("1.tool.1:pay", "verify")


@pytest.mark.proves("T5", "T2", "W7")
@pytest.mark.parametrize("answer", [Done("paid tea"), NotDone()], ids=["done", "not done"])
async def test_a_once_step_that_its_body_cut_off_is_in_doubt_when_the_body_is_entered_again(
    world: World, answer: Any
) -> None:
    paid: list[str] = []

    async def pay() -> str:
        paid.append("pay")
        await asyncio.sleep(0 if len(paid) > 1 else 30)
        return "paid tea"

    @tool(effect="idempotent", verify=lambda _ctx: answer)
    async def order(ctx: ToolContext[Any]) -> str:
        try:
            async with asyncio.timeout(0.05 if not paid else None):
                return await ctx.once_step("pay", pay)
        except TimeoutError:
            await ctx.sleep(1)
        return "slept"

    rt = await world.open()
    run = await rt.start(one(order), "Go", run_id="r")
    assert await world.passing(told(run)) == (False, "paid tea")
    assert len(paid) == (1 if answer == Done("paid tea") else 2)
    assert (await findings(run))[0][:2] == ("1.tool.1:pay", "verify")


# --- crash at every point ---------------------------------------------------------------------------------------------


@pytest.mark.proves("T5", "T2", "T3")
@pytest.mark.parametrize(("effect", "options"), [("idempotent", {}), ("once", {"steps_only": True})])
async def test_a_crash_anywhere_between_steps_changes_nothing(world: World, effect: Any, options: Any) -> None:
    paid: list[str] = []

    async def pay(key: str) -> str:
        paid.append(key)
        await asyncio.sleep(0)
        return f"paid {key}"

    def verify(ctx: ToolContext[Any]) -> Any:
        key = ctx.step_id.rpartition(" ")[2]
        return Done(f"paid {key}") if key in paid else NotDone()

    def look() -> str:
        return "blue"

    @tool(effect=effect, verify=verify, **options)
    async def order(ctx: ToolContext[Any]) -> str:
        seen = await ctx.step("look", look)
        a = await ctx.once_step("pay a", pay, "a")
        await ctx.note("between", seen)
        await ctx.sleep(1)
        b, c = await asyncio.gather(ctx.once_step("pay b", pay, "b"), ctx.once_step("pay c", pay, "c"))
        return f"{seen}: {a}, {b}, {c}"

    def check() -> list[str]:
        return [f"{key} was paid {paid.count(key)} times" for key in "abc" if paid.count(key) != 1]

    report = await crash_points(one(order), "Go", store=world.fresh, reset=paid.clear, check=check)
    assert report.ok, report
    assert report.points > 15
