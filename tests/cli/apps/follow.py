"""A watcher of one's own: prints the words of a run as they come, and nothing else."""

import asyncio
import sys

from clew import Runtime


async def main(run_id: str) -> None:
    async with Runtime("sqlite:///clew.db", drive=False) as rt:
        run = await rt.get(run_id)
        async for piece in run.text():
            print(piece, end="", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
