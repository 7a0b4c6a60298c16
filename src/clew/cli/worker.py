"""`clew worker`: a process that drives runs until it is told to stop."""

import asyncio
import os
import signal
from dataclasses import dataclass
from typing import Any

import click

from clew.app import Runtime
from clew.cli.common import Common, perform, shared
from clew.cli.output import count, harmless, print_json, say
from clew.cli.target import Target, load
from clew.errors import UsageError


@dataclass(frozen=True)
class Wish:
    targets: list[Target]
    options: dict[str, Any]  # concurrency, lease, grace: those that were given


@click.command(
    "worker",
    epilog="Example: clew worker app:agent app:other --concurrency 50. Start as many as you like on one store: each "
    "run is driven by one of them, and by another within the lease if that one dies.",
)
@click.argument("targets", nargs=-1, required=True)
@click.option("--concurrency", type=click.IntRange(min=1), show_default="100", help="Runs at a time.")
@click.option("--lease", type=click.FloatRange(min=0.1), show_default="30", help="Seconds until others take over.")
@click.option("--grace", type=click.FloatRange(min=0), show_default="10", help="Seconds for steps to end.")
@shared
@click.pass_obj
def command(common: Common, /, targets: tuple[str, ...], **given: float | None) -> None:
    """Drive the runs of these agents.

    SIGTERM and Ctrl-C drain: nothing more is started, what runs may end within the grace, every run is given back.
    SIGUSR1 says what it holds.
    """
    # Not before there is something to say; whoever asks must not kill it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    options = {name: value for name, value in given.items() if value is not None}
    wish = Wish([load(text) for text in targets], options)
    perform(_work(common, wish))


async def _work(common: Common, wish: Wish) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runtime, where = _runtime(common, wish)
    tell = Teller(common, runtime)
    async with runtime:
        loop.add_signal_handler(signal.SIGUSR1, tell.holding)
        tell.ready(where)
        await stop.wait()
        tell.draining()
    tell.drained()


def _runtime(common: Common, wish: Wish) -> tuple[Runtime, str]:
    brought = [target for target in wish.targets if target.runtime is not None]
    if not brought:
        agents = [target.one_agent() for target in wish.targets]
        return Runtime(common.url, agents=agents, **wish.options), common.url
    if len(wish.targets) > 1 or common.store is not None or wish.options:
        raise UsageError(
            f"{brought[0].name} is a Runtime and brings agents, store and options: name it alone, without --store, "
            "--concurrency, --lease and --grace"
        )
    return _as_it_is(brought[0]), brought[0].name


def _as_it_is(target: Target) -> Runtime:
    assert target.runtime is not None
    if not target.runtime.drives:
        raise UsageError(f"{target.name} was made with drive=False and takes no run up: leave that out")
    if not target.runtime.agents:
        raise UsageError(f"{target.name} has no agents: give it those that it is to drive, agents=[…]")
    return target.runtime


class Teller:
    """Says what the worker does, one line a time: for people, or as JSON for programs."""

    def __init__(self, common: Common, runtime: Runtime) -> None:
        self._json = common.json
        self._runtime = runtime

    def ready(self, where: str) -> None:
        agents = ", ".join(self._runtime.agents)
        self._say(
            "ready", f"worker {os.getpid()} drives {agents} in {where}; SIGTERM drains, SIGUSR1 says what it holds"
        )

    def holding(self) -> None:
        runs = self._runtime.driving
        self._say("holding", f"holds {count(len(runs), 'run')}{': ' + ', '.join(runs) if runs else ''}")

    def draining(self) -> None:
        self._say("draining", f"draining: {count(len(self._runtime.driving), 'run')} at work may end their steps")

    def drained(self) -> None:
        self._say("drained", "drained: every run is given back")

    def _say(self, event: str, text: str) -> None:
        if self._json:
            agents = list(self._runtime.agents)
            print_json({"event": event, "pid": os.getpid(), "agents": agents, "runs": list(self._runtime.driving)})
        else:
            say(harmless(text), err=True)
