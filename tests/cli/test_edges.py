"""At the edge: where the output goes, who reads it, what is logged, and what errors look like."""

import json
import os
import sqlite3
import unicodedata
from contextlib import closing

import pytest

from tests.cli.apps import app
from tests.cli.conftest import Shell
from tests.cli.processes import COLOUR

ODD = f"r-{app.ESCAPES}\n"  # no id of ours: Clew takes none like this, a file may hold it all the same
FAMILY = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f468\u200d\U0001f469\u200d\U0001f467"


def is_harmless(text: str) -> bool:
    """Nothing in it steers a terminal, or turns what is written around."""
    return not [char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")]


# --- what steers a terminal -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd(read_only: Shell) -> Shell:
    """A run whose words, results and errors are full of escapes, and one whose very row is."""
    read_only.drive(app.rogue, "rogue", thread="[bold]thread[/bold]")
    read_only.accept(app.clerk, "odd")
    with closing(sqlite3.connect(read_only.store)) as connection, connection:
        connection.execute("UPDATE run SET id = ?1, agent = ?1, thread_id = ?1 WHERE id = 'odd'", (ODD,))
    return read_only


@pytest.mark.parametrize(
    "words", [("runs",), ("show", "rogue"), ("watch", "rogue"), ("run", "app:rogue", "Go"), ("show", ODD)]
)
def test_nothing_that_was_said_steers_a_terminal(odd: Shell, words: tuple[str, ...]) -> None:
    started = odd.start(*words), odd.start_on_terminal(*words)
    piped, on_terminal = [running.ended() for running in started]
    assert (piped.code, on_terminal.code) == (0, 0)
    for text in (piped.out, piped.err, COLOUR.sub("", on_terminal.out).replace("\r\n", "\n")):
        assert is_harmless(text)
    told = piped.out + piped.err
    assert r"\x1b[31mred\x1b[0m" in told
    if words != ("runs",):
        assert "[red]bold[/red]" in told


@pytest.mark.parametrize("words", [("runs",), ("show", "rogue"), ("watch", "rogue"), ("show", ODD)])
def test_as_json_it_is_what_it_was_and_harmless_all_the_same(odd: Shell, words: tuple[str, ...]) -> None:
    said = odd.clew(*words, "--json")
    assert is_harmless(said.out)
    assert any(app.ESCAPES in text for text in _texts([json.loads(line) for line in said.lines]))


def _texts(thing: object) -> list[str]:
    match thing:
        case str():
            return [thing]
        case dict():
            return _texts(list(thing.values()))
        case list():
            return [text for one in thing for text in _texts(one)]
        case _:
            return []


def test_words_that_need_joiners_come_whole(shell: Shell) -> None:
    (shell.folder / "family.py").write_text(
        "from clew import Agent\nfrom clew.testing import ScriptedModel\n"
        f"agent = Agent('family', model=ScriptedModel([{FAMILY!r}]))\n",
        encoding="utf-8",
    )
    assert shell.clew("run", "family:agent", "Go").out == f"{FAMILY}\n"


def test_an_output_in_another_encoding_gets_what_it_cannot_show_spelled_out(shell: Shell) -> None:
    shell.drive(app.meteo, "r", thread="町")
    said = shell.clew("show", "r", PYTHONIOENCODING="latin-1")
    assert (said.code, said.err) == (0, "")
    assert "thread \\u753a" in said.out
    assert "町" in shell.clew("runs").out


# --- who reads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["runs", "runs --json", "show rogue", "watch rogue", "--help"])
def test_whoever_has_read_enough_is_no_error(odd: Shell, words: str) -> None:
    said = odd.sh(f'clew {words} | head -n 1; echo "${{PIPESTATUS[0]}}" >&2')
    assert (said.code, len(said.lines), said.err) == (0, 1, "0\n")


def test_an_output_that_is_closed_is_no_error(odd: Shell) -> None:
    said = odd.sh("clew runs >&- && clew runs --json >&- && clew show nix 2>&- >&-")
    assert (said.code, said.out, said.err) == (1, "", "")
    assert odd.clew("runs").code == 0


@pytest.mark.parametrize("words", ["runs", "schema --json"])
def test_a_full_disk_is_told_in_a_sentence(odd: Shell, words: str) -> None:
    said = odd.sh(f"clew {words} > /dev/full")
    assert (said.code, "Traceback" in said.err, "Exception" in said.err) == (1, False, False)
    assert "the output cannot be written: No space left on device" in said.err


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("--debug", "show", "nix"), ("show", "nix", "--debug")])
def test_debug_shows_where_and_what_was_logged(odd: Shell, words: tuple[str, ...]) -> None:
    said = odd.clew(*words)
    assert said.code == 1
    assert "Traceback (most recent call last):" in said.err
    assert said.err.endswith("clew: there is no run 'nix': `clew runs` lists them\n")


def test_debug_logs_what_is_done(shell: Shell) -> None:
    """Of a run that a person reads about, and of the program alike."""
    (shell.folder / "loud.py").write_text(
        "import logging\nfrom app import meteo as agent\nlogging.getLogger('clew.loud').debug('here \\x1b[31m')\n",
        encoding="utf-8",
    )
    quiet, loud = shell.clew("run", "loud:agent", "Go"), shell.clew("run", "loud:agent", "Go", "--debug")
    assert quiet.out == loud.out == "It is blue.\n"
    assert ("here" in quiet.err, r"clew: here \x1b[31m" in loud.err) == (False, True)


def test_an_error_that_nobody_foresaw_is_a_sentence_too(shell: Shell) -> None:
    (shell.folder / "odd.py").write_text(
        "from app import meteo as agent\ndef reset():\n    raise RuntimeError('\\x1b[31mno\\nnetwork')\n",
        encoding="utf-8",
    )
    words = ("torture", "odd:agent", "Go", "--reset", "reset")
    assert shell.refused(1, *words).startswith("RuntimeError: ")
    assert "--debug shows where" in shell.clew(*words).err
    assert "in reset" in shell.clew(*words, "--debug").err


def test_colours_are_for_terminals_that_want_them(odd: Shell) -> None:
    environments: list[dict[str, str]] = [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}]
    started = [odd.start_on_terminal("show", "rogue", **environment) for environment in environments]
    started.append(odd.start("show", "rogue", FORCE_COLOR="1"))
    assert ["\x1b[" in running.ended().out for running in started] == [True, False, False, False]


def test_the_store_is_said_before_or_behind_or_by_the_environment(shell: Shell) -> None:
    os.rename(_made(shell), shell.folder / "mine.db")
    url = "sqlite:///mine.db"
    started = [
        shell.start("--store", url, "runs"),
        shell.start("runs", "--store", url),
        shell.start("runs", CLEW_STORE=url),
        shell.start("runs", "--store", url, CLEW_STORE="sqlite:///nix.db"),
        shell.start("runs", CLEW_STORE=f"sqlite:///{shell.folder}/mine.db"),
    ]
    said = [running.ended() for running in started]
    assert {(one.code, one.lines[1].split()[0]) for one in said} == {(0, "r")}
    assert not shell.store.exists()


def _made(shell: Shell) -> str:
    shell.drive(app.meteo, "r")
    return str(shell.store)
