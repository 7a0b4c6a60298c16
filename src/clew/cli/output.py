"""How things look: JSON lines for programs, columns and times for people. What came from outside is shown harmless."""

import io
import json
import os
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate
from typing import Any

import click
import msgspec

from clew import codec
from clew.app import Result
from clew.core.deltas import Delta
from clew.core.entries import Entry, Envelope
from clew.core.tickets import Ticket
from clew.ports import RunInfo

NARROW = 60
DENSE = 8  # characters a column: no text has more marks on a letter
USUAL = 80  # columns of a terminal that does not say
JOINERS = "\u200c\u200d"  # words of Persian, families of emoji: they steer nothing
EXACT = 10  # seconds below which fractions are of interest
GAP = "  "
MINUTE, HOUR, DAY = 60, 3600, 86_400
COLOURS = {"done": "green", "running": "cyan", "waiting": "yellow", "queued": "blue", "quarantined": "red"}


# --- for programs -----------------------------------------------------------------------------------------------------


def print_json(thing: object) -> None:
    """One line, whole, at once: what reads it need not wait for the end."""
    sys.stdout.write(json_line(thing) + "\n")
    sys.stdout.flush()


def json_line(thing: object) -> str:
    """JSON in which what could steer a terminal is escaped: to a program it is the same."""
    text = json.dumps(thing, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else json.dumps(char)[1:-1] for char in text])


def info_json(info: RunInfo) -> dict[str, Any]:
    return {**plain(info), "reason": info.reason}


def item_json(item: Entry | Delta) -> dict[str, Any]:
    if isinstance(item, Envelope):
        return codec.jsonable(item)
    built: dict[str, Any] = msgspec.to_builtins(item)
    return {"kind": built.pop("kind"), **built}


def result_json(result: Result[Any]) -> dict[str, Any]:
    return {
        "run_id": result.run_id,
        "thread_id": result.thread_id,
        "status": result.status,
        "reason": result.reason,
        "detail": result.detail,
        "ok": result.ok,
        "output": dumped(result.output) if result.ok else None,
        "text": result.text,
        "tickets": [ticket_json(ticket) for ticket in result.tickets],
        "usage": plain(result.usage),
        "cost": None if result.cost is None else str(result.cost),
        "turns": result.turns,
        "messages": plain(result.messages),
    }


def ticket_json(ticket: Ticket) -> dict[str, Any]:
    return {**plain(ticket), "ref": ticket.ref}


def plain(value: object) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)


def dumped(output: object) -> Any:
    """An output of whatever type an agent declares."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(output, inf_nan_mode="null", fallback=str)


def complain(message: str, *, kind: str = "Error", as_json: bool = False) -> None:
    """An error, on the error stream."""
    if as_json:
        click.echo(json_line({"error": {"kind": kind, "message": message}}), err=True)
    else:
        click.echo(f"clew: {harmless(message, lines=True)}", err=True)


# --- for people -------------------------------------------------------------------------------------------------------


def spell_what_cannot_be_shown() -> None:
    """An output in another encoding than UTF-8 gets what it cannot show spelled out, rather than nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def harmless(text: str, *, lines: bool = False) -> str:
    """Text with everything that could steer a terminal spelled out; line breaks stay if `lines`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join([char if _is_shown(char, lines=lines) else _spelled(char) for char in text])


def _is_shown(char: str, *, lines: bool) -> bool:
    if char in "\n\t":
        return lines
    if char in JOINERS:
        return True
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _spelled(char: str) -> str:
    return "⏎" if char == "\n" else char.encode("unicode_escape").decode()


def width(*, err: bool = False) -> int | None:
    """Columns of the terminal; None if there is none, and lines are as long as they are."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        return None
    said = os.environ.get("COLUMNS", "")
    own = int(said) if said.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    return own or USUAL


def columns_of(text: str) -> int:
    """How many columns of a terminal it takes: some characters take two, some none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def short(text: str, columns: int) -> str:
    """One line of it, and no more than that."""
    begin = harmless(text[: columns * DENSE])
    if len(text) <= columns * DENSE and columns_of(begin) <= columns:
        return begin
    return begin[: bisect_right([*accumulate(map(_columns, begin))], columns - 1)] + "…"


def say(text: str, *, err: bool = False, new_line: bool = True, **style: Any) -> None:
    """Click drops colours where there is no terminal; NO_COLOR is ours to heed."""
    from clew.cli.colours import wanted

    click.echo(click.style(text, **style) if style and wanted(err=err) else text, err=err, nl=new_line)


class Table:
    """Rows under heads, a page at a time; on a terminal the last column gives way, and a narrow one shows two only."""

    def __init__(self, heads: Sequence[str]) -> None:
        self._columns = width()
        self._keep = 2 if self._columns is not None and self._columns < NARROW else len(heads)
        self._widths = [0] * self._keep
        self._heads = [heads]

    def print(self, rows: Sequence[Sequence[str]], colours: Sequence[str | None]) -> None:
        """Aligned with the pages before, unless something in this one is longer."""
        table = [[harmless(cell) for cell in row[: self._keep]] for row in (*self._heads, *rows)]
        longest = [max(map(columns_of, column)) for column in zip(*table, strict=True)]
        self._widths = [*map(max, self._widths, longest)]
        for row in table[: len(self._heads)]:
            self._line(row, bold=True)
        for row, colour in zip(table[len(self._heads) :], colours, strict=True):
            self._line(row, fg=colour)
        self._heads = []

    def _line(self, row: Sequence[str], **style: Any) -> None:
        padded = [cell + " " * (size - columns_of(cell)) for cell, size in zip(row, self._widths, strict=True)]
        line = GAP.join(padded).rstrip()
        say(line if self._columns is None else short(line, self._columns), **style)


def local(at: int) -> str:
    """In the zone of whoever reads it."""
    return datetime.fromtimestamp(at / 1_000_000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(at: int | None, now: int) -> str:
    if at is None:
        return ""
    seconds = (now - at) / 1_000_000
    text = took(abs(seconds), coarse=True)
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def took(seconds: float, *, coarse: bool = False) -> str:
    """A duration as one would say it."""
    if seconds >= DAY:
        return f"{seconds / DAY:.0f} d"
    if seconds >= HOUR:
        return f"{seconds // HOUR:.0f} h" if coarse else f"{seconds // HOUR:.0f} h {seconds % HOUR // MINUTE:.0f} min"
    if seconds >= MINUTE:
        return f"{seconds // MINUTE:.0f} min" if coarse else f"{seconds // MINUTE:.0f} min {seconds % MINUTE:.0f} s"
    if coarse or seconds >= EXACT:
        return f"{seconds:.0f} s"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def dollars(cost: Decimal | None) -> str:
    return "" if cost is None else f"${cost.normalize():f}"


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
