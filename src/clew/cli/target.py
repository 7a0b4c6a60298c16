"""From `module:agent` or `module:runtime`, as in uvicorn, to the objects it names."""

import importlib
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from clew.agent import Agent
from clew.app import Runtime
from clew.errors import UsageError
from clew.models.names import PROVIDERS
from clew.runtime.user_code import Raised, attempt_sync

FORM = "name it as module:agent, such as app:agent or path/to/app.py:agent"


@dataclass(frozen=True)
class Target:
    """An agent, or a Runtime that brings agents, deps and store."""

    name: str
    module: ModuleType | None
    agent: Agent[Any, Any] | None = None
    runtime: Runtime | None = None

    def one_agent(self, named: str | None = None) -> Agent[Any, Any]:
        """The agent to start. Raises UsageError if a Runtime has several and none was named."""
        if self.runtime is None:
            assert self.agent is not None
            return self.agent
        agents = self.runtime.agents
        if named is None and len(agents) == 1:
            return next(iter(agents.values()))
        if named is not None and named in agents:
            return agents[named]
        asked = "say which with --agent" if named is None else f"it has no {named!r}"
        raise UsageError(f"{self.name} has the agents {', '.join(agents) or 'none'}: {asked}")


def load(text: str) -> Target:
    """Raises UsageError that says what is wrong with the name, or with the module behind it."""
    if text.partition(":")[0] in PROVIDERS:
        return Target(text, None, agent=Agent("assistant", model=text))
    place, _, name = text.partition(":")
    if not place:
        raise UsageError(f"{text!r} names no module: {FORM}")
    module = _module(place, text)
    if not name:
        name = _only(module, text)
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise UsageError(f"{place} has no {name!r}{_offers(module)}")
        thing = getattr(thing, part)
    if isinstance(thing, Agent):
        return Target(text, module, agent=cast("Any", thing))
    if isinstance(thing, Runtime):
        return Target(text, module, runtime=thing)
    raise UsageError(f"{text} is no Agent and no Runtime, but of type {type(thing).__name__}{_offers(module)}")


def function(text: str, of: Target) -> Any:
    """A function named as `module:function`, or by its name alone in the target's own module."""
    place, _, name = text.rpartition(":")
    module = of.module if not place else _module(place, text)
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(
            f"{text!r} names no function: give its name in {of.name.partition(':')[0]}, or module:function"
        )
    return found


def _module(place: str, text: str) -> ModuleType:
    path = Path(place) if place.endswith(".py") or os.sep in place else None
    folder, name = (Path.cwd(), place) if path is None else _file(path, text)
    if name.startswith("."):
        raise UsageError(f"{text!r} names no module: {FORM}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    imported = attempt_sync(importlib.import_module, name)
    if not isinstance(imported, Raised):
        if path is not None and not _is_of(imported.value, path):
            raise UsageError(
                f"{text!r}: another module is called {name!r}, such as one of Python's own: rename the file"
            )
        return imported.value
    error = imported.error
    if isinstance(error, KeyboardInterrupt):
        raise error
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (name == missing or name.startswith(f"{missing}.")):
        raise UsageError(f"there is no module {name!r} here: {FORM}") from error
    raise UsageError(_told(name, error)) from error


def _file(path: Path, text: str) -> tuple[Path, str]:
    """Where to look for the module of a file, and what it is called there."""
    if not path.is_file():
        raise UsageError(f"{text!r}: there is no file {path}")
    if "." in path.stem:
        raise UsageError(f"{text!r}: a module's name has no dot in it: rename the file")
    return path.resolve().parent, path.stem


def _is_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()


def _told(name: str, error: BaseException) -> str:
    """The user's own traceback: without the frames of the import system and of ours."""
    others = ("<frozen importlib", importlib.__file__, f"{Path(__file__).parents[1]}{os.sep}")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    lines = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)]).rstrip()
    return f"{name} cannot be imported:\n{lines}"


def _named(module: ModuleType) -> dict[str, str]:
    """Names in a module that would do, and what they are."""
    names = vars(module).items()
    return {name: type(thing).__name__ for name, thing in names if isinstance(cast("object", thing), Agent | Runtime)}


def _only(module: ModuleType, text: str) -> str:
    names = list(_named(module))
    if len(names) == 1:
        return names[0]
    raise UsageError(f"{text!r} names no agent{_offers(module)}: {FORM}")


def _offers(module: ModuleType) -> str:
    found = _named(module)
    offers = ", ".join(f"{name} ({kind})" for name, kind in found.items())
    return f"; {module.__name__} has {offers}" if offers else f"; {module.__name__} defines no Agent and no Runtime"
