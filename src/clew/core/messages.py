"""The transcript: messages, their parts, and what a reply cost in tokens."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypeAlias, overload

import msgspec
from msgspec import Struct

from clew.core.values import Value, check_text, pack, parse_arguments, unpack
from clew.errors import UsageError

Role = Literal["system", "user", "assistant", "tool"]


class Text(Struct, frozen=True, gc=False, tag="text", tag_field="kind", omit_defaults=True):
    kind: ClassVar[Literal["text"]] = "text"
    text: str


class Thinking(Struct, frozen=True, gc=False, tag="thinking", tag_field="kind", omit_defaults=True):
    kind: ClassVar[Literal["thinking"]] = "thinking"
    text: str
    signature: str | None = None


class Media(Struct, frozen=True, gc=False, tag="media", tag_field="kind", omit_defaults=True):
    """An image or file: bytes stored aside (`blob`) or an address (`url`)."""

    kind: ClassVar[Literal["media"]] = "media"
    type: str
    blob: Value = None
    url: str | None = None
    name: str | None = None


class ToolCall(
    Struct, frozen=True, gc=False, tag="tool_call", tag_field="kind", omit_defaults=True, rename={"_args": "args"}
):
    """What the model asked for. `call` is our id (`3.tool.1`), `provider_id` the one that goes back to the provider."""

    kind: ClassVar[Literal["tool_call"]] = "tool_call"
    call: str
    provider_id: str = ""
    tool: str = ""
    args_text: str = ""
    _args: Value = None  # stored only where the text does not say it
    invalid: str | None = None

    @property
    def id(self) -> str:
        return self.call

    @property
    def args(self) -> dict[str, Any]:
        """The arguments as an object; empty if `invalid` says why there is none."""
        if self.invalid is not None:
            return {}
        return parse_arguments(self.args_text) if self._args is None else unpack(self._args)

    def with_args(self, args: Mapping[str, Any]) -> "ToolCall":
        """The same call with other arguments. Raises UsageError for what is no JSON."""
        pack(args)
        try:
            text = json.dumps(dict(args), ensure_ascii=False)
        except TypeError as error:
            raise UsageError(f"arguments of {self.tool!r}: {error}") from error
        return msgspec.structs.replace(self, args_text=text, _args=None, invalid=None)


class ToolResult(Struct, frozen=True, gc=False, tag="tool_result", tag_field="kind", omit_defaults=True):
    kind: ClassVar[Literal["tool_result"]] = "tool_result"
    call: str
    content: Value = None
    is_error: bool = False


class Refusal(Struct, frozen=True, gc=False, tag="refusal", tag_field="kind", omit_defaults=True):
    kind: ClassVar[Literal["refusal"]] = "refusal"
    text: str


class Data(Struct, frozen=True, gc=False, tag="data", tag_field="kind", omit_defaults=True):
    kind: ClassVar[Literal["data"]] = "data"
    type: str
    value: Value = None


Part: TypeAlias = Text | Thinking | Media | ToolCall | ToolResult | Refusal | Data


class Message(Struct, frozen=True, gc=False, omit_defaults=True):
    """One message of a conversation. `id` is `run:seq[.part]`; `produced_by` is (run, turn) of what a run made."""

    role: Role
    parts: tuple[Part, ...] = ()
    id: str = ""
    produced_by: tuple[str, int] | None = None

    @classmethod
    def user(cls, *parts: str | Part) -> Self:
        return cls("user", _parts(parts))

    @classmethod
    def assistant(cls, *parts: str | Part) -> Self:
        return cls("assistant", _parts(parts))

    @classmethod
    def system(cls, *parts: str | Part) -> Self:
        return cls("system", _parts(parts))

    @property
    def text(self) -> str:
        return text_of(self.parts)


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens. `input` includes what was read from or written to a cache, `output` includes reasoning."""

    input: int = 0
    output: int = 0
    cached_read: int = 0
    cached_write: int = 0
    reasoning: int = 0
    estimated: bool = False
    requests: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached_read + other.cached_read,
            self.cached_write + other.cached_write,
            self.reasoning + other.reasoning,
            self.estimated or other.estimated,
            self.requests + other.requests,
        )

    @property
    def total(self) -> int:
        return self.input + self.output

    @property
    def input_tokens(self) -> int:
        return self.input

    @property
    def output_tokens(self) -> int:
        return self.output

    @property
    def cached_tokens(self) -> int:
        return self.cached_read

    @property
    def reasoning_tokens(self) -> int:
        return self.reasoning


class RawReply(Struct, frozen=True, omit_defaults=True):
    """What the provider sent, byte for byte, to be sent back to it."""

    provider: str
    model: str = ""
    items: tuple[msgspec.Raw, ...] = ()


class Transcript(Sequence[Message]):
    """An append-only list shared by every state that holds a prefix of it.

    Appending to the longest holder costs what is new; appending to a shorter one (a fork, an end that was taken
    back) copies the prefix first, so no holder ever sees another's messages.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[Message] | None = None, length: int | None = None) -> None:
        self._items = [] if items is None else items
        self._length = len(self._items) if length is None else length

    def extended(self, *messages: Message) -> "Transcript":
        if not messages:
            return self
        items = self._items if len(self._items) == self._length else self._items[: self._length]
        items.extend(messages)
        return Transcript(items, len(items))

    def prefix(self, length: int) -> "Transcript":
        """The first messages, still shared."""
        return Transcript(self._items, min(length, self._length))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self._items[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._items[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[Message]:
        return (self._items[i] for i in range(self._length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transcript) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self._length)

    def __repr__(self) -> str:
        return f"Transcript({self._length} messages)"


def text_of(parts: Sequence[Part]) -> str:
    """The words of a message, without thinking and calls."""
    texts = [part.text for part in parts if type(part) is Text or type(part) is Refusal]
    return texts[0] if len(texts) == 1 else "".join(texts)


def calls_of(parts: Sequence[Part]) -> tuple[ToolCall, ...]:
    return tuple([part for part in parts if type(part) is ToolCall])


def message_id(run: str, seq: int, part: int | None = None) -> str:
    return f"{run}:{seq}" if part is None else f"{run}:{seq}.{part}"


def identified(run: str, seq: int, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Messages from outside, under their ids for ever: `run:seq`, or `run:seq.part` if the entry holds several."""
    if len(messages) == 1:
        return (Message(messages[0].role, messages[0].parts, message_id(run, seq)),)
    return tuple([Message(m.role, m.parts, message_id(run, seq, place)) for place, m in enumerate(messages, start=1)])


def _parts(parts: Sequence[object]) -> tuple[Part, ...]:
    return tuple(as_part(part) for part in parts)


def as_part(part: object) -> Part:
    """A part, or text taken for one. Raises UsageError for anything else."""
    if isinstance(part, str):
        return Text(check_text(part))
    if isinstance(part, Text | Thinking | Media | ToolCall | ToolResult | Refusal | Data):
        return part
    raise UsageError(f"a message is made of text and parts, not of {type(part).__name__}")
