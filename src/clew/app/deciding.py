"""Tickets: what runs ask of people, listed across runs, and the decisions that close them."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast

from msgspec.structs import replace

from clew.agent.schema import to_json
from clew.app.later import Later
from clew.core.letters import DecisionLetter
from clew.core.tickets import Approve, Decision, Edit, Reject, Respond, Ticket
from clew.core.values import check_text, pack
from clew.errors import NotFound, UsageError
from clew.ports import Store, TicketFilter
from clew.runtime.ids import new_run_id
from clew.runtime.plan import checked_letter
from clew.runtime.worker import Worker

PAGE = 100


class Deciding(Later):
    """What a Runtime does about tickets; set up by the Runtime itself."""

    store: Store
    _worker: Worker
    _check_open: Callable[[], None]

    async def tickets(
        self,
        *,
        run_id: str | None = None,
        agent: str | None = None,
        thread_id: str | None = None,
        kind: str | None = None,
        closed: bool = False,
        limit: int | None = None,
        after: str | None = None,
    ) -> AsyncIterator[Ticket]:
        """Open tickets of all runs, or with `closed` the others; by run, then call, then ticket."""
        self._check_open()
        which = TicketFilter(run_id=run_id, agent=agent, thread_id=thread_id, kind=kind, closed=closed, after=after)
        left = limit
        while left is None or left > 0:
            page = await self.store.tickets(replace(which, limit=PAGE if left is None else min(PAGE, left)))
            for ticket in page:
                yield ticket
            if len(page) < PAGE:
                return
            left = None if left is None else left - len(page)
            which = replace(which, after=page[-1].ref)

    async def decide(
        self,
        ticket: Ticket | str,
        decision: Decision,
        *,
        run_id: str | None = None,
        decision_id: str | None = None,
        by: str | None = None,
    ) -> Ticket:
        """Close a ticket, from any process; durable on return. The first decision wins.

        Raises AlreadyDecided with what stands, NotFound, UsageError for what does not fit the ticket.
        """
        self._check_open()
        run, name = await self._meant(ticket, run_id)
        letter = DecisionLetter(
            ticket=name,
            decision_id=decision_id or new_run_id(self.store.now()).replace("run_", "dec_", 1),
            decision=_checked(decision),
            by=None if by is None else check_text(by),
        )
        decided = await self.store.decide(run, cast("DecisionLetter", checked_letter(letter)))
        self._worker.notify(decided.run_id)
        return decided

    async def decide_all(
        self, decisions: Mapping[str, Decision], *, run_id: str | None = None, by: str | None = None
    ) -> list[Ticket]:
        """Several tickets at once; each is decided on its own, and what is refused stops the rest."""
        return [await self.decide(ref, decision, run_id=run_id, by=by) for ref, decision in decisions.items()]

    async def _meant(self, ticket: Ticket | str, run_id: str | None) -> tuple[str, str]:
        """The run and the id of a ticket: by itself, by `run/ticket`, or by an id that only one run has open."""
        if isinstance(ticket, Ticket):
            return ticket.run_id, ticket.id
        if not isinstance(cast("object", ticket), str):
            raise UsageError(f"{ticket!r} is no ticket: give a Ticket, its ref run/ticket, or its id with run_id=")
        if run_id is not None:
            return run_id, ticket.removeprefix(f"{run_id}/")
        run, separator, name = ticket.partition("/")
        if separator:
            return run, name
        found = await self.store.tickets(TicketFilter(ticket=ticket))
        if len(found) > 1:
            refs = ", ".join(one.ref for one in found)
            raise UsageError(f"ticket {ticket!r} is open in several runs, name one: {refs}")
        if not found:
            raise NotFound(f"no open ticket is called {ticket!r}: `rt.tickets()` lists them, as run/ticket")
        return found[0].run_id, found[0].id


def _checked(decision: object) -> Decision:
    """A decision in journal form."""
    match decision:
        case Approve(note=note):
            check_text(note)
            return decision
        case Edit(args=args, note=note):
            check_text(note)
            return replace(decision, args=pack(_plain(args)))
        case Reject(message=message):
            check_text(message)
            return decision
        case Respond(value=value):
            return replace(decision, value=pack(_plain(value)))
        case _:
            raise UsageError(f"{decision!r} is no decision: use Approve(), Edit(args), Reject(message), Respond(value)")


def _plain(value: object) -> object:
    try:
        return to_json(value)
    except ValueError as error:
        raise UsageError(f"a {type(value).__name__} cannot be stored as JSON: {error}") from error
