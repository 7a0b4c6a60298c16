"""A coroutine with somebody looking at each of its awaits: where a process may die in the middle of a body."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


# A process that dies unwinds nothing: a body that was left in the middle is kept, so that nobody closes it.
_left: list[Any] = []


class Stepped(Generic[T]):
    """Awaits the same, and tells each time that it is about to wait. If that raises, the body is left where it is."""

    def __init__(self, body: Awaitable[T], waits: Callable[[], None]) -> None:
        self._body = body
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, T]:
        return cast("Generator[Any, Any, T]", _Steps(self._body.__await__(), self._waits))


class _Steps:
    """What a generator is to who awaits it; its end, and what is thrown into it, go through untouched."""

    def __init__(self, inner: Any, waits: Callable[[], None]) -> None:
        self._inner = inner
        self._waits = waits

    def __iter__(self) -> "_Steps":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._told(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._told(self._inner.throw(*error))

    def _told(self, awaited: Any) -> Any:
        _left.append(self._inner)
        self._waits()
        _left.pop()
        return awaited

    def close(self) -> None:
        self._inner.close()
