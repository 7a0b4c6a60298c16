"""Victims as whoever starts them holds them: what they say, what they are told, and how they end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from tests.crash.ledger import REPOSITORY
from tests.crash.phases import blank_board, on_board
from tests.crash.victim import Orders

PATIENCE = 30.0  # seconds after which something that should come does not come
LOOK = 0.005

_numbers = count(1)


class Silence(AssertionError):
    """What was waited for did not come."""


class Child:
    """A process of ours: killed by its own pid, its words read by a thread."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self._log: IO[bytes] = log.open("ab")
        self.log = log
        self._process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.pid = self._process.pid
        self.said: list[str] = []
        self.ended_at = 0.0
        self._more = threading.Condition()
        self._silent = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self.said.append(line.decode().rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._silent = True
            self._more.notify_all()

    def wait_for(self, *starts: str, seconds: float = PATIENCE, after: int = 0) -> str:
        """The first line, after so many, that starts with one of these. Raises Silence if the process ends before."""
        deadline = time.monotonic() + seconds
        place = after
        with self._more:
            while True:
                while place < len(self.said):
                    if self.said[place].startswith(starts):
                        return self.said[place]
                    place += 1
                left = deadline - time.monotonic()
                if self._silent or left <= 0:
                    why = "it is gone" if self._silent else f"not within {seconds} s"
                    raise Silence(f"process {self.pid} never said {starts}: {why}; it said {self.said}\n{self.tail()}")
                self._more.wait(left)

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def tell(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write((" ".join(words) + "\n").encode())
        self._process.stdin.flush()

    # --- ends

    @property
    def gone(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """SIGSTOP, and wait until the kernel says that it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        self.stopped()

    def stopped(self) -> None:
        until(lambda: _state(self.pid) == "T", f"process {self.pid} has stopped")

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL if it still runs. Answers how it ended."""
        if self._process.poll() is None:
            self._process.kill()
        return self.ended()

    def ended(self, seconds: float = PATIENCE) -> int:
        code = self._process.wait(seconds)
        self.ended_at = self.ended_at or time.monotonic()
        self._reader.join(seconds)
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was still to be told has nobody to hear it
        return code


class Victim(Child):
    """A process of `tests.crash.victim`."""

    def __init__(self, folder: Path, **orders: Any) -> None:
        number = next(_numbers)
        self.board = blank_board(folder / f"board-{os.getpid()}-{number}")
        self.orders = Orders(folder=str(folder), board=str(self.board), **orders)
        command = [sys.executable, "-m", "tests.crash.victim", msgspec.json.encode(self.orders).decode()]
        super().__init__(command, folder / "victims.log")

    def fell_in(self) -> set[str]:
        """The phases that it was in when it died."""
        return on_board(self.board)


def _state(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return stat.rpartition(")")[2].split()[0]


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Silence(f"not within {seconds} s: {what}")
        time.sleep(LOOK)


__all__ = ["Child", "Silence", "Victim", "until"]
