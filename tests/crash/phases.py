"""Where a process is when it is killed: a board that outlives it, and triggers that make an end fall into a phase.

The board is a mapped file: what a process put there stands after SIGKILL, to the instruction. Its reader sees whether
something was going on in a phase at the very moment of the end.
"""

import asyncio
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

TITLES = {
    "stream": "in a model stream",
    "reply": "between reply and commit",
    "commit": "in COMMIT",
    "intent": "between intent and body",
    "body": "in a body",
    "result": "between body and commit",
    "after": "after the end",
    "idle": "while idle",
}
PHASES = tuple(TITLES)
WIDTH = 2  # bytes of one counter

How = Literal[
    "die",  # kill itself right there
    "drift",  # kill itself a moment later, wherever it is by then
    "linger",  # say where it is, and stay there to be killed
    "hold",  # say where it is, and stay there until told to go on
    "freeze",  # say where it is, and stop itself, with all threads
]


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen when a phase is reached for the nth time, in this run and step if they are named."""

    phase: str
    how: How
    nth: int = 1
    run: str = ""
    step: str = ""
    seconds: float = 0.0


class Board:
    """How many things are in each phase."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._inside: dict[str, set[str]] = {phase: set() for phase in PHASES}
        self._lock = threading.Lock()

    def enter(self, phase: str, what: str) -> None:
        with self._lock:
            self._inside[phase].add(what)
            self._show(phase)

    def leave(self, phase: str, what: str) -> None:
        with self._lock:
            self._inside[phase].discard(what)
            self._show(phase)

    def _show(self, phase: str) -> None:
        place = PHASES.index(phase) * WIDTH
        self._map[place : place + WIDTH] = len(self._inside[phase]).to_bytes(WIDTH)

    @contextmanager
    def inside(self, phase: str, what: str) -> Generator[None]:
        self.enter(phase, what)
        try:
            yield
        finally:
            self.leave(phase, what)


def blank_board(path: Path) -> Path:
    path.write_bytes(bytes(WIDTH * len(PHASES)))
    return path


def on_board(path: Path) -> set[str]:
    """The phases in which something was, whoever wrote it being dead."""
    data = path.read_bytes()
    return {phase for place, phase in enumerate(PHASES) if any(data[place * WIDTH : place * WIDTH + WIDTH])}


class Stage:
    """One process: its board, what it was told to do where, and its voice."""

    def __init__(self, board: Board, triggers: tuple[Trigger, ...]) -> None:
        self.board = board
        self._left = {trigger: trigger.nth for trigger in triggers}
        self._lock = threading.Lock()
        self._going: list[threading.Event] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        # A thread that drifts to its end must not have to wait for the interpreter.
        sys.setswitchinterval(0.0002)

    def say(self, *words: object) -> None:
        os.write(1, (" ".join(str(word) for word in words).replace("\n", " ") + "\n").encode())

    async def reach(self, phase: str, run: str = "", step: str = "") -> None:
        """This process is in a phase now; what was planned for it happens."""
        trigger = self._struck(phase, run, step)
        if trigger is None or self._happens(trigger, run, step):
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self.say("at", trigger.phase, run, step)
        await waiting

    def reach_at_once(self, phase: str, run: str = "", step: str = "") -> None:
        """The same where nothing can be awaited: the whole thread stays."""
        trigger = self._struck(phase, run, step)
        if trigger is None or self._happens(trigger, run, step):
            return
        going = threading.Event()
        self._going.append(going)
        self.say("at", trigger.phase, run, step)
        going.wait()

    def go_on(self) -> None:
        """Let go what is held; called from the thread that hears commands."""
        for going in self._going:
            going.set()
        assert self._loop is not None
        for waiting in self._waiting:
            self._loop.call_soon_threadsafe(_set, waiting)
        self._going.clear()
        self._waiting.clear()

    def _struck(self, phase: str, run: str, step: str) -> Trigger | None:
        with self._lock:
            for trigger in self._left:
                if trigger.phase != phase or trigger.run not in ("", run) or trigger.step not in ("", step):
                    continue
                self._left[trigger] -= 1
                if self._left[trigger] == 0:
                    return trigger
        return None

    def _happens(self, trigger: Trigger, run: str, step: str) -> bool:
        """Whether there is nothing to wait for any more."""
        match trigger.how:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "drift":
                threading.Thread(target=_drift, args=(trigger.seconds,), daemon=True).start()
            case "freeze":
                self.say("at", trigger.phase, run, step)
                os.kill(os.getpid(), signal.SIGSTOP)
            case "linger" | "hold":
                return False
        return True


def _set(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _drift(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
