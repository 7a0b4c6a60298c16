"""`clew tickets`: what runs ask of people."""

from typing import Any, get_args

import click

from clew.cli.common import Common, found, perform, shared
from clew.cli.output import Table, ago, print_json, say, ticket_json
from clew.core.tickets import Ticket, TicketKind

HEADS = ("TICKET", "KIND", "TOOL", "ASKS", "OPENED", "EXPIRES")


@click.command("tickets", epilog="Example: clew tickets --kind approval. `clew decide` answers one.")
@click.option("--run", "run_id", help="Only those of this run.")
@click.option("--agent", help="Only those of this agent.")
@click.option("--thread", "thread_id", help="Only those of this thread.")
@click.option("--kind", type=click.Choice(get_args(TicketKind)), help="Only these.")
@click.option("--closed", is_flag=True, help="Those that need no answer any more.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="TICKET", help="Go on behind this ticket of the last page.")
@shared
@click.pass_obj
def command(common: Common, /, limit: int, closed: bool, **wanted: str | None) -> None:
    """List open tickets: approvals, questions, doubts, limits, calls for clients."""
    perform(_list(common, wanted, limit, closed=closed))


async def _list(common: Common, wanted: dict[str, Any], limit: int, *, closed: bool) -> None:
    async with common.reading() as runtime:
        if wanted["run_id"] is not None:
            wanted["run_id"] = await found(runtime.store, wanted["run_id"])
        listed = [ticket async for ticket in runtime.tickets(**wanted, closed=closed, limit=limit)]
        if common.json:
            for ticket in listed:
                print_json(ticket_json(ticket))
        elif listed:
            now = runtime.store.now()
            Table(HEADS).print([_row(ticket, now) for ticket in listed], [None] * len(listed))
            if len(listed) == limit:
                say(f"more: the same with --after {listed[-1].ref}", err=True, dim=True)
        else:
            say("no tickets" if closed else "no open tickets", err=True)


def _row(ticket: Ticket, now: int) -> tuple[str, ...]:
    expires = "" if ticket.expires_at is None else ago(ticket.expires_at, now)
    decided = "" if ticket.decision is None else f" ({ticket.decision.kind} by {ticket.decided_by or 'nobody named'})"
    return (ticket.ref, ticket.kind, ticket.tool or "", ticket.prompt + decided, ago(ticket.opened_at, now), expires)
