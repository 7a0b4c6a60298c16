"""Fragments for watchers in other processes, through side files that may be deleted at any time.

In a folder beside the database lie, for a run that is being watched from elsewhere, `….ear`, whose lock the watchers
share, and `….live`, to which the driver appends what is said. All of it comes with a watcher and goes with the last.
"""

import hashlib
import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from clew.ports import Relayed
from clew.stores.owners import Shared, nobody_holds

log = logging.getLogger("clew.relay")

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Relayed)


class SideFiles:
    """The relay of one database. The disk may be full and the files may vanish: then nothing is relayed."""

    def __init__(self, beside: Path) -> None:
        self._folder = Path(f"{beside}-live")
        self._saying: dict[str, int] = {}

    def _ear(self, run: str) -> Path:
        # A run id may be longer than a file's name, and says nothing that a file's name could not bend.
        return self._folder / f"{hashlib.sha256(run.encode()).hexdigest()[:32]}.ear"

    def sweep(self) -> None:
        """Remove what dead watchers and drivers left."""
        ears = [ear for ear in self._folder.glob("*.ear") if not nobody_holds(ear)]
        for live in self._folder.glob("*.live"):
            if live.with_suffix(".ear") not in ears:
                live.unlink(missing_ok=True)
        _tidy(self._folder)

    def wanted(self, runs: Collection[str]) -> set[str]:
        try:
            if not os.listdir(self._folder):
                return set()
            return {run for run in runs if not nobody_holds(self._ear(run))}
        except FileNotFoundError:
            return set()
        except OSError as error:
            log.debug("%s: nobody can be seen to watch: %s", self._folder, error)
            return set()

    def say(self, run: str, fragments: Sequence[Relayed]) -> bool:
        data = b"".join([_encoder.encode(fragment) + b"\n" for fragment in fragments])
        try:
            fd = self._saying.get(run)
            if fd is None:
                path = self._ear(run).with_suffix(".live")
                path.unlink(missing_ok=True)
                fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
                self._saying[run] = fd
            elif os.fstat(fd).st_nlink == 0:
                self.hush(run)
                return False
            os.write(fd, data)
        except OSError as error:
            log.warning("run %s: watchers in other processes see whole replies only: %s", run, error)
            self.hush(run)
        return True

    def hush(self, run: str) -> None:
        fd = self._saying.pop(run, None)
        if fd is None:
            return
        if os.fstat(fd).st_nlink:
            self._ear(run).with_suffix(".live").unlink(missing_ok=True)
        os.close(fd)

    def attend(self, run: str) -> "FileEar":
        return FileEar(self._ear(run))

    def close(self) -> None:
        for run in list(self._saying):
            self.hush(run)


class FileEar:
    """Reads the side file of one run from where it stopped; from the beginning if it was made anew."""

    def __init__(self, ear: Path) -> None:
        self._path = ear.with_suffix(".live")
        self._lock = Shared(ear)
        self._fd: int | None = None
        self._rest = b""
        try:
            while not self._entered():
                self._path.parent.mkdir(exist_ok=True)
        except OSError as error:
            log.warning("%s: what is said cannot be heard here: %s", ear, error)

    def _entered(self) -> bool:
        try:
            self._lock.enter()
        except FileNotFoundError:
            return False  # nobody has made the folder, or the last of the others took it with him
        return True

    def heard(self) -> list[Relayed]:
        try:
            if self._fd is None or not self._is_same():
                self._reopen()
            return [] if self._fd is None else self._read(self._fd)
        except OSError as error:
            log.debug("%s: %s", self._path, error)
            return []

    def _is_same(self) -> bool:
        assert self._fd is not None
        return os.fstat(self._fd).st_nlink > 0

    def _reopen(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
        self._rest = b""
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return

    def _read(self, fd: int) -> list[Relayed]:
        pieces = [self._rest]
        while piece := os.read(fd, 1 << 20):
            pieces.append(piece)
        *lines, self._rest = b"".join(pieces).split(b"\n")
        found: list[Relayed] = []
        for line in lines:
            try:
                found.append(_decoder.decode(line))
            except msgspec.MsgspecError as error:
                log.debug("%s holds what is no fragment: %s", self._path, error)
        return found

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._lock.leave()
        _tidy(self._path.parent)


def _tidy(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # somebody is there, or never was
