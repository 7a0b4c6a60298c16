"""What one process leaves when it dies or goes, and what the next one does with it."""

import os
import re
import signal

import pytest

from clew.core.entries import DoubtResolved, ModelReplied, ToolFailed, ToolReturned
from tests.crash.conftest import Scene, now
from tests.crash.phases import Trigger
from tests.crash.processes import until

LEASE = 1.0
AT_ONCE = 5.0  # seconds, far below the default lease
IN_C = Trigger(phase="body", how="hold", step="1.tool.3")
IN_BODY = Trigger(phase="body", how="hold", step="1.tool.1")


@pytest.mark.proves("T1", "T3", "T4", "R1")
@pytest.mark.parametrize("third", ["pay", "put", "look", "grind", "pry"])
def test_a_batch_of_three_killed_in_the_third(scene: Scene, third: str) -> None:
    victim = scene.victim(runs=(("r", f"put+look+{third}"),), triggers=(IN_C,))
    victim.wait_for("at body")
    until(lambda: len(scene.entries("r", ToolReturned)) == 2, "the first two are finished")
    victim.kill()
    other = scene.victim()
    scene.until_done("r")
    assert scene.pids("began", "r", "1.tool.1") == [victim.pid]
    assert scene.pids("began", "r", "1.tool.2") == [victim.pid]
    assert scene.pids("asked", "r", "1.model") == [victim.pid]
    again = scene.pids("began", "r", "1.tool.3")
    doubts = scene.entries("r", DoubtResolved)
    if third in ("pay", "pry"):
        assert again == [victim.pid]
        assert [(x.call, x.finding, x.how) for x in doubts] == [("1.tool.3", "unknown", "policy")]
        [told] = [x for x in scene.entries("r", ToolFailed) if x.call == "1.tool.3"]
        assert told.class_ == "outcome_unknown"
        assert "outcome unknown" in told.message
    else:
        assert again == [victim.pid, other.pid]
        assert not doubts
        keys = {line.rest[1] for line in scene.lines("began", "r", "1.tool.3")}
        assert keys == {"r:1.tool.3"}
    scene.check()


@pytest.mark.proves("R1")
def test_a_dead_owner_loses_its_lease_at_once(scene: Scene) -> None:
    victim = scene.victim(runs=(("r", "put"),), triggers=(IN_BODY,), lease=30.0)
    victim.wait_for("at body")
    other = scene.victim(lease=30.0)
    assert scene.lease("r").alive
    victim.kill()
    died = now()
    taken = scene.until_driven_by(other, "r", AT_ONCE)
    assert taken.at - died < AT_ONCE * 1_000_000
    scene.check()


@pytest.mark.proves("R1")
def test_drive_in_two_processes(scene: Scene) -> None:
    """One does, the other is told who does."""
    starter = scene.victim(drive=False, runs=(("r", "put"),))
    starter.wait_for("accepted r")
    pair = [scene.victim(drive=False, triggers=(IN_BODY,)) for _ in range(2)]
    for one in pair:
        one.tell("drive", "r")
    answers = [one.wait_for("at body", "refused") for one in pair]
    [busy] = [said for said in answers if said.startswith("refused")]
    driving, idle = pair if answers[0].startswith("at") else reversed(pair)
    assert busy.startswith("refused drive RunBusy")
    assert str(driving.pid) in busy
    assert os.uname().nodename in busy
    driving.tell("go")
    driving.wait_for("drove r")
    idle.tell("drive", "r")
    idle.wait_for("refused drive RunEnded")
    assert scene.pids("began", "r", "1.tool.1") == [driving.pid]
    scene.check()


@pytest.mark.proves("R1", "R3")
def test_a_graceful_exit_gives_the_run_back(scene: Scene) -> None:
    """What ends within the grace is kept, and nothing counts as a death."""
    victim = scene.victim(runs=(("r", "pay;look"),), triggers=(IN_BODY,))
    victim.wait_for("at body")
    victim.terminate()
    victim.wait_for("leaving")
    assert scene.lease("r").alive
    victim.tell("go")
    victim.wait_for("left")
    assert victim.ended() == 0
    assert scene.lease("r").owner is None
    assert scene.kinds("r")[-1] == "tool_returned"
    assert not list(scene.folder.glob("*-owner-*"))
    other = scene.victim()
    scene.until_done("r")
    assert scene.lease("r").unclean == 0
    assert scene.pids("began", "r", "1.tool.1") == [victim.pid]
    assert scene.pids("asked", "r", "2.model") == [other.pid]
    scene.check()


