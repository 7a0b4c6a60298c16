"""Entries and letters as bytes: what is read back, what is kept, what is refused."""

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import codec
from clew.core import entries as e
from clew.core.letters import (
    AnyLetter,
    CancelLetter,
    ChildEndLetter,
    DecisionLetter,
    LateResultLetter,
    MessageLetter,
    PauseLetter,
    UnpauseLetter,
)
from clew.core.messages import Message, RawReply, Usage
from clew.core.outcomes import Completed
from clew.core.tickets import Approve
from clew.errors import JournalCorrupt, Unsupported

NOTED = e.Noted(seq=3, at=7, epoch=1, batch=2, note_kind="n", value={"a": 1})
WIRE = b'{"kind":"noted","note_kind":"n","value":{"a":1},"seq":3,"at":7,"epoch":1,"batch":2}'


@pytest.mark.proves("J5")
def test_an_entry_there_and_back() -> None:
    assert codec.encode(NOTED) == WIRE
    assert codec.decode(WIRE) == NOTED
    assert (
        codec.decode(b'{ "batch":2, "v":1, "epoch":1,"at":7,"seq":3,"value":{"a":1},"note_kind":"n","kind":"noted"}')
        == NOTED
    )
    assert max(kind.VERSION for kind in codec._types.values()) == e.FORMAT == codec.written_version(NOTED)


@pytest.mark.proves("J5")
def test_fields_that_are_not_known_are_kept_and_passed_on_byte_for_byte() -> None:
    newer = b'{"kind":"noted", "mood":[1.50,"\\u0142"],"note_kind":"n","seq":3,"value":{"deep":{"x":1}}}'
    kept = codec.decode_kept(newer)
    assert kept.entry == codec.decode(newer) == e.Noted(seq=3, note_kind="n", value={"deep": {"x": 1}})
    assert kept.data == newer
    printed = codec.jsonable(kept)
    assert printed == json.loads(newer)
    assert next(iter(printed)) == "kind"
    assert "mood" not in codec.jsonable(kept.entry)


@pytest.mark.parametrize("place", ["owner", "outcome"])
def test_so_are_those_of_the_groups_inside(place: str) -> None:
    line = {
        "owner": b'{"kind":"driver_attached","worker":"w","owner":{"host":"h","boot":"b","pid":1,"start":2,"os":"x"}}',
        "outcome": b'{"kind":"run_finished","outcome":{"kind":"completed","mood":"fine"}}',
    }[place]
    assert codec.decode_kept(line).data == line
    assert codec.jsonable(codec.decode_kept(line)) == json.loads(line)


def test_an_entry_is_printed_kind_first_wherever_it_was_written() -> None:
    assert list(codec.jsonable(codec.decode_kept(b'{"seq":3,"note_kind":"n","kind":"noted"}'))) == [
        "kind",
        "seq",
        "note_kind",
    ]


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def third_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes had `topic` once, then `subject`, and then it was `note_kind`."""

    def renamed(old: str, new: str) -> codec.Upcaster:
        return lambda fields: {new if name == old else name: value for name, value in fields.items()}

    monkeypatch.setattr(e.Noted, "VERSION", 3)
    monkeypatch.setitem(codec.UPCASTERS, ("noted", 1), renamed("topic", "subject"))
    monkeypatch.setitem(codec.UPCASTERS, ("noted", 2), renamed("subject", "note_kind"))


@pytest.mark.proves("J5")
@pytest.mark.usefixtures("third_version")
def test_an_older_version_is_read_as_the_current_one() -> None:
    for line in (
        b'{"kind":"noted","topic":"n","seq":3,"value":{"a":1.50},"mood":"\\u0142"}',
        b'{"kind":"noted","subject":"n","v":2,"seq":3,"value":{"a":1.50},"mood":"\\u0142"}',
        b'{"kind":"noted","note_kind":"n","v":3,"seq":3,"value":{"a":1.50},"mood":"\\u0142"}',
    ):
        entry = codec.decode(line)
        assert entry == e.Noted(v=3, seq=3, note_kind="n", value={"a": 1.5})
        kept = codec.decode_kept(line)
        assert kept.entry == entry
        assert b'"value":{"a":1.50},"mood":"\\u0142"' in kept.data
        assert codec.jsonable(kept)["note_kind"] == "n"
        assert codec.decode_kept(kept.data) == kept


@pytest.mark.proves("J5")
@pytest.mark.usefixtures("third_version")
def test_an_older_version_that_reads_well_is_upcast_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has the shape of the current version may yet mean something else."""

    def doubled(fields: codec.Fields) -> codec.Fields:
        return {**fields, "value": 2 * msgspec.json.decode(fields["value"])}

    monkeypatch.setitem(codec.UPCASTERS, ("noted", 2), doubled)
    assert codec.decode(b'{"kind":"noted","note_kind":"n","value":4,"v":2}') == e.Noted(v=3, note_kind="n", value=8)


