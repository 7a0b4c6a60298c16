"""Fragments between processes: what drivers here say to watchers elsewhere, and what is said there to those here."""

import asyncio
import logging
from collections.abc import Callable

from clew.errors import ClewError
from clew.ports import Ear, Relay, Relayed, Store
from clew.runtime.saying import Saying, Sayings, Watcher, drop, voids

log = logging.getLogger("clew.relay")

EVERY = 0.03  # seconds between two looks, and between two words


class Speaker:
    """Passes on what is being said here, while somebody elsewhere listens: now and then, what came since together."""

    def __init__(self, relay: Relay, sayings: Sayings) -> None:
        self._relay = relay
        self._sayings = sayings
        self._told: dict[str, Watcher] = {}
        self._speaking: set[str] = set()
        self._ticking = False

    def said(self, run: str) -> None:
        self._speaking.add(run)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(EVERY, self._tick)

    def _tick(self) -> None:
        """Also while nothing new is said: who begins to listen in a silence is told what was said before it."""
        self._ticking = bool(self._speaking)
        if not self._ticking:
            return
        wanted = self._relay.wanted(self._speaking)
        for run in self._speaking:
            if run in wanted:
                self._speak(run)
            else:
                self._hush(run)
        asyncio.get_running_loop().call_later(EVERY, self._tick)

    def _speak(self, run: str) -> None:
        news = self._news(run)
        if news and not self._relay.say(run, news):
            self._told.pop(run, None)
            self._relay.say(run, self._news(run))

    def _news(self, run: str) -> list[Relayed]:
        """What this run's listeners have not been told; to the first ones, everything from the first word."""
        told = self._told.setdefault(run, Watcher())
        current = self._sayings.get(run, {})
        return [Relayed(current[delta.step].after_seq, delta) for delta in told.unread(current)]

    def _hush(self, run: str) -> None:
        if self._told.pop(run, None) is not None:
            self._relay.hush(run)

    def over(self, run: str) -> None:
        """Nothing is being said any more."""
        self._speaking.discard(run)
        self._hush(run)


class Listener:
    """Hears what is said of one run in another process, and tells the watchers here as if it were said here."""

    def __init__(self, store: Store, relay: Relay, run: str, sayings: Sayings) -> None:
        self._store = store
        self._relay = relay
        self._run = run
        self._sayings = sayings
        self._heard: dict[tuple[str, int, int], Saying | None] = {}
        self._ear: Ear | None = None

    async def listen(self, is_here: Callable[[], bool], wake: Callable[[], None]) -> None:
        """Until cancelled. A run that this process drives is not listened to: what it says is here already."""
        try:
            while True:
                await asyncio.sleep(EVERY)
                if is_here():
                    self._close()
                elif await self._news():
                    wake()
        except ClewError as error:
            log.warning("run %s: what is said elsewhere is not heard any more: %s", self._run, error)
        finally:
            self._close()

    async def _news(self) -> bool:
        if self._ear is None:
            self._ear = self._relay.attend(self._run)
        return any([await self._hear(relayed) for relayed in self._ear.heard()])

    async def _hear(self, relayed: Relayed) -> bool:
        delta = relayed.delta
        key = (delta.step, delta.epoch, delta.attempt)
        if key not in self._heard:
            self._heard[key] = await self._begun(relayed)
        saying = self._heard[key]
        return saying is not None and self._is_current(saying) and saying.add(delta)

    async def _begun(self, relayed: Relayed) -> Saying | None:
        """The saying that a first fragment opens; None if its end stands in the journal already."""
        delta = relayed.delta
        since = await self._store.read(self._run, after=relayed.after)
        if any(voids(entry, delta.step, delta.attempt) for entry in since):
            return None
        saying = Saying(delta.step, delta.epoch, delta.attempt, relayed.after)
        self._sayings.setdefault(self._run, {})[delta.step] = saying
        return saying

    def _is_current(self, saying: Saying) -> bool:
        return self._sayings.get(self._run, {}).get(saying.step) is saying

    def _close(self) -> None:
        if self._ear is None:
            return
        self._ear.close()
        self._ear = None
        for saying in self._heard.values():
            if saying is not None and self._is_current(saying):
                drop(self._sayings, self._run, saying.step)
        self._heard.clear()
