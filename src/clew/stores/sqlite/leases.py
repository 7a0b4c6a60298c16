"""Claims and renewals."""

import sqlite3
from collections.abc import Collection, Iterator, Mapping

from msgspec import structs
from msgspec.structs import replace

from clew.core.entries import FORMAT, Owner
from clew.ports import Claim, LeaseInfo
from clew.stores import admission, claims, queries
from clew.stores.claims import Wanted
from clew.stores.sqlite.desk import Desk

_LEASES = queries.load("leases")
_RUNS = queries.load("runs")


def look(desk: Desk, owner: Owner, until: int, wanted: Wanted) -> tuple[list[Claim], list[str]]:
    """Claims of runs that have something to do and no living owner, at most one suspect among them."""
    found: list[Claim] = []
    suspects = wanted.suspects
    for key in list(candidates(desk, wanted)):
        if len(found) == wanted.limit:
            break
        suspect = claims.deaths(desk.lease(key), desk.place_of(key)).count >= claims.SUSPECT
        if suspect and not suspects:
            continue
        if claim := _take(desk, key, owner, until):
            found.append(claim)
            suspects = suspects and not suspect
    return found, []


def candidates(desk: Desk, wanted: Wanted) -> Iterator[int]:
    """Numbers of runs worth a closer look. It starts from the indexes of what there is to do, never from all runs."""
    connection, now = desk.connection, desk.time.now()
    asked = {
        "now": now,
        "format": FORMAT,
        "limit": wanted.limit,
        "suspects": wanted.suspects,
        "suspect": claims.SUSPECT,
    }
    for index in ("ready", "due"):
        agents = wanted.agents if wanted.agents is not None else _agents(connection, index)
        for agent in agents:
            for (key,) in connection.execute(_LEASES[index], asked | {"agent": agent}).fetchall():
                yield key
    for owner, *identity in connection.execute(_LEASES["owners"]).fetchall():
        lapsed = desk.lapsed_before(Owner(*identity))
        held = {"owner": owner, "until": lapsed, "now": now, "format": FORMAT}
        for key, agent in connection.execute(_LEASES["lapsed"], held).fetchall():
            if wanted.agents is None or agent in wanted.agents:
                yield key


def _agents(connection: sqlite3.Connection, index: str) -> list[str]:
    return [agent for (agent,) in connection.execute(_LEASES[f"agents_{index}"]).fetchall()]


def claim(desk: Desk, run: str, owner: Owner, until: int) -> tuple[Claim | None, list[str]]:
    """The claim of a run by name, or None if that quarantines it."""
    run, key = desk.existing(run)
    lease = desk.lease(key)
    if refusal := claims.unclaimable(run, lease, held=desk.is_held(lease)):
        raise refusal
    return _take(desk, key, owner, until), []


def _take(desk: Desk, key: int, owner: Owner, until: int) -> Claim | None:
    """The claim, or None if the run is quarantined instead."""
    desk.catch_up(key)
    lease, now = desk.lease(key), desk.time.now()
    died = claims.deaths(lease, desk.place_of(key))
    if died.count >= claims.QUARANTINE:
        desk.put_lease(key, claims.set_aside(lease))
        return None
    desk.run(_RUNS["begun"], now, key)
    lease = claims.claimed(lease, died, owner, until, now)
    desk.put_lease(key, lease)
    return _claim_of(desk, key, lease)


def _claim_of(desk: Desk, key: int, lease: claims.Lease) -> Claim:
    [run] = desk.one(_RUNS["id"], key)
    return claims.claim_of(run, lease, desk.last_seq(key))


def retake(desk: Desk, run: str, owner: Owner, epoch: int, until: int) -> tuple[Claim, list[str]]:
    run, key = desk.existing(run)
    lease = desk.lease(key)
    if refusal := claims.not_retakable(run, lease, owner, epoch):
        raise refusal
    lease = replace(lease, epoch=lease.epoch + 1, owner=owner, until=until)
    desk.put_lease(key, lease)
    return claims.claim_of(run, lease, desk.last_seq(key)), []


def renew(connection: sqlite3.Connection, owner: Owner, held: Mapping[str, int], until: int) -> set[str]:
    """In a transaction of its own, on a connection of its own: no driver waits for it, and it waits for none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = connection.execute(_LEASES["owner"], structs.astuple(owner)).fetchone()
        if found is None:
            return set()
        renewed = {
            run
            for run, epoch in held.items()
            if connection.execute(_LEASES["renew"], (until, run, epoch, found[0])).rowcount == 1
        }
        connection.execute("COMMIT")
        return renewed
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def give_back(desk: Desk, run: str, epoch: int, pause: int) -> tuple[None, list[str]]:
    key = desk.key(run)
    lease = None if key is None else desk.lease(key)
    held = lease.epoch if lease and lease.owner else None
    if key is None or lease is None or held != epoch:
        raise admission.stale_epoch(run, epoch, held)
    desk.put_lease(key, claims.given_back(lease, desk.time.now() + pause if pause else 0))
    return None, [run]


def quarantine(desk: Desk, run: str, on: bool) -> tuple[None, list[str]]:
    run, key = desk.existing(run)
    change = claims.set_aside if on else claims.let_go_on
    desk.put_lease(key, change(desk.lease(key)))
    return None, [run]


def lease(desk: Desk, run: str) -> LeaseInfo:
    run, key = desk.existing(run)
    row = desk.lease(key)
    return claims.lease_info(run, row, alive=desk.is_held(row))


def next_wake(connection: sqlite3.Connection, agents: Collection[str] | None) -> int | None:
    names = _agents(connection, "due") if agents is None else agents
    times = (connection.execute(_LEASES["next_wake"], (agent,)).fetchone()[0] for agent in names)
    return min((time for time in times if time is not None), default=None)
