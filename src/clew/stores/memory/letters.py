"""Inboxes, tickets and decisions in memory."""

from msgspec.structs import replace

from clew import codec
from clew.core.letters import AnyLetter, DecisionLetter, MessageLetter
from clew.core.tickets import Ticket
from clew.errors import AlreadyTaken, NotFound
from clew.stores import admission, rows
from clew.stores.memory.world import Asked, Kept, World


def hears(world: World, run: str) -> bool:
    """Whether the run is there and not finished."""
    lease = world.leases.get(world.aliases.get(run, run))
    return lease is not None and not lease.done


def post(world: World, run: str, letter: AnyLetter) -> int:
    run = world.aliases.get(run, run)
    if run in world.tombstones:
        raise admission.ended(run)
    run = world.existing(run)
    known = world.messages.get((run, _message_id(letter)))
    if known is None:
        if not hears(world, run):
            raise admission.ended(run)
        deliver(world, run, letter)
    return known or world.leases[run].inbox_seq


def deliver(world: World, run: str, letter: AnyLetter) -> str:
    """One more letter for a run that hears, unless it is known by its message id; answers the run's own id."""
    run = world.aliases.get(run, run)
    message_id = _message_id(letter)
    if (run, message_id) in world.messages:
        return run
    number = world.leases[run].inbox_seq + 1
    world.leases[run] = replace(world.leases[run], inbox_seq=number, ready=True)
    world.runs[run] = rows.stirred(world.runs[run])
    body = admission.encoded_letter(replace(letter, inbox=number))
    world.inbox[run] = (*world.inbox[run], Kept(number, number, body))
    if message_id:
        world.messages[run, message_id] = number
    return run


def _message_id(letter: AnyLetter) -> str:
    return letter.message_id if isinstance(letter, MessageLetter) else ""


def withdraw(world: World, run: str, inbox: int, replacement: AnyLetter | None) -> None:
    lease = world.leases[run]
    letters = {letter.number: letter for letter in world.inbox[run]}
    if not 0 < inbox <= lease.inbox_seq:
        raise NotFound(f"run {run!r} has no letter {inbox}")
    if inbox not in letters:
        raise AlreadyTaken(f"run {run!r}: letter {inbox} is not in the inbox any more")
    if refusal := admission.not_withdrawable(run, codec.decode_letter(letters[inbox].body), replacement):
        raise refusal
    if replacement is None:
        del letters[inbox]
    else:
        # The inbox number moves, so that a driver that has read the old text cannot commit it.
        since = lease.inbox_seq + 1
        letters[inbox] = Kept(inbox, since, admission.encoded_letter(replace(replacement, inbox=inbox)))
        world.leases[run] = replace(lease, inbox_seq=since, ready=True)
    world.inbox[run] = tuple(letters.values())


def decide(world: World, run: str, letter: DecisionLetter) -> Ticket:
    key = (run, letter.ticket)
    asked = world.tickets.get(key)
    if asked is None:
        raise NotFound(f"run {run!r} has no ticket {letter.ticket!r}")
    if (first := decision(world, run, letter.ticket)) is not None:
        if admission.repeats(letter, first):
            return asked.ticket
        raise admission.already_decided(asked.ticket.ref, first)
    if world.leases[run].done:
        raise admission.ended(run)
    now = world.time.now()
    if refusal := admission.undecidable(asked.ticket, asked.closed, letter.decision, now):
        raise refusal
    letter = replace(letter, decided_at=letter.decided_at or now)
    settle(world, run, letter)
    deliver(world, run, letter)
    return world.tickets[key].ticket


def settle(world: World, run: str, letter: DecisionLetter) -> None:
    """The decision stands from now on."""
    key = (run, letter.ticket)
    world.decisions[key] = admission.encoded_letter(letter)
    if key in world.tickets:
        world.tickets[key] = Asked(rows.decided(world.tickets[key].ticket, letter), "decided")


def decision(world: World, run: str, ticket: str) -> DecisionLetter | None:
    body = world.decisions.get((run, ticket))
    letter = None if body is None else codec.decode_letter(body)
    return letter if isinstance(letter, DecisionLetter) else None
