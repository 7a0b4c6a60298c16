"""Values on their way into a journal: packed, weighed, and stored aside when they are large."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import cast, overload

import msgspec

from clew.core.messages import Data, Media, Message, Part, ToolResult, Transcript
from clew.core.values import INLINE_LIMIT, VALUE_LIMIT, Digest, Value, blob_form, clean_text, encoded, pack, unpack
from clew.ports import Store

# Parts that hold a value of any shape, and in which field.
VALUED: Mapping[type[Part], str] = {ToolResult: "content", Data: "value", Media: "blob"}


SHOWN_EACH = 8_000  # characters of a large result's beginning, and as many of its end, that a model is shown


class TooLarge(ValueError):
    """A value above what a journal may refer to; says how large it was."""


def stored(value: object, blobs: dict[Digest, bytes]) -> Value:
    """The journal form of a value; a large one goes into `blobs` and a reference takes its place."""
    if isinstance(value, str | bytes) and len(value) > VALUE_LIMIT:
        raise TooLarge(f"{len(value)} characters or bytes, and {VALUE_LIMIT} is the most that is kept")
    if isinstance(value, str) and len(value) < INLINE_LIMIT // 4:
        return pack(value)
    packed = pack(value)
    if (least := _least(packed, VALUE_LIMIT)) > VALUE_LIMIT:
        # Told before it is spelled out: what is far too large must not take the process down.
        raise TooLarge(f"{least} characters or more, and {VALUE_LIMIT} is the most that is kept")
    data = encoded(packed)
    if len(data) <= INLINE_LIMIT:
        return packed
    if len(data) > VALUE_LIMIT:
        raise TooLarge(f"{len(data)} bytes, and {VALUE_LIMIT} is the most that is kept")
    reference, digest = blob_form(data, "application/json")
    blobs[digest] = data
    return reference


def _least(packed: Value, enough: int) -> int:
    """The characters that a value has as JSON, or a few less; counted until there are enough of them."""
    match packed:
        case str():
            return len(packed)
        case dict():
            values = cast("dict[str, Value]", packed)
            items: Iterable[Value] = chain(values, values.values())
        case list():
            items = [*packed]
        case _:
            return 1
    found = 0
    for item in items:
        found += 1 + _least(item, enough - found)
        if found > enough:
            break
    return found


def excerpt(data: bytes, digest: Digest) -> str:
    """A large result as a model is shown it: its beginning, its end, and where the whole is. The same each time."""
    value = msgspec.json.decode(data)
    text = value if isinstance(value, str) else data.decode()
    left = len(text) - 2 * SHOWN_EACH
    if left <= 0:
        return text
    note = f"[… {left} of {len(text)} characters are left out here; the whole result is stored as {digest} …]"
    return f"{text[:SHOWN_EACH]}\n{note}\n{text[-SHOWN_EACH:]}"


def cleaned(value: object) -> Value:
    """A value from outside with its lone surrogates replaced: it may not be refused for them."""
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(key)): cleaned(item) for key, item in cast("dict[object, object]", value).items()}
        case list() | tuple():
            return [cleaned(item) for item in cast("Sequence[object]", value)]
        case _:
            return value


def referred(value: Value) -> Digest | None:
    """The digest of a value that is stored aside."""
    if type(value) is dict and "$blob" in value:
        return str(cast("dict[str, object]", value)["$blob"])
    return None


async def loaded(value: Value, store: Store) -> object:
    """The user's value, fetched if it is stored aside."""
    digest = referred(value)
    found = {} if digest is None else await store.blobs([digest])
    return unpack(value, found.__getitem__)


class Shown(Sequence[Message]):
    """A transcript with values as they were given: what is stored aside back in place, our forms unpacked.

    Of a result that is stored aside there is an excerpt.
    """

    def __init__(self, transcript: Transcript, blobs: Mapping[Digest, bytes], excerpts: Mapping[Digest, str]) -> None:
        self._transcript = transcript
        self._blobs = blobs
        self._excerpts = excerpts

    def __len__(self) -> int:
        return len(self._transcript)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self._whole(message) for message in self._transcript[index]]
        return self._whole(self._transcript[index])

    def __iter__(self) -> Iterator[Message]:
        return map(self._whole, self._transcript)

    def _whole(self, message: Message) -> Message:
        if message.role == "assistant":
            return message
        return msgspec.structs.replace(message, parts=tuple([self._as_given(part) for part in message.parts]))

    def _as_given(self, part: Part) -> Part:
        field = VALUED.get(type(part))
        value = None if field is None else getattr(part, field)
        if field is None or type(value) not in (dict, list):
            return part
        digest = referred(value)
        if isinstance(part, ToolResult) and digest is not None and digest in self._excerpts:
            return msgspec.structs.replace(part, content=self._excerpts[digest])
        if digest is not None and digest not in self._blobs:
            return part
        return msgspec.structs.replace(part, **{field: unpack(value, self._blobs.__getitem__)})


class Aside:
    """What a run's transcript says in a form of ours: each message is looked at once, however long the run."""

    def __init__(self) -> None:
        self._seen = 0
        self._formed = False
        self._blobs: dict[Digest, bytes] = {}
        self._excerpts: dict[Digest, str] = {}

    async def shown(self, transcript: Transcript, store: Store) -> Sequence[Message]:
        fresh = transcript[self._seen :] if len(transcript) > self._seen else []
        formed = [part for part in _valued(fresh) if has_form(_value(part))]
        for part in formed:
            await self._fetch(part, store)
        self._seen = len(transcript)
        self._formed = self._formed or bool(formed)
        return Shown(transcript, self._blobs, self._excerpts) if self._formed else transcript

    async def _fetch(self, part: Part, store: Store) -> None:
        """One at a time: of results only the excerpts are kept at hand."""
        digest = referred(_value(part))
        kept = self._excerpts if isinstance(part, ToolResult) else self._blobs
        if digest is None or digest in kept:
            return
        data = (await store.blobs([digest]))[digest]
        if isinstance(part, ToolResult):
            self._excerpts[digest] = excerpt(data, digest)
        else:
            self._blobs[digest] = data


def has_form(value: Value) -> bool:
    """Whether something in it is said in a form of ours."""
    match value:
        case dict():
            items = cast("dict[str, Value]", value).items()
            return any(key.startswith("$") or has_form(item) for key, item in items)
        case list():
            return any(has_form(item) for item in cast("Sequence[Value]", value))
        case _:
            return False


def _valued(messages: Collection[Message]) -> Iterator[Part]:
    for message in messages:
        if message.role != "assistant":
            yield from [part for part in message.parts if type(part) in VALUED]


def _value(part: Part) -> Value:
    return getattr(part, VALUED[type(part)])


def aside(messages: Sequence[Message], blobs: dict[Digest, bytes]) -> tuple[Message, ...]:
    """Messages whose large values stand in `blobs`, with references in their place."""
    return tuple([_aside(message, blobs) for message in messages])


def _aside(message: Message, blobs: dict[Digest, bytes]) -> Message:
    if not any(type(part) in VALUED for part in message.parts):
        return message
    return msgspec.structs.replace(message, parts=tuple([_part_aside(part, blobs) for part in message.parts]))


def _part_aside(part: Part, blobs: dict[Digest, bytes]) -> Part:
    field = VALUED.get(type(part))
    data = b"" if field is None else encoded(getattr(part, field))
    if field is None or len(data) <= INLINE_LIMIT:
        return part
    reference, digest = blob_form(data, "application/json")
    blobs[digest] = data
    return msgspec.structs.replace(part, **{field: reference})
