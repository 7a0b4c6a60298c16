"""Starting runs and committing batches, and the rows that follow."""

from collections.abc import Sequence

import msgspec

from clew.core.entries import DecisionMade, TicketClosed, TicketOpened
from clew.core.tickets import Ticket
from clew.errors import ClewError
from clew.ports import Batch, HeadMove, NewRun, Receipt, Started
from clew.stores import admission, queries, rows
from clew.stores.sqlite import letters, mapping, reading
from clew.stores.sqlite.desk import Desk

_JOURNAL = queries.load("journal")
_RUNS = queries.load("runs")
_THREADS = queries.load("threads")
_LETTERS = queries.load("letters")
_STANDING = _JOURNAL["standing"]
_STANDINGS = _JOURNAL["standings"]
_decode_standings = msgspec.json.Decoder(list[list[int | None]]).decode

Changed = list[str]


def start(desk: Desk, new: NewRun) -> tuple[Started, Changed]:
    found = desk.find(new.run)
    if found is not None:
        run, key, digest = found
        if run == new.run and digest != new.started.start_digest:
            raise admission.other_start(run, digest, new.started.start_digest)
        return Started(run, created=False, inbox_seq=0 if key is None else desk.lease(key).inbox_seq), []
    bodies = admission.encoded(new.run, new.entries, 0, new.entries[0].epoch)
    thread = _thread_for(desk, new)
    row = rows.first_row(new)
    cursor = desk.named(_RUNS["insert"], mapping.columns(row) | {"start_digest": new.started.start_digest})
    key = cursor.lastrowid or 0
    desk.add_lease(key, rows.first_lease(new, row, desk.time.boottime() + new.lease))
    desk.append(key, 0, bodies)
    desk.keep(new.blobs)
    if thread is not None and new.place == "queue":
        desk.run(_THREADS["enqueue"], thread, key)
    elif thread is not None:
        desk.run(_THREADS["move"], key, new.started.at, thread)
    return Started(new.run, created=True), [new.run]


def _thread_for(desk: Desk, new: NewRun) -> int | None:
    """The number of the thread in which the run gets its place; None if it has none."""
    if new.place == "apart":
        return None
    if refusal := admission.misplaced(new, reading.thread(desk.connection, new.thread)):
        raise refusal
    return _thread_key(desk, new.thread, new.started.at)


def _thread_key(desk: Desk, thread: str, at: int) -> int:
    found = desk.one(_THREADS["key"], thread)
    return int(found[0]) if found else desk.run(_THREADS["insert"], thread, None, at, at).lastrowid or 0


def commit(desk: Desk, batch: Batch, plain: bool) -> tuple[Receipt, Changed]:
    """`plain`: it is known to be entries alone, of the oldest version."""
    run = batch.run
    key = desk.key(run)
    standing = None if key is None else desk.one(_STANDING, key)
    if key is None or standing is None:
        raise admission.stale_epoch(run, batch.epoch, None)
    epoch, owner, inbox_seq, format_, seq = standing
    if refusal := admission.refused(batch, None if owner is None else epoch, seq or 0, inbox_seq):
        raise refusal
    desk.append(key, batch.after_seq, admission.encoded(run, batch.entries, batch.after_seq, batch.epoch))
    if plain or rows.is_plain(batch, format_):
        return Receipt(inbox_seq), [run]
    changed = _follow(desk, key, batch)
    return Receipt(desk.lease(key).inbox_seq), changed


def commit_together(desk: Desk, batches: Sequence[Batch]) -> list[Receipt | ClewError]:
    """Batches of entries alone, of as many runs: each taken or refused on its own, in few statements."""
    keys = [desk.key(batch.run) for batch in batches]
    [found] = desk.one(_STANDINGS, mapping.encode(keys).decode())
    standings = {key: standing for key, *standing in _decode_standings(found)}
    values: list[object] = []
    outcomes = [_admit(batch, key, standings.get(key or 0), values) for batch, key in zip(batches, keys, strict=True)]
    desk.append_rows(values)
    return outcomes


def _admit(
    batch: Batch, key: int | None, standing: list[int | None] | None, values: list[object]
) -> Receipt | ClewError:
    if key is None or standing is None:
        return admission.stale_epoch(batch.run, batch.epoch, None)
    epoch, held, inbox_seq, _, last = standing
    seq = last or 0
    if refusal := admission.refused(batch, epoch if held else None, seq, inbox_seq or 0):
        return refusal
    try:
        bodies = admission.encoded(batch.run, batch.entries, seq, batch.epoch)
    except ClewError as error:
        return error
    for body in bodies:
        seq += 1
        values += (key, seq, body)
    return Receipt(inbox_seq or 0)


def _follow(desk: Desk, key: int, batch: Batch) -> Changed:
    changed = [batch.run]
    desk.keep(batch.blobs)
    for number in batch.taken:
        if desk.run(_LETTERS["take"], key, number, batch.inbox_seen).rowcount != 1:
            raise admission.letter_gone(batch.run, number)
    for new in batch.starts:
        changed += start(desk, new)[1]
    for move in batch.heads:
        _move_head(desk, move)
    for entry in rows.ticket_entries(batch):
        _follow_ticket(desk, key, batch.run, entry, batch.tickets)
    _follow_rows(desk, key, batch)
    for target, letter in batch.posts:
        changed += letters.post_if_heard(desk, target, letter)
    return changed


def _move_head(desk: Desk, move: HeadMove) -> None:
    now = desk.time.now()
    _, key = desk.existing(move.new)
    thread = reading.thread(desk.connection, move.thread)
    head = None if thread is None else thread.head
    if head != move.expected:
        raise admission.head_moved(move, head)
    desk.run(_THREADS["move"], key, now, _thread_key(desk, move.thread, now))
    desk.run(_THREADS["leave"], key)


def _follow_ticket(
    desk: Desk, key: int, run: str, entry: TicketOpened | DecisionMade | TicketClosed, tickets: Sequence[Ticket]
) -> None:
    match entry:
        case TicketOpened():
            row = reading.row(desk.connection, run)
            letters.open_ticket(desk, key, rows.opened(entry, row, tickets))
        case DecisionMade():
            letters.settle(desk, key, rows.letter_of(entry))
        case TicketClosed():
            desk.run(_LETTERS["close_ticket"], entry.why, key, entry.ticket)


def _follow_rows(desk: Desk, key: int, batch: Batch) -> None:
    row = rows.next_row(reading.row(desk.connection, batch.run), batch, desk.time.now())
    desk.named(_RUNS["update"], mapping.columns(row) | {"key": key})
    desk.put_lease(key, rows.next_lease(desk.lease(key), row, batch))
    if rows.ends(batch):
        desk.run(_LETTERS["close_tickets"], key)
        desk.run(_THREADS["leave"], key)
        _advance(desk, row.thread_id)


def _advance(desk: Desk, thread: str) -> None:
    """The next of the queue becomes active once the thread's head is finished."""
    found = desk.one(_THREADS["next"], thread)
    if found is not None:
        desk.run(_RUNS["activate"], found[0])
        desk.run(queries.load("leases")["wake"], found[0])


def alias(desk: Desk, name: str, run: str) -> tuple[None, Changed]:
    run, _ = desk.existing(run)
    found = desk.one(_RUNS["alias_of"], name)
    if found is not None and found[0] == run:
        return None, []
    if found is not None or desk.find(name) is not None:
        raise admission.alias_taken(name, found[0] if found else None)
    desk.run(_RUNS["alias"], name, run)
    return None, []
