"""The state keys of tools: what an operation makes of a value. No user code runs here; merges are computed before."""

from collections.abc import Iterable, Mapping
from typing import Literal, assert_never

from clew.core.records import Op
from clew.core.values import Value, pack, unpack
from clew.errors import JournalCorrupt


def changed_keys(values: Mapping[str, Value], ops: Iterable[Op], scope: Literal["run", "thread"]) -> dict[str, Value]:
    """The keys of one scope after these operations. Raises JournalCorrupt for one that does not fit its value."""
    changed = dict(values)
    for op in ops:
        if op.scope != scope:
            continue
        match op.op:
            case "set":
                changed[op.key] = op.value
            case "add":
                changed[op.key] = _sum(op, changed.get(op.key, 0))
            case "append":
                changed[op.key] = _longer(op, changed.get(op.key, []))
            case "remove":
                changed.pop(op.key, None)
            case _:
                assert_never(op.op)
    return changed


def _sum(op: Op, old: Value) -> Value:
    a, b = unpack(old), unpack(op.value)
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        raise JournalCorrupt(f"the state key {op.key!r} adds what is no number: {old!r} and {op.value!r}")
    return pack(a + b)


def _longer(op: Op, old: Value) -> Value:
    if not isinstance(old, list):
        raise JournalCorrupt(f"the state key {op.key!r} appends to what is no list: {old!r}")
    return [*old, op.value]
