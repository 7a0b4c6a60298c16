"""What becomes of the state that user code wrote: merged with what others of the turn gave, as data for the journal."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from clew.core import entries as e
from clew.core.entries import Entry
from clew.core.records import Op
from clew.core.state import State
from clew.core.values import Digest, Value, pack, unpack
from clew.errors import UsageError
from clew.runtime.flight import Done, Update
from clew.runtime.redact import described
from clew.runtime.user_code import Raised, attempt_sync
from clew.runtime.values import stored

MOST_KNOWN = 256  # large values kept at hand; what is not is read again


def with_updates(state: State, done: Done, blobs: dict[Digest, bytes], known: dict[Digest, bytes]) -> tuple[Entry, ...]:
    """The facts of an effect, the first that can hold them with its changes of state. A merge may be user code.

    Large values go into `blobs`, and are read from `known`, which takes in the new ones.
    """
    if not done.updates:
        return done.entries
    entries = list(done.entries)
    place = next((i for i, entry in enumerate(entries) if isinstance(entry, e.ToolReturned | e.StateChanged)), None)
    if place is None:
        return done.entries
    holder = entries[place]
    assert isinstance(holder, e.ToolReturned | e.StateChanged)
    writer = holder.call if isinstance(holder, e.ToolReturned) else _writer(state, holder)
    merged = attempt_sync(_Merge(state, writer, known).ops, done.updates, blobs)
    if not isinstance(merged, Raised):
        ops = merged.value
        entries[place] = replace(holder, state=ops) if isinstance(holder, e.ToolReturned) else replace(holder, ops=ops)
    elif isinstance(holder, e.ToolReturned):
        entries[place] = e.ToolFailed(
            step=holder.step,
            attempt=holder.attempt,
            call=holder.call,
            class_="state",
            message=f"the tool ran, but the state it left cannot be merged: {described(merged.error)}",
            duration=holder.duration,
        )
    else:
        # A hook merges as it writes, and fails there: what is left is a conflict with another call of the turn.
        entries[place] = replace(holder, by=f"{holder.by} (its state cannot be merged: {described(merged.error)})")
    return tuple(entries)


def _writer(state: State, holder: e.StateChanged) -> str:
    """The call for which middleware wrote; none at a boundary."""
    return next((call.id for call in state.open_calls if call.id == holder.step), "")


class _Merge:
    """What one writer gave, merged into the state as it is now."""

    def __init__(self, state: State, writer: str, known: dict[Digest, bytes]) -> None:
        self._state = state
        self._writer = writer
        self._known = known

    def ops(self, updates: tuple[Update, ...], blobs: dict[Digest, bytes]) -> tuple[Op, ...]:
        last: dict[tuple[str, str], Op] = {}
        for update in updates:
            place = (update.key.scope, update.key.name)
            last[place] = self._op(update, last.get(place))
        return tuple([self._aside(op, blobs) for op in last.values()])

    def _aside(self, op: Op, blobs: dict[Digest, bytes]) -> Op:
        new: dict[Digest, bytes] = {}
        value = stored(unpack(op.value), new)
        given = tuple([stored(unpack(one), new) for one in op.given]) if self._writer else ()
        blobs.update(new)
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        self._known.update(new)
        return replace(op, value=value, given=given)

    def _op(self, update: Update, own: Op | None) -> Op:
        """One change. `own` is what the same writer gave the key before, within the same result."""
        key, given = update.key, update.value
        if _counts(key) and own is None and isinstance(self._now(key, 0), int):
            # A sum needs no order. The first to write to a key counts from its default.
            begun = key.check(key.default) if key.has_default and key.name not in self._values(key) else 0
            return Op(op="add", key=key.name, scope=key.scope, value=pack(begun + unpack(given)))
        if own is not None and own.op == "add":
            return replace(own, value=pack(unpack(own.value) + unpack(given)))
        writes = self._state.course.writes.get((key.scope, key.name))
        written = {} if writes is None else writes.given
        if key.merge != "replace" and (own is not None or self._writer in written):
            before = own.given[0] if own is not None else written[self._writer]
            given = pack(key.joined(self._read(before), unpack(given)))
        others = {call: value for call, value in written.items() if call != self._writer}
        if key.merge == "replace" and (not others or not self._writer):
            return Op(op="set", key=key.name, scope=key.scope, value=given)
        if not self._writer:
            # At a boundary: behind all that was written before it.
            value = pack(seen_as(key, {(key.scope, key.name): self._now(key)} if self._has(key) else {}, unpack(given)))
            return Op(op="set", key=key.name, scope=key.scope, value=value, given=(given,))
        order = {call.id: place for place, call in enumerate(self._state.calls)}
        givers = sorted([*others.items(), (self._writer, given)], key=lambda item: order.get(item[0], -1))
        values = [value for _, value in givers]
        value = values[-1] if key.merge == "replace" else self._folded(key, values)
        writers = tuple([call for call, _ in givers]) if len(givers) > 1 else ()
        return Op(op="set", key=key.name, scope=key.scope, value=value, writers=writers, given=(given,))

    def _folded(self, key: Any, values: list[Value]) -> Value:
        """The value before the turn, with what each call gave merged into it in the order of the calls."""
        writes = self._state.course.writes.get((key.scope, key.name))
        existed = self._has(key) if writes is None else writes.existed
        before = self._now(key) if writes is None else self._read(writes.before)
        merged = {(key.scope, key.name): before} if existed else {}
        for value in values:
            merged[key.scope, key.name] = seen_as(key, merged, self._read(value))
        return pack(merged[key.scope, key.name])

    def _values(self, key: Any) -> Mapping[str, Value]:
        return self._state.run_state if key.scope == "run" else self._state.thread_state

    def _has(self, key: Any) -> bool:
        return key.name in self._values(key)

    def _now(self, key: Any, default: Value = None) -> Any:
        return self._read(self._values(key).get(key.name, default))

    def _read(self, value: Value) -> Any:
        return unpack(value, self._known.__getitem__)


def _counts(key: Any) -> bool:
    """Whether its values are whole numbers that are summed; sums of others depend on their order."""
    return key.merge == "add" and key.type is int


def seen_as(key: Any, values: Mapping[tuple[str, str], Any], given: Any) -> Any:
    """What a key comes to once a value is given to it. Raises whatever its merge does."""
    place = (key.scope, key.name)
    if key.merge == "replace" or not (place in values or key.has_default):
        return given
    return key.joined(values[place] if place in values else key.check(key.default), given)


def checked_update(key: Any, value: object) -> Update:
    """An update in journal form. Raises UsageError for a value that its key does not take."""
    name = getattr(key, "name", None)
    if name is None or not hasattr(key, "merge"):
        raise UsageError(f"{key!r} is no state key: StateKey(name, type) makes one")
    return Update(key, pack(key.check(value)))
