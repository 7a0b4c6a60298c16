"""How the rows beside a journal follow what is written to it: values in, values out."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from clew.codec import written_version
from clew.core.entries import (
    BaseAt,
    BaseFixed,
    DecisionMade,
    DriverAttached,
    Entry,
    RunFinished,
    TicketClosed,
    TicketOpened,
)
from clew.core.letters import DecisionLetter
from clew.core.messages import text_of
from clew.core.tickets import Ticket
from clew.ports import Batch, NewRun, Projection, RunInfo, Status
from clew.stores.claims import Lease

OLDEST = 1  # the version of an entry that is above no run's format
LABEL = 80  # characters of a run's input that are shown in lists

Closing = Literal["decided", "expired", "superseded", "withdrawn", "cancelled", "run_ended"]

# What a row has to follow; a commit of other entries alone writes no row.
_FOLLOWED = frozenset({RunFinished, BaseFixed, TicketOpened, DecisionMade, TicketClosed})


def is_plain(batch: Batch, format_: int) -> bool:
    """Whether it is entries alone, which is what a step writes and all that has to be fast."""
    if batch.projection is not None or batch.lease == "release":
        return False
    if batch.taken or batch.posts or batch.starts or batch.heads or batch.blobs:
        return False
    return all(type(entry) not in _FOLLOWED and written_version(entry) <= format_ for entry in batch.entries)


class _Stamp(msgspec.Struct):
    at: int = 0


_stamp = msgspec.json.Decoder(_Stamp).decode


def time_of(body: bytes) -> int:
    """When a stored entry happened. What else is wrong with it is for whoever reads the run."""
    try:
        return _stamp(body).at
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


# --- a run's row ------------------------------------------------------------------------------------------------------


def first_row(new: NewRun) -> RunInfo:
    """The row of a run as it is made."""
    first = new.started
    status: Status = "queued" if new.place == "queue" else "running"
    return RunInfo(
        run_id=new.run,
        thread_id=new.thread or first.thread or "",
        agent=first.agent,
        fingerprint=first.fingerprint,
        origin=first.origin,
        parent=first.parent.run if first.parent else None,
        root=first.root or new.run,
        base=first.base,
        status=status,
        label=_label(new),
        created_at=first.at,
        started_at=first.at if new.owner else None,
        updated_at=new.entries[-1].at,
        budget=first.budget,
        seq=len(new.entries),
        format=max(written_version(entry) for entry in new.entries),
        metadata=first.metadata,
    )


def _label(new: NewRun) -> str:
    text = next((text for message in new.started.input if (text := text_of(message.parts))), "")
    line = text.strip().partition("\n")[0]
    return line if len(line) <= LABEL else line[: LABEL - 1] + "…"


def first_lease(new: NewRun, row: RunInfo, until: int) -> Lease:
    """The lease row of a run as it is made."""
    return Lease(
        epoch=new.entries[0].epoch,
        owner=new.owner,
        until=until if new.owner else 0,
        place=place_of(new.entries) if new.owner else 0,
        agent=row.agent,
        format=row.format,
        ready=row.status != "queued",
    )


def place_of(entries: tuple[Entry, ...]) -> int:
    """The last seq of a new journal, not counting drivers that only took it up."""
    return max(entry.seq for entry in entries if not isinstance(entry, DriverAttached))


def next_row(row: RunInfo, batch: Batch, now: int) -> RunInfo:
    """The row of a run after a batch."""
    at = max(now, row.updated_at)
    if batch.projection is not None:
        row = _projected(row, batch.projection, at)
    for entry in batch.entries:
        match entry:
            case DriverAttached(fingerprint=fingerprint) if fingerprint:
                row = replace(row, fingerprint=fingerprint)
            case BaseFixed(run=base, base_seq=seq) if base:
                row = replace(row, base=BaseAt(base, seq))
            case RunFinished():
                row = _finished(row, entry, batch.projection)
            case _:
                continue
    return replace(row, updated_at=at)


def stirred(row: RunInfo) -> RunInfo:
    """Who waits and gets a letter waits no longer: somebody has to look at it."""
    return replace(row, status="running", reasons=(), waiting_since=None) if row.status == "waiting" else row


def _projected(row: RunInfo, told: Projection, at: int) -> RunInfo:
    return replace(
        row,
        # The run's turn may have come while its driver looked at it as a queued one.
        status=row.status if told.status == "queued" else told.status,
        reasons=told.reasons,
        message=told.message,
        tickets=told.tickets,
        waiting_since=at if told.status == "waiting" else None,
        outcome=told.outcome,
        turns=told.turns,
        calls=told.calls,
        attempts=told.attempts,
        usage=told.usage,
        cost=told.cost,
        inherited_usage=told.inherited_usage,
        wake_at=told.wake_at,
    )


def _finished(row: RunInfo, end: RunFinished, told: Projection | None) -> RunInfo:
    """The end as the entry has it; what else is counted stays as the projection says."""
    if told is None:
        row = replace(row, usage=end.usage, cost=end.cost, turns=end.turns, calls=end.calls)
    return replace(
        row,
        status="done",
        reasons=(),
        tickets=(),
        waiting_since=None,
        outcome=end.outcome,
        finished_at=end.at,
        wake_at=None,
    )


def next_lease(lease: Lease, row: RunInfo, batch: Batch) -> Lease:
    """The lease row of a run after a batch, its new run row known."""
    lease = replace(lease, wake_at=row.wake_at, done=row.status == "done", format=_format(lease, batch))
    if lease.done:
        return replace(lease, owner=None, until=0, ready=False, unclean=0, not_before=0)
    if batch.lease == "release":
        return replace(lease, owner=None, until=0, ready=row.status == "running", unclean=0, not_before=0)
    # A run at work that is given back as it is must be found: what had woken its driver is not in the row any more.
    return lease if lease.ready or row.status != "running" else replace(lease, ready=True)


def _format(lease: Lease, batch: Batch) -> int:
    return max(lease.format, *(written_version(entry) for entry in batch.entries)) if batch.entries else lease.format


# --- tickets ----------------------------------------------------------------------------------------------------------


def opened(entry: TicketOpened, row: RunInfo, tickets: Sequence[Ticket]) -> Ticket:
    """A ticket as its driver knows it, or else as its entry declares it, without the arguments of the call."""
    known = next((ticket for ticket in tickets if ticket.id == entry.ticket), None)
    if known is not None:
        return replace(known, run_id=row.run_id, thread_id=row.thread_id)
    return Ticket(
        id=entry.ticket,
        run_id=row.run_id,
        thread_id=row.thread_id,
        kind=entry.ticket_kind,
        call=entry.call,
        tool=entry.action.removeprefix("tool:") if entry.action.startswith("tool:") else None,
        args_digest=entry.args_digest,
        action=entry.action,
        prompt=entry.prompt,
        schema=entry.schema,
        reason=entry.reason,
        opened_at=entry.at,
        expires_at=entry.expires_at,
        on_expire=entry.on_expire,
        path=entry.path,
    )


def decided(ticket: Ticket, letter: DecisionLetter) -> Ticket:
    return replace(ticket, decision=letter.decision, decided_by=letter.by)


def letter_of(entry: DecisionMade) -> DecisionLetter:
    """A decision that came with a commit, in the form in which decisions are kept."""
    return DecisionLetter(
        by=entry.by,
        ticket=entry.ticket,
        decision_id=entry.decision_id,
        decision=entry.decision,
        decided_at=entry.decided_at,
    )


def ticket_entries(batch: Batch) -> Iterator[TicketOpened | DecisionMade | TicketClosed]:
    for entry in batch.entries:
        if isinstance(entry, TicketOpened | DecisionMade | TicketClosed):
            yield entry


def ends(batch: Batch) -> bool:
    return any(type(entry) is RunFinished for entry in batch.entries)
