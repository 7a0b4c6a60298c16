"""T5: steps inside of a tool are committed, and when the body runs again their values stand in for the work."""

import asyncio
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from clew import Approve, Fatal, Respond, ToolContext, ToolError, tool
from clew.app import Run
from clew.core import entries as e
from clew.errors import StepFailed, UsageError
from clew.testing import call
from tests.runtime.world import Stop, World, agent, asked, check_run, gate_of, has, of, results

CALL = "1.tool.1"


class Quote(BaseModel):
    price: Decimal
    days: tuple[int, ...]


class Counted:
    """Functions for steps, and how often each ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def quote(self, what: str) -> Quote:
        self.ran.append(f"quote {what}")
        return Quote(price=Decimal("9.90"), days=(1, 2))

    def note(self, what: str) -> str:
        self.ran.append(f"note {what}")
        return f"noted {what}"

    async def pay(self, what: str) -> str:
        self.ran.append(f"pay {what}")
        return f"paid {what}"


def one(tool: Any) -> Any:
    return agent([[call(tool.name)], "Done."], tool)


async def told(run: Run[Any]) -> tuple[bool, Any]:
    result = await run.result(until="done")
    assert result.text == "Done.", result
    await check_run(run)
    found = results(result.messages)[CALL]
    return found.is_error, found.content


async def findings(run: Run[Any]) -> list[tuple[str | None, str, str, str]]:
    return [(x.step, x.how, x.finding, x.rule) for x in of(await run.entries(), e.DoubtResolved)]


async def crashed(world: World, actor: Any, held: Stop) -> Run[Any]:
    """The run, taken up by a second process after the first has died where it was held."""
    rt = await world.open(actor)
    await rt.start(actor, "Go", run_id="r")
    await held.reached()
    await world.kill(rt)
    held.let_go()
    return await (await world.open(actor)).get("r")


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T5")
@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_steps_that_are_recorded_are_not_run_again(world: World, effect: Any) -> None:
    work, held, got = Counted(), Stop(), []

    @tool(effect=effect)
    async def order(ctx: ToolContext[Any]) -> str:
        got.append(await ctx.step("quote", work.quote, "tea"))
        got.append(await ctx.step("note", work.note, what="tea"))
        got.append(await ctx.once_step("pay", work.pay, "tea"))
        await held.arrive()
        return "ordered"

    run = await crashed(world, one(order), held)
    assert await told(run) == (False, "ordered")
    assert work.ran == ["quote tea", "note tea", "pay tea"]
    assert got == [Quote(price=Decimal("9.90"), days=(1, 2)), "noted tea", "paid tea"] * 2
    steps = of(await run.entries(), e.StepRecorded)
    assert [(x.step, x.name, x.call, x.effect) for x in steps] == [
        ("1.tool.1:quote", "quote", CALL, "idempotent"),
        ("1.tool.1:note", "note", CALL, "idempotent"),
        ("1.tool.1:pay", "pay", CALL, "once"),
    ]
    assert [x.fn for x in steps] == ["Counted.quote", "Counted.note", "Counted.pay"]
    assert all(x.args_digest for x in steps)
    assert [x.step for x in of(await run.entries(), e.StepStarted)] == ["1.tool.1:pay"]


@pytest.mark.proves("T5")
async def test_a_value_is_the_same_kind_of_thing_made_or_read_back(world: World) -> None:
    """By the return hint both times: a first run gives no more than a second one can."""
    got: list[Any] = []

    async def hinted() -> Quote:
        return {"price": "9.90", "days": [1]}  # type: ignore[return-value]

    def several() -> tuple[int, ...]:
        return [1, 2]  # type: ignore[return-value]

    async def bare():  # type: ignore[no-untyped-def]
        return (1, Decimal("2.5"))

    async def nothing() -> None:
        return None

    @tool(effect="read")
    async def work(ctx: ToolContext[Any]) -> str:
        got.append(
            [
                await ctx.step("hinted", hinted),
                await ctx.step("several", several),
                await ctx.step("bare", bare),
                await ctx.step("nothing", nothing),
            ]
        )
        await ctx.sleep(0)
        return "ok"

    rt = await world.open()
    run = await rt.start(one(work), "Go")
    assert await told(run) == (False, "ok")
    assert len(got) == 2
    assert got[0] == got[1]
    assert got[0][:2] == [Quote(price=Decimal("9.90"), days=(1,)), (1, 2)]
    assert got[0][3] is None
    assert [type(x) for x in got[0]] == [type(x) for x in got[1]]


@pytest.mark.proves("T5", "J6", "T8")
@pytest.mark.parametrize("value", ["x" * 100_000, {"deep": ["x" * 70_000]}], ids=["text", "nested"])
async def test_a_large_value_is_read_back_whole(world: World, value: Any) -> None:
    got: list[Any] = []

    def make() -> Any:
        return value

    @tool(effect="read")
    async def work(ctx: ToolContext[Any]) -> str:
        got.append(await ctx.step("make", make))
        await ctx.sleep(0)
        return "ok"

    rt = await world.open()
    run = await rt.start(one(work), "Go")
    assert await told(run) == (False, "ok")
    assert got == [value, value]
    assert len(str(of(await run.entries(), e.StepRecorded)[0].value)) < 1_000


@pytest.mark.proves("T5", "T8")
@pytest.mark.parametrize(
    "value",
    [object(), {1: "x"}, "\ud800", float("nan"), {"a": {1, 2}}],
    ids=["object", "key", "surrogate", "nan", "set"],
)
async def test_what_cannot_be_kept_is_said_or_kept(world: World, value: Any) -> None:
    """A value that no journal can hold is the tool's mistake; whatever is committed decodes."""

    def make() -> Any:
        return value

    @tool(effect="read")
    async def work(ctx: ToolContext[Any]) -> str:
        await ctx.step("make", make)
        return "kept"

    rt = await world.open()
    run = await rt.start(one(work), "Go")
    is_error, content = await told(run)
    assert (is_error and "step 'make' returned what cannot be stored" in content) or content == "kept"


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T5")
async def test_a_name_that_is_used_again_gets_a_number(world: World) -> None:
    work, held = Counted(), Stop()

    @tool(effect="read")
    async def order(ctx: ToolContext[Any]) -> list[str]:
        got = [await ctx.step("note", work.note, what) for what in ("a", "b", "c")]
        await held.arrive()
        return got

    run = await crashed(world, one(order), held)
    assert await told(run) == (False, ["noted a", "noted b", "noted c"])
    assert work.ran == ["note a", "note b", "note c"]
    steps = [x.step for x in of(await run.entries(), e.StepRecorded)]
    assert steps == ["1.tool.1:note", "1.tool.1:note#2", "1.tool.1:note#3"]


