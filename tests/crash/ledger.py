"""What happened outside, written down by a process that nobody kills: one fsynced line per effect.

`python -m tests.crash.ledger FILE SOCKET` serves until its stdin ends. A line is acknowledged once it is on the disk.
"""

import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

ACK = b"\n"
REPOSITORY = Path(__file__).resolve().parents[2]


class Line(NamedTuple):
    """`number`: its place in the ledger. `word` says what happened, `step` to which step, `rest` whatever else."""

    number: int
    word: str
    run: str
    step: str
    rest: tuple[str, ...]


class Pen:
    """One writer's connection. A line has happened once `write` returns."""

    def __init__(self, at: str | Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(at))

    def write(self, *words: object) -> None:
        self._socket.sendall((" ".join(str(word) for word in words) + "\n").encode())
        if self._socket.recv(1) != ACK:
            raise ConnectionError("the ledger is gone")

    def close(self) -> None:
        self._socket.close()


class Ledger:
    """The process, as whoever starts it sees it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.txt"
        self.at = folder / "ledger.sock"
        self._server = subprocess.Popen(
            [sys.executable, "-S", "-m", "tests.crash.ledger", str(self.path), str(self.at)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            raise RuntimeError("the ledger did not start")
        self._pen = Pen(self.at)
        self._read_to = 0
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, *words: object) -> None:
        self._pen.write(*words)

    def lines(self) -> list[Line]:
        return list(read(self.path))

    def fresh(self) -> list[Line]:
        """The lines written since the last time this was asked."""
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_to += len(whole)
        found = [_line(self._count + place, one) for place, one in enumerate(whole.decode().splitlines())]
        self._count += len(found)
        return found

    def close(self) -> None:
        self._pen.close()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(10)
        assert self._server.stdout is not None
        self._server.stdout.close()


def read(path: Path) -> Iterator[Line]:
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines()):
        yield _line(number, text)


def _line(number: int, text: str) -> Line:
    word, run, step, *rest = [*text.split(" "), "", ""]
    return Line(number, word, run, step, tuple(one for one in rest if one))


class Server:
    """Reads what its clients say, makes it durable in one fsync, then tells all of them."""

    def __init__(self, path: str, at: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self._unfinished: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(at)
        self._listening.listen(64)
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            whole: list[bytes] = []
            owed: list[tuple[socket.socket, int]] = []
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is self._listening:
                    self._welcome()
                elif lines := self._hear(key.fileobj):  # type: ignore[arg-type]
                    whole.append(lines)
                    owed.append((key.fileobj, lines.count(b"\n")))  # type: ignore[arg-type]
            if whole:
                os.write(self._file, b"".join(whole))
                os.fsync(self._file)
            for client, count in owed:
                self._tell(client, count)

    def _welcome(self) -> None:
        client, _ = self._listening.accept()
        self._unfinished[client] = b""
        self._selector.register(client, selectors.EVENT_READ)

    def _hear(self, client: socket.socket) -> bytes:
        """The whole lines of a client; half a line of one that died is no line."""
        try:
            heard = client.recv(65536)
        except ConnectionResetError:
            heard = b""
        if not heard:
            self._selector.unregister(client)
            del self._unfinished[client]
            client.close()
            return b""
        lines, _, self._unfinished[client] = (self._unfinished[client] + heard).rpartition(b"\n")
        return lines + b"\n" if lines else b""

    def _tell(self, client: socket.socket, count: int) -> None:
        try:
            client.sendall(ACK * count)
        except (BrokenPipeError, ConnectionResetError):
            return  # it was killed meanwhile: what it said stands


def main() -> None:
    server = Server(sys.argv[1], sys.argv[2])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve()


if __name__ == "__main__":
    main()
