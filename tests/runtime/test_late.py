"""T7, T11: what comes late is evidence: from threads that nobody waits for, and from owners before. And retries."""

import asyncio
import threading
from typing import Any

import pytest

from clew import Approve, Middleware, Respond, ToolContext, ToolError, ToolOutput, tool
from clew.core import entries as e
from clew.errors import Conflict, UsageError
from clew.testing import ScriptedModel, call
from clew.tools import Done, NotDone, Unknown
from tests.runtime.test_doubt import CALL, findings, told
from tests.runtime.world import (
    LEASE,
    Stop,
    World,
    agent,
    asked,
    becomes,
    gate_of,
    has,
    look,
    of,
    seen,
)


class Stale:
    """A driver whose result is held before its commit while a second process takes the run over."""

    def __init__(self, *, fails: bool = False, **options: Any) -> None:
        self.ran = 0
        self.fails = fails

        @tool(effect="once", **options)
        async def pay() -> str:
            self.ran += 1
            if fails:
                raise ToolError("no funds")
            return "paid"

        self.agent = agent([[call("pay")], "Done."], pay)

    async def taken_over(self, world: World) -> Any:
        first = await world.open(self.agent, drive=False)
        self.commit = gate_of(first).hold(has("tool_failed") if self.fails else has("tool_returned"))
        await first.start(self.agent, "Go", run_id="r")
        self.driving = asyncio.create_task(first.drive("r"))
        await self.commit.reached()
        await world.clock.advance(LEASE + 0.5)
        self.second = await world.open(self.agent)
        return await self.second.get("r")

    async def speaks(self) -> None:
        self.commit.let_go()
        await self.driving


@pytest.mark.proves("T11")
async def test_a_late_result_closes_an_open_doubt(world: World) -> None:
    stale = Stale()
    run = await stale.taken_over(world)
    await seen(run, "driver_attached", "driver_attached")
    await world.clock.advance(1)
    (ticket,) = await asked(run, "doubt")
    await stale.speaks()
    assert await told(run) == (False, "paid")
    assert await findings(run) == [("late", "done", "late_result")]
    assert [x.source for x in of(await run.entries(), e.ToolReturned)] == ["late"]
    assert [(x.ticket, x.why) for x in of(await run.entries(), e.TicketClosed)] == [(CALL, "withdrawn")]
    with pytest.raises(Conflict):
        await run.decide(ticket, Approve())
    assert stale.ran == 1


@pytest.mark.proves("T11")
@pytest.mark.parametrize("on_doubt", ["ask", "report", "retry"])
async def test_a_late_result_settles_a_doubt_that_is_waited_out(world: World, on_doubt: Any) -> None:
    stale = Stale(on_doubt=on_doubt)
    run = await stale.taken_over(world)
    await seen(run, "driver_attached", "driver_attached")
    await stale.speaks()
    assert await told(run) == (False, "paid")
    assert await findings(run) == [("late", "done", "late_result")]
    assert of(await run.entries(), e.TicketOpened) == []
    assert stale.ran == 1


@pytest.mark.proves("T11")
async def test_a_late_failure_that_is_known_settles_it_too(world: World) -> None:
    stale = Stale(fails=True)
    run = await stale.taken_over(world)
    await seen(run, "driver_attached", "driver_attached")
    await stale.speaks()
    is_error, content = await told(run)
    assert is_error
    assert "no funds" in content
    assert stale.ran == 1


@pytest.mark.proves("T11")
async def test_a_late_result_of_a_call_that_was_told_unknown_is_recorded(world: World) -> None:
    held = Stop()
    stale = Stale(on_doubt="report")
    script = ScriptedModel([[call("pay")], "Done."])
    stale.agent = stale.agent.replace(model=Slowly(script, held))
    run = await stale.taken_over(world)
    await seen(run, "driver_attached", "driver_attached")
    await world.clock.advance(1)
    await held.reached()
    await stale.speaks()
    (late,) = of(await seen(run, "late_result_received"), e.LateResultReceived)
    assert (late.call, late.value, late.from_epoch) == (CALL, "paid", 1)
    held.let_go()
    assert (await told(run))[1].startswith("outcome unknown")
    assert await findings(run) == [("policy", "unknown", "report")]


class Slowly:
    """A model that is held before its second reply."""

    name = "slowly"

    def __init__(self, model: Any, held: Stop) -> None:
        self._model, self._held = model, held

    async def stream(self, request: Any, /) -> Any:
        if request.ordinal:
            await self._held.arrive()
        async for piece in self._model.stream(request):
            yield piece


# --- threads that end later -------------------------------------------------------------------------------------------


