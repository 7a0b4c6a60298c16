"""What the memory store holds: rows by key, and the few questions that every verb asks of them."""

from collections.abc import Mapping
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from clew.core.entries import Owner
from clew.core.tickets import Ticket
from clew.core.values import Digest
from clew.ports import RunInfo, ThreadInfo
from clew.stores import admission, owners
from clew.stores.claims import ATTACHED, Lease
from clew.stores.clock import StoreTime
from clew.stores.memory.tables import Table, Undo
from clew.stores.rows import Closing


class Kept(Struct, frozen=True):
    """A letter in an inbox. `since` is the inbox number under which its present text came."""

    number: int
    since: int
    body: bytes


class Tombstone(Struct, frozen=True):
    """What is left of a pruned run."""

    start_digest: Digest
    outcome: str
    finished_at: int


class Asked(Struct, frozen=True):
    """A ticket, and why it is open no more."""

    ticket: Ticket
    closed: Closing | None = None


class World:
    """The tables. They change inside `undo.write` only."""

    def __init__(self, time: StoreTime) -> None:
        self.time = time
        self.undo = Undo()
        self.runs: Table[str, RunInfo] = Table(self.undo)
        self.digests: Table[str, Digest] = Table(self.undo)
        self.leases: Table[str, Lease] = Table(self.undo)
        self.seqs: Table[str, int] = Table(self.undo)
        self.journal: Table[tuple[str, int], bytes] = Table(self.undo)
        self.log: Table[int, tuple[str, int]] = Table(self.undo)
        self.inbox: Table[str, tuple[Kept, ...]] = Table(self.undo)
        self.messages: Table[tuple[str, str], int] = Table(self.undo)
        self.tickets: Table[tuple[str, str], Asked] = Table(self.undo)
        self.decisions: Table[tuple[str, str], bytes] = Table(self.undo)
        self.threads: Table[str, ThreadInfo] = Table(self.undo)
        self.aliases: Table[str, str] = Table(self.undo)
        self.tombstones: Table[str, Tombstone] = Table(self.undo)
        self.blobs: Table[Digest, bytes] = Table(self.undo)
        self.places = count(1)  # in the log: the order of commits over all runs

    def existing(self, run: str) -> str:
        """The run meant by an id or an alias. Raises NotFound."""
        run = self.aliases.get(run, run)
        if run in self.tombstones:
            raise admission.pruned(run)
        if run not in self.runs:
            raise admission.unknown(run)
        return run

    def append(self, run: str, bodies: list[bytes]) -> None:
        seq = self.seqs[run]
        for body in bodies:
            seq += 1
            self.journal[run, seq] = body
            self.log[next(self.places)] = (run, seq)
        self.seqs[run] = seq

    def keep(self, blobs: Mapping[Digest, bytes]) -> None:
        for digest, body in blobs.items():
            if digest not in self.blobs:
                self.blobs[digest] = body

    def row(self, run: str) -> RunInfo:
        """A run's row with what other rows know better."""
        lease = self.leases[run]
        return replace(
            self.runs[run],
            seq=self.seqs[run],
            inbox_seq=lease.inbox_seq,
            quarantined=lease.quarantined,
            wake_at=lease.wake_at,
            format=lease.format,
        )

    def thread(self, thread_id: str) -> ThreadInfo | None:
        thread = self.threads.get(thread_id)
        if thread is None or thread.head is None:
            return thread
        return replace(thread, head_seq=self.seqs[thread.head], head_done=self.leases[thread.head].done)

    def place_of(self, run: str) -> int:
        """The last seq, not counting drivers that only took the run up."""
        seq = self.seqs[run]
        while seq and self.journal[run, seq].startswith(ATTACHED):
            seq -= 1
        return seq

    def is_held(self, lease: Lease) -> bool:
        """Whether a living owner may still go on."""
        return lease.owner is not None and not self.is_gone(lease.owner) and lease.until > self.time.boottime()

    def is_gone(self, owner: Owner) -> bool:
        """Whether it cannot be alive: nothing here outlives a boot, or this very host."""
        here = owner.boot == owners.this_process().boot
        return not here or (owners.is_local(owner) and not owners.is_running(owner))
