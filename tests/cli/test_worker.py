"""`clew worker`: it drives what there is to drive, drains when it is told to, and says what it holds."""

import signal
from typing import Any

import pytest

from tests.cli.apps import app
from tests.cli.conftest import Shell, valid
from tests.cli.processes import CTRL_C, Running

WORKER = ("worker", "app:clerk")


def ready(shell: Shell, *words: object) -> Running:
    worker = shell.start(*(words or WORKER))
    worker.wait_for("SIGUSR1 says what it holds", "err")
    return worker


def at_work(shell: Shell, *words: object) -> Running:
    """A worker in the middle of a call."""
    shell.accept(app.clerk, "r")
    worker = ready(shell, *words)
    worker.until(lambda: shell.log("began"), "the tool works")
    return worker


def drained(worker: Running) -> str:
    """Its last words after SIGTERM."""
    worker.signal(signal.SIGTERM)
    said = worker.ended()
    assert (said.code, said.out) == (0, "")
    assert "Traceback" not in said.err
    return said.err


def names(shell: Shell, word: str) -> list[str]:
    return [name for name, _ in shell.log(word)]


def test_it_drives_what_there_is_and_what_comes_and_drains_on_sigterm(shell: Shell) -> None:
    for gate in "ab":
        shell.open_gate(gate)
    shell.accept(app.clerk, "before")
    worker = ready(shell)
    worker.until(lambda: shell.info("before").status == "done", "it drives what was there")
    shell.accept(app.clerk, "after")
    worker.until(lambda: shell.info("after").status == "done", "it drives what comes")
    assert drained(worker).splitlines() == [
        f"worker {worker.pid} drives clerk in sqlite:///clew.db; SIGTERM drains, SIGUSR1 says what it holds",
        "draining: 0 runs at work may end their steps",
        "drained: every run is given back",
    ]


def test_it_makes_the_store_and_drives_its_own_agents_only(shell: Shell) -> None:
    worker = ready(shell, "worker", "app:meteo", "app:ringer")
    shell.accept(app.clerk, "theirs")
    shell.accept(app.ringer, "ours")
    worker.until(lambda: shell.info("ours").status == "done", "it drives its own")
    assert "drives meteo, ringer in" in drained(worker)
    assert shell.kinds("theirs") == ["run_started"]


@pytest.mark.proves("T3", "R1")
def test_a_step_may_end_while_it_drains_and_the_next_worker_goes_on(shell: Shell) -> None:
    worker = at_work(shell)
    worker.signal(signal.SIGTERM)
    worker.wait_for("draining: 1 run at work", "err")
    shell.open_gate("a")
    said = worker.ended()
    assert (said.code, said.err.splitlines()[-1]) == (0, "drained: every run is given back")
    assert names(shell, "ended") == ["a"]
    assert "nobody drives it" in shell.clew("show", "r").out
    shell.open_gate("b")
    second = ready(shell)
    second.until(lambda: shell.info("r").status == "done", "the next one goes on")
    drained(second)
    assert names(shell, "began") == ["a", "b"]
    assert [ordinal for ordinal, _ in shell.log("asked")] == ["0", "1", "2"]


def test_a_step_that_does_not_end_within_the_grace_is_left(shell: Shell) -> None:
    worker = at_work(shell, *WORKER, "--grace", "0.1")
    assert "drained" in drained(worker)
    assert shell.log("ended") == []
    for gate in "ab":
        shell.open_gate(gate)
    second = ready(shell)
    second.until(lambda: shell.info("r").status == "done", "the next one goes on")
    drained(second)
    assert names(shell, "began") == ["a", "a", "b"]


@pytest.mark.proves("R1")
def test_killed_its_runs_are_taken_over_by_another_that_is_there(shell: Shell) -> None:
    first = at_work(shell)
    second = ready(shell)
    first.kill()
    for gate in "ab":
        shell.open_gate(gate)
    second.until(lambda: shell.info("r").status == "done", "the other one takes over")
    drained(second)
    assert {pid for _, pid in shell.log("ended")} == {str(second.pid)}
    assert names(shell, "ended") == ["a", "b"]


