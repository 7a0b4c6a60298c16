"""Models behind the Model port, each loaded when it is named."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.models.names import resolve
    from clew.models.openai import OpenAIModel
    from clew.models.scripted import FunctionModel, ScriptedModel

__all__ = ["FunctionModel", "OpenAIModel", "ScriptedModel", "resolve"]

_HOMES = {"FunctionModel": "scripted", "OpenAIModel": "openai", "ScriptedModel": "scripted", "resolve": "names"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"clew.models.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'clew.models' has no attribute {name!r}")
