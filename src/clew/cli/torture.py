"""`clew torture`: crash an agent at every point where a crash can fall, and compare with the calm run."""

import sys
from collections.abc import Callable
from typing import Any

import click

from clew.cli.common import Common, perform, shared
from clew.cli.output import harmless, print_json, say
from clew.cli.target import Target, function, load
from clew.testing.crash import CrashReport, crash_points

FOUND = 1
GOOD = ("natural", "behavior_requested")


@click.command(
    "torture",
    short_help="Crash an agent wherever a crash can fall.",
    epilog='Example: clew torture examples/payments_good.py:agent "Pay the invoices" --reset reset --check check. '
    "Crashes are simulated in this process, in a store in memory: use a scripted model, or one that costs little.",
)
@click.argument("target")
@click.argument("input")
@click.option("--agent", help="Which, if the target is a Runtime with several.")
@click.option(
    "--reset",
    metavar="NAME",
    help="A function of the module that makes the outside world new: called before each trial.",
)
@click.option(
    "--check",
    metavar="NAME",
    help="A function of the module that looks at the outside world after each trial: what it raises, or returns, "
    "is a finding.",
)
@shared
@click.pass_obj
def command(common: Common, target: str, input: str, agent: str | None, reset: str | None, check: str | None) -> int:
    """Crash an agent around each commit and after each effect; tell what ran twice or came out differently."""
    loaded = load(target)
    hooks = {name: function(given, loaded) for name, given in (("reset", reset), ("check", check)) if given is not None}
    report = perform(_tortured(common, loaded, loaded.one_agent(agent), input, hooks))
    if common.json:
        print_json(
            {
                "ok": report.ok,
                "points": report.points,
                "repeated": list(report.repeated),
                "differing": list(report.differing),
                "wrong": list(report.wrong),
                "rerun": report.rerun,
                "doubts": report.doubts,
                "calm": report.calm,
            }
        )
    else:
        _print(report, checked="check" in hooks)
    return 0 if report.ok else FOUND


async def _tortured(
    common: Common, target: Target, agent: Any, input: str, hooks: dict[str, Callable[..., Any]]
) -> CrashReport:
    deps = None if target.runtime is None else target.runtime.deps
    with Progressing(common) as told:
        return await crash_points(
            agent, input, deps=deps, told=told, reset=hooks.get("reset"), check=hooks.get("check")
        )


class Progressing:
    """A bar on a terminal, nothing anywhere else."""

    def __init__(self, common: Common) -> None:
        self._bar: Any = None
        if not common.json and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("crashing", total=None)

    def __enter__(self) -> "Callable[[int, int], None] | None":
        if self._bar is None:
            return None
        self._bar.start()
        return lambda done, of: self._bar.update(self._task, completed=done, total=of)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _print(report: CrashReport, *, checked: bool) -> None:
    say(f"{report.points} crash points, one trial each")
    if report.calm not in GOOD:
        say(harmless(f"  without a crash the run ends {report.calm}: is that what is to be tested?"), fg="yellow")
    for title, found in (
        ("ran twice", report.repeated),
        ("came out differently", report.differing),
        ("the check found", report.wrong),
    ):
        for what in found:
            say(harmless(f"  {title}: {what}"), fg="red")
    for tool, times in report.rerun.items():
        say(
            harmless(f"  {tool} ran again after a crash, {times} times in all: as declared, it must not mind"), dim=True
        )
    if report.doubts:
        say(f"  {report.doubts} times nobody could say whether a once call had happened: it was not repeated", dim=True)
    if report.ok:
        say(
            "nothing ran twice, nothing came out differently" + (", the check found nothing" if checked else ""),
            fg="green",
        )
        if not checked and report.rerun:
            say("what the outside world saw was not looked at: name a function with --check", dim=True)
    else:
        say("crashes show: see above", fg="red", bold=True)
