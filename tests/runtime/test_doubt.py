"""T2, T11: nobody knows whether a `once` call happened. Who is asked, when, and what each answer leads to."""

import asyncio
import threading
from typing import Any

import pytest

from clew import Approve, Edit, Reject, Respond, ToolContext, tool
from clew.app import Run
from clew.core import entries as e
from clew.errors import AlreadyDecided, Conflict, UsageError
from clew.runtime import verifying
from clew.testing import ScriptedModel, call, crash_points
from clew.tools import Done, NotDone, Unknown
from tests.runtime.world import (
    LEASE,
    Stop,
    World,
    agent,
    asked,
    becomes,
    check_run,
    gate_of,
    look,
    of,
    results,
    seen,
)

CALL = "1.tool.1"


class Payer:
    """A `once` tool that is held in its first attempt, what it did, and what it said when asked."""

    def __init__(self, answer: Any = None, **options: Any) -> None:
        self.keys: list[tuple[str, int]] = []
        self.decisions: list[Any] = []
        self.asked: list[ToolContext[Any]] = []
        self.held = Stop()
        self.answer = answer

        async def verify(ctx: ToolContext[Any]) -> Any:
            self.asked.append(ctx)
            return self.answer(ctx) if callable(self.answer) else self.answer

        if answer is not None:
            options = {"verify": verify, **options}

        @tool(effect="once", **options)
        async def pay(ctx: ToolContext[Any], bill: str) -> str:
            self.keys.append((ctx.idempotency_key, ctx.attempt))
            self.decisions.append(ctx.decision)
            if len(self.keys) == 1:
                await self.held.arrive()
            return f"paid {bill}"

        self.model = ScriptedModel([[call("pay", {"bill": "a"}), call("look")], "Done."])
        self.agent = agent(self.model, pay, look)

    async def crashed(self, world: World, *, lapse: bool = True) -> Run[Any]:
        """The run, taken up by a second process after the first has died in the body."""
        rt = await world.open(self.agent)
        await rt.start(self.agent, "Go", run_id="r")
        await self.held.reached()
        await world.kill(rt, lapse=lapse)
        return await (await world.open(self.agent)).get("r")


async def findings(run: Run[Any]) -> list[tuple[str, str, str]]:
    return [(x.how, x.finding, x.rule) for x in of(await run.entries(), e.DoubtResolved)]


async def told(run: Run[Any], step: str = CALL) -> tuple[bool, Any]:
    """What the model was told, after the run has ended as every run must."""
    result = await run.result(until="done")
    assert result.text == "Done."
    await check_run(run)
    found = results(result.messages)[step]
    return found.is_error, found.content


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("T2")
@pytest.mark.parametrize("on_doubt", ["ask", "report", "retry"])
async def test_what_happened_is_the_result_and_nothing_runs_again(world: World, on_doubt: Any) -> None:
    payer = Payer(Done("receipt 7"), on_doubt=on_doubt)
    run = await payer.crashed(world)
    assert await told(run) == (False, "receipt 7")
    assert await findings(run) == [("verify", "done", "verify")]
    assert [x.source for x in of(await run.entries(), e.ToolReturned) if x.call == CALL] == ["verify"]
    assert payer.keys == [("r:1.tool.1", 1)]
    (ctx,) = payer.asked
    assert (ctx.idempotency_key, ctx.call_id, ctx.step_id, ctx.tool) == ("r:1.tool.1", CALL, CALL, "pay")
    assert (dict(ctx.args), ctx.run_id, ctx.attempt) == ({"bill": "a"}, "r", 1)


@pytest.mark.proves("T2", "T1")
@pytest.mark.parametrize("on_doubt", ["ask", "report", "retry"])
async def test_what_did_not_happen_runs_again_as_the_next_attempt_with_the_same_key(
    world: World, on_doubt: Any
) -> None:
    payer = Payer(NotDone(), on_doubt=on_doubt)
    run = await payer.crashed(world)
    assert await told(run) == (False, "paid a")
    assert await findings(run) == [("verify", "not_done", "verify"), ("verify", "not_done", "retry")]
    assert payer.keys == [("r:1.tool.1", 1), ("r:1.tool.1", 2)]
    started = of(await run.entries(), e.ToolStarted)
    assert [(x.attempt, x.key) for x in started] == [(1, "r:1.tool.1"), (2, "r:1.tool.1")]
    assert len(payer.asked) == 1


def raising(_ctx: object) -> Any:
    raise ConnectionError("the bank does not answer")


