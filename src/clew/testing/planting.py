"""What a planted fault is, and the ways to plant one."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from msgspec import Struct


class Fault(Struct, frozen=True):
    """A promise that is broken: the statements it belongs to, what goes wrong, and the patches that make it so."""

    statements: tuple[str, ...]
    summary: str
    plant: Callable[[ExitStack], None]


def replacing(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[ExitStack], None]:
    """Put what `make` makes of an attribute in its place."""

    def plant(stack: ExitStack) -> None:
        stack.enter_context(patch.object(owner, name, make(getattr(owner, name))))

    return plant


def always(answer: object) -> Callable[[Any], Any]:
    """A function that answers the same, whatever it is asked, in place of the whole one."""

    def make(_whole: Any) -> Any:
        def constant(*_args: Any, **_kwargs: Any) -> Any:
            return answer

        return constant

    return make
