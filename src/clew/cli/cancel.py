"""`clew cancel`: end a run, wherever it is."""

import click

from clew.cli.common import Common, found, perform, run_argument, shared
from clew.cli.output import harmless, info_json, print_json, say

PATIENCE = 3.0  # seconds in which a driver elsewhere may end the run


@click.command("cancel", epilog='Example: clew cancel oslo-1 --reason "wrong town"')
@run_argument
@click.option("--reason", default="", help="Why; it is kept in the journal.")
@click.option("--by", help="Who; it is kept in the journal.")
@shared
@click.pass_obj
def command(common: Common, run: str, reason: str, by: str | None) -> None:
    """End a run in whatever state it is. It is durable once this returns; a driver elsewhere honours it at once."""
    perform(_cancel(common, run, reason, by))


async def _cancel(common: Common, run: str, reason: str, by: str | None) -> None:
    async with common.reading() as runtime:
        handle = await runtime.get(await found(runtime.store, run, whole=True))
        await handle.cancel(reason=reason, by=by)
        info = await handle.info()
        if not info.quarantined:
            await handle.result(until="done", timeout=PATIENCE)
            info = await handle.info()
        if common.json:
            print_json(info_json(info))
        elif info.status == "done":
            say(harmless(f"{info.run_id} {info.reason}"))
        elif info.quarantined:
            say(harmless(f"{info.run_id}: the cancel is stored; the run is quarantined, and ends once it is released"))
        else:
            say(harmless(f"{info.run_id}: the cancel is stored, and its driver is ending it"))
