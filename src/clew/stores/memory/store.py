"""The memory store's verbs: each one write or one look at the world."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count

from clew import codec
from clew.core.entries import Entry, Owner
from clew.core.letters import AnyLetter, DecisionLetter
from clew.core.tickets import Ticket
from clew.core.values import Digest
from clew.ports import (
    Batch,
    Claim,
    Clock,
    LeaseInfo,
    Listener,
    NewRun,
    Receipt,
    RunFilter,
    RunInfo,
    Started,
    ThreadInfo,
    TicketFilter,
)
from clew.stores import admission, claims
from clew.stores.clock import StoreTime
from clew.stores.memory import journal, leases, letters, pruning, reading
from clew.stores.memory.world import World


class MemoryStore:
    """A Store without a file. Every verb has the meaning that `clew.testing.StoreContract` gives it."""

    relay = None  # no other process can see what is here

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._time = StoreTime(clock)
        self._world = World(self._time)
        self._listeners: dict[int, Listener] = {}
        self._listener_ids = count()

    async def open(self) -> None:
        """What was stored stays until the object goes."""

    async def close(self) -> None:
        self._listeners.clear()

    def now(self) -> int:
        return self._time.now()

    # --- writing ------------------------------------------------------------------------------------------------------

    async def start(self, new: NewRun) -> Started:
        with self._world.undo.write():
            started = journal.start(self._world, new)
        self._tell([new.run] if started.created else [])
        return started

    async def commit(self, batch: Batch) -> Receipt:
        with self._world.undo.write():
            changed = journal.commit(self._world, batch)
            receipt = Receipt(self._world.leases[batch.run].inbox_seq)
        self._tell(changed)
        return receipt

    async def post(self, run: str, letter: AnyLetter) -> int:
        with self._world.undo.write():
            number = letters.post(self._world, run, letter)
        self._tell([self._world.existing(run)])
        return number

    async def withdraw(self, run: str, inbox: int, replacement: AnyLetter | None = None) -> None:
        with self._world.undo.write():
            run = self._world.existing(run)
            letters.withdraw(self._world, run, inbox, replacement)
        self._tell([run])

    async def decide(self, run: str, letter: DecisionLetter) -> Ticket:
        with self._world.undo.write():
            run = self._world.existing(run)
            ticket = letters.decide(self._world, run, letter)
        self._tell([run])
        return ticket

    async def alias(self, name: str, run: str) -> None:
        world = self._world
        with world.undo.write():
            run = world.existing(run)
            stands_for = world.aliases.get(name)
            if name in world.runs or name in world.tombstones or stands_for not in (None, run):
                raise admission.alias_taken(name, stands_for)
            world.aliases[name] = run

    async def prune(self, runs: Collection[str]) -> int:
        with self._world.undo.write():
            return pruning.prune(self._world, runs)

    # --- leases -------------------------------------------------------------------------------------------------------

    async def claim(
        self,
        owner: Owner,
        *,
        lease: int,
        run: str | None = None,
        agents: Collection[str] | None = None,
        limit: int = 1,
        suspects: bool = True,
    ) -> list[Claim]:
        until = self._time.boottime() + lease
        with self._world.undo.write():
            if run is None:
                return leases.look(self._world, owner, until, claims.Wanted(agents, limit, suspects))
            run = leases.claimable(self._world, run)
            claim = leases.take(self._world, run, owner, until)
        if claim is None:
            raise admission.quarantined(run)
        return [claim]

    async def retake(self, owner: Owner, run: str, epoch: int, *, lease: int) -> Claim:
        with self._world.undo.write():
            run = self._world.existing(run)
            return leases.retake(self._world, run, owner, epoch, self._time.boottime() + lease)

    def renew(self, owner: Owner, held: Mapping[str, int], lease: int) -> set[str]:
        with self._world.undo.write():
            return leases.renew(self._world, owner, held, self._time.boottime() + lease)

    async def give_back(self, run: str, epoch: int, *, pause: int = 0) -> None:
        with self._world.undo.write():
            leases.give_back(self._world, run, epoch, pause)
        self._tell([run])

    async def quarantine(self, run: str, on: bool) -> None:
        with self._world.undo.write():
            run = self._world.existing(run)
            change = claims.set_aside if on else claims.let_go_on
            self._world.leases[run] = change(self._world.leases[run])
        self._tell([run])

    async def lease(self, run: str) -> LeaseInfo:
        run = self._world.existing(run)
        row = self._world.leases[run]
        return claims.lease_info(run, row, alive=self._world.is_held(row))

    async def is_gone(self, owner: Owner) -> bool:
        return self._world.is_gone(owner)

    async def next_wake(self, agents: Collection[str] | None = None) -> int | None:
        return leases.next_wake(self._world, agents)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, run: str, after: int = 0, until: int | None = None) -> list[Entry]:
        return [codec.decode(body) for body in reading.read_raw(self._world, run, after, until)]

    async def read_raw(self, run: str, after: int = 0) -> list[bytes]:
        return reading.read_raw(self._world, run, after)

    async def entries_since(self, cursor: str | None, limit: int = 500) -> tuple[list[tuple[str, Entry, str]], str]:
        return reading.entries_since(self._world, cursor, limit)

    async def cursor(self) -> str:
        return reading.cursor(self._world)

    async def inbox(self, run: str) -> list[AnyLetter]:
        kept = self._world.inbox[self._world.existing(run)]
        return [codec.decode_letter(letter.body) for letter in kept]

    async def mailed(self, seen: Mapping[str, int]) -> list[str]:
        known = self._world.leases
        return [run for run, number in seen.items() if run in known and known[run].inbox_seq > number]

    async def blobs(self, digests: Collection[Digest]) -> dict[Digest, bytes]:
        return reading.blobs(self._world, digests)

    async def info(self, run: str) -> RunInfo:
        return reading.info(self._world, run)

    async def runs(self, which: RunFilter) -> list[RunInfo]:
        return reading.runs(self._world, which)

    async def thread(self, thread_id: str) -> ThreadInfo | None:
        return self._world.thread(thread_id)

    async def threads(self, *, limit: int = 100, after: str | None = None) -> list[ThreadInfo]:
        return reading.threads(self._world, limit, after)

    async def tickets(self, which: TicketFilter) -> list[Ticket]:
        return reading.tickets(self._world, which)

    async def decision(self, run: str, ticket: str) -> DecisionLetter | None:
        return letters.decision(self._world, self._world.existing(run), ticket)

    # --- listening ----------------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> Callable[[], None]:
        key = next(self._listener_ids)
        self._listeners[key] = listener

        def end() -> None:
            self._listeners.pop(key, None)

        return end

    def _tell(self, runs: Iterable[str]) -> None:
        if self._listeners:
            loop = asyncio.get_running_loop()
            for run in runs:
                for listener in list(self._listeners.values()):
                    loop.call_soon(listener, run)
