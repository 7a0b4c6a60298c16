"""`clew watch`: what happens, as it happens, in whatever process it does."""

import click

from clew import codec
from clew.app import Runtime
from clew.cli.common import Common, complete_run, found, perform, shared
from clew.cli.live import Show, print_items
from clew.cli.output import harmless, print_json, say
from clew.cli.timeline import Narrator


@click.command(
    "watch",
    short_help="Follow a run as it happens, anywhere.",
    epilog="Example: clew watch oslo-1, in a second terminal. Ctrl-C stops watching, not the run.",
)
@click.argument("run", required=False, shell_complete=complete_run)
@click.option("--after", metavar="SEQ", default=0, type=click.IntRange(min=0), help="Only what follows this entry.")
@click.option(
    "--until",
    type=click.Choice(["done", "settled"]),
    default="done",
    show_default=True,
    help="settled: stop as well where the run waits for somebody.",
)
@shared
@click.pass_obj
def command(common: Common, run: str | None, after: int, until: str) -> None:
    """Follow a run until it is done: its entries, and the words as they stream. Without RUN, the entries of all."""
    perform(_watch(common, run, after, until))


async def _watch(common: Common, run: str | None, after: int, until: str) -> None:
    async with common.reading() as runtime:
        if run is None:
            await _watch_all(common, runtime)
            return
        handle = await runtime.get(await found(runtime.store, run))
        items = handle.watch(after, until="settled" if until == "settled" else "done")
        await (print_items(items) if common.json else Show(lines_to_err=False).follow(items))


async def _watch_all(common: Common, runtime: Runtime) -> None:
    """Everybody's entries from now on, each line under the id of its run."""
    narrators: dict[str, Narrator] = {}
    async for cursor, run, entry in runtime.watch(await runtime.store.cursor()):
        if common.json:
            print_json({"cursor": cursor, "run_id": run, "entry": codec.jsonable(entry)})
            continue
        for line in narrators.setdefault(run, Narrator()).tell(entry):
            say(harmless(f"{run}  {line.mark} {line.text}"), fg=line.colour)
        if entry.kind == "run_finished":
            narrators.pop(run, None)