ODD_ANSWERS: dict[str, Any] = {
    "unknown": Unknown(),
    "raises": raising,
    "says yes": True,
    "says nothing": lambda _ctx: None,
    "exits": lambda _ctx: (_ for _ in ()).throw(SystemExit(3)),
}


@pytest.mark.proves("T2")
@pytest.mark.parametrize("answer", ODD_ANSWERS)
async def test_whoever_does_not_know_leaves_it_to_what_was_declared(world: World, answer: str) -> None:
    payer = Payer(ODD_ANSWERS[answer], on_doubt="report")
    run = await payer.crashed(world)
    is_error, content = await told(run)
    assert is_error
    assert content.startswith("outcome unknown")
    assert await findings(run) == [("verify", "unknown", "verify"), ("policy", "unknown", "report")]
    assert len(payer.keys) == len(payer.asked) == 1


@pytest.mark.proves("T2")
@pytest.mark.parametrize("form", ["async", "sync"])
async def test_a_verify_that_hangs_does_not_know(world: World, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "LONGEST", 0.05)
    never = threading.Event()

    async def hang(_ctx: object) -> Any:
        await asyncio.Event().wait()

    def block(_ctx: object) -> Any:
        never.wait(30)

    payer = Payer(on_doubt="report", verify=hang if form == "async" else block)
    run = await payer.crashed(world)
    assert (await told(run))[1].startswith("outcome unknown")
    assert await findings(run) == [("verify", "unknown", "verify"), ("policy", "unknown", "report")]
    never.set()


@pytest.mark.proves("T2")
async def test_a_sync_verify_is_asked_in_a_thread(world: World) -> None:
    threads: list[int] = []

    def verify(_ctx: object) -> Any:
        threads.append(threading.get_ident())
        return Done("receipt 7")

    payer = Payer(verify=verify)
    run = await payer.crashed(world)
    assert await told(run) == (False, "receipt 7")
    assert threads != [threading.get_ident()]


# --- what was declared ------------------------------------------------------------------------------------------------


@pytest.mark.proves("T2")
async def test_a_doubt_is_reported_or_tried_again_where_that_was_declared(world: World) -> None:
    payer = Payer(on_doubt="report")
    run = await payer.crashed(world)
    assert (await told(run))[1].startswith("outcome unknown")
    assert await findings(run) == [("policy", "unknown", "report")]
    assert len(payer.keys) == 1


@pytest.mark.proves("T2", "T1")
async def test_a_retry_in_doubt_is_the_next_attempt_with_the_same_key(world: World) -> None:
    payer = Payer(on_doubt="retry")
    run = await payer.crashed(world)
    assert await told(run) == (False, "paid a")
    assert await findings(run) == [("policy", "unknown", "retry")]
    assert payer.keys == [("r:1.tool.1", 1), ("r:1.tool.1", 2)]


@pytest.mark.proves("T2", "W1", "W9")
async def test_a_ticket_asks_by_default(world: World) -> None:
    payer = Payer()
    run = await payer.crashed(world)
    (ticket,) = await asked(run, "doubt")
    assert (ticket.id, ticket.ref, ticket.call, ticket.tool) == (CALL, "r/1.tool.1", CALL, "pay")
    assert (ticket.action, ticket.args, ticket.expires_at) == ("tool:pay", {"bill": "a"}, None)
    assert "pay" in ticket.prompt
    assert (await run.result()).reason == "doubt"
    assert (await run.info()).reasons == ("doubt",)
    assert (await gate_of(run._runtime).lease("r")).owner is None  # whoever waits holds nothing
    assert results((await run.result()).messages) == {}  # the siblings' results wait for their place


DECISIONS: dict[str, tuple[Any, tuple[str, str, str], bool, Any]] = {
    "approve": (Approve(), ("decision", "not_done", "retry"), False, "paid a"),
    "reject": (Reject("the bank says no"), ("decision", "not_done", "reject"), True, "the bank says no"),
    "reject silently": (Reject(), ("decision", "not_done", "reject"), True, "it did not happen"),
    "respond": (Respond({"receipt": 7}), ("decision", "done", "respond"), False, {"receipt": 7}),
}


