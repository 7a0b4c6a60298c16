"""Cancels from another process: into a stream, into a body, to a run that nobody drives, to a frozen driver's run."""

import pytest

from clew.core.entries import ModelReplied, RunFinished, ToolFailed
from tests.crash.conftest import Scene
from tests.crash.phases import Trigger
from tests.crash.processes import until
from tests.runtime.world import check_journal

LEASE = 1.0
AT_ONCE = 5.0
IN_STREAM = Trigger(phase="stream", how="hold", nth=2)
IN_BODY = Trigger(phase="body", how="hold", step="1.tool.1")
FROZEN = Trigger(phase="body", how="freeze", step="1.tool.1")


def check_cancelled(scene: Scene, run: str) -> None:
    until(lambda: scene.info(run).status == "done", "the run has ended", AT_ONCE)
    entries = scene.evidence.entries(run)
    check_journal(entries)
    assert [str(end.outcome) for end in scene.entries(run, RunFinished)] == ["cancelled"]
    assert scene.kinds(run).count("cancel_requested") == 1


@pytest.mark.proves("C1", "C2")
def test_in_a_stream(scene: Scene) -> None:
    """What was said is kept."""
    driving = scene.victim(runs=(("r", "put"),), triggers=(IN_STREAM,))
    other = scene.victim(drive=False)
    driving.wait_for("at stream")
    other.tell("cancel", "r")
    other.wait_for("cancelled r")
    check_cancelled(scene, "r")
    [reply] = scene.entries("r", ModelReplied)
    assert reply.finish == "cut_off"
    assert reply.usage.estimated
    assert "Turn 1 of 1: I call put now.".startswith(reply.text)
    other.tell("cancel", "r")
    other.wait_for("refused cancel RunEnded")


@pytest.mark.proves("C1", "C2")
@pytest.mark.parametrize("name", ["pay", "put"])
def test_in_a_body(scene: Scene, name: str) -> None:
    """An open call is answered: cancelled, or, where it may have acted, with an unknown outcome."""
    driving = scene.victim(runs=(("r", f"{name};look"),), triggers=(IN_BODY,))
    other = scene.victim(drive=False)
    driving.wait_for("at body")
    other.tell("cancel", "r")
    other.wait_for("cancelled r")
    check_cancelled(scene, "r")
    [answer] = scene.entries("r", ToolFailed)
    assert answer.class_ == ("outcome_unknown" if name == "pay" else "cancelled")
    assert driving.wait_for("seen r") == "seen r cancelled"


@pytest.mark.proves("C1")
def test_a_run_that_nobody_drives(scene: Scene) -> None:
    """Whoever cancels it ends it, and needs no agent for that."""
    starter = scene.victim(drive=False, runs=(("r", "put"),))
    starter.wait_for("accepted r")
    starter.kill()
    other = scene.victim(drive=False)
    other.tell("cancel", "r")
    other.wait_for("cancelled r")
    check_cancelled(scene, "r")
    assert not scene.lines("asked", "r")


@pytest.mark.proves("C1", "C2", "R1")
def test_a_run_whose_driver_is_frozen(scene: Scene) -> None:
    """The cancel is durable at once, and whoever takes the run over ends it; the thawed process does not undo that."""
    frozen = scene.victim(runs=(("r", "pay;look"),), triggers=(FROZEN,), lease=LEASE)
    frozen.wait_for("at body")
    frozen.stopped()
    other = scene.victim(lease=LEASE)
    other.tell("cancel", "r")
    other.wait_for("cancelled r")
    check_cancelled(scene, "r")
    before = scene.evidence.entries("r")
    frozen.thaw()
    until(lambda: "run r was taken over" in scene.log(), "the thawed process knows that it has lost the run")
    assert scene.evidence.entries("r") == before
    assert scene.pids("began", "r", "1.tool.1") == [frozen.pid]
