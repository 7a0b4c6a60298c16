"""What can be asked of the memory store."""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import TypeVar

from clew.core.entries import Entry
from clew.core.outcomes import parse_outcome
from clew.core.tickets import Ticket
from clew.core.values import Digest
from clew.errors import NotFound, UsageError
from clew.ports import RunFilter, RunInfo, ThreadInfo, TicketFilter
from clew.stores.legible import legible
from clew.stores.memory.world import World

T = TypeVar("T")


def read_raw(world: World, run: str, after: int, until: int | None = None) -> list[bytes]:
    run = world.existing(run)
    last = world.seqs[run] if until is None else min(until, world.seqs[run])
    return [world.journal[run, seq] for seq in range(max(after, 0) + 1, last + 1)]


def entries_since(world: World, cursor: str | None, limit: int) -> tuple[list[tuple[str, Entry, str]], str]:
    place = 0 if cursor is None else _place(cursor)
    newest = next(reversed(world.log), 0)
    found: list[tuple[str, bytes, str]] = []
    while place < newest and len(found) < limit:
        place += 1
        if place in world.log:
            run, seq = world.log[place]
            found.append((run, world.journal[run, seq], f"memory-{place}"))
    return legible(found), f"memory-{place}"


def cursor(world: World) -> str:
    return f"memory-{next(reversed(world.log), 0)}"


def _place(cursor: str) -> int:
    kind, _, place = cursor.partition("-")
    if kind != "memory" or not place.isdecimal():
        raise UsageError(f"{cursor!r} is no cursor of this store: use one that it gave out")
    return int(place)


def info(world: World, run: str) -> RunInfo:
    run = world.aliases.get(run, run)
    if tombstone := world.tombstones.get(run):
        return RunInfo(
            run_id=run, status="done", outcome=parse_outcome(tombstone.outcome), finished_at=tombstone.finished_at
        )
    return world.row(world.existing(run))


def runs(world: World, which: RunFilter) -> list[RunInfo]:
    newest_first = (world.row(run) for run in reversed(list(world.runs)) if _lists(which, world.row(run)))
    return _page(newest_first, which.after, which.limit, lambda row: row.run_id)


def _lists(which: RunFilter, row: RunInfo) -> bool:
    status = row.quarantined if which.status == "quarantined" else which.status in (None, row.status)
    same = ((which.agent, row.agent), (which.thread_id, row.thread_id), (which.root, row.root))
    return status and all(wanted in (None, found) for wanted, found in same)


def threads(world: World, limit: int, after: str | None) -> list[ThreadInfo]:
    newest_first = (thread for name in reversed(list(world.threads)) if (thread := world.thread(name)))
    return _page(newest_first, after, limit, lambda thread: thread.thread_id)


def tickets(world: World, which: TicketFilter) -> list[Ticket]:
    run = None if which.run_id is None else world.existing(which.run_id)
    asked = [asked.ticket for asked in world.tickets.values() if (asked.closed is not None) == which.closed]
    order = {run: place for place, run in enumerate(world.runs)}
    found = sorted(
        (ticket for ticket in asked if run in (None, ticket.run_id) and _asks(world, which, ticket)),
        key=lambda ticket: (order[ticket.run_id], ticket.call or "", ticket.id),
    )
    return _page(iter(found), which.after, which.limit, lambda ticket: ticket.ref)


def _asks(world: World, which: TicketFilter, ticket: Ticket) -> bool:
    agent = world.runs[ticket.run_id].agent
    same = (
        (which.agent, agent),
        (which.thread_id, ticket.thread_id),
        (which.kind, ticket.kind),
        (which.ticket, ticket.id),
    )
    return all(wanted in (None, found) for wanted, found in same)


def _page(items: Iterator[T], after: str | None, limit: int, name: Callable[[T], str]) -> list[T]:
    """The next items behind the one that the last page ended with."""
    if after is not None:
        for item in items:
            if name(item) == after:
                break
        else:
            raise NotFound(f"there is no {after!r} in this list to go on from")
    return list(islice(items, limit))


def blobs(world: World, digests: Collection[Digest]) -> dict[Digest, bytes]:
    return {digest: world.blobs[digest] for digest in digests if digest in world.blobs}
