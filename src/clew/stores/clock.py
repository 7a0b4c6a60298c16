"""The machine's own time: the one place that reads it. Tests put a VirtualClock in its stead."""

import time

from clew.ports import Clock

# Counts sleep, is never set back, and begins anew with every boot.
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Wall time for facts, boot time for leases, both in whole microseconds."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def boottime(self) -> int:
        return time.clock_gettime_ns(_BOOTTIME) // 1000


class StoreTime:
    """A store's time: that of its clock, but never below what it gave out or found stored."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._floor = 0
        self._offset: int | None = None  # of this time over the boot clock, while the wall clock is behind

    def now(self) -> int:
        wall = self._clock.now()
        if wall >= self._floor:
            self._floor, self._offset = wall, None
        else:
            # The wall clock was set back: until it catches up, time goes on by the boot clock.
            boot = self._clock.boottime()
            if self._offset is None:
                self._offset = self._floor - boot
            self._floor = max(self._floor, boot + self._offset)
        return self._floor

    def boottime(self) -> int:
        return self._clock.boottime()

    def not_below(self, at: int) -> None:
        """What is stored already lies in the past, whatever the clock was set to since."""
        self._floor = max(self._floor, at)
