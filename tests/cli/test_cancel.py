"""`clew cancel`: in every state of a run, whoever drives it."""

import sqlite3
from contextlib import closing

import pytest

from clew import Runtime
from clew.core.letters import CancelLetter
from tests.cli.apps import app
from tests.cli.conftest import Shell
from tests.cli.processes import Running

pytestmark = pytest.mark.proves("C1")


def at_work(shell: Shell) -> Running:
    running = shell.start("run", "app:clerk", "Go", "--run-id", "r")
    running.until(lambda: shell.log("began"), "the tool works")
    return running


def test_a_run_that_nobody_drives_ends_at_once(shell: Shell) -> None:
    shell.accept(app.clerk, "r")
    said = shell.clew("cancel", "r", "--reason", "wrong month", "--by", "ada")
    assert (said.code, said.out, said.err) == (0, "r cancelled\n", "")
    assert shell.kinds("r")[-1] == "run_finished"
    assert shell.clew("show", "r").lines[-1].endswith("● cancelled: wrong month (0 turns, 0 calls)")
    assert "cancel asked for by ada: wrong month" in shell.clew("show", "r").out
    assert shell.log("asked") == []


def test_as_json_it_is_the_row(shell: Shell) -> None:
    shell.accept(app.clerk, "r", "queued", thread="busy")
    [row] = shell.json("cancel", "cancel", "queued")
    assert (row["run_id"], row["status"], row["reason"]) == ("queued", "done", "cancelled")
    assert shell.info("r").status == "running"


def test_a_run_that_waits(shell: Shell) -> None:
    shell.accept(app.clerk, "r")

    async def pause(runtime: Runtime) -> None:
        await runtime.pause("r")

    shell.aside(pause)
    shell.drive(app.clerk, "r")
    assert shell.info("r").status == "waiting"
    assert shell.clew("cancel", "r").out == "r cancelled\n"


def test_a_run_that_another_process_drives_is_ended_there(shell: Shell) -> None:
    running = at_work(shell)
    assert shell.clew("cancel", "r", "--reason", "enough").out == "r cancelled\n"
    said = running.ended()
    assert said.code == 1
    assert "cancelled: enough" in said.err
    assert shell.log("ended") == []


def test_a_driver_that_does_not_hear_ends_it_when_it_does(shell: Shell) -> None:
    """Frozen, it cannot honour the cancel yet; that it is stored, is told after some seconds."""
    running = at_work(shell)
    running.freeze()
    said = shell.clew("cancel", "r")
    assert (said.code, said.out) == (0, "r: the cancel is stored, and its driver is ending it\n")
    running.thaw()
    assert running.ended().code == 1
    assert shell.info("r").reason == "cancelled"


def test_a_run_that_is_done_takes_none(shell: Shell) -> None:
    shell.drive(app.meteo, "r")
    before = shell.kinds("r")
    assert shell.refused(1, "cancel", "r") == "run 'r' is finished and takes no more letters"
    assert shell.kinds("r") == before


def test_nothing_is_cancelled_that_was_not_named_whole(shell: Shell) -> None:
    """What can be looked at by its beginning is ended by its name alone: there is no way back."""
    shell.accept(app.clerk, "october")
    assert "did you mean october?" in shell.refused(1, "cancel", "octo")
    assert "did you mean october?" in shell.refused(1, "cancel", "oktober")
    assert shell.info("october").status == "running"


def test_a_run_that_is_set_aside_keeps_it(shell: Shell) -> None:
    shell.accept(app.clerk, "r")
    with closing(sqlite3.connect(shell.store)) as connection, connection:
        connection.execute("UPDATE lease SET quarantined = 1")
    said = shell.clew("cancel", "r")
    assert said.code == 0
    assert "the cancel is stored; the run is quarantined" in said.out
    [letter] = shell.aside(lambda runtime: runtime.store.inbox("r"))
    assert isinstance(letter, CancelLetter)


def test_a_reason_is_shown_harmless_and_kept_as_it_is(shell: Shell) -> None:
    shell.accept(app.clerk, "r")
    shell.clew("cancel", "r", "--reason", app.ESCAPES)
    [thing] = shell.json("show", "show", "r")
    assert thing["entries"][-1]["outcome"]["reason"] == app.ESCAPES
    assert "\x1b" not in shell.clew("show", "r").out