def test_sigusr1_says_what_it_holds_and_disturbs_nothing(shell: Shell) -> None:
    worker = at_work(shell)
    worker.signal(signal.SIGUSR1)
    worker.wait_for("holds 1 run: r\n", "err")
    for gate in "ab":
        shell.open_gate(gate)
    worker.until(lambda: shell.info("r").status == "done", "it goes on")
    worker.signal(signal.SIGUSR1)
    worker.wait_for("holds 0 runs\n", "err")
    drained(worker)


def test_as_json_it_tells_events(shell: Shell) -> None:
    shell.accept(app.clerk, "r")
    worker = shell.start(*WORKER, "--json")
    worker.until(lambda: shell.log("began"), "the tool works")
    worker.signal(signal.SIGUSR1)
    worker.wait_for('"holding"')
    worker.signal(signal.SIGTERM)
    worker.wait_for('"draining"')
    shell.open_gate("a")
    said = worker.ended()
    events: list[Any] = valid("worker", said.json())
    assert (said.code, said.err) == (0, "")
    told = [(event["event"], event["runs"]) for event in events]
    assert told == [("ready", []), ("holding", ["r"]), ("draining", ["r"]), ("drained", [])]
    assert {(event["pid"], *event["agents"]) for event in events} == {(worker.pid, "clerk")}


def test_no_more_runs_at_a_time_than_it_was_told(shell: Shell) -> None:
    shell.accept(app.clerk, "one", "two")
    worker = ready(shell, *WORKER, "--concurrency", 1)
    worker.until(lambda: shell.log("began"), "the tool works")
    worker.signal(signal.SIGUSR1)
    assert "holds 1 run: " in worker.wait_for("holds", "err", times=2)
    for gate in "ab":
        shell.open_gate(gate)
    for run in ("one", "two"):
        worker.until(lambda run=run: shell.info(run).status == "done", "one after the other")
    drained(worker)


def test_several_share_the_runs_and_none_is_driven_twice(shell: Shell) -> None:
    workers = [ready(shell) for _ in range(3)]
    runs = [f"r{number}" for number in range(9)]
    for gate in "ab":
        shell.open_gate(gate)
    shell.accept(app.clerk, *runs)
    for run in runs:
        workers[0].until(lambda run=run: shell.info(run).status == "done", "all are done")
    for worker in workers:
        drained(worker)
    assert len(shell.log("asked")) == 3 * len(runs)
    assert len(shell.log("began")) == 2 * len(runs)


def test_ctrl_c_on_a_terminal_drains(shell: Shell) -> None:
    shell.accept(app.clerk, "r")
    worker = shell.start_on_terminal(*WORKER)
    worker.until(lambda: shell.log("began"), "the tool works")
    worker.wait_for("SIGUSR1 says")
    worker.type(CTRL_C)
    worker.wait_for("draining: 1 run")
    shell.open_gate("a")
    said = worker.ended()
    assert said.code == 0
    assert "drained: every run is given back" in said.plain
    assert shell.info("r").status == "running"


def test_a_runtime_brings_everything(shell: Shell) -> None:
    worker = ready(shell, "worker", "app:desk")
    assert "drives meteo, clerk in app:desk" in drained(worker)
    assert "desk.db" in shell.files()
    for words in (
        ("app:desk", "app:meteo"),
        ("app:desk", "--store", "sqlite:///clew.db"),
        ("app:desk", "--concurrency", 5),
    ):
        assert "name it alone" in shell.refused(2, "worker", *words)


def test_what_would_drive_nothing_is_refused(shell: Shell) -> None:
    assert "drive=False" in shell.refused(2, "worker", "app:reader")
    assert "has no agents" in shell.refused(2, "worker", "app:nobody")
    for words in ((), ("app:meteo", "--concurrency", 0)):
        shell.refused(2, "worker", *words)
    assert shell.files() == set()


def test_two_agents_of_one_name_are_refused(shell: Shell) -> None:
    assert "two different agents are called" in shell.refused(2, "worker", "payments:good", "payments:namesake")
