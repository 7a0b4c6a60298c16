"""From stored journals to a state: a run's own entries over those of its bases, read and folded by iteration."""

from collections.abc import Iterable

import msgspec

from clew import codec
from clew.core import entries as e
from clew.core.entries import Entry
from clew.core.snapshots import Snapshot, restored
from clew.core.spec import AgentSpec
from clew.core.state import Known, State, fold
from clew.core.values import Digest
from clew.errors import JournalCorrupt
from clew.ports import Store

_snapshot = msgspec.json.Decoder(Snapshot)


class History:
    """Reads states from a store. Agent declarations are kept: a digest never changes its meaning."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._specs: dict[Digest, AgentSpec] = {}

    def remember(self, spec: AgentSpec, fingerprint: Digest) -> None:
        self._specs[fingerprint] = spec

    @property
    def specs(self) -> dict[Digest, AgentSpec]:
        return self._specs

    async def state(self, run: str, until: int | None = None) -> State:
        """The state of a run as of `until`. Raises NotFound, JournalCorrupt, Unsupported."""
        return await self.state_from(run, await self._store.read(run, until=until))

    async def state_from(self, run: str, entries: list[Entry]) -> State:
        """The state of a run whose own entries are at hand."""
        if not entries:
            info = await self._store.info(run)
            raise JournalCorrupt(f"run {info.run_id!r} has a row but no journal")
        chain: list[tuple[tuple[str, int], str, list[Entry]]] = [((run, 0), run, entries)]
        known: dict[tuple[str, int], State] = {}
        while (base := origin(chain[-1][2])) is not None:
            if isinstance(base, e.BaseSnapshot):
                digest = str(base.blob["$blob"])
                known[digest, 0] = await self._snapshot(digest)
                break
            chain.append(((base.run, base.seq), base.run, await self._store.read(base.run, until=base.seq)))
        await self._learn(entry for _, _, part in chain for entry in part)
        state: State | None = None
        for key, name, part in reversed(chain):
            state = fold(name, part, Known(specs=self._specs, bases=known))
            known = {key: state}
        assert state is not None
        return state

    async def _learn(self, entries: Iterable[Entry]) -> None:
        """Read the declarations that the entries name; one that is gone is missed only where it is needed."""
        named = {x.fingerprint for x in entries if isinstance(x, e.RunStarted | e.DriverAttached) and x.fingerprint}
        unknown = named - self._specs.keys()
        if unknown:
            for digest, data in (await self._store.blobs(unknown)).items():
                self._specs[digest] = codec.decode_spec(data)

    async def _snapshot(self, digest: Digest) -> State:
        found = await self._store.blobs([digest])
        if digest not in found:
            raise JournalCorrupt(f"a run goes on from the snapshot {digest}, which is gone")
        return restored(_snapshot.decode(found[digest]))


def origin(entries: list[Entry]) -> "e.BaseAt | e.BaseSnapshot | None":
    """Where a journal goes on from; a queued run's base is known once it became its thread's head."""
    first = entries[0]
    if not isinstance(first, e.RunStarted):
        raise JournalCorrupt(f"a journal begins with {first.kind}, not with run_started")
    if not isinstance(first.base, e.BaseThread):
        return first.base
    fixed = next((entry for entry in entries if isinstance(entry, e.BaseFixed)), None)
    return None if fixed is None or not fixed.run else e.BaseAt(fixed.run, fixed.base_seq)
