"""Processes that make one new file at the same instant, and say what went wrong.

`python -m tests.crash.openers ROUNDS`
"""

import asyncio
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

from clew.errors import ClewError
from clew.stores.sqlite import SqliteStore

TOGETHER = 4


async def _open(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()


def _opener(path: Path, line: Any, answers: Any) -> None:
    line.wait()
    try:
        asyncio.run(_open(path))
    except ClewError as error:
        answers.put(f"{type(error).__name__}: {error}")
    else:
        answers.put("")


def main(rounds: int) -> None:
    processes = multiprocessing.get_context("fork")
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            line, answers = processes.Barrier(TOGETHER), processes.SimpleQueue()
            given = (Path(folder) / "clew.db", line, answers)
            openers = [processes.Process(target=_opener, args=given) for _ in range(TOGETHER)]
            for opener in openers:
                opener.start()
            for _ in openers:
                if wrong := answers.get():
                    print(wrong)
            for opener in openers:
                opener.join()


if __name__ == "__main__":
    main(int(sys.argv[1]))
