"""A shell in a page's folder: runs one command after the other, as somebody would who types them."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEADLINE = 120.0  # seconds for one command
END = b"\x1e"


@dataclass(frozen=True)
class Said:
    """What a command printed, both streams as they came, and its exit code."""

    lines: tuple[str, ...]
    code: int


class Terminal:
    """One bash for a whole page, so that `&`, `wait` and `$?` mean what they mean. Nothing it started outlives it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._typed = folder.with_suffix(".command")
        self._code = 0
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
        )

    def type(self, command: str) -> Said:
        """Run it; commands read nothing from where the next ones stand."""
        assert self._bash.stdin is not None
        self._typed.write_text(command, encoding="utf-8")
        line = f"(exit {self._code}); . '{self._typed}' < /dev/null; printf '\\036%d\\036' $?\n"
        self._bash.stdin.write(line.encode())
        self._bash.stdin.flush()
        printed, code = self._heard(command)
        self._code = code
        return Said(tuple(printed.splitlines()), code)

    def _heard(self, command: str) -> tuple[str, int]:
        assert self._bash.stdout is not None
        heard = b""
        until = time.monotonic() + DEADLINE
        with selectors.DefaultSelector() as selector:
            selector.register(self._bash.stdout, selectors.EVENT_READ)
            while heard.count(END) < 2:
                if not selector.select(max(until - time.monotonic(), 0)):
                    raise AssertionError(
                        f"`{command}` is not over after {DEADLINE:.0f} s; it printed:\n{heard.decode()}"
                    )
                piece = os.read(self._bash.stdout.fileno(), 1 << 16)
                if not piece:
                    raise AssertionError(f"`{command}` ended the shell; it printed:\n{heard.decode()}")
                heard += piece
        printed, code, _ = heard.split(END)
        return printed.decode(), int(code)

    def close(self) -> None:
        """The shell's jobs share its process group, and go with it."""
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        for pipe in (self._bash.stdin, self._bash.stdout):
            if pipe is not None:
                pipe.close()
        self._typed.unlink(missing_ok=True)


def environment(home: Path) -> dict[str, str]:
    """As that of somebody who has installed Clew and set nothing; whatever is written outside goes under `home`."""
    here = {
        name: value for name, value in os.environ.items() if not name.startswith(("CLEW_", "PYTHON", "PYTEST", "COV"))
    }
    return {
        **here,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",  # as on a terminal, so that both streams come in their order
    }
