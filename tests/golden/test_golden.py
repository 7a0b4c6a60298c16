"""Journals written by hand for each release: every later version reads them to the same states."""

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from clew import codec
from clew.core import entries as e
from clew.core.messages import Message, Usage
from clew.core.snapshots import Snapshot, restored, snapshot
from clew.core.state import Known, State, fold, rebase

V1 = Path(__file__).parent / "v1"
FILES = sorted(path.stem for path in V1.glob("*.jsonl"))
RUNS = {
    "base": "run_base",
    "every_kind": "run_every",
    "fork": "run_fork",
    "blocked": "run_blocked",
    "later_fields": "run_later",
}

pytestmark = pytest.mark.proves("J5")


def lines(name: str) -> list[bytes]:
    return (V1 / f"{name}.jsonl").read_bytes().splitlines()


def read(name: str) -> list[e.Entry]:
    return [codec.decode(line) for line in lines(name)]


@cache
def state(name: str) -> State:
    return fold(RUNS[name], read(name), Known(bases=bases(name)))


def bases(name: str) -> dict[tuple[str, int], State]:
    match name:
        case "every_kind":
            return {("run_base", 4): state("base")}
        case "fork":
            return {("run_every", 22): fold("run_every", read("every_kind")[:22], Known(bases=bases("every_kind")))}
        case "blocked":
            return {("sha256:54a9", 0): restored(snapshot(state("every_kind")))}
        case _:
            return {}


def test_there_is_an_entry_of_every_kind() -> None:
    assert {json.loads(line)["kind"] for name in FILES for line in lines(name)} == codec.KINDS


@pytest.mark.parametrize("name", FILES)
def test_each_entry_comes_back_byte_for_byte(name: str) -> None:
    for line in lines(name):
        assert codec.encode(codec.decode(line)) == line
        assert codec.decode_kept(line).data == line


@pytest.mark.parametrize("name", FILES)
def test_each_entry_is_printed_kind_first(name: str) -> None:
    for line in lines(name):
        printed = codec.jsonable(codec.decode(line))
        assert next(iter(printed)) == "kind"
        assert printed == codec.jsonable(codec.decode_kept(line)) == json.loads(line)


