"""Entry and letter <-> bytes: JSON that another language could read, whole and byte-stable."""

from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from clew.core.entries import FORMAT, Entry
from clew.core.letters import AnyLetter
from clew.core.spec import AgentSpec
from clew.core.values import canonical
from clew.errors import JournalCorrupt, Unsupported, UsageError

Fields: TypeAlias = dict[str, Any]
Upcaster: TypeAlias = Callable[[Fields], Fields]

# (kind, version) -> how an entry of that version is said in the next. A field's value is a `msgspec.Raw` until the
# upcaster decodes it, so that what it does not touch stays as it was written, byte for byte.
UPCASTERS: dict[tuple[str, int], Upcaster] = {}

_encode = msgspec.json.Encoder().encode
_entry = msgspec.json.Decoder(Entry)
_letter = msgspec.json.Decoder(AnyLetter)
_spec = msgspec.json.Decoder(AgentSpec)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])

# A bad default of ours is a UsageError where a user made it, and corruption where it was stored.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UsageError)


class Kept(msgspec.Struct, frozen=True):
    """An entry beside its JSON, which may say more than this version knows: what is passed on is the JSON."""

    entry: Entry
    data: bytes


class _Head(msgspec.Struct):
    kind: str = ""
    v: int = 1


_head = msgspec.json.Decoder(_Head)
_types: dict[str, type[Entry]] = {member.kind: member for member in get_args(Entry)}
KINDS = frozenset(_types)
LETTERS: frozenset[str] = frozenset(member.kind for member in get_args(AnyLetter))


def encode(entry: Entry) -> bytes:
    """The bytes of an entry. Its version is written where it is not 1, whether or not its maker thought of it."""
    version = written_version(entry)
    return _encode(entry if entry.v == version else replace(entry, v=version))


def written_version(entry: Entry) -> int:
    """What `v` says in the bytes of an entry; a run's format is the highest of its journal."""
    return max(entry.v, entry.VERSION)


def decode(data: bytes) -> Entry:
    """An entry from its bytes. An unknown kind or a newer version is never skipped: it raises Unsupported.

    Fields that this version does not know are ignored here and kept by `decode_kept`.
    """
    try:
        entry = _entry.decode(data)
    except _UNREADABLE as error:
        return _decode_older(data, error).entry
    return entry if entry.v == entry.VERSION else _decode_older(data, None).entry


def decode_kept(data: bytes) -> Kept:
    """An entry for whoever passes it on, into a file or onto a page: in the current version, nothing left out."""
    try:
        entry = _entry.decode(data)
    except _UNREADABLE as error:
        return _decode_older(data, error)
    return Kept(entry, data) if entry.v == entry.VERSION else _decode_older(data, None)


def jsonable(entry: Entry | Kept) -> Fields:
    """The fields of an entry for printing, the kind first, those that this version does not know included."""
    found = msgspec.json.decode(entry.data if isinstance(entry, Kept) else _encode(entry), type=dict[str, Any])
    return {"kind": found.pop("kind"), **found}


def _decode_older(data: bytes, error: Exception | None) -> Kept:
    """An entry of an older version, step by step to the current one. Raises for everything else."""
    head = _head_of(data)
    current = _types[head.kind].VERSION if head.kind in _types else 0
    if head.v > current:
        raise Unsupported(
            f"an entry of kind {head.kind!r}, version {head.v}, was written by a newer Clew (this one reads up to "
            f"format {FORMAT}): upgrade Clew to read the run"
        ) from error
    try:
        upcast = _encode(_upcast(head, dict(_fields.decode(data)), current))
        return Kept(_entry.decode(upcast), upcast)
    except _UNREADABLE as wrong:
        raise JournalCorrupt(f"an entry of kind {head.kind!r} does not decode: {wrong}") from wrong


def _upcast(head: _Head, fields: Fields, current: int) -> Fields:
    for version in range(head.v, current):
        upcaster = UPCASTERS.get((head.kind, version))
        if upcaster is None:
            raise JournalCorrupt(f"an entry of kind {head.kind!r} says it has version {version}, which never was")
        fields = {**upcaster(fields), "v": version + 1}
    return fields


def _head_of(data: bytes) -> _Head:
    try:
        head = _head.decode(data)
    except _UNREADABLE as error:
        raise JournalCorrupt(f"what is stored is no JSON object: {error}") from error
    if not head.kind:
        raise JournalCorrupt("what is stored is a JSON object without a kind")
    return head


def encode_letter(letter: AnyLetter) -> bytes:
    return _encode(letter)


def decode_letter(data: bytes) -> AnyLetter:
    """A letter from its bytes. One of an unknown kind was left by a newer Clew: it raises Unsupported."""
    try:
        letter: AnyLetter = _letter.decode(data)
    except _UNREADABLE as error:
        kind = _head_of(data).kind
        if kind not in LETTERS:
            raise Unsupported(f"a letter of kind {kind!r} was left by a newer Clew: upgrade to read it") from error
        raise JournalCorrupt(f"a letter of kind {kind!r} does not decode: {error}") from error
    return letter


def encode_spec(spec: AgentSpec) -> bytes:
    """Canonical, so that its digest is the fingerprint."""
    return canonical(spec)


def decode_spec(data: bytes) -> AgentSpec:
    try:
        return _spec.decode(data)
    except _UNREADABLE as error:
        raise JournalCorrupt(f"a stored agent does not decode: {error}") from error
