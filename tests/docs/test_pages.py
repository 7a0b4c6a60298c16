"""What the pages list is what there is: statements and their tests, entry kinds and fields, commands and options."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest
from msgspec.structs import FieldInfo, fields

from clew import codec
from clew.cli import main, schema
from clew.core.entries import Entry, Envelope
from clew.core.state import State, fold
from tests.docs.blocks import blocks
from tests.docs.reading import ROOT
from tools.spec import Statement, statements

DOCS = ROOT / "docs"
STATEMENTS = statements((DOCS / "semantics.md").read_text(encoding="utf-8"))
LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")
NAME = re.compile(r"`(\w+)\??`")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows(text: str) -> Iterator[tuple[str, ...]]:
    """The rows of every table, without the heads."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield tuple(cell.strip() for cell in line.strip("|").split(" | "))


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one of its height."""
    found = re.search(rf"^(#+) {re.escape(title)}$(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no heading {title!r}"
    return found[2]


# --- guarantees.md ----------------------------------------------------------------------------------------------------

PROMISED = [row for row in rows(section(page("guarantees.md"), "What is promised")) if row[0] != "promise"]
IN_PART = [row for row in rows(section(page("guarantees.md"), "What is there in part")) if row[0] != "promise"]


def named(row: tuple[str, ...]) -> list[Statement]:
    return [STATEMENTS[name] for name in row[1].split(", ")]


def test_each_statement_that_holds_now_is_promised_in_plain_words() -> None:
    promised = {statement.id for row in PROMISED for statement in named(row)}
    assert promised == {statement.id for statement in STATEMENTS.values() if statement.holds_now}


def test_what_is_there_in_part_is_due_later() -> None:
    assert not [statement.id for row in IN_PART for statement in named(row) if statement.holds_now]


@pytest.mark.parametrize("row", PROMISED, ids=lambda row: row[1])
def test_the_tests_of_a_promise_name_its_statements(row: tuple[str, ...]) -> None:
    paths = [(DOCS / target).resolve() for _, target in LINK.findall(row[2])]
    assert len(paths) >= 2
    proofs = {path: set(re.findall(r'"([A-Z]\d+)"', path.read_text(encoding="utf-8"))) for path in paths}
    wanted = {statement.id for statement in named(row)}
    assert not [path for path, proven in proofs.items() if not proven & wanted]
    assert wanted <= set().union(*proofs.values())


# --- journal.md -------------------------------------------------------------------------------------------------------

ENVELOPE = {field.encode_name for field in fields(Envelope)}
KINDS = {NAME.findall(row[0])[0]: row for row in rows(section(page("journal.md"), "Kinds")) if row[0] != "kind"}


def test_each_kind_of_entry_has_its_row() -> None:
    assert set(KINDS) == codec.KINDS


@pytest.mark.parametrize("kind", get_args(Entry), ids=lambda kind: kind.kind)
def test_a_row_names_the_fields_of_its_kind(kind: type[Entry]) -> None:
    own: list[FieldInfo] = [field for field in fields(kind) if field.encode_name not in ENVELOPE]
    said = {name.rstrip("?"): name.endswith("?") for name in re.findall(r"`(\w+\??)`", KINDS[kind.kind][1])}
    assert said == {field.encode_name: not field.required for field in own}


def test_the_envelope_is_said_whole() -> None:
    said = {NAME.findall(row[0])[0] for row in rows(section(page("journal.md"), "The envelope")) if "`" in row[0]}
    assert said == ENVELOPE | {"kind"}


def example() -> list[str]:
    (journal,) = [block for block in blocks("journal.md", page("journal.md")) if block.language == "jsonl"]
    return journal.lines


def test_the_example_is_a_journal_byte_for_byte() -> None:
    entries = [codec.decode(line.encode()) for line in example()]
    assert [codec.encode(entry).decode() for entry in entries] == example()
    state: State = fold("invoice-9", entries)
    assert state.finished is not None
    assert [json.loads(line)["seq"] for line in example()] == list(range(1, len(entries) + 1))


# --- cli.md -----------------------------------------------------------------------------------------------------------


def command(name: str) -> click.Command:
    found = main.clew.get_command(click.Context(main.clew), name)  # type: ignore[attr-defined]  # it is a group
    assert isinstance(found, click.Command)
    return found


SHARED = {"--store", "--json", "--debug", "--help"}


@pytest.mark.parametrize("name", main.COMMANDS)
def test_each_command_has_its_section_with_all_options_and_an_example(name: str) -> None:
    text = section(page("cli.md"), f"clew {name}")
    options = {parameter.opts[-1] for parameter in command(name).params if isinstance(parameter, click.Option)} - SHARED
    assert not {option for option in options if f"`{option}" not in text}
    assert f"$ clew {name}" in text


def test_the_shared_options_and_the_lines_of_json_are_listed() -> None:
    text = page("cli.md")
    assert not {option for option in SHARED if f"`{option}" not in text}
    assert not {line for line in schema.LINES if f"`{line}`" not in section(text, "JSON")}


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.relative_to(DOCS).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    targets = [target.partition("#")[0] for _, target in LINK.findall(path.read_text(encoding="utf-8"))]
    local = [target for target in targets if target and "://" not in target]
    assert not [target for target in local if not (path.parent / target).exists()]
