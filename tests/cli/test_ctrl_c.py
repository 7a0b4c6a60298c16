"""Ctrl-C on `clew run`: once cancels the run for good, twice lets go of it, three times does not wait."""

import signal

import pytest

from tests.cli.conftest import Shell
from tests.cli.processes import CTRL_C, Running

WORK = ("run", "app:clerk", "Go", "--run-id", "r")


def press(running: Running) -> None:
    running.signal(signal.SIGINT)


def at_work(shell: Shell, *words: str) -> Running:
    running = shell.start(*WORK, *words)
    running.until(lambda: shell.log("began"), "the tool works")
    return running


@pytest.mark.proves("C1", "C2")
def test_once_cancels_for_good(shell: Shell) -> None:
    running = shell.start("run", "app:talker", "Go", "--run-id", "r")
    running.wait_for("It rains ")
    press(running)
    said = running.ended()
    assert said.code == 1
    assert said.out == "It rains \n"
    assert "cancelling the run" in said.err
    assert "cancelled: Ctrl-C" in said.err
    assert shell.info("r").reason == "cancelled"
    shell.open_gate("words")
    again = shell.clew("run", "app:talker", "Go", "--run-id", "r")
    assert (again.code, again.out) == (1, "It rains \n")
    assert len(shell.log("asked")) == 1


def test_once_as_json_gives_the_result(shell: Shell) -> None:
    running = at_work(shell, "--json")
    press(running)
    said = running.ended()
    [result] = said.json()
    assert (said.code, result["reason"], result["detail"]) == (1, "cancelled", "Ctrl-C")


@pytest.mark.proves("T3")
def test_twice_lets_go_and_what_is_at_work_may_end(shell: Shell) -> None:
    running = at_work(shell)
    press(running)
    running.wait_for("cancelling the run", "err")
    press(running)
    running.wait_for("letting go", "err")
    shell.open_gate("a")
    said = running.ended()
    assert said.code == 130
    assert "r is let go" in said.err
    assert "Traceback" not in said.err
    assert shell.info("r").status == "running"
    assert "cancel_requested" not in shell.kinds("r")
    assert shell.log("ended") == [["a", str(running.pid)]]
    shell.open_gate("b")
    again = shell.clew(*WORK)
    assert (again.code, again.out) == (0, "All done.\n")
    assert [name for name, _ in shell.log("began")] == ["a", "b"]
    assert [ordinal for ordinal, _ in shell.log("asked")] == ["0", "1", "2"]


def test_three_times_does_not_wait(shell: Shell) -> None:
    running = at_work(shell)
    for told in ("cancelling the run", "letting go"):
        press(running)
        running.wait_for(told, "err")
    # The third may come before it waits, and be spent; the one after that may come when Python is on its way out.
    while not running.gone_within(2):
        press(running)
    assert running.ended().code in (130, -signal.SIGINT)
    assert shell.info("r").status == "running"
    assert shell.log("ended") == []
    shell.open_gate("a")
    shell.open_gate("b")
    assert shell.clew(*WORK).out == "All done.\n"


@pytest.mark.proves("C1")
def test_it_cancels_a_run_that_another_process_drives(shell: Shell) -> None:
    driver = at_work(shell)
    other = shell.start(*WORK)
    other.wait_for("1.tool.1 work", "err")
    press(other)
    assert other.ended().code == 1
    assert driver.ended().code == 1
    assert shell.info("r").reason == "cancelled"
    assert {pid for _, pid in shell.log("asked")} == {str(driver.pid)}


def test_typed_on_a_terminal_it_cancels(shell: Shell) -> None:
    running = shell.start_on_terminal("run", "app:talker", "Go", "--run-id", "r")
    running.wait_for("It rains ")
    running.type(CTRL_C)
    said = running.ended()
    assert said.code == 1
    assert "cancelled: Ctrl-C" in said.plain
    assert shell.info("r").reason == "cancelled"


def test_typed_twice_on_a_terminal_it_lets_go(shell: Shell) -> None:
    running = shell.start_on_terminal(*WORK)
    running.wait_for("1.tool.1 work")
    running.type(CTRL_C)
    running.wait_for("cancelling the run")
    running.type(CTRL_C)
    running.wait_for("letting go")
    shell.open_gate("a")
    said = running.ended()
    assert said.code == 130
    assert "r is let go" in said.plain
    assert shell.info("r").status == "running"


def test_sigterm_ends_it_and_the_run_can_be_taken_up(shell: Shell) -> None:
    running = at_work(shell)
    running.signal(signal.SIGTERM)
    assert running.ended().code == -signal.SIGTERM
    shell.open_gate("a")
    shell.open_gate("b")
    assert shell.clew(*WORK).out == "All done.\n"
