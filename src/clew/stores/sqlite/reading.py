"""What can be asked of the file, each in one look: readers never wait for a writer."""

import logging
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from clew import codec
from clew.core.entries import Entry
from clew.core.letters import AnyLetter, DecisionLetter
from clew.core.outcomes import parse_outcome
from clew.core.tickets import Ticket
from clew.core.values import Digest, Value
from clew.errors import NotFound, UsageError
from clew.ports import RunFilter, RunInfo, ThreadInfo, TicketFilter
from clew.stores import admission, queries, rows
from clew.stores.legible import legible
from clew.stores.sqlite import mapping

log = logging.getLogger("clew.stores")

_JOURNAL = queries.load("journal")
_RUNS = queries.load("runs")
_THREADS = queries.load("threads")
_LEASES = queries.load("leases")
_LETTERS = queries.load("letters")
_READ = _JOURNAL["read"]
_END = 2**62
LONGEST_PLACE = 18  # digits

_metadata = msgspec.json.Decoder(dict[str, Value]).decode

_RUN_CONDITIONS = {
    "status": "run.status = :status",
    "quarantined": "run.key IN (SELECT run FROM lease WHERE quarantined)",
    "agent": "run.agent = :agent",
    "thread_id": "run.thread_id = :thread_id",
    "root": "run.root = :root",
    "id": "run.id = :id",
    "before": "run.key < :before",
}
_THREAD_CONDITIONS = {"id": "thread.id = :id", "before": "thread.key < :before"}
_TICKET_CONDITIONS = {
    "open": "ticket.closed IS NULL",
    "closed": "ticket.closed IS NOT NULL",
    "run_id": "run.id = :run_id",
    "agent": "run.agent = :agent",
    "thread_id": "run.thread_id = :thread_id",
    "kind": "ticket.kind = :kind",
    "ticket": "ticket.id = :ticket",
    "run": "(ticket.run, ticket.call, ticket.id) > (:run, :call, :id)",
}


def resolved(connection: sqlite3.Connection, run: str) -> tuple[str, int]:
    """The run meant by an id or an alias, and its number. Raises NotFound."""
    found = connection.execute(_RUNS["found"], (run,)).fetchone()
    if found is None:
        raise admission.unknown(run)
    if found[1] is None:
        raise admission.pruned(found[0])
    return found[0], found[1]


# --- journals ---------------------------------------------------------------------------------------------------------


def read_raw(connection: sqlite3.Connection, run: str, after: int = 0, until: int | None = None) -> list[bytes]:
    _, key = resolved(connection, run)
    found = connection.execute(_READ, (key, after, _END if until is None else until)).fetchall()
    return [body for (body,) in found]


def read(connection: sqlite3.Connection, run: str, after: int = 0, until: int | None = None) -> list[Entry]:
    _, key = resolved(connection, run)
    decode = codec.decode
    return [decode(body) for (body,) in connection.execute(_READ, (key, after, _END if until is None else until))]


def entries_since(
    connection: sqlite3.Connection, cursor: str | None, limit: int
) -> tuple[list[tuple[str, Entry, str]], str]:
    place = 0 if cursor is None else _place(cursor)
    found = connection.execute(_JOURNAL["since"], (place, limit)).fetchall()
    entries = legible((run, body, f"sqlite-{here}") for here, run, body in found)
    return entries, f"sqlite-{found[-1][0] if found else place}"


def cursor(connection: sqlite3.Connection) -> str:
    return f"sqlite-{connection.execute(_JOURNAL['newest']).fetchone()[0]}"


def _place(cursor: str) -> int:
    kind, _, place = str(cursor).partition("-")
    if kind != "sqlite" or not place.isdecimal() or len(place) > LONGEST_PLACE:
        raise UsageError(f"{cursor!r} is no cursor of this store: use one that it gave out")
    return int(place)


def newest_at(connection: sqlite3.Connection, last: int) -> int:
    """The latest time that the last entries bear."""
    found = connection.execute(_JOURNAL["last_bodies"], (last,)).fetchall()
    return max((rows.time_of(body) for (body,) in found), default=0)


def blobs(connection: sqlite3.Connection, digests: Collection[Digest]) -> dict[Digest, bytes]:
    found = ((digest, connection.execute(_JOURNAL["blob"], (digest,)).fetchone()) for digest in digests)
    return {digest: row[0] for digest, row in found if row is not None}


# --- runs -------------------------------------------------------------------------------------------------------------


def row(connection: sqlite3.Connection, run: str) -> RunInfo:
    """The row of a run, by its own id."""
    [found] = _select(connection, _RUNS["select"], _RUN_CONDITIONS, {"id": run, "limit": 1})
    return mapping.run_info(found)


