"""Stores that cannot be used: what is wrong, and what to do about it."""

import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.cli.apps import app
from tests.cli.conftest import Shell

LOOKING = (("runs",), ("show", "r"), ("watch", "r"), ("cancel", "r"))


@pytest.mark.parametrize("words", LOOKING)
def test_one_that_is_not_there_is_not_made_by_looking(read_only: Shell, words: tuple[str, ...]) -> None:
    message = read_only.told(1, *words)
    assert message.startswith("there is no store clew.db: `clew run` and `clew worker` make one")
    assert "there is no store else/where.db" in read_only.told(1, "--store", "sqlite:///else/where.db", *words)
    assert read_only.files() == set()


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        pytest.param("memory://", 2, "holds nothing here: name a file", id="memory"),
        pytest.param("postgresql://db/clew", 2, "comes with a later release", id="postgres"),
        pytest.param("clew.db", 2, "is no store URL: use memory://, sqlite:///path", id="a-path"),
        pytest.param("sqlite://clew.db", 2, "names no file: use sqlite:///clew.db", id="two-slashes"),
        pytest.param("sqlite:///", 2, "names no file", id="no-path"),
        pytest.param("redis://x", 2, "no store is called 'redis'", id="another-scheme"),
        pytest.param("sqlite:///sub", 2, "is a folder: name a file in it", id="a-folder"),
        pytest.param("sqlite:///notes.txt", 1, "not a SQLite file", id="a-text"),
        pytest.param("sqlite:///other.db", 2, "the SQLite file of another program", id="of-another-program"),
        pytest.param("sqlite:///a%1b[31m.db", 1, "there is no store", id="escapes"),
    ],
)
def test_what_is_no_store(read_only: Shell, url: str, code: int, told: str) -> None:
    (read_only.folder / "sub").mkdir(exist_ok=True)
    (read_only.folder / "notes.txt").write_text("Rain? " * 1_000, encoding="utf-8")
    with closing(sqlite3.connect(read_only.folder / "other.db")) as other, other:
        other.execute("CREATE TABLE IF NOT EXISTS users (name TEXT)")
    assert told in read_only.told(code, "runs", CLEW_STORE=url)


def test_a_folder_that_is_not_there_is_named(read_only: Shell) -> None:
    told = "does not exist, make it first"
    assert told in read_only.refused(1, "run", "app:meteo", "Go", "--store", "sqlite:///no/where.db")


def test_one_from_the_future(shell: Shell) -> None:
    shell.accept(app.meteo, "r")
    with closing(sqlite3.connect(shell.store)) as connection:
        connection.execute("PRAGMA user_version = 99")
    for words in (*LOOKING, ("run", "app:meteo", "Go"), ("worker", "app:meteo")):
        message = shell.told(1, *words)
        assert "was written by a newer Clew: it has schema 99" in message
        assert message.endswith("upgrade Clew to use it")


@contextmanager
def locked(store: Path, *pragmas: str) -> Iterator[None]:
    """Another program is in the middle of a write, and stays there."""
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        for pragma in pragmas:
            connection.execute(pragma)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE another (x)")
        yield


def test_one_that_is_locked_says_by_whom_and_one_that_is_being_written_can_be_read(shell: Shell) -> None:
    """Both are waited for, for some seconds."""
    closed = shell.folder / "closed.db"
    shell.accept(app.meteo, "r")
    shutil.copy(shell.store, closed)
    with locked(shell.store), locked(closed, "PRAGMA locking_mode = EXCLUSIVE"):
        writing = shell.start("cancel", "r")
        opening = shell.start("runs", "--json", "--store", "sqlite:///closed.db")
        assert shell.clew("runs").code == 0
        assert shell.clew("show", "r").code == 0
        written, opened = writing.ended(), opening.ended()
    assert (written.code, written.out) == (1, "")
    assert re.search(
        r"is locked by process \d+, in the middle of a write: nothing was written; try again$", written.err
    )
    assert shell.kinds("r") == ["run_started"]
    assert (opened.code, opened.out) == (1, "")
    assert "is locked by another process" in opened.error()
    assert shell.clew("runs", "--store", "sqlite:///closed.db").code == 0


UNPRIVILEGED = """
import os, sys
import encodings.ascii, clew.cli.runs, clew.stores.sqlite
from clew.cli.main import main

# What is loaded later belongs to somebody else, who may not let us read it.
if os.getuid() == 0:
    os.setuid(65534)
sys.argv = ["clew", "runs", "--store", sys.argv[1]]
sys.exit(main())
"""


def test_one_that_may_not_be_written(shell: Shell) -> None:
    shell.accept(app.meteo, "r")
    # Not under tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "clew.db"
        shutil.copy(shell.store, path)
        path.chmod(0o444)
        command = [sys.executable, "-c", UNPRIVILEGED, f"sqlite:///{path}"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (1, "")
    assert "is read-only for this process: allow it to write" in said.stderr
    assert "Traceback" not in said.stderr
