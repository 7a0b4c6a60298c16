"""`clew decide`: answer a ticket."""

import getpass
import json
from typing import Any

import click

from clew.cli.common import Common, perform, shared
from clew.cli.output import harmless, print_json, say, ticket_json
from clew.core.tickets import Approve, Decision, Edit, Reject, Respond
from clew.errors import UsageError

ANSWERS = ("approve", "edit", "reject", "respond")


@click.command(
    "decide",
    epilog="""Example: clew decide oslo-1/1.tool.2 approve. Or:
    clew decide oslo-1/1.tool.2 reject "not this month".
    clew decide oslo-1/1.tool.2 edit '{"amount": 90}'.
    clew decide oslo-1/1.tool.2 respond '"paid by hand"'.""",
)
@click.argument("ticket", metavar="RUN/TICKET")
@click.argument("answer", type=click.Choice(ANSWERS))
@click.argument("value", required=False)
@click.option("--remember", type=click.Choice(["run", "thread"]), help="Approve the same action from now on as well.")
@click.option("--note", default="", help="Why; it is kept in the journal.")
@click.option("--by", help="Who; the name you are logged in under, if you do not say.")
@click.option("--decision-id", help="The same id again is the same decision.")
@shared
@click.pass_obj
def command(common: Common, /, ticket: str, answer: str, value: str | None, **more: Any) -> None:
    """Answer a ticket. The first answer counts; it is durable once this returns, also while no worker runs.

    VALUE is the message of a rejection, or the JSON of edited arguments or of a response.
    """
    decision = _decision(answer, value, more["remember"], more["note"])
    perform(_decide(common, ticket, decision, more["by"] or _login(), more["decision_id"]))


async def _decide(common: Common, ticket: str, decision: Decision, by: str, decision_id: str | None) -> None:
    async with common.reading() as runtime:
        decided = await runtime.decide(ticket, decision, by=by, decision_id=decision_id)
        if common.json:
            print_json(ticket_json(decided))
        else:
            say(harmless(f"{decided.ref}: {decision.kind} by {by}, stored; whoever drives the run goes on with it"))


def _decision(answer: str, value: str | None, remember: Any, note: str) -> Decision:
    match answer:
        case "approve":
            if value is not None:
                raise UsageError("approve takes no value: `edit` changes the arguments, `respond` gives the result")
            return Approve(remember=remember, note=note)
        case "reject":
            return Reject(value if value is not None else note)
        case "edit":
            args = _json(value, "edit")
            if not isinstance(args, dict):
                raise UsageError("edit takes all arguments, as one JSON object")
            return Edit(args, note=note)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return Respond(_json(value, "respond"))


def _json(value: str | None, answer: str) -> Any:
    if value is None:
        raise UsageError(f"{answer} needs a value, as JSON: clew decide RUN/TICKET {answer} '…'")
    try:
        return json.loads(value)
    except ValueError as error:
        raise UsageError(f"{value!r} is no JSON ({error}): text stands in quotes, as in '\"yes\"'") from error


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