@pytest.mark.proves("J5")
@pytest.mark.usefixtures("third_version")
def test_what_is_written_says_its_version() -> None:
    assert b'"v":3' in codec.encode(NOTED)
    assert codec.written_version(NOTED) == 3
    assert codec.decode(codec.encode(NOTED)) == msgspec.structs.replace(NOTED, v=3)


@pytest.mark.proves("J5")
def test_upcasting_leaves_raw_items_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e.ModelReplied, "VERSION", 2)
    monkeypatch.setitem(codec.UPCASTERS, ("model_replied", 1), lambda fields: fields)
    items = b'[{"a" : 1.0e0},"\\u0142"]'
    entry = codec.decode(b'{"kind":"model_replied","raw":{"provider":"p","items":' + items + b"}}")
    assert isinstance(entry, e.ModelReplied)
    assert entry.raw == RawReply("p", items=(msgspec.Raw(b'{"a" : 1.0e0}'), msgspec.Raw(b'"\\u0142"')))


@pytest.mark.proves("J5")
@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"tool_teleported","seq":3}',
        b'{"kind":"noted","note_kind":"n","v":2}',
        b'{"kind":"noted","something":"else","v":9}',
    ],
)
def test_what_a_newer_clew_wrote_is_never_skipped(line: bytes) -> None:
    for read in (codec.decode, codec.decode_kept):
        with pytest.raises(Unsupported, match="upgrade Clew"):
            read(line)


CORRUPT = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'{"kind":7}',
    b'{"kind":"noted"',
    b'{"kind":"noted"}',
    b'{"kind":"noted","note_kind":"n","v":0}',
    b'{"kind":"noted","note_kind":"n","v":"1"}',
    b'{"kind":"noted","note_kind":"n","seq":1.5}',
    b'{"kind":"noted","note_kind":"\xff"}',
    b'{"kind":"noted","note_kind":"n","value":"\\ud800"}',
    b'{"kind":"noted","note_kind":"n","value":' + b"[" * 900_000 + b"]" * 900_000 + b"}",
    b'{"kind":"limits_changed","limits":{"turns":-1}}',
    b'{"kind":"run_finished","outcome":{"kind":"vanished"}}',
    b"\x00" * 40,
]


@pytest.mark.proves("J7")
@pytest.mark.parametrize("line", CORRUPT, ids=lambda line: repr(line[:48]))
def test_garbage_is_corruption(line: bytes) -> None:
    for read in (codec.decode, codec.decode_kept):
        with pytest.raises(JournalCorrupt):
            read(line)


lines = st.binary() | st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from([*sorted(codec.KINDS), "v", "kind"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["kind", "v", "seq", "call"]), inner),
).map(lambda value: json.dumps(value).encode())


@given(lines)
def test_whatever_is_stored_raises_nothing_else(line: bytes) -> None:
    for read in (codec.decode, codec.decode_kept, codec.decode_letter, codec.decode_spec):
        with suppress(JournalCorrupt, Unsupported):
            read(line)


# --- letters and declarations -----------------------------------------------------------------------------------------

LETTERS: list[AnyLetter] = [
    CancelLetter(inbox=1, by="ada", reason="enough"),
    PauseLetter(reason="lunch"),
    UnpauseLetter(),
    MessageLetter(messages=(Message.user("hi"),), when="idle", message_id="m"),
    DecisionLetter(ticket="t", decision_id="d", decision=Approve(), decided_at=3),
    LateResultLetter(call="1.tool.1", from_epoch=2, value={"a": 1}),
    ChildEndLetter(run="r", outcome=Completed(), output="x", usage=Usage(1)),
]


def test_every_letter_there_and_back() -> None:
    assert {letter.kind for letter in LETTERS} == codec.LETTERS
    for letter in LETTERS:
        assert codec.decode_letter(codec.encode_letter(letter)) == letter


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"kind":"postcard"}', Unsupported),
        (b'{"kind":"message"}', JournalCorrupt),
        (b"{}", JournalCorrupt),
        (b"?", JournalCorrupt),
    ],
)
def test_letters_that_cannot_be_read(line: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        codec.decode_letter(line)


def test_a_declaration_that_cannot_be_read() -> None:
    for line in (b"?", b"{}", b'{"name":"a","limits":{"turns":-1}}'):
        with pytest.raises(JournalCorrupt):
            codec.decode_spec(line)


def test_fields_that_other_structs_do_not_know_are_ignored() -> None:
    found: Any = codec.decode_letter(b'{"kind":"cancel","reason":"x","mood":1}')
    assert found == CancelLetter(reason="x")
