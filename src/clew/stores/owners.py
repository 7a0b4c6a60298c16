"""Which process this is, told apart from every other that ever ran here; and whether another one still lives."""

import fcntl
import functools
import glob
import itertools
import os
import platform
import time
from pathlib import Path

from msgspec.structs import replace

from clew.core.entries import Owner

# Fields of /proc/<pid>/stat, counted after the name, which may hold anything.
_STATE = 0
_START = 19

_COMPANY_EVERY = 0.2  # seconds
_instances = itertools.count(1)


def this_process() -> Owner:
    """The identity of this process; another one after a fork."""
    return _identity(os.getpid())


def new_owner() -> Owner:
    """An identity under which one Runtime of this process holds leases."""
    return replace(this_process(), instance=next(_instances))


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


def is_this_process(owner: Owner) -> bool:
    return replace(owner, instance=0) == this_process()


def is_running(owner: Owner) -> bool:
    """Whether a local owner's process exists. A number that was given to a later process does not count."""
    return is_this_process(owner) or started_at(owner.pid) == owner.start


class Shared:
    """A lock that any number hold together, by a file that is there only while somebody holds it.

    The kernel drops the lock with the process, however it ends; whoever finds the file and nobody behind it removes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def enter(self) -> None:
        while self._fd is None:
            fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            if _lock(fd, fcntl.LOCK_SH) and _is_still(self._path, fd):
                self._fd = fd
                _held.add(fd)
            else:
                # Somebody who is leaving has removed it in between: make it anew.
                os.close(fd)

    def leave(self) -> None:
        if self._fd is None:
            return
        if _lock(self._fd, fcntl.LOCK_EX):
            self._path.unlink(missing_ok=True)
        _held.discard(self._fd)
        os.close(self._fd)
        self._fd = None


def nobody_holds(path: Path) -> bool:
    """Whether nobody holds the lock of this file; then it is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # another user's process, or no file can be opened now: whoever it is, his leases run out
    try:
        free = _lock(fd, fcntl.LOCK_EX)
        if free and _is_still(path, fd):
            path.unlink(missing_ok=True)
        return free
    finally:
        os.close(fd)


class Presence:
    """This process's place among those that share a file: a lock on a file of its own beside it, gone when it dies.

    Everything of this process that has the file open shares the lock; the last one to leave removes the file.
    """

    def __init__(self, beside: Path) -> None:
        self._beside = beside
        self._own: Shared | None = None
        self._looked = float("-inf")
        self._company = False

    def _path(self, owner: Owner) -> Path:
        return Path(f"{self._beside}-owner-{owner.pid}-{owner.start}")

    def enter(self) -> None:
        """From now on others can tell that this process lives."""
        self._own = Shared(self._path(this_process()))
        self._own.enter()

    def leave(self) -> None:
        if self._own is not None:
            self._own.leave()

    def is_gone(self, owner: Owner) -> bool:
        """Whether an owner of this host is dead for certain; what it left behind is removed.

        A process that lives but has closed its store may still be in the middle of something: its leases run out.
        """
        if not is_local(owner) or is_this_process(owner):
            return False
        return nobody_holds(self._path(owner)) and not is_running(owner)

    def sweep(self) -> None:
        """Remove what dead processes left."""
        for path in self._others():
            nobody_holds(path)

    def has_company(self) -> bool:
        """Whether other processes have the file open, as far as is known; looked at now and then."""
        now = time.monotonic()
        if now > self._looked + _COMPANY_EVERY:
            self._looked = now
            self._company = bool(self._others())
        return self._company

    def _others(self) -> list[Path]:
        own = self._path(this_process())
        return [path for path in self._beside.parent.glob(f"{glob.escape(self._beside.name)}-owner-*") if path != own]


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, fd: int) -> bool:
    """Whether the name still leads to the file that was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


# A forked child inherits the locks of its parent, and would keep it alive in the eyes of all others.
_held: set[int] = set()


def _let_go_in_child() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)
