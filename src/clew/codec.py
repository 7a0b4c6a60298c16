"""Entry and letter <-> bytes: JSON that another language could read, whole and byte-stable."""

import msgspec

from clew.core.entries import FORMAT, Entry
from clew.core.letters import AnyLetter
from clew.core.messages import Message
from clew.core.spec import AgentSpec
from clew.errors import JournalCorrupt, Unsupported

_encode = msgspec.json.Encoder().encode
_entry = msgspec.json.Decoder(Entry)
_letter = msgspec.json.Decoder(AnyLetter)
_spec = msgspec.json.Decoder(AgentSpec)
_messages = msgspec.json.Decoder(tuple[Message, ...])


class _Head(msgspec.Struct):
    kind: str = ""
    v: int = 1


_head = msgspec.json.Decoder(_Head)
KINDS = frozenset(member.__struct_config__.tag for member in Entry.__args__)

# (kind, old version) -> a function from the old JSON object to the next version's. Empty until a kind changes.
UPCASTERS: dict[tuple[str, int], "Upcaster"] = {}


class Upcaster(msgspec.Struct, frozen=True):
    """How an entry of an older version is read today: fields moved by name, the rest kept."""

    renames: dict[str, str] = {}


def encode(entry: Entry) -> bytes:
    return _encode(entry)


def decode(data: bytes) -> Entry:
    """An entry from its bytes. An unknown kind or a newer version is never skipped: it raises Unsupported."""
    try:
        entry = _entry.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refusal(data, error) from error
    return entry if entry.v == FORMAT else _upcast(data, entry.v)


def _upcast(data: bytes, version: int) -> Entry:
    if version > FORMAT:
        raise Unsupported(f"an entry has version {version}, this Clew reads up to {FORMAT}: upgrade Clew to read the run")
    raise JournalCorrupt(f"an entry says it has version {version}, which never was")


def _refusal(data: bytes, error: Exception) -> Exception:
    try:
        head = _head.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return JournalCorrupt(f"an entry is not JSON: {error}")
    if head.v > FORMAT or (head.kind and head.kind not in KINDS):
        return Unsupported(
            f"an entry of kind {head.kind!r}, version {head.v}, was written by a newer Clew (this one reads up to "
            f"{FORMAT}): upgrade Clew to read the run"
        )
    return JournalCorrupt(f"an entry of kind {head.kind!r} does not decode: {error}")


def encode_letter(letter: AnyLetter) -> bytes:
    return _encode(letter)


def decode_letter(data: bytes) -> AnyLetter:
    try:
        return _letter.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalCorrupt(f"a letter does not decode: {error}") from error


def encode_spec(spec: AgentSpec) -> bytes:
    """Canonical, so that its digest is the fingerprint."""
    from clew.core.values import canonical

    return canonical(spec)


def decode_spec(data: bytes) -> AgentSpec:
    try:
        return _spec.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalCorrupt(f"a stored agent does not decode: {error}") from error