def said(value: Any, written: Any) -> Iterator[tuple[type, str]]:
    """Each field of each struct in a value that its JSON says."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(type(value)):
            if field.encode_name in written:
                yield type(value), field.name
                yield from said(getattr(value, field.name), written[field.encode_name])
    elif isinstance(value, tuple):
        for item, one in zip(value, written, strict=True):
            yield from said(item, one)


def structs(kind: Any, seen: set[type]) -> None:
    """Every struct that can stand in an entry."""
    match kind:
        case msgspec.inspect.StructType(cls=cls):
            if cls not in seen:
                seen.add(cls)
                for field in kind.fields:
                    structs(field.type, seen)
        case msgspec.inspect.UnionType(types=types):
            for one in types:
                structs(one, seen)
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item):
            structs(item, seen)
        case _:
            pass


def test_every_field_of_every_struct_is_said_once() -> None:
    found: dict[type, set[str]] = defaultdict(set)
    for name in FILES:
        for line in lines(name):
            for cls, field in said(codec.decode(line), json.loads(line)):
                found[cls].add(field)
    of_all = set().union(*(fields for cls, fields in found.items() if issubclass(cls, e.Envelope)))
    envelope = set(e.Envelope.__struct_fields__)
    seen: set[type] = set()
    structs(msgspec.inspect.type_info(e.Entry), seen)
    for cls in seen:
        is_entry = issubclass(cls, e.Envelope)
        missing = set(cls.__struct_fields__) - found[cls] - (envelope if is_entry else set())
        assert not missing, f"{cls.__name__}: {missing}"
    assert envelope - of_all == {"v"}, "version 1 is what an entry has that does not say"


@pytest.mark.proves("J8")
def test_every_outcome_and_every_decision_is_there() -> None:
    text = b"".join(line for name in FILES for line in lines(name)).decode()
    for kind in ("completed", "requested", "stopped", "blocked", "cancelled", "failed"):
        assert f'"outcome":{{"kind":"{kind}"' in text
    for kind in ("approve", "edit", "reject", "respond"):
        assert f'"decision":{{"kind":"{kind}"' in text
    for kind in ("at", "thread", "snapshot"):
        assert f'"base":{{"kind":"{kind}"' in text


# --- what they add up to ----------------------------------------------------------------------------------------------


def test_the_base() -> None:
    done = state("base")
    assert str(done.outcome) == "natural"
    assert [(m.id, m.text) for m in done.transcript] == [
        ("run_base:1", "Good morning"),
        ("run_base:3", "Good morning to you"),
    ]


@pytest.mark.proves("J9", "B1")
def test_the_run_that_has_everything() -> None:
    done = state("every_kind")
    assert done.finished is not None
    assert (done.usage, done.cost) == (done.finished.usage, done.finished.cost)
    assert (done.turn, done.call_count, done.attempts) == (done.finished.turns, done.finished.calls, 5)
    assert done.inherited_usage == Usage(11, 5, requests=1)
    assert [(m.id, m.role) for m in done.transcript] == [
        ("run_base:1", "user"),
        ("run_base:3", "assistant"),
        ("run_every:4", "user"),
        ("run_every:5.1", "user"),
        ("run_every:5.2", "system"),
        ("run_every:13", "assistant"),
        ("run_every:37", "tool"),
        ("run_every:39", "tool"),
        ("run_every:40", "tool"),
        ("run_every:52", "assistant"),
        ("run_every:54", "user"),
    ]
    assert done.transcript[-2].text == "All is paid", "what was cut off and what it went on with are one message"
    assert (done.run_state, done.thread_state) == ({}, {"tries": 1})
    assert (done.agent, done.limits.turns, done.fingerprint) == ("cashier", 40, "sha256:bbbb")
    assert (done.tickets, done.timers, done.calls, done.children) == ({}, {}, (), {})
    assert done.driven == 9_300_000 + 9_000_000


@pytest.mark.proves("B2")
def test_the_fork_and_the_import() -> None:
    fork = state("fork")
    assert str(fork.outcome) == "error"
    assert [m.id for m in fork.transcript][-4:] == ["run_every:13", "run_fork:4", "run_fork:5", "run_fork:6"]
    imported = state("blocked")
    assert str(imported.outcome) == "blocked:handoff to nobody"
    assert list(imported.transcript)[:-1] == list(state("every_kind").transcript)
    assert imported.thread_state == {"tries": 1}


@pytest.mark.proves("B4")
def test_a_snapshot_of_the_first_release() -> None:
    taken = msgspec.json.decode((V1 / "snapshot.json").read_bytes(), type=Snapshot)
    (base,) = bases("fork").values()
    assert replace(taken, calls=()) == replace(snapshot(base), calls=())
    # Of a call it says more and other things than today, but nothing that would make another run of it.
    for mail in ((), (Message.user("on"),)):
        fresh = State(run="run_next", mail=mail)
        assert rebase(restored(taken), fresh) == rebase(base, fresh)


def test_fields_that_came_later() -> None:
    done = state("later_fields")
    assert (done.end_requested, done.run_state, done.course.hooked) == (True, {"seen": ["a", "b"]}, "1.end")
    assert done.course.writes["run", "seen"].given == {"1.tool.1": ["b"]}
    assert done.course.failed is not None
    assert (done.course.failed.stop, done.course.failing) == (True, {"pay": 1})


@pytest.mark.proves("L3")
def test_what_a_provider_sent_is_kept_byte_for_byte() -> None:
    (reply,) = [x for x in read("every_kind") if isinstance(x, e.ModelReplied) and x.raw is not None]
    assert reply.raw is not None
    assert [bytes(item) for item in reply.raw.items] == [
        rb'{"type":"text", "text":"I pay them", "score": 1.50e1}',
        rb'"\u0142"',
    ]
