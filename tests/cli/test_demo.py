"""`clew demo`: on a terminal and without, as JSON, kept, and left in the middle."""

import os
import re
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, valid
from tests.cli.processes import COLOUR, CTRL_C, Said

ONCE = {"A-17": 1, "B-04": 1, "C-31": 1}
ACTS = ("── A kill ", "── A thaw ", "── A second pair of eyes ", "── What next ")
VARIES = re.compile(r"process \d+|worker-\d+|on \S+, epoch|\+[\d.]+ m?s|[\d.]+ m?s|clew-demo-\w+|─+| +")


@pytest.fixture(scope="module")
def told(read_only: Shell) -> dict[str, Said]:
    """Three demos side by side: most of the time they wait for one another's processes."""
    temporary = {"TMPDIR": str(read_only.folder / "tmp")}
    Path(temporary["TMPDIR"]).mkdir()
    started = {
        "plain": read_only.start("demo", "--keep", "kept"),
        "json": read_only.start("demo", "--json", **temporary),
        "terminal": read_only.start_on_terminal("demo", columns=100, **temporary),
    }
    return {name: running.ended() for name, running in started.items()}


def test_without_a_terminal_it_is_plain_text(told: dict[str, Said]) -> None:
    said = told["plain"]
    assert (said.code, said.err) == (0, "")
    assert "\x1b" not in said.out
    places = [said.out.index(act) for act in ACTS]
    assert places == sorted(places)
    tables = re.findall(r"^(?:A-17|B-04|C-31) .*$", said.out, re.MULTILINE)
    assert [line.split() for line in tables[:3]] == [
        ["A-17", "1", "of", "120.00", "1"],
        ["B-04", "1", "of", "75.50", "-"],
        ["C-31", "-", "-"],
    ]
    assert [line.split()[-1] for line in tables[3:]] == ["1"] * 6
    for part in ("SIGKILL", "↻ taken up by", "B-04 was paid already under this key", "wants to write its result"):
        assert part in said.out
    assert "All three invoices are paid, each of them once." in said.out


def test_on_a_terminal_it_is_the_same_in_colours(told: dict[str, Said]) -> None:
    said = told["terminal"]
    assert said.code == 0
    assert COLOUR.search(said.out) is not None
    plain, coloured = (re.sub(VARIES, " ", text).split("What next")[0] for text in (told["plain"].out, said.plain))
    assert coloured.splitlines() == plain.splitlines()


def test_as_json_it_tells_the_end(told: dict[str, Said], read_only: Shell) -> None:
    said = told["json"]
    assert (said.code, said.err) == (0, "")
    [end] = valid("demo", said.json())
    assert end["paid"] == ONCE
    assert Path(end["folder"]).is_relative_to(read_only.folder)


def test_what_it_says_to_type_next_works(told: dict[str, Said], read_only: Shell) -> None:
    typed = re.findall(r"^  (clew --store .*)$", told["plain"].out, re.MULTILINE)
    assert len(typed) == 3
    for line in typed:
        said = read_only.sh(line)
        assert (said.code, said.err) == (0, "")
        assert "kill" in said.out or "freeze" in said.out


def test_a_folder_of_an_earlier_demo_is_left_alone(told: dict[str, Said], read_only: Shell) -> None:
    before = {path.name: path.read_bytes() for path in (read_only.folder / "kept").iterdir()}
    assert "name another folder" in read_only.refused(2, "demo", "--keep", "kept")
    assert {path.name: path.read_bytes() for path in (read_only.folder / "kept").iterdir()} == before
    read_only.refused(2, "demo", "--keep", "app.py")


def test_left_in_the_middle_it_leaves_no_process_behind(shell: Shell) -> None:
    running = shell.start_on_terminal("demo", "--keep", "left")
    running.wait_for("is frozen")
    children = _children(running.pid)
    assert children
    running.type(CTRL_C)
    said = running.ended()
    assert said.code == 130
    assert "Traceback" not in said.out
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _children(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())


def test_nobody_reads_it_to_its_end(shell: Shell) -> None:
    said = shell.sh('clew demo --keep left | head -n 2; echo "${PIPESTATUS[0]}" >&2')
    assert (said.code, said.err) == (0, "0\n")
    assert os.listdir(shell.folder / "left")
