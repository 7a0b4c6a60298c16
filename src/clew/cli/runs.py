"""`clew runs`: the runs of a store, newest first."""

from typing import Any

import click

from clew.cli.common import Common, perform, shared
from clew.cli.output import COLOURS, ago, dollars, info_json, print_columns, print_json, say
from clew.ports import RunInfo

HEADS = ("RUN", "STATUS", "AGENT", "TURNS", "CALLS", "COST", "STARTED", "THREAD", "WHY")
STATUSES = ("queued", "running", "waiting", "done", "quarantined")


@click.command(
    "runs", epilog="Example: clew runs --status waiting --limit 50. The last id of a page is the --after of the next."
)
@click.option("--status", type=click.Choice(STATUSES), help="Only these.")
@click.option("--agent", help="Only those of this agent.")
@click.option("--thread", help="Only those of this thread.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
@click.option("--all", "every", is_flag=True, help="However many.")
@click.option("--after", metavar="RUN", help="Go on behind this run of the last page.")
@shared
@click.pass_obj
def command(common: Common, /, limit: int, every: bool, thread: str | None, **wanted: str | None) -> None:
    """List runs, newest first."""
    perform(_list(common, {**wanted, "thread_id": thread}, None if every else limit))


async def _list(common: Common, wanted: dict[str, Any], limit: int | None) -> None:
    async with common.reading() as runtime:
        found = runtime.runs(**wanted, limit=limit)
        if common.json:
            async for info in found:
                print_json(info_json(info))
            return
        page = [info async for info in found]
        if not page:
            say("no runs" if wanted["after"] is None else "no more runs", err=True)
            return
        now = runtime.store.now()
        print_columns(HEADS, [_row(info, now) for info in page], [COLOURS.get(_status(info)) for info in page])
        if len(page) == limit:
            say(f"older ones: clew runs --after {page[-1].run_id}, or --all", err=True, dim=True)


def _status(info: RunInfo) -> str:
    return "quarantined" if info.quarantined else info.status


def _row(info: RunInfo, now: int) -> tuple[str, ...]:
    why = f"{info.reason}{': ' + info.message if info.message else ''}"
    counts = (str(info.turns), str(info.calls), dollars(info.cost))
    thread = "" if info.thread_id == info.run_id else info.thread_id
    return (info.run_id, _status(info), info.agent, *counts, ago(info.created_at, now), thread, why)
