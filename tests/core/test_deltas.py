"""Fragments say where they belong."""

import json

import msgspec
import pytest

from clew.core.deltas import Delta, ProgressDelta, ResetDelta, TextDelta, ThinkingDelta, ToolArgsDelta

DELTAS: list[tuple[Delta, bytes]] = [
    (
        TextDelta(step="1.model", epoch=2, attempt=3, part=1, offset=4, text="hi"),
        b'{"kind":"text","step":"1.model","epoch":2,"attempt":3,"part":1,"offset":4,"text":"hi"}',
    ),
    (ThinkingDelta(step="1.model", text="hm"), b'{"kind":"thinking","step":"1.model","text":"hm"}'),
    (ToolArgsDelta(step="1.model", text="{"), b'{"kind":"tool_args","step":"1.model","text":"{"}'),
    (ProgressDelta(step="1.tool.1", value=0.5), b'{"kind":"progress","step":"1.tool.1","value":0.5}'),
    (ResetDelta(step="1.model"), b'{"kind":"reset","step":"1.model"}'),
]


@pytest.mark.proves("E1")
@pytest.mark.parametrize(("delta", "wire"), DELTAS, ids=lambda value: getattr(value, "kind", ""))
def test_a_delta_on_the_wire(delta: Delta, wire: bytes) -> None:
    assert json.loads(msgspec.json.encode(delta)) == json.loads(wire)
    assert msgspec.json.decode(wire, type=Delta) == delta
