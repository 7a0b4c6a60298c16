"""W1-W6: approvals. What a ticket says, what each decision does, what comes of it when nobody decides."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from clew import Approve, Edit, Reject, Respond, ToolContext, tool
from clew.app import Run
from clew.core import entries as e
from clew.errors import AlreadyDecided, Conflict, NotFound, UsageError
from clew.policy import ask, deny, gt
from clew.testing import call, crash_points
from tests.runtime.world import World, agent, asked, check_run, look, of, results, seen

CALL = "1.tool.1"


class Payer:
    """A tool that needs an approval, and what it did."""

    def __init__(self, *calls: Any, policy: Any = (), **options: Any) -> None:
        self.paid: list[int] = []
        self.decisions: list[Any] = []

        @tool(needs_approval=True, **{"effect": "once", **options})
        async def pay(ctx: ToolContext[Any], amount: Annotated[int, Field(ge=1)]) -> str:
            self.paid.append(amount)
            self.decisions.append(ctx.decision)
            return f"paid {amount}"

        replies = [list(reply) for reply in calls] or [[call("pay", {"amount": 50})]]
        self.agent = agent([*replies, "Done."], pay, look, policy=policy)

    async def start(self, world: World, **given: Any) -> Run[Any]:
        rt = await world.open(self.agent)
        return await rt.start(self.agent, "Go", **{"run_id": "r", **given})


def pay(amount: int = 50) -> Any:
    return call("pay", {"amount": amount})


async def told(run: Run[Any], step: str = CALL) -> tuple[bool, Any]:
    result = await run.result(until="done")
    assert result.text == "Done.", result
    await check_run(run)
    found = results(result.messages)[step]
    return found.is_error, found.content


# --- W1: what a ticket says -------------------------------------------------------------------------------------------


@pytest.mark.proves("W1", "W9", "R1")
async def test_a_ticket_says_what_is_asked_and_the_run_holds_nothing(world: World) -> None:
    payer = Payer([call("look"), pay()], expires=60)
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    assert (ticket.id, ticket.run_id, ticket.ref, ticket.call) == ("1.tool.2", "r", "r/1.tool.2", "1.tool.2")
    assert (ticket.kind, ticket.action, ticket.tool, ticket.args) == ("approval", "tool:pay", "pay", {"amount": 50})
    assert (ticket.thread_id, ticket.on_expire, ticket.expires_at) == ("r", "reject", ticket.opened_at + 60_000_000)
    assert ticket.args_digest
    assert ticket.schema is not None
    assert "amount" in ticket.schema["properties"]
    assert "pay" in ticket.prompt
    info = await run.info()
    assert (info.status, info.reasons) == ("waiting", ("tool_permission",))
    assert (await run._runtime.store.lease("r")).owner is None
    assert [x async for x in run._runtime.tickets(run_id="r")] == [ticket]
    assert payer.paid == []
    assert of(await run.entries(), e.ToolStarted) == []  # only a call that is about to start has an intent


@pytest.mark.proves("W1")
async def test_tickets_are_listed_by_call_and_ticket(world: World) -> None:
    payer = Payer([pay(1), pay(2), pay(3)])
    run = await payer.start(world)
    tickets = await asked(run, *["approval"] * 3)
    assert [x.id for x in tickets] == ["1.tool.1", "1.tool.2", "1.tool.3"]
    assert len({x.batch for x in of(await run.entries(), e.TicketOpened)}) == 1


@pytest.mark.proves("W1")
async def test_a_bare_id_that_several_runs_have_open_is_refused(world: World) -> None:
    payer = Payer()
    for name in ("a", "b"):
        await asked(await payer.start(world, run_id=name), "approval")
    desk = await world.open(drive=False)
    with pytest.raises(UsageError, match=r"a/1\.tool\.1, b/1\.tool\.1"):
        await desk.decide(CALL, Approve())
    assert (await desk.decide("a/1.tool.1", Approve())).run_id == "a"
    assert (await desk.decide(CALL, Approve())).run_id == "b"  # it is one run's alone by now
    for missing in ("1.tool.9", "a/1.tool.9", "nosuch/1.tool.1"):
        with pytest.raises((NotFound, Conflict)):
            await desk.decide(missing, Approve())


# --- W2: what a decision does -----------------------------------------------------------------------------------------

DECIDED: dict[str, tuple[Any, list[int], bool, Any]] = {
    "approve": (Approve(), [50], False, "paid 50"),
    "edit": (Edit({"amount": 7}), [7], False, "paid 7"),
    "reject": (Reject("not today"), [], True, "not today"),
    "reject silently": (Reject(), [], True, "this call was rejected"),
    "respond": (Respond({"paid": "by hand"}), [], False, {"paid": "by hand"}),
}


@pytest.mark.proves("W2", "W3")
@pytest.mark.parametrize("effect", ["read", "once"])
@pytest.mark.parametrize("decided", DECIDED)
async def test_what_a_decision_does(world: World, decided: str, effect: Any) -> None:
    decision, paid, is_error, content = DECIDED[decided]
    payer = Payer(effect=effect)
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    closed = await run.decide(ticket, decision, by="ann")
    assert (closed.decision, closed.decided_by) == (decision, "ann")
    assert await told(run) == (is_error, content)
    assert payer.paid == paid
    assert payer.decisions == [decision] * len(paid)
    entries = await run.entries()
    (made,) = of(entries, e.DecisionMade)
    assert (made.ticket, made.decision, made.by, made.decided_at) == (CALL, decision, "ann", made.at)
    started = [x.seq > made.seq for x in of(entries, e.ToolStarted)]
    assert started == ([True] if paid and effect == "once" else [])
    assert [x async for x in run._runtime.tickets(run_id="r")] == []


@pytest.mark.proves("W2", "W3")
@pytest.mark.parametrize("args", [{"amount": 0}, {"amount": "much"}, {}, {"amount": 1, "more": 2}, {"sum": 3}])
async def test_arguments_that_do_not_fit_are_refused_before_they_are_stored(world: World, args: Any) -> None:
    payer = Payer()
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    with pytest.raises(UsageError):
        await run.decide(ticket, Edit(args))
    assert await asked(run, "approval") == [ticket]
    await run.decide(ticket, Approve())
    assert await told(run) == (False, "paid 50")


@pytest.mark.proves("W2", "T10")
async def test_edited_arguments_are_judged_again_by_what_forbids(world: World) -> None:
    payer = Payer(policy=[deny("pay", "too much", amount=gt(100)), ask("pay")])
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    await run.decide(ticket, Edit({"amount": 500}))
    is_error, content = await told(run)
    assert is_error
    assert "too much" in content
    assert payer.paid == []
    judged = of(await run.entries(), e.CallJudged)
    assert [x.verdict for x in judged] == ["ask", "deny"]


@pytest.mark.proves("W2")
@pytest.mark.parametrize("decision", [None, "yes", True, {"kind": "approve"}, object()])
async def test_what_is_no_decision(world: World, decision: Any) -> None:
    payer = Payer()
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    with pytest.raises(UsageError, match="is no decision"):
        await run.decide(ticket, decision)
    assert await asked(run, "approval") == [ticket]


@pytest.mark.proves("W2", "T3")
async def test_decided_calls_go_on_at_once_while_the_others_wait(world: World) -> None:
    payer = Payer([pay(1), pay(2)])
    run = await payer.start(world)
    await asked(run, "approval", "approval")
    await run.decide("1.tool.2", Approve())
    await seen(run, "tool_returned")
    (left,) = await asked(run, "approval")
    assert (left.id, payer.paid) == (CALL, [2])
    await run.decide(left, Reject("no"))
    assert await told(run) == (True, "no")
    assert await told(run, "1.tool.2") == (False, "paid 2")


# --- W3: durable, from any process, once ------------------------------------------------------------------------------


@pytest.mark.proves("W3", "J2")
async def test_a_decision_is_made_while_no_worker_lives(world: World) -> None:
    payer = Payer()
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    await world.kill(run._runtime)
    desk = await world.open(drive=False)
    await desk.decide(ticket.ref, Approve(), by="ann")
    await desk.close()
    run = await (await world.open(payer.agent)).get("r")
    assert await told(run) == (False, "paid 50")


@pytest.mark.proves("W3")
async def test_the_first_decision_wins_and_the_same_one_may_come_again(world: World) -> None:
    payer = Payer([pay(1), pay(2)])
    run = await payer.start(world)
    (ticket, _) = await asked(run, "approval", "approval")
    first = await run.decide(ticket, Approve(), by="ann", decision_id="d1")
    assert await run.decide(ticket, Approve(), by="ann", decision_id="d1") == first
    for other in ("d2", None):
        with pytest.raises(AlreadyDecided, match="ann") as refused:
            await run.decide(ticket, Reject("no"), by="bob", decision_id=other)
        assert "approve" in str(refused.value).lower()
    await run.decide("1.tool.2", Approve())
    assert await told(run) == (False, "paid 1")
    assert sorted(payer.paid) == [1, 2]


# --- W4, W5: what an approval is bound to, and what is remembered -----------------------------------------------------


@pytest.mark.proves("W4")
async def test_an_approval_of_what_the_tool_was_is_none_of_what_it_is(world: World) -> None:
    payer = Payer()
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    await world.kill(run._runtime)
    desk = await world.open(drive=False)
    await desk.decide(ticket.ref, Approve())

    @tool(effect="once", needs_approval=True, name="pay")
    async def newer(amount: int, currency: str = "EUR") -> str:
        payer.paid.append(amount)
        return f"paid {amount} {currency}"

    run = await (await world.open(payer.agent.replace(tools=[newer, look]))).get("r")
    (again,) = await asked(run, "approval")
    assert (again.id, payer.paid) == (f"{CALL}~2", [])
    await run.decide(again, Approve())
    assert await told(run) == (False, "paid 50 EUR")


@pytest.mark.proves("W5")
@pytest.mark.parametrize("remember", [None, "run", "thread"])
async def test_what_is_remembered_passes_where_it_was_said_to(world: World, remember: Any) -> None:
    payer = Payer([pay()], [pay()], [pay(51)])
    run = await payer.start(world, thread_id="t")
    (ticket,) = await asked(run, "approval")
    await run.decide(ticket, Approve(remember=remember))
    (second,) = await asked(run, "approval")
    if remember is None:
        assert second.id == "2.tool.1"
        await run.decide(second, Approve())
        (second,) = await asked(run, "approval")
    assert (second.id, payer.paid) == ("3.tool.1", [50, 50])  # another amount is another action
    await run.decide(second, Approve())
    await told(run)
    other = await payer.start(world, run_id="s", thread_id="t")
    (ticket,) = await asked(other, "approval")
    assert ticket.args["amount"] == (51 if remember == "thread" else 50)


@pytest.mark.proves("W5", "T10")
async def test_what_is_remembered_does_not_pass_what_is_forbidden(world: World) -> None:
    payer = Payer([pay(5)], [pay(5)])
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    await world.kill(run._runtime)
    stricter = payer.agent.replace(policy=[deny("pay", "closed")])
    desk = await world.open(drive=False)
    await desk.decide(ticket.ref, Approve(remember="run"))
    run = await (await world.open(stricter)).get("r")
    is_error, content = await told(run, "2.tool.1")
    assert is_error
    assert "closed" in content


# --- W6: expiry -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("W2", "W6")
@pytest.mark.parametrize("on_expire", ["reject", "approve"])
async def test_what_happens_when_nobody_answers(world: World, on_expire: Any) -> None:
    payer = Payer(expires=60, on_expire=on_expire)
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    await world.clock.advance(59)
    assert await asked(run, "approval") == [ticket]
    await world.clock.advance(1)
    is_error, content = await told(run)
    assert (is_error, payer.paid) == ((True, []) if on_expire == "reject" else (False, [50]))
    assert "in time" in content if on_expire == "reject" else content == "paid 50"
    closed = of(await run.entries(), e.TicketClosed)
    assert [(x.ticket, x.why, x.applied) for x in closed] == [(CALL, "expired", on_expire)]
    with pytest.raises(Conflict):
        await run.decide(ticket, Approve())


@pytest.mark.proves("W6")
async def test_an_expiry_may_cancel_the_run(world: World) -> None:
    payer = Payer(expires=60, on_expire="cancel")
    run = await payer.start(world)
    await asked(run, "approval")
    await world.clock.advance(60)
    result = await run.result(until="done")
    assert result.reason.startswith("cancelled")
    assert payer.paid == []
    await check_run(run)


@pytest.mark.proves("W6")
async def test_an_escalated_ticket_is_opened_again_and_stays(world: World) -> None:
    payer = Payer(expires=60, on_expire="escalate")
    run = await payer.start(world)
    (first,) = await asked(run, "approval")
    await world.clock.advance(60)
    (ticket,) = await asked(run, "approval", but=[first])
    assert (ticket.id, ticket.expires_at, ticket.reason) == (f"{CALL}~2", None, "escalated")
    assert [(x.why, x.applied) for x in of(await run.entries(), e.TicketClosed)] == [("expired", "escalate")]
    await world.clock.advance(10**6)
    assert await asked(run, "approval") == [ticket]
    with pytest.raises(Conflict):
        await run.decide(first, Approve())
    await run.decide(ticket, Approve())
    assert await told(run) == (False, "paid 50")


@pytest.mark.proves("W6", "W3")
async def test_a_decision_that_was_stored_in_time_wins_though_nobody_read_it_in_time(world: World) -> None:
    payer = Payer(expires=60)
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    await world.kill(run._runtime)
    desk = await world.open(drive=False)
    await desk.decide(ticket.ref, Approve(), by="ann")
    await world.clock.advance(3600)
    run = await (await world.open(payer.agent)).get("r")
    assert await told(run) == (False, "paid 50")


@pytest.mark.proves("W6")
async def test_time_goes_on_while_nobody_runs(world: World) -> None:
    payer = Payer(expires=60)
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    await world.kill(run._runtime)
    await world.clock.advance(3600)
    desk = await world.open(drive=False)
    with pytest.raises(UsageError, match="expired"):
        await desk.decide(ticket.ref, Approve())
    run = await (await world.open(payer.agent)).get("r")
    assert (await told(run))[0]
    assert payer.paid == []


@pytest.mark.proves("C1", "W2")
async def test_a_cancel_ends_a_run_that_waits(world: World) -> None:
    payer = Payer()
    run = await payer.start(world)
    (ticket,) = await asked(run, "approval")
    await world.kill(run._runtime)
    desk = await world.open(drive=False)
    await desk.cancel("r", by="ann")
    result = await (await desk.get("r")).result()
    assert result.reason.startswith("cancelled")
    assert [x async for x in desk.tickets()] == []
    with pytest.raises(Conflict):
        await desk.decide(ticket, Approve())
    assert payer.paid == []


# --- crash at every point ---------------------------------------------------------------------------------------------


@pytest.mark.proves("W2", "W3", "W5", "T1")
@pytest.mark.parametrize("decided", ["approve", "edit", "reject", "respond", "remember"])
async def test_a_crash_anywhere_around_an_approval_changes_nothing(world: World, decided: str) -> None:
    payer = Payer([pay(1), pay(2)], [pay(1)], on_doubt="report")
    answer = Approve(remember="run") if decided == "remember" else DECIDED[decided][0]

    async def decide(ticket: Any) -> Any:
        assert ticket.kind == "approval"
        return answer

    report = await crash_points(payer.agent, "Go", store=world.fresh, decide=decide)
    assert report.ok, report
    assert report.points > 10


@pytest.mark.proves("W6")
@pytest.mark.parametrize("on_expire", ["reject", "approve", "escalate"])
async def test_a_crash_anywhere_around_an_expiry_changes_nothing(world: World, on_expire: Any) -> None:
    payer = Payer(expires=30, on_expire=on_expire, effect="read")

    def decide(ticket: Any) -> Any:
        return Approve() if ticket.reason == "escalated" else None

    report = await crash_points(payer.agent, "Go", store=world.fresh, decide=decide)
    assert report.ok, report
