"""Faults that can be planted into Clew itself, to see that its tests catch them: `CLEW_FAULT=name pytest …`.

Each breaks one promise in one place. `make spec` plants them one by one and runs the tests that claim the promise.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import force_setattr, replace

from clew.core import entries as e
from clew.core import rules, state, turns
from clew.core.letters import DecisionLetter, MessageLetter
from clew.core.state import State
from clew.errors import StaleWriter, UsageError
from clew.ports import Batch, Receipt
from clew.runtime import asking, bodies, driver, feed, plan, worker
from clew.runtime.flight import Done
from clew.stores import claims, memory, sqlite
from clew.testing import tool_faults
from clew.testing.planting import Fault, always, replacing

STORES: tuple[Any, ...] = (memory.MemoryStore, sqlite.SqliteStore)


def _on_commit(change: Callable[[Any, Batch], Any]) -> Callable[[ExitStack], None]:
    """Put `change` before every store's commit: it answers the batch that is committed instead."""

    def plant(stack: ExitStack) -> None:
        for store in STORES:
            whole = store.commit

            async def commit(self: Any, batch: Batch, whole: Any = whole) -> Receipt:
                receipt: Receipt = await whole(self, await change(self, batch))
                return receipt

            stack.enter_context(patch.object(store, "commit", commit))

    return plant


# --- the store --------------------------------------------------------------------------------------------------------


async def _any_epoch(store: Any, batch: Batch) -> Batch:
    epoch = (await store.lease(batch.run)).epoch
    for entry in batch.entries:
        force_setattr(entry, "epoch", epoch)
    return replace(batch, epoch=epoch)


async def _any_epoch_and_place(store: Any, batch: Batch) -> Batch:
    last = (await store.info(batch.run)).seq
    written = await store.read(batch.run, after=max(last - 1, 0))
    last = written[-1].seq if written else last
    for place, entry in enumerate(batch.entries, start=last + 1):
        force_setattr(entry, "seq", place)
    return replace(await _any_epoch(store, batch), after_seq=last)


async def _unguarded(_store: Any, batch: Batch) -> Batch:
    return replace(batch, inbox_seen=10**9)


async def _without_blobs(_store: Any, batch: Batch) -> Batch:
    return replace(batch, blobs={})


async def _without_taking(_store: Any, batch: Batch) -> Batch:
    return replace(batch, taken=())


def _lose_messages(stack: ExitStack) -> None:
    for store in STORES:
        whole = store.post

        async def post(self: Any, run: str, letter: Any, whole: Any = whole) -> int:
            if isinstance(letter, MessageLetter):
                return int((await self.info(run)).inbox_seq) + 1
            number: int = await whole(self, run, letter)
            return number

        stack.enter_context(patch.object(store, "post", post))


def _drop_decisions(stack: ExitStack) -> None:
    for store in STORES:
        whole = store.inbox

        async def inbox(self: Any, run: str, whole: Any = whole) -> list[Any]:
            return [letter for letter in await whole(self, run) if not isinstance(letter, DecisionLetter)]

        stack.enter_context(patch.object(store, "inbox", inbox))


def _claim_what_is_held(stack: ExitStack) -> None:
    for store in STORES:
        whole = store.claim

        async def claim(self: Any, owner: Any, *, whole: Any = whole, **given: Any) -> list[Any]:
            run = given.get("run")
            if run is not None:
                await self.give_back(run, (await self.lease(run)).epoch)
            found: list[Any] = await whole(self, owner, **given)
            return found

        stack.enter_context(patch.object(store, "claim", claim))


# --- the core ---------------------------------------------------------------------------------------------------------


def _by_completion(whole: Any) -> Any:
    def answered(before: State, found: Any, result: Any) -> Any:
        def place(call: Any) -> int:
            if call.answer is not None:
                return int(call.answer.id.rpartition(":")[2])
            return int(before.seq + (call.id != result.call))

        return whole(replace(before, calls=tuple(sorted(before.calls, key=place))), found, result)

    return answered


def _forgetful(whole: Any) -> Any:
    def unjudged(call: Any, *, superseded: bool) -> Any:
        return whole(replace(call, answer=None), superseded=superseded)

    return unjudged


def _blind_attach(whole: Any) -> Any:
    def attached(before: State, entry: e.DriverAttached) -> State:
        after: State = whole(before, entry)
        return replace(after, calls=before.calls)

    return attached


def _crossing_costs(whole: Any) -> Any:
    def rebase(base: State, fresh: State) -> State:
        based: State = whole(base, fresh)
        return replace(based, usage=base.usage, call_count=base.call_count)

    return rebase


# --- the shell --------------------------------------------------------------------------------------------------------


def _unawaited(whole: Any) -> Any:
    async def commit(self: Any, made: Any, effects: Any, *, release: bool) -> Any:
        if release or not any(isinstance(entry, e.ToolReturned) for entry in made.entries):
            return await whole(self, made, effects, release=release)
        batch = made.batch(self._inbox_seen, None, release=False)
        self._station.spawn(self._station.store.commit(batch), "unawaited")
        self._committed(made, projected=False)
        return True

    return commit


def _acting_first(whole: Any) -> Any:
    async def commit(self: Any, made: Any, effects: Any, *, release: bool) -> Any:
        if not release:
            before, self.state = self.state, made.state
            await self._start(effects)
            self.state = before
        return await whole(self, made, effects, release=release)

    return commit


