"""Starting runs and committing batches in memory, and the rows that follow."""

from collections.abc import Sequence

from msgspec.structs import replace

from clew.core.entries import DecisionMade, TicketClosed, TicketOpened
from clew.core.tickets import Ticket
from clew.ports import Batch, HeadMove, NewRun, Started, ThreadInfo
from clew.stores import admission, rows
from clew.stores.memory import letters
from clew.stores.memory.world import Asked, World


def start(world: World, new: NewRun) -> Started:
    run = world.aliases.get(new.run, new.run)
    tombstone = world.tombstones.get(run)
    digest = tombstone.start_digest if tombstone else world.digests.get(run)
    if digest is not None:
        if run == new.run and digest != new.started.start_digest:
            raise admission.other_start(run, digest, new.started.start_digest)
        return Started(run, created=False, inbox_seq=world.leases[run].inbox_seq if run in world.leases else 0)
    bodies = admission.encoded(run, new.entries, 0, new.entries[0].epoch)
    _take_place(world, new)
    row = rows.first_row(new)
    world.runs[run] = row
    world.digests[run] = new.started.start_digest
    world.leases[run] = rows.first_lease(new, row, world.time.boottime() + new.lease)
    world.seqs[run] = 0
    world.inbox[run] = ()
    world.append(run, bodies)
    world.keep(new.blobs)
    return Started(run, created=True)


def _take_place(world: World, new: NewRun) -> None:
    thread = world.thread(new.thread)
    if refusal := admission.misplaced(new, thread):
        raise refusal
    if new.place != "apart":
        at = new.started.at
        thread = thread or ThreadInfo(thread_id=new.thread, created_at=at)
        queue = (*thread.queue, new.run) if new.place == "queue" else thread.queue
        head = new.run if new.place == "head" else thread.head
        world.threads[new.thread] = replace(thread, head=head, queue=queue, updated_at=at)


def commit(world: World, batch: Batch) -> list[str]:
    """The runs that changed."""
    run = batch.run
    lease = world.leases.get(run)
    if lease is None:
        raise admission.stale_epoch(run, batch.epoch, None)
    held = lease.epoch if lease.owner else None
    if refusal := admission.refused(batch, held, world.seqs[run], lease.inbox_seq):
        raise refusal
    world.append(run, admission.encoded(run, batch.entries, batch.after_seq, batch.epoch))
    return [run] if rows.is_plain(batch, lease.format) else [run, *_follow(world, batch)]


def _follow(world: World, batch: Batch) -> list[str]:
    world.keep(batch.blobs)
    _take_letters(world, batch)
    changed = [started.run for new in batch.starts if (started := start(world, new)).created]
    for move in batch.heads:
        _move_head(world, move)
    for entry in rows.ticket_entries(batch):
        _follow_ticket(world, batch.run, entry, batch.tickets)
    _follow_rows(world, batch)
    for target, letter in batch.posts:
        if letters.hears(world, target):
            changed.append(letters.deliver(world, target, letter))
    return changed


def _take_letters(world: World, batch: Batch) -> None:
    inbox = {letter.number: letter for letter in world.inbox[batch.run]}
    for number in batch.taken:
        letter = inbox.pop(number, None)
        if letter is None or letter.since > batch.inbox_seen:
            raise admission.letter_gone(batch.run, number)
    if batch.taken:
        world.inbox[batch.run] = tuple(inbox.values())


def _move_head(world: World, move: HeadMove) -> None:
    world.existing(move.new)
    now = world.time.now()
    thread = world.threads.get(move.thread) or ThreadInfo(thread_id=move.thread, created_at=now)
    if thread.head != move.expected:
        raise admission.head_moved(move, thread.head)
    queue = tuple(run for run in thread.queue if run != move.new)
    world.threads[move.thread] = replace(thread, head=move.new, queue=queue, updated_at=now)


def _follow_ticket(
    world: World, run: str, entry: TicketOpened | DecisionMade | TicketClosed, tickets: Sequence[Ticket]
) -> None:
    key = (run, entry.ticket)
    match entry:
        case TicketOpened():
            # A body that lets go again says again what it waits for: the ticket stays as it is.
            if key not in world.tickets:
                world.tickets[key] = Asked(rows.opened(entry, world.runs[run], tickets))
        case DecisionMade() if key not in world.decisions:
            letters.settle(world, run, rows.letter_of(entry))
        case TicketClosed() if key in world.tickets and world.tickets[key].closed is None:
            world.tickets[key] = Asked(world.tickets[key].ticket, entry.why)
        case _:
            return


def _follow_rows(world: World, batch: Batch) -> None:
    run = batch.run
    row = rows.next_row(world.runs[run], batch, world.time.now())
    world.runs[run] = row
    world.leases[run] = rows.next_lease(world.leases[run], row, batch)
    if not rows.ends(batch):
        return
    for key, asked in list(world.tickets.items()):
        if key[0] == run and asked.closed is None:
            world.tickets[key] = Asked(asked.ticket, "run_ended")
    _advance(world, run, row.thread_id)


def _advance(world: World, ended: str, thread_id: str) -> None:
    """The next of the queue becomes active once the thread's head is finished."""
    thread = world.thread(thread_id)
    if thread is None:
        return
    queue = tuple(run for run in thread.queue if run != ended)
    world.threads[thread_id] = replace(thread, queue=queue)
    if queue and thread.head_done and world.runs[queue[0]].status == "queued":
        world.runs[queue[0]] = replace(world.runs[queue[0]], status="running")
        world.leases[queue[0]] = replace(world.leases[queue[0]], ready=True)
