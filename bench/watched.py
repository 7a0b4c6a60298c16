"""What twenty watchers in other processes cost a streaming run, beside the same run alone: `python -m bench.watched`.

A model says its words at a fixed pace. A quarter of the watchers is killed, one is frozen, one is never read from, and
one looks on; what is timed is the run, from its first word on.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from clew import Agent, ModelReply, ModelRequest, Runtime
from clew.messages import Text
from clew.ports import Fragment

WATCHERS, PAIRS = 20, 5
PIECES, PAUSE = 200, 0.01
PIECE = "a long time " * 40
FIRST = "Once upon "


class Paced:
    """A word at once, the others at their pace when they are let."""

    name = "paced"

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        yield Fragment("text", FIRST)
        await self.go.wait()
        for _ in range(PIECES):
            yield Fragment("text", PIECE)
            await asyncio.sleep(PAUSE)
        yield ModelReply(parts=(Text(FIRST + PIECE * PIECES),))


def watch(store: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "clew", "--store", store, "watch", "r"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def heard(watcher: "subprocess.Popen[bytes]") -> None:
    """Until it has said the first words; what comes later is left in its pipe."""
    assert watcher.stdout is not None
    said = b""
    while FIRST.encode() not in said:
        said += os.read(watcher.stdout.fileno(), 1 << 12)


def trouble(watchers: "list[subprocess.Popen[bytes]]") -> None:
    for watcher in watchers[0::4]:
        watcher.kill()
    for watcher in watchers[1::4]:
        watcher.send_signal(signal.SIGSTOP)


async def timed(number: int) -> float:
    """Seconds from the second word to the result."""
    model = Paced()
    agent = Agent("teller", model=model)
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'clew.db'}"
        async with Runtime(store, agents=[agent]) as runtime:
            run = await runtime.start(agent, "Go", run_id="r")
            watchers = [watch(store) for _ in range(number)]
            looking_on = [asyncio.create_task(asyncio.to_thread(w.communicate)) for w in watchers[3::4]]
            for place, watcher in enumerate(watchers):
                if place % 4 != 3:
                    await asyncio.to_thread(heard, watcher)
            trouble(watchers)
            begun = time.perf_counter()
            model.go.set()
            assert (await run.result()).ok
            took = time.perf_counter() - begun
        for watcher in watchers:
            watcher.kill()
        if looking_on:
            await asyncio.wait(looking_on)
        for watcher in watchers:
            watcher.wait()
            if watcher.stdout is not None:
                watcher.stdout.close()
    return took


async def main() -> None:
    pairs = [(await timed(0), await timed(WATCHERS)) for _ in range(PAIRS)]
    ratios = [watched / alone for alone, watched in pairs]
    alone, watched = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"alone {alone:.2f} s, with {WATCHERS} watchers {watched:.2f} s")
    print(f"ratio {statistics.median(ratios):.3f} [{min(ratios):.3f}..{max(ratios):.3f}]")


if __name__ == "__main__":
    asyncio.run(main())
