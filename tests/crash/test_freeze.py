"""Processes that are stopped where they stand, taken over, and thawed: they change nothing but by what they post."""

import pytest

from clew.core.entries import DoubtResolved, DriverAttached, LateResultReceived, ToolReturned, ToolStarted
from tests.crash.conftest import Scene, now
from tests.crash.phases import Trigger
from tests.crash.processes import Victim, until

LEASE = 1.0
PATIENT = 5.0
SLACK = 1.0  # seconds beyond the lease within which somebody must have taken over
BUSY = 0.3
FROZEN_IN_BODY = Trigger(phase="body", how="freeze", step="1.tool.1")
FROZEN_IN_STREAM = Trigger(phase="stream", how="freeze", nth=2)
FROZEN_BEFORE_RESULT = Trigger(phase="result", how="freeze", step="1.tool.1")
IN_SECOND_BODY = Trigger(phase="body", how="hold", step="2.tool.1")


def frozen(scene: Scene, plan: str, trigger: Trigger) -> tuple[Victim, Victim, int]:
    """A process stopped in a run, another one awake beside it, and since when."""
    awake = scene.victim(lease=LEASE, triggers=(IN_SECOND_BODY,))
    victim = scene.victim(runs=(("r", plan),), lease=LEASE, triggers=(trigger,))
    victim.wait_for("at")
    victim.stopped()
    return victim, awake, now()


def check_takeover(scene: Scene, awake: Victim, since: int) -> None:
    taken = scene.until_driven_by(awake, "r")
    assert taken.epoch == 2
    assert taken.at - since <= (LEASE + SLACK) * 1_000_000


def taken_over(scene: Scene) -> None:
    until(lambda: "run r was taken over" in scene.log(), "the thawed process knows that it has lost the run")


@pytest.mark.proves("T11")
def test_whoever_took_over_and_died_is_not_the_one_who_may_be_at_it(scene: Scene) -> None:
    """A doubt waits for the process that began the call, however many have died over it since."""
    frozen = scene.victim(runs=(("r", "pay"),), lease=LEASE, triggers=(FROZEN_IN_BODY,))
    frozen.wait_for("at")
    frozen.stopped()
    dying = scene.victim(lease=PATIENT)
    scene.until_driven_by(dying, "r")
    dying.kill()
    scene.until_driven_by(scene.victim(lease=PATIENT), "r")
    scene.until_done("r")
    [intent], [found] = scene.entries("r", ToolStarted), scene.entries("r", DoubtResolved)
    assert found.at - intent.at >= (PATIENT + 1) * 1_000_000
    frozen.thaw()
    taken_over(scene)
    scene.check()


@pytest.mark.proves("R1", "T1", "T3")
@pytest.mark.parametrize("name", ["pay", "put", "grind", "pry"])
@pytest.mark.parametrize("trigger", [FROZEN_IN_BODY, FROZEN_BEFORE_RESULT], ids=["in-body", "before-commit"])
def test_frozen_in_a_body(scene: Scene, name: str, trigger: Trigger) -> None:
    """What the thawed process knows is posted; it appends nothing itself."""
    victim, awake, since = frozen(scene, f"{name};look", trigger)
    check_takeover(scene, awake, since)
    awake.wait_for("at body")
    before = scene.evidence.entries("r")
    victim.thaw()
    scene.until_has("r", "late_result_received")
    [late] = scene.entries("r", LateResultReceived)
    assert (late.call, late.from_epoch, late.epoch) == ("1.tool.1", 1, 2)
    [value] = [x.rest[1] for x in scene.lines("ended", "r", "1.tool.1") if int(x.rest[0]) == victim.pid]
    assert late.value == value
    taken_over(scene)
    assert scene.evidence.entries("r")[: len(before)] == before
    assert len(scene.evidence.entries("r")) == len(before) + 1
    awake.tell("go")
    scene.until_done("r")
    repeated = scene.pids("began", "r", "1.tool.1")
    assert repeated == ([victim.pid] if name in ("pay", "pry") else [victim.pid, awake.pid])
    scene.check()