def _deaf_to_conflict(whole: Any) -> Any:
    async def commit(self: Any, made: Any, effects: Any, *, release: bool) -> Any:
        try:
            return await whole(self, made, effects, release=release)
        except StaleWriter:
            self._committed(made, projected=False)
            return True

    return commit


def _seen_too_early(whole: Any) -> Any:
    async def commit(self: Any, made: Any, effects: Any, *, release: bool) -> Any:
        if made.state.finished is not None:
            self._station.feed.settled(made.state.run, made.state)
        return await whole(self, made, effects, release=release)

    return commit


def _ending_twice(whole: Any) -> Any:
    def finish(self: Any, made: Any, entry: e.RunFinished) -> None:
        whole(self, made, entry)
        if made.state.finished is not None:
            again = replace(made.entries[-1], seq=made.state.seq + 1)
            made.entries.append(again)
            made.state = replace(made.state, seq=again.seq)

    return finish


def _cancel_is_nothing(whole: Any) -> Any:
    def raised(self: Any, tool: Any, declared: Any, error: BaseException, took: int) -> Any:
        if type(error).__name__ in ("CancelledError", "SystemExit"):
            return Done()
        return whole(self, tool, declared, error, took)

    return raised


def _empty_arguments(whole: Any) -> Any:
    def parse(text: str) -> dict[str, Any]:
        try:
            parsed: dict[str, Any] = whole(text)
        except ValueError:
            return {}
        return parsed

    return parse


FAULTS: dict[str, Fault] = {
    "epoch-unchecked": Fault(("J1", "R1"), "a commit under a stale epoch is taken", _on_commit(_any_epoch)),
    "epoch-and-sequence-unchecked": Fault(
        ("J1",), "a commit is taken wherever the journal is", _on_commit(_any_epoch_and_place)
    ),
    "release-unguarded": Fault(
        ("J1",), "an end or a release is taken although there is unread mail", _on_commit(_unguarded)
    ),
    "result-not-awaited": Fault(
        ("T3",), "the run goes on before a result is durable", replacing(driver.Driver, "_commit", _unawaited)
    ),
    "acting-before-commit": Fault(
        ("L1",), "tools start before the reply is durable", replacing(driver.Driver, "_commit", _acting_first)
    ),
    "conflict-swallowed": Fault(
        ("J7",), "a refused commit counts as made", replacing(driver.Driver, "_commit", _deaf_to_conflict)
    ),
    "results-out-of-order": Fault(
        ("L4",), "results do not take their place by call order", replacing(turns, "_answered", _by_completion)
    ),
    "double-finish": Fault(("J8",), "a run ends twice", replacing(driver.Driver, "_finish", _ending_twice)),
    "message-lost": Fault(("J1",), "an accepted message is not stored", _lose_messages),
    "letters-not-taken": Fault(
        ("J1",), "a letter stays in the inbox after it was taken in", _on_commit(_without_taking)
    ),
    "lease-ignored": Fault(("R1",), "a run that somebody drives is claimed", _claim_what_is_held),
    "doubt-forgotten": Fault(
        ("T1",), "what a crash left is started again", replacing(state, "_attached", _blind_attach)
    ),
    "early-decision-dropped": Fault(("J1",), "a decision is acknowledged and never seen", _drop_decisions),
    "rebase-forgets-results": Fault(
        ("B2",), "finished results are asked for again in a fork", replacing(state, "unjudged", _forgetful)
    ),
    "rebase-carries-counters": Fault(
        ("B1",), "usage of the base counts against the new run", replacing(state, "rebase", _crossing_costs)
    ),
    "start-digest-ignored": Fault(
        ("J3",),
        "another start of the same id attaches",
        replacing(plan, "digest", always("sha256:0")),
    ),
    "cancel-ignored": Fault(
        ("C1",),
        "a cancel changes nothing",
        replacing(rules, "RULES", lambda whole: whole[1:]),
    ),
    "limits-ignored": Fault(
        ("L2",), "limits are not held against the fold", replacing(rules, "exceeded", always(None))
    ),
    "end-seen-before-commit": Fault(
        ("E3",), "the end is shown before it is durable", replacing(driver.Driver, "_commit", _seen_too_early)
    ),
    "blobs-dropped": Fault(("J6",), "large values are referred to and not stored", _on_commit(_without_blobs)),
    "deaths-uncounted": Fault(
        ("R3",),
        "a run that kills its drivers is never set aside",
        replacing(claims, "deaths", always(0)),
    ),
    "cancelled-error-reruns": Fault(
        ("T8",),
        "a tool that raises CancelledError runs for ever",
        replacing(bodies.Body, "_raised", _cancel_is_nothing),
    ),
    "arguments-guessed": Fault(
        ("L8",),
        "arguments that do not parse become an empty object",
        replacing(asking, "parse_arguments", _empty_arguments),
    ),
    "watchers-not-woken": Fault(("E1",), "a commit wakes no watcher", replacing(feed.Feed, "_changed", always(None))),
    "mail-unread": Fault(
        ("C1",),
        "a driver at work never looks into its inbox",
        replacing(worker.Worker, "notify", always(True)),
    ),
    **tool_faults.FAULTS,
}


@contextmanager
def planted(name: str) -> Generator[None]:
    """Clew with one fault in it. Raises UsageError for a name that is none."""
    fault = FAULTS.get(name)
    if fault is None:
        raise UsageError(f"there is no fault {name!r}: use one of {', '.join(FAULTS)}")
    with ExitStack() as stack:
        fault.plant(stack)
        yield


__all__ = ["FAULTS", "Fault", "planted"]
