"""State keys: named, typed places in a run's or thread's state, and how two writers of one turn are merged."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from typing_extensions import TypeForm, TypeVar

from clew.agent import schema
from clew.agent.shapes import label, one_of
from clew.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clew.agent.schema import Adapter
    from clew.agent.shapes import JSON

_T = TypeVar("_T")
_NO_DEFAULT: Any = object()


class StateKey(Generic[_T]):
    """A named, typed place in a run's or thread's state. Two writers of one turn are merged by `merge`."""

    def __init__(
        self,
        name: str,
        type: TypeForm[_T],
        *,
        default: _T = _NO_DEFAULT,
        scope: Literal["run", "thread"] = "run",
        merge: Literal["replace", "add"] | Callable[[_T, _T], _T] = "replace",
    ) -> None:
        if not name or not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a state key needs a name, not {name!r}")
        one_of(scope, ("run", "thread"), f"StateKey({name!r}): scope")
        if not callable(merge):
            one_of(merge, ("replace", "add"), f"StateKey({name!r}): merge")
        self.name = name
        self.type: Any = type
        self.has_default = default is not _NO_DEFAULT
        self.default = default
        self.scope: Literal["run", "thread"] = scope
        self.merge: Literal["replace", "add"] | Callable[[_T, _T], _T] = merge

    @cached_property
    def _adapter(self) -> Adapter:
        return schema.adapter(self.type)

    def check(self, value: object) -> JSON:
        """The value as JSON. Raises UsageError for one that is not of the key's type."""
        try:
            return self._adapter.dump_python(self._adapter.validate_python(value), mode="json", warnings=False)
        except ValueError as error:
            raise UsageError(
                f"state key {self.name!r} takes {label(self.type)}, not this {type(value).__name__}: "
                f"{schema.problems(error)}"
            ) from error

    def load(self, data: JSON) -> _T:
        """The value back from its JSON. Raises UsageError if the type has changed too much since it was stored."""
        try:
            return cast("_T", self._adapter.validate_python(data))
        except ValueError as error:
            raise UsageError(f"what is stored under state key {self.name!r} is no {label(self.type)}") from error

    def joined(self, old: JSON, new: JSON) -> JSON:
        """Two values merged as declared, as JSON. The merge may be user code, and raise anything."""
        a, b = self.load(old), self.load(new)
        merged = self.merge(a, b) if callable(self.merge) else cast("Any", a) + b
        return self.check(merged)

    def __repr__(self) -> str:
        merge = self.merge if isinstance(self.merge, str) else label(self.merge)
        return f"StateKey({self.name!r}, {label(self.type)}, scope={self.scope!r}, merge={merge!r})"
