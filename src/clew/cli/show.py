"""`clew show`: one run as a timeline."""

import json
from typing import Any

import click

from clew import codec
from clew.cli.common import Common, found, perform, run_argument, shared
from clew.cli.output import (
    COLOURS,
    ago,
    count,
    dollars,
    harmless,
    info_json,
    local,
    print_json,
    say,
    short,
    took,
)
from clew.cli.timeline import Narrator, print_line
from clew.core import entries as e
from clew.core.calls import may_have_run
from clew.core.state import Call, State
from clew.core.values import unpack
from clew.ports import LeaseInfo, RunInfo

LONGEST_VALUE = 120  # characters of a state key


@click.command(
    "show",
    short_help="Show one run as a timeline.",
    epilog="Example: clew show oslo-1. The beginning of an id will do while only one run has it.",
)
@run_argument
@shared
@click.pass_obj
def command(common: Common, run: str) -> None:
    """Show one run: its turns, calls, attempts, times, cost, and why it waits."""
    perform(_show(common, run))


async def _show(common: Common, run: str) -> None:
    async with common.reading() as runtime:
        info = await runtime.store.info(await found(runtime.store, run))
        entries = await runtime.store.read(info.run_id)
        if common.json:
            print_json({"run": info_json(info), "entries": [codec.jsonable(entry) for entry in entries]})
            return
        _print_head(info, runtime.store.now())
        narrator = Narrator()
        for entry in entries:
            for line in narrator.tell(entry):
                print_line(line, narrator.begun)
        state = await runtime.state_of(info.run_id)
        for scope, values in (("run", state.run_state), ("thread", state.thread_state)):
            for name, value in values.items():
                said = json.dumps(unpack(value), ensure_ascii=False)
                say(f"state of the {scope}: {harmless(name)} = {short(said, LONGEST_VALUE)}", dim=True)
        if info.status != "done":
            _print_now(state, info, await runtime.store.lease(info.run_id), runtime.store.now())


def _print_head(info: RunInfo, now: int) -> None:
    status = "quarantined" if info.quarantined else info.status
    reason = f" ({info.reason})" if info.reason else ""
    say(harmless(f"{info.run_id}  agent {info.agent}  {status}{reason}"), bold=True, fg=COLOURS.get(status))
    until = info.finished_at or now
    facts = [f"started {local(info.created_at)}, {ago(info.created_at, now)}"]
    facts += [took((until - info.created_at) / 1e6) if info.finished_at else ""]
    facts += [count(info.turns, "turn"), count(info.calls, "call"), dollars(info.cost)]
    facts += [f"thread {info.thread_id}" if info.thread_id != info.run_id else ""]
    say(harmless(", ".join(filter(None, facts))), dim=True)


def _print_now(state: State, info: RunInfo, lease: LeaseInfo, now: int) -> None:
    """How it stands: who drives it, which calls are open, what it waits for."""
    say(f"now: {_standing(info, lease, now)}", bold=True)
    for call in state.open_calls:
        say(harmless(f"  {call.id} {call.tool}: {_open(state, call, lease)}"))
    for ticket in state.tickets:
        say(harmless(f"  asks: clew decide {info.run_id}/{ticket} approve|edit|reject|respond …"))


def _standing(info: RunInfo, lease: LeaseInfo, now: int) -> str:
    if info.quarantined:
        return f"set aside after {count(lease.unclean, 'death')} of its drivers in one place"
    if lease.owner is not None and lease.alive:
        return f"driven by process {lease.owner.pid} on {lease.owner.host}, epoch {lease.epoch}"
    if info.status == "waiting":
        due = "" if info.wake_at is None else f", due {ago(info.wake_at, now)}"
        return f"waits: {', '.join(info.reasons) or 'something outside'}{due}"
    if info.status == "queued":
        return f"queued in thread {info.thread_id}"
    return "nobody drives it: `clew worker` with its agent goes on"


def _open(state: State, call: Call, lease: LeaseInfo) -> str:
    open_ticket = next((wait.opened for wait in call.waits if wait.closed is None), None)
    if call.in_doubt or (may_have_run(call) and not lease.alive):
        return "in doubt: it was started, and nobody can say yet what became of it"
    if open_ticket is not None and not lease.alive:
        return "waits for an answer" if isinstance(open_ticket, e.TicketOpened) else "sleeps"
    if call.retry_at is not None:
        return f"tried again in {took(max(call.retry_at - state.at, 0) / 1e6)}"
    return "at work" if lease.alive else "to be run"


__all__: list[Any] = ["command"]
