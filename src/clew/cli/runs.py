"""`clew runs`: the runs of a store, newest first."""

from collections.abc import AsyncIterator
from typing import Any

import click

from clew.cli.common import Common, found, perform, shared
from clew.cli.output import COLOURS, Table, ago, dollars, harmless, info_json, print_json, say
from clew.ports import RunInfo

HEADS = ("RUN", "STATUS", "AGENT", "TURNS", "CALLS", "COST", "STARTED", "THREAD", "WHY")
PAGE = 100  # lines that are aligned together
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
        if wanted["after"] is not None:
            wanted["after"] = await found(runtime.store, wanted["after"])
        listed = runtime.runs(**wanted, limit=limit)
        if common.json:
            async for info in listed:
                print_json(info_json(info))
        else:
            await _print(listed, runtime.store.now(), wanted["after"], limit)


async def _print(listed: AsyncIterator[RunInfo], now: int, after: str | None, limit: int | None) -> None:
    """A page at a time, however many there are."""
    table = Table(HEADS)
    page: list[RunInfo] = []
    number, last = 0, None
    async for info in listed:
        page.append(info)
        number, last = number + 1, info.run_id
        if len(page) == PAGE:
            _print_page(table, page, now)
            page.clear()
    if page:
        _print_page(table, page, now)
    if last is None:
        say("no runs" if after is None else "no more runs", err=True)
    elif number == limit:
        say(harmless(f"older ones: the same with --after {last}, or with --all"), err=True, dim=True)


def _print_page(table: Table, page: list[RunInfo], now: int) -> None:
    table.print([_row(info, now) for info in page], [COLOURS.get(_status(info)) for info in page])


def _status(info: RunInfo) -> str:
    return "quarantined" if info.quarantined else info.status


def _row(info: RunInfo, now: int) -> tuple[str, ...]:
    why = f"{info.reason}{': ' + info.message if info.message else ''}"
    counts = (str(info.turns), str(info.calls), dollars(info.cost))
    thread = "" if info.thread_id == info.run_id else info.thread_id
    return (info.run_id, _status(info), info.agent, *counts, ago(info.created_at, now), thread, why)