def info(connection: sqlite3.Connection, run: str) -> RunInfo:
    found = connection.execute(_RUNS["found"], (run,)).fetchone()
    if found is None:
        raise admission.unknown(run)
    if found[1] is not None:
        return row(connection, found[0])
    _, outcome, finished_at = connection.execute(_RUNS["tombstone"], (found[0],)).fetchone()
    return RunInfo(run_id=found[0], status="done", outcome=parse_outcome(outcome), finished_at=finished_at)


def runs(connection: sqlite3.Connection, which: RunFilter) -> list[RunInfo]:
    given = {
        "status": None if which.status == "quarantined" else which.status,
        "quarantined": True if which.status == "quarantined" else None,
        "agent": which.agent,
        "thread_id": which.thread_id,
        "root": which.root,
        "before": None if which.after is None else resolved(connection, which.after)[1],
        "limit": which.limit,
    }
    found = _select(connection, _RUNS["select"], _RUN_CONDITIONS, given)
    return [info for info in map(_readable, found) if info is not None]


def _readable(found: Sequence[Any]) -> RunInfo | None:
    """A row for a list; one that is damaged must not hide the others."""
    try:
        return mapping.run_info(found)
    except (msgspec.DecodeError, UnicodeDecodeError, ArithmeticError, TypeError) as error:
        log.warning("the row of run %r cannot be read and is left out: %s", found[0], error)
        return None


def _select(
    connection: sqlite3.Connection, query: str, conditions: Mapping[str, str], given: Mapping[str, object]
) -> list[Any]:
    where = " AND ".join(text for name, text in conditions.items() if given.get(name) is not None) or "TRUE"
    return connection.execute(query.replace("{where}", where), given).fetchall()


# --- threads ----------------------------------------------------------------------------------------------------------


def thread(connection: sqlite3.Connection, thread_id: str) -> ThreadInfo | None:
    found = _threads(connection, {"id": thread_id, "limit": 1})
    return found[0] if found else None


def threads(connection: sqlite3.Connection, limit: int, after: str | None) -> list[ThreadInfo]:
    before = None
    if after is not None:
        found = connection.execute(_THREADS["key"], (after,)).fetchone()
        if found is None:
            raise NotFound(f"there is no thread {after!r} to go on from")
        before = found[0]
    return _threads(connection, {"before": before, "limit": limit})


def _threads(connection: sqlite3.Connection, given: Mapping[str, object]) -> list[ThreadInfo]:
    return [
        ThreadInfo(
            thread_id=found[0],
            head=found[1],
            head_seq=found[2],
            head_done=bool(found[3]),
            queue=tuple(run for (run,) in connection.execute(_THREADS["queue"], (found[7],))),
            created_at=found[4],
            updated_at=found[5],
            metadata=_metadata(found[6]),
        )
        for found in _select(connection, _THREADS["select"], _THREAD_CONDITIONS, given)
    ]


# --- letters and tickets ----------------------------------------------------------------------------------------------


def inbox(connection: sqlite3.Connection, run: str) -> list[AnyLetter]:
    run, _ = resolved(connection, run)
    return [codec.decode_letter(body) for (body,) in connection.execute(_LETTERS["select"], (run,))]


def mailed(connection: sqlite3.Connection, seen: Mapping[str, int]) -> list[str]:
    newest = ((run, connection.execute(_LEASES["mailed"], (run,)).fetchone()) for run in seen)
    return [run for run, found in newest if found is not None and found[0] > seen[run]]


def tickets(connection: sqlite3.Connection, which: TicketFilter) -> list[Ticket]:
    run_id = None if which.run_id is None else resolved(connection, which.run_id)[0]
    given: dict[str, object] = {
        "closed" if which.closed else "open": True,
        "run_id": run_id,
        "agent": which.agent,
        "thread_id": which.thread_id,
        "kind": which.kind,
        "ticket": which.ticket,
        "limit": which.limit,
    }
    if which.after is not None:
        given |= _ticket_place(connection, which.after)
    return [mapping.ticket_of(body) for (body,) in _select(connection, _LETTERS["tickets"], _TICKET_CONDITIONS, given)]


def _ticket_place(connection: sqlite3.Connection, ref: str) -> dict[str, object]:
    # The first slash parts them: ids of runs hold none, those of tickets may.
    run, _, ticket = ref.partition("/")
    found = connection.execute(_LETTERS["ticket_place"], (run, ticket)).fetchone()
    if found is None:
        raise NotFound(f"there is no ticket {ref!r} to go on from")
    return {"run": found[0], "call": found[1], "id": found[2]}


def decision(connection: sqlite3.Connection, run: str, ticket: str) -> DecisionLetter | None:
    _, key = resolved(connection, run)
    return mapping.decision_of(connection.execute(_LETTERS["decision"], (key, ticket)).fetchone())
