"""Which writes a store refuses, and in what words: values in, a refusal or nothing out."""

from collections.abc import Sequence

import msgspec

from clew import codec
from clew.core.entries import Entry, Owner, RunFinished, TicketClosed
from clew.core.letters import AnyLetter, DecisionLetter, MessageLetter
from clew.core.tickets import ALLOWED, Decision, Ticket
from clew.errors import (
    AlreadyDecided,
    ClewError,
    Conflict,
    InboxMoved,
    JournalCorrupt,
    NotFound,
    RunBusy,
    RunEnded,
    StaleWriter,
    UsageError,
)
from clew.ports import Batch, HeadMove, NewRun, ThreadInfo
from clew.stores import answers

LONGEST_SHOWN = 128  # characters of an id: what is not one may be any length

# --- journals ---------------------------------------------------------------------------------------------------------


def encoded(run: str, entries: Sequence[Entry], after: int, epoch: int) -> list[bytes]:
    """The bytes of a commit's entries. Raises UsageError if they are not numbered as they will stand."""
    bodies: list[bytes] = []
    first = seq = after + 1
    for entry in entries:
        if entry.seq != seq or entry.epoch != epoch or entry.batch != first:
            raise UsageError(
                f"run {run!r}: entry {entry.kind!r} says seq {entry.seq}, batch {entry.batch}, epoch {entry.epoch}; "
                f"it would be stored as seq {seq}, batch {first}, epoch {epoch}"
            )
        bodies.append(_encode(run, entry))
        seq += 1
    return bodies


def _encode(run: str, entry: Entry) -> bytes:
    try:
        return codec.encode(entry)
    except (msgspec.EncodeError, TypeError, ValueError) as error:
        raise UsageError(f"run {run!r}: an entry {entry.kind!r} cannot be stored as JSON: {error}") from error


def encoded_letter(letter: AnyLetter) -> bytes:
    try:
        return codec.encode_letter(letter)
    except (msgspec.EncodeError, TypeError, ValueError) as error:
        raise UsageError(f"a letter {letter.kind!r} cannot be stored as JSON: {error}") from error


def refused(batch: Batch, epoch: int | None, seq: int, inbox_seq: int) -> Conflict | None:
    """Why this batch may not be written; `epoch` is that of the standing lease, None if nobody holds one."""
    if batch.epoch != epoch:
        return stale_epoch(batch.run, batch.epoch, epoch)
    if batch.after_seq != seq:
        return StaleWriter(
            f"run {batch.run!r}: the journal ends at entry {seq}, this commit expected {batch.after_seq}: "
            "read the run again before going on"
        )
    if inbox_seq > batch.inbox_seen and _settles(batch):
        return InboxMoved(
            f"run {batch.run!r} has letters up to {inbox_seq}, this driver saw {batch.inbox_seen}: "
            "nothing was written; drain the inbox, then decide again"
        )
    return None


def stale_epoch(run: str, expected: int, found: int | None) -> StaleWriter:
    if found is None:
        return StaleWriter(f"run {run!r}: nobody holds its lease any more, epoch {expected} included: claim it first")
    return StaleWriter(
        f"run {run!r}: the lease has epoch {found}, this driver has {expected}: another one took it over"
    )


def _settles(batch: Batch) -> bool:
    """Whether a letter that came in between could have changed the decision."""
    return batch.lease == "release" or any(
        type(entry) is RunFinished or (type(entry) is TicketClosed and entry.why == "expired")
        for entry in batch.entries
    )


def letter_gone(run: str, number: int) -> InboxMoved:
    return InboxMoved(
        f"run {run!r}: letter {number} was withdrawn or changed after this driver read it: "
        "nothing was written; drain the inbox, then decide again"
    )


def head_moved(move: HeadMove, head: str | None) -> StaleWriter:
    return StaleWriter(
        f"thread {move.thread!r}: its head is {head!r}, this commit expected {move.expected!r}: nothing was written"
    )


# --- runs and threads -------------------------------------------------------------------------------------------------


def other_start(run: str, stored: str, given: str) -> Conflict:
    return Conflict(
        f"run {run!r} exists and was started otherwise: its start digest is {stored or 'not known'}, "
        f"this start has {given or 'none'}: use another run id, or the same arguments"
    )


