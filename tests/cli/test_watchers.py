"""Twenty watchers of one run, each a process of its own: all of them see the same, and none of them is felt."""

import signal

import pytest

from clew.core.entries import ModelReplied
from tests.cli.apps.app import SPEECH
from tests.cli.conftest import Shell
from tests.cli.processes import Running

BEGIN = "Once upon "


def by_command(shell: Shell, number: int) -> list[Running]:
    return [shell.start("watch", "r") for _ in range(number)]


def by_program(shell: Shell, number: int) -> list[Running]:
    return [shell.start_script("follow.py", "r") for _ in range(number)]


def text_of(watching: Running) -> str:
    """The words that it showed: a program of one's own shows nothing else, the command one line of them."""
    said = watching.ended()
    assert (said.code, said.err) == (0, "")
    if said.out.startswith(BEGIN):
        return said.out
    [words] = [line for line in said.lines if line.startswith(BEGIN)]
    return words


@pytest.mark.proves("E1", "E2")
def test_twenty_watchers_killed_frozen_starved_and_late(shell: Shell) -> None:
    """The run ends with its result while some of them are dead, some stand still and some are not read by anybody."""
    driver = shell.start("run", "app:lecturer", "Go", "--run-id", "r")
    driver.wait_for("started: Go", "err")
    early = by_command(shell, 7) + by_program(shell, 6)
    shell.open_gate("section-0")
    for watching in early:
        watching.wait_for(BEGIN)
    late = by_command(shell, 2) + by_program(shell, 2)
    for watching in late:
        watching.wait_for(BEGIN)
    killed, frozen, starved, calm = early[0::4], early[1::4], early[2::4], early[3::4]
    for watching in killed:
        assert watching.kill().code == -signal.SIGKILL
    for watching in frozen:
        watching.freeze()
    # Nobody reads from the starved ones, and what is said is more than their pipes hold.
    shell.open_gate("section-1")
    shell.open_gate("section-2")
    result = driver.ended()
    assert (result.code, result.out) == (0, f"{SPEECH}\n")
    assert not any(watching.is_gone for watching in frozen + starved)
    last = by_command(shell, 2) + by_program(shell, 1)
    [journal] = [entry.text for entry in shell.entries("r") if isinstance(entry, ModelReplied)]
    assert journal == SPEECH
    for watching in frozen:
        watching.thaw()
    survivors = [*calm, *frozen, *starved, *late, *last]
    assert len(survivors) + len(killed) == 20
    assert {text_of(watching) == journal for watching in survivors} == {True}
    assert shell.clew("runs").code == 0
    assert "clew.db-live" not in shell.files()
