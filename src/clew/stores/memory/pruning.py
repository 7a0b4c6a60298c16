"""Removing finished runs from memory."""

from collections.abc import Collection
from typing import TypeVar

from msgspec.structs import replace

from clew.core.entries import BaseAt
from clew.stores import admission
from clew.stores.memory.tables import Table
from clew.stores.memory.world import Tombstone, World

V = TypeVar("V")


def prune(world: World, runs: Collection[str]) -> int:
    """How many entries went."""
    known = [run for run in runs if world.aliases.get(run, run) not in world.tombstones]
    names = list(dict.fromkeys(world.existing(run) for run in known))
    for run in names:
        if not world.leases[run].done:
            raise admission.not_prunable(run, None)
    for run in names:
        for heir, row in world.runs.items():
            if isinstance(row.base, BaseAt) and row.base.run == run and heir not in names:
                raise admission.not_prunable(run, heir)
    return sum(_remove(world, run) for run in sorted(names))


def _remove(world: World, run: str) -> int:
    row, entries = world.runs[run], world.seqs[run]
    world.tombstones[run] = Tombstone(world.digests[run], str(row.outcome), row.finished_at or 0)
    for place, (name, seq) in list(world.log.items()):
        if name == run:
            del world.log[place]
            del world.journal[run, seq]
    for table in (world.runs, world.digests, world.leases, world.seqs, world.inbox):
        del table[run]
    _remove_pairs(world.messages, run)
    _remove_pairs(world.tickets, run)
    _remove_pairs(world.decisions, run)
    for thread in list(world.threads.values()):
        if thread.head == run:
            world.threads[thread.thread_id] = replace(thread, head=None)
    return entries


def _remove_pairs(table: Table[tuple[str, str], V], run: str) -> None:
    for key in [key for key in table if key[0] == run]:
        del table[key]
