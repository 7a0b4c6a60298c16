"""A store under which no driver survives its own commits: each is crashed once in each place, and another goes on."""

from typing import Any

from clew.core.entries import DriverAttached, Owner, RunFinished
from clew.errors import StaleWriter
from clew.ports import Batch, Receipt, Store


class Restless:
    """Commits are made and not acknowledged: the driver finds itself fenced, and the run is taken up anew."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._places: set[tuple[str, int]] = set()
        self.crashes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def is_gone(self, owner: Owner) -> bool:  # noqa: ARG002
        """Whoever was crashed is at nothing any more."""
        return True

    async def commit(self, batch: Batch) -> Receipt:
        receipt = await self._store.commit(batch)
        place = (batch.run, batch.after_seq)
        work = [entry for entry in batch.entries if not isinstance(entry, DriverAttached)]
        ends = any(isinstance(entry, RunFinished) for entry in work)
        if batch.lease == "release" or ends or not work or place in self._places:
            return receipt
        self._places.add(place)
        self.crashes += 1
        await self._store.give_back(batch.run, batch.epoch)
        raise StaleWriter(f"run {batch.run!r}: its driver was crashed after entry {batch.after_seq} by --clew-crash")
