"""The loop: drives one run from wherever it is until it waits or ends. Start, resume and fork are all this loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from clew.core import entries as e
from clew.core.effects import (
    Await,
    CallModel,
    CallTool,
    CheckOutput,
    Close,
    Effect,
    Finish,
    Here,
    Judge,
    Record,
    RunHooks,
    Verify,
)
from clew.core.letters import AnyLetter, MessageLetter
from clew.core.rules import next_effects
from clew.core.state import State
from clew.errors import InboxMoved, OutcomeUnknown, StaleWriter, StoreUnavailable
from clew.ports import Projection
from clew.runtime.asking import cut_off
from clew.runtime.attaching import Attach, refusal
from clew.runtime.draft import Draft, projected
from clew.runtime.flight import Done, Flight, Performed, Told
from clew.runtime.hands import HOOKS, Hands
from clew.runtime.merging import with_updates
from clew.runtime.recovery import late_letters, post_late, still_news
from clew.runtime.station import Lease, Station
from clew.runtime.waiting import happened

log = logging.getLogger("clew.driver")

T = TypeVar("T")
Timed = CallModel | CallTool | Verify | Record  # what may have to wait for its time
PARK_AFTER = 5_000_000  # a longer wait holds no task and no lease
ROW_EVERY = 1_000_000  # the counters of the row of a run at work are at most this old
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


class Driver:
    """One activation of one run: the only one who appends to its journal."""

    def __init__(self, station: Station, lease: Lease, state: State, hands: Hands | None, attach: Attach) -> None:
        self.state = state
        self._station = station
        self._lease = lease
        self._hands = hands
        self._attach = attach
        self._flights: dict[str, Flight] = {}
        self._landed: list[Flight] = []
        self._telling: list[Told] = []  # what of the flights is in the draft
        self._here = Here(patience=attach.patience)
        self._gathered: list[Done] = []
        self._state_blobs = {} if hands is None else hands.state_blobs
        self._verdicts: dict[str, Done] = {}  # known, and not written down yet
        self._letters: list[AnyLetter] = []
        self._inbox_seen = 0
        self._mail = attach.inbox_seq > 0
        self._attached_under = lease.epoch
        self._woken = asyncio.Event()
        self._stopping = False
        self._grace = station.grace
        self._row_at = 0 if attach.entries else state.at  # a start has just written it

    # --- from outside

    def wake(self) -> None:
        """There may be mail."""
        self._mail = True
        self._woken.set()

    def nudge(self) -> None:
        """The time may have come."""
        self._woken.set()

    def stop(self) -> None:
        """Start nothing more; give the run back once what is being performed has ended."""
        self._stopping = True
        self._woken.set()

    def interrupt(self) -> None:
        """Cancel what is being performed; what does not end within the grace is left behind."""
        for flight in self._flights.values():
            flight.interrupt()

    def leave(self, grace: float) -> None:
        """Stop, and wait no longer than this for what does not end by itself."""
        self._grace = grace
        self.stop()
        self.interrupt()

    @property
    def inbox_seen(self) -> int:
        return self._inbox_seen

    # --- the loop

    async def drive(self) -> State:
        """Until the run waits, ends, or is given back. Raises StaleWriter if another process took it over."""
        try:
            while True:
                await self._read_mail()
                draft, effects = self._decide()
                release = self._may_release(draft, effects)
                if draft.entries or release:
                    committed = await self._commit(draft, effects, release=release)
                    if committed and release:
                        return self.state
                    if not committed or self._mail:
                        continue
                await self._start(effects)
                await self._wait(effects)
        except StaleWriter:
            await self._hand_over()
            raise
        finally:
            self.interrupt()
            for step in [HOOKS, *self._flights, *(flight.step for flight in self._landed)]:
                self._station.feed.end(self.state.run, step)

    def _decide(self) -> tuple[Draft, tuple[Effect, ...]]:
        """Everything that is a fact already or follows without outside work, and what must be performed next."""
        draft = Draft(self.state, self._lease.epoch, self._station.store.now())
        for done in self._gathered:
            draft.blobs.update(done.blobs)
            for entry in self._facts(draft, done):
                draft.add(entry)
        for entry in self._attach.entries:
            draft.add_copy(entry)
        draft.heads.extend(self._attach.heads)
        draft.blobs.update(self._attach.blobs)
        draft.take([letter for letter in self._letters if not isinstance(letter, MessageLetter)])
        self._telling = [told for flight in self._flights.values() for told in flight.telling]
        for told in self._telling:
            draft.blobs.update(told.blobs)
            for entry in told.entries:
                draft.add_copy(entry)
        while True:
            refused = self._attach.refused is not None and draft.state.cancel is None
            effects = refusal(draft.state, self._attach) if refused else next_effects(draft.state, self._here)
            if not self._record(draft, effects):
                return draft, effects

    def _facts(self, draft: Draft, done: Done) -> tuple[e.Entry, ...]:
        """What came of an effect; what it gave to state keys is merged with what others gave."""
        if not done.updates:
            return done.entries
        return with_updates(draft.state, done, draft.blobs, self._state_blobs)

    def _record(self, draft: Draft, effects: tuple[Effect, ...]) -> bool:  # noqa: C901
        """Add what can be written down at once; whether there was anything, so that the rules must be asked again."""
        if Judge in map(type, effects) and self._waits_for_verdict(draft, effects):
            return False
        before, here = len(draft.entries), self._here
        for effect in effects:
            match effect:
                case CallModel(step) if step not in self._flights:
                    self._take_messages(draft)
                case CallModel() | CallTool():
                    pass
                case Judge() | RunHooks():
                    self._settle_at_once(draft, effect)
                case Record(entry) if self._may_record(draft, effect):
                    draft.add_copy(entry)
                case Close():
                    self._close(draft, effect)
                case CheckOutput():
                    self._check_output(draft, effect)
                case Finish(entry):
                    self._finish(draft, entry)
                case Verify() | Await() | Record():
                    pass
        return len(draft.entries) > before or self._here is not here

    def _waits_for_verdict(self, draft: Draft, effects: tuple[Effect, ...]) -> bool:
        """Whether a reply is to be committed first, alone, since a verdict on one of its calls has to be awaited."""
        judges = [effect for effect in effects if type(effect) is Judge]
        if not judges or self._hands is None or self._stopping:
            return False
        if not any(type(entry) is e.ModelReplied for entry in draft.entries):
            return False
        waits = False
        for effect in judges:
            if effect.step not in self._verdicts:
                done = self._hands.at_once(effect, draft.state)
                if done is not None:
                    self._verdicts[effect.step] = done
                waits = waits or done is None
        if waits:
            self._woken.set()  # its other calls go on as soon as it is committed
        return waits

    def _settle_at_once(self, draft: Draft, effect: Judge | RunHooks) -> None:
        """What follows from rules alone needs no commit of its own; what has to be awaited is started like a body."""
        if effect.step in self._flights or self._hands is None or self._stopping:
            return
        done = self._verdicts.pop(effect.step, None) or self._hands.at_once(effect, draft.state)
        if done is not None:
            draft.blobs.update(done.blobs)
            for entry in self._facts(draft, done):
                draft.add(entry)
            if done.passed:
                self._pass(effect)

    def _pass(self, effect: Judge | RunHooks) -> None:
        here = self._here
        if isinstance(effect, Judge):
            self._here = replace(here, allowed=here.allowed | {effect.step})
        else:
            self._here = replace(here, hooked=here.hooked | {effect.step})

    def _may_record(self, draft: Draft, effect: Record) -> bool:
        """An intent says that a body is about to start: not before its time, and not by one who starts nothing."""
        if effect.not_before is not None and effect.not_before > draft.now:
            return False
        if not isinstance(effect.entry, e.ToolStarted):
            return True
        # A body that lets go may not have left yet: the next one starts after it.
        return not (self._stopping or self._hands is None or effect.entry.call in self._flights)

    def _close(self, draft: Draft, effect: Close) -> None:
        flight = self._flights.get(effect.step)
        if flight is None:
            draft.add_copy(effect.entry)
        elif effect.interrupt:
            flight.interrupt()

    def _check_output(self, draft: Draft, effect: CheckOutput) -> None:
        """An answer to a question that was not the last is no output."""
        if not self._take_messages(draft, idle=True) and self._hands is not None:
            draft.add(self._hands.check_output(effect, draft.state, draft.blobs))

    def _finish(self, draft: Draft, entry: e.RunFinished) -> None:
        """The end is written last: after what is being performed, and after every letter that was accepted."""
        if self._flights:
            self.interrupt()
        elif not self._take_messages(draft, idle=True):
            draft.add_copy(entry)

    def _take_messages(self, draft: Draft, *, idle: bool = False) -> bool:
        """Messages are taken in at a boundary: before the model is asked, the patient ones only at the end."""
        due = [
            letter
            for letter in self._letters
            if isinstance(letter, MessageLetter) and letter.inbox not in draft.taken and (idle or letter.when == "asap")
        ]
        draft.take(due)
        return bool(due)

    def _may_release(self, draft: Draft, effects: tuple[Effect, ...]) -> bool:
        """Whether nobody needs to stay with the run: it ended, it waits, or this process is leaving."""
        if draft.state.finished is not None:
            return True
        if self._flights:
            return False
        return self._stopping or self._hands is None or not self._startable(draft, effects)

    def _startable(self, draft: Draft, effects: tuple[Effect, ...]) -> bool:
        for effect in effects:
            if isinstance(effect, Judge | RunHooks):
                return True
            if isinstance(effect, Timed) and (effect.not_before or 0) <= draft.now + PARK_AFTER:
                return True
        return False

    # --- writing

    async def _commit(self, draft: Draft, effects: tuple[Effect, ...], *, release: bool) -> bool:
        """Make the draft durable and the state its own. False: it is not, read the mail and decide again."""
        batch = draft.batch(self._inbox_seen, self._projection(draft, effects, release=release), release=release)
        try:
            receipt = await self._insist(lambda: self._station.store.commit(batch))
        except InboxMoved:
            self._mail = True
            return False
        except OutcomeUnknown:
            await self._retake(draft)
            return False
        self._committed(draft, projected=batch.projection is not None)
        self._mail = self._mail or receipt.inbox_seq > self._inbox_seen
        return True

    def _projection(self, draft: Draft, effects: tuple[Effect, ...], *, release: bool) -> Projection | None:
        """The row of the run, where it has to be written: at a release, and now and then."""
        if not release:
            return projected(draft.state, wake_at=None, waits=False) if draft.now - self._row_at >= ROW_EVERY else None
        retry_at = self._attach.retry_at
        waits = [effect.not_before for effect in effects if isinstance(effect, Timed)]
        dues = [due for due in (*waits, retry_at) if due is not None and draft.state.finished is None]
        wake_at = min(dues) if dues else None
        leaving = self._stopping or (self._hands is None and bool(effects) and retry_at is None)
        return projected(draft.state, wake_at=wake_at, waits=not leaving)

    async def _insist(self, touch: Callable[[], Awaitable[T]], *, settles: bool = False) -> T:
        """Touch the store, again and again while it cannot be used and the lease holds.

        `settles`: the touch may be made twice, so that one with an unknown outcome is simply made again.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                return await touch()
            except StoreUnavailable as error:
                if isinstance(error, OutcomeUnknown) and not settles:
                    raise
                log.warning("run %s: the store refuses for now, trying again: %s", self.state.run, error)
                if not await self._lease.good():
                    raise StaleWriter(f"run {self.state.run!r}: the store was away longer than the lease") from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _committed(self, draft: Draft, *, projected: bool) -> None:
        self.state = draft.state
        for flight in self._landed:
            self._station.feed.end(self.state.run, flight.step)
        self._landed.clear()
        self._gathered.clear()
        self._heard()
        if self._attach.entries:
            self._attach = replace(self._attach, entries=(), heads=(), blobs={})
        if draft.taken:
            self._letters = [letter for letter in self._letters if letter.inbox not in draft.taken]
        if projected:
            self._row_at = draft.now

    def _heard(self) -> None:
        """What bodies told is committed: they go on."""
        if not self._telling:
            return
        for told in self._telling:
            told.known()
        for flight in self._flights.values():
            flight.telling = [told for told in flight.telling if told not in self._telling]
        self._telling = []

    async def _retake(self, draft: Draft) -> None:
        """Nobody knows whether the last batch was written: take the run anew, which settles it, read, decide again.

        What is being performed goes on meanwhile; what it comes to is added under the new epoch.
        """
        await self._insist(self._lease.retake, settles=True)
        fresh = await self._insist(lambda: self._station.history.state(self.state.run))
        if fresh.epoch >= self._attached_under:
            self._attach = replace(self._attach, entries=(), heads=(), blobs={})
        if fresh.seq >= draft.state.seq:
            self._heard()  # nobody else can have written under the epoch that was lost
        self.state = replace(fresh, known=self.state.known) if fresh.queued else fresh
        self._gathered = [still_news(fresh, done, self._here) for done in self._gathered]
        self._letters = []
        self._inbox_seen = 0
        self._mail = True

    async def _hand_over(self) -> None:
        """The run belongs to somebody else now: what is known here goes there as letters, so that nothing is lost."""
        self.interrupt()
        while self._flights:
            await self._land()
        done = [*self._gathered, *[Done(told.entries, told.blobs) for told in self._telling]]
        epoch, worker = self._lease.epoch, self._station.worker
        letters = [letter for one in done for letter in late_letters(one, epoch, worker)]
        await post_late(self._station.store, self.state.run, letters)

    # --- performing and waiting

    async def _read_mail(self) -> None:
        if not self._mail:
            return
        self._mail = False
        # The number first, the letters after: one that comes in between is read twice rather than not at all.
        row = await self._insist(lambda: self._station.store.info(self.state.run))
        self._letters = await self._insist(lambda: self._station.store.inbox(self.state.run))
        self._inbox_seen = row.inbox_seq

    async def _start(self, effects: tuple[Effect, ...]) -> None:
        """Perform what is due and not being performed; the lease must be good for a third yet."""
        if self._hands is None or self._stopping:
            return
        for effect in effects:
            if not isinstance(effect, Performed) or effect.step in self._flights:
                continue
            not_before = effect.not_before if isinstance(effect, Timed) else None
            if not_before is not None and not_before > self._station.store.now():
                continue
            if not (self._lease.fresh or await self._lease.good()):
                raise StaleWriter(f"run {self.state.run!r}: its lease could not be renewed, nothing more is started")
            flight = Flight(effect, self._woken)
            flight.on_late = self._late
            self._flights[effect.step] = flight
            flight.task = self._station.spawn(self._perform(self._hands, flight, self.state), effect.step)

    async def _perform(self, hands: Hands, flight: Flight, state: State) -> None:
        try:
            flight.done = await hands.perform(flight, state)
        except asyncio.CancelledError as error:
            # Of its own making, and caught nowhere: an answer like any other.
            if not flight.interrupted:
                flight.done = hands.broken_off(flight, state, error)
            raise
        finally:
            self._woken.set()

    async def _wait(self, effects: tuple[Effect, ...]) -> None:
        """Until something ended, mail came, the next effect is due, or the grace of an interrupted one is over."""
        dues = [] if self._stopping else [due for effect in effects if (due := self._due(effect)) is not None]
        if not dues:
            await self._land()
        else:
            await self._land(max(min(dues) - self._station.store.now(), 0) / 1_000_000)

    def _due(self, effect: Effect) -> int | None:
        """When an effect that waits for its time may go on."""
        if not isinstance(effect, Timed) or (isinstance(effect, Performed) and effect.step in self._flights):
            return None
        return effect.not_before

    async def _land(self, seconds: float | None = None) -> None:
        """Take in what has ended. What was interrupted and does not end within the grace is left behind."""
        if self._interrupting:
            seconds = min(self._grace, self._grace if seconds is None else seconds)
        if seconds is None:
            await self._woken.wait()
        else:
            await happened(self._woken, seconds)
        self._woken.clear()
        for flight in list(self._flights.values()):
            assert flight.task is not None
            if flight.task.done():
                if not flight.task.cancelled():
                    flight.task.result()
                # One that was interrupted before its first step has nothing to say.
                self._take_in(flight, flight.done or Done())
            elif flight.overdue(self._grace):
                log.warning("run %s: %s did not stop when asked and is left behind", self.state.run, flight.step)
                flight.task.add_done_callback(partial(self._left_ended, flight))
                self._take_in(flight, flight.instead or self._last_words(flight))

    def _take_in(self, flight: Flight, done: Done) -> None:
        del self._flights[flight.step]
        self._landed.append(flight)
        self._gathered.append(self._kept(done))
        if done.passed and isinstance(flight.effect, Judge | RunHooks):
            self._pass(flight.effect)
        if done.until is not None:
            self._here = replace(self._here, patience={**self._here.patience, flight.step: done.until})

    def _left_ended(self, flight: Flight, _task: "asyncio.Task[None]") -> None:
        if flight.done is not None and flight.done is not flight.instead:
            self._late(flight.done)

    def _late(self, done: Done) -> None:
        """What somebody who was left behind came to in the end goes to whoever wonders."""
        letters = late_letters(done, self._lease.epoch, self._station.worker)
        if letters:
            posting = post_late(self._station.store, self.state.run, letters)
            self._station.spawn(posting, f"late {self.state.run}")

    def _last_words(self, flight: Flight) -> Done:
        """What was streamed by a call of the model that does not end."""
        saying = self._station.feed.saying(self.state.run, flight.step)
        if saying is None or not isinstance(flight.effect, CallModel):
            return Done()
        entry = cut_off(flight.effect, saying)
        return Done() if entry is None else Done((entry,))

    @property
    def _interrupting(self) -> bool:
        return any(flight.stopping for flight in self._flights.values())

    def _kept(self, done: Done) -> Done:
        """A reply cut off by this process's leaving is not a reply: the next driver asks anew."""
        if not self._stopping or self.state.cancel is not None:
            return done
        entries = tuple(x for x in done.entries if not (isinstance(x, e.ModelReplied) and x.finish == "cut_off"))
        return replace(done, entries=entries)
