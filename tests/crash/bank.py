"""A bank that nobody kills: one fsynced line per payment, and an answer to whoever asks what became of one.

`python -m tests.crash.bank FILE SOCKET` serves until its stdin ends. It takes every payment that it is asked for, also
a second one under the same key: what must not happen twice is not its business.
"""

import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from tests.crash.ledger import REPOSITORY, Server

if TYPE_CHECKING:
    from io import BufferedReader

TACITURN = 4  # of one in so many payments the bank never says whether it has it


class Line(NamedTuple):
    """What the bank wrote down, `place` in its order.

    "paid": `answer` is the receipt, `pid` and `attempt` are who paid. "asked" by a tool or "looked" at by a clerk:
    `answer` is the receipt, "none", or "silence" for what it never says; `pid` is who asked.
    """

    place: int
    word: str
    key: str
    answer: str
    pid: int
    attempt: int
    at: int


def is_taciturn(key: str) -> bool:
    return zlib.crc32(key.encode()) % TACITURN == 0


class Teller:
    """One process's connection to the bank; its threads take turns."""

    def __init__(self, at: str | Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(at))
        self._answers: BufferedReader = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def pay(self, key: str, attempt: int) -> str:
        """The receipt. It is paid once this returns, and may be if it does not."""
        return self._ask("pay", key, attempt)

    def ask(self, key: str) -> str:
        """The receipt, "none", or "silence"."""
        return self._ask("ask", key, 0)

    def look(self, key: str) -> str:
        """What is in the book: the receipt or "none", to a clerk who may look."""
        return self._ask("look", key, 0)

    def _ask(self, word: str, key: str, attempt: int) -> str:
        with self._lock:
            self._socket.sendall(f"{word} {key} {os.getpid()} {attempt}\n".encode())
            answer = self._answers.readline()
        if not answer:
            raise ConnectionError("the bank is gone")
        return answer.decode().strip()

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


class Bank:
    """The process, as whoever starts it sees it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "book.txt"
        self.at = folder / "bank.sock"
        self._server = subprocess.Popen(
            [sys.executable, "-S", "-m", "tests.crash.bank", str(self.path), str(self.at)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            raise RuntimeError("the bank did not open")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(10)
        self._server.stdout.close()

    def lines(self) -> list[Line]:
        return list(read(self.path))


def read(path: Path) -> Iterator[Line]:
    for place, text in enumerate(path.read_text(encoding="ascii").splitlines()):
        word, key, answer, pid, attempt, at = text.split(" ")
        yield Line(place, word, key, answer, int(pid), int(attempt), int(at))


class Counter(Server):
    """Writes what was paid and asked in the order it came, in one fsync, and then answers."""

    def __init__(self, path: str, at: str) -> None:
        super().__init__(path, at)
        self._receipts: dict[str, str] = {}
        self._count = 0

    def serve(self) -> None:
        while True:
            heard: list[tuple[socket.socket, str]] = []
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is self._listening:
                    self._welcome()
                    continue
                client: socket.socket = key.fileobj  # type: ignore[assignment]
                heard.extend((client, line) for line in self._hear(client).decode().splitlines())
            # Payments first: what lay here when its sender died must not come behind a question about it.
            heard.sort(key=lambda one: not one[1].startswith("pay "))
            answers = [(client, *self._answer(*line.split(" "))) for client, line in heard]
            if answers:
                os.write(self._file, "".join(written for *_, written in answers).encode())
                os.fsync(self._file)
            for client, answer, _ in answers:
                self._say(client, answer)

    def _answer(self, word: str, key: str, pid: str, attempt: str) -> tuple[str, str]:
        """What to say, and what to write down of it."""
        at = time.time_ns() // 1000
        if word == "pay":
            self._count += 1
            receipt = f"receipt-{self._count}"
            self._receipts.setdefault(key, receipt)
            return receipt, f"paid {key} {receipt} {pid} {attempt} {at}\n"
        known = self._receipts.get(key, "none")
        answer = "silence" if word == "ask" and is_taciturn(key) else known
        return answer, f"{word}ed {key} {answer} {pid} 0 {at}\n"

    def _say(self, client: socket.socket, answer: str) -> None:
        try:
            client.sendall(f"{answer}\n".encode())
        except (BrokenPipeError, ConnectionResetError):
            return  # it was killed meanwhile: what it did stands


def main() -> None:
    counter = Counter(sys.argv[1], sys.argv[2])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    counter.serve()


if __name__ == "__main__":
    main()
