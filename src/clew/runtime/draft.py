"""A batch in the making: facts that are decided but not committed, and the state as it would be after them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import force_setattr, replace

from clew.core import entries as e
from clew.core.entries import Entry
from clew.core.letters import (
    AnyLetter,
    CancelLetter,
    ChildEndLetter,
    DecisionLetter,
    LateResultLetter,
    MessageLetter,
    PauseLetter,
    UnpauseLetter,
)
from clew.core.proceeding import arguments
from clew.core.state import State, apply
from clew.core.steps import call_of
from clew.core.tickets import Ticket
from clew.core.values import unpack
from clew.ports import Batch, HeadMove, Projection, Status
from clew.runtime.values import aside, stored

if TYPE_CHECKING:
    from clew.core.values import Digest


class Draft:
    """Entries get their place and time here; the state after them is thrown away if the store refuses."""

    def __init__(self, state: State, epoch: int, now: int) -> None:
        self.base = state
        self.state = state
        self.epoch = epoch
        self.now = max(now, state.at)
        self.entries: list[Entry] = []
        self.taken: list[int] = []
        self.heads: list[HeadMove] = []
        self.tickets: list[Ticket] = []
        self.blobs: dict[Digest, bytes] = {}

    def add(self, entry: Entry) -> None:
        force_setattr(entry, "seq", self.state.seq + 1)
        force_setattr(entry, "at", self.now)
        force_setattr(entry, "epoch", self.epoch)
        force_setattr(entry, "batch", self.base.seq + 1)
        self.state = apply(self.state, entry)
        self.entries.append(entry)
        if isinstance(entry, e.TicketOpened):
            self.tickets.append(ticket_of(self.state, entry))

    def add_copy(self, entry: Entry) -> None:
        """Add what may be decided twice: it is stamped, and what it was decided as is a value."""
        self.add(replace(entry))

    def take(self, letters: Iterable[AnyLetter]) -> None:
        """Letters become entries, in their order."""
        for letter in letters:
            self.taken.append(letter.inbox)
            if isinstance(letter, LateResultLetter):
                letter = replace(letter, value=stored(unpack(letter.value), self.blobs))
            elif isinstance(letter, MessageLetter):
                letter = replace(letter, messages=aside(letter.messages, self.blobs))
            self.add(entry_of(letter))

    def batch(self, inbox_seen: int, projection: Projection | None, *, release: bool) -> Batch:
        return Batch(
            run=self.state.run,
            epoch=self.epoch,
            after_seq=self.base.seq,
            inbox_seen=inbox_seen,
            entries=tuple(self.entries),
            taken=tuple(self.taken),
            heads=tuple(self.heads),
            blobs=self.blobs,
            projection=projection,
            tickets=tuple(self.tickets),
            lease="release" if release else "keep",
        )


def ticket_of(state: State, entry: e.TicketOpened) -> Ticket:
    """The row of a ticket, with what it is about."""
    call = next((one for one in state.calls if one.id == entry.call), None)
    started = state.started
    return Ticket(
        id=entry.ticket,
        run_id=state.run,
        thread_id=state.run if started is None else started.thread or state.run,
        kind=entry.ticket_kind,
        call=entry.call,
        tool=None if call is None else call.tool,
        args={} if call is None else arguments(call),
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


def entry_of(letter: AnyLetter) -> Entry:  # noqa: PLR0911
    """The fact that a letter becomes when it is taken in."""
    match letter:
        case CancelLetter():
            return e.CancelRequested(reason=letter.reason, by=letter.by, inbox=letter.inbox)
        case PauseLetter():
            return e.Paused(reason=letter.reason, by=letter.by, inbox=letter.inbox)
        case UnpauseLetter():
            return e.Unpaused(reason=letter.reason, by=letter.by, inbox=letter.inbox)
        case MessageLetter():
            return e.MessagesReceived(messages=letter.messages, inbox=(letter.inbox,), when=letter.when, by=letter.by)
        case DecisionLetter():
            return e.DecisionMade(
                ticket=letter.ticket,
                decision_id=letter.decision_id,
                decision=letter.decision,
                by=letter.by,
                decided_at=letter.decided_at,
            )
        case LateResultLetter():
            return e.LateResultReceived(
                step=letter.call,
                attempt=letter.attempt,
                call=call_of(letter.call),
                from_epoch=letter.from_epoch,
                value=letter.value,
                error=letter.error,
            )
        case ChildEndLetter():
            return e.ChildFinished(
                run=letter.run,
                outcome=letter.outcome,
                output=letter.output,
                usage=letter.usage,
                cost=letter.cost,
            )


def projected(state: State, *, wake_at: int | None, waits: bool) -> Projection:
    """The row of the run as this state shows it."""
    reasons = waiting_reasons(state, wake_at) if waits else ()
    return Projection(
        status=_status(state, waits=waits),
        reasons=reasons,
        tickets=tuple(sorted(state.tickets)),
        outcome=state.outcome,
        turns=state.turn - state.first_turn,
        calls=state.call_count,
        attempts=state.attempts,
        usage=state.usage,
        cost=state.cost,
        inherited_usage=state.inherited_usage,
        wake_at=wake_at,
    )


def _status(state: State, *, waits: bool) -> Status:
    if state.finished is not None:
        return "done"
    return "queued" if state.queued else "waiting" if waits else "running"


_TICKET_REASONS = {
    "doubt": "doubt",
    "sign_in": "sign_in",
    "approval": "tool_permission",
    "question": "user_input",
    "client_tool": "client_tool",
    "limit": "limit",
}
_REASONS = (
    "paused",
    "doubt",
    "sign_in",
    "tool_permission",
    "user_input",
    "client_tool",
    "limit",
    "background_tasks",
    "rate_limit",
    "timer",
    "external",
)


def waiting_reasons(state: State, wake_at: int | None) -> tuple[str, ...]:
    """Why the run waits, the reason that counts first."""
    found = {_TICKET_REASONS[ticket.ticket_kind] for ticket in state.tickets.values()}
    if state.paused is not None:
        found.add("paused")
    if any(child.background for child in state.children.values()):
        found.add("background_tasks")
    if wake_at is not None and wake_at not in {ticket.expires_at for ticket in state.tickets.values()}:
        found.add("rate_limit" if state.model.retry_at is not None else "timer")
    if not found:
        found.add("external")
    return tuple(reason for reason in _REASONS if reason in found)