@pytest.mark.proves("R1", "R3")
@pytest.mark.parametrize("name", ["put", "pay"])
def test_a_graceful_exit_does_not_wait_for_ever(scene: Scene, name: str) -> None:
    """A body that does not end within the grace is cut off, and the next process does with it as its effect says."""
    victim = scene.victim(runs=(("r", name),), triggers=(IN_BODY,), grace=0.2)
    victim.wait_for("at body")
    victim.terminate()
    victim.wait_for("left")
    assert victim.ended() == 0
    assert scene.lease("r").owner is None
    other = scene.victim()
    scene.until_done("r")
    assert scene.lease("r").unclean == 0
    again = scene.pids("began", "r", "1.tool.1")
    assert again == ([victim.pid] if name == "pay" else [victim.pid, other.pid])
    scene.check()


@pytest.mark.proves("R3")
def test_an_ungraceful_exit_is_counted(scene: Scene) -> None:
    """In the place where it happened, until there is progress."""
    for deaths in range(1, 3):
        victim = scene.victim(runs=(("r", "put"),) if deaths == 1 else (), triggers=(IN_BODY,))
        victim.wait_for("at body")
        victim.kill()
        other = scene.victim(triggers=(IN_BODY,))
        other.wait_for("at body")
        assert scene.lease("r").unclean == deaths * 2 - 1
        other.kill()
    last = scene.victim()
    scene.until_done("r")
    assert scene.lease("r").unclean == 0
    assert scene.pids("began", "r", "1.tool.1")[-1] == last.pid
    scene.check()


@pytest.mark.proves("R3")
def test_a_run_that_kills_five_drivers_is_set_aside(scene: Scene) -> None:
    """And the others go on."""
    deadly = Trigger(phase="body", how="die", run="deadly")
    scene.victim(drive=False, runs=(("deadly", "put"),)).wait_for("accepted")
    for _ in range(5):
        # Workers would pause between deaths; whoever names the run means now.
        victim = scene.victim(drive=False, triggers=(deadly,))
        victim.tell("drive", "deadly")
        assert victim.ended() == -signal.SIGKILL
    last = scene.victim(drive=False, triggers=(deadly,))
    last.tell("drive", "deadly")
    assert "quarantine" in last.wait_for("refused drive JournalCorrupt")
    assert len(scene.pids("began", "deadly", "1.tool.1")) == 5
    other = scene.victim(runs=(("good", "put"),))
    other.wait_for("seen good")
    assert scene.info("deadly").quarantined
    other.kill()
    calm = scene.victim(settle=True)
    calm.wait_for("left")
    scene.check()


@pytest.mark.proves("R1")
def test_a_tool_that_blocks_the_loop_past_its_lease_keeps_the_run(scene: Scene) -> None:
    victim = scene.victim(runs=(("r", "hog"),), lease=LEASE)
    other = scene.victim(lease=LEASE)
    victim.wait_for("at body")
    first = scene.lease("r").until
    until(
        lambda: scene.lease("r").until > first + LEASE * 1_000_000, "its lease was renewed beyond the first one's end"
    )
    other.tell("drive", "r")
    assert other.wait_for("refused").startswith("refused drive RunBusy")
    (scene.folder / "let-go").touch()
    scene.until_done("r")
    assert scene.pids("began", "r", "1.tool.1") == [victim.pid]
    assert {entry.epoch for entry in scene.evidence.entries("r")} == {1}
    scene.check()


@pytest.mark.proves("T8")
def test_a_hung_thread_does_not_keep_the_process(scene: Scene) -> None:
    victim = scene.victim(runs=(("r", "hang"),), grace=0.2)
    victim.wait_for("at body")
    victim.terminate()
    victim.wait_for("left", seconds=AT_ONCE)
    assert victim.ended(AT_ONCE) == 0
    assert scene.lease("r").owner is None


@pytest.mark.proves("R1")
def test_a_forked_child_disturbs_nobody(scene: Scene) -> None:
    """It is told what is wrong, and its end frees no lock of its parent's."""
    parent = scene.victim(runs=(("r", "put;look"),), triggers=(IN_BODY,))
    other = scene.victim()
    parent.wait_for("at body")
    parent.tell("fork")
    parent.wait_for("forked")
    told = [said for said in parent.said if said.startswith("child")]
    assert len(told) == 4
    assert all(re.match(r"child UsageError .*fork", said) for said in told), told
    other.tell("drive", "r")
    assert f"process {parent.pid} " in other.wait_for("refused drive RunBusy")
    parent.tell("go")
    parent.wait_for("seen r")
    assert {entry.epoch for entry in scene.evidence.entries("r")} == {1}
    assert len(scene.entries("r", ModelReplied)) == 3
    scene.check()
