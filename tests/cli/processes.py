"""Real processes of the command line, over pipes or on a terminal of their own: read, signalled, never left behind."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

PATIENCE = 60.0  # seconds after which something that should come does not come
LOOK = 0.005
CTRL_C, CTRL_D = "\x03", "\x04"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ROWS = 24


class Silence(AssertionError):
    """What was waited for did not come."""


@dataclass(frozen=True)
class Said:
    """How a process ended, and what it said. A terminal shows both streams in one: `out`."""

    code: int
    out: str
    err: str = ""

    @property
    def lines(self) -> list[str]:
        return self.out.split("\n")[:-1]

    @property
    def plain(self) -> str:
        """What a terminal shows, without its colours."""
        return COLOUR.sub("", self.out).replace("\r\n", "\n")

    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]

    def error(self) -> str:
        """The one message of an error that was asked for as JSON."""
        [line] = self.err.split("\n")[:-1]
        message: str = json.loads(line)["error"]["message"]
        return message


class Running:
    """A process of ours, whose streams are read while it is waited for."""

    def __init__(self, process: "subprocess.Popen[bytes]", streams: Mapping[str, int]) -> None:
        self._process = process
        self._open = {fd: name for name, fd in streams.items()}
        self._keys = dict(streams)
        self._said = {name: bytearray() for name in streams}
        self.pid = process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def said(self, where: str = "out") -> str:
        return self._said[where].decode(errors="replace")

    @property
    def everything(self) -> str:
        return "\n".join(f"--- {name}\n{self.said(name)}" for name in self._said)

    def _read(self, seconds: float) -> bool:
        """Read what has come within this time; whether more may come."""
        ready, _, _ = select.select(list(self._open), [], [], seconds)
        for fd in ready:
            try:
                data = os.read(fd, 1 << 16)
            except OSError:
                data = b""  # a terminal whose last process has gone
            if data:
                self._said[self._open[fd]] += data
            else:
                del self._open[fd]
                os.close(fd)
        return bool(self._open)

    def wait_for(self, text: str, where: str = "out", *, times: int = 1) -> str:
        """Until it has said this; answers all that it has said there."""
        deadline = time.monotonic() + PATIENCE
        while self.said(where).count(text) < times:
            if time.monotonic() > deadline or not self._read(0.5):
                raise Silence(f"process {self.pid} never said {text!r}:\n{self.everything}")
        return self.said(where)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Until this is so, whoever brings it about."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise Silence(f"{what}: never, and process {self.pid} said\n{self.everything}")
            self._read(LOOK) if self._open else time.sleep(LOOK)

    @property
    def is_gone(self) -> bool:
        return self._process.poll() is not None

    def gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read(LOOK) if self._open else time.sleep(LOOK)
        return self._process.poll() is not None

    def close(self, where: str) -> None:
        """Read no more of this, as `head` does."""
        fd = self._keys[where]
        del self._open[fd]
        os.close(fd)

    def type(self, text: str) -> None:
        os.write(self._keys["out"], text.encode())

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def freeze(self) -> None:
        """It stands still once this returns."""
        self.signal(signal.SIGSTOP)
        self.until(lambda: self._state() == "T", "it stands still")

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def _state(self) -> str:
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0]

    def kill(self) -> Said:
        self.signal(signal.SIGKILL)
        return self.ended()

    def ended(self) -> Said:
        deadline = time.monotonic() + PATIENCE
        while self._open and self._read(0.5):
            if time.monotonic() > deadline:
                raise Silence(f"process {self.pid} does not end; it said\n{self.everything}")
        code = self._process.wait(max(deadline - time.monotonic(), 1))
        return Said(code, self.said("out"), self.said("err") if "err" in self._said else "")


def over_pipes(command: list[str], folder: Path, environment: Mapping[str, str], text: str | None = None) -> Running:
    """`text` is what it finds on its standard input."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_hear_ctrl_c,
    )
    if process.stdin is not None:
        process.stdin.write((text or "").encode())
        process.stdin.close()
    assert process.stdout is not None
    assert process.stderr is not None
    # Copies, so that whoever reads here may close them whenever they end.
    with process.stdout, process.stderr:
        streams = {"out": os.dup(process.stdout.fileno()), "err": os.dup(process.stderr.fileno())}
    return Running(process, streams)


def on_terminal(command: list[str], folder: Path, environment: Mapping[str, str], columns: int) -> Running:
    """In a session of its own, as a shell would start it: what is typed as Ctrl-C reaches all of its processes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    return Running(process, {"out": ours})


def _hear_ctrl_c() -> None:
    """Whoever runs the tests in the background ignores SIGINT, and what he starts would do so too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _take_terminal() -> None:
    _hear_ctrl_c()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
