"""A process that drives many runs: claims them, keeps their leases, and leaves in good order."""

import asyncio
import logging
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from msgspec.structs import replace

from clew import codec
from clew.agent import Agent
from clew.core import entries as e
from clew.core.spec import AgentSpec, changes
from clew.core.state import Known, State
from clew.errors import ClewError, Conflict, JournalCorrupt, RunBusy, StaleWriter, StoreUnavailable, Unsupported
from clew.ports import Claim, HeadMove
from clew.runtime.attaching import Attach
from clew.runtime.bodies import over_at
from clew.runtime.driver import Driver
from clew.runtime.hands import Hands
from clew.runtime.redact import described, without_secrets
from clew.runtime.station import Station
from clew.runtime.user_code import Raised, attempt, attempt_sync, call
from clew.runtime.waiting import happened
from clew.stores import claims

log = logging.getLogger("clew.worker")

LOOK_EVERY = 0.5  # seconds: an expired lease is found within this
LOOK_APART = 0.01
DELIVER_APART = 0.04
GIVEN_BACK = 5_000_000  # microseconds for which what cannot be read here is left to others
UNREADABLE = 500_000
DEPS_AGAIN = 5_000_000
LEAVING_GRACE = 0.5


class Hold:
    """The lease of one run, as this process holds it."""

    def __init__(self, worker: "Worker", claim: Claim, confirmed: int) -> None:
        self.claim = claim
        self.driver: Driver | None = None
        self.confirmed = confirmed
        self.lost = False
        self.mail = False  # came before there was a driver to read it
        self.done = asyncio.Event()
        self._worker = worker

    @property
    def epoch(self) -> int:
        return self.claim.epoch

    async def good(self) -> bool:
        if not self.fresh:
            await asyncio.to_thread(self._worker.renew)
        return self.fresh

    @property
    def fresh(self) -> bool:
        station = self._worker.station
        return not self.lost and station.clock.boottime() - self.confirmed < station.lease * 2 // 3

    async def retake(self) -> None:
        station = self._worker.station
        now = station.clock.boottime()
        self.claim = await station.store.retake(station.owner, self.claim.run, self.claim.epoch, lease=station.lease)
        self.confirmed = now
        self.lost = False  # the renewal thread may have asked for the old epoch in between


