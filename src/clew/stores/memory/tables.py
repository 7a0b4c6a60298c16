"""Tables in memory whose changes can be taken back: what makes a commit of the memory store all or nothing."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import RLock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_ABSENT = object()


class Undo:
    """The rows as they were before the write that is going on. Rows are values, so the old one is all it takes."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []
        self._lock = RLock()

    def note(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    @contextmanager
    def write(self) -> Generator[None]:
        """One write, by one thread at a time: whole, or never seen."""
        with self._lock:
            self._steps.clear()
            try:
                yield
            except BaseException:
                for step in reversed(self._steps):
                    step()
                raise


class Table(dict[K, V], Generic[K, V]):
    """Rows by key. They change inside `Undo.write` only."""

    def __init__(self, undo: Undo) -> None:
        super().__init__()
        self._undo = undo

    def __setitem__(self, key: K, value: V) -> None:
        self._remember(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self._remember(key)
        super().__delitem__(key)

    def _remember(self, key: K) -> None:
        old = self.get(key, _ABSENT)
        restore = super().__setitem__
        remove = super().__delitem__
        self._undo.note(lambda: remove(key) if old is _ABSENT else restore(key, old))  # type: ignore[arg-type]
