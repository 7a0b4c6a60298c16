"""100,000 runs in one file: a page costs a page, wherever it is and whatever is asked for."""

import sqlite3
from contextlib import closing

import pytest

from clew.ports import RunFilter
from clew.stores.sqlite import file, reading
from tests.cli.apps import app
from tests.cli.conftest import Shell

MANY = 100_000
MIDDLE = "r-050000"
STEPS = 50_000  # of SQLite's machine, for a page of 20; a look at every run takes more than a million

FILL = """
WITH RECURSIVE number(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM number WHERE n < :many)
INSERT INTO {table} ({names}) SELECT {values} FROM {table}, number WHERE {table}.{key} = 1
"""
OWN = {
    "run.key": "n",
    "run.id": "printf('r-%06d', n)",
    "run.thread_id": "printf('r-%06d', n)",
    "run.root": "printf('r-%06d', n)",
    "run.created_at": "created_at + n",
    "run.status": "CASE WHEN n % 40000 = 0 THEN 'waiting' ELSE 'done' END",
    "run.agent": "CASE WHEN n % 25000 = 0 THEN 'rare' ELSE agent END",
    "lease.run": "n",
}


def fill(connection: sqlite3.Connection, table: str, key: str) -> None:
    """The first row of a table again and again, but for what is its own."""
    names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    values = [OWN.get(f"{table}.{name}", f"{table}.{name}") for name in names]
    text = FILL.format(table=table, key=key, names=", ".join(names), values=", ".join(values))
    connection.execute(text, {"many": MANY})


@pytest.fixture(scope="module")
def many(read_only: Shell) -> Shell:
    read_only.drive(app.meteo, "r-000001")
    with closing(sqlite3.connect(read_only.store)) as connection, connection:
        fill(connection, "run", "key")
        fill(connection, "lease", "run")
        connection.execute("UPDATE lease SET quarantined = 1 WHERE run = 777")
        connection.execute(
            "INSERT INTO journal (run, seq, body) SELECT 50000, seq, body FROM journal WHERE run = 1 ORDER BY seq"
        )
    return read_only


@pytest.mark.parametrize(
    ("which", "found"),
    [
        pytest.param(RunFilter(limit=20), 20, id="newest"),
        pytest.param(RunFilter(limit=20, after=MIDDLE), 20, id="from-the-middle"),
        pytest.param(RunFilter(limit=20, after="r-000011"), 10, id="the-oldest"),
        pytest.param(RunFilter(limit=20, status="done"), 20, id="most-of-them"),
        pytest.param(RunFilter(limit=20, status="done", after=MIDDLE), 20, id="most-of-them-from-the-middle"),
        pytest.param(RunFilter(limit=20, status="waiting"), 2, id="few-of-them"),
        pytest.param(RunFilter(limit=20, status="queued"), 0, id="none-of-them"),
        pytest.param(RunFilter(limit=20, status="quarantined"), 1, id="quarantined"),
        pytest.param(RunFilter(limit=20, agent="meteo"), 20, id="a-frequent-agent"),
        pytest.param(RunFilter(limit=20, agent="rare"), 4, id="a-rare-agent"),
        pytest.param(RunFilter(limit=20, thread_id="r-000099"), 1, id="a-thread"),
    ],
)
def test_a_page_reads_what_it_shows(many: Shell, which: RunFilter, found: int) -> None:
    taken = [0]

    def count() -> int:
        taken[0] += 100
        return 0

    with closing(file.connect(many.store, may_write=False)) as connection:
        connection.set_progress_handler(count, 100)
        assert len(reading.runs(connection, which)) == found
    assert taken[0] < STEPS


def test_they_are_listed_page_by_page(many: Shell) -> None:
    rows = many.json("runs", "runs")
    assert [row["run_id"] for row in rows] == [f"r-{n:06}" for n in range(MANY, MANY - 20, -1)]
    rows = many.json("runs", "runs", "--after", MIDDLE, "--limit", 250)
    assert [row["run_id"] for row in rows] == [f"r-{n:06}" for n in range(49_999, 49_749, -1)]
    [rare] = many.json("runs", "runs", "--agent", "rare", "--limit", 1)
    assert rare["run_id"] == "r-100000"
    [row] = many.json("runs", "runs", "--status", "quarantined")
    assert row["run_id"] == "r-000777"


@pytest.mark.parametrize("json", ["", "--json"])
def test_who_wants_the_first_few_of_all_gets_them(many: Shell, json: str) -> None:
    """Nothing is collected before the first line: what nobody reads is not made either."""
    said = many.sh(f"clew runs --all {json} | head -n 3; echo ${{PIPESTATUS[0]}} >&2")
    assert len(said.lines) == 3
    assert said.err == "0\n"


def test_one_of_them_is_found_and_shown(many: Shell) -> None:
    said = many.clew("show", MIDDLE)
    assert said.code == 0
    assert said.lines[0].startswith(f"{MIDDLE}  agent rare")
    assert "did you mean r-099999" in many.refused(1, "show", "r-09999x")
