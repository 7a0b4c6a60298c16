"""The two stores, told the same, answer the same: any sequence of verbs, wrong ones among them."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clew.core.entries import BaseFixed, DecisionMade, DriverAttached, Entry, TicketClosed
from clew.core.letters import CancelLetter
from clew.core.tickets import Approve, Reject
from clew.errors import ClewError
from clew.ports import HeadMove, Projection, RunFilter, Status, Store, TicketFilter
from clew.stores.memory import MemoryStore
from clew.stores.sqlite import SqliteStore
from clew.testing.stores.acting import (
    AWAY,
    BEFORE_REBOOT,
    FAR,
    LEASE,
    SECOND,
    Driver,
    HandClock,
    approval,
    decision,
    message,
    new_run,
    note,
)

RUNS = ("r0", "r1", "r2", "r3", "name")
BEGINNING = ("head", "apart", "queue")
STATUSES: tuple[Status | Literal["quarantined"], ...] = ("queued", "running", "waiting", "done", "quarantined")
OWNERS = (AWAY, FAR, BEFORE_REBOOT)

run = st.sampled_from(RUNS)
small = st.integers(0, 3)
started = st.tuples(
    st.just("start"),
    run,
    st.sampled_from(("apart", "head", "queue")),
    st.sampled_from(("t", "u")),
    small,
    st.booleans(),
)
committed = st.tuples(st.just("commit"), run, st.sampled_from(sorted("abcdefghijklmno")), small, run)
verbs = st.one_of(
    started,
    committed,
    committed,
    st.tuples(st.sampled_from(("post", "withdraw", "change", "decide", "by name", "retake", "give back")), run, small),
    st.tuples(st.sampled_from(("look", "wait", "quarantine", "release", "alias", "prune", "renew")), run, small),
)


class World:
    """One store, and what is done with it."""

    def __init__(self, store: Store, clock: HandClock) -> None:
        self.store = store
        self.clock = clock

    async def do(self, verb: tuple[Any, ...]) -> object:
        try:
            return await getattr(self, f"_{verb[0].replace(' ', '_')}")(*verb[1:])
        except ClewError as error:
            return type(error).__name__, str(error).replace("sqlite", "memory")

    async def _start(self, run: str, place: str, thread: str, digest: int, owned: bool) -> object:
        found = await self.store.thread(thread)
        owner = {"owner": OWNERS[digest % 3], "lease": LEASE} if owned else {}
        head = found.head if found is not None and digest < 3 else None
        new = new_run(run, digest=f"d{digest // 3}", place=place, thread=thread, expected=head, **owner)
        return await self.store.start(new)

    async def _driver(self, run: str, wrong: int) -> Driver:
        row = await self.store.info(run)
        epoch = (await self.store.lease(run)).epoch if row.seq else 0
        return Driver(
            self.store,
            run,
            epoch=epoch + (wrong == 3),
            seq=row.seq,
            inbox_seen=row.inbox_seq if wrong != 2 else max(row.inbox_seq - 1, 0),
        )

    async def _commit(self, run: str, what: str, wrong: int, other: str) -> object:
        driver = await self._driver(run, wrong)
        letters = tuple(letter.inbox for letter in await self.store.inbox(run))
        row = await self.store.info(run)
        thread = await self.store.thread(row.thread_id)
        entries: dict[str, tuple[tuple[Entry, ...], dict[str, Any]]] = {
            "a": ((note(),), {}),
            "b": ((note(), note()), {"taken": letters}),
            "c": ((), {"projection": Projection(status="waiting"), "lease": "release"}),
            "d": ((DriverAttached(worker="w"),), {}),
            "e": ((approval(),), {"projection": Projection(status="running", turns=2)}),
            "f": ((TicketClosed(ticket="1.tool.1", why="expired"),), {}),
            "g": ((note(),), {"posts": ((other, message("m", "m1")), (other, CancelLetter()))}),
            "h": ((note(),), {"starts": (new_run(other, digest="d0"),)}),
            "i": ((BaseFixed(run=other, base_seq=1),), {"heads": (HeadMove("t", thread and thread.head, run),)}),
            "j": ((note(),), {"projection": Projection(status="waiting", wake_at=self.store.now() + 50 * SECOND)}),
            "k": ((), {"projection": Projection(status="running"), "lease": "release"}),
            "o": ((), {"projection": Projection(status="queued"), "lease": "release"}),
            "l": ((DecisionMade(ticket="1.tool.1", decision_id="x", decision=Reject("no")),), {"taken": letters[:1]}),
            "m": ((note(),), {"blobs": {"sha256:b": b"b"}, "taken": (1,)}),
        }
        if what == "n":
            return await driver.finish(taken=letters)
        return await driver.commit(*entries[what][0], **entries[what][1])

    async def _post(self, run: str, number: int) -> object:
        return await self.store.post(run, CancelLetter() if number == 0 else message("m", f"m{number}"))

    async def _withdraw(self, run: str, number: int) -> object:
        return await self.store.withdraw(run, number)

    async def _change(self, run: str, number: int) -> object:
        return await self.store.withdraw(run, number, message("changed"))

    async def _decide(self, run: str, number: int) -> object:
        decided = Approve() if number < 2 else Reject("no")
        return await self.store.decide(run, decision("1.tool.1", f"d{number % 2}", decided))

    async def _by_name(self, run: str, number: int) -> object:
        return await self.store.claim(OWNERS[number % 3], lease=LEASE, run=run)

    async def _retake(self, run: str, number: int) -> object:
        epoch = (await self.store.lease(run)).epoch
        return await self.store.retake(OWNERS[number % 3], run, epoch, lease=LEASE)

    async def _give_back(self, run: str, number: int) -> object:
        return await self.store.give_back(run, (await self.store.lease(run)).epoch)

    async def _look(self, run: str, number: int) -> object:
        agents = ["meteo"] if number % 2 else None
        found = await self.store.claim(OWNERS[0], lease=LEASE, agents=agents, limit=5, suspects=number < 2)
        return sorted(found, key=lambda claim: claim.run)

    async def _wait(self, run: str, number: int) -> object:
        self.clock.advance((0.6, 10, 31, 100)[number])
        return await self.store.next_wake()

    async def _quarantine(self, run: str, number: int) -> object:
        return await self.store.quarantine(run, on=number > 1)

    async def _release(self, run: str, number: int) -> object:
        return await self.store.quarantine(run, on=False)

    async def _alias(self, run: str, number: int) -> object:
        return await self.store.alias("name" if number else "r1", run)

    async def _prune(self, run: str, number: int) -> object:
        return await self.store.prune([run, *RUNS[:number]])

    async def _renew(self, run: str, number: int) -> object:
        lease = await self.store.lease(run)
        return self.store.renew(OWNERS[number % 3], {run: lease.epoch}, LEASE)

    async def look_everywhere(self) -> list[object]:
        """Everything that can be seen of it."""
        found: list[object] = []
        for name in RUNS:
            questions: tuple[Callable[..., Any], ...] = (
                self.store.info,
                self.store.lease,
                self.store.read,
                self.store.inbox,
            )
            for question in questions:
                try:
                    found.append(await question(name))
                except ClewError as error:
                    found.append((type(error).__name__, str(error)))
        listed = [await self.store.runs(RunFilter(status=status)) for status in (None, *STATUSES)]
        found += [[row.run_id for row in rows] for rows in listed]
        entries, _ = await self.store.entries_since(None)
        found += [await self.store.threads(), [entry[:2] for entry in entries], await self.store.next_wake()]
        found += [await self.store.tickets(TicketFilter(closed=closed)) for closed in (False, True)]
        return found


async def compare(told: list[tuple[Any, ...]], path: Path) -> None:
    clocks = HandClock(), HandClock()
    memory = World(MemoryStore(clock=clocks[0]), clocks[0])
    sqlite = World(SqliteStore(path, clock=clocks[1]), clocks[1])
    await memory.store.open()
    await sqlite.store.open()
    sqlite.store._connection.execute("PRAGMA synchronous = OFF")  # type: ignore[attr-defined]
    try:
        for verb in told:
            assert await sqlite.do(verb) == await memory.do(verb), verb
            assert await sqlite.look_everywhere() == await memory.look_everywhere(), verb
    finally:
        await sqlite.store.close()


@pytest.mark.proves("J1", "J8", "R3", "W3", "W11")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(verbs, min_size=5, max_size=40))
def test_any_sequence_of_verbs_has_one_meaning(told: list[tuple[Any, ...]]) -> None:
    begun = [("start", f"r{number}", place, "t", 0, number < 2) for number, place in enumerate(BEGINNING)]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(begun + told, Path(folder) / "clew.db"))