@pytest.mark.proves("T2", "W2", "W3")
@pytest.mark.parametrize("decided", DECISIONS)
async def test_a_person_says_what_happened(world: World, decided: str) -> None:
    decision, finding, is_error, content = DECISIONS[decided]
    payer = Payer()
    run = await payer.crashed(world)
    (ticket,) = await asked(run, "doubt")
    closed = await run.decide(ticket, decision, by="ann")
    assert (closed.decision, closed.decided_by) == (decision, "ann")
    assert await told(run) == (is_error, content)
    assert await findings(run) == [finding]
    again = decided == "approve"
    assert payer.keys == [("r:1.tool.1", n) for n in ([1, 2] if again else [1])]
    assert payer.decisions == ([None, Approve()] if again else [None])
    assert [x.by for x in of(await run.entries(), e.DecisionMade)] == ["ann"]


@pytest.mark.proves("W2")
async def test_a_doubt_cannot_be_edited(world: World) -> None:
    payer = Payer()
    run = await payer.crashed(world)
    (ticket,) = await asked(run, "doubt")
    with pytest.raises(UsageError, match="doubt"):
        await run.decide(ticket, Edit({"bill": "b"}))
    assert await asked(run, "doubt") == [ticket]
    assert of(await run.entries(), e.DecisionMade) == []


@pytest.mark.proves("T2", "W2", "W6")
@pytest.mark.parametrize("on_expire", ["reject", "approve"])
async def test_a_doubt_that_nobody_answers_in_time_is_reported(world: World, on_expire: Any) -> None:
    payer = Payer(expires=60, on_expire=on_expire)
    run = await payer.crashed(world)
    (ticket,) = await asked(run, "doubt")
    assert ticket.expires_at == ticket.opened_at + 60_000_000
    await world.clock.advance(61)
    assert (await told(run))[1].startswith("outcome unknown")
    assert await findings(run) == [("policy", "unknown", "report")]
    closed = of(await run.entries(), e.TicketClosed)
    assert [(x.ticket, x.why, x.applied) for x in closed] == [(CALL, "expired", "report")]
    with pytest.raises(Conflict):
        await run.decide(ticket, Approve())


@pytest.mark.proves("T2", "W6")
async def test_a_doubt_that_nobody_answers_in_time_may_end_the_run(world: World) -> None:
    payer = Payer(expires=60, on_expire="cancel")
    run = await payer.crashed(world)
    (ticket,) = await asked(run, "doubt")
    await world.clock.advance(61)
    result = await run.result(until="done")
    assert (result.reason, f"ticket {ticket.id} expired" in result.detail) == ("cancelled", True)


@pytest.mark.proves("T2", "W6")
async def test_a_doubt_that_nobody_answers_in_time_may_be_asked_again_without_an_end(world: World) -> None:
    payer = Payer(expires=60, on_expire="escalate")
    run = await payer.crashed(world)
    await asked(run, "doubt")
    await world.clock.advance(61)
    await becomes(run._runtime, run.id, lambda info: info.tickets == (f"{CALL}~2",) and info.status == "waiting")
    (again,) = (await run.result()).tickets
    assert (again.kind, again.reason, again.expires_at) == ("doubt", "escalated", None)
    await run.decide(again, Respond("receipt 7"), by="ann")
    assert await told(run) == (False, "receipt 7")
    assert len(payer.keys) == 1


@pytest.mark.proves("T2", "W3")
async def test_a_doubt_survives_the_death_of_everybody_and_is_decided_while_nobody_lives(world: World) -> None:
    payer = Payer()
    run = await payer.crashed(world)
    (ticket,) = await asked(run, "doubt")
    await world.kill(run._runtime)
    desk = await world.open(drive=False)
    await desk.decide(ticket.ref, Respond("receipt 7"), by="ann")
    with pytest.raises(AlreadyDecided, match="ann"):
        await desk.decide(ticket.ref, Approve())
    await desk.close()
    run = await (await world.open(payer.agent)).get("r")
    assert await told(run) == (False, "receipt 7")
    assert len(payer.keys) == 1


# --- waiting out the old owner ----------------------------------------------------------------------------------------


@pytest.mark.proves("T11")
@pytest.mark.parametrize(("limit", "over"), [(None, LEASE), (120.0, 120.0)])
@pytest.mark.parametrize("what", ["verify", "ask", "report", "retry"])
async def test_a_doubt_waits_until_its_owner_must_be_done(
    world: World, limit: float | None, over: float, what: Any
) -> None:
    """The clock stands still between the intent and the kill."""
    declared: Any = {"timeout": limit} | ({} if what == "verify" else {"on_doubt": what})
    payer = Payer(Done("receipt 7") if what == "verify" else None, **declared)
    run = await payer.crashed(world, lapse=False)
    began = of(await run.entries(), e.ToolStarted)[0].at
    await world.clock.advance(LEASE + 0.5)
    await seen(run, "driver_attached", "driver_attached")
    if over > LEASE:
        await world.clock.advance(over - LEASE)
    assert world.clock.now() == began + int((over + 0.5) * 1_000_000)
    assert (payer.asked, len(payer.keys)) == ([], 1)
    assert of(await run.entries(), e.DoubtResolved) == []
    assert of(await run.entries(), e.TicketOpened) == []
    await world.clock.advance(0.5)
    if what == "ask":
        await asked(run, "doubt")
    else:
        await told(run)
        assert await findings(run)


