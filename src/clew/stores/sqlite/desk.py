"""The write connection and what every write needs beside it. One write at a time, inside a transaction."""

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from clew.core.entries import Owner
from clew.core.values import Digest
from clew.stores import admission, owners, queries, rows
from clew.stores.claims import ATTACHED, Lease
from clew.stores.clock import StoreTime
from clew.stores.owners import Presence
from clew.stores.sqlite import mapping

_JOURNAL = queries.load("journal")
_LEASES = queries.load("leases")
_RUNS = queries.load("runs")
_APPEND = _JOURNAL["append"]
_APPEND_MANY = [(count, _APPEND + ", (?, ?, ?)" * (count - 1)) for count in (64, 16, 4, 1)]
_KEY = _RUNS["key"]
_KEYS_KEPT = 10_000
_ALL = float("inf")


class Desk:
    """Asks and changes rows; decides nothing."""

    def __init__(self, connection: sqlite3.Connection, time: StoreTime, presence: Presence) -> None:
        self.connection = connection
        self.time = time
        self.presence = presence
        self._keys: dict[str, int] = {}

    def run(self, query: str, *values: object) -> sqlite3.Cursor:
        return self.connection.execute(query, values)

    def named(self, query: str, values: Mapping[str, object]) -> sqlite3.Cursor:
        return self.connection.execute(query, values)

    def one(self, query: str, *values: object) -> Any:
        """The first row, or None."""
        return self.connection.execute(query, values).fetchone()

    def forget(self) -> None:
        """A write was taken back, and with it perhaps a run whose number goes to another one."""
        self._keys.clear()

    # --- runs ---------------------------------------------------------------------------------------------------------

    def key(self, run: str) -> int | None:
        """The number of a run, by its own id."""
        key = self._keys.get(run)
        if key is None:
            found = self.one(_KEY, run)
            if found is None:
                return None
            if len(self._keys) >= _KEYS_KEPT:
                self._keys.clear()
            key = self._keys[run] = found[0]
        return key

    def find(self, run: str) -> tuple[str, int | None, str] | None:
        """What an id or an alias stands for: the run's id, its number (None: pruned), its start digest."""
        found: tuple[str, int | None, str] | None = self.one(_RUNS["found"], run)
        return found

    def existing(self, run: str) -> tuple[str, int]:
        """The run meant by an id or an alias, and its number. Raises NotFound."""
        key = self.key(run)
        if key is not None:
            return run, key
        found = self.find(run)
        if found is None:
            raise admission.unknown(run)
        if found[1] is None:
            raise admission.pruned(found[0])
        return found[0], found[1]

    # --- journals -----------------------------------------------------------------------------------------------------

    def append(self, key: int, seq: int, bodies: Iterable[bytes]) -> None:
        execute = self.connection.execute
        for body in bodies:
            seq += 1
            execute(_APPEND, (key, seq, body))

    def append_rows(self, values: list[object]) -> None:
        """Many entries: (run, seq, body) after (run, seq, body). One statement takes as many rows as it can."""
        rest = len(values)
        for rows_at_once, statement in _APPEND_MANY:
            while rest >= 3 * rows_at_once:
                first = len(values) - rest
                rest -= 3 * rows_at_once
                self.connection.execute(statement, values[first : first + 3 * rows_at_once])

    def keep(self, blobs: Mapping[Digest, bytes]) -> None:
        for digest, body in blobs.items():
            self.run(_JOURNAL["keep_blob"], digest, body)

    def last_seq(self, key: int) -> int:
        [seq] = self.one(_JOURNAL["last_seq"], key)
        return int(seq)

    def place_of(self, key: int) -> int:
        """The last seq, not counting drivers that only took the run up."""
        for seq, body in self.run(_JOURNAL["latest"], key):
            if not body.startswith(ATTACHED):
                return int(seq)
        return 0

    def catch_up(self, key: int) -> None:
        """Time may not go back in a journal, whatever the clock of the process that wrote its last entry said."""
        found = self.run(_JOURNAL["latest"], key).fetchone()
        if found is not None:
            self.time.not_below(rows.time_of(found[1]))

    # --- leases -------------------------------------------------------------------------------------------------------

    def lease(self, key: int) -> Lease:
        return mapping.lease_of(self.one(_LEASES["select"], key))

    def put_lease(self, key: int, lease: Lease) -> None:
        self.run(
            _LEASES["update"],
            lease.epoch,
            None if lease.owner is None else self.owner_key(lease.owner),
            lease.until,
            lease.place,
            lease.unclean,
            lease.not_before,
            lease.format,
            lease.ready,
            lease.done,
            lease.wake_at,
            lease.quarantined,
            lease.inbox_seq,
            key,
        )

    def add_lease(self, key: int, lease: Lease) -> None:
        self.run(
            _LEASES["insert"],
            key,
            lease.epoch,
            None if lease.owner is None else self.owner_key(lease.owner),
            lease.until,
            lease.place,
            lease.unclean,
            lease.not_before,
            lease.agent,
            lease.format,
            lease.ready,
            lease.done,
            lease.wake_at,
            lease.quarantined,
            lease.inbox_seq,
        )

    def owner_key(self, owner: Owner) -> int:
        identity = structs.astuple(owner)
        found = self.one(_LEASES["owner"], *identity)
        if found is None:
            self._forget_owners()
            return self.run(_LEASES["add_owner"], *identity).lastrowid or 0
        return int(found[0])

    def _forget_owners(self) -> None:
        """Every look for work asks after each owner, so those that are gone and hold nothing do not stay."""
        for key, *identity in self.run(_LEASES["owners"]).fetchall():
            if self.lapsed_before(Owner(*identity)) == _ALL:
                self.run(_LEASES["forget_owner"], key)

    def is_held(self, lease: Lease) -> bool:
        """Whether a living owner may still go on."""
        return lease.owner is not None and self.lapsed_before(lease.owner) < lease.until

    def lapsed_before(self, owner: Owner) -> float:
        """Leases of this owner up to here are over: by boot time, or all of them if it cannot be alive."""
        return _ALL if self.is_gone(owner) else self.time.boottime()

    def is_gone(self, owner: Owner) -> bool:
        return owner.boot != owners.this_process().boot or self.presence.is_gone(owner)
