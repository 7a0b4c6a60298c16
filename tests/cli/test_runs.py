"""`clew runs`: which runs it lists, page by page, and how that looks where."""

import re

import pytest

from clew import Runtime
from tests.cli.apps import app
from tests.cli.conftest import Shell

WIDE = "町の天気"  # two columns each
TALK = f"{WIDE} [bold]talk[/bold]"


@pytest.fixture(scope="module")
def listed(read_only: Shell) -> Shell:
    """Runs in every state, oldest first: done, failed, two of a thread, waiting, running, queued."""
    read_only.drive(app.meteo, "r-done")
    read_only.drive(app.speechless, "r-failed")
    read_only.drive(app.meteo, "r-talk-1", "r-talk-2", thread=TALK)
    read_only.accept(app.clerk, "r-paused")

    async def pause(runtime: Runtime) -> None:
        await runtime.pause("r-paused")

    read_only.aside(pause)
    read_only.drive(app.clerk, "r-paused")
    read_only.accept(app.clerk, "r-active", "r-queued", thread="busy")
    return read_only


NEWEST = ["r-queued", "r-active", "r-paused", "r-talk-2", "r-talk-1", "r-failed", "r-done"]


def ids(listed: Shell, *words: object) -> list[str]:
    return [row["run_id"] for row in listed.json("runs", "runs", *words)]


def test_newest_first_in_columns_without_a_terminal(listed: Shell) -> None:
    said = listed.clew("runs")
    assert (said.code, said.err) == (0, "")
    assert "\x1b" not in said.out
    head, *rows = said.lines
    assert head.split() == ["RUN", "STATUS", "AGENT", "TURNS", "CALLS", "COST", "STARTED", "THREAD", "WHY"]
    assert [row.split()[0] for row in rows] == NEWEST
    assert [row.split()[1] for row in rows] == ["queued", "running", "waiting", "done", "done", "done", "done"]
    assert TALK in rows[3]
    assert rows[2].endswith("paused")
    assert re.search(r"\d+ (s|min) ago", rows[0])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), NEWEST, id="all"),
        pytest.param(("--status", "done"), ["r-talk-2", "r-talk-1", "r-failed", "r-done"], id="done"),
        pytest.param(("--status", "waiting"), ["r-paused"], id="waiting"),
        pytest.param(("--status", "running"), ["r-active"], id="running"),
        pytest.param(("--status", "queued"), ["r-queued"], id="queued"),
        pytest.param(("--status", "quarantined"), [], id="quarantined"),
        pytest.param(("--agent", "speechless"), ["r-failed"], id="agent"),
        pytest.param(("--thread", TALK), ["r-talk-2", "r-talk-1"], id="thread"),
        pytest.param(("--agent", "clerk", "--thread", "busy", "--status", "queued"), ["r-queued"], id="several"),
        pytest.param(("--agent", "nobody"), [], id="none"),
        pytest.param(("--limit", 2), NEWEST[:2], id="limit"),
        pytest.param(("--limit", 2, "--all"), NEWEST, id="all-wins"),
        pytest.param(("--limit", 2, "--after", "r-talk-2"), ["r-talk-1", "r-failed"], id="page"),
        pytest.param(("--after", "r-done"), [], id="behind-the-last"),
    ],
)
def test_as_json_a_row_a_line(listed: Shell, words: tuple[object, ...], expected: list[str]) -> None:
    assert ids(listed, *words) == expected


def test_a_page_says_how_to_go_on_and_the_last_one_that_there_is_no_more(listed: Shell) -> None:
    page = listed.clew("runs", "--limit", 3)
    assert len(page.lines) == 1 + 3
    assert "older ones: the same with --after r-paused" in page.err
    last = listed.clew("runs", "--limit", 4, "--after", "r-done")
    assert (last.code, last.out, last.err) == (0, "", "no more runs\n")


def test_the_run_to_go_on_from_may_be_named_by_its_beginning_and_is_suggested(listed: Shell) -> None:
    assert ids(listed, "--after", "r-fail") == ["r-done"]
    assert "did you mean r-queued" in listed.refused(1, "runs", "--after", "r-queud")


@pytest.mark.parametrize("words", [("--limit", 0), ("--status", "odd"), ("--sort", "id"), ("extra",)])
def test_what_cannot_be_is_refused(listed: Shell, words: tuple[object, ...]) -> None:
    listed.refused(2, "runs", *words)


def test_a_store_without_runs(shell: Shell) -> None:
    shell.accept(app.meteo)
    said = shell.clew("runs")
    assert (said.code, said.out, said.err) == (0, "", "no runs\n")
    assert shell.json("runs", "runs") == []


def test_on_a_terminal_it_has_colours_and_lines_end_where_the_terminal_does(listed: Shell) -> None:
    said = listed.terminal("runs", columns=70)
    assert said.code == 0
    assert {"32", "33", "36"} <= set(re.findall(r"\x1b\[(\d+)m", said.out))
    lines = said.plain.split("\n")[:-1]
    assert len(lines) == 1 + len(NEWEST)
    taken = [len(line) + sum(char in WIDE for char in line) for line in lines]
    assert max(taken) <= 70
    assert taken[4] >= 69
    assert "町" in lines[4]


def test_a_terminal_20_columns_wide(listed: Shell) -> None:
    said = listed.terminal("runs", columns=20)
    lines = said.plain.split("\n")[:-1]
    assert [line.split() for line in lines[:2]] == [["RUN", "STATUS"], ["r-queued", "queued"]]
    assert max(map(len, lines)) <= 20


def test_columns_are_aligned_also_where_characters_are_wide(listed: Shell) -> None:
    head, *rows = listed.clew("runs").lines
    place = head.index("WHY")
    assert rows[2][place:] == "paused"
    assert rows[3][place - len(WIDE) :] == "natural"
