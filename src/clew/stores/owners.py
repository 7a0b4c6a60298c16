"""Which process this is, told apart from every other that ever ran here; and whether another one still lives."""

import functools
import os
import platform
from pathlib import Path

from clew.core.entries import Owner

# Fields of /proc/<pid>/stat, counted after the name, which may hold anything.
_STATE = 0
_START = 19


def this_process() -> Owner:
    """The identity under which this process holds leases; another one after a fork."""
    return _identity(os.getpid())


@functools.cache
def _identity(pid: int) -> Owner:
    return Owner(host=platform.node(), boot=_boot(), pid=pid, start=started_at(pid) or 0)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"{platform.system()}-{platform.node()}"


def started_at(pid: int) -> int | None:
    """When a process of this host began, in the kernel's ticks; None if none of this number runs."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE] in ("Z", "X") else int(fields[_START])


def is_local(owner: Owner) -> bool:
    """Whether it ran under this very kernel, so that its death can be seen."""
    this = this_process()
    return owner.host == this.host and owner.boot == this.boot


def is_running(owner: Owner) -> bool:
    """Whether a local owner's process exists. A number that was given to a later process does not count."""
    return owner == this_process() or started_at(owner.pid) == owner.start
