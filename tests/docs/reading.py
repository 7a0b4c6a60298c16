"""Reads a page as somebody would who does what it says, block by block, in a fresh folder."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.docs.alike import difference
from tests.docs.blocks import Block, Command, PageError, blocks, commands, prints
from tests.docs.notebook import Notebook
from tests.docs.terminal import Terminal, environment

ROOT = Path(__file__).parents[2]
ASKED = "echo $?"


def read(page: Path, folder: Path) -> None:
    """Do all that the page says. Raises PageError or AssertionError at the first thing that is not so."""
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    found = list(blocks(name, page.read_text(encoding="utf-8")))
    check_files(found)
    with ExitStack() as opened:
        reader = Reader(page, folder, opened)
        for block in found:
            reader.read(block)


def check_files(found: list[Block]) -> None:
    """A Python file that no later block names is shown, and never tried. Tools find a toml by its name."""
    for place, block in enumerate(found):
        if block.file is None or block.language != "python":
            continue
        name = re.escape(Path(block.file).stem)
        if not any(re.search(rf"\b{name}\b", later.text) for later in found[place + 1 :]):
            raise PageError(f"{block.place}: nothing below uses {block.file}: run it, or take its name away")


class Reader:
    """One page in one folder, which holds a copy of examples/ and whatever its blocks leave there."""

    def __init__(self, page: Path, folder: Path, opened: ExitStack) -> None:
        home = folder / "home"
        self._page = page
        self._folder = folder / "page"
        home.mkdir()
        shutil.copytree(ROOT / "examples", self._folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        self._environment = environment(home)
        self._opened = opened
        self._terminal: Terminal | None = None
        self._notebook: Notebook | None = None
        self._by_language: dict[str, Callable[[Block], None]] = {
            "python": self._python,
            "console": self._console,
            "json": lambda block: parse(block, block.text),
            "jsonl": lambda block: [parse(block, line) for line in block.lines] and None,
            "sh": check_setup,
        }

    def read(self, block: Block) -> None:
        if block.file is not None:
            path = self._folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n", encoding="utf-8")
        elif (does := self._by_language.get(block.language)) is not None:
            does(block)

    def _python(self, block: Block) -> None:
        if self._notebook is None:
            self._notebook = Notebook(self._folder, self._environment)
            self._opened.callback(self._notebook.close)
        printed = self._notebook.run(block.text, str(self._page), block.line)
        if said := prints(block):
            _same(block.place, said, printed)

    def _console(self, block: Block) -> None:
        if self._terminal is None:
            self._terminal = Terminal(self._folder, self._environment)
            self._opened.callback(self._terminal.close)
        typed = commands(block)
        for command, following in zip(typed, [*typed[1:], None], strict=True):
            self._type(block, self._terminal, command, following)

    def _type(self, block: Block, terminal: Terminal, command: Command, following: Command | None) -> None:
        """A command that fails is one whose exit code the page asks for next."""
        said = terminal.type(command.text)
        place = f"{block.page}:{command.line}: $ {command.text}"
        _same(place, list(command.printed), list(said.lines))
        if said.code != 0 and (following is None or following.text != ASKED):
            raise AssertionError(f"{place}\nends with exit code {said.code}, and the page does not ask `{ASKED}`")


def _same(place: str, said: list[str], printed: list[str]) -> None:
    found = difference(said, printed)
    if found:
        raise AssertionError(f"{place}\n{found}")


def parse(block: Block, text: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise PageError(f"{block.place}: this is no JSON: {error}: {text[:80]}") from error


# --- what is for a bare machine, and is not run here ------------------------------------------------------------------


def check_setup(block: Block) -> None:
    """Lines that install, make or change folders are not run: they are held against what there is."""
    for number, line in enumerate(block.lines, start=block.line + 1):
        if wrong := _wrong(line):
            raise PageError(f"{block.page}:{number}: {wrong}: {line}")


def _wrong(line: str) -> str:
    words = line.split("#")[0].split()
    match words:
        case [] | ["git", "clone", *_] | ["cd", _] | ["python" | "python3", "-m", "venv", _]:
            return ""
        case ["." | "source", path] if path.endswith("/bin/activate"):
            return ""
        case ["pip", "install", *what]:
            unknown = set(re.findall(r"clew\[([^]]+)\]", " ".join(what))) - extras()
            return f"there is no extra {sorted(unknown)}" if unknown else ""
        case ["make", target, *_]:
            return "" if target in targets() else f"there is no target {target!r}"
        case ["python" | "clew", *_] if path_of(words) is None or (ROOT / str(path_of(words))).is_file():
            return ""
        case _:
            return "a `sh` block is for setting up; say `console` for what the tests shall run"


def path_of(words: list[str]) -> str | None:
    """The file of the tree that a command names: `examples/shop.py`, or `examples/shop.py:agent`."""
    return next((path for word in words if (path := word.partition(":")[0]).endswith(".py")), None)


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def targets() -> set[str]:
    return set(re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
