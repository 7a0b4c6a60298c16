"""How things look: JSON lines for programs, columns and times for people. What came from outside is shown harmless."""

import io
import json
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
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
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _spelled(char: str) -> str:
    return "⏎" if char == "\n" else char.encode("unicode_escape").decode()


def width() -> int | None:
    """Columns of the terminal; None if there is none, and lines are as long as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def short(text: str, columns: int) -> str:
    """One line of it, and no more than that."""
    text = harmless(text)
    return text if len(text) <= columns else text[: max(columns - 1, 0)] + "…"


def say(text: str, *, err: bool = False, new_line: bool = True, **style: Any) -> None:
    """Click drops colours where there is no terminal; NO_COLOR is ours to heed."""
    from clew.cli.colours import wanted

    click.echo(click.style(text, **style) if style and wanted(err=err) else text, err=err, nl=new_line)


def print_columns(heads: Sequence[str], rows: Sequence[Sequence[str]], colours: Sequence[str | None]) -> None:
    """Aligned; on a terminal the last column gives way, and a narrow one shows the first two only."""
    columns = width()
    keep = 2 if columns is not None and columns < NARROW else len(heads)
    table = [[harmless(cell) for cell in row[:keep]] for row in (heads, *rows)]
    widths = [max(len(row[place]) for row in table) for place in range(keep)]
    for number, row in enumerate(table):
        line = GAP.join([cell.ljust(size) for cell, size in zip(row, widths, strict=True)]).rstrip()
        fg = None if number == 0 else colours[number - 1]
        say(line if columns is None else short(line, columns), bold=number == 0, fg=fg)


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