@pytest.mark.proves("T5")
@pytest.mark.parametrize("verb", ["step", "once_step"])
async def test_a_name_whose_namesake_still_runs_is_refused(world: World, verb: str) -> None:
    work, go = Counted(), asyncio.Event()

    async def slow(what: str) -> str:
        await go.wait()
        return await work.pay(what)

    @tool(effect="read")
    async def order(ctx: ToolContext[Any]) -> str:
        first = asyncio.ensure_future(getattr(ctx, verb)("same", slow, "a"))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="give the other one another name"):
            await getattr(ctx, verb)("same", slow, "b")
        go.set()
        return await first + await getattr(ctx, verb)("same", slow, "c")

    rt = await world.open()
    run = await rt.start(one(order), "Go")
    assert await told(run) == (False, "paid apaid c")
    assert work.ran == ["pay a", "pay c"]


@pytest.mark.proves("T5")
async def test_steps_of_other_names_run_side_by_side(world: World) -> None:
    met, held, ran = asyncio.Barrier(3), Stop(), []

    async def meet(n: int) -> int:
        ran.append(n)
        await met.wait()
        return n

    @tool(effect="read")
    async def order(ctx: ToolContext[Any]) -> list[int]:
        got = await asyncio.gather(*[ctx.step(f"meet {n}", meet, n) for n in range(3)])
        await held.arrive()
        return list(got)

    run = await crashed(world, one(order), held)
    assert await told(run) == (False, [0, 1, 2])
    assert sorted(ran) == [0, 1, 2]


