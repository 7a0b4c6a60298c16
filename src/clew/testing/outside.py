"""The world beyond the store, as a crash test sees it: made new before each trial, looked at after it."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from clew.runtime.redact import described
from clew.runtime.user_code import Raised, attempt, call


class Outside:
    """The world beyond the store, as far as its owner lent us functions for it."""

    def __init__(self, reset: Callable[[], Any] | None, check: Callable[[], Any] | None) -> None:
        self._reset = reset
        self._check = check

    async def renew(self) -> None:
        if self._reset is not None:
            await call(self._reset)

    async def found(self, where: str) -> list[str]:
        """What is wrong with it now, each with the crash that showed it."""
        if self._check is None:
            return []
        outcome = await attempt(call(self._check))
        if isinstance(outcome, Raised):
            return [f"{where}: {described(outcome.error)}"]
        value = cast("object", outcome.value)
        if value is None or value is True:
            return []
        several = isinstance(value, list | tuple)
        return [f"{where}: {one}" for one in (cast("Sequence[object]", value) if several else (value,))]
