"""Inboxes, tickets and decisions."""

from msgspec.structs import replace

from clew import codec
from clew.core.letters import AnyLetter, DecisionLetter, MessageLetter
from clew.core.tickets import Ticket
from clew.errors import AlreadyTaken, NotFound
from clew.stores import admission, queries, rows
from clew.stores.sqlite import mapping
from clew.stores.sqlite.desk import Desk

_LETTERS = queries.load("letters")


def post(desk: Desk, run: str, letter: AnyLetter) -> tuple[int, list[str]]:
    found = desk.find(run)
    if found is None:
        raise admission.unknown(run)
    run, key, _ = found
    heard = None if key is None else _deliver(desk, key, letter)
    if heard is None:
        raise admission.ended(run)
    return heard, [run]


def post_if_heard(desk: Desk, run: str, letter: AnyLetter) -> list[str]:
    """Post to a run that may be over: then it is dropped."""
    found = desk.find(run)
    if found is None or found[1] is None or _deliver(desk, found[1], letter) is None:
        return []
    return [found[0]]


def _deliver(desk: Desk, key: int, letter: AnyLetter) -> int | None:
    """The letter's number, or None if the run is finished; a message that is known by its id has its number already."""
    message_id = letter.message_id if isinstance(letter, MessageLetter) else ""
    newest, done = desk.one(_LETTERS["target"], key)
    if message_id and (known := desk.one(_LETTERS["known"], key, message_id)):
        return int(known[0])
    if done:
        return None
    number = int(newest) + 1
    desk.run(_LETTERS["number"], number, key)
    desk.run(_LETTERS["stir"], key)
    desk.run(_LETTERS["insert"], key, number, number, admission.encoded_letter(replace(letter, inbox=number)))
    if message_id:
        desk.run(_LETTERS["remember"], key, message_id, number)
    return number


def withdraw(desk: Desk, run: str, inbox: int, replacement: AnyLetter | None) -> tuple[None, list[str]]:
    run, key = desk.existing(run)
    newest = desk.lease(key).inbox_seq
    if not 0 < inbox <= newest:
        raise NotFound(f"run {run!r} has no letter {inbox}")
    found = desk.one(_LETTERS["one"], key, inbox)
    if found is None:
        raise AlreadyTaken(f"run {run!r}: letter {inbox} is not in the inbox any more")
    if refusal := admission.not_withdrawable(run, codec.decode_letter(found[1]), replacement):
        raise refusal
    if replacement is None:
        desk.run(_LETTERS["delete"], key, inbox)
    else:
        # The inbox number moves, so that a driver that has read the old text cannot commit it.
        desk.run(_LETTERS["number"], newest + 1, key)
        body = admission.encoded_letter(replace(replacement, inbox=inbox))
        desk.run(_LETTERS["change"], newest + 1, body, key, inbox)
    return None, [run]


def decide(desk: Desk, run: str, letter: DecisionLetter) -> tuple[Ticket, list[str]]:
    run, key = desk.existing(run)
    asked = desk.one(_LETTERS["ticket"], key, letter.ticket)
    if asked is None:
        raise NotFound(f"run {run!r} has no ticket {letter.ticket!r}")
    ticket = mapping.ticket_of(asked[0])
    if (first := mapping.decision_of(desk.one(_LETTERS["decision"], key, letter.ticket))) is not None:
        if admission.repeats(letter, first):
            return ticket, []
        raise admission.already_decided(ticket.ref, first)
    if desk.lease(key).done:
        raise admission.ended(run)
    now = desk.time.now()
    if refusal := admission.undecidable(ticket, asked[1], letter.decision, now):
        raise refusal
    letter = replace(letter, decided_at=letter.decided_at or now)
    settle(desk, key, letter)
    _deliver(desk, key, letter)
    return rows.decided(ticket, letter), [run]


def settle(desk: Desk, key: int, letter: DecisionLetter) -> None:
    """The decision stands from now on, unless an earlier one does."""
    if desk.run(_LETTERS["decide"], key, letter.ticket, admission.encoded_letter(letter)).rowcount != 1:
        return
    asked = desk.one(_LETTERS["ticket"], key, letter.ticket)
    if asked is not None:
        ticket = rows.decided(mapping.ticket_of(asked[0]), letter)
        desk.run(_LETTERS["settle_ticket"], mapping.encode(ticket), key, letter.ticket)


def open_ticket(desk: Desk, key: int, ticket: Ticket) -> None:
    desk.run(_LETTERS["open_ticket"], key, ticket.id, ticket.kind, ticket.call or "", mapping.encode(ticket))