@pytest.mark.proves("R1", "J8")
@pytest.mark.parametrize("name", ["pay", "put"])
def test_frozen_in_a_body_until_the_run_is_over(scene: Scene, name: str) -> None:
    """Its late result finds no taker; it is told that the run has ended, and the end stands."""
    victim, awake, since = frozen(scene, name, FROZEN_IN_BODY)
    check_takeover(scene, awake, since)
    scene.until_done("r")
    before = scene.evidence.entries("r")
    victim.thaw()
    until(lambda: "a late result of 1.tool.1 found no taker: run 'r' is finished" in scene.log(), "it was told")
    taken_over(scene)
    assert scene.evidence.entries("r") == before
    victim.tell("start", "s", "put")
    victim.wait_for("seen s")
    scene.check()


@pytest.mark.proves("R1", "T4")
def test_frozen_in_a_stream(scene: Scene) -> None:
    """Its reply comes too late and is nobody's."""
    victim, awake, since = frozen(scene, "put;look", FROZEN_IN_STREAM)
    check_takeover(scene, awake, since)
    awake.wait_for("at body")
    before = scene.evidence.entries("r")
    victim.thaw()
    taken_over(scene)
    assert scene.evidence.entries("r") == before
    assert scene.pids("asked", "r", "1.model") == [victim.pid, awake.pid]
    awake.tell("go")
    scene.until_done("r")
    assert {entry.epoch for entry in scene.evidence.entries("r")[2:]} == {2}
    scene.check()


@pytest.mark.proves("R1")
def test_a_short_freeze_costs_nothing(scene: Scene) -> None:
    """Thawed before the lease is over, it goes on as if nothing had been."""
    other = scene.victim(lease=30.0)
    victim = scene.victim(runs=(("r", "pay;look"),), lease=30.0, triggers=(FROZEN_IN_BODY,))
    victim.wait_for("at body")
    victim.stopped()
    other.tell("drive", "r")
    other.wait_for("refused drive RunBusy")
    victim.thaw()
    victim.wait_for("seen r")
    assert len(scene.entries("r", DriverAttached)) == 1
    assert [x.source for x in scene.entries("r", ToolReturned)] == ["ran", "ran"]
    scene.check()


@pytest.mark.proves("R1", "J7")
@pytest.mark.parametrize("end", ["thaws", "dies"])
@pytest.mark.parametrize("nth", [5, 6], ids=["before", "after"])
def test_frozen_in_a_commit(scene: Scene, end: str, nth: int) -> None:
    """It holds the file's only write lock: others name it, keep what they know, and go on when it thaws or dies."""
    held = Trigger(phase="body", how="hold", step="1.tool.1")
    awake = scene.victim(busy=BUSY, triggers=(held,), runs=(("own", "pay;look"),))
    awake.wait_for("at body own")
    in_commit = Trigger(phase="commit", how="freeze", nth=nth)
    victim = scene.victim(runs=(("r", "pay+put;look;put"),), triggers=(in_commit,))
    victim.wait_for("at commit")
    victim.stopped()
    if nth % 2:
        awake.tell("start", "refused", "look")
        told = awake.wait_for("refused start")
        assert "StoreUnavailable" in told
        assert f"process {victim.pid}" in told
        awake.tell("go")
        until(lambda: f"{awake.pid} " in scene.log() and "the store refuses for now" in scene.log(), "it tries again")
        assert scene.kinds("own")[-1] != "tool_returned"
    else:
        awake.tell("go")
    if end == "dies":
        victim.kill()
    else:
        victim.thaw()
    awake.wait_for("seen own")
    awake.tell("start", "next", "look")
    awake.wait_for("seen next")
    scene.until_done("r")
    assert scene.pids("began", "own", "1.tool.1") == [awake.pid]
    assert [x.source for x in scene.entries("own", ToolReturned)] == ["ran", "ran"]
    scene.check()


@pytest.mark.proves("R1")
def test_frozen_in_a_commit_past_the_lease(scene: Scene) -> None:
    """The commit that thaws was begun in time and stands; the run goes on from there, whoever drives it."""
    awake = scene.victim(busy=BUSY, lease=LEASE)
    victim = scene.victim(
        runs=(("r", "pay+put;look"),), lease=LEASE, triggers=(Trigger(phase="commit", how="freeze", nth=5),)
    )
    victim.wait_for("at commit")
    victim.stopped()
    until(lambda: f"locked by process {victim.pid}" in scene.log(), "somebody wants to write, and cannot")
    victim.thaw()
    scene.until_done("r")
    awake.tell("start", "next", "look")
    awake.wait_for("seen next")
    scene.check()
