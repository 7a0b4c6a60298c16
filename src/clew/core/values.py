"""What may stand in a journal as a value: JSON, with one stated form for each thing JSON cannot say.

`{"$number": "NaN"}` for floats that are no number and integers beyond 2^53, `{"$bytes": "…"}` for bytes,
`{"$blob": "sha256:…", "size": n, "type": "…"}` for what is stored aside, and `{"$literal": {…}}` around a
mapping of the user's that would otherwise be taken for one of these.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias, cast

import msgspec

from clew.errors import JournalCorrupt, UsageError

Value: TypeAlias = Any  # JSON after `pack`; what the user gave before it
Digest: TypeAlias = str
Money: TypeAlias = Decimal

MAX_DEPTH = 64
MAX_SAFE_INTEGER = 2**53
MAX_INTEGER_BITS = 10_000
INLINE_LIMIT = 64 * 1024
VALUE_LIMIT = 16 * 1024 * 1024
SHORT = 3000  # characters, which cannot spell an integer of too many bits

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="sorted").encode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def pack(value: object) -> Value:
    """A copy of a JSON-like value in journal form. Raises UsageError for what no journal could hold."""
    return _pack(value, 0)


def _pack(value: object, depth: int) -> Value:
    match value:
        case str():
            return _plain_text(value)
        case None | bool():
            return value
        case int():
            return int(value) if abs(value) <= MAX_SAFE_INTEGER else {"$number": _digits(value)}
        case float():
            return float(value) if math.isfinite(value) else {"$number": _float_name(value)}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        case Mapping() | list() | tuple() if depth >= MAX_DEPTH:
            raise UsageError(f"a value nests deeper than {MAX_DEPTH} levels: flatten it before it is returned or sent")
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            packed = {_key(key): _pack(item, depth + 1) for key, item in items}
            return {"$literal": packed} if any(key.startswith("$") for key in packed) else packed
        case list() | tuple():
            return [_pack(item, depth + 1) for item in cast("Sequence[object]", value)]
        case _:
            raise UsageError(
                f"a {type(value).__name__} cannot be stored as JSON: return text, numbers, lists, mappings"
            )


def unpack(value: Value, blob: Callable[[Digest], bytes] | None = None) -> Any:
    """The user's value back from its journal form; `blob` fetches what is stored aside."""
    if isinstance(value, list):
        return [unpack(item, blob) for item in cast("Sequence[Value]", value)]
    return _unpack_object(cast("dict[str, Value]", value), blob) if isinstance(value, dict) else value


def _unpack_object(value: dict[str, Value], blob: Callable[[Digest], bytes] | None) -> Any:
    match value:
        case {"$literal": dict()}:
            return {key: unpack(item, blob) for key, item in value["$literal"].items()}
        case {"$number": str(name)}:
            return _number(name)
        case {"$bytes": str(text)}:
            return _bytes(text)
        case {"$blob": str(digest)} if blob is not None:
            return unpack(msgspec.json.decode(blob(digest)), blob)
        case _:
            return {key: unpack(item, blob) for key, item in value.items()}


def check_text(text: str) -> str:
    """The text itself. Raises UsageError for a lone surrogate, which no UTF-8 can carry."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"text holds a lone surrogate at position {error.start}: it is not valid Unicode"
            ) from error
    return text


def clean_text(text: str) -> str:
    """The text with lone surrogates replaced: for what came from outside and may not be refused."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def parse_arguments(text: str) -> dict[str, Any]:
    """Arguments as the model wrote them. Raises ValueError that says what is wrong, for the model to read."""
    if len(text) > SHORT or text.count("{") + text.count("[") > MAX_DEPTH:
        return _examined(text)
    try:
        return _object(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return _examined(text)


def _examined(text: str) -> dict[str, Any]:
    """The same for what is long, deep, wrong, or JSON to Python alone."""
    parsed: Any = json.loads(text) if text.strip() else {}
    try:
        pack(parsed)
    except UsageError as error:
        raise ValueError(str(error)) from error
    if isinstance(parsed, dict):
        return cast("dict[str, Any]", parsed)
    raise ValueError(f"arguments must be a JSON object, not {type(parsed).__name__}")


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]')
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}  # any other token is text


def nesting(text: str) -> int:
    """How many levels a JSON text nests, without walking down them."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    deepest = depth = 0
    for token in _TOKENS.finditer(text):
        depth += _STEPS.get(token[0], 0)
        deepest = max(deepest, depth)
    return deepest


def canonical(value: Value) -> bytes:
    """One spelling of a packed value: sorted keys, no white space."""
    return _canonical(value)


def digest(value: Value) -> Digest:
    """`sha256:` of the canonical JSON of a packed value or of a struct of the core."""
    return digest_bytes(_canonical(value))


def digest_bytes(data: bytes) -> Digest:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def blob_form(data: bytes, media_type: str) -> tuple[Value, Digest]:
    """The reference that stands for stored bytes, and their digest."""
    name = digest_bytes(data)
    return {"$blob": name, "size": len(data), "type": media_type}, name


def encoded(value: Value) -> bytes:
    return _encode(value)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise UsageError(f"a mapping has the key {key!r}: JSON keys are text, so say str(key)")
    return _plain_text(key)


def _plain_text(text: str) -> str:
    """Checked, and without what a subclass adds to text: an encoder takes only text itself."""
    return check_text(text if type(text) is str else str.__str__(text))


_FLOATS = frozenset({"NaN", "Infinity", "-Infinity"})


def _float_name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _digits(value: int) -> str:
    if value.bit_length() > MAX_INTEGER_BITS:
        raise UsageError(
            f"an integer of more than {MAX_INTEGER_BITS} bits cannot be stored: send it as text or as a file"
        )
    return str(value)


def _number(name: str) -> float | int:
    try:
        return float(name) if name in _FLOATS else int(name)
    except ValueError as error:
        raise JournalCorrupt(f"a stored value holds the number {name[:40]!r}, which is none") from error


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise JournalCorrupt(f"a stored value holds bytes that are not base64: {error}") from error