@pytest.mark.proves("T5")
@pytest.mark.parametrize("name", ["", "a:b", "a#2", "a!b", "x" * 129, "new\nline", "\ud800", None, 3, b"x"])
async def test_names_that_are_none(world: World, name: Any) -> None:
    work = Counted()

    @tool(effect="read")
    async def order(ctx: ToolContext[Any]) -> str:
        with pytest.raises(UsageError):
            await ctx.step(name, work.note, "a")
        with pytest.raises(UsageError, match="is no function"):
            await ctx.step("fine", "note")  # type: ignore[call-overload]
        return await ctx.step("fine", work.note, "a")

    rt = await world.open()
    run = await rt.start(one(order), "Go")
    assert await told(run) == (False, "noted a")
    assert work.ran == ["note a"]


# --- mismatch ---------------------------------------------------------------------------------------------------------

MISMATCHES = ["function", "argument", "keyword", "one more"]


def changed(work: Counted, held: Stop, what: str | None, **options: Any) -> Any:
    """A tool whose step was called otherwise when it began."""

    @tool(effect="idempotent", **options)
    async def order(ctx: ToolContext[Any]) -> str:
        anew = held.passed > 0
        match what if anew else None:
            case None:
                value = await ctx.step("work", work.note, "tea")
            case "function":
                value = await ctx.step("work", work.pay, "tea")
            case "argument":
                value = await ctx.step("work", work.note, "coffee")
            case "keyword":
                value = await ctx.step("work", work.note, what="tea")
            case _:
                value = await ctx.step("work", lambda a, b: a + b, "tea", "cup")
        await held.arrive()
        return value

    return order


@pytest.mark.proves("T5", "T2")
@pytest.mark.parametrize("what", MISMATCHES)
async def test_a_step_that_is_now_another_puts_the_call_in_doubt(world: World, what: str) -> None:
    work, held = Counted(), Stop()
    run = await crashed(world, one(changed(work, held, what)), held)
    (ticket,) = await asked(run, "doubt")
    assert ticket.call == CALL
    (failed,) = of(await run.entries(), e.ToolFailed)
    assert (failed.class_, failed.source, failed.final) == ("step_mismatch", "doubt", False)
    assert work.ran == ["note tea"]
    await run.decide(ticket, Respond("said so"))
    assert await told(run) == (False, "said so")


@pytest.mark.proves("T5", "T2")
async def test_a_mismatch_that_is_approved_runs_from_the_start(world: World) -> None:
    work, held = Counted(), Stop()
    run = await crashed(world, one(changed(work, held, "function")), held)
    (ticket,) = await asked(run, "doubt")
    await run.decide(ticket, Approve())
    assert await world.passing(told(run)) == (False, "paid tea")
    assert work.ran == ["note tea", "pay tea"]


@pytest.mark.proves("T5", "T2")
async def test_a_body_cannot_talk_its_way_out_of_a_mismatch(world: World) -> None:
    work, held = Counted(), Stop()

    @tool(effect="idempotent", on_doubt="report")
    async def order(ctx: ToolContext[Any]) -> str:
        try:
            await ctx.step("work", work.note, "tea" if held.passed == 0 else "coffee")
            await held.arrive()
        except BaseException:  # noqa: BLE001
            return "all is well"
        return "done"

    run = await crashed(world, one(order), held)
    is_error, content = await told(run)
    assert is_error
    assert content.startswith("outcome unknown")
    assert work.ran == ["note tea"]


