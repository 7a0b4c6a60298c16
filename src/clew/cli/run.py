"""`clew run`: start a run, or take one up, and see it through."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import click

from clew.app import Result, Run, Runtime
from clew.cli.common import Common, perform, shared
from clew.cli.live import Show
from clew.cli.output import harmless, print_json, result_json, say
from clew.cli.target import Target, load
from clew.core.limits import Limits
from clew.errors import Conflict, RunBusy, RunEnded, UsageError
from clew.ports import RunInfo

log = logging.getLogger("clew.cli")

SECOND_THOUGHTS = 1.0  # seconds after Ctrl-C in which another one lets go instead
LOOK_AGAIN = 0.5
DONE, FAILED, WAITING, LEFT = 0, 1, 3, 130


@dataclass(frozen=True)
class Wish:
    """What was typed."""

    target: str
    input: str
    agent: str | None
    run_id: str | None
    thread: str | None
    model: str | None
    turns: int | None


@click.command(
    "run",
    epilog='Example: clew run app:agent "Rain in Oslo?" --run-id oslo-1. Typed again it prints the stored answer. '
    "Words go to the output, everything else to the error stream.",
)
@click.argument("target")
@click.argument("input", required=False)
@click.option("--agent", help="Which, if the target is a Runtime with several.")
@click.option("--run-id", metavar="ID", help="The name of the run: typed again, it goes on with it.")
@click.option("--thread", metavar="ID", help="Go on with this conversation, or begin it.")
@click.option("--model", metavar="PROVIDER:NAME", help="Instead of the agent's own.")
@click.option("--turns", type=click.IntRange(min=1), help="Stop after so many replies of the model.")
@shared
@click.pass_obj
def command(common: Common, /, input: str | None, **given: Any) -> int:
    """Run an agent and show what it says.

    TARGET is module:agent, module:runtime, or path/to/file.py:agent. INPUT is read from the standard input if it is
    left out. Ctrl-C cancels the run; twice lets go of it, so that it can be taken up later.
    """
    wish = Wish(input=_text(input), **given)
    try:
        return perform(_run(common, wish, load(wish.target)))
    except BrokenPipeError:
        return LEFT


def _text(given: str | None) -> str:
    if given not in (None, "-"):
        return str(given)
    if given is None and sys.stdin.isatty():
        raise UsageError('what should the agent do? Say it behind the target: clew run app:agent "…"')
    return sys.stdin.read()


async def _run(common: Common, wish: Wish, target: Target) -> int:
    agent = target.one_agent(wish.agent)
    limits = None if wish.turns is None else _limits(agent.limits, wish.turns)
    async with _opened(common, target) as runtime:
        run = await runtime.start(
            agent, wish.input, run_id=wish.run_id, thread_id=wish.thread, model=wish.model, limits=limits
        )
        hands_off = HandsOff(run)
        with hands_off:
            result = await _seen_through(common, runtime, run, hands_off)
    if result is None:
        again = f"clew run {wish.target} … --run-id {run.id}"
        say(harmless(f"{run.id} is let go: {again} goes on with it, or a worker does"), err=True)
        return LEFT
    if common.json:
        print_json(result_json(result))
    elif result.status == "waiting":
        say(harmless(f"{run.id} waits: {result.reason}; `clew show {run.id}` says for what"), err=True)
    return WAITING if result.status == "waiting" else DONE if result.ok else FAILED


def _limits(own: Limits, turns: int) -> Limits:
    from msgspec.structs import replace

    return replace(own, turns=turns)


@asynccontextmanager
async def _opened(common: Common, target: Target) -> AsyncGenerator[Runtime]:
    """A Runtime of the user's as it is; else one that drives this run and leaves the others to their workers."""
    if target.runtime is not None:
        if common.store is not None:
            raise UsageError(f"{target.name} brings its own store: leave --store out")
        async with target.runtime as runtime:
            yield runtime
    else:
        async with Runtime(common.url, agents=[target.one_agent()], drive=False) as runtime:
            yield runtime


async def _seen_through(common: Common, runtime: Runtime, run: Run[Any], hands_off: "HandsOff") -> Result[Any] | None:
    """The settled result; None if the user let go, or reads no more."""
    show = Show(lines_to_err=True)
    work = [asyncio.ensure_future(_driven(runtime, run))]
    if not common.json:
        work.append(asyncio.ensure_future(show.follow(run.watch(until="settled"))))
    leaving = asyncio.ensure_future(hands_off.wait())
    everything = asyncio.ensure_future(asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION))
    await asyncio.wait([everything, leaving], return_when=asyncio.FIRST_COMPLETED)
    let_go = not everything.done()
    failed = [error for task in work if task.done() and (error := task.exception()) is not None]
    for task in (leaving, everything, *work):
        task.cancel()
    await asyncio.wait(work)
    if let_go:
        show.end_line()
        return None
    if failed and not isinstance(failed[0], BrokenPipeError):
        raise failed[0]
    if failed and not _is_settled(await run.info()):
        return None
    return await run.result()


async def _driven(runtime: Runtime, run: Run[Any]) -> None:
    """Drive the run until it is settled, here or wherever it is driven."""
    while True:
        try:
            await runtime.drive(run.id)
        except RunEnded:
            return
        except RunBusy:
            await run.result()
            return
        except Conflict as conflict:
            log.debug("run %s: taken over meanwhile: %s", run.id, conflict)
        info = await run.info()
        if _is_settled(info):
            return
        await asyncio.sleep(_pause(info, runtime.store.now()))


def _is_settled(info: RunInfo) -> bool:
    return info.status == "done" or info.quarantined or (info.status == "waiting" and info.wake_at is None)


def _pause(info: RunInfo, now: int) -> float:
    due = LOOK_AGAIN if info.wake_at is None else (info.wake_at - now) / 1e6
    return min(max(due, 0.0), LOOK_AGAIN)


class HandsOff:
    """Ctrl-C: once cancels the run, twice lets go of it."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self._let_go = asyncio.Event()
        self._pressed = False
        self._cancelling: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._press)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        if self._cancelling is not None:
            self._cancelling.cancel()

    async def wait(self) -> None:
        await self._let_go.wait()

    def _press(self) -> None:
        if self._pressed:
            if self._cancelling is not None:
                self._cancelling.cancel()
            if not self._let_go.is_set():
                say("\nletting go: what is at work may end first; Ctrl-C again does not wait for it", err=True)
            self._let_go.set()
            return
        self._pressed = True
        say("\ncancelling the run; Ctrl-C again lets go of it instead, and it can be taken up later", err=True)
        self._cancelling = asyncio.ensure_future(self._cancel())

    async def _cancel(self) -> None:
        await asyncio.sleep(SECOND_THOUGHTS)
        try:
            await self._run.cancel(reason="Ctrl-C")
        except RunEnded:
            return
