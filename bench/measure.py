"""One measurement, in a process of its own: `python -m bench.measure JOB` prints what it found as its last line."""

import asyncio
import gc
import importlib
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench import meters
from bench.peers import Peer
from bench.workload import Spec, probe

WARM_RUNS, WARM_STEPS = 2, 8
FIRST_EVENTS, FIRST_WARM = 25, 5
CROWD_STEPS = 20
IDLE = 3.0  # seconds
WINDOW = 250  # steps on each side, enough for several checkpoints of SQLite

Mode = Literal["steps", "many", "crash", "resume", "first", "idle"]


@dataclass(frozen=True)
class Job:
    """What to measure; `crowd` runs are in the file before, `around` are places whose CPU per step is wanted."""

    mode: Mode
    peer: str
    n: int = 1
    k: int = 1
    runs: int = 1
    crowd: int = 0
    around: tuple[int, ...] = ()
    folder: str = ""

    @property
    def spec(self) -> Spec:
        return Spec(self.n, self.k)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


async def measured(job: Job, peer: Peer) -> dict[str, Any]:
    match job.mode:
        case "steps" | "many":
            return await _steps(job, peer)
        case "crash":
            probe.crash_at = job.n
            await peer.setup()
            await peer.run("main", Spec(job.n + 1, job.k))
            raise AssertionError("the model was to end this process")
        case "resume":
            return await _resume(peer)
        case "first":
            return await _first(peer)
        case "idle":
            return await _idle(peer)


async def _steps(job: Job, peer: Peer) -> dict[str, Any]:
    await peer.setup()
    for place in range(WARM_RUNS):
        await peer.run(f"warm{place}", Spec(WARM_STEPS, job.k))
    await asyncio.gather(*[peer.run(f"crowd{place}", Spec(CROWD_STEPS)) for place in range(job.crowd)])
    gc.collect()
    disk = meters.fdatasync_us(Path(job.folder))
    probe.ticking = bool(job.around)
    machine, written = meters.machine_cpu(), meters.written()
    cpu, begun = time.process_time(), time.perf_counter()
    if job.mode == "steps":
        await peer.run("main", job.spec)
    else:
        await asyncio.gather(*[peer.run(f"run{place}", job.spec) for place in range(job.runs)])
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    written, machine = meters.written() - written, meters.machine_cpu() - machine
    await peer.close()
    steps = job.n * job.runs
    return {
        "wall_ms": wall * 1e3 / steps,
        "cpu_ms": cpu * 1e3 / steps,
        "written_kib": written / 1024 / steps,
        "steps_per_s": steps / wall,
        "disk_mib": meters.disk_bytes(Path(job.folder)) / 2**20,
        "fdatasync_us": disk,
        "foreign_cores": max(0.0, machine - cpu) / max(wall, 0.02),
        "memory_mib": meters.memory_mib(),
        "cpu_ms_around": {str(place): _cpu_around(place) for place in job.around},
    }


def _cpu_around(place: int) -> float:
    """Milliseconds of CPU a step, the mean over the window around it."""
    at = dict(probe.ticks)
    return (at[place + WINDOW] - at[place - WINDOW]) / (2 * WINDOW) / 1e6


async def _resume(peer: Peer) -> dict[str, Any]:
    """From opening the store to the model being asked with the whole history."""
    probe.stop_at_next = True
    begun = time.perf_counter_ns()
    await peer.setup()
    await peer.resume("main")
    await peer.close()
    assert probe.resumed is not None
    step, shown, at = probe.resumed
    return {"resume_ms": (at - begun) / 1e6, "step": step, "messages": shown}


async def _first(peer: Peer) -> dict[str, Any]:
    """From the call to the first thing a user sees, each of several runs."""
    await peer.setup()
    taken: list[float] = []
    for place in range(FIRST_EVENTS):
        begun = time.perf_counter_ns()
        async for _ in peer.first_event(f"first{place}", Spec(1)):
            if len(taken) == place:
                taken.append((time.perf_counter_ns() - begun) / 1e6)
    await peer.close()
    return {"cold_ms": taken[0], "warm_ms": statistics.median(taken[FIRST_WARM:])}


async def _idle(peer: Peer) -> dict[str, Any]:
    """The share of a core that an open store with a finished run in it takes, while nothing happens."""
    await peer.setup()
    await peer.run("main", Spec(WARM_STEPS))
    gc.collect()
    await asyncio.sleep(0.5)
    cpu, begun = time.process_time(), time.perf_counter()
    await asyncio.sleep(IDLE)
    share = (time.process_time() - cpu) / (time.perf_counter() - begun)
    await peer.close()
    return {"share_percent": share * 100}


def main() -> None:
    given = json.loads(sys.argv[1])
    job = Job(**{**given, "around": tuple(given["around"])})
    module, _, variant = job.peer.partition(":")
    peer = importlib.import_module(f"bench.peers.{module}").Peer(variant, Path(job.folder))
    print(json.dumps(asyncio.run(measured(job, peer))))


if __name__ == "__main__":
    main()
