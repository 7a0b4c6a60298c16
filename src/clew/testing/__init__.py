"""What tests of agents, and of stores, are made with. Each name is loaded when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.models.scripted import FunctionModel, ScriptedModel, call, slow
    from clew.testing.clock import VirtualClock
    from clew.testing.contexts import tool_context
    from clew.testing.crash import crash_points
    from clew.testing.store_contract import StoreContract

__all__ = [
    "FunctionModel",
    "ScriptedModel",
    "StoreContract",
    "VirtualClock",
    "call",
    "crash_points",
    "slow",
    "tool_context",
]

_HOMES = {
    "FunctionModel": "clew.models.scripted",
    "ScriptedModel": "clew.models.scripted",
    "StoreContract": "clew.testing.store_contract",
    "VirtualClock": "clew.testing.clock",
    "call": "clew.models.scripted",
    "crash_points": "clew.testing.crash",
    "slow": "clew.models.scripted",
    "tool_context": "clew.testing.contexts",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'clew.testing' has no attribute {name!r}")
