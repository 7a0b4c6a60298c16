"""W7: bodies that will not leave. None of them invents a result, stops its run from letting go, or spins."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from clew import Respond, ToolContext, tool
from clew.app import Run
from clew.core import entries as e
from clew.runtime import verbs
from clew.testing import call, crash_points
from tests.runtime.world import World, agent, asked, becomes, check_run, gate_of, has, of, results

CALL = "1.tool.1"
Wait = Callable[[ToolContext[Any]], Awaitable[Any]]

WAITS: dict[str, Wait] = {
    "ask": lambda ctx: ctx.ask("How much?"),
    "sleep": lambda ctx: ctx.sleep(60),
}


# --- bodies: each ends with "two" or "slept" once it has what it waits for, and is rude until then --------------------


async def swallows(ctx: ToolContext[Any], wait: Wait) -> Any:
    try:
        return await wait(ctx)
    except BaseException:  # noqa: BLE001
        return "invented"


async def swallows_and_goes_on(ctx: ToolContext[Any], wait: Wait) -> Any:
    with suppress(BaseException):
        return await wait(ctx)
    with suppress(BaseException):
        await ctx.note("invented", 1)
    with suppress(BaseException):
        await ctx.step("invented", str, 1)
    with suppress(BaseException):
        await ctx.ask("Invented?")
    return "invented"


async def tries_again(ctx: ToolContext[Any], wait: Wait) -> Any:
    for _ in range(6):
        with suppress(asyncio.CancelledError):
            return await wait(ctx)
    return "invented"


async def never_stops_trying(ctx: ToolContext[Any], wait: Wait) -> Any:
    while not Tries.over:
        with suppress(asyncio.CancelledError):
            return await wait(ctx)
        Tries.count += 1
    return "invented"


async def returns_in_finally(ctx: ToolContext[Any], wait: Wait) -> Any:
    got: Any = "invented"
    try:
        got = await wait(ctx)
    finally:
        return got  # noqa: B012


async def raises_in_finally(ctx: ToolContext[Any], wait: Wait) -> Any:
    got: Any = None
    try:
        got = await wait(ctx)
    finally:
        if got is None and ctx.letting_go:
            raise OSError("invented")
    return got


async def awaits_in_finally(ctx: ToolContext[Any], wait: Wait) -> Any:
    try:
        return await wait(ctx)
    finally:
        await asyncio.sleep(0.01)
        with suppress(BaseException):
            await ctx.note("invented", 1)


async def shields(ctx: ToolContext[Any], wait: Wait) -> Any:
    try:
        return await asyncio.shield(wait(ctx))
    except asyncio.CancelledError:
        return "invented"


async def shields_a_task(ctx: ToolContext[Any], wait: Wait) -> Any:
    asking = asyncio.ensure_future(wait(ctx))
    while not asking.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([asyncio.shield(asking)], timeout=0.02)
            if ctx.letting_go:
                asking.cancel()
    return "invented" if asking.cancelled() else asking.result()


async def nests_groups(ctx: ToolContext[Any], wait: Wait) -> Any:
    async def inner() -> Any:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(swallows(ctx, wait))
            group.create_task(asyncio.sleep(0.01))
        return asking.result()

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(inner())
    return asking.result()


async def gathers(ctx: ToolContext[Any], wait: Wait) -> Any:
    got = await asyncio.gather(
        asyncio.gather(wait(ctx), asyncio.sleep(0.01)), asyncio.sleep(0.02), return_exceptions=True
    )
    return "invented" if isinstance(got[0], BaseException) else got[0][0]


async def wraps_in_a_timeout(ctx: ToolContext[Any], wait: Wait) -> Any:
    try:
        async with asyncio.timeout(30):
            return await wait(ctx)
    except (TimeoutError, asyncio.CancelledError):
        return "invented"


async def leaves_it_to_a_task(ctx: ToolContext[Any], wait: Wait) -> Any:
    """A task that outlives the body, and asks on."""
    kept = asyncio.ensure_future(tries_again(ctx, wait))
    try:
        return await kept
    except asyncio.CancelledError:
        return "invented"


class Tries:
    """Of the body that never stops, except when its test is over: an event loop waits for all its tasks."""

    count = 0
    over = False


@pytest.fixture(autouse=True)
async def tries() -> AsyncIterator[None]:
    Tries.count, Tries.over = 0, False
    yield
    Tries.over = True


BODIES = [
    swallows,
    swallows_and_goes_on,
    tries_again,
    never_stops_trying,
    returns_in_finally,
    raises_in_finally,
    awaits_in_finally,
    shields,
    shields_a_task,
    nests_groups,
    gathers,
    wraps_in_a_timeout,
    leaves_it_to_a_task,
]


def rude(body: Any, wait: Wait, entered: list[int], effect: Any) -> Any:
    @tool(effect=effect)
    async def work(ctx: ToolContext[Any]) -> str:
        entered.append(len(entered))
        got = await body(ctx, wait)
        return "slept" if got is None else str(got)

    return agent([[call("work")], "Done."], work)


async def told(run: Run[Any]) -> tuple[bool, Any]:
    result = await run.result(until="done")
    assert result.text == "Done.", result
    await check_run(run)
    found = results(result.messages)[CALL]
    return found.is_error, found.content


@pytest.mark.proves("W7")
@pytest.mark.parametrize("effect", ["read", "once"])
@pytest.mark.parametrize("at", WAITS)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
async def test_no_body_invents_a_result_or_stops_its_run_from_letting_go(
    world: World, body: Any, at: str, effect: Any
) -> None:
    entered: list[int] = []
    rt = await world.open(rude(body, WAITS[at], entered, effect), grace=0.05)
    run = await rt.start(rt.agents["meteo"], "Go", run_id="r")
    row = await becomes(rt, "r", lambda row: row.status == "waiting")
    assert row.reasons == (("user_input",) if at == "ask" else ("timer",))
    assert (await rt.store.lease("r")).owner is None
    assert rt.driving == () or entered == [0]
    written = await run.entries()
    assert of(written, e.ToolReturned) == of(written, e.ToolFailed) == of(written, e.Noted) == []
    assert len(of(written, e.TicketOpened)) + len(of(written, e.TimerSet)) == 1
    if at == "ask":
        (ticket,) = await asked(run, "question")
        await run.decide(ticket, Respond("two"))
    else:
        await world.clock.advance(60)
    assert await told(run) == (False, "two" if at == "ask" else "slept")
    assert entered == [0, 1]
    assert of(await run.entries(), e.DoubtResolved) == []


@pytest.mark.proves("W7")
async def test_a_body_that_never_leaves_does_not_spin(world: World) -> None:
    """It is refused a few times a second at most, for as long as it lives."""
    rt = await world.open(rude(never_stops_trying, WAITS["ask"], [], "read"), grace=0.05)
    run = await rt.start(rt.agents["meteo"], "Go", run_id="r")
    await asked(run, "question")
    await asyncio.sleep(0.5)
    assert Tries.count <= 10
    assert verbs.DEAD_PAUSE * 2**10 > 0.5


@pytest.mark.proves("W7", "R3")
@pytest.mark.parametrize("effect", ["read", "once"])
async def test_a_body_that_never_leaves_does_not_stop_its_process_from_leaving(world: World, effect: Any) -> None:
    entered: list[int] = []
    actor = rude(never_stops_trying, WAITS["ask"], entered, effect)
    rt = await world.open(actor, grace=0.05)
    run = await rt.start(actor, "Go", run_id="r")
    (ticket,) = await asked(run, "question")
    async with asyncio.timeout(5):
        await rt.close()
    run = await (await world.open(actor)).get("r")
    await run.decide(ticket, Respond("two"))
    assert await told(run) == (False, "two")
    assert entered == [0, 1]


@pytest.mark.proves("W7")
@pytest.mark.parametrize("body", [swallows, returns_in_finally, nests_groups, gathers], ids=lambda body: body.__name__)
async def test_nothing_is_invented_while_the_store_takes_its_time(world: World, body: Any) -> None:
    rt = await world.open(rude(body, WAITS["ask"], [], "once"))
    opening = gate_of(rt).hold(has("ticket_opened"))
    run = await rt.start(rt.agents["meteo"], "Go", run_id="r")
    await opening.reached()
    await asyncio.sleep(0.05)
    opening.let_go()
    (ticket,) = await asked(run, "question")
    await run.decide(ticket, Respond("two"))
    assert await told(run) == (False, "two")


@pytest.mark.proves("W7")
async def test_a_body_whose_other_tasks_are_at_something_lets_go_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "LET_GO_AFTER", 0.05)
    cut: list[str] = []

    async def busy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.append("busy")

    @tool(effect="read")
    async def work(ctx: ToolContext[Any]) -> str:
        beside = asyncio.ensure_future(busy() if not cut else asyncio.sleep(0))
        try:
            return await ctx.ask("How much?")
        finally:
            beside.cancel()

    rt = await world.open(agent([[call("work")], "Done."], work))
    run = await rt.start(rt.agents["meteo"], "Go", run_id="r")
    (ticket,) = await asked(run, "question")
    await run.decide(ticket, Respond("two"))
    assert await told(run) == (False, "two")
    assert cut == ["busy"]


@pytest.mark.proves("W7", "T5")
async def test_a_step_under_way_is_not_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be in doubt: the body waits for it, however long it takes."""
    monkeypatch.setattr(verbs, "LET_GO_AFTER", 0.05)
    paid: list[str] = []

    async def pay() -> str:
        await asyncio.sleep(0.2)
        paid.append("tea")
        return "paid"

    @tool(effect="once")
    async def work(ctx: ToolContext[Any]) -> str:
        got = await asyncio.gather(ctx.ask("How much?"), ctx.once_step("pay", pay))
        return ", ".join(got)

    rt = await world.open(agent([[call("work")], "Done."], work))
    run = await rt.start(rt.agents["meteo"], "Go", run_id="r")
    (ticket,) = await asked(run, "question")
    assert paid == ["tea"]
    await run.decide(ticket, Respond("two"))
    assert await told(run) == (False, "two, paid")
    assert paid == ["tea"]
    assert of(await run.entries(), e.DoubtResolved) == []


FINITE = [body for body in BODIES if body is not never_stops_trying]


@pytest.mark.proves("W7", "T2")
@pytest.mark.parametrize("body", FINITE, ids=lambda body: body.__name__)
async def test_a_crash_anywhere_around_a_rude_body_changes_nothing(
    world: World, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read may be asked for again; a body that let go is in no doubt."""
    monkeypatch.setattr(verbs, "DEAD_PAUSE", 0.00002)
    monkeypatch.setattr(verbs, "LET_GO_AFTER", 0.05)

    async def twice(ctx: ToolContext[Any], _wait: Wait) -> Any:
        first = await body(ctx, WAITS["sleep"])
        return first, await body(ctx, WAITS["ask"])

    actor = rude(twice, WAITS["ask"], [], "read")
    # Not in the middle of a body: one that catches whatever ends it cannot be left behind in one process with the next.
    report = await crash_points(actor, "Go", store=world.fresh, decide=lambda _ticket: Respond("two"), awaits=False)
    assert report.ok, report
