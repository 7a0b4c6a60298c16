"""Claims and renewals in memory."""

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from clew.core.entries import FORMAT, Owner
from clew.ports import Claim
from clew.stores import admission, claims, rows
from clew.stores.memory.world import World


def look(world: World, owner: Owner, until: int, wanted: claims.Wanted) -> list[Claim]:
    """Claims of runs that have something to do and no living owner, at most one suspect among them."""
    found: list[Claim] = []
    suspects = wanted.suspects
    for run in _candidates(world, wanted.agents):
        if len(found) == wanted.limit:
            break
        suspect = claims.deaths(world.leases[run], world.place_of(run)).count >= claims.SUSPECT
        if suspect and not suspects:
            continue
        if claim := take(world, run, owner, until):
            found.append(claim)
            suspects = suspects and not suspect
    return found


def _candidates(world: World, agents: Collection[str] | None) -> Iterator[str]:
    now = world.time.now()
    for run, lease in list(world.leases.items()):
        wanted = (agents is None or lease.agent in agents) and lease.format <= FORMAT
        if wanted and claims.has_work(lease, now) and not world.is_held(lease):
            yield run


def claimable(world: World, run: str) -> str:
    """The run meant. Raises what keeps it from being driven by whoever asks for it by name."""
    run = world.existing(run)
    lease = world.leases[run]
    if refusal := claims.unclaimable(run, lease, held=world.is_held(lease)):
        raise refusal
    return run


def take(world: World, run: str, owner: Owner, until: int) -> Claim | None:
    """The claim, or None if the run is quarantined instead."""
    world.time.not_below(rows.time_of(world.journal[run, world.seqs[run]]))
    lease, now = world.leases[run], world.time.now()
    died = claims.deaths(lease, world.place_of(run))
    if died.count >= claims.QUARANTINE:
        world.leases[run] = claims.set_aside(lease)
        return None
    if world.runs[run].started_at is None:
        world.runs[run] = replace(world.runs[run], started_at=now)
    lease = claims.claimed(lease, died, owner, until, now)
    world.leases[run] = lease
    return claims.claim_of(run, lease, world.seqs[run])


def retake(world: World, run: str, owner: Owner, epoch: int, until: int) -> Claim:
    lease = world.leases[run]
    if refusal := claims.not_retakable(run, lease, owner, epoch):
        raise refusal
    world.leases[run] = replace(lease, epoch=lease.epoch + 1, owner=owner, until=until)
    return claims.claim_of(run, world.leases[run], world.seqs[run])


def renew(world: World, owner: Owner, held: Mapping[str, int], until: int) -> set[str]:
    standing: set[str] = set()
    for run, epoch in held.items():
        lease = world.leases.get(run)
        if lease is not None and lease.epoch == epoch and lease.owner == owner:
            world.leases[run] = replace(lease, until=until)
            standing.add(run)
    return standing


def give_back(world: World, run: str, epoch: int, pause: int) -> None:
    lease = world.leases.get(run)
    held = lease.epoch if lease and lease.owner else None
    if lease is None or held != epoch:
        raise admission.stale_epoch(run, epoch, held)
    world.leases[run] = claims.given_back(lease, world.time.now() + pause if pause else 0)


def next_wake(world: World, agents: Collection[str] | None) -> int | None:
    times = [
        lease.wake_at
        for lease in world.leases.values()
        if lease.wake_at is not None and lease.owner is None and not lease.quarantined
        if agents is None or lease.agent in agents
    ]
    return min(times, default=None)
