"""Functions of the user's as a journal knows them: their name, what they return, what they were given."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from clew.agent.schema import to_json
from clew.core.values import Digest, digest, pack
from clew.errors import UsageError


def _bare(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def named(fn: Callable[..., Any]) -> str:
    """The name that stands for a function: the same in every process."""
    bare = _bare(fn)
    name = getattr(bare, "__qualname__", None) or type(bare).__qualname__
    return str(name).replace("<locals>.", "")


def returns(fn: Callable[..., Any]) -> Any:
    """Its return hint, or Any if it has none that resolves."""
    bare = _bare(fn)
    target = bare if hasattr(bare, "__annotations__") else vars(type(bare)).get("__call__", bare)
    try:
        return get_type_hints(target, include_extras=True).get("return", Any)
    except (NameError, AttributeError, TypeError):
        return Any


def fingerprint(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Digest:
    """Of arguments: what can be written as JSON by its value, anything else by its type."""
    return digest([[_shown(value) for value in args], {name: _shown(value) for name, value in sorted(kwargs.items())}])


def _shown(value: object) -> Any:
    try:
        return pack(to_json(value))
    except (ValueError, UsageError, RecursionError):
        return {"$type": type(value).__qualname__}
