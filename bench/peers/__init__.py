"""One module a peer: `VARIANTS`, and a class `Peer(variant, folder)` that does the workload.

`setup` opens the store, `run` takes a new run to its end, `resume` one that crashed, `close` leaves everything on disk;
`first_event` yields what a user would see of a run as it comes.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from bench.workload import Spec


class Peer(Protocol):
    def __init__(self, variant: str, folder: Path) -> None: ...
    async def setup(self) -> None: ...
    async def run(self, run: str, spec: Spec) -> int:
        """The number of messages the conversation has in the end."""
        ...

    async def resume(self, run: str) -> int: ...
    def first_event(self, run: str, spec: Spec) -> AsyncIterator[object]: ...
    async def close(self) -> None: ...
