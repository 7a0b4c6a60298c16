"""A page of Markdown as its fenced blocks, and what the page says that each of them is."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`]*)$")
FILE = re.compile(r"^# (?P<name>[\w./-]+\.\w+)$")
PROMPT, MORE, PRINTS = "$ ", "> ", "#>"

# What the tests do not look into. Any other language that they do not know is an error, so that no slip hides a block.
LEFT_ALONE = frozenset({"text", "mermaid", "sql", "toml", "yaml"})
FILES = frozenset({"python", "toml"})
KNOWN = frozenset({"python", "console", "json", "jsonl", "sh"}) | LEFT_ALONE


class PageError(Exception):
    """A page says what the tests cannot make sense of, or what is not so."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def file(self) -> str | None:
        """The file that the block is: its first line is a comment with nothing but a name, `# app.py`."""
        found = FILE.match(self.lines[0]) if self.language in FILES and self.lines else None
        return None if found is None else found["name"]


@dataclass(frozen=True)
class Command:
    """One command of a console block, and the lines below it: what it prints."""

    line: int
    text: str
    printed: tuple[str, ...]


def blocks(page: str, text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order. Raises PageError for one without a language, or without an end."""
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        fence = FENCE.match(line)
        if fence is None:
            continue
        language = (fence["info"].split() or [""])[0]
        if language not in KNOWN:
            raise PageError(f"{page}:{number}: a block in {language or 'no language'}: say one of {sorted(KNOWN)}")
        yield Block(page, number, language, _body(lines, fence, f"{page}:{number}"))


def _body(lines: Iterator[tuple[int, str]], fence: re.Match[str], place: str) -> str:
    body: list[str] = []
    for _, line in lines:
        end = FENCE.match(line)
        if end is not None and len(end["ticks"]) >= len(fence["ticks"]) and not end["info"].strip():
            return "\n".join(body)
        body.append(line.removeprefix(fence["indent"]))
    raise PageError(f"{place}: a block that never ends")


def commands(block: Block) -> list[Command]:
    """The commands of a console block. Raises PageError if it begins with what nobody typed."""
    found: list[Command] = []
    for number, line in enumerate(block.lines, start=block.line + 1):
        if line.startswith(PROMPT):
            found.append(Command(number, line.removeprefix(PROMPT), ()))
        elif not found:
            raise PageError(f"{block.page}:{number}: a console block begins with a command, {PROMPT}…")
        elif line.startswith(MORE) and not found[-1].printed:
            last = found[-1]
            found[-1] = Command(last.line, f"{last.text}\n{line.removeprefix(MORE)}", ())
        else:
            last = found[-1]
            found[-1] = Command(last.line, last.text, (*last.printed, line))
    return found


def prints(block: Block) -> list[str]:
    """What a Python block says that it prints: its lines that begin with `#>`."""
    return [line[len(PRINTS) :].removeprefix(" ") for line in block.lines if line.startswith(PRINTS)]