@pytest.mark.proves("T11", "R1")
async def test_an_owner_that_is_known_to_be_dead_is_not_waited_for(world: World) -> None:
    payer = Payer(Done("receipt 7"), timeout=3600)
    rt = await world.open(payer.agent)
    await rt.start(payer.agent, "Go", run_id="r")
    await payer.held.reached()
    await world.kill(rt, lapse=False)
    second = world.runtime(payer.agent)

    async def gone(_owner: object) -> bool:
        return True

    second.store.is_gone = gone  # type: ignore[method-assign]
    await second.open()
    run = await second.get("r")
    await world.clock.advance(LEASE)
    assert await told(run) == (False, "receipt 7")
    assert await findings(run) == [("verify", "done", "verify")]


# --- crash at every point ---------------------------------------------------------------------------------------------


class Bank:
    """Books beyond the store: what was paid, under which keys."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def check(self) -> list[str]:
        return [f"{key} was paid {self.paid.count(key)} times" for key in set(self.paid) if self.paid.count(key) != 1]


def paying(bank: Bank, **options: Any) -> Any:
    @tool(effect="once", **options)
    async def pay(ctx: ToolContext[Any], bill: str) -> str:
        bank.paid.append(ctx.idempotency_key)
        await asyncio.sleep(0)
        return f"paid {bill}"

    return agent([[call("pay", {"bill": "a"}), call("pay", {"bill": "b"})], [call("pay", {"bill": "c"})], "Done."], pay)


@pytest.mark.proves("T2", "T1")
async def test_with_verify_a_crash_anywhere_changes_nothing_and_pays_nothing_twice(world: World) -> None:
    bank = Bank()

    def verify(ctx: ToolContext[Any]) -> Any:
        return Done(f"paid {ctx.args['bill']}") if ctx.idempotency_key in bank.paid else NotDone()

    payer = paying(bank, verify=verify)
    report = await crash_points(payer, "Go", store=world.fresh, reset=bank.paid.clear, check=bank.check)
    assert report.ok, report
    assert report.points > 12


@pytest.mark.proves("T2", "W3")
@pytest.mark.parametrize("answer", ["respond", "reject", "approve what did not happen"])
async def test_with_somebody_who_knows_a_crash_anywhere_pays_nothing_twice(world: World, answer: str) -> None:
    bank = Bank()

    async def decide(ticket: Any) -> Any:
        assert ticket.kind == "doubt"
        if f"{ticket.run_id}:{ticket.call}" in bank.paid:
            return Respond(f"paid {ticket.args['bill']}")
        return Approve() if answer.startswith("approve") else Reject() if answer == "reject" else Respond("trust me")

    report = await crash_points(
        paying(bank), "Go", store=world.fresh, reset=bank.paid.clear, check=bank.check, decide=decide
    )
    assert report.ok, report
    assert report.doubts > 0


@pytest.mark.proves("T2")
async def test_a_doubt_that_nobody_answers_waits_and_nothing_is_repeated(world: World) -> None:
    bank = Bank()
    report = await crash_points(paying(bank), "Go", store=world.fresh, reset=bank.paid.clear, check=bank.check)
    assert report.ok, report
    assert report.doubts > 0


@pytest.mark.proves("T2", "T7")
async def test_a_crash_anywhere_around_attempts_that_raise_pays_once_at_most(world: World) -> None:
    bank, tries = Bank(), 0

    async def verify(ctx: ToolContext[Any]) -> Any:
        return Done("paid") if ctx.idempotency_key in bank.paid else NotDone()

    @tool(effect="once", retries=2, verify=verify)
    async def pay(ctx: ToolContext[Any]) -> str:
        nonlocal tries
        tries += 1
        if tries % 2:
            raise ConnectionError("reset")
        bank.paid.append(ctx.idempotency_key)
        raise TimeoutError("no answer")

    payer = agent([[call("pay")], "Done."], pay)
    report = await crash_points(payer, "Go", store=world.fresh, reset=bank.paid.clear, check=bank.check)
    assert not report.repeated
    assert not report.wrong