def misplaced(new: NewRun, thread: ThreadInfo | None) -> Conflict | None:
    """Why a run cannot have its place in the thread: somebody was faster.

    A thread is busy while its head is unfinished or somebody is queued behind it.
    """
    if new.place == "apart":
        return None
    head, busy = (None, False) if thread is None else (thread.head, not thread.head_done or bool(thread.queue))
    if head != new.expected:
        return Conflict(f"thread {new.thread!r}: its head is {head!r}, not {new.expected!r}: read it again, then start")
    if new.place == "head" and busy:
        return Conflict(f"thread {new.thread!r} has the active or queued run {head!r}: queue behind it, or wait")
    if new.place == "queue" and not busy:
        return Conflict(f"thread {new.thread!r} is free, its run {head!r} is finished: start as its head")
    return None


def unknown(run: object) -> NotFound:
    shown = run if isinstance(run, str) else str(run)
    return NotFound(f"there is no run {shown if len(shown) <= LONGEST_SHOWN else shown[:LONGEST_SHOWN] + '…'!r}")


def ended(run: str) -> RunEnded:
    return RunEnded(f"run {run!r} is finished and takes no more letters")


def pruned(run: str) -> NotFound:
    return NotFound(f"run {run!r} was pruned: how it ended is known, its entries are gone")


def busy(run: str, owner: Owner) -> RunBusy:
    return RunBusy(f"run {run!r} is being driven by process {owner.pid} on {owner.host!r}")


def quarantined(run: str) -> JournalCorrupt:
    return JournalCorrupt(
        f"run {run!r} is quarantined, its drivers died or it cannot be read: "
        f"look at it, then `clew quarantine release {run}`"
    )


def alias_taken(name: str, run: str | None) -> Conflict:
    taken = "is a run of its own" if run is None else f"already stands for run {run!r}"
    return Conflict(f"{name!r} {taken}: use another name")


def not_prunable(run: str, needed_by: str | None) -> UsageError:
    why = "is not finished" if needed_by is None else f"is what run {needed_by!r} goes on from: prune that first"
    return UsageError(f"run {run!r} cannot be pruned: it {why}")


# --- letters and tickets ----------------------------------------------------------------------------------------------


def not_withdrawable(run: str, letter: object, replacement: object) -> UsageError | None:
    """Only messages are anybody's to take back: a decision or a cancel was acknowledged as done."""
    if isinstance(letter, MessageLetter) and isinstance(replacement, MessageLetter | None):
        return None
    return UsageError(f"run {run!r}: only messages can be withdrawn, and only messages can take their place")


def undecidable(ticket: Ticket, closed: str | None, decision: Decision, now: int) -> ClewError | None:
    """Why a ticket that has no decision takes none."""
    if closed is not None:
        return AlreadyDecided(f"ticket {ticket.ref!r} needs no decision any more: it was closed ({closed})")
    if ticket.expires_at is not None and ticket.expires_at <= now:
        return UsageError(f"ticket {ticket.ref!r} expired at {ticket.expires_at}: it is now {now} by the store's time")
    if not isinstance(decision, ALLOWED[ticket.kind]):
        names = ", ".join(kind.__name__ for kind in ALLOWED[ticket.kind])
        return UsageError(
            f"ticket {ticket.ref!r} is of kind {ticket.kind!r}: {type(decision).__name__} does not fit, use {names}"
        )
    if (wrong := answers.misfit(ticket, decision)) is not None:
        return UsageError(f"ticket {ticket.ref!r}: {type(decision).__name__} does not fit its schema: {wrong}")
    return None


def repeats(letter: DecisionLetter, first: DecisionLetter) -> bool:
    return letter.decision_id == first.decision_id and letter.decision == first.decision


def already_decided(ticket: str, first: DecisionLetter) -> AlreadyDecided:
    by = f" by {first.by}" if first.by else ""
    return AlreadyDecided(
        f"ticket {ticket!r} was decided{by} at {first.decided_at}: "
        f"{first.decision} stands (decision {first.decision_id!r})"
    )