class Worker:
    def __init__(self, station: Station, concurrency: int) -> None:
        self.station = station
        self._concurrency = concurrency
        self._held: dict[str, Hold] = {}
        self._look = asyncio.Event()
        self._closing = False
        self._delivering = False
        self._stop_renewing = threading.Event()
        self._renewing: threading.Thread | None = None
        self._looking: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, *, look: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._unlisten = self.station.store.listen(self._changed)
        if look:
            self._looking = self.station.spawn(self._look_for_work(), "clew-look")

    # --- leases

    def renew(self) -> None:
        """Confirm every lease held; runs in the renewal thread, so that a tool that blocks the loop loses nothing."""
        station = self.station
        held = {run: hold.epoch for run, hold in list(self._held.items())}
        if not held:
            return
        now = station.clock.boottime()
        kept = station.store.renew(station.owner, held, station.lease)
        for run, epoch in held.items():
            hold = self._held.get(run)
            if hold is None or hold.epoch != epoch:
                continue
            if run in kept:
                hold.confirmed = max(hold.confirmed, now)
            else:
                hold.lost = True

    def _keep_renewing(self) -> None:
        while not self._stop_renewing.wait(self.station.lease / 3_000_000):
            renewed = attempt_sync(self.renew)
            if isinstance(renewed, Raised):
                log.warning("leases could not be renewed, trying again: %s", described(renewed.error))

    def _hold(self, claim: Claim, confirmed: int) -> Hold:
        if self._renewing is None:
            self._renewing = threading.Thread(target=self._keep_renewing, name="clew-renew", daemon=True)
            self._renewing.start()
        hold = self._held[claim.run] = Hold(self, claim, confirmed)
        return hold

    # --- work

    @property
    def has_room(self) -> bool:
        return not self._closing and len(self._held) < self._concurrency

    def adopt(self, claim: Claim, state: State, confirmed: int) -> None:
        """Drive a run that this process has just started, under the lease it was started with."""
        hold = self._hold(claim, confirmed)
        self.station.spawn(self._drive(hold, state), f"drive {claim.run}")

    async def drive(self, run: str) -> None:
        """Drive one run here and now. Raises RunBusy naming the owner, RunEnded, JournalCorrupt."""
        if run in self._held:
            raise RunBusy(f"run {run!r} is being driven by this process: await its result()")
        # A task of its own: whoever waits may be cancelled, and the driver must not go with them.
        await asyncio.shield(self.station.spawn(self._take(run), f"drive {run}"))

    async def _take(self, run: str) -> None:
        station = self.station
        now = station.clock.boottime()
        [claim] = await station.store.claim(station.owner, lease=station.lease, run=run)
        await self._drive(self._hold(claim, now), None)

    def drives(self, run: str) -> bool:
        return run in self._held

    @property
    def driving(self) -> tuple[str, ...]:
        return tuple(self._held)

    def notify(self, run: str) -> bool:
        """There is mail for a run; whether this process drives it."""
        hold = self._held.get(run)
        if hold is None:
            return False
        hold.mail = True
        if hold.driver is not None:
            hold.driver.wake()
        return True

    def nudge(self) -> None:
        """The clock was moved: everything that waits for a time looks again."""
        self._look.set()
        for hold in self._held.values():
            if hold.driver is not None:
                hold.driver.nudge()

    def _changed(self, run: str | None) -> None:
        if run is None or run not in self._held:
            self._look.set()
        if self._held and not self._delivering:
            self._delivering = True
            self.station.spawn(self._deliver(), "clew-mail")

    async def _deliver(self) -> None:
        """Somebody wrote something: wake those of ours who got mail. Our own commits are among it, so not too often."""
        await asyncio.sleep(DELIVER_APART)
        self._delivering = False
        seen = {run: 0 if hold.driver is None else hold.driver.inbox_seen for run, hold in self._held.items()}
        try:
            for run in await self.station.store.mailed(seen):
                self.notify(run)
        except ClewError as error:
            log.warning("the mail could not be looked at, trying again: %s", error)
            self._changed(None)

    async def _look_for_work(self) -> None:
        while not self._closing:
            looked = await attempt(self._look_once())
            if isinstance(looked, Raised):
                if not isinstance(looked.error, Exception):
                    raise looked.error
                # Whatever it was: a process that looks no more recovers nothing and takes nothing over.
                log.warning("no look for work, trying again: %s", described(looked.error))
            await asyncio.sleep(LOOK_APART)
            await happened(self._look, LOOK_EVERY if isinstance(looked, Raised) else looked.value)
            self._look.clear()

    async def _look_once(self) -> float:
        """Seconds until the next look."""
        await self._claim_some()
        return await self._next_look()

    async def _claim_some(self) -> None:
        station = self.station
        names = list(station.agents)
        free = self._concurrency - len(self._held)
        if free <= 0 or not names:
            return
        now = station.clock.boottime()
        suspects = not any(hold.claim.unclean >= claims.SUSPECT for hold in self._held.values())
        claimed = await station.store.claim(
            station.owner, lease=station.lease, agents=names, limit=free, suspects=suspects
        )
        for claim in claimed:
            before = self._held.get(claim.run)
            if before is None:
                self.station.spawn(self._drive(self._hold(claim, now), None), f"drive {claim.run}")
            else:
                self.station.spawn(self._drive_next(before, claim, now), f"drive {claim.run}")

    async def _drive_next(self, before: Hold, claim: Claim, now: int) -> None:
        """A run that was given up and found again while its last driver is still leaving.

        Unless that one took it up anew: it may not have known that it had given the run up.
        """
        await before.done.wait()
        if before.epoch < claim.epoch:
            await self._drive(self._hold(claim, now), None)

    async def _next_look(self) -> float:
        """Seconds until somebody's time comes, if there is room for them then."""
        if not self.has_room:
            return LOOK_EVERY
        due = await self.station.store.next_wake(list(self.station.agents))
        if due is None:
            return LOOK_EVERY
        return min(LOOK_EVERY, max(due - self.station.store.now(), 0) / 1_000_000)

    # --- one activation

    async def _drive(self, hold: Hold, fresh: State | None) -> None:
        """One run from claim to release; whatever goes wrong stays with this run."""
        run = hold.claim.run
        state: State | None = None
        try:
            state = await self._activation(hold, fresh)
        except StaleWriter as error:
            log.warning("run %s was taken over: %s", run, error)
        except JournalCorrupt as error:
            log.error("run %s is set aside: %s", run, error)  # noqa: TRY400
            await self._say(self.station.store.quarantine(run, on=True))
        except Unsupported as error:
            log.warning("run %s is given back: %s", run, error)
            await self._say(self.station.store.give_back(run, hold.epoch, pause=GIVEN_BACK))
        except StoreUnavailable as error:
            # It could not be read, and nothing was begun: no death of a driver.
            log.warning("run %s is given back: %s", run, error)
            await self._say(self.station.store.give_back(run, hold.epoch, pause=UNREADABLE))
        except Conflict as error:
            log.warning("run %s could not be driven: %s", run, error)
        except Exception:  # noqa: BLE001
            # The lease is left to run out, so that the next claim counts this end in this place.
            log.error("run %s: its driver failed\n%s", run, without_secrets(traceback.format_exc()))  # noqa: TRY400
        finally:
            if self._held.get(run) is hold:
                del self._held[run]
            hold.done.set()
            self.station.feed.settled(run, state)
            self._look.set()

    async def _say(self, word: Awaitable[None]) -> None:
        """A last word to the store about a run; if it is not heard, the lease runs out and the next one says it."""
        outcome = await attempt(word)
        if isinstance(outcome, Raised):
            log.warning("the store did not take it: %s", outcome.error)

    async def _activation(self, hold: Hold, fresh: State | None) -> State:
        station = self.station
        state = await station.history.state(hold.claim.run) if fresh is None else fresh
        agent = station.agents.get(state.agent)
        attach: Attach | None = None
        if fresh is None:
            state, attach = await self._attach(hold.claim, state, agent)
        else:
            attach = Attach(inbox_seq=hold.claim.inbox_seq, agent=self.attached(agent))
        async with AsyncExitStack() as stack:
            hands = None
            if agent is not None:
                made = await attempt(station.deps(state.run, stack))
                if isinstance(made, Raised):
                    log.error("run %s: its deps could not be made: %s", state.run, described(made.error))
                    if not await station.store.inbox(state.run):
                        raise Unsupported("its deps could not be made")
                    # No agent code is needed to cancel a run: its mail is read all the same.
                    attach = replace(attach, retry_at=station.store.now() + DEPS_AGAIN)
                else:
                    hands = Hands(station, agent, made.value)
            driver = hold.driver = Driver(station, hold, state, hands, attach)
            if hold.mail:
                driver.wake()
            if self._closing:
                driver.stop()
            state = await driver.drive()
            if state.finished is not None and hands is not None and hands.has_on_finish:
                station.feed.settled(state.run, state)  # whoever waits for the result does not wait for what follows
                assert agent is not None
                await hands.on_finish(state, await station.result(state, agent))
            return state

    async def _attach(self, claim: Claim, state: State, agent: Agent[Any, Any] | None) -> tuple[State, Attach]:
        """What the activation's first commit says: where a queued run goes on from, who drives, what has changed."""
        station = self.station
        entries: list[e.Entry] = []
        heads: tuple[HeadMove, ...] = ()
        if state.queued:
            state, fixed, heads = await self._fixed_base(state)
            entries.extend(fixed)
        changed: tuple[str, ...] = ()
        blobs: dict[str, bytes] = {}
        if agent is not None and agent.fingerprint != state.fingerprint:
            changed = changes(state.spec or AgentSpec(name=agent.name), agent.spec)
            blobs[agent.fingerprint] = codec.encode_spec(agent.spec)
            station.history.remember(agent.spec, agent.fingerprint)
        attached = self.attached(agent, changed)
        entries.append(attached)
        return state, Attach(
            entries=tuple(entries),
            heads=heads,
            blobs=blobs,
            inbox_seq=claim.inbox_seq,
            agent=attached,
            refused=await self._refused(agent, changed),
            patience=await self._patience(state),
        )

    async def _fixed_base(self, state: State) -> tuple[State, list[e.Entry], tuple[HeadMove, ...]]:
        """A queued run goes on from where its thread is now; while that is still at work, it stays queued."""
        station = self.station
        assert state.started is not None
        thread = await station.store.thread(state.started.thread or state.run)
        if thread is None or not thread.head_done or thread.queue[:1] != (state.run,):
            return state, [], ()
        if thread.head is None:
            return state, [e.BaseFixed(run="", base_seq=0)], (HeadMove(thread.thread_id, None, state.run),)
        base = await station.history.state(thread.head, until=thread.head_seq)
        known = Known(specs=station.history.specs, bases={(thread.head, thread.head_seq): base})
        fixed = e.BaseFixed(run=thread.head, base_seq=thread.head_seq)
        return replace(state, known=known), [fixed], (HeadMove(thread.thread_id, thread.head, state.run),)

    async def _refused(self, agent: Agent[Any, Any] | None, changed: tuple[str, ...]) -> str | None:
        """What has changed, if the agent says that a run which began before must not go on."""
        if agent is None or not changed:
            return None
        wish: object = agent.on_change
        if callable(wish):
            outcome = await attempt(call(wish, changed))
            wish = "fail" if isinstance(outcome, Raised) else outcome.value
        return ", ".join(changed) if wish == "fail" else None

    def attached(self, agent: Agent[Any, Any] | None, changed: tuple[str, ...] = ()) -> e.DriverAttached:
        """The entry that says that this process took a run up."""
        station = self.station
        return e.DriverAttached(
            worker=station.worker,
            owner=station.owner,
            version=station.version,
            fingerprint="" if agent is None else agent.fingerprint,
            changed=changed,
        )

    async def _patience(self, state: State) -> dict[str, int]:
        """Until when what an earlier driver started may go on, if that one is not known to be dead.

        It need not be the last one: somebody who took the run over from a frozen process may have died over it.
        """
        begun = [call for call in state.open_calls if call.intent is not None or call.steps]
        gone = {
            owner: await self.station.store.is_gone(owner)
            for owner in {call.owner for call in begun}
            if owner is not None
        }
        lease = self.station.lease
        return {
            call.id: over_at(call, state.tool_of(call), lease)
            for call in begun
            if call.owner is None or not gone[call.owner]
        }

    # --- the end

    async def close(self) -> None:
        """Start nothing more, let what is being performed end within the grace, give every run back."""
        self._closing = True
        # A run that is being claimed meanwhile stops by itself, as soon as it has a driver.
        for driver in [hold.driver for hold in self._held.values() if hold.driver is not None]:
            driver.stop()
        self._look.set()
        if self._looking is not None:
            await asyncio.wait([self._looking])
        holds = list(self._held.values())
        if not await _all_done(holds, self.station.grace):
            for driver in [hold.driver for hold in holds if hold.driver is not None]:
                driver.leave(LEAVING_GRACE)
            await _all_done(holds, LEAVING_GRACE * 4)
        self._unlisten()
        self._stop_renewing.set()
        if self._renewing is not None:
            await asyncio.to_thread(self._renewing.join, LEAVING_GRACE * 4)


async def _all_done(holds: list[Hold], seconds: float) -> bool:
    until = asyncio.get_running_loop().time() + seconds
    return all([await happened(hold.done, until - asyncio.get_running_loop().time()) for hold in holds])
