"""The right to drive a run, as a row: who may take it, and how deaths in one place are counted."""

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from clew.core.entries import FORMAT, Owner
from clew.errors import ClewError, Unsupported
from clew.ports import Claim, LeaseInfo
from clew.stores import admission

SUSPECT = 2  # deaths in one place from which on a worker drives such a run alone
QUARANTINE = 5
FIRST_PAUSE = 500_000  # microseconds
LONGEST_PAUSE = 60_000_000

# The codec writes the kind first, so the place of a run is found without decoding its last entries.
ATTACHED = b'{"kind":"driver_attached"'


class Wanted(Struct, frozen=True):
    """What a look for work may bring back."""

    agents: Collection[str] | None = None
    limit: int = 1
    suspects: bool = True


class Lease(Struct, frozen=True, kw_only=True):
    """Who drives a run, where drivers died before, and all that a look for work has to know."""

    epoch: int = 0
    owner: Owner | None = None
    until: int = 0
    place: int = 0
    unclean: int = 0
    not_before: int = 0
    agent: str = ""
    format: int = 1
    ready: bool = True
    done: bool = False
    wake_at: int | None = None
    quarantined: bool = False
    inbox_seq: int = 0


class Deaths(Struct, frozen=True):
    """How often drivers have died in a place of a journal."""

    place: int
    count: int

    @property
    def pause(self) -> int:
        """Microseconds that the claim after this one has to wait."""
        return 0 if self.count == 0 else min(FIRST_PAUSE << (self.count - 1), LONGEST_PAUSE)


def deaths(lease: Lease, place: int) -> Deaths:
    """What the next claim counts: a lease that has an owner still was not ended by its driver."""
    if lease.place != place:
        return Deaths(place, 0 if lease.owner is None else 1)
    return Deaths(place, lease.unclean if lease.owner is None else lease.unclean + 1)


def has_work(lease: Lease, now: int) -> bool:
    """Whether a look for work may take the run, its owner aside."""
    due = lease.ready or lease.owner is not None or (lease.wake_at is not None and lease.wake_at <= now)
    return due and not lease.done and not lease.quarantined and lease.not_before <= now


def unclaimable(run: str, lease: Lease, *, held: bool) -> ClewError | None:
    """Why a run cannot be had even by name. A pause after deaths is for workers: whoever names the run means now."""
    if lease.done:
        return admission.ended(run)
    if lease.quarantined:
        return admission.quarantined(run)
    if lease.owner is not None and held:
        return admission.busy(run, lease.owner)
    if lease.format > FORMAT:
        return Unsupported(
            f"run {run!r} has entries of format {lease.format}, this Clew reads up to {FORMAT}: "
            "upgrade Clew to drive it"
        )
    return None


def not_retakable(run: str, lease: Lease, owner: Owner, epoch: int) -> ClewError | None:
    if lease.done:
        return admission.ended(run)
    # One epoch further under the same owner is this very request, whose answer was lost.
    again = lease.epoch == epoch + 1 and lease.owner == owner
    if not again and (lease.epoch != epoch or (lease.owner is not None and lease.owner != owner)):
        return admission.stale_epoch(run, epoch, lease.epoch)
    return admission.quarantined(run) if lease.quarantined else None


def claimed(lease: Lease, died: Deaths, owner: Owner, until: int, now: int) -> Lease:
    """The row under its new owner."""
    return replace(
        lease,
        epoch=lease.epoch + 1,
        owner=owner,
        until=until,
        place=died.place,
        unclean=died.count,
        not_before=now + died.pause if died.count else 0,
    )


def given_back(lease: Lease, not_before: int) -> Lease:
    """Nobody's again, as it was; a pause keeps whoever gave it back from taking it at once."""
    return replace(lease, owner=None, until=0, not_before=max(lease.not_before, not_before))


def set_aside(lease: Lease) -> Lease:
    """Quarantined: nobody drives it, and whoever did finds the lease gone."""
    return replace(lease, owner=None, until=0, quarantined=True)


def let_go_on(lease: Lease) -> Lease:
    return replace(lease, quarantined=False, unclean=0, not_before=0, ready=not lease.done)


def claim_of(run: str, lease: Lease, seq: int) -> Claim:
    return Claim(
        run=run,
        epoch=lease.epoch,
        agent=lease.agent,
        format=lease.format,
        seq=seq,
        inbox_seq=lease.inbox_seq,
        unclean=lease.unclean,
    )


def lease_info(run: str, lease: Lease, *, alive: bool) -> LeaseInfo:
    return LeaseInfo(
        run=run,
        epoch=lease.epoch,
        owner=lease.owner,
        until=lease.until,
        place=lease.place,
        unclean=lease.unclean,
        not_before=lease.not_before,
        alive=alive,
    )
