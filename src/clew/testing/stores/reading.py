"""The store kit: reading, listing, cursors, time, listening."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from clew import codec
from clew.core.entries import Noted
from clew.core.letters import CancelLetter
from clew.errors import Conflict, NotFound, StaleWriter, UsageError
from clew.ports import RunFilter, Started, Store
from clew.testing.stores.acting import AWAY, BEGIN, LEASE, SECOND, HandClock, driven, message, new_run, note

T = TypeVar("T")


class ReadingContract:
    """What can be asked of a store, and what it tells by itself."""

    @pytest.mark.proves("J5")
    async def test_what_nobody_made_is_not_found(self, store: Store) -> None:
        for question in (
            store.read("no"),
            store.read_raw("no"),
            store.info("no"),
            store.inbox("no"),
            store.lease("no"),
        ):
            with pytest.raises(NotFound, match="'no'"):
                await question
        assert await store.thread("no") is None

    @pytest.mark.proves("J5")
    async def test_stored_bytes_are_the_codecs(self, store: Store) -> None:
        driver = await driven(store, "r")
        await driver.commit(note("x" * 100_000))
        assert [codec.decode(body) for body in await store.read_raw("r")] == await store.read("r")

    @pytest.mark.proves("Z1")
    async def test_what_cannot_be_stored_changes_nothing(self, store: Store) -> None:
        driver = await driven(store, "r")
        with pytest.raises(UsageError, match=r"'r'.*'noted'"):
            await driver.commit(note(), Noted(note_kind="n", value="\ud800"))
        with pytest.raises(UsageError, match="'cancel'"):
            await store.post("r", CancelLetter(reason="\ud800"))
        row = await store.info("r")
        assert (row.seq, row.inbox_seq) == (1, 0)

    @pytest.mark.proves("J2")
    async def test_runs_are_listed_newest_first_in_pages(self, store: Store) -> None:
        for number in range(5):
            await driven(store, f"r{number}", agent="ab"[number % 2], root="r0", thread=f"t{number % 2}")
        everything = await store.runs(RunFilter())
        assert [row.run_id for row in everything] == ["r4", "r3", "r2", "r1", "r0"]
        assert everything[0] == await store.info("r4")
        first = await store.runs(RunFilter(limit=2))
        await store.start(new_run("newer"))
        second = await store.runs(RunFilter(limit=2, after=first[-1].run_id))
        assert [row.run_id for row in (*first, *second)] == ["r4", "r3", "r2", "r1"]
        with pytest.raises(NotFound, match="'no'"):
            await store.runs(RunFilter(after="no"))

    @pytest.mark.proves("J2")
    async def test_runs_are_listed_by_what_is_asked(self, store: Store) -> None:
        first = await driven(store, "r1", agent="a", thread="t")
        second = await driven(store, "r2", agent="b", root="r1")
        await driven(store, "r3", agent="b")
        await first.finish()
        await second.release()
        for filter_, expected in (
            (RunFilter(status="done"), ["r1"]),
            (RunFilter(status="waiting"), ["r2"]),
            (RunFilter(status="running"), ["r3"]),
            (RunFilter(status="queued"), []),
            (RunFilter(agent="b"), ["r3", "r2"]),
            (RunFilter(agent="b", status="waiting"), ["r2"]),
            (RunFilter(thread_id="t"), ["r1"]),
            (RunFilter(root="r1"), ["r2", "r1"]),
        ):
            assert [row.run_id for row in await store.runs(filter_)] == expected

    # --- cursors ------------------------------------------------------------------------------------------------------

    @pytest.mark.proves("E4")
    async def test_a_cursor_gives_all_runs_in_commit_order(self, store: Store) -> None:
        assert await store.entries_since(await store.cursor()) == ([], await store.cursor())
        first = await driven(store, "r1")
        second = await driven(store, "r2")
        await second.commit(note("a"), note("b"))
        await first.commit(note("c"))
        found, cursor = await store.entries_since(None)
        assert [(run, entry.seq) for run, entry, _ in found] == [("r1", 1), ("r2", 1), ("r2", 2), ("r2", 3), ("r1", 2)]
        assert cursor == await store.cursor() == found[-1][2]
        assert await store.entries_since(found[1][2]) == (found[2:], cursor)
        assert await store.entries_since(cursor) == ([], cursor)
        await first.commit(note("d"))
        assert [(run, entry.seq) for run, entry, _ in (await store.entries_since(cursor))[0]] == [("r1", 3)]
        paged: list[tuple[str, int]] = []
        place = None
        for _ in range(4):
            some, place = await store.entries_since(place, limit=2)
            assert len(some) <= 2
            paged += [(run, entry.seq) for run, entry, _ in some]
        assert paged == [*((run, entry.seq) for run, entry, _ in found), ("r1", 3)]

    @pytest.mark.proves("E4")
    async def test_a_refused_commit_is_in_no_cursor(self, store: Store) -> None:
        driver = await driven(store, "r")
        cursor = await store.cursor()
        driver.epoch = 7
        with pytest.raises(StaleWriter):
            await driver.commit(note())
        driver.epoch = 1
        await driver.commit(note("kept"))
        [(_, entry, _)], _ = await store.entries_since(cursor)
        assert isinstance(entry, Noted)
        assert entry.value == "kept"

    @pytest.mark.proves("Z2")
    async def test_a_cursor_from_elsewhere_is_refused(self, store: Store) -> None:
        for cursor in ("", "1", "elsewhere-1", "sqlite-x"):
            with pytest.raises(UsageError, match="cursor"):
                await store.entries_since(cursor)

    # --- time and listening -------------------------------------------------------------------------------------------

    @pytest.mark.proves("R4")
    async def test_time_is_the_clocks_and_never_goes_back(self, store: Store, clock: HandClock) -> None:
        assert store.now() == BEGIN
        clock.wall += 5 * SECOND
        assert store.now() == BEGIN + 5 * SECOND
        clock.wall -= 3 * SECOND
        assert store.now() == BEGIN + 5 * SECOND
        clock.wall += 10 * SECOND
        assert store.now() == BEGIN + 12 * SECOND

    @pytest.mark.proves("R4")
    async def test_time_is_not_below_what_a_claimed_run_bears(self, store: Store) -> None:
        later = BEGIN + 60 * SECOND
        await store.start(new_run("r", at=later))
        assert store.now() == BEGIN
        await store.claim(AWAY, lease=LEASE)
        assert store.now() == later

    @pytest.mark.proves("E1")
    async def test_listeners_hear_of_every_change_once_it_is_durable(self, store: Store) -> None:
        heard: list[str | None] = []
        end = store.listen(heard.append)
        driver = await driven(store, "r")
        await driver.commit(note(), starts=(new_run("child"),))
        await store.post("child", message("a"))
        await asyncio.sleep(0.01)
        assert heard == ["r", "r", "child", "child"]
        driver.seq = 9
        with pytest.raises(StaleWriter):
            await driver.commit(note())
        end()
        end()
        await store.post("child", message("b"))
        await asyncio.sleep(0.01)
        assert heard == ["r", "r", "child", "child"]

    @pytest.mark.proves("E2")
    async def test_a_broken_listener_breaks_no_commit(self, store: Store) -> None:
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

        def broken(_run: str | None) -> None:
            raise ZeroDivisionError

        end = store.listen(broken)
        driver = await driven(store, "r")
        await driver.commit(note())
        await asyncio.sleep(0.01)
        end()
        assert (await store.info("r")).seq == 2
        assert len(reported) == 2

    # --- many at once -------------------------------------------------------------------------------------------------

    @pytest.mark.proves("J1")
    async def test_commits_that_come_together_are_taken_or_refused_each_on_its_own(self, store: Store) -> None:
        drivers = [await driven(store, f"r{number}") for number in range(20)]
        stale = {3, 11}
        batches = [replace(driver.batch(note()), after_seq=1) for driver in drivers]
        for number in stale:
            batches[number] = replace(batches[number], inbox_seen=0, epoch=5, entries=())
        outcomes = await _together(*(store.commit(batch) for batch in batches))
        assert {number for number, outcome in enumerate(outcomes) if isinstance(outcome, StaleWriter)} == stale
        assert [len(await store.read(f"r{number}")) for number in range(20)] == [
            1 if number in stale else 2 for number in range(20)
        ]

    @pytest.mark.proves("J3")
    async def test_starts_of_one_id_that_come_together_make_one_run(self, store: Store) -> None:
        started = await _together(*(store.start(new_run("r", owner=AWAY, lease=LEASE)) for _ in range(8)))
        assert [isinstance(answer, Started) and answer.created for answer in started].count(True) == 1
        assert not any(isinstance(answer, BaseException) for answer in started)

    @pytest.mark.proves("W11")
    async def test_heads_of_one_thread_that_come_together_are_one(self, store: Store) -> None:
        outcomes = await _together(
            *(store.start(new_run(f"r{number}", thread="t", place="head")) for number in range(8))
        )
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7

    @pytest.mark.proves("J1")
    async def test_letters_that_come_together_are_numbered_without_gaps(self, store: Store) -> None:
        await store.start(new_run("r"))
        numbers = await _together(*(store.post("r", message(str(number))) for number in range(50)))
        assert {*numbers} == {*range(1, 51)}
        assert [letter.inbox for letter in await store.inbox("r")] == list(range(1, 51))

    @pytest.mark.proves("J7")
    async def test_a_commit_outlives_whoever_waits_for_it(self, store: Store) -> None:
        drivers = [await driven(store, f"r{number}") for number in range(5)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(driver.commit(note())) for driver in drivers]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
        for driver in drivers:
            driver.seq = 2
            await driver.commit(note())


async def _together(*work: Coroutine[Any, Any, T]) -> list[T | BaseException]:
    """The answers of what is asked at the same time, errors among them."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one) for one in work]
    await asyncio.wait(tasks)
    return [task.exception() or task.result() for task in tasks]