@pytest.mark.proves("T5", "T2")
async def test_a_body_that_will_not_leave_cannot_hold_up_a_mismatch(world: World) -> None:
    work, held, over = Counted(), Stop(), asyncio.Event()

    @tool(effect="idempotent", on_doubt="report")
    async def order(ctx: ToolContext[Any]) -> str:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await ctx.step("work", work.note, "tea" if held.passed == 0 else "coffee")
                await held.arrive()
        return "invented"

    actor = one(order)
    rt = await world.open(actor)
    await rt.start(actor, "Go", run_id="r")
    await held.reached()
    over.set()
    await world.kill(rt)
    over.clear()
    run = await (await world.open(actor, grace=0.05)).get("r")
    is_error, content = await told(run)
    over.set()
    assert is_error
    assert content.startswith("outcome unknown")
    assert work.ran == ["note tea"]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T5")
async def test_a_step_that_raised_is_tried_again_when_the_body_runs_again(world: World) -> None:
    ran = 0

    async def flaky() -> str:
        nonlocal ran
        ran += 1
        if ran == 1:
            raise ConnectionError("reset")
        return "through"

    @tool(effect="idempotent", retries=1)
    async def order(ctx: ToolContext[Any]) -> str:
        return await ctx.step("flaky", flaky)

    rt = await world.open()
    run = await rt.start(one(order), "Go")
    assert await world.passing(told(run)) == (False, "through")
    assert ran == 2


@pytest.mark.proves("T5")
@pytest.mark.parametrize(
    "error", [ToolError("no funds"), OSError("reset"), Fatal("over")], ids=lambda x: type(x).__name__
)
async def test_a_once_step_that_raised_raises_again_without_being_run(world: World, error: Exception) -> None:
    ran, heard, held = 0, [], Stop()

    async def pay() -> str:
        nonlocal ran
        ran += 1
        raise error

    @tool(effect="idempotent")
    async def order(ctx: ToolContext[Any]) -> str:
        try:
            await ctx.once_step("pay", pay)
        except Exception as raised:  # noqa: BLE001
            heard.append(raised)
        await held.arrive()
        return "went on"

    run = await crashed(world, one(order), held)
    assert await told(run) == (False, "went on")
    assert ran == 1
    assert heard[0] is error
    assert type(heard[1]) is (ToolError if isinstance(error, ToolError) else StepFailed)
    assert str(error) in str(heard[1])
    assert of(await run.entries(), e.StepRecorded)[0].error is not None


# --- notes ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T5", "J5")
async def test_a_note_is_an_entry_of_its_step_before_the_body_goes_on(world: World) -> None:
    @tool(effect="read")
    async def work(ctx: ToolContext[Any]) -> int:
        await ctx.note("quote", {"price": "9.90"})
        await ctx.note("bare")
        return len(of(await run.entries(), e.Noted))

    rt = await world.open()
    actor = one(work)
    held = gate_of(rt).hold(has("model_replied"))
    run = await rt.start(actor, "Go")
    held.let_go()
    assert await told(run) == (False, 2)
    notes = of(await run.entries(), e.Noted)
    assert [(x.step, x.note_kind, x.value) for x in notes] == [
        (CALL, "quote", {"price": "9.90"}),
        (CALL, "bare", None),
    ]


@pytest.mark.proves("T5", "T8")
@pytest.mark.parametrize(("kind", "value"), [("", 1), (3, 1), ("k", object()), ("\ud800", 1)])
async def test_notes_that_are_none(world: World, kind: Any, value: Any) -> None:
    @tool(effect="read")
    async def work(ctx: ToolContext[Any]) -> str:
        with pytest.raises((UsageError, ValueError)):
            await ctx.note(kind, value)
        return "ok"

    rt = await world.open()
    run = await rt.start(one(work), "Go")
    assert await told(run) == (False, "ok")
    assert of(await run.entries(), e.Noted) == []