class Blocking:
    """A sync `once` tool that is out of time at once, and ends when it is let go."""

    def __init__(self, outcome: Any = "paid", **options: Any) -> None:
        self.ran = 0
        self.go = threading.Event()

        @tool(effect="once", timeout=0.05, **options)
        def pay() -> str:
            self.ran += 1
            if self.ran > 1:
                return "paid again"
            self.go.wait(30)
            if isinstance(outcome, BaseException):
                raise outcome
            return str(outcome)

        self.held = Stop()
        model = Slowly(ScriptedModel([[call("pay")], "Done."]), self.held)
        self.agent = agent(model, pay)


@pytest.mark.proves("T7", "T11", "T2")
async def test_a_thread_that_ends_before_anybody_was_asked_gives_the_result(world: World) -> None:
    work = Blocking()
    rt = await world.open()
    run = await rt.start(work.agent, "Go", run_id="r")
    work.held.let_go()
    (failed,) = of(await seen(run, "tool_failed"), e.ToolFailed)
    assert (failed.class_, failed.final, failed.source) == ("timeout", False, "doubt")
    assert of(await run.entries(), e.TicketOpened) == []
    work.go.set()
    assert await told(run) == (False, "paid")
    assert await findings(run) == [("late", "done", "late_result")]
    assert (work.ran, of(await run.entries(), e.TicketOpened)) == (1, [])


@pytest.mark.proves("T7", "T11", "T2")
async def test_a_thread_is_waited_out_and_its_end_closes_the_ticket(world: World) -> None:
    work = Blocking()
    rt = await world.open()
    run = await rt.start(work.agent, "Go", run_id="r")
    work.held.let_go()
    await seen(run, "tool_failed")
    await becomes(rt, "r", lambda row: row.status == "waiting")
    assert (await run.info()).reasons == ("timer",)
    await world.clock.advance(LEASE + 1)
    (ticket,) = await asked(run, "doubt")
    work.go.set()
    assert await told(run) == (False, "paid")
    with pytest.raises(Conflict):
        await run.decide(ticket, Approve())
    assert work.ran == 1


@pytest.mark.proves("T7", "T11")
@pytest.mark.parametrize("on_doubt", ["report", "retry"])
async def test_nothing_runs_beside_a_thread_that_may_be_at_it_yet(world: World, on_doubt: Any) -> None:
    work = Blocking(on_doubt=on_doubt)
    rt = await world.open()
    run = await rt.start(work.agent, "Go", run_id="r")
    await seen(run, "tool_failed")
    await world.clock.advance(LEASE)
    assert work.ran == 1
    assert await findings(run) == []
    await world.passing(work.held.reached())
    work.go.set()
    if on_doubt == "report":
        (late,) = of(await seen(run, "late_result_received"), e.LateResultReceived)
        assert (late.call, late.value) == (CALL, "paid")
    work.held.let_go()
    is_error, content = await told(run)
    assert (is_error, content[:15]) == ((True, "outcome unknown") if on_doubt == "report" else (False, "paid again"))


@pytest.mark.proves("T7", "T11")
@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_thread_says_late_is_seen_by_middleware_before_any_model(world: World, *, fails: bool) -> None:
    class Discreet(Middleware):
        async def after_tool(self, ctx: Any, call: Any, output: Any) -> ToolOutput:
            if fails:
                raise ValueError("not to be shown")
            return ToolOutput("withheld")

    work = Blocking("secret")
    work.held.let_go()
    rt = await world.open()
    run = await rt.start(work.agent.replace(middleware=[Discreet()]), "Go", run_id="r")
    await seen(run, "tool_failed")
    await becomes(rt, "r", lambda row: row.status == "waiting")
    work.go.set()
    if fails:
        await asyncio.sleep(0.05)
        await world.clock.advance(LEASE + 1)
        (ticket,) = await asked(run, "doubt")
        await run.decide(ticket, Respond("withheld"))
    assert await told(run) == (False, "withheld")
    assert "secret" not in repr(await run.entries())


@pytest.mark.proves("T7", "T2")
async def test_an_async_body_that_is_out_of_time_has_ended_and_is_asked_about_at_once(world: World) -> None:
    unwound: list[str] = []

    @tool(effect="once", timeout=0.05, verify=lambda _ctx: Done("receipt 7"))
    async def pay() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            unwound.append("pay")
        return "never"

    rt = await world.open()
    run = await rt.start(agent([[call("pay")], "Done."], pay), "Go", run_id="r")
    assert await told(run) == (False, "receipt 7")
    assert unwound == ["pay"]
    assert await findings(run) == [("verify", "done", "verify")]


# --- retries ----------------------------------------------------------------------------------------------------------


