"""A clock that tests move."""

import asyncio
from datetime import timedelta

import pytest

from clew.errors import UsageError
from clew.testing import VirtualClock

SECOND = 1_000_000


async def test_it_stands_still_until_moved() -> None:
    clock = VirtualClock(start=5 * SECOND)
    assert (clock.now(), clock.boottime()) == (5 * SECOND, 0)
    await clock.advance(1.5)
    await clock.advance(timedelta(minutes=1))
    assert (clock.now(), clock.boottime()) == (66_500_000, 61_500_000)


async def test_sleepers_wake_in_order_each_at_its_time() -> None:
    clock = VirtualClock(start=0)
    woken: list[tuple[str, int]] = []

    async def sleep(name: str, seconds: int) -> None:
        await clock.wait_until(seconds * SECOND)
        woken.append((name, clock.now() // SECOND))
        if name == "first":
            await clock.wait_until(3 * SECOND)
            woken.append(("again", clock.now() // SECOND))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 9), ("second", 5), ("first", 2), ("never waits", 0)):
            group.create_task(sleep(name, seconds))
        await asyncio.sleep(0)
        await clock.advance(8)
        assert woken == [("never waits", 0), ("first", 2), ("again", 3), ("second", 5)]
        await clock.advance(1)
    assert woken[-1] == ("late", 9)


async def test_who_stopped_waiting_is_not_woken() -> None:
    clock = VirtualClock()
    task = asyncio.get_running_loop().create_task(clock.wait_until(clock.now() + SECOND))
    await asyncio.sleep(0)
    task.cancel()
    await clock.advance(2)
    assert task.cancelled()


async def test_listeners_hear_of_each_move() -> None:
    clock = VirtualClock(start=0)
    heard: list[int] = []
    unlisten = clock.listen(lambda: heard.append(clock.now()))
    await clock.advance(1)
    unlisten()
    unlisten()
    await clock.advance(1)
    assert heard == [SECOND]


def test_a_sleeper_of_a_closed_loop_is_left_alone() -> None:
    clock = VirtualClock(start=0)

    async def leave() -> None:
        asyncio.get_running_loop().create_task(clock.wait_until(SECOND))
        await asyncio.sleep(0)

    asyncio.run(leave())
    asyncio.run(clock.advance(2))


@pytest.mark.parametrize("by", [-1, float("nan"), timedelta(seconds=-1)])
async def test_time_goes_forward(by: float | timedelta) -> None:
    with pytest.raises(UsageError, match="a clock goes forward"):
        await VirtualClock().advance(by)
