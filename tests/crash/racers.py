"""The two processes of the race: one drives runs that end or let go, one posts to them just then.

`python -m tests.crash.racers runner|poster FILE PIPE TRIALS SEED`. The runner says on the pipe which run it has
started; the poster aims at its end and learns from where it hit.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from clew import Agent, ModelReply, ModelRequest, Runtime
from clew.core.messages import Text, text_of
from clew.errors import ModelError, RunEnded
from clew.ports import Fragment
from clew.stores.sqlite import SqliteStore
from tests.crash.planting import as_planted

LANES = 3  # runs at a time
LONGEST = 0.004  # seconds that a model takes
LEASE = 5.0
FAR = 3600.0  # seconds until a parked run would go on
STEP = 0.00015  # seconds by which the aim is moved after each shot
SPREAD = 0.0012  # seconds around the aim


class Shot(msgspec.Struct, frozen=True):
    """What the poster was told. `at`: microseconds, before and after."""

    run: str
    what: str  # message or cancel
    answer: str  # accepted or refused
    before: int
    after: int


class Sprinter:
    """Answers after a moment; or, to a run that is to park, that it should be asked much later."""

    name = "sprinter"

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        kind, _, seconds = text_of(request.messages[0].parts).partition(" ")
        await asyncio.sleep(float(seconds))
        if kind == "parks":
            raise ModelError("rate_limited", "not now", retry_after=FAR)
        heard = sum(message.role == "user" for message in request.messages)
        yield ModelReply(parts=(Text(f"heard {heard}"),))


def micros() -> int:
    return time.time_ns() // 1000


async def run(path: Path, pipe: int, trials: int, seed: int) -> None:
    dice = random.Random(seed)
    agent: Agent = Agent("sprinter", model=Sprinter())
    store = SqliteStore(path, busy=30.0)
    left = iter(range(trials))

    async def lane(runtime: Runtime) -> None:
        for number in left:
            kind = "parks" if number % 4 == 0 else "ends"
            started = await runtime.start(agent, f"{kind} {dice.random() * LONGEST:.6f}", run_id=f"{kind}-{number}")
            os.write(pipe, f"{started.id}\n".encode())
            if kind == "ends":
                await started.result(until="done")
            else:
                await asyncio.sleep(LONGEST)

    async with Runtime(store, agents=[agent], lease=LEASE) as runtime:
        async with asyncio.TaskGroup() as group:
            for _ in range(LANES):
                group.create_task(lane(runtime))
        os.close(pipe)
        # Until told to leave it stays, and takes in what came late.
        print("ran", flush=True)
        await asyncio.to_thread(sys.stdin.read)


class Poster:
    def __init__(self, path: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        self._aim = {"message": LONGEST / 2, "cancel": LONGEST / 2}
        self._encode = msgspec.json.Encoder().encode
        self.runtime = Runtime(SqliteStore(path, busy=30.0), drive=False)

    async def post(self, pipe: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb"))
        async with self.runtime, asyncio.TaskGroup() as group:
            while line := await reader.readline():
                group.create_task(self._shoot(line.decode().strip(), loop.time()))
        print("posted", flush=True)

    async def _shoot(self, run: str, began: float) -> None:
        what = self._dice.choice(("message", "cancel"))
        aim = self._aim[what] + self._dice.uniform(-SPREAD, SPREAD)
        await asyncio.sleep(began + aim - asyncio.get_running_loop().time())
        before = micros()
        try:
            if what == "message":
                await self.runtime.send(run, f"to {run}")
            else:
                await self.runtime.cancel(run, by="poster")
            answer = "accepted"
        except RunEnded:
            answer = "refused"
        if run.startswith("ends"):
            self._aim[what] = max(0.0, self._aim[what] + (STEP if answer == "accepted" else -STEP))
        else:
            self._aim[what] = max(0.0, self._aim[what] + self._dice.uniform(-STEP, STEP))
        os.write(1, self._encode(Shot(run, what, answer, before, micros())) + b"\n")


def main() -> None:
    role, path, pipe, trials, seed = sys.argv[1:]
    with as_planted():
        if role == "runner":
            asyncio.run(run(Path(path), int(pipe), int(trials), int(seed)))
        else:
            asyncio.run(Poster(Path(path), int(seed)).post(int(pipe)))


if __name__ == "__main__":
    main()
