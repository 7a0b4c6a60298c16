"""The store kit: claims, renewals, deaths, wake-ups."""

import pytest

from clew.core.entries import DriverAttached
from clew.core.letters import CancelLetter
from clew.errors import JournalCorrupt, NotFound, RunBusy, RunEnded, StaleWriter
from clew.ports import Claim, Projection, RunFilter, Store
from clew.testing.stores.acting import (
    AWAY,
    BEFORE_REBOOT,
    BEGIN,
    FAR,
    HERE,
    LEASE,
    RUNNING,
    SECOND,
    Driver,
    HandClock,
    claimed,
    dead_process,
    driven,
    new_run,
    note,
)


class LeaseContract:
    """Who may drive a run, until when, and what is made of those who died."""

    @pytest.mark.proves("J2", "R1")
    async def test_a_claim_takes_what_has_something_to_do(self, store: Store, clock: HandClock) -> None:
        await store.start(new_run("r"))
        [claim] = await store.claim(AWAY, lease=LEASE)
        assert (claim.run, claim.epoch, claim.agent, claim.format) == ("r", 2, "meteo", 1)
        assert (claim.seq, claim.inbox_seq, claim.unclean) == (1, 0, 0)
        assert await store.claim(FAR, lease=LEASE) == []
        lease = await store.lease("r")
        assert (lease.run, lease.owner, lease.epoch, lease.alive) == ("r", AWAY, 2, True)
        assert (lease.until, lease.place, lease.unclean) == (clock.boot + LEASE, 1, 0)
        assert (await store.info("r")).started_at == clock.wall

    @pytest.mark.proves("R0")
    async def test_a_claim_takes_no_more_than_asked(self, store: Store) -> None:
        for number in range(5):
            await store.start(new_run(f"r{number}", agent="ab"[number % 2]))
        assert [claim.run for claim in await store.claim(AWAY, lease=LEASE)] == ["r0"]
        assert [claim.run for claim in await store.claim(AWAY, lease=LEASE, agents=["b"], limit=9)] == ["r1", "r3"]
        assert await store.claim(AWAY, lease=LEASE, agents=["c"]) == []
        assert await store.claim(AWAY, lease=LEASE, agents=[]) == []
        assert {claim.run for claim in await store.claim(AWAY, lease=LEASE, agents=["a", "b"], limit=9)} == {"r2", "r4"}

    @pytest.mark.proves("R1")
    async def test_a_waiting_run_is_nobodys(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.release()
        lease = await store.lease("r")
        assert (lease.owner, lease.alive) == (None, False)
        assert await store.claim(AWAY, lease=LEASE) == []

    @pytest.mark.proves("R1")
    async def test_a_run_that_is_let_go_with_work_left_is_claimed_again(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.release(RUNNING)
        [claim] = await store.claim(FAR, lease=LEASE)
        assert (claim.epoch, claim.unclean) == (2, 0)

    @pytest.mark.proves("R0", "R4")
    async def test_a_due_time_is_work(self, store: Store, clock: HandClock) -> None:
        early = await driven(store, "early")
        late = await driven(store, "late", agent="other")
        assert await store.next_wake() is None
        await late.release(Projection(status="waiting", wake_at=BEGIN + 90 * SECOND))
        await early.release(Projection(status="waiting", wake_at=BEGIN + 60 * SECOND))
        assert await store.next_wake() == BEGIN + 60 * SECOND
        assert await store.next_wake(["other"]) == BEGIN + 90 * SECOND
        assert await store.next_wake([]) is None
        assert await store.claim(AWAY, lease=LEASE, limit=9) == []
        clock.advance(60)
        assert [claim.run for claim in await store.claim(AWAY, lease=LEASE, limit=9)] == ["early"]
        assert await store.next_wake() == BEGIN + 90 * SECOND
        driver = Driver(store, "early", epoch=2)
        await driver.release()
        clock.advance(3600)
        assert [claim.run for claim in await store.claim(AWAY, lease=LEASE, limit=9)] == ["late"]
        assert await store.next_wake() is None

    # --- by name ------------------------------------------------------------------------------------------------------

    @pytest.mark.proves("R1")
    async def test_a_run_that_is_driven_is_busy(self, store: Store) -> None:
        await driven(store, "r", HERE)
        with pytest.raises(RunBusy, match=rf"'r'.*process {HERE.pid}.*{HERE.host}"):
            await store.claim(AWAY, lease=LEASE, run="r")
        with pytest.raises(RunBusy, match="'r'"):
            await store.claim(HERE, lease=LEASE, run="r")

    @pytest.mark.proves("C1")
    async def test_a_waiting_run_is_had_by_name(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.release()
        await store.alias("name", "r")
        [claim] = await store.claim(FAR, lease=LEASE, run="name")
        assert (claim.run, claim.epoch, claim.seq) == ("r", 2, 1)
        again = Driver(store, "r", epoch=2)
        await again.finish()
        with pytest.raises(RunEnded, match="'r'"):
            await store.claim(FAR, lease=LEASE, run="r")
        with pytest.raises(NotFound, match="'nobody'"):
            await store.claim(FAR, lease=LEASE, run="nobody")

    # --- renewals and takeovers ---------------------------------------------------------------------------------------

    @pytest.mark.proves("R1")
    async def test_a_renewal_says_what_is_still_held(self, store: Store, clock: HandClock) -> None:
        for run in ("kept", "released", "stolen"):
            await driven(store, run)
        await Driver(store, "released").release()
        clock.advance(20)
        assert store.renew(AWAY, {"kept": 1}, LEASE) == {"kept"}
        clock.advance(20)
        assert {claim.run for claim in await store.claim(FAR, lease=LEASE, limit=9)} == {"stolen"}
        assert store.renew(AWAY, {"kept": 1, "released": 1, "stolen": 1, "nobody": 1}, LEASE) == {"kept"}
        assert store.renew(FAR, {"kept": 1, "stolen": 2}, LEASE) == {"stolen"}
        assert (await store.lease("kept")).until == clock.boot + LEASE
        assert store.renew(AWAY, {"kept": 2}, LEASE) == set()

    @pytest.mark.proves("R1")
    async def test_a_lease_that_runs_out_is_taken_over(self, store: Store, clock: HandClock) -> None:
        await driven(store, "r")
        clock.advance(29)
        assert await store.claim(FAR, lease=LEASE) == []
        clock.advance(1)
        assert (await store.lease("r")).alive is False
        [claim] = await store.claim(FAR, lease=LEASE)
        assert (claim.epoch, claim.unclean) == (2, 1)

    @pytest.mark.proves("R1", "R4")
    async def test_a_reboot_ends_every_lease(self, store: Store) -> None:
        await driven(store, "r", BEFORE_REBOOT)
        assert (await store.lease("r")).alive is False
        assert [claim.run for claim in await store.claim(AWAY, lease=LEASE)] == ["r"]

    @pytest.mark.proves("R1")
    async def test_a_dead_process_loses_its_leases_at_once(self, store: Store) -> None:
        await driven(store, "r", dead_process())
        assert (await store.lease("r")).alive is False
        [claim] = await store.claim(HERE, lease=LEASE, run="r")
        assert claim.unclean == 1

    @pytest.mark.proves("R4")
    async def test_the_wall_clock_moves_no_lease(self, store: Store, clock: HandClock) -> None:
        await driven(store, "r")
        clock.wall += 3600 * SECOND
        assert await store.claim(FAR, lease=LEASE) == []
        clock.wall -= 7200 * SECOND
        clock.boot += LEASE
        assert len(await store.claim(FAR, lease=LEASE)) == 1

    @pytest.mark.proves("J7")
    async def test_ones_own_run_is_retaken_under_a_new_epoch(self, store: Store) -> None:
        lost = await driven(store, "r")
        claim = await store.retake(AWAY, "r", 1, lease=LEASE)
        assert (claim.epoch, claim.seq, claim.unclean) == (2, 1, 0)
        with pytest.raises(StaleWriter):
            await lost.commit(note())
        again = Driver(store, "r", epoch=2)
        await again.commit(note())
        with pytest.raises(StaleWriter, match="'r'"):
            await store.retake(FAR, "r", 2, lease=LEASE)
        # The lost commit may have been the release itself.
        await again.release()
        claim = await store.retake(AWAY, "r", 2, lease=LEASE)
        await Driver(store, "r", epoch=claim.epoch, seq=claim.seq).finish()
        with pytest.raises(RunEnded, match="'r'"):
            await store.retake(AWAY, "r", 3, lease=LEASE)

    @pytest.mark.proves("J7")
    async def test_a_retake_whose_answer_was_lost_is_asked_again(self, store: Store) -> None:
        await driven(store, "r")
        for epoch in (2, 3):
            assert (await store.retake(AWAY, "r", epoch - 1, lease=LEASE)).epoch == epoch
        assert (await store.retake(AWAY, "r", 2, lease=LEASE)).epoch == 4
        with pytest.raises(StaleWriter, match="'r'"):
            await store.retake(AWAY, "r", 2, lease=LEASE)
        with pytest.raises(StaleWriter, match="'r'"):
            await store.retake(FAR, "r", 3, lease=LEASE)

    @pytest.mark.proves("J5", "R3")
    async def test_what_is_given_back_is_not_counted(self, store: Store) -> None:
        driver = await driven(store, "r")
        await store.give_back("r", 1)
        with pytest.raises(StaleWriter):
            await driver.commit(note())
        with pytest.raises(StaleWriter, match="'r'"):
            await store.give_back("r", 1)
        [claim] = await store.claim(FAR, lease=LEASE)
        assert (claim.epoch, claim.unclean) == (2, 0)
        with pytest.raises(StaleWriter, match="'r'"):
            await store.give_back("r", 1)
        with pytest.raises(StaleWriter, match="'nobody'"):
            await store.give_back("nobody", 1)

    @pytest.mark.proves("J5", "R3")
    async def test_what_is_given_back_with_a_pause_is_left_alone_for_so_long(
        self, store: Store, clock: HandClock
    ) -> None:
        await driven(store, "r")
        await store.give_back("r", 1, pause=5 * SECOND)
        clock.advance(4.9)
        assert await store.claim(AWAY, lease=LEASE) == []
        clock.advance(0.1)
        [claim] = await store.claim(AWAY, lease=LEASE)
        assert claim.unclean == 0

    @pytest.mark.proves("R0", "R3")
    async def test_what_its_time_had_woken_is_found_when_it_is_given_back_at_work(
        self, store: Store, clock: HandClock
    ) -> None:
        driver = await driven(store, "r")
        await driver.release(Projection(status="waiting", reasons=("timer",), wake_at=clock.wall + SECOND))
        assert await store.claim(FAR, lease=LEASE) == []
        clock.advance(1)
        [claim] = await store.claim(FAR, lease=LEASE)
        driver.epoch = claim.epoch
        await driver.commit(note(), projection=RUNNING)
        await store.give_back("r", claim.epoch)
        [claim] = await store.claim(AWAY, lease=LEASE)
        assert claim.run == "r"

    @pytest.mark.proves("R3")
    async def test_giving_back_forgets_no_deaths(self, store: Store, clock: HandClock) -> None:
        await _die(store, clock, "r", times=2)
        claim = await _next(store, clock)
        assert claim is not None
        assert claim.unclean == 2
        await store.give_back("r", claim.epoch)
        claim = await _next(store, clock)
        assert claim is not None
        assert claim.unclean == 2

    # --- deaths -------------------------------------------------------------------------------------------------------

    @pytest.mark.proves("R3")
    async def test_deaths_in_one_place_are_counted_by_the_claim(self, store: Store, clock: HandClock) -> None:
        await store.start(new_run("r"))
        counts: list[int] = []
        for _ in range(5):
            claim = await _next(store, clock)
            assert claim is not None
            counts.append(claim.unclean)
            # Taking the run up is no progress.
            await Driver(store, "r", epoch=claim.epoch, seq=claim.seq).commit(DriverAttached(worker="w"))
        assert counts == [0, 1, 2, 3, 4]

    @pytest.mark.proves("R3")
    async def test_the_fifth_death_quarantines(self, store: Store, clock: HandClock) -> None:
        await _die(store, clock, "r", times=5)
        assert await _next(store, clock) is None
        assert (await store.info("r")).quarantined
        assert [row.run_id for row in await store.runs(RunFilter(status="quarantined"))] == ["r"]
        with pytest.raises(JournalCorrupt, match="clew quarantine release r"):
            await store.claim(AWAY, lease=LEASE, run="r")
        await store.post("r", CancelLetter())
        assert await _next(store, clock) is None
        await store.quarantine("r", on=False)
        claim = await _next(store, clock)
        assert claim is not None
        assert (claim.unclean, (await store.info("r")).quarantined) == (0, False)
        assert await store.runs(RunFilter(status="quarantined")) == []

    @pytest.mark.proves("R3")
    async def test_the_claim_that_quarantines_by_name_says_so(self, store: Store, clock: HandClock) -> None:
        await _die(store, clock, "r", times=5)
        clock.advance(3600)
        for _ in range(2):
            with pytest.raises(JournalCorrupt, match="clew quarantine release r"):
                await store.claim(AWAY, lease=LEASE, run="r")

    @pytest.mark.proves("R3")
    @pytest.mark.parametrize("progress", ["entry", "release"])
    async def test_progress_and_a_clean_end_reset(self, store: Store, clock: HandClock, progress: str) -> None:
        await _die(store, clock, "r", times=2)
        claim = await _next(store, clock)
        assert claim is not None
        driver = Driver(store, "r", epoch=claim.epoch, seq=claim.seq)
        if progress == "entry":
            await driver.commit(note())
        else:
            await driver.release(RUNNING)
        claim = await _next(store, clock)
        assert claim is not None
        assert claim.unclean == (1 if progress == "entry" else 0)
        assert (await store.lease("r")).place == driver.seq

    @pytest.mark.proves("R3")
    async def test_claims_in_one_place_back_off(self, store: Store, clock: HandClock) -> None:
        await store.start(new_run("r"))
        pauses: list[float] = []
        for _ in range(5):
            claim = await _next(store, clock)
            assert claim is not None
            pauses.append(max((await store.lease("r")).not_before - clock.wall, 0) / SECOND)
        assert pauses == [0, 0.5, 1, 2, 4]

    @pytest.mark.proves("R3")
    async def test_a_pause_keeps_the_next_claim_waiting(self, store: Store, clock: HandClock) -> None:
        dead = dead_process()
        await driven(store, "r", dead)
        [claim] = await store.claim(dead, lease=LEASE)
        assert claim.unclean == 1
        assert await store.claim(HERE, lease=LEASE) == []
        clock.advance(0.5)
        [claim] = await store.claim(HERE, lease=LEASE)
        assert claim.unclean == 2

    @pytest.mark.proves("R3")
    async def test_whoever_names_the_run_does_not_wait(self, store: Store) -> None:
        dead = dead_process()
        await driven(store, "r", dead)
        for unclean in (1, 2, 3):
            [claim] = await store.claim(dead, lease=LEASE, run="r")
            assert claim.unclean == unclean

    @pytest.mark.proves("R3")
    async def test_suspects_are_driven_one_at_a_time(self, store: Store, clock: HandClock) -> None:
        for run in ("s1", "s2"):
            await store.start(new_run(run))
        for _ in range(2):
            clock.advance(100)
            assert len(await store.claim(AWAY, lease=LEASE, limit=9)) == 2
        await store.start(new_run("fresh"))
        clock.advance(100)
        assert [claim.run for claim in await store.claim(FAR, lease=LEASE, limit=9, suspects=False)] == ["fresh"]
        [suspect] = await store.claim(FAR, lease=LEASE, limit=9)
        assert suspect.unclean == 2
        [other] = await store.claim(FAR, lease=LEASE, limit=9)
        assert {suspect.run, other.run} == {"s1", "s2"}

    @pytest.mark.proves("J7", "R3")
    async def test_a_quarantined_run_is_driven_by_nobody(self, store: Store) -> None:
        driver = await driven(store, "r")
        other = await driven(store, "other")
        await store.quarantine("r", on=True)
        with pytest.raises(StaleWriter):
            await driver.commit(note())
        assert await store.claim(FAR, lease=LEASE, limit=9) == []
        await other.commit(note())
        await store.quarantine("r", on=False)
        assert (await claimed(store, "r")).epoch == 2
        with pytest.raises(NotFound, match="'nobody'"):
            await store.quarantine("nobody", on=True)


async def _next(store: Store, clock: HandClock) -> Claim | None:
    """What a look finds once every lease and every pause is over."""
    clock.advance(100)
    found = await store.claim(AWAY, lease=LEASE)
    return found[0] if found else None


async def _die(store: Store, clock: HandClock, run: str, *, times: int) -> None:
    """A run whose drivers died in its first place."""
    await store.start(new_run(run))
    for _ in range(times):
        assert await _next(store, clock) is not None
