"""A folder with agents and a store, and a shell to type `clew` in, with a terminal and without."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clew import Agent, Runtime
from clew.app import Run
from clew.cli.schema import schema
from clew.core.entries import Entry
from clew.ports import RunInfo
from tests.cli.processes import Running, Said, on_terminal, over_pipes

APPS = Path(__file__).parent / "apps"
SCRIPT = Path(sys.executable).parent / "clew"
OURS = ("CLEW_STORE", "_CLEW_COMPLETE", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING")
WIDE = 200


class Shell:
    """Types commands in one folder; what it started ends with it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def _environment(self, given: dict[str, str]) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if name not in OURS}
        return {**own, "TERM": "xterm-256color", "TZ": "UTC", **given}

    def _command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "clew", *map(str, words)]

    # --- typing

    def start(self, *words: object, text: str | None = None, **environment: str) -> Running:
        """Over pipes, and at work until it is waited for."""
        running = over_pipes(self._command(*words), self.folder, self._environment(environment), text)
        return self._stack.enter_context(running)

    def clew(self, *words: object, text: str | None = None, **environment: str) -> Said:
        """Over pipes, to its end."""
        with over_pipes(self._command(*words), self.folder, self._environment(environment), text) as running:
            return running.ended()

    def start_on_terminal(self, *words: object, columns: int = WIDE, **environment: str) -> Running:
        running = on_terminal(self._command(*words), self.folder, self._environment(environment), columns)
        return self._stack.enter_context(running)

    def terminal(self, *words: object, columns: int = WIDE, **environment: str) -> Said:
        """On a terminal, to its end."""
        with on_terminal(self._command(*words), self.folder, self._environment(environment), columns) as running:
            return running.ended()

    def start_script(self, name: str, *words: object) -> Running:
        """A program of the folder."""
        command = [sys.executable, name, *map(str, words)]
        return self._stack.enter_context(over_pipes(command, self.folder, self._environment({})))

    def sh(self, line: str, **environment: str) -> Said:
        """A line for bash, in which `clew` is the installed script."""
        path = f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
        words = ["bash", "--norc", "-c", line]
        with over_pipes(words, self.folder, self._environment({"PATH": path, **environment})) as running:
            return running.ended()

    def json(self, schema: str, *words: object, code: int = 0, **environment: str) -> list[Any]:
        """The lines of a command with --json, each valid by its documented schema."""
        said = self.clew(*words, "--json", **environment)
        assert said.code == code, said
        return valid(schema, said.json())

    def refused(self, code: int, *words: object, **environment: str) -> str:
        """What a command that fails says: one sentence as text, and the same as JSON; nothing on the output."""
        with (
            over_pipes(self._command(*words), self.folder, self._environment(environment)) as first,
            over_pipes(self._command(*words, "--json"), self.folder, self._environment(environment)) as second,
        ):
            plain, as_json = first.ended(), second.ended()
        assert (plain.code, as_json.code) == (code, code), (plain, as_json)
        assert (plain.out, as_json.out) == ("", "")
        assert "Traceback" not in plain.err
        assert "\x1b" not in plain.err + as_json.err
        [error] = valid("error", [json.loads(line) for line in as_json.err.split("\n")[:-1]])
        message = str(error["error"]["message"])
        assert plain.err.startswith(("clew: ", "Usage: "))
        return message

    def told(self, code: int, *words: object, **environment: str) -> str:
        """The same as text alone, where it is enough that somebody else looks at the JSON."""
        said = self.clew(*words, **environment)
        assert (said.code, said.out) == (code, ""), said
        assert "Traceback" not in said.err
        assert "\x1b" not in said.err
        assert said.err.startswith("clew: ")
        return said.err.removeprefix("clew: ").removesuffix("\n")

    # --- the folder

    @property
    def store(self) -> Path:
        return self.folder / "clew.db"

    def open_gate(self, name: str) -> None:
        (self.folder / f"go-{name}").touch()

    def log(self, word: str) -> list[list[str]]:
        """The lines of the agents' log that begin with this word, in words."""
        path = self.folder / "log.txt"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(f"{word} ")]

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {"__pycache__", *(app.name for app in APPS.iterdir())}

    # --- the store, past the command line

    def aside(self, work: Callable[[Runtime], Coroutine[Any, Any, Any]], store: str = "clew.db") -> Any:
        """Done in this process, which drives nothing."""

        async def performed() -> Any:
            async with Runtime(f"sqlite:///{self.folder / store}", drive=False) as runtime:
                return await work(runtime)

        return asyncio.run(performed())

    def entries(self, run: str) -> list[Entry]:
        found: list[Entry] = self.aside(lambda runtime: runtime.store.read(run))
        return found

    def kinds(self, run: str) -> list[str]:
        return [entry.kind for entry in self.entries(run)]

    def info(self, run: str) -> RunInfo:
        found: RunInfo = self.aside(lambda runtime: runtime.store.info(run))
        return found

    def drive(self, agent: Agent[Any, Any], *runs: str, text: str = "Go", thread: str | None = None) -> None:
        """Runs that this process sees through, one after the other."""

        async def driven() -> None:
            async with Runtime(f"sqlite:///{self.store}", agents=[agent]) as runtime:
                for run in runs:
                    await (await runtime.start(agent, text, run_id=run, thread_id=thread)).result()

        with chdir(self.folder):
            asyncio.run(driven())

    def accept(self, agent: Agent[Any, Any], *runs: str, thread: str | None = None) -> None:
        """Runs that nobody drives yet."""

        async def started(runtime: Runtime) -> list[Run[Any]]:
            return [await runtime.start(agent, "Go", run_id=run, thread_id=thread) for run in runs]

        self.aside(started)


def valid(line: str, things: list[Any]) -> list[Any]:
    """Raises for what is not as `clew schema LINE` says; and a schema that lets everything pass is none."""
    validator = Draft202012Validator(schema(line))
    for thing in things:
        validator.validate(thing)
    assert not validator.is_valid({})
    return things


def _furnished(folder: Path) -> Path:
    for app in APPS.glob("*.py"):
        shutil.copy(app, folder)
    return folder


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with ExitStack() as stack:
        yield Shell(_furnished(tmp_path), stack)


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One shell for all tests of a module: what they look at is made once, and they change nothing."""
    with ExitStack() as stack:
        yield Shell(_furnished(tmp_path_factory.mktemp("cli")), stack)