class Flaky:
    """A `once` tool that raises what it is told, one each attempt."""

    def __init__(self, *errors: BaseException, **options: Any) -> None:
        self.attempts: list[tuple[str, int]] = []

        @tool(effect="once", **options)
        async def pay(ctx: ToolContext[Any]) -> str:
            self.attempts.append((ctx.idempotency_key, ctx.attempt))
            if len(self.attempts) <= len(errors):
                raise errors[len(self.attempts) - 1]
            return "paid"

        self.agent = agent([[call("pay"), call("look")], "Done."], pay, look)

    async def run(self, world: World) -> Any:
        rt = await world.open()
        run = await rt.start(self.agent, "Go", run_id="r")
        await world.passing(run.result())
        return run


RETRIED: dict[str, tuple[BaseException, dict[str, Any]]] = {
    "it says so": (ToolError("come again", retry=True), {"retry_on": (KeyError,)}),
    "it is named": (ConnectionError("reset"), {"retry_on": (ConnectionError,)}),
    "it did not happen": (ConnectionError("reset"), {"verify": lambda _ctx: NotDone()}),
}


@pytest.mark.proves("T7", "T1", "T2")
@pytest.mark.parametrize("why", RETRIED)
async def test_an_attempt_that_cannot_have_happened_is_tried_again(world: World, why: str) -> None:
    error, options = RETRIED[why]
    flaky = Flaky(error, error, retries=2, **options)
    run = await flaky.run(world)
    assert await told(run) == (False, "paid")
    assert flaky.attempts == [("r:1.tool.1", n) for n in (1, 2, 3)]
    entries = await run.entries()
    assert [x.attempt for x in of(entries, e.ToolStarted)] == [1, 2, 3]
    for failed, started in zip(of(entries, e.ToolFailed), of(entries, e.ToolStarted)[1:], strict=True):
        assert not failed.final
        assert started.at > failed.at  # after a pause


@pytest.mark.proves("T7", "T2")
@pytest.mark.parametrize("why", RETRIED)
async def test_no_more_often_than_declared(world: World, why: str) -> None:
    error, options = RETRIED[why]
    flaky = Flaky(*[error] * 5, retries=1, on_doubt="report", **options)
    run = await flaky.run(world)
    is_error, content = await told(run)
    assert is_error
    assert str(error) in content
    assert len(flaky.attempts) == 2
    if why == "it did not happen":
        assert "outcome unknown" not in content  # it is known


NOT_RETRIED: dict[str, tuple[BaseException, dict[str, Any]]] = {
    "a plain tool error": (ToolError("no funds"), {"retry_on": (ConnectionError,)}),
    "another exception": (OSError("reset"), {"retry_on": (ConnectionError,)}),
    "it happened": (OSError("reset"), {"verify": lambda _ctx: Done("receipt 7")}),
    "nobody knows": (OSError("reset"), {"verify": lambda _ctx: Unknown()}),
    "an exit": (SystemExit(3), {"retry_on": (Exception,)}),
}


@pytest.mark.proves("T7", "T2", "T8")
@pytest.mark.parametrize("why", NOT_RETRIED)
async def test_nothing_else_is_tried_again(world: World, why: str) -> None:
    error, options = NOT_RETRIED[why]
    flaky = Flaky(error, retries=3, on_doubt="report", **options)
    run = await flaky.run(world)
    is_error, content = await told(run)
    assert len(flaky.attempts) == 1
    expected = {"a plain tool error": "no funds", "it happened": "receipt 7"}
    assert content.startswith(expected.get(why, "outcome unknown"))
    assert is_error is (why != "it happened")


@pytest.mark.proves("T7")
def test_retries_that_could_repeat_what_happened_are_refused_at_definition() -> None:
    with pytest.raises(UsageError, match=r"give verify= or retry_on="):

        @tool(effect="once", retries=1)
        def pay() -> str:
            return "paid"


@pytest.mark.proves("T2", "T7")
async def test_an_exception_opens_a_ticket_and_approval_is_an_attempt_more(world: World) -> None:
    flaky = Flaky(OSError("reset"))
    run = await flaky.run(world)
    (ticket,) = await asked(run, "doubt")
    await run.decide(ticket, Approve())
    await world.passing(run.result(until="done"))
    assert await told(run) == (False, "paid")
    assert flaky.attempts == [("r:1.tool.1", 1), ("r:1.tool.1", 2)]


@pytest.mark.proves("T2", "T7")
async def test_each_doubt_of_a_call_has_a_ticket_of_its_own(world: World) -> None:
    flaky = Flaky(OSError("reset"), OSError("reset again"))
    run = await flaky.run(world)
    for name in (CALL, f"{CALL}~2"):
        (ticket,) = await world.passing(asked(run, "doubt"))
        assert ticket.id == name
        await run.decide(ticket, Approve())
    await world.passing(run.result(until="done"))
    assert await told(run) == (False, "paid")
    assert [n for _, n in flaky.attempts] == [1, 2, 3]
