"""Values on their way into a journal: packed, weighed, and stored aside when they are large."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast, overload

import msgspec

from clew.core.messages import Data, Media, Message, Part, ToolResult, Transcript
from clew.core.values import INLINE_LIMIT, VALUE_LIMIT, Digest, Value, blob_form, clean_text, encoded, pack, unpack
from clew.ports import Store

# Parts that hold a value of any shape, and in which field.
VALUED: Mapping[type[Part], str] = {ToolResult: "content", Data: "value", Media: "blob"}


class TooLarge(ValueError):
    """A value above what a journal may refer to; says how large it was."""


def stored(value: object, blobs: dict[Digest, bytes]) -> Value:
    """The journal form of a value; a large one goes into `blobs` and a reference takes its place."""
    if isinstance(value, str) and len(value) < INLINE_LIMIT // 4:
        return pack(value)
    packed = pack(value)
    data = encoded(packed)
    if len(data) <= INLINE_LIMIT:
        return packed
    if len(data) > VALUE_LIMIT:
        raise TooLarge(f"{len(data)} bytes, and {VALUE_LIMIT} is the most that is kept")
    reference, digest = blob_form(data, "application/json")
    blobs[digest] = data
    return reference


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
    """A transcript with results as the tools gave them: what is stored aside back in place, our forms unpacked."""

    def __init__(self, transcript: Transcript, blobs: Mapping[Digest, bytes]) -> None:
        self._transcript = transcript
        self._blobs = blobs

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
        if digest is not None and digest not in self._blobs:
            return part
        return msgspec.structs.replace(part, **{field: unpack(value, self._blobs.__getitem__)})


class Aside:
    """What a run's transcript says in a form of ours: each message is looked at once, however long the run."""

    def __init__(self) -> None:
        self._seen = 0
        self._formed = False
        self._blobs: dict[Digest, bytes] = {}

    async def shown(self, transcript: Transcript, store: Store) -> Sequence[Message]:
        fresh = transcript[self._seen :] if len(transcript) > self._seen else []
        formed = [content for content in _contents(fresh) if has_form(content)]
        missing = {digest for content in formed if (digest := referred(content)) is not None} - self._blobs.keys()
        if missing:
            self._blobs.update(await store.blobs(missing))
        self._seen = len(transcript)
        self._formed = self._formed or bool(formed)
        return Shown(transcript, self._blobs) if self._formed else transcript


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


def _contents(messages: Collection[Message]) -> Iterator[Value]:
    for message in messages:
        if message.role != "assistant":
            for part in message.parts:
                field = VALUED.get(type(part))
                if field is not None:
                    yield getattr(part, field)


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
