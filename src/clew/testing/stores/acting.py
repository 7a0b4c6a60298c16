"""What the store kit acts with: a clock moved by hand, a driver that numbers what it commits, owners dead and alive."""

import subprocess
import sys
from typing import Any

from msgspec.structs import replace

from clew.core.entries import Entry, Noted, Owner, RunFinished, RunStarted, TicketOpened
from clew.core.letters import DecisionLetter, MessageLetter
from clew.core.messages import Message
from clew.core.outcomes import Completed
from clew.core.tickets import Approve, Decision
from clew.ports import Batch, NewRun, Projection, Receipt, Store
from clew.stores.owners import this_process

SECOND = 1_000_000
LEASE = 30 * SECOND
BEGIN = 1_760_000_000 * SECOND

HERE = this_process()
AWAY = Owner(host="elsewhere", boot=HERE.boot, pid=7, start=7)
FAR = Owner(host="far-away", boot=HERE.boot, pid=8, start=8)
BEFORE_REBOOT = Owner(host=HERE.host, boot="the boot before", pid=HERE.pid, start=HERE.start)

WAITING = Projection(status="waiting", reasons=("user_input",))
RUNNING = Projection(status="running")


class HandClock:
    """Moves when told to, the wall clock also backwards."""

    def __init__(self) -> None:
        self.wall = BEGIN
        self.boot = SECOND

    def now(self) -> int:
        return self.wall

    def boottime(self) -> int:
        return self.boot

    def advance(self, seconds: float) -> None:
        self.wall += int(seconds * SECOND)
        self.boot += int(seconds * SECOND)


class Driver:
    """One driver of one run: numbers its entries as a real one does, and can be made to believe anything."""

    def __init__(self, store: Store, run: str, *, epoch: int = 1, seq: int = 1, inbox_seen: int = 0) -> None:
        self.store = store
        self.run = run
        self.epoch = epoch
        self.seq = seq
        self.inbox_seen = inbox_seen

    def batch(self, *entries: Entry, **fields: Any) -> Batch:
        now = self.store.now()
        stamped = tuple(
            replace(entry, seq=self.seq + place, epoch=self.epoch, batch=self.seq + 1, at=entry.at or now)
            for place, entry in enumerate(entries, start=1)
        )
        return Batch(
            run=self.run,
            epoch=self.epoch,
            after_seq=self.seq,
            inbox_seen=self.inbox_seen,
            entries=stamped,
            **fields,
        )

    async def commit(self, *entries: Entry, **fields: Any) -> Receipt:
        batch = self.batch(*entries, **fields)
        receipt = await self.store.commit(batch)
        self.seq += len(entries)
        return receipt

    async def finish(self, **fields: Any) -> Receipt:
        return await self.commit(RunFinished(outcome=Completed()), **fields)

    async def release(self, projection: Projection = WAITING) -> Receipt:
        return await self.commit(projection=projection, lease="release")


def new_run(run: str, *more: Entry, digest: str = "sha256:d", epoch: int = 1, at: int = BEGIN, **fields: Any) -> NewRun:
    """A run to be made; `fields` of run_started and of NewRun alike."""
    placed = {name: fields.pop(name) for name in list(fields) if name in NewRun.__struct_fields__}
    agent = fields.pop("agent", "meteo")
    first = RunStarted(
        input=(Message.user("Rain?"),), agent=agent, fingerprint="sha256:f", start_digest=digest, **fields
    )
    entries = tuple(
        replace(entry, seq=seq, batch=1, epoch=epoch, at=at) for seq, entry in enumerate((first, *more), start=1)
    )
    return NewRun(run=run, entries=entries, **placed)


async def driven(store: Store, run: str, owner: Owner = AWAY, **fields: Any) -> Driver:
    """A new run and the driver that holds it from the first instant."""
    await store.start(new_run(run, owner=owner, lease=LEASE, **fields))
    return Driver(store, run)


async def claimed(store: Store, run: str, owner: Owner = AWAY) -> Driver:
    """The driver of a run that was free."""
    [claim] = await store.claim(owner, lease=LEASE, run=run)
    return Driver(store, run, epoch=claim.epoch, seq=claim.seq, inbox_seen=claim.inbox_seq)


def note(text: str = "") -> Noted:
    return Noted(note_kind="test", value=text)


def message(text: str, message_id: str = "") -> MessageLetter:
    return MessageLetter(messages=(Message.user(text),), message_id=message_id)


def decision(ticket: str, decision_id: str = "d1", decided: Decision | None = None, **fields: Any) -> DecisionLetter:
    return DecisionLetter(ticket=ticket, decision_id=decision_id, decision=decided or Approve(), **fields)


def approval(ticket: str = "1.tool.1", **fields: Any) -> TicketOpened:
    return TicketOpened(ticket=ticket, ticket_kind="approval", call=ticket, action="tool:pay", **fields)


def dead_process() -> Owner:
    """The identity of a process of this host that has ended."""
    program = "from clew.stores.owners import this_process as p; print(p().pid, p().start)"
    pid, start = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    return replace(HERE, pid=int(pid), start=int(start))
